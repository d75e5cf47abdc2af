"""Stages of topics: messages that the tasks of a job upload invisibly, and that one commit publishes, exactly once.

They are kept among the stages of the queue `HOME`, which always exists, under a job that no caller can name. A commit
reads them and is one publication, named after its job and batch: each message goes where it matches at that time, in
all queues or in none, and a repeated commit adds nothing. So the limits of a publication are those of a commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from miniq.batch import Committed, Stage, StageName
from miniq.broker import rules
from miniq.broker.stages import check_batch, check_commit, check_part
from miniq.errors import BatchMismatch, IdempotencyMismatch, TooLarge
from miniq.message import SECOND, Draft, Message, PlainBatch, PlainDrafts, QueueSettings
from miniq.store.arguments import Batch, Once, Put, Upload
from miniq.store.contract import HOME
from miniq.store.names import commit_name, publication_name, topic_job
from miniq.topic import Published

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

NO_DELAY = 1
"""The delay in a stage, in microseconds, of a message that asks for none: without a delay of its own it would get that
of each queue."""
_PLAIN = QueueSettings()


class TopicStages:
    """The stages of a broker's topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def upload(self, topic: str, name: StageName, part: int, drafts: Sequence[Draft]) -> tuple[int, int]:
        """Store messages as part `part` of a stage, unless it exists; return their number and bytes."""
        broker = self._broker
        found = await broker.topics.use(topic)
        check_part(name, part)
        messages = rules.stage(HOME, _PLAIN, drafts, broker.options.limits)
        if not isinstance(messages, PlainBatch):
            messages = [
                message if draft.delay is None else replace(message, due_at=max(message.due_at, NO_DELAY))
                for message, draft in zip(messages, drafts, strict=True)
            ]
        now = broker.clock.now()
        until = now + rules.micros(broker.options.stage_ttl)
        stage = replace(name, job=topic_job(found.record.id, name.job))
        return await broker.store.stages.upload(HOME, Upload(stage, part, now, until), messages)

    async def commit(
        self, topic: str, job: str, batch: str, stages: Sequence[tuple[str, str]], content: str | None = None
    ) -> Committed:
        """Publish all messages of these stages, (partition, attempt), once per (job, batch). `content` identifies them:
        a repetition with another one is refused."""
        broker = self._broker
        found = await broker.topics.use(topic)
        check_commit(job, batch, stages, content)

        def named(topic: str, now: int) -> Once:
            return Once(publication_name(topic, commit_name(job, batch)), now + rules.COMMIT_WINDOW, content or "")

        own, now = topic_job(found.record.id, job), broker.clock.now()
        call = named(found.record.id, now)
        asked = Batch(own, batch, stages, broker.reserve, Put(now=now, call=call), call.until, call.content)
        await self._check_size(own, batch, set(stages), now)
        try:
            staged = await broker.store.stages.read(HOME, asked)
            if isinstance(staged, Published):
                committed = _repeated(staged)
            else:
                published, publication = await broker.topics.put(found, drafts_of(staged), named)
                added = {id for stretch in publication.stretches for id in stretch.ids}.intersection(published.ids)
                is_known = not added and bool(publication.stretches)
                committed = _repeated(published) if is_known else Committed(len(added))
        except IdempotencyMismatch:
            text = (
                f"content: batch {batch!r} of job {job!r} was committed before with other messages (now "
                f"{call.content}); nothing was added"
            )
            raise BatchMismatch(text, field="content") from None
        await broker.store.stages.discard(HOME, own, batch)
        return committed

    async def discard(self, topic: str, job: str, batch: str) -> int:
        """Remove all uncommitted stages of a batch, and return how many there were."""
        found = await self._broker.topics.require(topic)
        check_batch(job, batch)
        return await self._broker.store.stages.discard(HOME, topic_job(found.record.id, job), batch)

    async def list(self, topic: str) -> list[Stage]:
        """All uncommitted stages of a topic."""
        broker = self._broker
        own = topic_job((await broker.topics.require(topic)).record.id, "")
        stages = await broker.store.stages.list(HOME, broker.clock.now())
        return [
            replace(stage, name=replace(stage.name, job=stage.name.job.removeprefix(own)))
            for stage in stages
            if stage.name.job.startswith(own)
        ]

    async def _check_size(self, job: str, batch: str, listed: set[tuple[str, str]], now: int) -> None:
        """Raise if the listed stages have more than one publication may, before they are read."""
        limits = self._broker.options.limits
        found = [
            stage
            for stage in await self._broker.store.stages.list(HOME, now)
            if (stage.name.job, stage.name.batch) == (job, batch)
            and (stage.name.partition, stage.name.attempt) in listed
        ]
        count, size = sum(stage.messages for stage in found), sum(stage.bytes for stage in found)
        if count > limits.copies or size > limits.copy_bytes:
            text = (
                f"stages: {count} messages of {size} bytes; at most {limits.copies} and {limits.copy_bytes} in one "
                "commit to a topic, commit fewer at a time"
            )
            raise TooLarge(text, field="stages")


def drafts_of(staged: Sequence[Sequence[Message]]) -> Sequence[Draft]:
    """The drafts that uploaded messages were made of."""
    plain = [part for part in staged if isinstance(part, PlainBatch) and not part.priority and not part.due_at]
    kinds = {part.content_type for part in plain}
    if len(plain) == len(staged) and len(kinds) == 1:
        return PlainDrafts([body for part in plain for body in part.bodies], kinds.pop())
    return [_draft(message) for part in staged for message in part]


def _draft(message: Message) -> Draft:
    return Draft(
        message.body,
        message.content_type,
        message.headers,
        message.priority,
        message.due_at / SECOND if message.due_at else None,
        None if message.expires_at is None else message.expires_at / SECOND,
        message.key,
        message.recipient,
        message.group,
        message.dedup_id,
    )


def _repeated(published: Published) -> Committed:
    return Committed(len(set(published.ids)), repeated=True)
