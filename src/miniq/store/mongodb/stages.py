"""Stages in MongoDB: messages that are uploaded part by part, unseen, and published many at once, once.

An upload is kept in a few large documents, as MessagePack, and one that says what it is. A publish makes messages of
them in one transaction, chunk by chunk, with everything that belongs to a send: dedup records, groups, counts, history.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

import msgspec
from bson import ObjectId
from msgspec import Struct

from miniq.errors import TooLarge
from miniq.ids import RUN, id_in_range
from miniq.message import History, Message, Parcel, Published, Stage, StageName
from miniq.store import events
from miniq.store.base import Reserve, Room, full, no_stage, published, stands_alone, stretches
from miniq.store.mongodb import dedup, groups, queries, tallies
from miniq.store.mongodb.changes import Changes, Numbers, check_number
from miniq.store.mongodb.documents import Document, message_document
from miniq.store.mongodb.history import HistoryLog
from miniq.store.mongodb.link import Database, Link, Session

CHUNK_BYTES = 1024 * 1024
"""A chunk ends when it has so many bytes. What is written at once in a publish, too."""
CHUNK_MESSAGES = 5000
MOST = 25_000
"""Most messages in one publish: the server's cache has to hold all that its transaction writes."""
LOOKUP = 1000

NAME = ("job", "batch", "partition", "attempt")


class _Run(Struct, array_like=True, gc=False):
    """Neighbours in an upload. If there are `bodies`, the one message is what they have in common."""

    at: int
    """The place of the first among the ids of the part: see `stretches`."""
    messages: list[Message]
    bodies: list[bytes] | None = None

    def each(self) -> Iterator[tuple[int, Message]]:
        """Every message with its place."""
        if self.bodies is None:
            return enumerate(self.messages, self.at)
        [like] = self.messages
        alike = Parcel(
            [""] * len(self.bodies), like.queue, 0, like.due_at, self.bodies, like.content_type, like.priority
        )
        return enumerate(alike, self.at)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Run]).decode


class _Publish(Struct, frozen=True):
    """What `Store.publish` was asked for."""

    job: str
    batch: str
    stages: Sequence[tuple[str, str]]
    now: int
    until: int
    reserve: Reserve
    dedup_until: int
    room: Room | None
    keep: History


