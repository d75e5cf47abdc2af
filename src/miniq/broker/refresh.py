"""What a broker remembers of a store that other brokers change too, kept up to date.

Settings and API keys are copies. They are read again when the store hints at a change, at least every
`refresh_interval`, and when somebody names a queue that is not known here. Long polls look again just as often,
so a hint that was lost costs a moment and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from miniq.broker import background
from miniq.errors import MiniQError

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.refresh")


class Refresh:
    """The background task of a broker on a shared store; on another one it does nothing."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._revision = -1
        self._hint = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._broker.store.shared and self._broker.options.refresh_interval > 0:
            self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """End the background task."""
        if self._task is not None:
            await background.end(self._task)
            self._task = None

    def hint(self) -> None:
        """Something was changed elsewhere: look soon."""
        self._hint.set()

    async def once(self) -> None:
        """Read again what was changed since the last time."""
        broker = self._broker
        if not broker.store.shared:
            return
        while (revision := await broker.store.revision()) != self._revision:
            seen = broker.catalog.changes
            settings = await broker.store.queues()
            await broker.keys.load()
            if (
                broker.catalog.changes == seen
            ):  # else what was read may be older than what this broker itself wrote meanwhile
                broker.catalog.learn(settings)
                self._revision = revision

    async def _loop(self) -> None:
        interval = self._broker.options.refresh_interval
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval):
                    await self._hint.wait()
            self._hint.clear()
            try:
                await self.once()
            except MiniQError as error:
                log.debug("not refreshed: %s", error)
            self._broker.waiters.wake_everywhere()
