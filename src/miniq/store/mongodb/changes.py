"""Changes of queues: transactions that go by the numbers which the queues have, and have a slot for counting.

What queues are called is remembered. Each change finds out if it is no longer so, and is then made again.
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
    """What a queue is called in keys: see `documents.py`. Remembered, and checked by every change."""

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
        """Lets messages that are committed come into their queue; `Stages` sets it."""

    async def make(self, names: Iterable[str], work: Callable[[Numbers, str, Session], Awaitable[T]]) -> T:
        """Run a change of queues in a transaction, with the numbers that they have and a slot for counting."""
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
        """What a queue is called, from memory if possible: the change that uses it will find out if it is not so."""
        if queue not in self._named:
            with self._link.call() as db:
                await self._find(db, queue, None)
        return self._named[queue]

    async def ask(self, db: Database, queue: str, session: Session | None = None) -> Named:
        """What a queue is called now. Unless this is read in a session, all that is committed is then in it."""
        if await self._find(db, queue, session) and session is None:
            await self.show(queue)
        return await self.know(queue)

    async def _find(self, db: Database, queue: str, session: Session | None) -> bool:
        """Look up what a queue is called; whether messages that are committed still have to come into it."""
        fields = {"number": 1, "serial": 1, "showing": 1}
        found = await db.queues.find_one({"_id": queue}, fields, session=session)
        if found is None:
            self.forget(queue)
            raise no_queue(queue)
        self._named[queue] = Named(found["number"], found["serial"])
        return "showing" in found

    def forget(self, queue: str) -> None:
        """A queue may be called something else from now on."""
        self._named.pop(queue, None)

    async def _make_slot(self, queue: str, slot: str) -> None:
        self.forget(queue)
        number = (await self.know(queue)).number
        async with self._making:
            await self._link.transact(partial(counters.make, self._link.database, queue, number, slot))


async def check_number(db: Database, session: Session, queue: str, number: ObjectId) -> None:
    """Whether a queue still has the number that a change went by, for changes that count nothing."""
    if await db.queues.find_one({"_id": queue, "number": number}, {"_id": 1}, session=session) is None:
        raise SlotGone(queue)