class Stages:
    """The stages of all queues."""

    def __init__(
        self,
        link: Link,
        changes: Changes,
        log: HistoryLog,
        ready: Callable[[str, Iterable[str | None]], None],
    ) -> None:
        self._link = link
        self._changes = changes
        self._log = log
        self._ready = ready

    async def upload(
        self, queue: str, name: StageName, part: int, messages: Sequence[Message], now: int, until: int
    ) -> tuple[int, int]:
        """Keep a part, unless it is there."""
        chunks = [_encode(chunk) for chunk in _chunks(messages)]
        fresh = {
            "part": part,
            "messages": len(messages),
            "bytes": sum(message.size for message in messages),
            "alone": sum(map(stands_alone, messages)),
            "runs": len(stretches(messages)),
            "made_at": now,
            "until": until,
        }

        async def work(named: Numbers, slot: str, session: Session) -> tuple[int, int]:
            db = self._link.database
            serial = named[queue].serial
            stage = {"serial": serial} | msgspec.structs.asdict(name)
            parts = await db.stages.find(stage, session=session).to_list()
            await check_number(db, session, queue, named[queue].number)
            if parts and max(one["until"] for one in parts) <= now:
                await _remove(db, parts, session)
                parts = []
            for one in parts:
                if one["part"] == part:
                    return int(one["messages"]), int(one["bytes"])
            id = ObjectId()
            if chunks:
                written = [{"serial": serial, "of": id, "place": n, "runs": chunk} for n, chunk in enumerate(chunks)]
                for chunk in written:
                    await db.uploads.insert_one(chunk, session=session)
            # Of two that upload the same part at once the index refuses one, which then finds the other's.
            await db.stages.insert_one({"_id": id} | stage | fresh, session=session)
            return fresh["messages"], fresh["bytes"]

        return await self._changes.make([queue], work)

    async def publish(
        self,
        queue: str,
        job: str,
        batch: str,
        stages: Sequence[tuple[str, str]],
        now: int,
        until: int,
        reserve: Reserve,
        dedup_until: int,
        room: Room | None,
        keep: History,
    ) -> Published:
        # The transaction may have to be made again; ids are set aside once.
        given: list[str] = []

        def once(width: int) -> str:
            if not given:
                given.append(reserve(width))
            return given[0]

        asked = _Publish(job, batch, stages, now, until, once, dedup_until, room, keep)
        done, recipients = await self._changes.make([queue], partial(self._publish, queue, asked))
        self._ready(queue, recipients)
        return done

    async def discard(self, queue: str, job: str, batch: str) -> int:
        async def work(named: Numbers, slot: str, session: Session) -> int:
            db = self._link.database
            await check_number(db, session, queue, named[queue].number)
            query = {"serial": named[queue].serial, "job": job, "batch": batch}
            parts = await db.stages.find(query, session=session).to_list()
            await _remove(db, parts, session)
            return len({_name_of(one) for one in parts})

        return await self._changes.make([queue], work)

    async def all(self, queue: str, now: int) -> list[Stage]:
        with self._link.call() as db:
            serial = (await self._changes.ask(db, queue)).serial
            order = [(field, 1) for field in NAME]
            parts = await db.stages.find({"serial": serial}).sort(order).to_list()
        found: list[Stage] = []
        for name, some in groupby(parts, key=_name_of):
            of = list(some)
            stage = Stage(
                name,
                len(of),
                sum(int(one["messages"]) for one in of),
                sum(int(one["bytes"]) for one in of),
                min(int(one["made_at"]) for one in of),
                max(int(one["until"]) for one in of),
                sum(int(one["alone"]) for one in of),
            )
            if stage.until > now:
                found.append(stage)
        return found

    async def tidy(self, now: int, limit: int) -> int:
        """Remove stages that ran out, by looking at up to `limit` parts; say how many."""
        with self._link.call() as db:
            old = await db.stages.find(queries.ran_out(now)).limit(limit).to_list()
        removed = 0
        for key in {(one["serial"], _name_of(one)) for one in old}:
            removed += await self._link.transact(partial(self._run_out, *key, now))
        return removed

    # Inside

    async def _run_out(self, serial: ObjectId, name: StageName, now: int, session: Session) -> int:
        """Remove a stage if the last of its parts ran out."""
        db = self._link.database
        parts = await db.stages.find({"serial": serial} | msgspec.structs.asdict(name), session=session).to_list()
        if not parts or max(one["until"] for one in parts) > now:
            return 0
        await _remove(db, parts, session)
        return 1

    async def _publish(
        self, queue: str, asked: _Publish, named: Numbers, slot: str, session: Session
    ) -> tuple[Published, Sequence[str | None]]:
        """The whole change, and the recipients of what was added."""
        db = self._link.database
        number, serial, now = named[queue].number, named[queue].serial, asked.now
        record = dedup.publish_name(asked.job, asked.batch)
        before = await dedup.find(db, session, serial, [record], now)
        if record in before:
            await tallies.add(db, session, queue, number, slot, 0, 0)
            return Published(int(before[record]), repeated=True), []
        all_parts = await db.stages.find(
            {"serial": serial, "job": asked.job, "batch": asked.batch}, session=session
        ).to_list()
        parts = _listed(asked, all_parts)
        known = await self._known(db, session, serial, parts, now)
        count = sum(int(one["messages"]) for one in parts) - len(known)
        size = sum(int(one["bytes"]) for one in parts) - sum(known.values())
        if count > MOST:
            raise TooLarge(
                f"stages: {count} messages; at most {MOST} in one publish to a queue in MongoDB, use smaller batches",
                field="stages",
            )
        if asked.room is not None and count:
            await tallies.take_turn(db, session, queue, number)
            refusal = full(asked.room, queue, *await tallies.total(db, session, number), count, size)
            if refusal is not None:
                raise refusal
        last = ""
        recipients: list[str | None] = []
        if count:
            first = asked.reserve(RUN * sum(int(one["runs"]) for one in parts))
            async for at, run in _runs(db, session, parts):
                fresh = [
                    published(message, id_in_range(first, at + place), now)
                    for place, message in run
                    if at + place not in known
                ]
                if fresh:
                    await self._add(db, session, number, serial, asked, fresh)
                    last = fresh[-1].id
                    recipients += [message.recipient for message in fresh]
        await tallies.add(db, session, queue, number, slot, count, size, last)
        await dedup.remember(db, session, serial, {record: (str(count), asked.until)})
        await _remove(db, all_parts, session)
        return Published(count), recipients

    async def _add(
        self,
        db: Database,
        session: Session,
        number: ObjectId,
        serial: ObjectId,
        asked: _Publish,
        fresh: list[Message],
    ) -> None:
        """Let some messages come."""
        waiting = await groups.join(db, session, number, fresh)
        documents = [message_document(one, number, asked.now, one.id in waiting) for one in fresh]
        await db.messages.insert_many(documents, session=session)
        ids = {one.dedup_id: (one.id, asked.dedup_until) for one in fresh if one.dedup_id is not None}
        await dedup.remember(db, session, serial, ids)
        if asked.keep != "off":
            await self._log.append(db, session, [events.sent(one, asked.now, None, asked.keep) for one in fresh])

    async def _known(
        self, db: Database, session: Session, serial: ObjectId, parts: Sequence[Document], now: int
    ) -> dict[int, int]:
        """Places of messages whose dedup ids stand or came before in the same publish, and their sizes."""
        if not any(one["alone"] for one in parts):
            return {}
        seen: set[str] = set()
        found: dict[int, int] = {}
        async for at, run in _runs(db, session, parts):
            named = [(at + place, message) for place, message in run if message.dedup_id is not None]
            for start in range(0, len(named), LOOKUP):
                some = named[start : start + LOOKUP]
                stands = await dedup.find(db, session, serial, [one.dedup_id or "" for _, one in some], now)
                for place, message in some:
                    if message.dedup_id in seen or message.dedup_id in stands:
                        found[place] = message.size
                    seen.add(message.dedup_id or "")
        return found


