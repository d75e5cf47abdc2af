"""Gradual upkeep: due messages are lined up, and obsolete documents removed."""

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
"""Collections whose documents have the number or serial of a queue."""


async def stand_in_line(db: Database, number: ObjectId, now: int) -> bool:
    """Line up some due messages; True if there may be more. Their state does not change, so this is idempotent and need
    not be durable."""
    found = await db.messages.find(queries.due(number, now), {"_id": 1}).sort("visible_at").limit(AT_ONCE).to_list()
    if found:
        query = queries.due(number, now) | {"_id": {"$in": [one["_id"] for one in found]}}
        await db.get_collection("messages", write_concern=WriteConcern(1)).update_many(query, queries.STAND_IN_LINE)
    return len(found) == AT_ONCE


async def tidy(link: Link, now: int, limit: int) -> int:
    """Remove expired dedup records and acked claims, and documents of deleted or purged queues; add up counters."""
    removed = 0
    with link.call() as db:
        for name, also in (("dedup", {}), ("publishes", {}), ("claims", {"ends": None})):
            removed += await _remove(db, name, queries.ran_out(now) | also, limit - removed)
        # Names first: a message is created after its queue or claim, so it is garbage if those do not exist later.
        used = [(name, field, await db[name].distinct(field)) for name, field in NAMED_BY]
        # A commit moves from `publishes` to its queue, so it is found in one of them.
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
