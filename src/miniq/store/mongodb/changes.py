"""Transactions on queues, with the queues' numbers and a counter slot.

Numbers are cached. A change fails if they are outdated, and is then retried.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from bson import ObjectId
from msgspec import Struct

from miniq.store.contract import no_queue
from miniq.store.mongodb import counters
from miniq.store.mongodb.connection import Database, Link, Session
from miniq.store.mongodb.counters import SlotGone, Slots

T = TypeVar("T")


class Named(Struct, frozen=True):
    """The number and serial of a queue: see `documents.py`. Cached, and checked by every change."""

    number: ObjectId
    serial: ObjectId


Numbers = Mapping[str, Named]


class Changes:
    """The changes that this process makes."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._slots = Slots()
        self._making = asyncio.Lock()
        self._named: dict[str, Named] = {}
        self.show: Callable[[str], Awaitable[None]]
        """Completes large commits of a queue; `Stages` sets it."""

    async def make(self, names: Iterable[str], work: Callable[[Numbers, str, Session], Awaitable[T]]) -> T:
        """Run a change of queues in a transaction, with their numbers and a counter slot."""
        names = list(dict.fromkeys(names))
        deadline = time.monotonic() + self._link.patience
        with self._slots.one() as slot:
            while True:
                named = {name: await self.know(name) for name in names}
                try:
                    return await self._link.transact(partial(work, named, slot))
                except SlotGone as gone:
                    if time.monotonic() > deadline:
                        raise
                    await self._make_slot(gone.queue, slot)

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

    async def _find(self, db: Database, queue: str, session: Session | None) -> bool:
        """Read the number of a queue into the cache; whether it has incomplete commits."""
        fields = {"number": 1, "serial": 1, "showing": 1}
        found = await db.queues.find_one({"_id": queue}, fields, session=session)
        if found is None:
            self.forget(queue)
            raise no_queue(queue)
        self._named[queue] = Named(found["number"], found["serial"])
        return "showing" in found

    def forget(self, queue: str) -> None:
        """Drop the cached number of a queue."""
        self._named.pop(queue, None)

    async def _make_slot(self, queue: str, slot: str) -> None:
        self.forget(queue)
        number = (await self.know(queue)).number
        async with self._making:
            await self._link.transact(partial(counters.make, self._link.database, queue, number, slot))


async def check_number(db: Database, session: Session, queue: str, number: ObjectId) -> None:
    """Raise if a queue no longer has the number that a change used; for changes without a counter."""
    if await db.queues.find_one({"_id": queue, "number": number}, {"_id": 1}, session=session) is None:
        raise SlotGone(queue)
