"""What is done a little at a time: messages whose moment has come stand in line, and what counts no more is removed."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from bson import ObjectId
from pymongo.write_concern import WriteConcern

from miniq.store.mongodb import counters, queries
from miniq.store.mongodb.connection import Contended, Database, Link

AT_ONCE = 1000
NAMED_BY = (
    ("messages", "number"),
    ("groups", "number"),
    ("claims", "number"),
    ("readers", "serial"),
    ("stages", "serial"),
    ("uploads", "serial"),
    ("publishes", "serial"),
)
"""Collections whose documents have the name of a queue: its number or its serial."""


async def stand_in_line(db: Database, number: ObjectId, now: int) -> bool:
    """Let some of those that are due stand in line; True if there may be more. Their state stays as it is, so it does
    not matter who does it, how often, and whether it is on disk."""
    found = await db.messages.find(queries.due(number, now), {"_id": 1}).sort("visible_at").limit(AT_ONCE).to_list()
    if found:
        query = queries.due(number, now) | {"_id": {"$in": [one["_id"] for one in found]}}
        await db.get_collection("messages", write_concern=WriteConcern(1)).update_many(query, queries.STAND_IN_LINE)
    return len(found) == AT_ONCE


async def tidy(link: Link, now: int, limit: int) -> int:
    """Remove dedup records and acked claims that ran out, and what has a number or serial that no queue has; add up
    counters."""
    removed = 0
    with link.call() as db:
        for name, also in (("dedup", {}), ("publishes", {}), ("claims", {"ends": None})):
            removed += await _remove(db, name, queries.ran_out(now) | also, limit - removed)
        # Names first: a message comes after its queue or claim, so one whose queue is not there later is garbage.
        used = [(name, field, await db[name].distinct(field)) for name, field in NAMED_BY]
        # A commit goes from `publishes` to its queue, so it is found in one of them.
        present = {"number": {one["_id"] async for one in db.publishes.find({}, {"_id": 1})}, "serial": set()}
        async for queue in db.queues.find({}, {"number": 1, "serial": 1, "showing": 1}):
            present["serial"].add(queue["serial"])
            present["number"] |= {queue["number"], *(note["number"] for note in queue.get("showing", ()))}
        for name, field, names in used:
            gone = [one for one in names if one not in present[field]]
            kept = {one["_id"] async for one in db.claims.find({"_id": {"$in": gone}}, {"_id": 1})} if gone else set()
            for one in gone:
                if one not in kept:
                    removed += await _remove(db, name, {field: one}, limit - removed)
        many = [one["_id"] async for one in await db.tallies.aggregate(queries.SLOTS)]
    for number in many:
        with suppress(Contended):
            await link.transact(partial(counters.fold, link.database, number), again=False)
    return removed


async def _remove(db: Database, name: str, query: queries.Query, limit: int) -> int:
    """Remove up to `limit` documents that a query finds."""
    if limit <= 0:
        return 0
    found = await db[name].find(query, {"_id": 1}).limit(limit).to_list()
    if not found:
        return 0
    return (await db[name].delete_many(query | {"_id": {"$in": [one["_id"] for one in found]}})).deleted_count
