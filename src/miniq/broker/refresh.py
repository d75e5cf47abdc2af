"""Keeps the broker's caches up to date on a store that other brokers also change.

Queue settings and keys are cached. They are reloaded when the store signals a change, at least every
`refresh_interval`, and when a call names an unknown queue. Long polls are woken just as often, so a lost signal delays
them by at most that interval.
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
    """The background task of a broker on a shared store; on any other store it does nothing."""

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
        """Called when another broker changed something: refresh soon."""
        self._hint.set()

    async def once(self) -> None:
        """Reload settings and keys if the store's revision has changed."""
        broker = self._broker
        if not broker.store.shared:
            return
        while (revision := await broker.store.revision()) != self._revision:
            own_changes = broker.catalog.changes
            settings = await broker.store.queues()
            await broker.keys.load()
            # Otherwise the settings read may be older than those that this broker has just written.
            if broker.catalog.changes == own_changes:
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
                log.debug("refresh failed: %s", error)
            self._broker.waiters.wake_everywhere()
