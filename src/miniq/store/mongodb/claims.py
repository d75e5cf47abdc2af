"""Claims in MongoDB: made, acked and released in bounded transactions, each of which leaves a consistent state.

**Making.** Each step takes some messages and extends the claim in the same transaction, so a crash leaves a smaller,
consistent claim that no reader has seen. While it may grow, its group has a mark. A call at any broker that needs the
claim meanwhile removes the mark, which freezes the claim; its maker notices in the next step.

**Ending.** One small transaction marks a claim as acked or released, which takes effect at once. Then its messages
leave it in steps. If the broker dies, the next call of the group or the upkeep completes them.

Acked messages stay in place and get the claim's `_id` as number: no queue has it, and they are garbage as soon as the
claim is gone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any
from weakref import WeakValueDictionary

from bson import ObjectId
from msgspec import Struct
from msgspec.structs import replace

from miniq.errors import QueueNotFound
from miniq.message import NEVER, SECOND, Claim, ClaimGroup, Event, Portion, Stored
from miniq.store.arguments import Change, NextClaim, Places
from miniq.store.contract import UNFIT, Claimed, ClaimStore
from miniq.store.decisions import Budget, check_reader, claim_name, no_claim, plan_claim
from miniq.store.mongodb import counters, fences, groups, queries, upkeep
from miniq.store.mongodb.changes import Named, Numbers, check_number
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import LEASE, Document, message_of, stored_of
from miniq.store.mongodb.history import Tools

STEP = 5000
"""Messages per transaction. Other calls wait for it, and it must end within a minute."""
SMALL_STEP = 100
"""A step with conflicts is retried with half as many messages, down to this."""
PATIENCE = 10 * SECOND
"""After this time the upkeep completes the end of a claim."""
MOST_MARKS = 1000

SHELVED = dict.fromkeys(("claim", "line", "timed", "group_key", *LEASE), "")
"""Fields that an ack removes from a message."""

Place = tuple[int, str]
"""Priority and id of a message in a claim."""


class _Reader(Struct):
    """A group of readers."""

    group: str
    epoch: int = 0
    acked: int = 0
    last: int = 0
    growing: str | None = None
    """Which call is making claim `last`."""

    def state(self, claims: Iterable[Claim] = ()) -> ClaimGroup:
        return ClaimGroup(self.group, self.epoch, self.acked, self.last, list(claims))


class _Making(Struct):
    """A claim that this process is making, as far as it got."""

    id: ObjectId
    mark: str
    messages: int = 0
    bytes: int = 0
    passed: list[Stored] = []
    tries: int = 0


class _Step(Struct):
    """What one step of making did."""

    taken: int = 0
    bytes: int = 0
    unfit: list[Stored] = []
    more: bool = False
    stopped: bool = False
    """Another call made the claim, or froze it."""


class Claims(ClaimStore):
    """See `ClaimStore`."""

    def __init__(self, tools: Tools) -> None:
        self._link, self._changes, self._log, self._ready = tools
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        self._marks: dict[tuple[ObjectId, int], Place] = {}
        """Where reading may go on: claim and place, and what is there."""

    async def open(self, queue: str, group: str) -> ClaimGroup:
        """A new reader. If a claim is being made, it is frozen as it is."""

        async def work(named: Numbers, slot: str, session: Session) -> ClaimGroup:
            reader = await self._reader(self._link.database, session, named[queue], group)
            reader.epoch += 1
            await self._save(session, queue, named[queue], slot, reader)
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
            return _claim_of(found)

    async def read(self, queue: str, group: str, number: int, places: Places) -> list[Portion]:
        """Where the next call will begin is remembered."""
        async with self._settled(queue, group, number, places.now) as (db, session, claim):
            field, hint = ("claim", "claim") if claim["acked_at"] is None else ("number", "queue")
            start, stop, max_bytes = places.start, min(places.stop, claim["messages"]), places.max_bytes
            if start >= stop:
                return []
            place = await self._place(db, session, field, hint, claim["_id"], start)
            if place is None:  # cleared away, though its time was not over by this broker's clock
                raise no_claim(ClaimGroup(group, acked=number, last=number), number)
            found: list[Document] = []
            budget = Budget(stop - start, max_bytes)
            # About as many as will be given.
            batch = max(2, min(stop - start, max_bytes * claim["messages"] // max(1, claim["bytes"]) + 2))
            for query in queries.inside_from(field, claim["_id"], *place):
                cursor = db.messages.find(query, sort=queries.IN_LINE, hint=hint, batch_size=batch, session=session)
                async with cursor:
                    async for one in cursor:
                        if not budget.admits(one["size"]):
                            self._mark(claim["_id"], start + len(found), (one["priority"], one["_id"]))
                            return _portions(found)
                        found.append(one)
            return _portions(found)

    async def release(self, queue: str, group: str, epoch: int | None, change: Change) -> int:
        async def work(named: Numbers, slot: str, session: Session) -> int:
            db = self._link.database
            reader = await self._reader(db, session, named[queue], group)
            check_reader(reader.state(), epoch, 0)
            held = queries.of_group(named[queue].number, group, reader.acked)
            released = sum([int(one["messages"]) async for one in db.claims.find(held, session=session)])
            if reader.acked == reader.last:
                await check_number(db, session, queue, named[queue].number)
                return 0
            over = {"ends": "released", "ended_at": change.now, "tell": change.keep != "off"}
            await db.claims.update_many(held, {"$set": over}, session=session)
            reader.acked = reader.last
            await self._save(session, queue, named[queue], slot, reader)
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
            reader = _reader_of(one, one["group"], named.number)
            found.append(reader.state(_claim_of(c) for c in claims if c["group"] == reader.group and _readable(c, now)))
        return found

    async def finish(self, now: int) -> None:
        """Complete the end of claims left by brokers that died."""
        with self._link.call() as db:
            left = await db.claims.find(queries.left_over(now - PATIENCE), hint="ends").limit(100).to_list()
        for queue, group in dict.fromkeys((one["queue"], one["group"]) for one in left):
            async with self._turn(queue, group):
                try:
                    await self._let_go(queue, group)
                except QueueNotFound:
                    continue  # then all of it is garbage

    # Inside

    @asynccontextmanager
    async def _turn(self, queue: str, group: str) -> AsyncIterator[None]:
        """Serialize calls of this process that make or end claims of one group."""
        lock = self._turns.get((queue, group))
        if lock is None:
            lock = self._turns[queue, group] = asyncio.Lock()
        async with lock:
            yield

    async def _reader(self, db: Database, session: Session, named: Named, group: str) -> _Reader:
        found = await db.readers.find_one({"_id": f"{named.serial}:{group}"}, session=session)
        return _reader_of(found, group, named.number)

    async def _save(
        self, session: Session, queue: str, named: Named, slot: str, reader: _Reader, growing: str | None = None
    ) -> None:
        """Write a group; its claim is frozen unless `growing` is given."""
        db = self._link.database
        await counters.add(db, session, queue, named.number, slot, 0, 0)
        new = {
            "serial": named.serial,
            "number": named.number,
            "group": reader.group,
            "epoch": reader.epoch,
            "acked": reader.acked,
            "last": reader.last,
        }
        if growing is not None:
            new["growing"] = growing
        await db.readers.replace_one({"_id": f"{named.serial}:{reader.group}"}, new, upsert=True, session=session)

    async def _ack(
        self, queue: str, group: str, asked: NextClaim, named: Numbers, slot: str, session: Session
    ) -> tuple[Claim | None, int, int]:
        """Mark claims as acked: the next claim if it exists, the epoch, and the number of acked messages."""
        db = self._link.database
        number = named[queue].number
        reader = await self._reader(db, session, named[queue], group)
        following: Claim | None = None
        if asked.limit and asked.number <= reader.last:
            query = {"number": number, "group": group, "claim": asked.number}
            found = await db.claims.find_one(query, session=session)
            if found is None or not _readable(found, asked.now):
                await check_number(db, session, queue, number)
            else:
                following = _claim_of(found)
        plan = plan_claim(reader.state(), following, asked)
        acked = 0
        if plan.ack:
            over = queries.of_group(number, group, reader.acked)
            over["claim"]["$lte"] = asked.after
            acked = sum([int(one["messages"]) async for one in db.claims.find(over, session=session)])
            state = {"acked_at": asked.now, "until": asked.keep_until}
            ending = {"ends": "acked", "ended_at": asked.now, "tell": asked.keep != "off"}
            await db.claims.update_many(over, {"$set": state | ending}, session=session)
            reader.acked = asked.after
        if acked or (plan.give is not None and reader.growing is not None):
            await self._save(session, queue, named[queue], slot, reader)
        else:
            await check_number(db, session, queue, number)
        return plan.give, reader.epoch, acked

    async def _let_go(self, queue: str, group: str) -> None:
        """Remove the messages from ended claims."""
        number = (await self._changes.know(queue)).number
        with self._link.call() as db:
            over = await db.claims.find(queries.ending(number, group), hint="ends").to_list()
        for claim in sorted(over, key=itemgetter("claim")):
            more = True
            while more:
                more, lanes = await self._changes.make([queue], partial(self._let_some_go, queue, claim))
                self._ready(queue, lanes)

    async def _let_some_go(
        self, queue: str, claim: Document, named: Numbers, slot: str, session: Session
    ) -> tuple[bool, list[str | None]]:
        """One step: whether there are more, and the recipients of messages that can be taken now."""
        db = self._link.database
        number, now = named[queue].number, int(claim["ended_at"])
        still = await db.claims.find_one(
            {"_id": claim["_id"], "number": number, "ends": claim["ends"]}, session=session
        )
        if still is None:
            await check_number(db, session, queue, number)
            return False, []
        query = queries.inside("claim", claim["_id"])
        cursor = db.messages.find(query, fences.WITHOUT_BODY, sort=queries.IN_LINE, hint="claim", session=session)
        found = await cursor.limit(STEP).to_list()
        these = {"_id": {"$in": [one["_id"] for one in found]}}
        lanes: list[str | None] = []
        released = claim["ends"] == "released"
        kept = not released and claim["until"] > now
        if found and released:
            back = fences.state_change(number, now, now, False, claim=None, **dict.fromkeys(LEASE))
            await db.messages.update_many(these, back, session=session)
            await counters.add(db, session, queue, number, slot, 0, 0)
            lanes = [one["lane"] or None for one in found]
        elif found:
            if kept:
                shelved = {"$set": {"number": claim["_id"]}, "$unset": SHELVED}
                await db.messages.update_many(these, shelved, session=session)
            else:
                await db.messages.delete_many(these, session=session)
            lanes = await groups.leave(db, session, number, found)
            size = sum(one["size"] for one in found)
            await counters.add(db, session, queue, number, slot, -len(found), -size)
        if claim["tell"]:
            recorded = [fences.left(claim["ends"], one, now, None) for one in found]
            await self._log.append(db, session, recorded)
        more = len(found) == STEP
        if not more and kept:
            done = {"$unset": {"ends": "", "ended_at": "", "tell": ""}}
            await db.claims.update_one({"_id": claim["_id"]}, done, session=session)
        elif not more:
            await db.claims.delete_one({"_id": claim["_id"]}, session=session)
        return more, lanes

    async def _make(self, queue: str, group: str, asked: NextClaim) -> tuple[Claim | None, list[Stored]]:
        """Make a claim, and say what was passed over. None if there is nothing to make it from, or somebody else has
        made it."""
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            while await upkeep.stand_in_line(db, number, asked.now):
                pass
        making = _Making(ObjectId(), secrets.token_hex(8))
        more = True
        while more:
            step = await self._changes.make([queue], partial(self._grow, queue, group, asked, making))
            if step.stopped:
                break
            making.messages += step.taken
            making.bytes += step.bytes
            making.passed += step.unfit
            making.tries = 0
            more = step.more
        if not making.messages:
            return None, making.passed
        return Claim(asked.number, making.messages, making.bytes, asked.now), making.passed

    async def _grow(
        self, queue: str, group: str, asked: NextClaim, making: _Making, named: Numbers, slot: str, session: Session
    ) -> _Step:
        """One step of making a claim."""
        db = self._link.database
        number, now = named[queue].number, asked.now
        reader = await self._reader(db, session, named[queue], group)
        check_reader(reader.state(), asked.epoch, asked.after)
        if reader.growing != making.mark if making.messages else reader.last != asked.after:
            await check_number(db, session, queue, number)
            return _Step(stopped=True)
        most = min(max(SMALL_STEP, STEP >> making.tries), asked.limit - making.messages)
        making.tries += 1
        passed = {stored.message.id for stored in making.passed}
        look = max(most, SMALL_STEP) + len(passed)
        cursor = db.messages.find(
            queries.takeable(number, asked.consumer, now), fences.WITHOUT_CONTENT, session=session
        )
        found = await cursor.sort(queries.IN_LINE).limit(look).to_list()
        taken: list[Document] = []
        unfit: list[str] = []
        budget = Budget(asked.limit, asked.max_bytes, making.messages, making.bytes)
        step = _Step(more=len(found) == look)
        for one in found:
            if one["_id"] in passed:
                continue
            if asked.fit.refusal(message_of(one | {"body": b""}), one["receives"], now) is not None:
                unfit.append(one["_id"])
                if len(passed) + len(unfit) == UNFIT:
                    step.more = False
                    break
                continue
            if not budget.admits(one["size"]):
                step.more = False
                break
            taken.append(one)
            if len(taken) == most:
                step.more = making.messages + most < asked.limit
                break
        size = budget.bytes - making.bytes
        if unfit:
            whole = await db.messages.find({"_id": {"$in": unfit}}, session=session).to_list()
            step.unfit = [stored_of(one) for one in whole]
        if taken:
            name = claim_name(group, asked.number)
            change = fences.lease(number, now, NEVER, name, group, making.id)
            await db.messages.update_many({"_id": {"$in": [one["_id"] for one in taken]}}, change, session=session)
            if asked.keep != "off":
                recorded: list[Event] = []
                for message in taken:
                    recorded += fences.handed_out(message, now, group)
                await self._log.append(db, session, recorded)
        if taken or making.messages:
            fresh = {"queue": queue, "number": number, "group": group, "claim": asked.number}
            grown = {
                "$setOnInsert": fresh | {"made_at": now, "acked_at": None},
                "$inc": {"messages": len(taken), "bytes": size},
            }
            await db.claims.update_one({"_id": making.id}, grown, upsert=True, session=session)
            reader.last = asked.number
            await self._save(session, queue, named[queue], slot, reader, making.mark if step.more else None)
        else:
            await check_number(db, session, queue, number)
        step.taken, step.bytes = len(taken), size
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
                    if found is None or not _readable(found, now):
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

    async def _place(
        self, db: Database, session: Session, field: str, hint: str, claim: ObjectId, start: int
    ) -> Place | None:
        """The message at a place of a claim, from memory or by counting in the index."""
        known = self._marks.pop((claim, start), None)
        if known is None:
            cursor = db.messages.find(queries.inside(field, claim), {"priority": 1}, session=session)
            found = await cursor.sort(queries.IN_LINE).hint(hint).skip(start).limit(1).to_list()
            return (found[0]["priority"], found[0]["_id"]) if found else None
        return known

    def _mark(self, claim: ObjectId, place: int, what: Place) -> None:
        self._marks[claim, place] = what
        while len(self._marks) > MOST_MARKS:
            del self._marks[next(iter(self._marks))]


def _reader_of(found: Document | None, group: str, number: ObjectId) -> _Reader:
    """A group as it is for a queue that has this number."""
    if found is None:
        return _Reader(group)
    epoch, acked, last = (int(found[name]) for name in ("epoch", "acked", "last"))
    reader = _Reader(group, epoch, acked, last, found.get("growing"))
    return reader if found["number"] == number else replace(reader, acked=reader.last, growing=None)


def _readable(claim: Document, now: int) -> bool:
    return claim.get("ends") != "released" and claim.get("until", NEVER) > now


def _claim_of(found: Document) -> Claim:
    acked_at = found["acked_at"]
    return Claim(
        int(found["claim"]),
        int(found["messages"]),
        int(found["bytes"]),
        int(found["made_at"]),  # not the driver's Int64, which cannot be encoded
        None if acked_at is None else int(acked_at),
    )


def _portions(found: list[Document]) -> list[Portion]:
    together: Any = groupby(found, key=itemgetter("receives"))
    return [Portion([message_of(one) for one in some], receives) for receives, some in together]
