"""Stages: messages that the tasks of a job upload invisibly, and that one commit makes visible, exactly once.

A task may be attempted more than once, also concurrently; each attempt uploads to its own stage. The coordinator lists
the attempts that count in one commit, named (job, batch). Repeating the commit adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from miniq.batch import Committed, Stage, StageName
from miniq.broker import rules
from miniq.errors import InvalidRequest, TooLarge
from miniq.message import Draft
from miniq.store.arguments import Batch, Upload
from miniq.store.names import is_of_topic

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

PARTS = 2**31


class Stages:
    """The stages of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def upload(self, queue: str, name: StageName, part: int, drafts: Sequence[Draft]) -> tuple[int, int]:
        """Store messages as part `part` of a stage, unless it exists; return their number and bytes."""
        broker = self._broker
        settings = broker.catalog.find(queue) or await broker.catalog.get_or_create(queue)
        check_part(name, part)
        messages = rules.stage(queue, settings, drafts, broker.options.limits)
        now = broker.clock.now()
        until = now + rules.micros(broker.options.stage_ttl)
        return await broker.store.stages.upload(queue, Upload(name, part, now, until), messages)

    async def commit(
        self, queue: str, job: str, batch: str, stages: Sequence[tuple[str, str]], content: str | None = None
    ) -> Committed:
        """Move all messages of these stages, (partition, attempt), to the queue, once per (job, batch). `content`
        identifies them: a repetition with another one is refused."""
        broker = self._broker
        settings = broker.catalog.find(queue) or await broker.catalog.get_or_create(queue)
        check_commit(job, batch, stages, content)
        now = broker.clock.now()
        staged = await self._check_alone(queue, job, batch, set(stages), now)
        put = rules.put(settings, now)
        commit = Batch(job, batch, stages, broker.reserve, put, now + rules.COMMIT_WINDOW, content or "")
        committed = await broker.store.stages.commit(queue, commit)
        added = 0 if committed.repeated else committed.messages
        if added:
            broker.sweeper.scan_again(queue)
        broker.metrics.messages[queue, "sent"] += added
        broker.metrics.messages[queue, "deduplicated"] += max(staged, committed.messages) - added
        return committed

    async def discard(self, queue: str, job: str, batch: str) -> int:
        """Remove all uncommitted stages of a batch, and return how many there were."""
        broker = self._broker
        await broker.catalog.require(queue)
        check_batch(job, batch)
        return await broker.store.stages.discard(queue, job, batch)

    async def list(self, queue: str) -> list[Stage]:
        """All uncommitted stages of a queue."""
        broker = self._broker
        await broker.catalog.require(queue)
        found = await broker.store.stages.list(queue, broker.clock.now())
        return [stage for stage in found if not is_of_topic(stage.name.job)]

    async def _check_alone(self, queue: str, job: str, batch: str, listed: set[tuple[str, str]], now: int) -> int:
        """How many messages the listed stages have; raise if too many of them stand alone."""
        limit = self._broker.options.limits.commit_alone
        found = [
            stage
            for stage in await self._broker.store.stages.list(queue, now)
            if (stage.name.job, stage.name.batch) == (job, batch)
            and (stage.name.partition, stage.name.attempt) in listed
        ]
        alone = sum(stage.alone for stage in found)
        if alone > limit:
            raise TooLarge(
                f"stages: {alone} messages with a recipient, group or dedup_id; at most {limit} in one commit",
                field="stages",
            )
        return sum(stage.messages for stage in found)


def check_part(name: StageName, part: int) -> None:
    """Raise unless these are the names and the number of a part of a stage."""
    check_batch(name.job, name.batch)
    rules.check_label(name.partition, "partition")
    rules.check_label(name.attempt, "attempt")
    rules.check_count(part, "part", 0, PARTS)


def check_commit(job: str, batch: str, stages: Sequence[tuple[str, str]], content: str | None) -> None:
    """Raise unless a commit has valid names and lists each partition once."""
    check_batch(job, batch)
    if content is not None:
        rules.check_label(content, "content")
    seen: dict[str, int] = {}
    for index, (partition, attempt) in enumerate(stages):
        field = f"stages[{index}]"
        rules.check_label(partition, f"{field}.partition")
        rules.check_label(attempt, f"{field}.attempt")
        if partition in seen:
            text = f"{field}: partition {partition!r} is already listed as stages[{seen[partition]}]; list it once"
            raise InvalidRequest(text, field=field)
        seen[partition] = index


def check_batch(job: str, batch: str) -> None:
    """Raise unless these are the names of a job and of a batch."""
    rules.check_label(job, "job")
    rules.check_label(batch, "batch")
