"""Stages in MongoDB: messages uploaded part by part, and committed together, once.

An upload is kept in a few large documents, as MessagePack, and one that describes it. A commit of few messages inserts
them in one transaction, with everything that belongs to a send: dedup records, groups, counts, history.

Many messages do not fit into a transaction. Their blocks are first written under a number that no queue has. Then one
transaction commits them: it notes this number in the queue and remembers the commit. Then they get the number of the
queue, in steps. Any broker that reads a queue with such a note completes these steps first, so a commit is never
visible in part, and is completed even if its broker dies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any
from weakref import WeakValueDictionary

import msgspec
from bson import ObjectId
from msgspec import Struct
from msgspec.structs import replace

from miniq.batch import Committed, Stage, StageName
from miniq.errors import MiniQError, QueueNotFound
from miniq.ids import RUN, id_in_range
from miniq.message import SECOND, Message
from miniq.store.arguments import Batch, Upload
from miniq.store.contract import StageStore
from miniq.store.decisions import (
    StagePart,
    check_listed,
    check_room,
    commit_answer,
    committed,
    earlier_publication,
    repeated_commit,
    size_of,
    stage_of,
    stands_alone,
    stretches,
)
from miniq.store.mongodb import counting, dedup, groups, queries, uploads, writes
from miniq.store.mongodb.blocks import Block, block_of, blocks_for
from miniq.store.mongodb.changes import Numbers, Outdated
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import Document
from miniq.store.mongodb.history import Tools
from miniq.store.mongodb.writes import Written, arrivals
from miniq.store.names import call_record
from miniq.topic import Published

FEW = 5000
FEW_BYTES = 8 * 1024 * 1024
"""The limit of a commit in one transaction, which must fit into the server's cache."""
STEP = 5000
"""Messages that get the number of their queue per transaction."""
PATIENCE = 3600 * SECOND
"""How long messages written for a commit are kept without it."""
LOOKUP = 1000

NAME = ("job", "batch", "partition", "attempt")


class _Plan(Struct):
    """The plan of a commit."""

    parts: Sequence[Document]
    """All parts of the batch, also of stages that are not committed."""
    listed: Sequence[Document]
    known: dict[int, int]
    """Places and sizes of messages that are not added because of their dedup id."""
    count: int
    size: int

    @property
    def few(self) -> bool:
        return self.count <= FEW and self.size <= FEW_BYTES


class _Hidden(Struct):
    """Blocks written for a commit that are not visible yet."""

    number: ObjectId
    of: ObjectId | None = None
    """The number of the queue they were written for."""
    count: int = 0
    last: str = ""
    dedup: dict[str, tuple[str, int]] = {}


class _Shown(Struct):
    """Blocks of a commit that were made visible."""

    number: ObjectId
    recipients: list[str | None] = []
    had: groups.Joined = {}
    more: bool = False
    now: int = 0


