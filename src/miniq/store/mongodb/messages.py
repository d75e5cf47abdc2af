"""Messages in MongoDB: one document each, changed in transactions that also update counters and history."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pymongo
from bson import ObjectId
from pymongo import ReplaceOne
from pymongo.read_concern import ReadConcern

from miniq.message import NEVER, Counts, Event, History, Message, Outcome, Page, Stored
from miniq.store import events
from miniq.store.arguments import Change, Edit, Fence, NewTime, Put, Room, Scan, Take
from miniq.store.contract import MessageStore, ReadyHint, no_queue
from miniq.store.decisions import call_answer, check_room, repeated_call, sift, size_of
from miniq.store.mongodb import browse, counters, dedup, groups, queries, upkeep
from miniq.store.mongodb import fences as fencing
from miniq.store.mongodb.changes import Numbers, check_number
from miniq.store.mongodb.connection import Contended, Session
from miniq.store.mongodb.documents import LEASE, Document, message_document, message_of, stored_of
from miniq.store.mongodb.fences import check, fenced, left
from miniq.store.mongodb.history import Tools
from miniq.store.mongodb.takers import Candidate, Takers
from miniq.store.names import call_record

LOCAL = ReadConcern("local")
SPREAD = 32
"""How far from the front a take searches after losing to other brokers."""
MOST_CANDIDATES = 20_000


class Messages(MessageStore):
    """See `MessageStore`."""

    def __init__(self, tools: Tools, hint: ReadyHint) -> None:
        self._link, self._changes, self._log, self._ready = tools
        self._hint = hint
        """Wakes long polls of this broker; `ready` also those of other brokers."""
        self._takers: dict[str, Takers] = {}

    async def put(self, messages: Sequence[Message], put: Put) -> list[str]:
        queue, now, keep, call = messages[0].queue, put.now, put.keep, put.call

        async def work(named: Numbers, slot: str, session: Session) -> tuple[list[str], Sequence[Message]]:
            db = self._link.database
            number, serial = named[queue].number, named[queue].serial
            ids = [message.id for message in messages]
            fresh = messages
            known: dict[str, str] = {}
            if call is not None or any(message.dedup_id is not None for message in messages):
                stands = await dedup.standing(db, session, serial, messages, call, now)
                if call is not None and (given := stands.get(call_record(call.name))) is not None:
                    await counters.add(db, session, queue, number, slot, 0, 0)
                    return repeated_call(given, call), []
                sifted = sift(messages, stands.get)
                ids, fresh, known = sifted.ids, sifted.fresh, sifted.brought
            size = size_of(fresh)
            if put.room is not None:
                await counters.take_turn(db, session, queue, number)
                check_room(put.room, queue, await counters.total(db, session, number), (len(fresh), size))
            if fresh:
                waiting = await groups.join(db, session, number, fresh)
                documents = [message_document(one, number, now, one.id in waiting) for one in fresh]
                await db.messages.insert_many(documents, session=session)
            last = max((message.id for message in fresh), default="")
            await counters.add(db, session, queue, number, slot, len(fresh), size, last)
            remembered = {dedup_id: (id, put.dedup_until) for dedup_id, id in known.items()}
            if call is not None:
                remembered[call_record(call.name)] = (call_answer(ids, call), call.until)
            await dedup.remember(db, session, serial, remembered)
            if keep != "off":
                await self._log.append(db, session, [events.sent(one, now, None, keep) for one in fresh])
            return ids, fresh

        ids, fresh = await self._changes.make([queue], work)
        self._ready(queue, [message.recipient for message in fresh])
        return ids

    async def take(self, queue: str, take: Take) -> list[Stored]:
        takers = self._takers.setdefault(queue, Takers())
        lease = self._lease if take.keep == "off" else self._lease_and_tell
        deadline = time.monotonic() + self._link.patience
        spread = False
        try:
            while time.monotonic() < deadline:
                with takers.looking() as gone:
                    number, candidates = await self._look(queue, takers, take, spread)
                    chosen = takers.choose(candidates, gone, take.limit, take.max_bytes, spread)
                if not chosen:
                    break
                with takers.going_for(chosen):
                    try:
                        found = await lease(number, chosen, take)
                    except Contended:
                        found = []
                if len(found) < len(chosen):
                    # Other takes skipped these messages, so wake them.
                    self._hint(queue, None, len(chosen) - len(found))
                if found:
                    return [stored_of(one) for one in sorted(found, key=_in_line)]
                spread = True
        finally:
            if takers.idle:
                self._takers.pop(queue, None)
        return []

    async def drop(self, queue: str, fences: Sequence[Fence], change: Change) -> list[Outcome]:
        async def work(named: Numbers, slot: str, session: Session) -> tuple[list[Outcome], list[str | None]]:
            db = self._link.database
            number = named[queue].number
            found = await fenced(db, session, number, fences)
            outcomes: list[Outcome] = []
            gone: list[Document] = []
            for id, receipt in fences:
                outcome = check(found.get(id), receipt, change.now)
                outcomes.append(outcome)
                if outcome == "done":
                    gone.append(found.pop(id))
            heads: list[str | None] = []
            if gone:
                await db.messages.delete_many({"_id": {"$in": [one["_id"] for one in gone]}}, session=session)
                heads = await groups.leave(db, session, number, gone)
            size = sum(one["size"] for one in gone)
            await counters.add(db, session, queue, number, slot, -len(gone), -size)
            if change.recorded is not None:
                recorded = [left(change.recorded, one, change.now, change.reason) for one in gone]
                await self._log.append(db, session, recorded)
            return outcomes, heads

        outcomes, heads = await self._changes.make([queue], work)
        self._ready(queue, heads)
        return outcomes

    async def reschedule(self, queue: str, fences: Sequence[Fence], to: NewTime, change: Change) -> list[Outcome]:
        now, visible_at, release = change.now, to.visible_at, to.release

        async def work(named: Numbers, slot: str, session: Session) -> tuple[list[Outcome], list[str | None]]:
            db = self._link.database
            number = named[queue].number
            await check_number(db, session, queue, number)
            found = await fenced(db, session, number, fences)
            outcomes: list[Outcome] = []
            changed: dict[str, Document] = {}
            recorded: list[Event] = []
            for id, receipt in fences:
                one = found.get(id)
                outcome = check(one, receipt, now)
                outcomes.append(outcome)
                if one is not None and outcome == "done":
                    if change.recorded is not None:
                        recorded.append(left(change.recorded, one, now, None))
                    state = {"visible_at": visible_at}
                    found[id] = changed[id] = {
                        name: value for name, value in one.items() if not release or name not in LEASE
                    } | state
            update_for = fencing.release if release else fencing.state_change
            for waits in (False, True):
                ids = [id for id, one in changed.items() if one.get("waits", False) is waits]
                if ids:
                    update = update_for(number, visible_at, now, waits)
                    await db.messages.update_many({"_id": {"$in": ids}}, update, session=session)
            await self._log.append(db, session, recorded)
            return outcomes, [one["lane"] or None for one in changed.values()]

        outcomes, lanes = await self._changes.make([queue], work)
        self._ready(queue, lanes)
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, change: Change) -> Outcome:
        id, receipt = fence
        now, keep = change.now, change.keep

        async def work(named: Numbers, slot: str, session: Session) -> tuple[Outcome, list[str | None]]:
            db = self._link.database
            number = named[queue].number
            one = await db.messages.find_one({"_id": id, "number": number}, session=session)
            outcome = check(one, receipt, now)
            if one is None or outcome != "done":
                await check_number(db, session, queue, number)
                return outcome, []
            message = edit.apply(message_of(one))
            new = message_document(message, number, now, one.get("waits", False))
            new["receives"] = one["receives"]
            if edit.due_at is None:
                new.pop("line", None)
                new.pop("timed", None)
                new |= {name: one[name] for name in ("visible_at", "line", "timed", *LEASE) if name in one}
            await db.messages.replace_one({"_id": id}, new, session=session)
            await counters.add(db, session, queue, number, slot, 0, message.size - one["size"])
            if keep != "off":
                await self._log.append(db, session, [events.edited(message, now, one["receives"], keep)])
            return outcome, [] if edit.due_at is None else [message.recipient]

        outcome, lanes = await self._changes.make([queue], work)
        self._ready(queue, lanes)
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

        async def work(
            named: Numbers, slot: str, session: Session
        ) -> tuple[list[Outcome], list[Message], list[str | None]]:
            db = self._link.database
            number = named[queue].number
            found = await fenced(db, session, number, [fence for fence, _ in moves])
            outcomes: list[Outcome] = []
            gone: list[Document] = []
            come: dict[str, list[Message]] = {}
            recorded: list[Event] = []
            for (id, receipt), message in moves:
                outcome = check(found.get(id), receipt, now)
                outcomes.append(outcome)
                if outcome == "done":
                    gone.append(found.pop(id))
                    come.setdefault(message.queue, []).append(message)
                    if change.recorded is not None:
                        recorded.append(left(change.recorded, gone[-1], now, change.reason))
                    if keep_to != "off":
                        recorded.append(events.sent(message, now, change.event, keep_to))
            heads: list[str | None] = []
            for to, messages in come.items():
                target = named[to].number
                if room is not None:
                    await counters.take_turn(db, session, to, target)
                    more = (len(messages), size_of(messages))
                    check_room(room, to, await counters.total(db, session, target), more)
                waiting = await groups.join(db, session, target, messages)
                documents = [message_document(one, target, now, one.id in waiting) for one in messages]
                await db.messages.bulk_write(
                    [ReplaceOne({"_id": one["_id"]}, one) for one in documents], session=session
                )
                await counters.add(db, session, to, target, slot, len(messages), size_of(messages))
            if gone:
                heads = await groups.leave(db, session, number, gone)
            await counters.add(db, session, queue, number, slot, -len(gone), -sum(one["size"] for one in gone))
            await self._log.append(db, session, recorded)
            return outcomes, [message for some in come.values() for message in some], heads

        outcomes, moved, heads = await self._changes.make([queue, *(message.queue for _, message in moves)], work)
        for to in dict.fromkeys(message.queue for message in moved):
            self._ready(to, [message.recipient for message in moved if message.queue == to])
        self._ready(queue, heads)
        return outcomes

    async def clear(self, queue: str, change: Change) -> int:
        async def work(session: Session) -> int:
            db = self._link.database
            renamed = {"$set": {"number": ObjectId()}, "$unset": {"showing": ""}}
            found = await db.queues.find_one_and_update({"_id": queue}, renamed, session=session)
            if found is None:
                raise no_queue(queue)
            count, size = await counters.total(db, session, found["number"])
            await counters.remove(db, session, found["number"])
            if count and change.keep != "off":
                await self._log.append(db, session, [events.purged(queue, count, size, change.now)])
            return count

        self._changes.forget(queue)
        return await self._link.transact(work)

    async def find(self, queue: str, ids: Sequence[str]) -> dict[str, Stored]:
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            found = await db.messages.find({"_id": {"$in": list(ids)}, "number": number}).to_list()
        return {one["_id"]: stored_of(one) for one in found}

    async def scan(self, queue: str, scan: Scan) -> Page:
        with self._link.call() as db:
            return await browse.browse(db, (await self._changes.ask(db, queue)).number, scan)

    async def held(self, token: str) -> list[Stored]:
        with self._link.call() as db:
            found = await db.messages.find(queries.held(token)).sort("_id").to_list()
            numbers = {one["number"] for one in await db.queues.find({}, {"number": 1}).to_list()} if found else set()
        return [stored_of(one) for one in found if one["number"] in numbers]

    async def counts(self, queue: str, now: int) -> Counts:
        with self._link.call() as db:
            async with self._link.client.start_session(snapshot=True) as session:
                number = (await self._changes.ask(db, queue, session)).number
                count, size = await counters.total(db, session, number)
                ahead = await db.messages.aggregate(queries.tally_of_ahead(number, now), session=session)
                many = {one["_id"]: one["count"] async for one in ahead}
                first = await browse.oldest(db, session, number, now)
        delayed, held = many.get(False, 0), many.get(True, 0)
        return Counts(count - delayed - held, delayed, held, size, first)

    async def next_visible(self, queue: str, now: int) -> int | None:
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            cursor = db.messages.find(queries.ahead(number, now, NEVER), {"_id": 0, "visible_at": 1})
            found = await cursor.sort("visible_at").limit(1).to_list()
        return int(found[0]["visible_at"]) if found else None

    # Inside

    async def _look(self, queue: str, takers: Takers, take: Take, spread: bool) -> tuple[ObjectId, list[Candidate]]:
        """The first messages in line for a consumer, after lining up those that are due; and the queue's number."""
        for _ in range(50):
            number = (await self._changes.know(queue)).number
            most = min(take.limit + takers.beyond() + (SPREAD + take.limit if spread else 0), MOST_CANDIDATES)
            candidates: list[Candidate] = []
            due = showing = False
            present = None
            with self._link.call() as db:
                messages = db.get_collection("messages", read_concern=LOCAL)
                cursor = await messages.aggregate(queries.look(queue, number, take.consumer, take.now, most))
                for one in await cursor.to_list():
                    if "size" in one:
                        candidates.append((one["_id"], one["size"]))
                    elif "due" in one:
                        due = True
                    else:
                        present, showing = one["number"], "showing" in one
                if present == number and showing:
                    await self._changes.show(queue)
                elif present == number and due:
                    await upkeep.stand_in_line(db, number, take.now)
            if present == number and not due and not showing:
                break
            if present is None:
                self._changes.forget(queue)
                raise no_queue(queue)
            if present != number:
                self._changes.forget(queue)
        return number, candidates

    async def _lease(self, number: ObjectId, ids: list[str], take: Take) -> Sequence[Document]:
        """Lease the messages that are still free, each atomically, and read them back."""
        query = {"_id": {"$in": ids}, "line": number, "visible_at": {"$lte": take.now}}
        change = fencing.lease(number, take.now, take.until, take.token, take.consumer)
        with self._link.call() as db:
            with pymongo.timeout(self._link.patience):  # also limits waiting for other transactions
                result = await db.messages.update_many(query, change)
            if not result.modified_count:
                return []
            return await db.messages.find({"_id": {"$in": ids}, "receipt": take.token}).to_list()

    async def _lease_and_tell(self, number: ObjectId, ids: list[str], take: Take) -> Sequence[Document]:
        """Lease in a transaction that also writes the events."""

        async def work(session: Session) -> Sequence[Document]:
            db = self._link.database
            query = {"_id": {"$in": ids}, "line": number, "visible_at": {"$lte": take.now}}
            found = sorted(await db.messages.find(query, session=session).to_list(), key=_in_line)
            recorded: list[Event] = []
            state = {"visible_at": take.until, "receipt": take.token, "consumer": take.consumer}
            taken: list[Document] = []
            for one in found:
                recorded += fencing.handed_out(one, take.now, take.consumer)
                taken.append({**one, **state, "receives": one["receives"] + 1})
            if found:
                change = fencing.lease(number, take.now, take.until, take.token, take.consumer)
                await db.messages.update_many({"_id": {"$in": [one["_id"] for one in found]}}, change, session=session)
                await self._log.append(db, session, recorded)
            return taken

        return await self._link.transact(work, again=False)


def _in_line(found: Document) -> tuple[int, str]:
    return -found["priority"], found["_id"]
