"""Decisions that all stores make alike, as pure functions over what a store has read.

A store calls them where nothing else can change what it has read, such as under a row lock, and again after a retry.
PostgreSQL checks fences and fitness inside its queries: `queries.sql`, `schema.sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import astuple, replace

from miniq.batch import Claim, ClaimGroup, Committed, Stage, StageName
from miniq.errors import (
    BatchMismatch,
    ClaimGone,
    ClaimTaken,
    ClaimUnknown,
    ClaimUnread,
    Fenced,
    IdempotencyMismatch,
    QueueFull,
    StageUnknown,
)
from miniq.ids import RUN, from_spans, spans
from miniq.message import NEVER, Message, Outcome, PlainBatch, is_plain
from miniq.store.arguments import ANY, FREE, Batch, NextClaim, Once, Publication, Room, Stretch
from miniq.store.names import own_job, published_name
from miniq.topic import Published

# Messages


def fence(visible_at: int, held_by: str | None, receipt: str, now: int) -> Outcome:
    """The outcome of a change that names `receipt`, for a message with this `visible_at` and current receipt."""
    if visible_at == NEVER:
        return "leased"  # in a claim
    if receipt == FREE:
        return "leased" if held_by is not None and visible_at > now else "done"
    return "done" if receipt in (ANY, held_by) else "stale"


class Budget(Struct):
    """The limits of an answer in messages and bytes; the first message always fits."""

    limit: int
    max_bytes: int
    count: int = 0
    bytes: int = 0

    def admits(self, size: int) -> bool:
        """Count one more message if it fits."""
        if self.count == self.limit or (self.count and self.bytes + size > self.max_bytes):
            return False
        self.count += 1
        self.bytes += size
        return True


def check_room(room: Room | None, queue: str, held: tuple[int, int], more: tuple[int, int]) -> None:
    """Raise `QueueFull` if a queue that holds `held` (messages, bytes) has no room for `more`."""
    (count, size), (added, added_bytes) = held, more
    if room is None or not added:
        return
    if room.messages and count + added > room.messages:
        raise QueueFull(
            f"max_length: queue {queue!r} holds {count} of at most {room.messages} messages, no room for {added} more",
            field="max_length",
        )
    if room.bytes and size + added_bytes > room.bytes:
        raise QueueFull(
            f"max_bytes: queue {queue!r} holds {size} of at most {room.bytes} bytes, no room for {added_bytes} more",
            field="max_bytes",
        )


def size_of(messages: Sequence[Message]) -> int:
    """The total size of messages."""
    return messages.size if isinstance(messages, PlainBatch) else sum(message.size for message in messages)


_common = attrgetter("queue", "sent_at", "due_at", "content_type", "priority", "topic")


def plain_batch(messages: Sequence[Message]) -> PlainBatch | None:
    """Messages as a batch, None if they differ in more than id and body."""
    common = _common(messages[0])
    if not all(is_plain(message) and _common(message) == common for message in messages):
        return None
    queue, sent_at, due_at, *others = common
    ids, bodies = [message.id for message in messages], [message.body for message in messages]
    return PlainBatch(ids, queue, sent_at, due_at, bodies, *others)


class Sifted(Struct):
    """What a send adds after deduplication."""

    fresh: list[Message]
    ids: list[str]
    """The answer: one id per message of the call."""
    brought: dict[str, str]
    """Dedup ids to remember, with the ids of their messages."""


def sift(messages: Iterable[Message], standing: Callable[[str], str | None]) -> Sifted:
    """Leave out messages whose dedup id is on record (`standing`) or appeared earlier in the same call."""
    sifted = Sifted([], [], {})
    for message in messages:
        name = message.dedup_id
        if name is not None:
            first = sifted.brought.get(name)
            if first is None:
                first = standing(name)
            if first is not None:
                sifted.ids.append(first)
                continue
            sifted.brought[name] = message.id
        sifted.ids.append(message.id)
        sifted.fresh.append(message)
    return sifted


# Named calls


def call_answer(ids: Sequence[str], call: Once) -> str:
    """The record of a call: the ids of its answer, and what identifies its messages."""
    return f"{spans(ids)}#{call.content}" if call.content else spans(ids)


def repeated_call(answer: str, call: Once) -> list[str]:
    """The answer to a repeated call, from the record of the first. Raises `IdempotencyMismatch` if the first had other
    messages; records of earlier versions do not tell."""
    first, _, content = answer.partition("#")
    if content and call.content and content != call.content:
        raise IdempotencyMismatch(
            "idempotency-key: it was used for other messages within the last five minutes; choose a new key for each "
            "call, and repeat a call unchanged",
            field="idempotency-key",
        )
    return from_spans(first)


# Publications


class SiftedPublication(Struct):
    """What a publication adds after deduplication."""

    fresh: list[Stretch]
    ids: list[str]
    """The answer: one id per message of the call."""
    brought: dict[str, str]
    """Names of dedup ids to remember (see `names.published_name`), with the ids of their messages."""

    @property
    def targets(self) -> list[int]:
        """The positions of the queues that get copies."""
        return sorted({target for stretch in self.fresh for target in stretch.targets})

    def more(self, target: int) -> tuple[int, int]:
        """How many messages and bytes a queue gets."""
        messages = [stretch.messages for stretch in self.fresh if target in stretch.targets]
        return sum(map(len, messages)), sum(map(size_of, messages))


def dedup_names(publication: Publication) -> list[str]:
    """The names under which dedup ids of a publication may be on record."""
    ids = [stretch.first.dedup_id for stretch in publication.stretches]
    return list(dict.fromkeys(published_name(publication.scope, id) for id in ids if id is not None))


def sift_publication(publication: Publication, standing: Callable[[str], str | None]) -> SiftedPublication:
    """Leave out messages whose dedup id is on record (`standing`) or appeared earlier in the same publication."""
    sifted = SiftedPublication([], [], {})
    is_fresh = True
    for stretch in publication.stretches:
        if stretch.is_variant:
            if is_fresh:
                sifted.fresh.append(stretch)
            continue
        dedup_id = stretch.first.dedup_id
        if dedup_id is not None:
            name = published_name(publication.scope, dedup_id)
            first = sifted.brought.get(name)
            if first is None:
                first = standing(name)
            is_fresh = first is None
            if first is not None:
                sifted.ids.append(first)
                continue
            sifted.brought[name] = stretch.first.id
        is_fresh = True
        sifted.ids += stretch.ids
        sifted.fresh.append(stretch)
    return sifted


def publication_answer(published: Published, call: Once) -> str:
    """The record of a named publication: its ids, what identifies its messages, and its number of queues."""
    return f"{spans(published.ids)}#{call.content}#{published.queues}"


def repeated_publication(answer: str, call: Once) -> Published:
    """The answer to a repeated publication, from the record of the first; raises as `repeated_call`."""
    first, _, queues = answer.rpartition("#")
    return Published(repeated_call(first, call), int(queues))


def earlier_publication(batch: Batch, standing: Callable[[str], str | None]) -> Published | None:
    """The answer to the publication of stages, if it is on record (`standing`); raises as `repeated_call`."""
    call = batch.put.call
    answer = None if call is None else standing(call.name)
    return None if call is None or answer is None else repeated_publication(answer, call)


# Claims


def claim_name(group: str, number: int) -> str:
    """The receipt of the messages of a claim."""
    return f"{group}/{number}"


def check_reader(state: ClaimGroup, epoch: int | None, after: int) -> None:
    """Raise `Fenced` if `epoch` is given and not the group's, `ClaimUnknown` if there is no claim `after` yet, or the
    group has never had that epoch."""
    if epoch is not None and epoch > state.epoch:
        raise ClaimUnknown(
            f"epoch: group {state.group!r} is at {state.epoch}, and was never at {epoch}: the queue was deleted and "
            "made again, or the store restored; open the group again",
            field="epoch",
        )
    if epoch is not None and epoch != state.epoch:
        raise Fenced(
            f"epoch: {epoch} is not that of the newest reader of group {state.group!r}, which is {state.epoch}; "
            "open the group again to read on",
            field="epoch",
        )
    if after > state.last:
        raise ClaimUnknown(
            f"after: there is no claim {after} of group {state.group!r}; its last is {state.last}", field="after"
        )


def no_claim(state: ClaimGroup, number: int) -> ClaimUnknown | ClaimGone:
    """Why a claim cannot be read: it was never made, or is over."""
    if number > state.last or number < 1:
        return ClaimUnknown(
            f"claim: there is no claim {number} of group {state.group!r}; its last is {state.last}", field="claim"
        )
    return ClaimGone(
        f"claim: {number} of group {state.group!r} was acked too long ago, released or purged; "
        f"read on after {state.acked}",
        field="claim",
    )


class ClaimPlan(Struct, frozen=True, gc=False):
    """The steps of a call for the next claim, in order."""

    ack: range
    """The claims to ack."""
    give: Claim | None
    """The existing claim to return."""
    make: bool
    """Whether to make the requested claim."""


def plan_claim(state: ClaimGroup, following: Claim | None, asked: NextClaim) -> ClaimPlan:
    """Plan a call for the next claim. `state` has at least the held claims up to `asked.after`; `following` is the
    requested claim if it exists and is readable. Raises `Fenced`, `ClaimUnknown`, `ClaimGone`, `ClaimUnread` or
    `ClaimTaken` before anything is changed."""
    check_reader(state, asked.epoch, asked.after)
    if asked.limit and following is None and asked.number <= state.last:
        raise no_claim(state, asked.number)
    ack = range(state.acked + 1, asked.after + 1)
    for claim in state.claims:
        if claim.number in ack:
            _check_read(state.group, claim, asked.reader)
    if following is not None and asked.limit:
        check_taken(state.group, following, asked.reader)
    if not asked.limit:
        return ClaimPlan(ack, None, False)
    return ClaimPlan(ack, following, following is None)


def _check_read(group: str, claim: Claim, reader: str | None) -> None:
    """Raise `ClaimUnread` unless a claim that is to be acked was fetched, and `ClaimTaken` if by another reader."""
    if claim.reader is None:
        raise ClaimUnread(
            f"after: claim {claim.number} of group {group!r} cannot be acked: none of its {claim.messages} messages "
            "was fetched. Fetch it first, or release it",
            field="after",
        )
    check_taken(group, claim, reader)


def check_taken(group: str, claim: Claim, reader: str | None) -> None:
    """Raise `ClaimTaken` if a reader with another name has fetched a claim. Unnamed readers are not compared."""
    if reader and claim.reader and claim.reader != reader:
        raise ClaimTaken(
            f"reader: claim {claim.number} of group {group!r} was fetched by another reader, {claim.reader!r}; only "
            "that one can continue with it, or release the group's claims",
            field="reader",
        )


def marks(claim: Claim, reader: str) -> bool:
    """Whether a fetch by `reader` is to be recorded. The first reader counts, and a named one more than an unnamed."""
    return claim.acked_at is None and (claim.reader is None or (claim.reader == "" and reader != ""))


def ended(state: ClaimGroup) -> ClaimGroup:
    """A group after a release or purge: its claims are gone, and their numbers are not used again."""
    return replace(state, acked=state.last, claims=[])


# Stages


class StagePart(Struct, frozen=True, gc=False):
    """A part of a stage, without its messages. `alone` counts those for which `stands_alone` is true."""

    messages: int
    bytes: int
    alone: int
    made_at: int
    until: int


Part = TypeVar("Part", bound=StagePart)


def stage_of(name: StageName, parts: Iterable[StagePart]) -> Stage:
    """A stage as the sum of its parts. It expires with the last of them."""
    parts = list(parts)
    return Stage(
        name,
        len(parts),
        sum(part.messages for part in parts),
        sum(part.bytes for part in parts),
        min(part.made_at for part in parts),
        max(part.until for part in parts),
        sum(part.alone for part in parts),
    )


def stages_of(stages: Mapping[StageName, Mapping[int, Part]]) -> list[Stage]:
    """All stages in order of their names, expired ones too."""
    return [stage_of(name, stages[name].values()) for name in sorted(stages, key=astuple)]


def stages_of_batch(stages: Iterable[StageName], job: str, batch: str) -> list[StageName]:
    """The stages of a (job, batch)."""
    return [name for name in stages if (name.job, name.batch) == (job, batch)]


def check_listed(batch: Batch, until: Mapping[tuple[str, str], int]) -> None:
    """Raise `StageUnknown` unless all stages to commit exist and have not expired. `until` has the expiry of the
    existing ones by (partition, attempt)."""
    for partition, attempt in batch.stages:
        if until.get((partition, attempt), 0) <= batch.put.now:
            raise StageUnknown(
                f"stages: there is no attempt {attempt!r} of partition {partition!r} of batch {batch.batch!r} of job "
                f"{own_job(batch.job)!r}; upload it again, nothing was committed",
                field="stages",
            )


def parts_to_commit(batch: Batch, stages: Mapping[StageName, Mapping[int, Part]]) -> list[tuple[StageName, int, Part]]:
    """The parts of the stages to commit, in order, with the stage and number of each; raises as `check_listed`."""
    found = [stage_of(name, stages[name].values()) for name in stages_of_batch(stages, batch.job, batch.batch)]
    check_listed(batch, {(stage.name.partition, stage.name.attempt): stage.until for stage in found})
    names = [StageName(batch.job, batch.batch, partition, attempt) for partition, attempt in batch.stages]
    return [(name, number, part) for name in names for number, part in sorted(stages[name].items())]


def commit_answer(count: int, batch: Batch) -> str:
    """The record of a commit: its number of messages, and what identifies them."""
    return f"{count}#{batch.content}" if batch.content else str(count)


def repeated_commit(answer: str, batch: Batch) -> Committed:
    """The answer to a repeated commit, from the record of the first. Raises `BatchMismatch` if the first had other
    messages; records of earlier versions do not tell."""
    count, _, content = answer.partition("#")
    if content and batch.content and content != batch.content:
        raise BatchMismatch(
            f"content: batch {batch.batch!r} of job {batch.job!r} was committed before with other messages "
            f"({content}, now {batch.content}); nothing was added",
            field="content",
        )
    return Committed(int(count), repeated=True)


def committed(message: Message, id: str, now: int) -> Message:
    """The message that a staged message becomes."""
    return replace(
        message,
        id=id,
        sent_at=now,
        due_at=now + message.due_at,
        expires_at=None if message.expires_at is None else now + message.expires_at,
    )


def stands_alone(message: Message) -> bool:
    """Whether a message has a recipient, group or dedup id, and so must be handled individually."""
    return message.recipient is not None or message.group is not None or message.dedup_id is not None


def stretches(messages: Sequence[Message]) -> list[range]:
    """The positions of a stage part, cut into stretches that a store may keep as one record: up to `RUN` neighbours
    with the same priority and due time, or one message that stands alone. Each stretch takes `RUN` ids: position p of
    stretch n has id n * RUN + p of the part."""
    if isinstance(messages, PlainBatch):
        return [range(start, min(start + RUN, len(messages))) for start in range(0, len(messages), RUN)]
    cut: list[range] = []
    start = 0
    previous: tuple[int, int] | None = None
    for position, message in enumerate(messages):
        kind = None if stands_alone(message) else (message.priority, message.due_at)
        if position and (kind is None or kind != previous or position - start == RUN):
            cut.append(range(start, position))
            start = position
        previous = kind
    if messages:
        cut.append(range(start, len(messages)))
    return cut