class Stages(StageStore):
    """See `StageStore`."""

    def __init__(self, tools: Tools) -> None:
        self._link, self._changes, self._log, self._ready = tools
        self._showing: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changes.show = self.show

    async def upload(self, queue: str, upload: Upload, messages: Sequence[Message]) -> tuple[int, int]:
        chunks = uploads.chunks(messages)
        fresh = {
            "part": upload.part,
            "messages": len(messages),
            "bytes": size_of(messages),
            "alone": sum(map(stands_alone, messages)),
            "runs": len(stretches(messages)),
            "made_at": upload.now,
            "until": upload.until,
        }

        async def work(named: Numbers, session: Session) -> tuple[int, int]:
            db = self._link.database
            serial = named[queue].serial
            stage = {"serial": serial} | msgspec.structs.asdict(upload.stage)
            parts = await db.stages.find(stage, session=session).to_list()
            if parts and _stage_of(parts).until <= upload.now:
                await _remove(db, parts, session)
                parts = []
            for one in parts:
                if one["part"] == upload.part:
                    return int(one["messages"]), int(one["bytes"])
            id = ObjectId()
            if chunks:
                written = [{"serial": serial, "of": id, "place": n, "runs": chunk} for n, chunk in enumerate(chunks)]
                for chunk in written:
                    await db.uploads.insert_one(chunk, session=session)
            # Of two concurrent uploads of a part the unique index rejects one, which then finds the other's.
            await db.stages.insert_one({"_id": id} | stage | fresh, session=session)
            return fresh["messages"], fresh["bytes"]

        return await self._changes.make([queue], work)

    async def commit(self, queue: str, batch: Batch) -> Committed:
        # The transaction may be retried; ids are reserved once.
        given: list[str] = []

        def once(width: int) -> str:
            if not given:
                given.append(batch.reserve(width))
            return given[0]

        asked = replace(batch, reserve=once)
        while True:
            plan = await self._changes.make([queue], partial(self._plan, queue, asked))
            if isinstance(plan, Committed):
                return plan
            found = await (self._few if plan.few else self._many)(queue, asked, plan)
            if found is not None:
                return found
            given.clear()  # the plan is outdated

    async def show(self, queue: str) -> None:
        """Complete large commits: make their messages visible in the queue."""
        lock = self._showing.get(queue)
        if lock is None:
            lock = self._showing[queue] = asyncio.Lock()
        async with lock:
            more = True
            while more:
                shown = await self._changes.make([queue], partial(self._show_some, queue))
                self._ready(queue, shown.recipients)
                self._ready(queue, await groups.joined(self._link, shown.number, shown.had, shown.now))
                more = shown.more

    async def show_all(self) -> None:
        """Complete the commits of all queues, such as those of brokers that died."""
        with self._link.call() as db:
            queues = [one["_id"] async for one in db.queues.find({"showing": {"$exists": True}}, {"_id": 1})]
        for queue in queues:
            with suppress(QueueNotFound):
                await self.show(queue)

    async def read(self, queue: str, batch: Batch) -> list[Sequence[Message]] | Published:
        async def work(named: Numbers, session: Session) -> list[Sequence[Message]] | Published:
            db, serial = self._link.database, named[queue].serial
            call = batch.put.call
            names = [] if call is None else [call_record(call.name)]
            stands = await dedup.find(db, session, serial, names, batch.put.now)
            earlier = earlier_publication(batch, lambda name: stands.get(call_record(name)))
            if earlier is not None:
                return earlier
            query = {"serial": serial, "job": batch.job, "batch": batch.batch}
            listed = _listed(batch, await db.stages.find(query, session=session).to_list())
            return [[message for _, message in run] async for _, run in uploads.read(db, session, listed)]

        return await self._changes.make([queue], work)

    async def discard(self, queue: str, job: str, batch: str) -> int:
        async def work(named: Numbers, session: Session) -> int:
            db = self._link.database
            query = {"serial": named[queue].serial, "job": job, "batch": batch}
            parts = await db.stages.find(query, session=session).to_list()
            await _remove(db, parts, session)
            return len({_name_of(one) for one in parts})

        return await self._changes.make([queue], work)

    async def tidy(self, now: int, limit: int) -> int:
        """Remove expired stages among up to `limit` parts; returns how many."""
        with self._link.call() as db:
            old = await db.stages.find(queries.ran_out(now)).limit(limit).to_list()
        removed = 0
        for key in {(one["serial"], _name_of(one)) for one in old}:
            removed += await self._link.transact(partial(self._run_out, *key, now))
        return removed

    # Inside

    async def _run_out(self, serial: ObjectId, name: StageName, now: int, session: Session) -> int:
        """Remove a stage if all its parts have expired."""
        db = self._link.database
        parts = await db.stages.find({"serial": serial} | msgspec.structs.asdict(name), session=session).to_list()
        if not parts or _stage_of(parts).until > now:
            return 0
        await _remove(db, parts, session)
        return 1

    async def _plan(self, queue: str, asked: Batch, named: Numbers, session: Session) -> Committed | _Plan:
        """Plan a commit; raises if it is not possible. A repeated commit is answered."""
        db = self._link.database
        number, serial, now = named[queue].number, named[queue].serial, asked.put.now
        record = call_record(asked.name)
        before = await dedup.find(db, session, serial, [record], now)
        if record in before:
            return repeated_commit(before[record], asked)
        query = {"serial": serial, "job": asked.job, "batch": asked.batch}
        parts = await db.stages.find(query, session=session).to_list()
        listed = _listed(asked, parts)
        known = await self._known(db, session, serial, listed, now)
        count = sum(int(one["messages"]) for one in listed) - len(known)
        size = sum(int(one["bytes"]) for one in listed) - sum(known.values())
        if asked.put.room is not None:
            check_room(asked.put.room, queue, await counting.total(db, session, number), (count, size))
        return _Plan(parts, listed, known, count, size)

    async def _few(self, queue: str, asked: Batch, plan: _Plan) -> Committed | None:
        found = await self._changes.make([queue], partial(self._commit_few, queue, asked))
        if found is None:
            return None
        done, messages, joined = found
        if joined is not None and messages:
            with self._link.call() as db:
                await db.blocks.update_one({"_id": joined[0]}, {"$max": {"last_id": messages[-1].id}})
            self._ready(queue, [message.recipient for message in messages])
            self._ready(queue, await groups.joined(self._link, *joined, asked.put.now))
        return done

    async def _many(self, queue: str, asked: Batch, plan: _Plan) -> Committed | None:
        hidden = _Hidden(ObjectId())
        try:
            await self._write(queue, asked, plan, hidden)
            if hidden.of is not None and hidden.last:
                with self._link.call() as db:
                    await db.blocks.update_one({"_id": hidden.of}, {"$max": {"last_id": hidden.last}})
            done = await self._changes.make([queue], partial(self._commit_many, queue, asked, plan, hidden))
        except MiniQError:
            with suppress(MiniQError), self._link.call() as db:
                await db.publishes.delete_one({"_id": hidden.number})
            raise
        await self.show(queue)
        return done

    async def _finish(self, queue: str, asked: Batch, plan: _Plan, named: Numbers, session: Session) -> None:
        """The common end of all commits: remember the commit, and remove the stages."""
        db = self._link.database
        if asked.put.room is not None and plan.count:
            query = {"_id": named[queue].number}
            if not (await db.blocks.update_one(query, {"$inc": {"turn": 1}}, session=session)).matched_count:
                raise Outdated(queue)
        record = call_record(asked.name)
        await dedup.remember(
            db, session, named[queue].serial, {record: (commit_answer(plan.count, asked), asked.until)}
        )
        await _remove(db, plan.parts, session)

    async def _commit_few(
        self, queue: str, asked: Batch, named: Numbers, session: Session
    ) -> tuple[Committed, list[Message], tuple[ObjectId, groups.Joined] | None] | None:
        """Commit in one transaction: the answer, the messages, and the groups that had a head; None if it
        has outgrown its plan."""
        db = self._link.database
        plan = await self._plan(queue, asked, named, session)
        if isinstance(plan, Committed):
            return plan, [], None
        if not plan.few:
            return None
        number, now = named[queue].number, asked.put.now
        some = [fresh async for fresh in self._messages(db, session, asked, plan)]
        messages = [message for fresh in some for message in fresh]
        had: groups.Joined = {}
        if messages:
            await self._link.patiently(partial(groups.expect, db, number, messages, now))
            blocks = [block for fresh in some for block in blocks_for(fresh, number, cut=True)]
            had = await groups.join(db, session, number, blocks)
            told = arrivals(messages, now, asked.put.keep)
            await db.blocks.insert_many(writes.insert(blocks, now, told), session=session)
            await dedup.remember(db, session, named[queue].serial, _dedup_ids(asked, messages))
        await self._finish(queue, asked, plan, named, session)
        return Committed(plan.count), messages, (number, had)

    async def _write(self, queue: str, asked: Batch, plan: _Plan, hidden: _Hidden) -> None:
        """Write messages under a number that no queue has."""
        named = await self._changes.know(queue)
        hidden.of = named.number
        with self._link.call() as db:
            # Blocks with this number are garbage once this document is gone.
            until = asked.put.now + PATIENCE
            await db.publishes.insert_one({"_id": hidden.number, "serial": named.serial, "until": until})
            async for fresh in self._messages(db, None, asked, plan):
                blocks = blocks_for(fresh, named.number, cut=True)
                for block in blocks:
                    block.number, block.waits = hidden.number, True
                await db.blocks.insert_many(writes.insert(blocks, asked.put.now), ordered=False)
                hidden.dedup |= _dedup_ids(asked, fresh)
                hidden.count += len(fresh)
                hidden.last = fresh[-1].id

    async def _commit_many(
        self, queue: str, asked: Batch, plan: _Plan, hidden: _Hidden, named: Numbers, session: Session
    ) -> Committed | None:
        """Commit the written messages; None if the plan is outdated and they must be written again."""
        db = self._link.database
        now = await self._plan(queue, asked, named, session)
        ours = await db.publishes.delete_one({"_id": hidden.number}, session=session)
        if isinstance(now, Committed):
            return now
        same = [one["_id"] for one in now.listed] == [one["_id"] for one in plan.listed] and now.known == plan.known
        if not ours.deleted_count or not same or hidden.count != plan.count or hidden.of != named[queue].number:
            return None
        note = {"number": hidden.number, "now": asked.put.now, "keep": asked.put.keep}
        queues = {"_id": queue, "number": named[queue].number}
        if not (await db.queues.update_one(queues, {"$push": {"showing": note}}, session=session)).matched_count:
            raise Outdated(queue)
        await dedup.remember(db, session, named[queue].serial, hidden.dedup)
        await self._finish(queue, asked, now, named, session)
        return Committed(plan.count)

    async def _show_some(self, queue: str, named: Numbers, session: Session) -> _Shown:
        """Make some blocks of the first noted commit visible."""
        db = self._link.database
        number = named[queue].number
        found = await db.queues.find_one({"_id": queue, "number": number}, {"showing": 1}, session=session)
        if found is None:
            raise Outdated(queue)
        if not found.get("showing"):
            return _Shown(number)
        note = found["showing"][0]
        now, keep = int(note["now"]), note["keep"]
        blocks: list[Block] = []
        shown = _Shown(number)
        cursor = db.blocks.find(queries.of_number(note["number"]), queries.WHOLE, session=session, hint="queue")
        async with cursor.batch_size(20):
            async for one in cursor:
                if len(shown.recipients) >= STEP:
                    shown.more = True
                    break
                blocks.append(block_of(one))
                shown.recipients += [blocks[-1].lane or None] * len(blocks[-1].ids)
        blocks.sort(key=lambda block: block.ids[0])
        messages = [message for block in blocks for message in block.messages]
        for block in blocks:
            block.number, block.waits = number, False
        await self._link.patiently(partial(groups.expect, db, number, messages, now))
        shown.had = await groups.join(db, session, number, blocks)
        told = arrivals(messages, now, keep) or {}
        written = [Written(block, now, [event for id in block.ids for event in told.get(id, ())]) for block in blocks]
        await writes.save_all(db, session, queue, written)
        if not shown.more:
            done: dict[str, Any] = {"$pull": {"showing": {"number": note["number"]}}}
            if len(found["showing"]) == 1:
                done = {"$unset": {"showing": ""}}
            await db.queues.update_one({"_id": queue}, done, session=session)
        shown.more = shown.more or len(found["showing"]) > 1
        shown.now = now
        return shown

    async def _messages(
        self, db: Database, session: Session | None, asked: Batch, plan: _Plan
    ) -> AsyncIterator[list[Message]]:
        """The messages to commit, with ids, chunk by chunk."""
        if not plan.count:
            return
        first = asked.reserve(RUN * sum(int(one["runs"]) for one in plan.listed))
        async for at, run in uploads.read(db, session, plan.listed):
            fresh = [
                committed(message, id_in_range(first, at + place), asked.put.now)
                for place, message in run
                if at + place not in plan.known
            ]
            if fresh:
                yield fresh

    async def _known(
        self, db: Database, session: Session, serial: ObjectId, parts: Sequence[Document], now: int
    ) -> dict[int, int]:
        """Places and sizes of messages whose dedup id is on record or appeared earlier in the same commit."""
        if not any(one["alone"] for one in parts):
            return {}
        seen: set[str] = set()
        found: dict[int, int] = {}
        async for at, run in uploads.read(db, session, parts):
            named = [(at + place, message) for place, message in run if message.dedup_id is not None]
            for start in range(0, len(named), LOOKUP):
                some = named[start : start + LOOKUP]
                stands = await dedup.find(db, session, serial, [one.dedup_id or "" for _, one in some], now)
                for place, message in some:
                    if message.dedup_id in seen or message.dedup_id in stands:
                        found[place] = message.size
                    seen.add(message.dedup_id or "")
        return found

    async def list(self, queue: str, now: int) -> list[Stage]:
        with self._link.call() as db:
            serial = (await self._changes.ask(db, queue)).serial
            parts = await db.stages.find({"serial": serial}).sort([(field, 1) for field in NAME]).to_list()
        found = [_stage_of([*some]) for _, some in groupby(parts, key=_name_of)]
        return [stage for stage in found if stage.until > now]


