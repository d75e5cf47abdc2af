"""What is done a little at a time: messages whose moment has come stand in line, and what counts no more is removed."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from bson import ObjectId
from pymongo.write_concern import WriteConcern

from miniq.store.mongodb import queries, tallies
from miniq.store.mongodb.link import Contended, Database, Link

AT_ONCE = 1000


async def stand_in_line(db: Database, number: ObjectId, now: int) -> None:
    """Let some of those that are due stand in line. Their state stays as it is, so it does not matter who does it,
    how often, and whether it is on disk."""
    found = await db.messages.find(queries.due(number, now), {"_id": 1}).sort("visible_at").limit(AT_ONCE).to_list()
    query = queries.due(number, now) | {"_id": {"$in": [one["_id"] for one in found]}}
    await db.get_collection("messages", write_concern=WriteConcern(1)).update_many(query, queries.STAND_IN_LINE)


async def tidy(link: Link, now: int, limit: int) -> int:
    """Remove dedup records that ran out and what has a number that no queue has; add up counters."""
    removed = 0
    with link.call() as db:
        old = await db.dedup.find(queries.ran_out(now), {"_id": 1}).limit(limit).to_list()
        if old:
            query = queries.ran_out(now) | {"_id": {"$in": [one["_id"] for one in old]}}
            removed += (await db.dedup.delete_many(query)).deleted_count
        # Numbers first: a message comes after its queue, so one whose queue is not there later is garbage.
        used = {name: set(await db[name].distinct("number")) for name in ("messages", "groups")}
        present = {one["number"] for one in await db.queues.find({}, {"number": 1}).to_list()}
        for name, numbers in used.items():
            for number in numbers - present:
                if removed < limit:
                    removed += await _remove(db, name, number, limit - removed)
        many = [one["_id"] async for one in await db.tallies.aggregate(queries.SLOTS)]
    for number in many:
        with suppress(Contended):
            await link.transact(partial(tallies.fold, link.database, number), again=False)
    return removed


async def _remove(db: Database, name: str, number: ObjectId, limit: int) -> int:
    found = await db[name].find(queries.of_number(number), {"_id": 1}).limit(limit).to_list()
    query = queries.of_number(number) | {"_id": {"$in": [one["_id"] for one in found]}}
    return (await db[name].delete_many(query)).deleted_count
