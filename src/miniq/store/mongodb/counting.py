"""How many messages a queue holds, summed over its blocks.

The sums are read from indexes alone: what a queue holds, and how many of these are leased or delayed in blocks of
which nothing is due. Each index is read once. The states are read only of blocks of which some messages are due and
others are not.
"""

from __future__ import annotations

from bson import ObjectId

from miniq.consumer import NOTHING, Holding
from miniq.message import NEVER, Counts
from miniq.store.mongodb import fronts, queries
from miniq.store.mongodb.blocks import State, block_of
from miniq.store.mongodb.connection import Database, Session


async def total(db: Database, session: Session | None, number: ObjectId) -> tuple[int, int]:
    """Messages and bytes of a queue."""
    cursor = await db.blocks.aggregate(queries.tally(number), hint="queue", session=session)
    for one in await cursor.to_list():
        return int(one["count"]), int(one["bytes"])
    return 0, 0


async def counts(db: Database, session: Session, number: ObjectId, now: int) -> Counts:
    count, size = await total(db, session, number)
    leased = delayed = 0
    cursor = await db.blocks.aggregate(queries.tally_of_ahead(number, now), hint="timed", session=session)
    for one in await cursor.to_list():
        leased, delayed = int(one["leased"]), int(one["delayed"])
    fields = {"sent_at": 1}
    line = db.blocks.find(queries.oldest(number), fields, session=session, hint="line").sort("first").limit(1)
    oldest = [int(one["sent_at"]) for one in await line.to_list()]
    cursor = await db.blocks.aggregate(queries.about_due(number, now), hint="timed", session=session)
    for due in await cursor.to_list():
        if due["first"] is not None:
            first = await db.blocks.find_one({"_id": due["first"]}, fields, session=session)
            oldest += [] if first is None else [int(first["sent_at"])]
        if due["until"] > now:
            for state in await _partly_due(db, session, number, now):
                leased += state.receipt is not None
                delayed += state.receipt is None
        if due["front"] is not None:
            fronted = db.blocks.find(
                queries.fronts_due(number, now), {"_id": 0, "front": 1}, session=session, hint="timed"
            )
            keys = sorted({one["front"] async for one in fronted})
            for block in await fronts.first_free(db, session, number, keys, now):
                if not block.lane and block.state(0).visible_at <= now:
                    oldest.append(block.sent_at)
    return Counts(count - leased - delayed, delayed, leased, size, min(oldest) // 1000 * 1000 if oldest else None)


async def _partly_due(db: Database, session: Session | None, number: ObjectId, now: int) -> list[State]:
    """The states of messages that are not due, in blocks of which others are."""
    found: list[State] = []
    query = db.blocks.find(queries.partly_due(number, now), queries.WITHOUT_CONTENT, session=session, hint="timed")
    async for one in query.batch_size(1000):
        block = block_of(one)
        states = map(block.state, block.present())
        found += [state for state in states if state.visible_at > now]
    return found


async def holdings(db: Database, number: ObjectId, now: int) -> dict[str | None, Holding]:
    """What each consumer holds; the states alone tell its name."""
    found: dict[str | None, Holding] = {}
    query = db.blocks.find(queries.leased(number, now), queries.WITHOUT_CONTENT, hint="timed").batch_size(1000)
    async for one in query:
        block = block_of(one)
        for place in block.present():
            state = block.state(place)
            if state.visible_at > now and state.receipt is not None:
                before = found.get(state.consumer, NOTHING)
                found[state.consumer] = Holding(before.messages + 1, max(before.taken_at, state.taken_at or 0))
    return found


async def next_visible(db: Database, number: ObjectId, now: int) -> int | None:
    """The earliest end of a lease or delay after `now`."""
    ahead = db.blocks.find(queries.ahead(number, now, NEVER), {"_id": 0, "wake": 1}, sort=[("wake", 1)], hint="timed")
    moments = [int(one["wake"]) for one in await ahead.limit(1).to_list()]
    states = await _partly_due(db, None, number, now)
    moments += [state.visible_at for state in states if state.visible_at < NEVER]
    return min(moments, default=None)


async def last_id(db: Database) -> str:
    """The highest id that was put so far."""
    numbers = [one["number"] async for one in db.queues.find({}, {"number": 1})]
    gone = await db.meta.find_one({"_id": "last_id"})
    tops = [one["last_id"] async for one in db.blocks.find({"_id": {"$in": numbers}}, {"last_id": 1})]
    return str(max(["" if gone is None else gone["id"], *tops]))


async def retire(db: Database, session: Session, number: ObjectId) -> tuple[int, int]:
    """A queue gets another number, or goes: what it held."""
    held = await total(db, session, number)
    found = await db.blocks.find_one_and_delete({"_id": number}, session=session)
    last = "" if found is None else found["last_id"]
    await db.meta.update_one({"_id": "last_id"}, {"$max": {"id": last}}, upsert=True, session=session)
    return held
