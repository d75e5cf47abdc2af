"""What all stores decide in the same way: pure functions over what each of them has read.

A store asks where nobody else can change what it has read, such as under the lock of a row, and again whenever it
begins anew. PostgreSQL decides fences and which messages are fit within its queries: `queries.sql`, `schema.sql`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from miniq.errors import ClaimGone, ClaimUnknown, Fenced, QueueFull, StageUnknown
from miniq.ids import RUN
from miniq.message import NEVER, Claim, ClaimGroup, Committed, Message, Outcome, PlainBatch, Stage, StageName
from miniq.store.arguments import ANY, FREE, Batch, NextClaim, Room

# Messages


def fence(visible_at: int, held_by: str | None, receipt: str, now: int) -> Outcome:
    """What becomes of a change that names `receipt`, of a message that is there with this `visible_at` and receipt."""
    if visible_at == NEVER:
        return "leased"  # in a claim
    if receipt == FREE:
        return "leased" if held_by is not None and visible_at > now else "done"
    return "done" if receipt in (ANY, held_by) else "stale"


class Budget:
    """How many messages an answer may have, and how many bytes; the first message always fits."""

    __slots__ = ("bytes", "count", "limit", "max_bytes")

    def __init__(self, limit: int, max_bytes: int, count: int = 0, size: int = 0) -> None:
        self.limit = limit
        self.max_bytes = max_bytes
        self.count, self.bytes = count, size

    def admits(self, size: int) -> bool:
        """Count one more message if it fits."""
        if self.count == self.limit or (self.count and self.bytes + size > self.max_bytes):
            return False
        self.count += 1
        self.bytes += size
        return True


def check_room(room: Room | None, queue: str, held: tuple[int, int], more: tuple[int, int]) -> None:
    """Raise `QueueFull` if a queue that holds so many messages and bytes has no room for so many more."""
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
    """The bytes that messages count for."""
    return messages.size if isinstance(messages, PlainBatch) else sum(message.size for message in messages)


class Sifted(Struct):
    """What a call adds once dedup ids are considered."""

    fresh: list[Message]
    ids: list[str]
    """The answer: one id for each message that was given."""
    brought: dict[str, str]
    """Dedup ids to remember, with the ids of their messages."""


def sift(messages: Iterable[Message], standing: Callable[[str], str | None]) -> Sifted:
    """Leave out messages whose dedup id stands in the records, or came before in the same call."""
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


# Claims


def claim_name(group: str, number: int) -> str:
    """What stands as receipt of the messages of a claim."""
    return f"{group}/{number}"


def check_reader(state: ClaimGroup, epoch: int | None, after: int) -> None:
    """Raise `Fenced` unless `epoch` is the group's (None is always), `ClaimUnknown` if no claim has the number
    `after` yet."""
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
    """What a call for the next claim does, in this order."""

    ack: range
    """The claims that are acked."""
    give: Claim | None
    """The claim that is the answer because it exists."""
    make: bool
    """Whether a claim is to be made, with the number that was asked for."""


def plan_claim(state: ClaimGroup, following: Claim | None, asked: NextClaim) -> ClaimPlan:
    """What to do for a reader. `following` is the claim that is asked for, if it can be read. Raises `Fenced`,
    `ClaimUnknown` or `ClaimGone`; then nothing is changed."""
    check_reader(state, asked.epoch, asked.after)
    if asked.limit and following is None and asked.number <= state.last:
        raise no_claim(state, asked.number)
    ack = range(state.acked + 1, asked.after + 1)
    if not asked.limit:
        return ClaimPlan(ack, None, False)
    return ClaimPlan(ack, following, following is None)


def ended(state: ClaimGroup) -> ClaimGroup:
    """A group after a release or a purge: its claims are over, and their numbers stay used."""
    return replace(state, acked=state.last, claims=[])


# Stages


class StagePart(Protocol):
    """What is known of a part of a stage without its messages."""

    @property
    def messages(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def alone(self) -> int: ...
    @property
    def made_at(self) -> int: ...
    @property
    def until(self) -> int: ...


def stage_of(name: StageName, parts: Iterable[StagePart]) -> Stage:
    """A stage as the sum of its parts. It runs out when the last of them does."""
    some = list(parts)
    return Stage(
        name,
        len(some),
        sum(part.messages for part in some),
        sum(part.bytes for part in some),
        min(part.made_at for part in some),
        max(part.until for part in some),
        sum(part.alone for part in some),
    )


def check_listed(batch: Batch, until: Mapping[tuple[str, str], int]) -> None:
    """Raise `StageUnknown` unless all stages that are to be committed are there, and until when is still to come. Those
    that are there are given by (partition, attempt)."""
    for partition, attempt in batch.stages:
        if until.get((partition, attempt), 0) <= batch.put.now:
            raise StageUnknown(
                f"stages: there is no attempt {attempt!r} of partition {partition!r} of batch {batch.batch!r} of job "
                f"{batch.job!r}; upload it again, nothing was committed",
                field="stages",
            )


def commit_said(count: int) -> str:
    """What is remembered of a commit: how many messages it added."""
    return str(count)


def committed_before(said: str) -> Committed:
    """The answer to a commit that was made before, from what is remembered of it."""
    return Committed(int(said), repeated=True)


def committed(message: Message, id: str, now: int) -> Message:
    """The message that a staged one becomes."""
    return replace(
        message,
        id=id,
        sent_at=now,
        due_at=now + message.due_at,
        expires_at=None if message.expires_at is None else now + message.expires_at,
    )


def stands_alone(message: Message) -> bool:
    """Whether a message has a recipient, group or dedup id, which a store has to look at one by one."""
    return message.recipient is not None or message.group is not None or message.dedup_id is not None


def stretches(messages: Sequence[Message]) -> list[range]:
    """How a part of a stage is cut: neighbours of the same priority and due time together, up to `RUN` of them, those
    that stand alone each for itself. The message at `place` of stretch n has the id n * RUN + place of the part, which
    takes RUN ids for each stretch. So a store may keep a stretch as one record."""
    if isinstance(messages, PlainBatch):
        return [range(start, min(start + RUN, len(messages))) for start in range(0, len(messages), RUN)]
    found: list[range] = []
    start = 0
    before: tuple[int, int] | None = None
    for place, message in enumerate(messages):
        here = None if stands_alone(message) else (message.priority, message.due_at)
        if place and (here is None or here != before or place - start == RUN):
            found.append(range(start, place))
            start = place
        before = here
    if messages:
        found.append(range(start, len(messages)))
    return found
