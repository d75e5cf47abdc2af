"""Gradual upkeep: what brokers that died have left is completed, and obsolete documents are removed.

The brokers of a database take turns at what is expensive, piece by piece: together they would only do the same work
several times, and meet each other's writes.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from bson import ObjectId
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from miniq.store.mongodb import groups, queries, writes
from miniq.store.mongodb.connection import Link
from miniq.store.mongodb.history import HistoryLog

NAMED_BY = (
    ("blocks", "number"),
    ("groups", "number"),
    ("claims", "number"),
    ("readers", "serial"),
    ("stages", "serial"),
    ("results", "serial"),
    ("uploads", "serial"),
    ("publishes", "serial"),
)
"""Collections whose documents have the number or serial of a queue."""
PIECE = 500
"""Documents that are removed, and groups that are looked at, by one turn."""
TURN = 2
"""Seconds after which a turn is over though its broker has not ended it: it was killed, or is slow."""


async def choose_heads(link: Link, now: int, limit: int) -> tuple[int, list[tuple[str, str | None]]]:
    """Choose heads of groups that a broker left without one, and remove empty groups. How many groups were looked at,
    at least 1 if there may be something to do soon, and the queues and recipients of new heads."""
    with link.call() as db:
        left = await groups.left_behind(db, now)
    if left is None:
        return 0, []
    done, ready = 0, list[tuple[ObjectId, str | None]]()
    while left == "now" and done < limit:
        async with _turn(link, "heads") as is_ours:
            if not is_ours:
                break
            looked, found = await groups.tidy(link, now, min(PIECE, limit - done))
        done += looked
        ready += found
        if looked < PIECE:
            break
    if not ready:
        return max(done, 1), []
    with link.call() as db:
        names = {one["number"]: one["_id"] async for one in db.queues.find({}, {"number": 1})}
    return max(done, 1), [(names[number], lane) for number, lane in ready if number in names]


async def tidy(link: Link, log: HistoryLog, now: int, limit: int) -> int:
    """Remove blocks that ended a while ago, expired dedup records and results, and documents of queues that were
    deleted or purged."""
    removed = 0
    for ended in queries.ended(now, writes.before_doubt()):
        removed += await _remove(link, "blocks", ended, limit - removed)
    with link.call() as db:
        if not removed and await db.blocks.find_one(queries.ENDED, {"_id": 1}) is not None:
            removed = 1  # there will be something to do
    for name in ("dedup", "results", "publishes"):
        removed += await _remove(link, name, queries.ran_out(now), limit - removed)
    with link.call() as db:
        # Names first: a block is created after its queue, so it is garbage if that does not exist later.
        used = [(name, field, await db[name].distinct(field)) for name, field in NAMED_BY]
        # A commit moves from `publishes` to its queue, so it is found in one of them.
        present = {"number": {one["_id"] async for one in db.publishes.find({}, {"_id": 1})}, "serial": set()}
        async for queue in db.queues.find({}, {"number": 1, "serial": 1, "showing": 1}):
            present["serial"].add(queue["serial"])
            present["number"] |= {queue["number"], *(note["number"] for note in queue.get("showing", ()))}
        garbage = [
            (name, {field: one})
            for name, field, ones in used
            for one in ones
            if one is not None and one not in present[field]
        ]
    if garbage:
        await log.copy()  # what lies in their blocks
        for name, query in garbage:
            also = {"told": None} if name == "blocks" else {}
            removed += await _remove(link, name, query | also, limit - removed)
    return removed


async def _remove(link: Link, name: str, query: queries.Query, limit: int) -> int:
    """Remove up to `limit` documents that a query finds, unless another broker removes such."""
    removed = 0
    while removed < limit:
        with link.call() as db:
            if not removed and await db[name].find_one(query, {"_id": 1}) is None:
                break
            async with _turn(link, "removal") as is_ours:
                if not is_ours:
                    break
                piece = min(PIECE, limit - removed)
                found = [one["_id"] for one in await db[name].find(query, {"_id": 1}).limit(piece).to_list()]
                if found:
                    removed += (await db[name].delete_many(query | {"_id": {"$in": found}})).deleted_count
            if len(found) < piece:
                break
    return removed


@asynccontextmanager
async def _turn(link: Link, work: str) -> AsyncIterator[bool]:
    """Whether it is this broker's turn at some work, by the clock of the server. No promise depends on it: after `TURN`
    the next broker may do the same work as one that is slow."""
    me = secrets.token_hex(8)
    name = {"_id": f"turn:{work}"}
    free = name | {"$expr": {"$lt": ["$until", "$$NOW"]}}
    taken = {"by": me, "until": {"$dateAdd": {"startDate": "$$NOW", "unit": "second", "amount": TURN}}}
    meta = link.database.get_collection("meta", write_concern=WriteConcern(1))

    async def take() -> bool:
        return bool((await meta.update_one(free, [{"$set": taken}])).matched_count)

    with link.call():
        is_ours = await take()
        if not is_ours:
            made = await meta.update_one(name, {"$setOnInsert": {"by": None}}, upsert=True)
            is_ours = made.upserted_id is not None and await take()
    try:
        yield is_ours
    finally:
        if is_ours:
            with suppress(PyMongoError):  # it ends by itself
                await meta.update_one(name | {"by": me}, {"$unset": {"until": ""}})
