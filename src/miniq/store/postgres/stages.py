"""Stages in PostgreSQL: stretches of up to 128 messages as one row of arrays, which a commit turns into messages.

A commit is one transaction. Uploads and commits lock the rows in `stages`; the commit is entered in `dedup`, where a
concurrent commit of the same batch waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs

from miniq.batch import Committed, Stage, StageName
from miniq.errors import StageUnknown, StoreUnavailable
from miniq.ids import RUN
from miniq.message import JSON, Message, PlainBatch
from miniq.store.arguments import Batch, Upload
from miniq.store.contract import StageStore
from miniq.store.decisions import (
    check_listed,
    check_room,
    commit_answer,
    earlier_publication,
    repeated_commit,
    size_of,
    stands_alone,
    stretches,
)
from miniq.store.postgres import blocks, rows
from miniq.store.postgres.access import LONG, Part, Row, execute, existing, pipeline
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.rows import Blobs, escape, unescape
from miniq.topic import Published

COLUMNS = {
    "stage": "int8",
    "part": "int8",
    "nth": "int4",
    "messages": "int4",
    "bytes": "int8",
    "delay": "int8",
    "rank": "int2",
    "recipient": "text",
    "grp": "text",
    "dedup_id": "text",
    "sizes": "int4[]",
    "ttls": "int8[]",
    "abouts": "text[]",
    "content_types": "text[]",
    "bodies": "bytea[]",
}
COPY = f"COPY staged ({', '.join(COLUMNS)}) FROM STDIN (FORMAT BINARY)".encode()
TRIES = 3


class Stages(Part, StageStore):
    """See `StageStore`."""

    async def upload(self, queue: str, upload: Upload, messages: Sequence[Message]) -> tuple[int, int]:
        name = upload.stage
        params = _batch(queue, name.job, name.batch) | {
            "partition": escape(name.partition),
            "attempt": escape(name.attempt),
            "part": upload.part,
            "now": upload.now,
            "until": upload.until,
        }
        size = size_of(messages)
        cut = stretches(messages)

        async def work(connection: Connection) -> tuple[int, int]:
            async with connection.transaction():
                stage, uploaded = await self._stage(connection, params)
                if uploaded is not None:
                    return uploaded
                async with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                    copy.set_types(list(COLUMNS.values()))
                    for row in _stretches(messages, cut):
                        await copy.write_row((stage, upload.part, *row))
                part = {
                    "stage": stage,
                    "messages": len(messages),
                    "bytes": size,
                    "alone": 0 if isinstance(messages, PlainBatch) else sum(map(stands_alone, messages)),
                    "stretches": len(cut),
                }
                await execute(connection, *self._db.step("add_part", params | part))
                return len(messages), size

        return await self._db.connections.call(work, LONG)

    async def commit(self, queue: str, batch: Batch) -> Committed:
        put = batch.put
        params = _batch(queue, batch.job, batch.batch) | {
            "call": escape(batch.name),
            "now": put.now,
            "until": batch.until,
            "dedup_until": put.dedup_until,
            "full": put.keep == "full",
            "least": blocks.LEAST,
            "largest": blocks.BYTES,
        }

        async def work(connection: Connection) -> tuple[Committed, list[str]]:
            async with connection.transaction():
                # Locks in the order of a put: the queue if there is a limit, the call, dedup ids, groups.
                steps = [self._db.step("lock_queue", params)] if put.room is not None else []
                entered = await pipeline(connection, [*steps, self._db.step("claim_commit", params)])
                if not entered:
                    answer = existing(queue, await execute(connection, *self._db.step("call_ids", params)))
                    return repeated_commit(answer[0][0], batch), []
                known = params | {"shelf": entered[0][0]}
                known["stages"] = await self._listed(connection, known, batch)
                parts = await execute(connection, *self._db.step("stage_parts", known))
                names = ["weigh_stages"]
                if any(alone for _, _, _, alone in parts):
                    names = ["claim_staged_dedup", "lock_staged_groups", *names]
                (weighed,) = await pipeline(connection, [self._db.step(name, known) for name in names])
                held, held_bytes, more, more_bytes, recipients = weighed
                check_room(put.room, queue, (held, held_bytes), (more, more_bytes))
                steps = []
                if more:
                    head, place = _split(batch.reserve(RUN * sum(row[2] for row in parts)))
                    for stage, part, count, _ in parts:
                        ids = {"stage": stage, "part": part, "head": head, "first": place}
                        steps.append(self._db.step("commit_part", known | ids, put.keep))
                        place += RUN * count
                steps.append(self._db.step("finish_commit", known | {"answer": commit_answer(more, batch)}))
                await pipeline(connection, steps)
                return Committed(more), recipients

        done, recipients = await self._db.connections.call(work, LONG)
        if not done.repeated:
            self._db.arrived(queue, recipients)
            if done.messages > len(recipients):
                self._db.ready(queue, None, done.messages - len(recipients))
        return done

    async def read(self, queue: str, batch: Batch) -> list[Sequence[Message]] | Published:
        call = batch.put.call
        params = _batch(queue, batch.job, batch.batch) | {
            "call": None if call is None else escape(call.name),
            "now": batch.put.now,
        }

        async def work(connection: Connection) -> list[Sequence[Message]] | Published:
            async with connection.transaction():
                shelf, earlier = await self._earlier(connection, params, batch)
                if earlier is not None:
                    return earlier
                try:
                    stages = await self._listed(connection, params | {"shelf": shelf}, batch)
                except StageUnknown:  # unless another broker has just published and removed them
                    _, earlier = await self._earlier(connection, params, batch)
                    if earlier is None:
                        raise
                    return earlier
                staged = await execute(connection, *self._db.step("staged", {"stages": stages}))
                return [_uploaded(queue, row) for row in staged]

        return await self._db.connections.call(work, LONG)

    async def discard(self, queue: str, job: str, batch: str) -> int:
        return int((await self._db.one("discard_stages", _batch(queue, job, batch)))[0])

    # Inside

    async def _stage(self, connection: Connection, params: dict[str, Any]) -> tuple[int, tuple[int, int] | None]:
        """Lock a stage, creating it if needed: its id, and the messages and bytes of the part if it exists already."""
        steps = [self._db.step(name, params) for name in ("add_stage", "lock_stage", "find_part")]
        for _ in range(TRIES):
            result = existing(params["queue"], await pipeline(connection, steps))
            _, stage, until, messages, size = result[0]
            if stage is None:
                continue  # another call discarded it just now
            if until > params["now"] or until == params["until"]:
                return stage, None if messages is None else (messages, size)
            await execute(connection, *self._db.step("drop_stage", {"stage": stage}))  # it has expired
        raise StoreUnavailable("store: the stage was discarded while it was uploaded; try again")

    async def _earlier(
        self, connection: Connection, params: dict[str, Any], batch: Batch
    ) -> tuple[int, Published | None]:
        """The id of the queue, and the answer to the publication of a batch if it is on record."""
        [[shelf, answer]] = existing(params["queue"], await execute(connection, *self._db.step("find_commit", params)))
        return shelf, earlier_publication(batch, lambda name: answer)

    async def _listed(self, connection: Connection, params: dict[str, Any], batch: Batch) -> list[int]:
        """Lock all stages of a batch: the ids of those to commit, in order."""
        locked = await execute(connection, *self._db.step("lock_stages", params))
        ids = {(unescape(row[1]) or "", unescape(row[2]) or ""): row[0] for row in locked}
        check_listed(batch, dict(zip(ids, (row[3] for row in locked), strict=True)))
        return [ids[stage] for stage in batch.stages]

    async def list(self, queue: str, now: int) -> list[Stage]:
        return [
            Stage(StageName(*(unescape(word) or "" for word in row[:4])), *row[4:])
            for row in await self._db.some("stages", {"queue": queue, "now": now})
            if row[0] is not None
        ]


def _batch(queue: str, job: str, batch: str) -> dict[str, Any]:
    return {"queue": queue, "job": escape(job), "batch": escape(batch)}


def _split(id: str) -> tuple[str, int]:
    """The prefix that all ids of a reserved range share, and the rest as a signed integer."""
    return id[:19], int(id[19:23] + id[24:], 16) - 2**64


def _stretches(messages: Sequence[Message], cut: Sequence[range]) -> Iterator[Row]:
    """The columns of `staged` after the first two."""
    for nth, places in enumerate(cut):
        part = messages[places.start : places.stop]
        if isinstance(part, PlainBatch):
            about = None if part.content_type == JSON else rows.about(part[0])
            abouts = None if about is None else [about] * len(part)
            kinds = None if part.content_type == JSON else [part.content_type] * len(part)
            yield (
                nth, len(part), part.size, part.due_at, -part.priority, None, None, None, None, None, abouts, kinds,
                Blobs(part.bodies),
            )  # fmt: skip
        else:
            yield (nth, *_columns(part))


def _uploaded(queue: str, row: Row) -> Sequence[Message]:
    """The messages of a row of `staged`, as they were uploaded."""
    count, delay, rank, sizes, ttls, abouts, kinds, bodies = row
    if sizes is None:
        return PlainBatch([""] * count, queue, 0, delay, bodies, kinds[0] if kinds else JSON, -rank)
    messages = [
        message
        for about, body in zip(abouts or [None] * count, bodies, strict=True)
        for message in rows.messages(queue, ("", 0, delay, rank, 0, about, body, None))
    ]
    if ttls is None:
        return messages
    return [structs.replace(message, expires_at=ttl) for message, ttl in zip(messages, ttls, strict=True)]


def _columns(messages: Sequence[Message]) -> Row:
    first = messages[0]
    sizes = [message.size for message in messages]
    ttls = [message.expires_at for message in messages]
    abouts = [
        rows.about(message if message.expires_at is None else structs.replace(message, expires_at=0))
        for message in messages
    ]
    kinds = [message.content_type for message in messages]
    return (
        len(messages),
        sum(sizes),
        first.due_at,
        -first.priority,
        escape(first.recipient),
        escape(first.group),
        escape(first.dedup_id),
        sizes,
        ttls if any(ttl is not None for ttl in ttls) else None,
        abouts if any(abouts) else None,
        kinds if any(kind != JSON for kind in kinds) else None,
        Blobs([message.body for message in messages]),
    )
