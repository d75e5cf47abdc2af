"""Dump and load of the MongoDB store: see `miniq.store.transfer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from itertools import groupby

from bson import ObjectId

from miniq.store import transfer
from miniq.store.mongodb import calls, counting, dedup, fronts, groups, queries, results, writes
from miniq.store.mongodb.blocks import State, block_of, blocks_for, shared_name
from miniq.store.mongodb.changes import Named
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import Document, decode_settings, group_key
from miniq.store.mongodb.history import HistoryLog
from miniq.store.transfer import Item, Saved


async def dump(db: Database, log: HistoryLog) -> AsyncIterator[Item]:
    """Everything. Heads and fronts come before those that wait for them."""
    queues = [one async for one in db.queues.find({}).sort("_id")]
    for queue in queues:
        yield transfer.Queue(queue["_id"], decode_settings(queue["settings"]))
        for readers in await _readers(db, queue):
            yield readers
    async for record in db.records.find({"kind": {"$ne": transfer.MARK}}):
        yield transfer.Record(record["kind"], record["name"], record["value"])
    yield transfer.LastId(await counting.last_id(db))
    for queue in queues:
        for part in ({"$or": [{"waits": None}, {"front": {"$exists": True}}]}, {"waits": True, "front": None}):
            query = queries.of_number(queue["number"]) | part | {"count": {"$gt": 0}}
            cursor = db.blocks.find(query, queries.WHOLE, sort=queries.IN_LINE, hint="queue").batch_size(20)
            async for one in cursor:
                block = block_of(one)
                for place in block.present():
                    state = block.state(place)
                    yield Saved(block.stored(place), state.taken_at, state.returned)
    names = {queue["serial"]: queue["_id"] for queue in queues}
    async for record in db.dedup.find({}):
        if record["serial"] in names:
            yield transfer.Dedup(names[record["serial"]], record["name"], record["said"], int(record["until"]))
    async for one in db.blocks.find(queries.CALLED, {"call": 1}):
        serial, name = calls.parts(one["call"]["name"])
        if serial in names:
            yield transfer.Dedup(names[serial], name, one["call"]["said"], int(one["call"]["until"]))
    async for kept in db.results.find({}):
        if kept["serial"] in names:
            yield transfer.Kept(names[kept["serial"]], kept["id"], results.finished(kept), int(kept["until"]))
    async for item in transfer.history_of(log):
        yield item


async def _readers(db: Database, queue: Document) -> Iterable[transfer.Readers]:
    """The groups that read a queue by claims."""
    name, serial = queue["_id"], queue["serial"]
    staged = await db.stages.find_one({"serial": serial}, {"_id": 1}) is not None
    held = queries.of_number(queue["number"]) | {"$or": [{"acked_at": None}, {"ends": {"$exists": True}}]}
    many = Counter([one["group"] async for one in db.claims.find(held)])
    readers = [
        (
            transfer.Readers(name, one["group"], int(one["epoch"]), int(one["last"]), one.get("id", "")),
            many[one["group"]],
        )
        async for one in db.readers.find({"serial": serial}).sort("group")
    ]
    return transfer.at_rest(name, staged, readers)


async def load_readers(db: Database, session: Session, readers: transfer.Readers, named: Named) -> None:
    state = {"epoch": readers.epoch, "acked": readers.last, "last": readers.last, "id": readers.id}
    names = {"serial": named.serial, "number": named.number, "group": readers.group}
    await db.readers.insert_one({"_id": f"{named.serial}:{readers.group}"} | names | state, session=session)


async def load_messages(
    db: Database, session: Session, number: ObjectId, saved: Sequence[Saved], now: int
) -> list[str]:
    """Messages of one queue, with their state: the keys of groups with fronts."""
    messages = [one.stored.message for one in saved]
    states = {one.stored.message.id: one for one in saved}
    names = list({shared_name(number, one.id) for one in messages})
    there = [one["_id"] async for one in db.blocks.find({"_id": {"$in": names}}, {"_id": 1}, session=session)]
    blocks = blocks_for(messages, number, moved=True, taken=there)
    await groups.expect(db, number, messages, now, session)
    await groups.join(db, session, number, blocks)
    for block in blocks:
        for place, id in enumerate(block.ids):
            one = states[id]
            if not one.fresh:
                block.states[place] = _state(one)
    await db.blocks.insert_many(writes.insert(blocks, now), session=session)
    last = max(message.id for message in messages)
    await db.blocks.update_one({"_id": number}, {"$max": {"last_id": last}}, session=session)
    several = [block for block in blocks if block.in_front]
    await fronts.note(db, session, several)
    return list(dict.fromkeys(group_key(number, block.group or "") for block in several))


def _state(saved: Saved) -> State:
    stored = saved.stored
    lease = (stored.visible_at, stored.receives, stored.receipt, stored.consumer, saved.taken_at)
    return State(*lease, error=stored.error, returned=saved.returned)


async def load_dedup(
    db: Database, session: Session, serials: dict[str, ObjectId], records: Sequence[transfer.Dedup]
) -> None:
    for queue, group in groupby(records, lambda record: record.queue):
        answers = {record.name: (record.answer, record.until) for record in group}
        sends = {name: answers.pop(name) for name in list(answers) if calls.is_send(name)}
        await dedup.remember(db, session, serials[queue], answers)
        if sends:
            await db.blocks.insert_many(calls.stubs(serials[queue], sends), session=session)


async def load_last_id(db: Database, session: Session, id: str) -> None:
    await db.meta.update_one({"_id": "last_id"}, {"$max": {"id": id}}, upsert=True, session=session)