def _listed(asked: _Publish, parts: Sequence[Document]) -> list[Document]:
    """The parts of the stages that are to be published, in order."""
    by_stage: dict[tuple[str, str], list[Document]] = {}
    for one in parts:
        by_stage.setdefault((one["partition"], one["attempt"]), []).append(one)
    found: list[Document] = []
    for stage in asked.stages:
        of = by_stage.get(stage, [])
        if not of or max(one["until"] for one in of) <= asked.now:
            raise no_stage(asked.job, asked.batch, stage)
        found += sorted(of, key=lambda one: int(one["part"]))
    return found


async def _runs(
    db: Database, session: Session, parts: Sequence[Document]
) -> AsyncIterator[tuple[int, list[tuple[int, Message]]]]:
    """The messages of parts, chunk by chunk, with their places: those of a part count from the first number."""
    at = 0
    for part in parts:
        async for chunk in db.uploads.find(queries.chunks(part["_id"]), session=session).sort("place").batch_size(4):
            yield at, [one for run in _decode(chunk["runs"]) for one in run.each()]
        at += RUN * int(part["runs"])


async def _remove(db: Database, parts: Sequence[Document], session: Session) -> None:
    """Remove parts with what was uploaded."""
    if parts:
        ids = [one["_id"] for one in parts]
        await db.uploads.delete_many({"of": {"$in": ids}}, session=session)
        await db.stages.delete_many({"_id": {"$in": ids}}, session=session)


def _chunks(messages: Sequence[Message]) -> Iterator[list[_Run]]:
    """Messages in chunks that each fit into a document."""
    chunk: list[_Run] = []
    size = count = 0
    for place, stretch in enumerate(stretches(messages)):
        start = stretch.start
        for here in stretch:
            size += 200 + messages[here].size
            count += 1
            if size >= CHUNK_BYTES or count >= CHUNK_MESSAGES:
                chunk.append(_run(place * RUN + start - stretch.start, messages[start : here + 1]))
                yield chunk
                chunk, size, count, start = [], 0, 0, here + 1
        if start < stretch.stop:
            chunk.append(_run(place * RUN + start - stretch.start, messages[start : stretch.stop]))
    if chunk:
        yield chunk


def _run(at: int, some: Sequence[Message]) -> _Run:
    if isinstance(some, Parcel):
        like = Message("", some.queue, 0, some.due_at, b"", some.content_type, some.priority)
        return _Run(at, [like], some.bodies)
    return _Run(at, list(some))


def _name_of(found: Document) -> StageName:
    return StageName(*(found[field] for field in NAME))
