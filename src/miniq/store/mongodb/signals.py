"""Wake-up hints between the brokers of a database, for long polls.

One record in a small capped collection carries all hints that arose while the previous one was written, so a busy
broker writes few of them. The others follow the collection by a change stream, which shows a record once a majority has
it, so after the messages it announces.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from miniq.errors import MiniQError
from miniq.store.contract import ReadyHint
from miniq.store.mongodb.connection import FAREWELL, Link, translated

log = logging.getLogger("miniq.mongodb")

AGAIN = 0.5
"""Seconds before a broken stream is reopened."""


class Signals:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._me = secrets.token_hex(6)
        self._ready: Counter[tuple[str, str | None]] = Counter()
        self._changed = False
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._stopping = False
        self._settled = asyncio.Event()
        """Cleared while the stream is being opened: cancelling it then would leak a connection in the driver."""

    def start(self, ready: ReadyHint, changed: Callable[[], None]) -> None:
        """Start listening."""
        self._stopping = False
        self._listener = asyncio.create_task(self._listen(ready, changed))

    async def stop(self) -> None:
        if self._listener is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), FAREWELL)
        self._stopping = True
        tasks = [task for task in (self._listener, self._sender) if task is not None]
        while tasks := [task for task in tasks if not task.done()]:
            # Repeatedly: the driver may take the cancellation for a network error.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.2)
        self._listener = self._sender = None

    def ready(self, queue: str, recipient: str | None, count: int) -> None:
        """Announce messages that arrived or were given back to other brokers."""
        self._ready[queue, recipient] += count
        self._wake()

    def changed(self) -> None:
        """Announce changed queues or records to other brokers."""
        self._changed = True
        self._wake()

    def _wake(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while (self._ready or self._changed) and not self._stopping:
            ready = [[queue, recipient, count] for (queue, recipient), count in self._ready.items()]
            signal = {"from": self._me, "ready": ready, "changed": self._changed}
            self._ready.clear()
            self._changed = False
            try:
                with self._link.call() as db:
                    await db.signals.insert_one(signal)
            except MiniQError as error:
                log.debug("a hint to other brokers was not sent: %s", error)

    async def _listen(self, ready: ReadyHint, changed: Callable[[], None]) -> None:
        others: list[dict[str, Any]] = [
            {"$match": {"operationType": "insert", "fullDocument.from": {"$ne": self._me}}},
            {"$project": {"fullDocument.ready": 1, "fullDocument.changed": 1}},
        ]
        missed = False
        while not self._stopping:
            self._settled.clear()
            try:
                with translated():
                    async with await self._link.database.signals.watch(others) as stream:
                        self._settled.set()
                        if missed:
                            changed()
                            await self._all_may_be_ready(ready)
                        missed = True
                        async for change in stream:
                            signal = change["fullDocument"]
                            for queue, recipient, count in signal.get("ready", ()):
                                ready(queue, recipient, count)
                            if signal.get("changed"):
                                changed()
            except MiniQError as error:
                log.info("hints from other brokers stopped, trying again: %s", error)
            self._settled.set()
            await asyncio.sleep(AGAIN)

    async def _all_may_be_ready(self, ready: ReadyHint) -> None:
        """Wake all queues after a gap in the stream."""
        with self._link.call() as db:
            names = [one["_id"] for one in await db.queues.find({}, {"_id": 1}).to_list()]
        for name in names:
            ready(name, None, 2**31)
