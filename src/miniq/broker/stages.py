"""Stages: messages that are uploaded by the tasks of a job, unseen, and committed all at once, once.

A task may be tried more than once, also at the same time; each try uploads to a stage of its own. Who knows which
tries count lists them in one commit, named (job, batch), which may be repeated and adds nothing then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from miniq.broker import rules
from miniq.errors import InvalidRequest, TooLarge
from miniq.message import Committed, Draft, Stage, StageName
from miniq.store.arguments import Batch, Upload

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

PARTS = 2**31


class Stages:
    """The stages of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def upload(self, queue: str, name: StageName, part: int, drafts: Sequence[Draft]) -> tuple[int, int]:
        """Keep messages as part `part` of a stage: how many, and their bytes. A part that is there already stays."""
        broker = self._broker
        settings = broker.catalog.find(queue) or await broker.catalog.first_use(queue)
        _check_batch(name.job, name.batch)
        rules.check_label(name.partition, "partition")
        rules.check_label(name.attempt, "attempt")
        rules.check_count(part, "part", 0, PARTS)
        messages = rules.stage(queue, settings, drafts, broker.options.limits)
        now = broker.clock.now()
        until = now + rules.micros(broker.options.stage_ttl)
        return await broker.store.stages.upload(queue, Upload(name, part, now, until), messages)

    async def commit(self, queue: str, job: str, batch: str, stages: Sequence[tuple[str, str]]) -> Committed:
        """Make all messages of some stages, (partition, attempt), part of the queue, once per (job, batch)."""
        broker = self._broker
        settings = broker.catalog.find(queue) or await broker.catalog.first_use(queue)
        _check_batch(job, batch)
        seen: dict[str, int] = {}
        for place, (partition, attempt) in enumerate(stages):
            rules.check_label(partition, f"stages[{place}].partition")
            rules.check_label(attempt, f"stages[{place}].attempt")
            if partition in seen:
                raise InvalidRequest(
                    f"stages[{place}]: partition {partition!r} is listed already as stages[{seen[partition]}]; "
                    "list one attempt of each",
                    field=f"stages[{place}]",
                )
            seen[partition] = place
        now = broker.clock.now()
        await self._check_alone(queue, job, batch, set(stages), now)
        put = rules.put(settings, now)
        asked = Batch(job, batch, stages, broker.reserve, put, now + rules.COMMIT_WINDOW)
        done = await broker.store.stages.commit(queue, asked)
        if not done.repeated:
            broker.sweeper.look_again(queue)
            broker.metrics.messages[queue, "sent"] += done.messages
        return done

    async def discard(self, queue: str, job: str, batch: str) -> int:
        """Remove all stages of a batch that are not committed, and say how many there were."""
        broker = self._broker
        await broker.catalog.existing(queue)
        _check_batch(job, batch)
        return await broker.store.stages.discard(queue, job, batch)

    async def list(self, queue: str) -> list[Stage]:
        """All stages of a queue that are not committed."""
        broker = self._broker
        await broker.catalog.existing(queue)
        return await broker.store.stages.list(queue, broker.clock.now())

    async def _check_alone(self, queue: str, job: str, batch: str, listed: set[tuple[str, str]], now: int) -> None:
        most = self._broker.options.limits.commit_alone
        alone = sum(
            stage.alone
            for stage in await self._broker.store.stages.list(queue, now)
            if (stage.name.job, stage.name.batch) == (job, batch)
            and (stage.name.partition, stage.name.attempt) in listed
        )
        if alone > most:
            raise TooLarge(
                f"stages: {alone} messages with a recipient, group or dedup_id; at most {most} in one commit",
                field="stages",
            )


def _check_batch(job: str, batch: str) -> None:
    rules.check_label(job, "job")
    rules.check_label(batch, "batch")
