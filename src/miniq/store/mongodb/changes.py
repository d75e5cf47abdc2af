"""The numbers of queues, and transactions that change several documents.

Numbers are cached. Every change makes sure, while it runs, that the queue still has the number it used; a change that
found an outdated one is repeated.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from bson import ObjectId
from msgspec import Struct

from miniq.errors import MiniQError, StoreUnavailable
from miniq.store.contract import no_queue
from miniq.store.mongodb.connection import Database, Link, Session

T = TypeVar("T")


class Named(Struct, frozen=True):
    """The number and serial of a queue: see `documents.py`. Cached, and checked by every change."""

    number: ObjectId
    serial: ObjectId


Numbers = Mapping[str, Named]


class Outdated(StoreUnavailable):
    """What a change was based on has changed."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"store: queue {queue!r} changed too often; try again", field="store")
        self.queue = queue


class Renumbered(MiniQError):
    """A queue was purged between the note of what may come and the transaction that adds it."""


class Changes:
    """The changes that this process makes."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._named: dict[str, Named] = {}
        self.show: Callable[[str], Awaitable[None]]
        """Completes large commits of a queue; `Stages` sets it."""

    async def make(self, names: Iterable[str], work: Callable[[Numbers, Session], Awaitable[T]]) -> T:
        """Run a change of queues in a transaction, with their numbers."""
        names = list(dict.fromkeys(names))
        deadline = time.monotonic() + self._link.patience
        pause = 0.001
        while True:
            named = {name: await self.know(name) for name in names}
            try:
                return await self._link.transact(partial(self._checked, named, work))
            except Outdated as outdated:
                self.forget(outdated.queue)
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311
            pause = min(pause * 2, 0.05)

    async def know(self, queue: str) -> Named:
        """The number of a queue, from the cache if possible; a change fails if it is outdated."""
        if queue not in self._named:
            with self._link.call() as db:
                await self._find(db, queue, None)
        return self._named[queue]

    async def ask(self, db: Database, queue: str, session: Session | None = None) -> Named:
        """The current number of a queue. Without a session, completes its commits first."""
        if await self._find(db, queue, session) and session is None:
            await self.show(queue)
        return await self.know(queue)

    def forget(self, queue: str) -> None:
        """Drop the cached number of a queue."""
        self._named.pop(queue, None)

    async def _checked(self, named: Numbers, work: Callable[[Numbers, Session], Awaitable[T]], session: Session) -> T:
        numbers = {name.number: queue for queue, name in named.items()}
        query = {"_id": {"$in": list(numbers)}}
        there = {one["_id"] async for one in self._link.database.blocks.find(query, {"_id": 1}, session=session)}
        for number, queue in numbers.items():
            if number not in there:
                raise Outdated(queue)
        return await work(named, session)

    async def _find(self, db: Database, queue: str, session: Session | None) -> bool:
        """Read the number of a queue into the cache; whether it has incomplete commits."""
        fields = {"number": 1, "serial": 1, "showing": 1}
        found = await db.queues.find_one({"_id": queue}, fields, session=session)
        if found is None:
            self.forget(queue)
            raise no_queue(queue)
        self._named[queue] = Named(found["number"], found["serial"])
        return "showing" in found
