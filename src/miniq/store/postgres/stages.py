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
from miniq.message import JSON, Committed, History, Message, PlainBatch, Stage, StageName
from miniq.store.contract import Reserve, Room, full, no_stage, stands_alone, stretches
from miniq.store.names import commit_name
from miniq.store.postgres import parcels, rows
from miniq.store.postgres.access import LONG, Access, Row, execute, no_queue, pipeline
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


class Stages(Access):
    """The part of the store that keeps stages."""

    async def stage(
        self, queue: str, name: StageName, part: int, messages: Sequence[Message], *, now: int, until: int
    ) -> tuple[int, int]:
        params = _batch(queue, name.job, name.batch) | {
            "partition": escape(name.partition),
            "attempt": escape(name.attempt),
            "part": part,
            "now": now,
            "until": until,
        }
        size = messages.size if isinstance(messages, PlainBatch) else sum(message.size for message in messages)
        cut = stretches(messages)

        async def work(connection: Connection) -> tuple[int, int]:
            async with connection.transaction():
                stage, there = await self._stage(connection, params, queue)
                if there is not None:
                    return there
                async with connection.cursor() as cursor, cursor.copy(COPY) as copy:
                    copy.set_types(list(COLUMNS.values()))
                    for row in _stretches(messages, cut):
                        await copy.write_row((stage, part, *row))
                told = {
                    "stage": stage,
                    "messages": len(messages),
                    "bytes": size,
                    "alone": 0 if isinstance(messages, PlainBatch) else sum(map(stands_alone, messages)),
                    "stretches": len(cut),
                }
                await execute(connection, *self._step("add_part", params | told))
                return len(messages), size

        return await self._connections.call(work, LONG)

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
        params = _batch(queue, job, batch) | {
            "call": escape(commit_name(job, batch)),
            "now": now,
            "until": until,
            "dedup_until": dedup_until,
            "full": keep == "full",
            "least": parcels.LEAST,
            "largest": parcels.BYTES,
        }

        async def work(connection: Connection) -> tuple[Committed, list[str]]:
            async with connection.transaction():
                # In the order of a put: the queue if there is a limit, the call, dedup ids, groups.
                steps = [self._step("lock_queue", params)] if room is not None else []
                entered = await pipeline(connection, [*steps, self._step("claim_commit", params)])
                if not entered:
                    said = await execute(connection, *self._step("call_ids", params))
                    if not said:
                        raise no_queue(queue)
                    return Committed(int(said[0][0]), repeated=True), []
                known = params | {"shelf": entered[0][0]}
                known["stages"] = await self._listed(connection, known, job, batch, stages, now)
                parts = await execute(connection, *self._step("stage_parts", known))
                steps = [self._step("weigh_stages", known)]
                if any(alone for _, _, _, alone in parts):
                    steps = [self._step("claim_staged_dedup", known), self._step("lock_staged_groups", known), *steps]
                (weighed,) = await pipeline(connection, steps)
                held, held_bytes, more, more_bytes, recipients = weighed
                refusal = full(room, queue, held, held_bytes, more, more_bytes) if room is not None and more else None
                if refusal is not None:
                    raise refusal
                steps = []
                if more:
                    head, place = _split(reserve(RUN * sum(row[2] for row in parts)))
                    for stage, part, cuts, _ in parts:
                        where = {"stage": stage, "part": part, "head": head, "first": place}
                        steps.append(self._step("commit_part", known | where, keep))
                        place += RUN * cuts
                steps.append(self._step("finish_commit", known | {"answer": str(more)}))
                await pipeline(connection, steps)
                return Committed(more), recipients

        done, recipients = await self._connections.call(work, LONG)
        if not done.repeated:
            self._arrived(queue, recipients)
            if done.messages > len(recipients):
                self._ready(queue, None, done.messages - len(recipients))
        return done

    async def discard_stages(self, queue: str, job: str, batch: str) -> int:
        return int((await self._one("discard_stages", _batch(queue, job, batch), queue))[0])

    async def stages(self, queue: str, *, now: int) -> list[Stage]:
        found = await self._all("stages", {"queue": queue, "now": now})
        if not found:
            raise no_queue(queue)
        return [
            Stage(StageName(*(unescape(word) or "" for word in row[:4])), *row[4:])
            for row in found
            if row[0] is not None
        ]

    # Inside

    async def _stage(
        self, connection: Connection, params: dict[str, Any], queue: str
    ) -> tuple[int, tuple[int, int] | None]:
        """The id of a stage, which is locked, and how much is in the part if it is there already."""
        steps = [self._step(name, params) for name in ("add_stage", "lock_stage", "find_part")]
        for _ in range(TRIES):
            found = await pipeline(connection, steps)
            if not found:
                raise no_queue(queue)
            _, stage, until, messages, size = found[0]
            if stage is None:
                continue  # somebody discarded it just now
            if until > params["now"] or until == params["until"]:
                return stage, None if messages is None else (messages, size)
            await execute(connection, *self._step("drop_stage", {"stage": stage}))  # it has run out
        raise StoreUnavailable("store: the stage was discarded while it was uploaded; try again")

    async def _listed(
        self,
        connection: Connection,
        params: dict[str, Any],
        job: str,
        batch: str,
        stages: Sequence[tuple[str, str]],
        now: int,
    ) -> list[int]:
        """The ids of stages in the order of the list; all of the batch are locked."""
        found = await execute(connection, *self._step("lock_stages", params))
        there = {(unescape(row[1]), unescape(row[2])): row[0] for row in found if row[3] > now}
        for stage in stages:
            if stage not in there:
                raise no_stage(job, batch, stage)
        return [there[stage] for stage in stages]


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
