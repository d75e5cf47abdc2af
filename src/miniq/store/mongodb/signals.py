"""Wake-up hints between the brokers of a database, for long polls.

One record in a small capped collection carries all hints that arose while the previous one was written, so a busy
broker writes few of them. The others follow the collection by a change stream, which shows a record once a majority has
it, so after the messages it announces.

Each broker writes a record every few seconds, and when it starts. One that has heard of no other for a while is alone
and writes no hints.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pymongo.write_concern import WriteConcern

from miniq.errors import MiniQError
from miniq.store.contract import FinishHint, ReadyHint
from miniq.store.mongodb.connection import FAREWELL, Link, translated

log = logging.getLogger("miniq.mongodb")

GATHER = 0.005
"""Seconds in which hints are gathered after one was sent: a hint costs about as much as a send."""
BEAT = 2.0
"""Seconds between two records that a broker writes even without a hint."""
ALONE = 4 * BEAT
"""Seconds without a record of another broker after which there is none."""
AGAIN = 0.5
"""Seconds before a broken stream is reopened."""


class Signals:
    def __init__(self, link: Link) -> None:
        self._link = link
        self._me = secrets.token_hex(6)
        self._ready: Counter[tuple[str, str | None]] = Counter()
        self._finished: set[str] = set()
        self._changed = False
        self._beat = False
        """Whether a record is due."""
        self._heard = time.monotonic()
        """When another broker was last heard of, or may have been."""
        self._beating: asyncio.Task[None] | None = None
        self._sender: asyncio.Task[None] | None = None
        self._listener: asyncio.Task[None] | None = None
        self._stopping = False
        self._settled = asyncio.Event()
        """Cleared while the stream is being opened: cancelling it then would leak a connection in the driver."""

    def start(self, ready: ReadyHint, changed: Callable[[], None], finished: FinishHint) -> None:
        """Start listening."""
        self._stopping = False
        self._heard = time.monotonic()
        self._listener = asyncio.create_task(self._listen(ready, changed, finished))
        self._beating = asyncio.create_task(self._be_heard())

    async def stop(self) -> None:
        if self._listener is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._settled.wait(), FAREWELL)
        self._stopping = True
        tasks = [task for task in (self._beating, self._listener, self._sender) if task is not None]
        while tasks := [task for task in tasks if not task.done()]:
            # Repeatedly: the driver may take the cancellation for a network error.
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=0.2)
        self._beating = self._listener = self._sender = None

    def ready(self, queue: str, recipient: str | None, count: int) -> None:
        """Announce messages that arrived or were given back to other brokers."""
        if time.monotonic() - self._heard < ALONE:
            self._ready[queue, recipient] += count
            self._wake()

    def finished(self, queue: str) -> None:
        """Announce results of a queue to other brokers."""
        if time.monotonic() - self._heard < ALONE:
            self._finished.add(queue)
            self._wake()

    def changed(self) -> None:
        """Announce changed queues or records to other brokers."""
        self._changed = True
        self._wake()

    def _wake(self) -> None:
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send())

    async def _be_heard(self) -> None:
        while True:
            self._beat = True
            self._wake()
            await asyncio.sleep(BEAT)

    async def _send(self) -> None:
        while (self._ready or self._finished or self._changed or self._beat) and not self._stopping:
            ready = [[queue, recipient, count] for (queue, recipient), count in self._ready.items()]
            signal = {"from": self._me, "ready": ready, "changed": self._changed, "finished": [*self._finished]}
            self._ready.clear()
            self._finished.clear()
            self._changed = self._beat = False
            try:
                with self._link.call() as db:
                    await db.get_collection("signals", write_concern=WriteConcern(1)).insert_one(signal)
                await asyncio.sleep(GATHER)
            except MiniQError as error:
                log.debug("a hint to other brokers was not sent: %s", error)

    async def _listen(self, ready: ReadyHint, changed: Callable[[], None], finished: FinishHint) -> None:
        others: list[dict[str, Any]] = [
            {"$match": {"operationType": "insert", "fullDocument.from": {"$ne": self._me}}},
            {"$project": {"fullDocument.ready": 1, "fullDocument.changed": 1, "fullDocument.finished": 1}},
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
                            await self._all_may_be_ready(ready, finished)
                        missed = True
                        async for change in stream:
                            self._heard = time.monotonic()
                            signal = change["fullDocument"]
                            for queue, recipient, count in signal.get("ready", ()):
                                ready(queue, recipient, count)
                            for queue in signal.get("finished", ()):
                                finished(queue)
                            if signal.get("changed"):
                                changed()
            except MiniQError as error:
                log.info("hints from other brokers stopped, trying again: %s", error)
            self._settled.set()
            await asyncio.sleep(AGAIN)

    async def _all_may_be_ready(self, ready: ReadyHint, finished: FinishHint) -> None:
        """Wake all queues after a gap in the stream."""
        with self._link.call() as db:
            names = [one["_id"] for one in await db.queues.find({}, {"_id": 1}).to_list()]
        for name in names:
            ready(name, None, 2**31)
            finished(name)
