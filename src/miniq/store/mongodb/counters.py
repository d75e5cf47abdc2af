"""How many messages each queue holds, counted in the change that adds or removes them.

With one counter per queue all changes would conflict. So each queue has slots: a process uses a slot for one
transaction at a time, and the count is the sum over all slots.

A slot is created together with a change of the queue's document, and purging or deleting the queue removes all its
slots. So a change that uses a slot of the queue's old number fails, because the slot is gone.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from bson import ObjectId

from miniq.errors import StoreUnavailable
from miniq.store.mongodb import queries
from miniq.store.mongodb.connection import Database, Session


class SlotGone(StoreUnavailable):
    """The queue has another number now, or this slot does not exist yet."""

    def __init__(self, queue: str) -> None:
        super().__init__(f"store: queue {queue!r} changed too often; try again", field="store")
        self.queue = queue


class Slots:
    """The slots of this process."""

    def __init__(self) -> None:
        self._process = secrets.token_hex(6)
        self._free: list[str] = []
        self._made = 0

    @contextmanager
    def one(self) -> Iterator[str]:
        """An exclusive slot. A slot whose transaction may still be open is not reused."""
        if self._free:
            name = self._free.pop()
        else:
            self._made += 1
            name = f"{self._process}.{self._made}"
        try:
            yield name
        except StoreUnavailable as error:
            if isinstance(error, SlotGone):
                self._free.append(name)
            raise
        except Exception:
            self._free.append(name)
            raise
        else:
            self._free.append(name)


async def make(db: Database, queue: str, number: ObjectId, slot: str, session: Session) -> None:
    """Create a slot of a queue that still has this number."""
    named = await db.queues.update_one({"_id": queue, "number": number}, {"$inc": {"slots": 1}}, session=session)
    if named.matched_count:
        key = {"_id": f"{number}.{slot}"}
        fresh = {"number": number, "count": 0, "bytes": 0, "last_id": ""}
        await db.tallies.update_one(key, {"$setOnInsert": fresh}, upsert=True, session=session)


async def add(
    db: Database, session: Session, queue: str, number: ObjectId, slot: str, count: int, size: int, last_id: str = ""
) -> None:
    """Count added or, if negative, removed messages."""
    change = {"$inc": {"count": count, "bytes": size}, "$max": {"last_id": last_id}}
    counted = await db.tallies.update_one({"_id": f"{number}.{slot}"}, change, session=session)
    if not counted.matched_count:
        raise SlotGone(queue)


async def take_turn(db: Database, session: Session, queue: str, number: ObjectId) -> None:
    """Serialize sends to a queue with a limit: each writes the queue's document."""
    turn = await db.queues.update_one({"_id": queue, "number": number}, {"$inc": {"turn": 1}}, session=session)
    if not turn.matched_count:
        raise SlotGone(queue)


async def total(db: Database, session: Session, number: ObjectId) -> tuple[int, int]:
    """Messages and bytes of a queue."""
    found = await db.tallies.find(queries.of_number(number), session=session).to_list()
    return sum(one["count"] for one in found), sum(one["bytes"] for one in found)


async def remove(db: Database, session: Session, number: ObjectId) -> None:
    """Remove all slots of an obsolete number, so that transactions about to use one fail."""
    found = await db.tallies.find(queries.of_number(number), session=session).to_list()
    last = max((one["last_id"] for one in found), default="")
    await db.meta.update_one({"_id": "last_id"}, {"$max": {"id": last}}, upsert=True, session=session)
    await db.tallies.delete_many({"_id": {"$in": [one["_id"] for one in found]}}, session=session)


async def fold(db: Database, number: ObjectId, session: Session) -> None:
    """Add up the slots of a queue in one of them. Slots in use are created again."""
    found = await db.tallies.find(queries.of_number(number), session=session).to_list()
    if len(found) > 1:
        first, rest = found[0], found[1:]
        sums = {
            "$inc": {"count": sum(one["count"] for one in rest), "bytes": sum(one["bytes"] for one in rest)},
            "$max": {"last_id": max(one["last_id"] for one in rest)},
        }
        await db.tallies.update_one({"_id": first["_id"]}, sums, session=session)
        await db.tallies.delete_many({"_id": {"$in": [one["_id"] for one in rest]}}, session=session)


async def last_id(db: Database) -> str:
    """The highest id that was put so far."""
    tops = await (await db.tallies.aggregate([{"$group": {"_id": None, "id": {"$max": "$last_id"}}}])).to_list()
    gone = await db.meta.find_one({"_id": "last_id"})
    return max(str(one["id"] or "") for one in [*tops, gone or {"id": ""}, {"id": ""}])