def _listed(asked: Batch, parts: Sequence[Document]) -> Sequence[Document]:
    """The parts of the stages to commit, in order."""
    by_stage: dict[tuple[str, str], list[Document]] = {}
    for one in parts:
        by_stage.setdefault((one["partition"], one["attempt"]), []).append(one)
    check_listed(asked, {stage: _stage_of(some).until for stage, some in by_stage.items()})
    return [one for stage in asked.stages for one in sorted(by_stage[stage], key=lambda one: int(one["part"]))]


async def _remove(db: Database, parts: Sequence[Document], session: Session) -> None:
    """Remove parts with their uploads."""
    if parts:
        ids = [one["_id"] for one in parts]
        await db.uploads.delete_many({"of": {"$in": ids}}, session=session)
        await db.stages.delete_many({"_id": {"$in": ids}}, session=session)


def _dedup_ids(asked: Batch, fresh: Sequence[Message]) -> dict[str, tuple[str, int]]:
    return {one.dedup_id: (one.id, asked.put.dedup_until) for one in fresh if one.dedup_id is not None}


def _name_of(found: Document) -> StageName:
    return StageName(*(found[field] for field in NAME))


def _stage_of(parts: Sequence[Document]) -> Stage:
    fields = StagePart.__struct_fields__
    return stage_of(_name_of(parts[0]), [StagePart(*(int(part[field]) for field in fields)) for part in parts])
