"""The contract over MongoDB. `documents.py` is the legend of what is stored, `queries.py` has the queries."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

import pymongo
from bson import ObjectId
from pymongo import ReplaceOne
from pymongo.read_concern import ReadConcern

from miniq.errors import InvalidRequest
from miniq.ids import from_spans, spans
from miniq.message import (
    NEVER,
    Claim,
    ClaimGroup,
    Committed,
    Counts,
    Event,
    EventName,
    History,
    HistoryPage,
    HistorySpan,
    Message,
    Outcome,
    Page,
    Portion,
    QueueSettings,
    Stage,
    StageName,
    Status,
    Stored,
)
from miniq.store import events, transfer
from miniq.store.contract import Claimed, Edit, Fence, Fit, Once, ReadyHint, Reserve, Room, check_room
from miniq.store.mongodb import browse, copying, counters, dedup, groups, queries, setup, upkeep
from miniq.store.mongodb import fences as fencing
from miniq.store.mongodb.changes import Changes, Numbers, check_number, no_queue
from miniq.store.mongodb.claims import Asked, Claims
from miniq.store.mongodb.connection import Contended, Link, Session
from miniq.store.mongodb.documents import (
    LEASE,
    Document,
    decode_settings,
    encode_settings,
    message_document,
    message_of,
    stored_of,
)
from miniq.store.mongodb.fences import check, fenced, left
from miniq.store.mongodb.history import HistoryLog
from miniq.store.mongodb.signals import Signals
from miniq.store.mongodb.stages import Stages
from miniq.store.mongodb.takers import Candidate, Takers
from miniq.store.names import call_record
from miniq.store.transfer import Item, portions

T = TypeVar("T")
LOCAL = ReadConcern("local")
SPREAD = 32
"""How far from the front a take looks when other brokers were faster."""
MOST_CANDIDATES = 20_000


class MongoStore:
    """One database, any number of processes; see `Store` for what each method promises."""

    shared = True

    def __init__(self, url: str, *, durable: bool = True, connections: int = 0, timeout: float = 10.0) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.on_change: Callable[[], None] = lambda: None
        self._link = Link(url, durable=durable, connections=connections, patience=timeout)
        self._signals = Signals(self._link)
        self._log = HistoryLog(self._link)
        self._changes = Changes(self._link)
        self._claims = Claims(self._link, self._changes, self._log, self._ready)
        self._stages = Stages(self._link, self._changes, self._log, self._ready)
        self._takers: dict[str, Takers] = {}

    async def open(self) -> None:
        await self._link.open()
        try:
            await setup.prepare(self._link)
        except BaseException:
            await self._link.close()
            raise
        self._signals.start(
            lambda queue, recipient, count: self.on_ready(queue, recipient, count), lambda: self.on_change()
        )

    async def close(self) -> None:
        await self._signals.stop()
        await self._link.close()

    def failure(self) -> Exception | None:
        return None

    async def check(self) -> None:
        with self._link.call() as db:
            await db.command("hello")

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        with self._link.call() as db:
            found = await db.queues.find({}).to_list()
        return {one["_id"]: decode_settings(one["settings"]) for one in found}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        async def work(session: Session) -> None:
            await self._link.database.queues.update_one({"_id": name}, _saved(settings), upsert=True, session=session)

        await self._revise(work)

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        async def work(session: Session) -> bool:
            queues = self._link.database.queues
            found = await queues.find_one({"_id": name}, {"settings": 1}, session=session)
            if (None if found is None else decode_settings(found["settings"])) != was:
                return False
            await queues.update_one({"_id": name}, _saved(settings), upsert=True, session=session)
            return True

        return await self._revise(work)

    async def delete_queue(self, name: str) -> bool:
        async def work(session: Session) -> bool:
            db = self._link.database
            found = await db.queues.find_one_and_delete({"_id": name}, session=session)
            if found is not None:
                await counters.remove(db, session, found["number"])
            return found is not None

        self._changes.forget(name)
        return await self._revise(work)

    async def records(self, kind: str) -> dict[str, bytes]:
        with self._link.call() as db:
            return {one["name"]: one["value"] for one in await db.records.find({"kind": kind}).to_list()}

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        key = {"_id": f"{kind}:{name}"}

        async def work(session: Session) -> None:
            records = self._link.database.records
            if value is None:
                await records.delete_one(key, session=session)
            else:
                record = key | {"kind": kind, "name": name, "value": value}
                await records.replace_one(key, record, upsert=True, session=session)

        await self._revise(work)

    async def revision(self) -> int:
        with self._link.call() as db:
            found = await db.meta.find_one({"_id": "revision"})
        return 0 if found is None else int(found["number"])

    async def last_id(self) -> str:
        with self._link.call() as db:
            return await counters.last_id(db)

    # Messages

    async def put(
        self,
        messages: Sequence[Message],
        *,
        now: int,
        dedup_until: int,
        room: Room | None,
        keep: History,
        call: Once | None = None,
    ) -> list[str]:
        queue = messages[0].queue

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
                    return from_spans(given), []
                ids, fresh, known = dedup.sift(messages, stands)
            if room is not None:
                await counters.take_turn(db, session, queue, number)
                check_room(room, *await counters.total(db, session, number), fresh)
            if fresh:
                waiting = await groups.join(db, session, number, fresh)
                documents = [message_document(one, number, now, one.id in waiting) for one in fresh]
                await db.messages.insert_many(documents, session=session)
            size = sum(message.size for message in fresh)
            last = max((message.id for message in fresh), default="")
            await counters.add(db, session, queue, number, slot, len(fresh), size, last)
            remembered = {dedup_id: (id, dedup_until) for dedup_id, id in known.items()}
            if call is not None:
                remembered[call_record(call.name)] = (spans(ids), call.until)
            await dedup.remember(db, session, serial, remembered)
            if keep != "off":
                await self._log.append(db, session, [events.sent(one, now, None, keep) for one in fresh])
            return ids, fresh

        ids, fresh = await self._changes.make([queue], work)
        self._ready(queue, [message.recipient for message in fresh])
        return ids

    async def take(
        self,
        queue: str,
        *,
        limit: int,
        max_bytes: int,
        now: int,
        until: int,
        token: str,
        consumer: str | None,
        keep: History,
    ) -> list[Stored]:
        takers = self._takers.setdefault(queue, Takers())
        lease = self._lease if keep == "off" else self._lease_and_tell
        deadline = time.monotonic() + self._link.patience
        spread = False
        try:
            while time.monotonic() < deadline:
                with takers.looking() as gone:
                    number, candidates = await self._look(queue, takers, limit, consumer, now, spread)
                    chosen = takers.choose(candidates, gone, limit, max_bytes, spread)
                if not chosen:
                    break
                with takers.going_for(chosen):
                    try:
                        found = await lease(queue, number, chosen, now, until, token, consumer)
                    except Contended:
                        found = []
                if len(found) < len(chosen):
                    # Whoever was told that these are taken looks again.
                    self.on_ready(queue, None, len(chosen) - len(found))
                if found:
                    return [stored_of(one) for one in sorted(found, key=_in_line)]
                spread = True
        finally:
            if takers.idle:
                self._takers.pop(queue, None)
        return []

    async def drop(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
    ) -> list[Outcome]:
        async def work(named: Numbers, slot: str, session: Session) -> tuple[list[Outcome], list[str | None]]:
            db = self._link.database
            number = named[queue].number
            found = await fenced(db, session, number, fences)
            outcomes: list[Outcome] = []
            gone: list[Document] = []
            for id, receipt in fences:
                outcome = check(found.get(id), receipt, now)
                outcomes.append(outcome)
                if outcome == "done":
                    gone.append(found.pop(id))
            heads: list[str | None] = []
            if gone:
                await db.messages.delete_many({"_id": {"$in": [one["_id"] for one in gone]}}, session=session)
                heads = await groups.leave(db, session, number, gone)
            size = sum(one["size"] for one in gone)
            await counters.add(db, session, queue, number, slot, -len(gone), -size)
            if keep != "off":
                await self._log.append(db, session, [left(event, one, now, reason) for one in gone])
            return outcomes, heads

        outcomes, heads = await self._changes.make([queue], work)
        self._ready(queue, heads)
        return outcomes

    async def reschedule(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        visible_at: int,
        release: bool,
        event: EventName | None,
        keep: History,
    ) -> list[Outcome]:
        async def work(named: Numbers, slot: str, session: Session) -> tuple[list[Outcome], list[str | None]]:
            db = self._link.database
            number = named[queue].number
            await check_number(db, session, queue, number)
            found = await fenced(db, session, number, fences)
            outcomes: list[Outcome] = []
            changed: dict[str, Document] = {}
            told: list[Event] = []
            for id, receipt in fences:
                one = found.get(id)
                outcome = check(one, receipt, now)
                outcomes.append(outcome)
                if one is not None and outcome == "done":
                    if event is not None:
                        told.append(left(event, one, now, None))
                    state = {"visible_at": visible_at}
                    found[id] = changed[id] = {
                        name: value for name, value in one.items() if not release or name not in LEASE
                    } | state
            change = fencing.release if release else fencing.state_change
            for waits in (False, True):
                ids = [id for id, one in changed.items() if one.get("waits", False) is waits]
                if ids:
                    update = change(number, visible_at, now, waits)
                    await db.messages.update_many({"_id": {"$in": ids}}, update, session=session)
            if keep != "off":
                await self._log.append(db, session, told)
            return outcomes, [one["lane"] or None for one in changed.values()]

        outcomes, lanes = await self._changes.make([queue], work)
        self._ready(queue, lanes)
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, *, now: int, keep: History) -> Outcome:
        id, receipt = fence

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
            if edit.visible_at is None:
                new.pop("line", None)
                new.pop("timed", None)
                new |= {name: one[name] for name in ("visible_at", "line", "timed", *LEASE) if name in one}
            await db.messages.replace_one({"_id": id}, new, session=session)
            await counters.add(db, session, queue, number, slot, 0, message.size - one["size"])
            if keep != "off":
                await self._log.append(db, session, [events.edited(message, now, one["receives"], keep)])
            return outcome, [] if edit.visible_at is None else [message.recipient]

        outcome, lanes = await self._changes.make([queue], work)
        self._ready(queue, lanes)
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
        keep_to: History,
    ) -> list[Outcome]:
        async def work(
            named: Numbers, slot: str, session: Session
        ) -> tuple[list[Outcome], list[Message], list[str | None]]:
            db = self._link.database
            number = named[queue].number
            found = await fenced(db, session, number, [fence for fence, _ in moves])
            outcomes: list[Outcome] = []
            gone: list[Document] = []
            come: dict[str, list[Message]] = {}
            told: list[Event] = []
            for (id, receipt), message in moves:
                outcome = check(found.get(id), receipt, now)
                outcomes.append(outcome)
                if outcome == "done":
                    gone.append(found.pop(id))
                    come.setdefault(message.queue, []).append(message)
                    if keep != "off":
                        told.append(left(event, gone[-1], now, reason))
                    if keep_to != "off":
                        told.append(events.sent(message, now, event, keep_to))
            heads: list[str | None] = []
            for to, messages in come.items():
                target = named[to].number
                waiting = await groups.join(db, session, target, messages)
                documents = [message_document(one, target, now, one.id in waiting) for one in messages]
                await db.messages.bulk_write(
                    [ReplaceOne({"_id": one["_id"]}, one) for one in documents], session=session
                )
                size = sum(message.size for message in messages)
                await counters.add(db, session, to, target, slot, len(messages), size)
            if gone:
                heads = await groups.leave(db, session, number, gone)
            await counters.add(db, session, queue, number, slot, -len(gone), -sum(one["size"] for one in gone))
            await self._log.append(db, session, told)
            return outcomes, [message for some in come.values() for message in some], heads

        outcomes, moved, heads = await self._changes.make([queue, *(message.queue for _, message in moves)], work)
        for to in dict.fromkeys(message.queue for message in moved):
            self._ready(to, [message.recipient for message in moved if message.queue == to])
        self._ready(queue, heads)
        return outcomes

    async def clear(self, queue: str, *, now: int, keep: History) -> int:
        async def work(session: Session) -> int:
            db = self._link.database
            change = {"$set": {"number": ObjectId()}, "$unset": {"showing": ""}}
            found = await db.queues.find_one_and_update({"_id": queue}, change, session=session)
            if found is None:
                raise no_queue(queue)
            count, size = await counters.total(db, session, found["number"])
            await counters.remove(db, session, found["number"])
            if count and keep != "off":
                await self._log.append(db, session, [events.purged(queue, count, size, now)])
            return count

        self._changes.forget(queue)
        return await self._link.transact(work)

    async def find(self, queue: str, id: str) -> Stored | None:
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            found = await db.messages.find_one({"_id": id, "number": number})
        return None if found is None else stored_of(found)

    async def scan(
        self, queue: str, *, status: Status | None, after: str | None, limit: int, max_bytes: int, now: int
    ) -> Page:
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            return await browse.browse(db, number, status, after, limit, max_bytes, now)

    async def held(self, token: str) -> list[Stored]:
        with self._link.call() as db:
            found = await db.messages.find(queries.held(token)).sort("_id").to_list()
            numbers = {one["number"] for one in await db.queues.find({}, {"number": 1}).to_list()} if found else set()
        return [stored_of(one) for one in found if one["number"] in numbers]

    async def counts(self, queue: str, *, now: int) -> Counts:
        with self._link.call() as db:
            async with self._link.client.start_session(snapshot=True) as session:
                number = (await self._changes.ask(db, queue, session)).number
                count, size = await counters.total(db, session, number)
                ahead = await db.messages.aggregate(queries.tally_of_ahead(number, now), session=session)
                many = {one["_id"]: one["count"] async for one in ahead}
                first = await browse.oldest(db, session, number, now)
        delayed, held = many.get(False, 0), many.get(True, 0)
        return Counts(count - delayed - held, delayed, held, size, first)

    async def next_visible(self, queue: str, *, now: int) -> int | None:
        with self._link.call() as db:
            number = (await self._changes.ask(db, queue)).number
            cursor = db.messages.find(queries.ahead(number, now, NEVER), {"_id": 0, "visible_at": 1})
            found = await cursor.sort("visible_at").limit(1).to_list()
        return int(found[0]["visible_at"]) if found else None

    # Claims

    async def open_claims(self, queue: str, group: str) -> ClaimGroup:
        return await self._claims.open(queue, group)

    async def claim(
        self,
        queue: str,
        group: str,
        *,
        after: int,
        epoch: int | None,
        limit: int,
        max_bytes: int,
        fit: Fit,
        consumer: str | None,
        now: int,
        keep_until: int,
        keep: History,
    ) -> Claimed:
        asked = Asked(after, epoch, limit, max_bytes, fit, consumer, now, keep_until, keep)
        return await self._claims.next(queue, group, asked)

    async def find_claim(self, queue: str, group: str, number: int, *, now: int) -> Claim:
        return await self._claims.find(queue, group, number, now)

    async def claimed(
        self, queue: str, group: str, number: int, *, start: int, stop: int, max_bytes: int, now: int
    ) -> list[Portion]:
        return await self._claims.read(queue, group, number, start, stop, max_bytes, now)

    async def release_claims(self, queue: str, group: str, *, epoch: int | None, now: int, keep: History) -> int:
        return await self._claims.release(queue, group, epoch, now, keep)

    async def claim_groups(self, queue: str, *, now: int) -> list[ClaimGroup]:
        return await self._claims.groups(queue, now)

    # Stages

    async def stage(
        self, queue: str, name: StageName, part: int, messages: Sequence[Message], *, now: int, until: int
    ) -> tuple[int, int]:
        return await self._stages.upload(queue, name, part, messages, now, until)

    async def commit_stages(
        self,
        queue: str,
        job: str,
        batch: str,
        stages: Sequence[tuple[str, str]],
        *,
        now: int,
        until: int,
        reserve: Reserve,
        dedup_until: int,
        room: Room | None,
        keep: History,
    ) -> Committed:
        return await self._stages.commit(queue, job, batch, stages, now, until, reserve, dedup_until, room, keep)

    async def discard_stages(self, queue: str, job: str, batch: str) -> int:
        return await self._stages.discard(queue, job, batch)

    async def stages(self, queue: str, *, now: int) -> list[Stage]:
        return await self._stages.all(queue, now)

    # History and upkeep

    async def history(self, *, after: int, limit: int, queue: str | None) -> HistoryPage:
        return await self._log.read(after, limit, queue)

    async def history_span(self) -> HistorySpan:
        return await self._log.span()

    async def trim_history(self, upto: int) -> None:
        await self._log.trim(upto)

    async def tidy(self, *, now: int, limit: int) -> int:
        await self._claims.finish(now)
        await self._stages.show_all()
        removed = await self._stages.tidy(now, limit)
        return removed + await upkeep.tidy(self._link, now, limit - removed)

    async def backup(self, path: str) -> None:
        raise InvalidRequest(
            "store: MongoDB makes its own backups; use mongodump --oplog, or a snapshot of its disks "
            "(docs/howto/mongodb.md)",
            field="store",
        )

    # Copying

    async def dump(self) -> AsyncIterator[list[Item]]:
        await self._stages.show_all()
        with self._link.call() as db:
            async for portion in portions(copying.dump(db, self._log)):
                yield portion

    async def load(self, items: Sequence[Item], *, now: int) -> None:
        for item in items:
            if isinstance(item, transfer.Queue):
                await self.save_queue(item.name, item.settings)
            elif isinstance(item, transfer.Record):
                await self.save_record(item.kind, item.name, item.value)
        saved = [item for item in items if isinstance(item, transfer.Saved)]
        records = [item for item in items if isinstance(item, transfer.Dedup)]
        readers = [item for item in items if isinstance(item, transfer.Readers)]
        queues = [one.stored.message.queue for one in saved] + [record.queue for record in records]
        queues += [reader.queue for reader in readers]

        async def work(named: Numbers, slot: str, session: Session) -> None:
            db = self._link.database
            for queue in dict.fromkeys(one.stored.message.queue for one in saved):
                some = [one for one in saved if one.stored.message.queue == queue]
                await copying.load_messages(db, session, queue, named[queue].number, slot, some, now)
            serials = {queue: name.serial for queue, name in named.items()}
            await copying.load_dedup(db, session, serials, records)
            for reader in readers:
                await copying.load_readers(db, session, reader, named[reader.queue])
            for item in items:
                if isinstance(item, transfer.LastId):
                    await copying.load_last_id(db, session, item.id)
                elif isinstance(item, transfer.HistoryStart):
                    await self._log.begin(db, session, item.offset)
                elif isinstance(item, transfer.Events):
                    await self._log.load(db, session, item.offset, item.events)

        await self._changes.make(queues, work)

    # Inside

    async def _revise(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Change queues or records, and let other brokers know."""

        async def both(session: Session) -> T:
            answer = await work(session)
            revision = {"$inc": {"number": 1}}
            await self._link.database.meta.update_one({"_id": "revision"}, revision, upsert=True, session=session)
            return answer

        answer = await self._link.transact(both)
        self._signals.changed()
        return answer

    async def _look(
        self, queue: str, takers: Takers, limit: int, consumer: str | None, now: int, spread: bool
    ) -> tuple[ObjectId, list[Candidate]]:
        """The first in line for a consumer, once all that is due stands there; and the number they were found by."""
        for _ in range(50):
            number = (await self._changes.know(queue)).number
            most = min(limit + takers.beyond() + (SPREAD + limit if spread else 0), MOST_CANDIDATES)
            candidates: list[Candidate] = []
            due = showing = False
            present = None
            with self._link.call() as db:
                messages = db.get_collection("messages", read_concern=LOCAL)
                cursor = await messages.aggregate(queries.look(queue, number, consumer, now, most))
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
                    await upkeep.stand_in_line(db, number, now)
            if present == number and not due and not showing:
                break
            if present is None:
                self._changes.forget(queue)
                raise no_queue(queue)
            if present != number:
                self._changes.forget(queue)
        return number, candidates

    async def _lease(
        self, queue: str, number: ObjectId, ids: list[str], now: int, until: int, token: str, consumer: str | None
    ) -> Sequence[Document]:
        """Lease what is still there, each on its own, and read back what became ours."""
        query = {"_id": {"$in": ids}, "line": number, "visible_at": {"$lte": now}}
        change = fencing.lease(number, now, until, token, consumer)
        with self._link.call() as db:
            with pymongo.timeout(self._link.patience):  # also for the server, if somebody's transaction is in the way
                result = await db.messages.update_many(query, change)
            if not result.modified_count:
                return []
            return await db.messages.find({"_id": {"$in": ids}, "receipt": token}).to_list()

    async def _lease_and_tell(
        self, queue: str, number: ObjectId, ids: list[str], now: int, until: int, token: str, consumer: str | None
    ) -> Sequence[Document]:
        """The same with events, which must be written together with the leases."""

        async def work(session: Session) -> Sequence[Document]:
            db = self._link.database
            query = {"_id": {"$in": ids}, "line": number, "visible_at": {"$lte": now}}
            found = sorted(await db.messages.find(query, session=session).to_list(), key=_in_line)
            told: list[Event] = []
            state = {"visible_at": until, "receipt": token, "consumer": consumer}
            taken: list[Document] = []
            for one in found:
                told += fencing.handed_out(one, now, consumer)
                taken.append({**one, **state, "receives": one["receives"] + 1})
            if found:
                change = fencing.lease(number, now, until, token, consumer)
                await db.messages.update_many({"_id": {"$in": [one["_id"] for one in found]}}, change, session=session)
                await self._log.append(db, session, told)
            return taken

        return await self._link.transact(work, again=False)

    def _ready(self, queue: str, recipients: Iterable[str | None]) -> None:
        """Messages came or came back: a hint to those who wait here, and at other brokers."""
        for recipient, count in Counter(recipients).items():
            self.on_ready(queue, recipient, count)
            self._signals.ready(queue, recipient, count)


def _saved(settings: QueueSettings) -> dict[str, Any]:
    """The update that saves a queue; a new one gets its names."""
    number = ObjectId()
    fresh = {"number": number, "serial": number, "slots": 0}
    return {"$set": {"settings": encode_settings(settings)}, "$setOnInsert": fresh}


def _in_line(found: Document) -> tuple[int, str]:
    return -found["priority"], found["_id"]
