"""Claims in MongoDB: made, acked and released in bounded transactions, each of which leaves a consistent state.

**Making.** Each step takes some messages and extends the claim in the same transaction, so a crash leaves a smaller,
consistent claim that no reader has seen. While it may grow, its group has a mark. A call at any broker that needs the
claim meanwhile removes the mark, which freezes the claim; its maker notices in the next step.

**Ending.** One small transaction marks a claim as acked or released, which takes effect at once. Then its messages
leave it in steps. If the broker dies, the next call of the group or the upkeep completes them.

Acked messages leave the queue and stay in their blocks, with the claim's `_id` in their state, until the claim is over.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any
from weakref import WeakValueDictionary

from bson import ObjectId

from miniq.batch import Claim, ClaimGroup, Portion
from miniq.errors import QueueNotFound
from miniq.ids import run_of
from miniq.message import NEVER, SECOND, Message, Stored
from miniq.store.arguments import Change, NextClaim, Places
from miniq.store.contract import UNFIT, Claimed, ClaimStore, LeaseCount
from miniq.store.decisions import Budget, check_reader, claim_name, no_claim, plan_claim
from miniq.store.mongodb import groups, queries
from miniq.store.mongodb.blocks import Block, block_of
from miniq.store.mongodb.changes import Named, Numbers
from miniq.store.mongodb.claim_records import Making, Reader, Step, claim_of, readable, reader_of
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import Document
from miniq.store.mongodb.history import Tools
from miniq.store.mongodb.taking import Taking, in_order
from miniq.store.mongodb.writes import Written, save, save_all

STEP = 5000
"""Messages per transaction. Other calls wait for it, and it must end within a minute."""
SMALL_STEP = 100
"""A step with conflicts is retried with half as many messages, down to this."""
PATIENCE = 10 * SECOND
"""After this time the upkeep completes the end of a claim."""
MOST_MARKS = 1000

BLOCKS_AT_ONCE = 100

Place = tuple[int, str, int]
"""The priority of a block of a claim, the lowest id of its run, and how many messages of the claim come before it."""


class Claims(ClaimStore):
    """See `ClaimStore`."""

    def __init__(self, tools: Tools, taking: Taking, lease_expired: LeaseCount) -> None:
        self._taking = taking
        self._lease_expired = lease_expired
        self._link, self._changes, self._log, self._ready = tools
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._marks: dict[tuple[ObjectId, int], Place] = {}
        """Where reading may go on: claim and position, and the block to begin with."""

    async def open(self, queue: str, group: str, id: str = "") -> ClaimGroup:
        """A new reader. If a claim is being made, it is frozen as it is."""

        async def work(named: Numbers, session: Session) -> ClaimGroup:
            reader = await self._reader(self._link.database, session, named[queue], group)
            reader.epoch += 1
            reader.id = reader.id or id
            await self._save(session, queue, named[queue], reader)
            return reader.state()

        return await self._changes.make([queue], work)

    async def next(self, queue: str, group: str, asked: NextClaim) -> Claimed:
        """Ack, then give or make the next claim."""
        # Others of this process wait, rather than freeze what is being made here.
        async with self._turn(queue, group):
            found, epoch, acked = await self._changes.make([queue], partial(self._ack, queue, group, asked))
            await self._let_go(queue, group)
            if not asked.limit or found is not None:
                return Claimed(found, epoch, acked=acked)
            made, unfit = await self._make(queue, group, asked)
            if made is None and not unfit:
                # There are no messages, or another call was faster.
                found, epoch, _ = await self._changes.make([queue], partial(self._ack, queue, group, asked))
                return Claimed(found, epoch, acked=acked)
            return Claimed(made, epoch, made is not None, acked, unfit)

    async def find(self, queue: str, group: str, number: int, now: int) -> Claim:
        async with self._settled(queue, group, number, now) as (_, _, found):
            return claim_of(found)

    async def read(self, queue: str, group: str, number: int, places: Places) -> list[Portion]:
        """Where the next call will begin is remembered."""
        async with self._settled(queue, group, number, places.now) as (db, session, claim):
            start, stop, max_bytes = places.start, min(places.stop, claim["messages"]), places.max_bytes
            if start >= stop:
                return []
            name = str(claim["_id"])
            place = await self._place(db, session, claim["_id"], start)
            if place is None:  # cleared away, though its time was not over by this broker's clock
                raise no_claim(ClaimGroup(group, acked=number, last=number), number)
            priority, first, position = place
            found: list[tuple[int, Message]] = []
            budget = Budget(stop - start, max_bytes)
            blocks = _blocks(db, session, queries.held_from(name, priority, first), queries.WHOLE)
            last: tuple[int, str] | None = None
            before = position
            async with aclosing(blocks), aclosing(in_order(blocks, lambda block: block.inside(name))) as members:
                async for id, at, block in members:
                    if last != (block.priority, run_of(id)[0]):
                        last, before = (block.priority, run_of(id)[0]), position
                    if position >= start:
                        if not budget.admits(block.sizes[at]):
                            self._mark(claim["_id"], position, (*last, before))
                            break
                        found.append((block.state(at).receives, block.messages[at]))
                    position += 1
            return _portions(found)

    async def mark(self, queue: str, group: str, number: int, reader: str) -> None:
        with self._link.call() as db:
            named = await self._changes.ask(db, queue)
            unknown = [None] if reader == "" else [None, ""]
            held = {"number": named.number, "group": group, "claim": number, "acked_at": None}
            unmarked = {"$or": [{"reader": {"$in": unknown}, **held}, {"reader": {"$exists": False}, **held}]}
            await db.claims.update_one(unmarked, {"$set": {"reader": reader}})

    async def release(self, queue: str, group: str, epoch: int | None, change: Change) -> int:
        async def work(named: Numbers, session: Session) -> int:
            db = self._link.database
            reader = await self._reader(db, session, named[queue], group)
            check_reader(reader.state(), epoch, 0)
            held = queries.of_group(named[queue].number, group, reader.acked)
            released = sum([int(one["messages"]) async for one in db.claims.find(held, session=session)])
            if reader.acked == reader.last:
                return 0
            over = {"ends": "released", "ended_at": change.now, "tell": change.keep != "off"}
            await db.claims.update_many(held, {"$set": over}, session=session)
            reader.acked = reader.last
            await self._save(session, queue, named[queue], reader)
            return released

        async with self._turn(queue, group):
            released = await self._changes.make([queue], work)
            await self._let_go(queue, group)
        return released

    async def groups(self, queue: str, now: int) -> list[ClaimGroup]:
        with self._link.call() as db:
            async with self._link.client.start_session(snapshot=True) as session:
                named = await self._changes.ask(db, queue, session)
                readers = await db.readers.find({"serial": named.serial}, session=session).sort("group").to_list()
                order = [("group", 1), ("claim", 1)]
                claims = await db.claims.find({"number": named.number}, session=session).sort(order).to_list()
        found: list[ClaimGroup] = []
        for one in readers:
            reader = reader_of(one, one["group"], named.number)
            found.append(reader.state(claim_of(c) for c in claims if c["group"] == reader.group and readable(c, now)))
        return found

    async def all_groups(self, now: int, held: bool = False) -> dict[str, list[ClaimGroup]]:
        with self._link.call() as db:
            async with self._link.client.start_session(snapshot=True) as session:
                readers = await db.readers.find({}, session=session).sort("group").to_list()
                if not readers:
                    return {}
                query = {"acked_at": None} if held else {}
                found = await db.claims.find(query, session=session).sort([("group", 1), ("claim", 1)]).to_list()
                serials = {"serial": {"$in": list({one["serial"] for one in readers})}}
                fields = {"number": 1, "serial": 1}
                queues = await db.queues.find(serials, fields, session=session).sort("_id").to_list()
        claims: dict[tuple[Any, str], list[Claim]] = {}
        for one in found:
            if readable(one, now):
                claims.setdefault((one["number"], one["group"]), []).append(claim_of(one))
        named = {queue["serial"]: queue for queue in queues}
        groups: dict[str, list[ClaimGroup]] = {queue["_id"]: [] for queue in queues}
        for one in readers:
            queue = named.get(one["serial"])
            if queue is not None:
                own = claims.get((queue["number"], one["group"]), [])
                if own or not held:
                    groups[queue["_id"]].append(reader_of(one, one["group"], queue["number"]).state(own))
        return {queue: some for queue, some in groups.items() if some}

    async def finish(self, now: int) -> None:
        """Complete the end of claims left by brokers that died, and forget acked claims whose time is over."""
        with self._link.call() as db:
            left = await db.claims.find(queries.left_over(now - PATIENCE), hint="ends").limit(100).to_list()
        for queue, group in dict.fromkeys((one["queue"], one["group"]) for one in left):
            async with self._turn(queue, group):
                try:
                    await self._let_go(queue, group)
                except QueueNotFound:
                    continue  # then all of it is garbage

    async def tidy(self, now: int, limit: int) -> int:
        """Remove acked claims whose time is over, with their messages; returns how many."""
        if limit <= 0:
            return 0
        with self._link.call() as db:
            query = queries.ran_out(now) | {"ends": None}
            old = [one["_id"] async for one in db.claims.find(query, {"_id": 1}).limit(limit)]
        for claim in old:
            while await self._forget(str(claim), now):
                pass
            with self._link.call() as db:
                await db.claims.delete_one({"_id": claim})
        return len(old)

    # Inside

    async def _forget(self, claim: str, now: int) -> bool:
        """Remove some messages of an acked claim; whether there may be more."""
        with self._link.call() as db:
            cursor = db.blocks.find(queries.held(claim), queries.WITHOUT_CONTENT, hint="tokens")
            blocks = [block_of(one) for one in await cursor.limit(BLOCKS_AT_ONCE).to_list()]
        for block in blocks:
            block.forget_claim(claim)
        await save(self._link, [Written(block, now) for block in blocks])
        return bool(blocks)

    @asynccontextmanager
    async def _turn(self, queue: str, group: str) -> AsyncIterator[None]:
        """Serialize calls of this process that make or end claims of one group."""
        lock = self._turns.get((queue, group))
        if lock is None:
            lock = self._turns[queue, group] = asyncio.Lock()
        async with lock:
            yield

    async def _reader(self, db: Database, session: Session, named: Named, group: str) -> Reader:
        found = await db.readers.find_one({"_id": f"{named.serial}:{group}"}, session=session)
        return reader_of(found, group, named.number)

    async def _save(
        self, session: Session, queue: str, named: Named, reader: Reader, growing: str | None = None
    ) -> None:
        """Write a group; its claim is frozen unless `growing` is given."""
        db = self._link.database
        new = {
            "serial": named.serial,
            "number": named.number,
            "group": reader.group,
            "epoch": reader.epoch,
            "acked": reader.acked,
            "last": reader.last,
            "id": reader.id,
        }
        if growing is not None:
            new["growing"] = growing
        await db.readers.replace_one({"_id": f"{named.serial}:{reader.group}"}, new, upsert=True, session=session)

    async def _ack(
        self, queue: str, group: str, asked: NextClaim, named: Numbers, session: Session
    ) -> tuple[Claim | None, int, int]:
        """Mark claims as acked: the next claim if it exists, the epoch, and the number of acked messages."""
        db = self._link.database
        number = named[queue].number
        reader = await self._reader(db, session, named[queue], group)
        following: Claim | None = None
        if asked.limit and asked.number <= reader.last:
            query = {"number": number, "group": group, "claim": asked.number}
            found = await db.claims.find_one(query, session=session)
            if found is not None and readable(found, asked.now):
                following = claim_of(found)
        over = queries.of_group(number, group, reader.acked)
        over["claim"]["$lte"] = asked.after
        held: list[Claim] = []
        if asked.after > reader.acked:
            held = [claim_of(one) async for one in db.claims.find(over, session=session).sort("claim")]
        plan = plan_claim(reader.state(held), following, asked)
        acked = 0
        if plan.ack:
            acked = sum(claim.messages for claim in held)
            state = {"acked_at": asked.now, "until": asked.keep_until}
            ending = {"ends": "acked", "ended_at": asked.now, "tell": asked.keep != "off"}
            await db.claims.update_many(over, {"$set": state | ending}, session=session)
            reader.acked = asked.after
        if acked or (plan.give is not None and reader.growing is not None):
            await self._save(session, queue, named[queue], reader)
        return plan.give, reader.epoch, acked

    async def _let_go(self, queue: str, group: str) -> None:
        """Remove the messages from ended claims."""
        number = (await self._changes.know(queue)).number
        with self._link.call() as db:
            over = await db.claims.find(queries.ending(number, group), hint="ends").to_list()
        for claim in sorted(over, key=itemgetter("claim")):
            more = True
            while more:
                more, lanes, left = await self._changes.make([queue], partial(self._let_some_go, queue, claim))
                self._ready(queue, lanes)
                self._ready(queue, await groups.finish(self._link, left, int(claim["ended_at"])))

    async def _let_some_go(
        self, queue: str, claim: Document, named: Numbers, session: Session
    ) -> tuple[bool, list[str | None], list[tuple[str, ObjectId, str]]]:
        """One step: whether there are more, the recipients of messages that can be taken now, and blocks of groups that
        messages left, or that are of a front."""
        db = self._link.database
        number, now, name = named[queue].number, int(claim["ended_at"]), str(claim["_id"])
        query = {"_id": claim["_id"], "number": number, "ends": claim["ends"]}
        still = await db.claims.find_one(query, session=session)
        if still is None:
            return False, [], []
        released = claim["ends"] == "released"
        kept = None if released or claim["until"] <= now else name
        lanes: list[str | None] = []
        left: list[tuple[str, ObjectId, str]] = []
        changed: list[Written] = []
        many, more = 0, False
        async for block in _blocks(db, session, [queries.held(name)], queries.WITHOUT_CONTENT):
            places = [place for place in block.inside(name) if not block.gone(place)]
            if many >= STEP:
                more = more or bool(places)
                continue
            if not places:
                continue
            many += len(places)
            told = [block.left(claim["ends"], place, queue, now, None) for place in places] if claim["tell"] else []
            for place in places:
                if released:
                    block.reschedule(place, now, True)
                    lanes.append(block.lane or None)
                    if block.in_front:
                        left.append((block.id, number, block.group or ""))
                else:
                    block.leave(place, kept)
                    if block.group is not None:
                        left.append((block.id, number, block.group))
            changed.append(Written(block, now, told))
            if many >= STEP:
                more = True
                break
        await save_all(db, session, queue, changed)
        if not more and kept is not None:
            done = {"$unset": {"ends": "", "ended_at": "", "tell": ""}}
            await db.claims.update_one({"_id": claim["_id"]}, done, session=session)
        elif not more:
            await db.claims.delete_one({"_id": claim["_id"]}, session=session)
        return more, lanes, left

    async def _make(self, queue: str, group: str, asked: NextClaim) -> tuple[Claim | None, list[Stored]]:
        """Make a claim, and say what was passed over. None if there is nothing to make it from, or another broker
        has made it."""
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            while await self._taking.wake(number, asked.now):
                pass
        making = Making(ObjectId(), secrets.token_hex(8))
        more = True
        while more:
            step = await self._changes.make([queue], partial(self._grow, queue, group, asked, making))
            if step.stopped:
                break
            self._lease_expired(queue, step.expired)
            making.messages += step.taken
            making.bytes += step.bytes
            making.passed += step.unfit
            making.tries = 0
            more = step.more
        if not making.messages:
            return None, making.passed
        return Claim(asked.number, making.messages, making.bytes, asked.now), making.passed

    async def _grow(
        self, queue: str, group: str, asked: NextClaim, making: Making, named: Numbers, session: Session
    ) -> Step:
        """One step of making a claim."""
        db = self._link.database
        number, now = named[queue].number, asked.now
        reader = await self._reader(db, session, named[queue], group)
        check_reader(reader.state(), asked.epoch, asked.after)
        if reader.growing != making.mark if making.messages else reader.last != asked.after:
            return Step(stopped=True)
        most = min(max(SMALL_STEP, STEP >> making.tries), asked.limit - making.messages)
        making.tries += 1
        passed = {stored.message.id for stored in making.passed}
        name = claim_name(group, asked.number)
        budget = Budget(asked.limit, asked.max_bytes, making.messages, making.bytes)
        step = Step()
        changed: dict[str, Written] = {}
        taken = 0
        lanes = [""] if not asked.consumer else ["", asked.consumer]
        blocks = _blocks(db, session, [queries.in_line(number, lanes)], queries.WHOLE)
        async with aclosing(blocks), aclosing(in_order(blocks)) as members:
            async for id, place, block in members:
                state = block.state(place)
                if state.visible_at > now or id in passed:
                    continue
                if asked.fit.refusal(block.messages[place], state.receives, now) is not None:
                    step.unfit.append(block.stored(place))
                    if len(passed) + len(step.unfit) == UNFIT:
                        break
                    continue
                if not budget.admits(block.sizes[place]):
                    break
                written = changed.setdefault(block.id, Written(block, now))
                step.expired += len(block.expired(place, queue, now))
                if asked.keep != "off":
                    written.events += block.handed_out(place, queue, now, group)
                block.lease(place, now, NEVER, name, group, str(making.id))
                taken += 1
                if taken == most:
                    step.more = making.messages + most < asked.limit
                    break
        size = budget.bytes - making.bytes
        await save_all(db, session, queue, list(changed.values()))
        if taken or making.messages:
            fresh = {"queue": queue, "number": number, "group": group, "claim": asked.number}
            grown = {
                "$setOnInsert": fresh | {"made_at": now, "acked_at": None, "reader": None},
                "$inc": {"messages": taken, "bytes": size},
            }
            await db.claims.update_one({"_id": making.id}, grown, upsert=True, session=session)
            reader.last = asked.number
            await self._save(session, queue, named[queue], reader, making.mark if step.more else None)
        step.taken, step.bytes = taken, size
        return step

    @asynccontextmanager
    async def _settled(
        self, queue: str, group: str, number: int, now: int
    ) -> AsyncIterator[tuple[Database, Session, Document]]:
        """A readable, frozen claim, and the snapshot session that sees it."""
        while True:
            with self._link.call() as db:
                async with self._link.client.start_session(snapshot=True) as session:
                    named = await self._changes.ask(db, queue, session)
                    reader = await self._reader(db, session, named, group)
                    query = {"number": named.number, "group": group, "claim": number}
                    found = await db.claims.find_one(query, session=session)
                    if found is None or not readable(found, now):
                        raise no_claim(reader.state(), number)
                    growing = reader.growing is not None and number == reader.last
                    if not growing and "ends" not in found:
                        yield db, session, found
                        return
                if growing:
                    key = {"_id": f"{named.serial}:{group}", "growing": reader.growing}
                    await db.readers.update_one(key, {"$unset": {"growing": ""}})
                else:
                    await self._let_go(queue, group)

    async def _place(self, db: Database, session: Session, claim: ObjectId, start: int) -> Place | None:
        """The block to begin with for a position of a claim, from memory or by counting."""
        known = self._marks.pop((claim, start), None)
        if known is not None:
            return known
        position = before = 0
        last: tuple[int, str] | None = None
        name = str(claim)
        async for block in _blocks(db, session, [queries.held(name)], queries.WITHOUT_CONTENT):
            here = (block.priority, run_of(block.ids[0])[0])
            if here != last:
                if last is not None and position > start:
                    break
                last, before = here, position
            position += len(block.inside(name))
        return (*last, before) if last is not None and position > start else None

    def _mark(self, claim: ObjectId, place: int, what: Place) -> None:
        self._marks[claim, place] = what
        while len(self._marks) > MOST_MARKS:
            del self._marks[next(iter(self._marks))]


async def _blocks(
    db: Database, session: Session, parts: Sequence[queries.Query], fields: dict[str, int]
) -> AsyncGenerator[Block]:
    """The blocks that queries find one after the other, in queue order."""
    for query in parts:
        hint = "line" if "line" in query else "tokens"
        cursor = db.blocks.find(query, fields, sort=queries.IN_LINE, hint=hint, session=session)
        async with cursor.batch_size(BLOCKS_AT_ONCE if "content" in fields else 10):
            async for one in cursor:
                yield block_of(one)


def _portions(found: list[tuple[int, Message]]) -> list[Portion]:
    together: Any = groupby(found, key=itemgetter(0))
    return [Portion([message for _, message in some], receives) for receives, some in together]
