"""Dump and load of the MongoDB store: see `miniq.store.transfer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import groupby
from typing import Any

from bson import ObjectId

from miniq.store import transfer
from miniq.store.mongodb import counters, dedup, groups, queries
from miniq.store.mongodb.changes import Named
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import Document, decode_settings, message_document, place_of, stored_of
from miniq.store.mongodb.history import HistoryLog
from miniq.store.transfer import Item, Saved


async def dump(db: Database, log: HistoryLog) -> AsyncIterator[Item]:
    """Everything. Heads come before those that wait for them."""
    queues = [one async for one in db.queues.find({}).sort("_id")]
    for queue in queues:
        yield transfer.Queue(queue["_id"], decode_settings(queue["settings"]))
        for readers in await _readers(db, queue):
            yield readers
    async for record in db.records.find({"kind": {"$ne": transfer.MARK}}):
        yield transfer.Record(record["kind"], record["name"], record["value"])
    yield transfer.LastId(await counters.last_id(db))
    for queue in queues:
        for waits in (None, True):
            query = queries.of_number(queue["number"]) | {"waits": waits}
            async for one in db.messages.find(query, sort=queries.IN_LINE, hint="queue"):
                yield Saved(stored_of(one), int(one["taken_at"]) if "taken_at" in one else None)
    names = {queue["serial"]: queue["_id"] for queue in queues}
    async for record in db.dedup.find({}):
        if record["serial"] in names:
            yield transfer.Dedup(names[record["serial"]], record["name"], record["said"], int(record["until"]))
    async for item in transfer.history_of(log):
        yield item


async def _readers(db: Database, queue: Document) -> Iterable[transfer.Readers]:
    """The groups that read a queue by claims."""
    name, serial = queue["_id"], queue["serial"]
    staged = await db.stages.find_one({"serial": serial}, {"_id": 1}) is not None
    held = queries.of_number(queue["number"]) | {"$or": [{"acked_at": None}, {"ends": {"$exists": True}}]}
    many = Counter([one["group"] async for one in db.claims.find(held)])
    readers = [
        (transfer.Readers(name, one["group"], int(one["epoch"]), int(one["last"])), many[one["group"]])
        async for one in db.readers.find({"serial": serial}).sort("group")
    ]
    return transfer.at_rest(name, staged, readers)


async def load_readers(db: Database, session: Session, readers: transfer.Readers, named: Named) -> None:
    state = {"epoch": readers.epoch, "acked": readers.last, "last": readers.last}
    names = {"serial": named.serial, "number": named.number, "group": readers.group}
    await db.readers.insert_one({"_id": f"{named.serial}:{readers.group}"} | names | state, session=session)


async def load_messages(
    db: Database, session: Session, queue: str, number: ObjectId, slot: str, saved: Sequence[Saved], now: int
) -> None:
    """Messages of one queue, with their state."""
    messages = [one.stored.message for one in saved]
    waiting = await groups.join(db, session, number, messages)
    await db.messages.insert_many([_document(one, number, now, waiting) for one in saved], session=session)
    size = sum(message.size for message in messages)
    last = max(message.id for message in messages)
    await counters.add(db, session, queue, number, slot, len(messages), size, last)


def _document(saved: Saved, number: ObjectId, now: int, waiting: set[str]) -> dict[str, Any]:
    stored = saved.stored
    waits = stored.message.id in waiting
    found = message_document(stored.message, number, now, waits)
    for field in ("line", "timed"):
        found.pop(field, None)
    state: dict[str, Any] = {
        "visible_at": stored.visible_at,
        "receives": stored.receives,
        "receipt": stored.receipt,
        "consumer": stored.consumer,
        "taken_at": saved.taken_at,
    }
    found |= {name: value for name, value in state.items() if value is not None}
    place = place_of(stored.visible_at, now, waits)
    return found | ({} if place is None else {place: number})


async def load_dedup(
    db: Database, session: Session, serials: dict[str, ObjectId], records: Sequence[transfer.Dedup]
) -> None:
    for queue, group in groupby(records, lambda record: record.queue):
        answers = {record.name: (record.answer, record.until) for record in group}
        await dedup.remember(db, session, serials[queue], answers)


async def load_last_id(db: Database, session: Session, id: str) -> None:
    await db.meta.update_one({"_id": "last_id"}, {"$max": {"id": id}}, upsert=True, session=session)
