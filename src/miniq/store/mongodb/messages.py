"""Messages in MongoDB: in blocks, each changed on its own; see `blocks.py` and `writes.py`.

A send of one block needs no transaction (`inserting.py`). A send of several blocks, of groups, with dedup ids, with a
record or to a queue with a limit, and a move, change several documents at once and need one. It adds documents, and is
over in a few round trips.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from bson import ObjectId
from pymongo import ReturnDocument
from pymongo.errors import BulkWriteError

from miniq.consumer import Holding
from miniq.message import LEASE_EXPIRED, Counts, Event, History, Message, Outcome, Page, PlainBatch, Stored
from miniq.store import events
from miniq.store.arguments import Change, Draw, Edit, Fence, NewTime, Publication, Put, Room, Scan, Take
from miniq.store.contract import FinishHint, LeaseCount, MessageStore, RecordChanged, no_queue
from miniq.store.decisions import check_room, repeated_call, sift, size_of
from miniq.store.mongodb import browse, calls, counting, dedup, groups, queries, records, results, writes
from miniq.store.mongodb.blocks import Block, block_of, blocks_for, own_name, shared_name
from miniq.store.mongodb.changes import Numbers, Outdated, Renumbered
from miniq.store.mongodb.changing import Changing, Request
from miniq.store.mongodb.connection import DUPLICATE, Collection, Session
from miniq.store.mongodb.history import Tools
from miniq.store.mongodb.inserting import Inserting
from miniq.store.mongodb.publishing import Publishing
from miniq.store.mongodb.taking import Taking
from miniq.store.mongodb.writes import Written
from miniq.topic import Published

_New = tuple[Block, dict[str, Any]]
"""A block and its document."""


class Messages(MessageStore):
    """See `MessageStore`."""

    def __init__(self, tools: Tools, lease_expired: LeaseCount, finished: FinishHint) -> None:
        self._link, self._changes, self._log, self._ready = tools
        self._lease_expired = lease_expired
        self._finished = finished
        self.taking = Taking(tools, lease_expired)
        self._changing = Changing(tools, lease_expired)
        self._inserting = Inserting(tools)
        self._rooms: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._publishing = Publishing(tools, self._turn)

    async def close(self) -> None:
        await self._inserting.close()
        await self._changing.close()
        await self.taking.close()

    # Adding

    async def put(self, messages: Sequence[Message], put: Put) -> list[str]:
        queue = messages[0].queue
        plain = isinstance(messages, PlainBatch) or all(message.dedup_id is None for message in messages)
        if plain and put.room is None and put.record is None:
            named = await self._changes.know(queue)
            blocks = blocks_for(messages, named.number)
            if len(blocks) == 1 and blocks[0].group is None:
                return await self._inserting.put(queue, messages, put, named, blocks[0])
        return await self._put_several(queue, messages, put)

    async def _put_several(self, queue: str, messages: Sequence[Message], put: Put) -> list[str]:
        """Add messages in a transaction."""
        now, call = put.now, put.call
        had: groups.Joined = {}

        async def work(named: Numbers, session: Session) -> tuple[list[str], Sequence[Message], ObjectId]:
            db = self._link.database
            number, serial = named[queue].number, named[queue].serial
            if number != expected:
                raise Renumbered("the queue was purged")
            had.clear()
            if put.record is not None and not await records.change(db, session, put.record):
                raise RecordChanged(put.record)
            ids = [message.id for message in messages]
            fresh = messages
            known: dict[str, str] = {}
            if call is not None and (given := await calls.find(db, session, serial, call, now)) is not None:
                return repeated_call(given, call), [], number
            names = {message.dedup_id for message in messages if message.dedup_id is not None}
            if names:
                stands = await dedup.find(db, session, serial, names, now)
                sifted = sift(messages, stands.get)
                ids, fresh, known = sifted.ids, sifted.fresh, sifted.brought
            if put.room is not None:
                turn = await db.blocks.update_one({"_id": number}, {"$inc": {"turn": 1}}, session=session)
                if not turn.matched_count:
                    raise Outdated(queue)
                held = await counting.total(db, session, number)
                check_room(put.room, queue, held, (len(fresh), size_of(fresh)))
            if known:
                records_of_ids = dedup.fresh(serial, known, put.dedup_until)
                await db.dedup.delete_many({"_id": {"$in": [one["_id"] for one in records_of_ids]}}, session=session)
                await self._insert(db.dedup, session, queue, records_of_ids)
            documents: list[dict[str, Any]] = []
            if fresh:
                blocks = blocks_for(fresh, number)
                had.update(await groups.join(db, session, number, blocks))
                documents = writes.insert(blocks, now, writes.arrivals(fresh, now, put.keep, put.reason))
            if call is not None:
                documents = documents or calls.stubs(serial, {call.name: ("", 0)})
                documents[0]["call"] = calls.record(serial, call, ids)
            if documents:
                await self._insert(db.blocks, session, queue, documents)
            return ids, fresh, number

        while True:
            expected = (await self._changes.know(queue)).number
            with self._link.call() as db:
                await self._link.patiently(partial(groups.expect, db, expected, messages, now))
            async with self._turn(queue) if put.room is not None else nullcontext():
                with suppress(Renumbered):
                    ids, fresh, used = await self._changes.make([queue], work)
                    break
        if fresh:
            last = {"$max": {"last_id": max(message.id for message in fresh)}}
            with self._link.call() as db:
                await self._link.patiently(lambda: db.blocks.update_one({"_id": used}, last))
        self._ready(queue, [message.recipient for message in fresh])
        self._ready(queue, await groups.joined(self._link, used, had, now))
        return ids

    async def _insert(
        self, collection: Collection, session: Session, queue: str, documents: list[dict[str, Any]]
    ) -> None:
        try:
            await collection.insert_many(documents, session=session)
        except BulkWriteError as error:
            if any(one["code"] == DUPLICATE for one in error.details["writeErrors"]):
                raise Outdated(queue) from error  # the same call, or dedup id, was just sent elsewhere
            raise

    async def publish(self, publication: Publication) -> Published:
        return await self._publishing.publish(publication)

    def _turn(self, queue: str) -> asyncio.Lock:
        """Serializes sends of this process to a queue with a limit: in the database they would conflict."""
        lock = self._rooms.get(queue)
        if lock is None:
            lock = self._rooms[queue] = asyncio.Lock()
        return lock

    # Taking and changing

    async def take(self, queue: str, take: Take) -> list[Stored]:
        return await self.taking.take(queue, take)

    async def draw(self, queue: str, draw: Draw) -> int:
        with self._link.call() as db:
            drawn = await db.queues.find_one_and_update(
                {"_id": queue}, queries.draw(draw), {"drawn": 1}, return_document=ReturnDocument.AFTER
            )
        if drawn is None:
            raise no_queue(queue)
        return int(drawn["drawn"])

    async def drop(self, queue: str, fences: Sequence[Fence], change: Change) -> list[Outcome]:
        def act(block: Block, place: int, receipt: str) -> list[Event]:
            recorded: list[Event] = []
            if change.recorded is not None:
                recorded += block.expired(place, queue, change.now, receipt)
                recorded.append(
                    block.left(change.recorded, place, queue, change.now, change.reason, extra=change.extra)
                )
            block.leave(place)
            return recorded

        outcomes = await self._changing.change(queue, Request(fences, act, change, True))
        if change.remember is not None and "done" in outcomes:
            self._finished(queue)
        return outcomes

    async def reschedule(self, queue: str, fences: Sequence[Fence], to: NewTime, change: Change) -> list[Outcome]:
        def act(block: Block, place: int, receipt: str) -> list[Event]:
            recorded: list[Event] = []
            if change.recorded is not None:
                left = block.left(change.recorded, place, queue, change.now, None, extra=change.extra, error=to.error)
                recorded.append(left)
            moment = to.moment(block.state(place).receives)
            block.reschedule(place, moment, to.release, to.error, to.unused)
            return recorded

        return await self._changing.change(queue, Request(fences, act, change, False))

    async def edit(self, queue: str, fence: Fence, edit: Edit, change: Change) -> Outcome:
        id, receipt = fence
        now, keep = change.now, change.keep
        settled: list[tuple[str, ObjectId, str]] = []

        async def work(named: Numbers, session: Session) -> tuple[Outcome, list[str | None], int]:
            db = self._link.database
            number = named[queue].number
            block = (await writes.read(db, number, [id], session, queries.WHOLE)).get(id)
            place = None if block is None else block.place(id)
            if block is None or place is None:
                return "missing", [], 0
            outcome = block.check(place, receipt, now)
            if outcome != "done":
                return outcome, [], 0
            expired = [] if edit.due_at is None else block.expired(place, queue, now, receipt)
            state = block.state(place)
            message = edit.apply(block.messages[place])
            told = [] if keep == "off" else [*expired, events.edited(message, now, state.receives, keep)]
            if len(block.ids) > 1:
                # It gets a block of its own.
                [own] = blocks_for([message], number, moved=True, taken=[shared_name(number, id)])
                own.states[0] = state
                block.leave(place)
                block.mixed = True
                await writes.save_all(db, session, queue, [Written(block, now)])
            else:
                own = block
                own.hold([message])
                own.priority = message.priority
            if edit.due_at is not None:
                own.due_at = message.due_at
                own.reschedule(0, message.due_at, True, LEASE_EXPIRED if expired else None)
            settled.clear()
            if own.in_front:
                settled.append((own.id, number, own.group or ""))
            if own is block:
                await writes.save_all(db, session, queue, [Written(own, now, told, content=True)])
            else:
                documents = writes.insert([own], now, {id: told} if told else None)
                await db.blocks.insert_many(documents, session=session)
            return outcome, [] if edit.due_at is None else [message.recipient], len(expired)

        outcome, lanes, expired = await self._changes.make([queue], work)
        self._lease_expired(queue, expired)
        self._ready(queue, lanes)
        self._ready(queue, await groups.finish(self._link, settled, now))
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        change: Change,
        keep_to: History,
        room: Room | None = None,
    ) -> list[Outcome]:
        now = change.now
        outcomes: list[Outcome] = []
        left: list[tuple[str, ObjectId, str]] = []
        expired: list[Event] = []
        emptied: list[str] = []
        had: dict[ObjectId, groups.Joined] = {}
        moved: list[Message] = []
        lasts: dict[ObjectId, str] = {}

        async def work(named: Numbers, session: Session) -> None:
            db = self._link.database
            for some in (outcomes, left, expired, had, moved, emptied, lasts):
                some.clear()
            number = named[queue].number
            blocks = await writes.read(db, number, [id for (id, _), _ in moves], session)
            told: dict[str, list[Event]] = {}
            kept: list[results.Kept] = []
            arrived: dict[str, list[Event]] = {}
            come: dict[str, list[Message]] = {}
            for nth, ((id, receipt), message) in enumerate(moves):
                block = blocks.get(id)
                place = None if block is None else block.place(id)
                outcome: Outcome = "missing" if block is None else block.check(place, receipt, now)
                outcomes.append(outcome)
                if block is None or place is None or outcome != "done":
                    continue
                lost = block.expired(place, queue, now, receipt)
                expired.extend(lost)
                out = told.setdefault(block.id, [])
                if change.recorded is not None:
                    out += lost
                    error = None if message.dead is None else message.dead.error
                    left_by = block.left(
                        change.recorded, place, queue, now, change.reason, extra=change.extra, error=error
                    )
                    out.append(left_by)
                if change.remember is not None:
                    kept.append((id, change.remember.each[nth], change.remember.until))
                block.leave(place)
                block.mixed = True
                if block.group is not None:
                    left.append((block.id, number, block.group))
                moved.append(message)
                come.setdefault(message.queue, []).append(message)
                if keep_to != "off":
                    arrived[message.id] = [events.sent(message, now, change.event, keep_to)]
            changed = {block.id: block for block in blocks.values() if block.id in told}
            emptied.extend(
                id
                for id, block in changed.items()
                if next(block.present(), None) is None and writes.certain(block.past)
            )
            await writes.save_all(db, session, queue, [Written(one, now, told[id]) for id, one in changed.items()])
            await results.keep(db, session, named[queue].serial, kept)
            for to, messages in come.items():
                target = named[to].number
                if room is not None:
                    turn = await db.blocks.update_one({"_id": target}, {"$inc": {"turn": 1}}, session=session)
                    if not turn.matched_count:
                        raise Outdated(to)
                    held = await counting.total(db, session, target)
                    check_room(room, to, held, (len(messages), size_of(messages)))
                new = [message.id for message in messages if message.id not in blocks]
                if new:
                    lasts[target] = max(new)
                had[target] = await self._arrive(session, target, messages, now, arrived)

        queues = dict.fromkeys([queue, *(message.queue for _, message in moves)])
        numbers = {name: (await self._changes.know(name)).number for name in queues}
        with self._link.call() as db:
            for to, number in numbers.items():
                messages = [message for _, message in moves if message.queue == to]
                await self._link.patiently(partial(groups.expect, db, number, messages, now))
        await self._changes.make(queues, work)
        for number, last in lasts.items():
            with self._link.call() as db:
                await self._link.patiently(partial(db.blocks.update_one, {"_id": number}, {"$max": {"last_id": last}}))
        self._lease_expired(queue, len(expired))
        if change.remember is not None and moved:
            self._finished(queue)
        for to in dict.fromkeys(message.queue for message in moved):
            self._ready(to, [message.recipient for message in moved if message.queue == to])
            number = (await self._changes.know(to)).number
            self._ready(to, await groups.joined(self._link, number, had.get(number, {}), now))
        self._ready(queue, await groups.finish(self._link, left, now))
        if emptied and change.recorded is None:
            with self._link.call() as db:
                query = {"_id": {"$in": emptied}} | queries.ENDED
                await self._link.patiently(lambda: db.blocks.delete_many(query))
        return outcomes

    async def _arrive(
        self, session: Session, number: ObjectId, messages: Sequence[Message], now: int, told: dict[str, list[Event]]
    ) -> groups.Joined:
        """Add messages that come from another queue: the groups that had a head."""
        db = self._link.database
        names = {shared_name(number, one.id) for one in messages} | {own_name(number, one.id) for one in messages}
        there = await db.blocks.find({"_id": {"$in": list(names)}}, {"over": 1}, session=session).to_list()
        # What is left of blocks whose messages have all gone makes room; their events and versions are kept.
        past: dict[str, list[ObjectId]] = {}
        for one in there:
            if one.get("over"):
                old = await db.blocks.find_one_and_delete({"_id": one["_id"]}, session=session)
                if old is not None:
                    past[old["_id"]] = old.get("past", [])
                    if old.get("out") or "call" in old:
                        await db.blocks.insert_one(old | {"_id": f"{old['_id']}:{ObjectId()}"}, session=session)
        taken = [one["_id"] for one in there if not one.get("over")]
        blocks = blocks_for(messages, number, moved=True, taken=taken)
        had = await groups.join(db, session, number, blocks)
        documents = writes.insert(blocks, now, told)
        for document in documents:
            document["past"] = [*past.get(document["_id"], ()), *document["past"]]
        await db.blocks.insert_many(documents, session=session)
        return had

    async def clear(self, queue: str, change: Change, forget: bool = False) -> int:
        async def work(session: Session) -> int:
            db = self._link.database
            number = ObjectId()
            renamed = {"$set": {"number": number}, "$unset": {"showing": ""}}
            found = await db.queues.find_one_and_update({"_id": queue}, renamed, session=session)
            if found is None:
                raise no_queue(queue)
            await db.blocks.insert_one({"_id": number, "last_id": ""}, session=session)
            if forget:
                await dedup.forget(db, session, found["serial"])
            count, size = await counting.retire(db, session, found["number"])
            for note in found.get("showing", ()):
                held = await counting.total(db, session, note["number"])
                count, size = count + held[0], size + held[1]
            if count and change.keep != "off":
                await self._log.append(db, session, [events.purged(queue, count, size, change.now)])
            return count

        if change.keep != "off":
            await self._log.copy()
        self._changes.forget(queue)
        try:
            return await self._link.transact(work)
        finally:
            self._changes.forget(queue)

    # Reading

    async def find(self, queue: str, ids: Sequence[str]) -> dict[str, Stored]:
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            blocks = await writes.read(db, number, ids, projection=queries.WHOLE)
        places = ((id, block, block.place(id)) for id, block in blocks.items())
        return {id: block.stored(place) for id, block, place in places if place is not None}

    async def scan(self, queue: str, scan: Scan) -> Page:
        with self._link.call() as db:
            return await browse.browse(db, (await self._changes.ask(db, queue)).number, scan)

    async def held(self, queue: str, token: str, until: int) -> list[Stored]:
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            cursor = db.blocks.find(queries.held(token), queries.WHOLE, hint="tokens").batch_size(100)
            blocks = [block_of(one) async for one in cursor if one["number"] == number]
        found: list[Stored] = []
        for block in blocks:
            for place in block.present():
                state = block.state(place)
                if (state.receipt, state.visible_at) == (token, until):
                    found.append(block.stored(place))
        return sorted(found, key=lambda stored: stored.message.id)

    async def counts(self, queue: str, now: int) -> Counts:
        with self._link.call() as db:
            await self._changes.ask(db, queue)
            async with self._link.client.start_session(snapshot=True) as session:
                number = (await self._changes.ask(db, queue, session)).number
                return await counting.counts(db, session, number, now)

    async def holdings(self, queue: str, now: int) -> dict[str | None, Holding]:
        with self._link.call() as db:
            return await counting.holdings(db, (await self._changes.ask(db, queue)).number, now)

    async def next_visible(self, queue: str, now: int) -> int | None:
        with self._link.call() as db:
            return await counting.next_visible(db, (await self._changes.ask(db, queue)).number, now)
