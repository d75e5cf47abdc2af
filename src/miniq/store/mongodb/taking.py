"""Takes: blocks are read in queue order, leased in memory, and written back.

The takes of one process that wait for the same queue are served together, in order of arrival: one search, and each
block is written once. Takes at other brokers may have been faster with a block; then the search is repeated.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from heapq import merge
from typing import Any
from weakref import WeakValueDictionary

from bson import ObjectId
from msgspec import Struct

from miniq.ids import run_of
from miniq.message import Event, Stored
from miniq.store.arguments import Take
from miniq.store.contract import LeaseCount, no_queue
from miniq.store.decisions import Budget
from miniq.store.mongodb import counting, fronts, groups, queries
from miniq.store.mongodb.blocks import Block, block_of
from miniq.store.mongodb.changes import Numbers, Outdated
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.fronts import Batch, Member
from miniq.store.mongodb.history import Tools
from miniq.store.mongodb.turns import Turn, Turns
from miniq.store.mongodb.writes import LOCAL, Written, save, save_all

DUE_AT_ONCE = 500
"""Blocks that one search puts in line, when leases or delays have ended."""
MOST_BLOCKS = 20_000


class _Taker(Struct, eq=False):
    """A take that is being served."""

    turn: Turn[Take, list[Stored]]
    budget: Budget
    members: list[tuple[Block, int]] = []
    batches: dict[str, Batch] = {}
    """What it gets together with heads of groups, by their blocks."""
    full: bool = False

    @property
    def take(self) -> Take:
        return self.turn.call

    def begin(self) -> None:
        """Start again with nothing."""
        self.members, self.batches, self.full = [], {}, self.take.limit < 1
        self.budget = Budget(self.take.limit, self.take.max_bytes)

    def may(self, block: Block, visible_at: int) -> bool:
        take = self.take
        return not self.full and visible_at <= take.now and (not block.lane or block.lane == take.consumer)


class Taking:
    """The takes of this process."""

    def __init__(self, tools: Tools, lease_expired: LeaseCount) -> None:
        self._link, self._changes, self._log, _ = tools
        self._lease_expired = lease_expired
        self._turns: Turns[Take, list[Stored]] = Turns(self._serve)
        self._dense: dict[str, int] = {}
        """How many messages a block of a queue had lately."""
        self._limited: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Serializes takes of this process from queues with a limit: in the database they would conflict."""

    async def take(self, queue: str, take: Take) -> list[Stored]:
        if take.in_flight:
            return await self._take_limited(queue, take)
        return await self._turns.make(queue, take)

    async def _take_limited(self, queue: str, take: Take) -> list[Stored]:
        """A take from a queue with a limit of messages in flight, in a transaction: one such take at a time."""
        expired = 0
        heads: list[Block] = []
        """Of groups of which several messages are taken."""

        async def work(named: Numbers, session: Session) -> list[Stored]:
            nonlocal expired
            expired = 0
            db, number = self._link.database, named[queue].number
            turn = await db.blocks.update_one({"_id": number}, {"$inc": {"turn": 1}}, session=session)
            if not turn.matched_count:
                raise Outdated(queue)
            room = take.in_flight - (await counting.counts(db, session, number, take.now)).leased
            budget = Budget(max(0, min(take.limit, room)), take.max_bytes)
            changed: dict[str, Written] = {}
            taken: list[tuple[Block, int]] = []
            heads.clear()
            query = queries.in_line(number, ["", take.consumer] if take.consumer else [""])
            cursor = db.blocks.find(query, queries.WHOLE, sort=queries.IN_LINE, hint="line", session=session)
            async with aclosing(in_order(_found(cursor.batch_size(10)))) as members:
                async for _, place, block in members:
                    if block.state(place).visible_at > take.now:
                        continue
                    if not budget.admits(block.sizes[place]):
                        break
                    written = changed.setdefault(block.id, Written(block, take.now))
                    expired += len(block.expired(place, queue, take.now))
                    if take.keep != "off":
                        written.events += block.handed_out(place, queue, take.now, take.consumer, take.fit)
                    block.lease(place, take.now, take.until, take.token, take.consumer)
                    taken.append((block, place))
                    if take.group_batch and block.group is not None:
                        batch, full = Batch(take, block), False
                        for followers in (await fronts.behind(db, [block], session)).values():
                            full = await fronts.follow(batch, followers, budget)
                        if batch.following:
                            heads.append(block)
                            block.waits = True
                        for follower in batch.following:
                            expired += len(follower.expired(0, queue, take.now))
                            changed[follower.id] = fronts.hand_out(follower, queue, take)
                            taken.append((follower, 0))
                        if full:
                            break
            await save_all(db, session, queue, list(changed.values()))
            await fronts.note(db, session, heads)
            return [block.stored(place) for block, place in taken]

        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number  # completes its commits
        while await self.wake(number, take.now):
            pass
        async with self._limited.setdefault(queue, asyncio.Lock()):
            taken = await self._changes.make([queue], work)
        self._lease_expired(queue, expired)
        await self._settle(take, heads)
        return taken

    async def close(self) -> None:
        await self._turns.close()

    async def wake(self, number: ObjectId, now: int) -> bool:
        """Put some blocks in line whose leases or delays have ended; whether there may be more. No state changes."""
        with self._link.call() as db:
            blocks = db.get_collection("blocks", read_concern=LOCAL)
            cursor = blocks.find(queries.due(number, now), queries.WITHOUT_CONTENT, sort=[("wake", 1)], hint="timed")
            found = await cursor.limit(DUE_AT_ONCE).batch_size(DUE_AT_ONCE + 1).to_list()
        due = [block_of(one) for one in found]
        saved = await save(self._link, [Written(block, now) for block in due])
        settled = [(block.id, number, block.group or "") for block in due if block.in_front and block.id in saved]
        await groups.finish(self._link, settled, now)
        return len(found) == DUE_AT_ONCE

    async def _serve(self, queue: str, turns: list[Turn[Take, list[Stored]]]) -> None:
        takers = [_Taker(turn, Budget(turn.call.limit, turn.call.max_bytes)) for turn in turns]
        deadline = time.monotonic() + self._link.patience
        pause, heed, more_due = 0.001, True, True
        while takers and time.monotonic() < deadline:
            now = max(taker.take.now for taker in takers)
            number = (await self._changes.know(queue)).number
            for taker in takers:
                taker.begin()
            look = _Look(heed)
            chosen = await self._choose(queue, number, takers, now, look)
            if look.number is None:
                self._changes.forget(queue)
                raise no_queue(queue)
            if look.number != number:
                self._changes.forget(queue)
            elif look.showing:
                await self._changes.show(queue)
            elif look.due and heed:
                more_due = await self.wake(number, now)
                heed = False  # when very many are due at once, the next takes go on with the others
            elif look.due and more_due and not all(taker.members for taker in takers):
                heed = True  # what came in line is for other consumers
            else:
                failed = await self._lease(queue, takers, chosen)
                followed = await self._lease_followers(queue, takers, failed)
                rest: list[_Taker] = []
                for taker in takers:
                    got = [(block, place) for block, place in taker.members if block.id not in failed]
                    if taker.members and not got:
                        rest.append(taker)
                    else:
                        taker.turn.done(
                            [
                                member.stored(at)
                                for block, place in got
                                for member, at in [(block, place), *((one, 0) for one in followed.get(block.id, ()))]
                            ]
                        )
                takers = rest
                if takers:
                    await asyncio.sleep(random.uniform(0, pause))  # noqa: S311
                    pause = min(pause * 2, 0.05)
        for taker in takers:
            taker.turn.done([])

    async def _choose(
        self, queue: str, number: ObjectId, takers: Sequence[_Taker], now: int, look: _Look
    ) -> dict[str, Block]:
        """Choose messages for each take, in queue order: the blocks they are in."""
        lanes = sorted({"", *(taker.take.consumer or "" for taker in takers)})
        want = sum(taker.take.limit for taker in takers)
        batch = min(want // self._dense.get(queue, 1) + 3, 1000)
        chosen: dict[str, Block] = {}
        with self._link.call() as db:
            queues = db.get_collection("queues", read_concern=LOCAL)
            pipeline = queries.look(queue, number, lanes, now, min(MOST_BLOCKS, want + 1000))
            async with await queues.aggregate(pipeline, batchSize=batch) as cursor:
                members = in_order(_blocks(cursor, look))
                if any(taker.take.group_batch for taker in takers):
                    async for chunk in fronts.chunks(members):
                        if look.number != number or look.showing or (look.due and look.heed):
                            break
                        await _offer_batches(db, chunk, takers, chosen)
                        if all(taker.full for taker in takers):
                            break
                    return chosen
                async for _, place, block in members:
                    if look.number != number or look.showing or (look.due and look.heed):
                        break
                    _offer(block, place, takers, chosen)
                    if all(taker.full for taker in takers):
                        break
        if chosen:
            self._dense[queue] = max(1, sum(len(taker.members) for taker in takers) // len(chosen))
        return chosen

    async def _lease(self, queue: str, takers: Sequence[_Taker], chosen: dict[str, Block]) -> set[str]:
        """Lease the chosen messages: the blocks with which others were faster."""
        told: dict[str, list[Event]] = {id: [] for id in chosen}
        expired: dict[str, int] = dict.fromkeys(chosen, 0)
        now = 0
        for taker in takers:
            take = taker.take
            now = max(now, take.now)
            for block, place in taker.members:
                expired[block.id] += len(block.expired(place, queue, take.now))
                if take.keep != "off":
                    told[block.id] += block.handed_out(place, queue, take.now, take.consumer, take.fit)
                block.lease(place, take.now, take.until, take.token, take.consumer)
        saved = await save(self._link, [Written(block, now, told[id]) for id, block in chosen.items()])
        self._lease_expired(queue, sum(expired[id] for id in saved))
        return set(chosen) - saved

    async def _lease_followers(self, queue: str, takers: Sequence[_Taker], failed: set[str]) -> dict[str, list[Block]]:
        """Lease the messages that follow heads of groups: those that were leased, by the head's block."""
        batches = [batch for taker in takers for id, batch in taker.batches.items() if id not in failed]
        if not batches:
            return {}

        async def work(named: Numbers, session: Session) -> tuple[dict[str, list[Block]], int]:
            return await fronts.lease(self._link.database, session, queue, batches)

        leased, expired = await self._changes.make([queue], work)
        self._lease_expired(queue, expired)
        for batch in batches:
            if batch.head.id in leased:
                await self._settle(batch.take, [batch.head, *leased[batch.head.id]])
        return leased

    async def _settle(self, take: Take, members: Sequence[Block]) -> None:
        """After a take of several messages of groups: if their leases are over at once, they can be taken again."""
        if take.until <= take.now:
            settled = [(block.id, block.number, block.group or "") for block in members]
            await groups.finish(self._link, settled, take.now)


async def _offer_batches(
    db: Database, members: Sequence[Member], takers: Sequence[_Taker], chosen: dict[str, Block]
) -> None:
    """Give messages to takes, and those that follow heads of groups."""
    behind = await fronts.behind(db, [block for _, _, block in members])
    for _, place, block in members:
        taker = _offer(block, place, takers, chosen)
        if taker is not None and taker.take.group_batch and block.id in behind:
            batch = Batch(taker.take, block)
            taker.full = await fronts.follow(batch, behind[block.id], taker.budget)
            if batch.following:
                taker.batches[block.id] = batch


def _offer(block: Block, place: int, takers: Sequence[_Taker], chosen: dict[str, Block]) -> _Taker | None:
    """Give a message to the first take that may have it, which is returned."""
    visible_at = block.state(place).visible_at
    for taker in takers:
        if not taker.may(block, visible_at):
            continue
        if not taker.budget.admits(block.sizes[place]):
            taker.full = True
            continue
        taker.members.append((block, place))
        taker.full = taker.budget.count == taker.take.limit
        chosen[block.id] = block
        return taker
    return None


class _Look(Struct, eq=False):
    """What a search found beside the blocks."""

    heed: bool
    """Whether it ends where blocks are due."""
    number: ObjectId | None = None
    showing: bool = False
    due: bool = False


async def _found(cursor: Any) -> AsyncIterator[Block]:
    async with cursor:
        async for one in cursor:
            yield block_of(one)


async def _blocks(cursor: Any, look: _Look) -> AsyncIterator[Block]:
    async for one in cursor:
        if "v" in one:
            yield block_of(one)
        elif "due" in one:
            look.due = True
            if look.heed:
                return
        else:
            look.number, look.showing = one["number"], "showing" in one


async def in_order(
    blocks: AsyncIterator[Block], places: Callable[[Block], Iterable[int]] = Block.present
) -> AsyncGenerator[Member]:
    """The messages of blocks at some places, by default those that have not left, in queue order. A block that is
    `mixed` may have others between its messages, which follow it."""
    together: list[Block] = []
    async for block in blocks:
        if together and not _same_run(together[0], block):
            for member in _merged(together, places):
                yield member
            together = []
        if together or block.mixed:
            together.append(block)
        else:
            for member in _each(block, places):
                yield member
    for member in _merged(together, places):
        yield member


def _same_run(block: Block, other: Block) -> bool:
    return block.priority == other.priority and run_of(block.ids[0])[0] == run_of(other.ids[0])[0]


def _each(block: Block, places: Callable[[Block], Iterable[int]]) -> Iterator[Member]:
    return ((block.ids[place], place, block) for place in places(block))


def _merged(blocks: Sequence[Block], places: Callable[[Block], Iterable[int]]) -> Iterator[Member]:
    return merge(*(_each(block, places) for block in blocks), key=lambda member: member[0])
