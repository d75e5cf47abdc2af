"""Stages in PostgreSQL: stretches of up to 128 messages as one row of arrays, which a commit turns into messages.

All of a commit is one transaction. Rows in `stages` are locked by those who upload and by those who commit; the
commit itself is entered in `dedup`, where a second one waits for the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs

from miniq.errors import StoreUnavailable
from miniq.ids import RUN
from miniq.message import JSON, Committed, Message, PlainBatch, Stage, StageName
from miniq.store.arguments import Batch, Upload
from miniq.store.contract import StageStore, no_queue
from miniq.store.decisions import (
    check_listed,
    check_room,
    commit_said,
    committed_before,
    size_of,
    stands_alone,
    stretches,
)
from miniq.store.postgres import parcels, rows
from miniq.store.postgres.access import LONG, Access, Row, execute, pipeline
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.rows import Blobs, escape, unescape

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


class Stages(StageStore):
    """See `StageStore`."""

    def __init__(self, db: Access) -> None:
        self._db = db

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
                stage, there = await self._stage(connection, params)
                if there is not None:
                    return there
                async with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                    copy.set_types(list(COLUMNS.values()))
                    for row in _stretches(messages, cut):
                        await copy.write_row((stage, upload.part, *row))
                told = {
                    "stage": stage,
                    "messages": len(messages),
                    "bytes": size,
                    "alone": 0 if isinstance(messages, PlainBatch) else sum(map(stands_alone, messages)),
                    "stretches": len(cut),
                }
                await execute(connection, *self._db.step("add_part", params | told))
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
            "least": parcels.LEAST,
            "largest": parcels.BYTES,
        }

        async def work(connection: Connection) -> tuple[Committed, list[str]]:
            async with connection.transaction():
                # In the order of a put: the queue if there is a limit, the call, dedup ids, groups.
                steps = [self._db.step("lock_queue", params)] if put.room is not None else []
                entered = await pipeline(connection, [*steps, self._db.step("claim_commit", params)])
                if not entered:
                    said = await execute(connection, *self._db.step("call_ids", params))
                    if not said:
                        raise no_queue(queue)
                    return committed_before(said[0][0]), []
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
                    for stage, part, cuts, _ in parts:
                        where = {"stage": stage, "part": part, "head": head, "first": place}
                        steps.append(self._db.step("commit_part", known | where, put.keep))
                        place += RUN * cuts
                steps.append(self._db.step("finish_commit", known | {"answer": commit_said(more)}))
                await pipeline(connection, steps)
                return Committed(more), recipients

        done, recipients = await self._db.connections.call(work, LONG)
        if not done.repeated:
            self._db.arrived(queue, recipients)
            if done.messages > len(recipients):
                self._db.ready(queue, None, done.messages - len(recipients))
        return done

    async def discard(self, queue: str, job: str, batch: str) -> int:
        return int((await self._db.one("discard_stages", _batch(queue, job, batch)))[0])

    # Inside

    async def _stage(self, connection: Connection, params: dict[str, Any]) -> tuple[int, tuple[int, int] | None]:
        """The id of a stage, which is locked, and how much is in the part if it is there already."""
        steps = [self._db.step(name, params) for name in ("add_stage", "lock_stage", "find_part")]
        for _ in range(TRIES):
            found = await pipeline(connection, steps)
            if not found:
                raise no_queue(params["queue"])
            _, stage, until, messages, size = found[0]
            if stage is None:
                continue  # somebody discarded it just now
            if until > params["now"] or until == params["until"]:
                return stage, None if messages is None else (messages, size)
            await execute(connection, *self._db.step("drop_stage", {"stage": stage}))  # it has run out
        raise StoreUnavailable("store: the stage was discarded while it was uploaded; try again")

    async def _listed(self, connection: Connection, params: dict[str, Any], batch: Batch) -> list[int]:
        """The ids of stages in the order of the list; all of the batch are locked."""
        found = await execute(connection, *self._db.step("lock_stages", params))
        ids = {(unescape(row[1]) or "", unescape(row[2]) or ""): row[0] for row in found}
        check_listed(batch, dict(zip(ids, (row[3] for row in found), strict=True)))
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
    """The part of an id that all of a reserved range share, and the rest as the server counts: with a sign."""
    return id[:19], int(id[19:23] + id[24:], 16) - 2**64


def _stretches(messages: Sequence[Message], cut: Sequence[range]) -> Iterator[Row]:
    """The columns of `staged` after the first two."""
    for nth, places in enumerate(cut):
        some = messages[places.start : places.stop]
        if isinstance(some, PlainBatch):
            about = None if some.content_type == JSON else rows.about(some[0])
            abouts = None if about is None else [about] * len(some)
            kinds = None if some.content_type == JSON else [some.content_type] * len(some)
            yield (
                nth, len(some), some.size, some.due_at, -some.priority, None, None, None, None, None, abouts, kinds,
                Blobs(some.bodies),
            )  # fmt: skip
        else:
            yield (nth, *_columns(some))


def _columns(some: Sequence[Message]) -> Row:
    first = some[0]
    sizes = [message.size for message in some]
    ttls = [message.expires_at for message in some]
    abouts = [
        rows.about(message if message.expires_at is None else structs.replace(message, expires_at=0))
        for message in some
    ]
    kinds = [message.content_type for message in some]
    return (
        len(some),
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
        Blobs([message.body for message in some]),
    )
