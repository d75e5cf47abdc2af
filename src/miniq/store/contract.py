"""The store contract: one atomic, conditional change at a time, and no queue rules.

A store knows two predicates. A message can be taken when `visible_at <= now`, in queue order. A message
may be changed only while its fence holds. Everything else (limits, deadlines, ids, tokens, what is dead)
the broker computes and passes in. `now` is always an argument; no store reads a clock.

**Queue order** is higher priority first, then lower id. A message for a recipient is seen only by that
consumer. Of a group only the head can be taken: the first to arrive becomes the head and stays it until
it leaves the queue; then the lowest id left becomes the head.

**Fences.** A change names `(id, receipt)`. A receipt matches while it is the one of the last take, even
after that lease ran out. `FREE` matches when the message is not leased at `now`; `ANY` always matches.
Outcomes: `done`; `stale` (receipt differs); `leased` (wanted `FREE`); `missing` (no such message).

**Claims.** A claim is a lease that does not end: `visible_at = NEVER`, `receipt` its name (`claim_name`), `consumer`
its group. It is numbered from 1 within (queue, group), and frozen: no fence matches a message that is in a claim, not
even `ANY`; the outcome is `leased`. So its messages leave it all at once, when the claim is acked or released, or
with the queue. Numbers are never used twice while the queue exists.

**Stages.** Messages can be uploaded part by part into stages, which nobody sees, and many stages of one (job, batch)
be committed in one change, once. A staged message has no id; its `sent_at` is 0, its `due_at` and `expires_at` count
from the commit, which makes it a message like any other.

**Durability.** When a call returns, its change survives `kill -9`. Unless it is a `take`, it also survives power
loss. A crash leaves a claim whole or not at all. A message can be taken, found and scanned only once its `put` is
durable.

**Sharing.** With `shared`, several brokers may work on the same data at once. What a broker remembers of queues
and records is then a copy; `revision` and `on_change` tell when to read it again.

**History.** With `keep` other than `off` the events of a change are written in the same atomic change.
Offsets start at 1, rise by one, have no gaps and are never reused.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct, structs

from miniq.errors import ClaimGone, ClaimUnknown, Fenced, QueueFull, QueueNotFound, StageUnknown
from miniq.ids import RUN
from miniq.message import (
    NEVER,
    Claim,
    ClaimGroup,
    Committed,
    Counts,
    EventName,
    History,
    HistoryPage,
    HistorySpan,
    Message,
    Outcome,
    Page,
    PlainBatch,
    Portion,
    QueueSettings,
    Stage,
    StageName,
    Status,
    Stored,
)
from miniq.store.transfer import Item

T = TypeVar("T")
FREE = ""
ANY = "*"

Fence = tuple[str, str]
"""A message id, and a receipt or `FREE` or `ANY`."""

ReadyHint = Callable[[str, str | None, int], None]
"""Called with (queue, recipient or None, how many) when messages came or came back, due now or later."""

ChangeHint = Callable[[], None]
"""Called when another broker changed queues or records."""


Reserve = Callable[[int], str]
"""Sets so many ids aside that follow all there are, and gives the first (see `ids.id_in_range`). To be called once in a
commit, when nothing can be refused any more, with the room that all its parts take (see `stretches`)."""


class Once(Struct, frozen=True):
    """The name that a sender gave to one call, so that repeating it adds nothing, and until when it counts."""

    name: str
    until: int


class ByName(dict[str, T]):
    """Queues by name. One that is not there was deleted while a call was under way, or never made."""

    def __missing__(self, name: str) -> T:
        raise QueueNotFound(f"queue: there is no queue {name!r}", field="queue")


class Room(Struct, frozen=True):
    """What a queue may hold in all; 0 is unlimited."""

    messages: int
    bytes: int


def full(room: Room, queue: str, count: int, size: int, more: int, more_bytes: int) -> QueueFull | None:
    """The refusal if `more` messages do not fit beside `count` messages of `size` bytes, None if they do."""
    if room.messages and count + more > room.messages:
        return QueueFull(
            f"max_length: queue {queue!r} holds {count} of at most {room.messages} messages, no room for {more} more",
            field="max_length",
        )
    if room.bytes and size + more_bytes > room.bytes:
        return QueueFull(
            f"max_bytes: queue {queue!r} holds {size} of at most {room.bytes} bytes, no room for {more_bytes} more",
            field="max_bytes",
        )
    return None


def check_room(room: Room, count: int, size: int, fresh: Sequence[Message]) -> None:
    """Raise `QueueFull` if `fresh` does not fit beside `count` messages of `size` bytes."""
    if fresh:
        added = sum(message.size for message in fresh)
        refusal = full(room, fresh[0].queue, count, size, len(fresh), added)
        if refusal is not None:
            raise refusal


def fence_outcome(stored: Stored | None, receipt: str, now: int) -> Outcome:
    """What becomes of a change of a message that names this receipt."""
    if stored is None:
        return "missing"
    if stored.visible_at == NEVER:
        return "leased"  # in a claim
    if receipt == FREE:
        return "leased" if stored.status(now) == "leased" else "done"
    return "done" if receipt in (ANY, stored.receipt) else "stale"


class SingleProcessStore(ABC):
    """What a store says of itself that only one broker has open: nobody else changes anything."""

    shared = False

    def __init__(self) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.on_change: ChangeHint = lambda: None

    @abstractmethod
    async def put_each(
        self, parcel: PlainBatch, calls: Sequence[str | None], *, now: int, until: int, keep: History
    ) -> list[list[str]]:
        """Add messages of which each is a call of its own (see `Store.put`), known until `until` by its name if it has
        one. One that was made before, also in the same parcel, adds nothing; each gets its own answer."""

    async def check(self) -> None:
        return

    async def revision(self) -> int:
        return 0


class Fit(Struct, frozen=True):
    """Which messages a claim may take; the broker does with others what its rules say."""

    since: int
    """It was sent, or died if it is a dead letter, after this moment."""
    receives: int
    """It was handed out less often than this."""

    def takes(self, message: Message, receives: int, now: int) -> bool:
        """Whether a message is fit: its ttl is not over either."""
        return (
            (message.expires_at is None or message.expires_at > now)
            and (message.sent_at if message.dead is None else message.dead.at) > self.since
            and receives < self.receives
        )


class Claimed(Struct, frozen=True):
    """What `Store.claim` did."""

    claim: Claim | None
    """The claim that follows `after`, None if there was nothing to make it from."""
    epoch: int
    made: bool = False
    """Whether this call made it."""
    acked: int = 0
    """How many messages this call acked."""
    unfit: list[Stored] = []
    """Messages that were passed over, up to `UNFIT` of them."""


UNFIT = 1000


def committed(message: Message, id: str, now: int) -> Message:
    """The message that a staged one becomes."""
    return structs.replace(
        message,
        id=id,
        sent_at=now,
        due_at=now + message.due_at,
        expires_at=None if message.expires_at is None else now + message.expires_at,
    )


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


def stands_alone(message: Message) -> bool:
    """Whether a message has a recipient, group or dedup id, which a store has to look at one by one."""
    return message.recipient is not None or message.group is not None or message.dedup_id is not None


def no_stage(job: str, batch: str, stage: tuple[str, str]) -> StageUnknown:
    """A stage that should be committed is not there."""
    return StageUnknown(
        f"stages: there is no attempt {stage[1]!r} of partition {stage[0]!r} of batch {batch!r} of job {job!r}; "
        "upload it again, nothing was committed",
        field="stages",
    )


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


class Edit(Struct, frozen=True, kw_only=True):
    """What to change in a message; None leaves a field as it is."""

    body: bytes | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: int | None = None
    visible_at: int | None = None

    def apply(self, message: Message) -> Message:
        """The message with these changes."""
        return Message(
            message.id,
            message.queue,
            message.sent_at,
            message.due_at if self.visible_at is None else self.visible_at,
            message.body if self.body is None else self.body,
            message.content_type if self.content_type is None else self.content_type,
            message.priority if self.priority is None else self.priority,
            message.headers if self.headers is None else self.headers,
            message.expires_at,
            message.key,
            message.recipient,
            message.group,
            message.dedup_id,
            message.dead,
        )


class Store(Protocol):
    """One broker's durable state. Calls may run concurrently in one event loop."""

    shared: bool
    """Whether other brokers may work on the same data."""

    on_ready: ReadyHint
    """A hint for long polls, never the truth. The broker sets it."""

    on_change: ChangeHint
    """A hint that queues or records are no longer what they were, never the truth. The broker sets it."""

    async def open(self) -> None:
        """Make ready for use; raise `StoreLocked`, `StoreCorrupt`, `StoreFormat` or `StoreUnavailable`."""
        ...

    async def close(self) -> None:
        """Write out what was staged, then let go of everything. Harmless to repeat."""
        ...

    def failure(self) -> Exception | None:
        """What made this store unusable for good, None while it works."""
        ...

    async def check(self) -> None:
        """Raise `StoreUnavailable` if the store cannot be reached now."""
        ...

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        """All queues with their settings."""
        ...

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        """Create a queue or replace its settings."""
        ...

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        """Create a queue that is not there (`was` None), or replace settings that are still `was`; False if they
        are not."""
        ...

    async def delete_queue(self, name: str) -> bool:
        """Remove a queue with all its messages, stages and dedup records; False if there is none."""
        ...

    async def records(self, kind: str) -> dict[str, bytes]:
        """Small records that the broker keeps beside the messages, such as API keys, by name."""
        ...

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        """Write a small record, or remove it."""
        ...

    async def revision(self) -> int:
        """A number that changes whenever queues or records do, whoever changes them."""
        ...

    async def last_id(self) -> str:
        """An id not below any that was put so far, "" if none was."""
        ...

    # Messages

    async def put(
        self,
        messages: Sequence[Message],
        *,
        now: int,
        dedup_until: int,
        room: Room | None,
        keep: History,
        call: Once | None = None,
    ) -> list[str]:
        """Add messages, all of one existing queue, all or none; ready at their `due_at`.

        A message with a `dedup_id` that stands in the queue's records and has not run out at `now` is
        not added; the answer has the id that stands. Others with a `dedup_id` are recorded until
        `dedup_until`. A `call` that stands in the queue's records adds nothing at all and gets the ids it
        got the first time. Raise `QueueFull` if the queue would then hold more than `room`, `NoSpace` if the
        disk is nearly full.
        """
        ...

    async def take(
        self,
        queue: str,
        *,
        limit: int,
        max_bytes: int,
        now: int,
        until: int,
        token: str,
        consumer: str | None,
        keep: History,
    ) -> list[Stored]:
        """Lease up to `limit` messages to `consumer` until `until`, in queue order.

        Each gets `receipt = token`, `visible_at = until`, `receives + 1`. Stops before `max_bytes` is
        passed, but gives at least one. If one had a lease that ran out, `expired` (reason `lease`)
        precedes its `received` in the history.
        """
        ...

    async def drop(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
    ) -> list[Outcome]:
        """Remove messages, each on its own fence."""
        ...

    async def reschedule(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        visible_at: int,
        release: bool,
        event: EventName | None,
        keep: History,
    ) -> list[Outcome]:
        """Set `visible_at`; with `release` also forget receipt and consumer. `receives` stays."""
        ...

    async def edit(self, queue: str, fence: Fence, edit: Edit, *, now: int, keep: History) -> Outcome:
        """Change one message in place; its lease, if it has one, goes on unless `visible_at` is set."""
        ...

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
        keep_to: History,
    ) -> list[Outcome]:
        """Take messages out of `queue` and, in the same change, put each as given (same id) into the
        existing queue it names, ready at its `due_at`, with `receives` 0 and no receipt."""
        ...

    async def clear(self, queue: str, *, now: int, keep: History) -> int:
        """Remove all messages, in whatever state, and say how many there were. Dedup records stay.
        The history gets one `purged` event with their `count`, if any. Stages stay. All claims are gone; each
        group keeps its epoch and `last`, which is also its `acked` from then on."""
        ...

    async def find(self, queue: str, id: str) -> Stored | None: ...

    async def scan(
        self, queue: str, *, status: Status | None, after: str | None, limit: int, max_bytes: int, now: int
    ) -> Page:
        """Browse without changing anything. Order and cursor are the store's own; while nothing changes,
        following `next` gives every message once. A page may be shorter than `limit`."""
        ...

    async def held(self, token: str) -> list[Stored]:
        """All messages whose receipt is `token`, in order of id."""
        ...

    async def counts(self, queue: str, *, now: int) -> Counts: ...

    async def next_visible(self, queue: str, *, now: int) -> int | None:
        """The earliest `visible_at` after `now` of a leased or delayed message; claims have none."""
        ...

    # Claims

    async def open_claims(self, queue: str, group: str) -> ClaimGroup:
        """Raise the epoch of a group by one; a group that is not there begins with 0."""
        ...

    async def claim(
        self,
        queue: str,
        group: str,
        *,
        after: int,
        epoch: int | None,
        limit: int,
        max_bytes: int,
        fit: Fit,
        consumer: str | None,
        now: int,
        keep_until: int,
        keep: History,
    ) -> Claimed:
        """Ack all claims up to `after`, then give the next one. Harmless to repeat; a crash may fall between the two.

        Refused, and nothing is changed: see `check_reader`. Acked messages leave the queue (`acked` in the
        history) and stay readable by `claimed` until `keep_until`. If claim `after + 1` was made before, it is
        the answer, acked or not; `ClaimGone` if it can no longer be read. Otherwise it is made, with
        `made_at = now`, from up to `limit` messages that `consumer` could take and that are `fit`, in queue
        order (`received` in the history, as with `take`); it stops before `max_bytes` is passed, but has at least
        one. Those that could be taken but are not fit stay as they are and are answered, up to `UNFIT`; when
        that many were met the claim may end there. Without any fit message there is no claim, and its number is
        not used. With `limit` 0 nothing is made or given.
        """
        ...

    async def find_claim(self, queue: str, group: str, number: int, *, now: int) -> Claim:
        """One claim, held or acked; raise as `no_claim` says if it cannot be read at `now`."""
        ...

    async def claimed(
        self, queue: str, group: str, number: int, *, start: int, stop: int, max_bytes: int, now: int
    ) -> list[Portion]:
        """The messages of a claim at the places from `start` up to `stop`, by priority (higher first), then id;
        always the same, acked or not. Stops before `max_bytes` is passed, but gives at least one. Raises as
        `find_claim`. Reads no more than it gives."""
        ...

    async def release_claims(self, queue: str, group: str, *, epoch: int | None, now: int, keep: History) -> int:
        """Give all messages of claims that are not acked back (`released` in the history), ready at `now`, and
        say how many. Those claims are gone; `last` stays and becomes `acked`. Raises as `check_reader`."""
        ...

    async def claim_groups(self, queue: str, *, now: int) -> list[ClaimGroup]:
        """All groups by name, with the claims that can be read at `now` by number."""
        ...

    # Stages

    async def stage(
        self, queue: str, name: StageName, part: int, messages: Sequence[Message], *, now: int, until: int
    ) -> tuple[int, int]:
        """Keep messages as a part of a stage, all or none, until the stage is committed, discarded or runs out: how
        many, and their bytes. A part that is there already stays as it is and is the answer. A stage runs out when
        `until` of its last part has come. Raise `NoSpace` if the disk is nearly full."""
        ...

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
        """Put all messages of some stages, named (partition, attempt), into the queue, in that order and by part, in
        one change that is made once per (job, batch) until `until`; later ones get its answer, `repeated`.

        Each message gets `sent_at = now`, its times from now, and an id: parts follow each other in the ids that
        are reserved, and `stretches` says where each message of a part is. Dedup ids, `room` and history are as in
        `put`; a message that is not added leaves its id unused. All stages of the (job, batch) are gone then, also
        those not named. Raise `StageUnknown` if one is not there at `now`, and `QueueFull`; nothing is changed then.
        """
        ...

    async def discard_stages(self, queue: str, job: str, batch: str) -> int:
        """Remove all stages of a (job, batch), and say how many there were."""
        ...

    async def stages(self, queue: str, *, now: int) -> list[Stage]:
        """All stages that have not run out at `now`, by name."""
        ...

    # History and upkeep

    async def history(self, *, after: int, limit: int, queue: str | None) -> HistoryPage:
        """Up to `limit` records with offsets above `after`, of one queue if given. A page may be short
        or empty though more follow; at the end `next` no longer rises."""
        ...

    async def history_span(self) -> HistorySpan: ...

    async def trim_history(self, upto: int) -> None:
        """Forget records with offsets up to `upto`, or a few less where they are stored together."""
        ...

    async def tidy(self, *, now: int, limit: int) -> int:
        """Remove up to about `limit` records that have no meaning any more (dedup records, stages and acked claims
        that ran out, remains of deleted queues); say how many."""
        ...

    async def backup(self, path: str) -> None:
        """Write a consistent copy to the new folder `path` while work goes on."""
        ...

    # Copying to another store

    def dump(self) -> AsyncIterator[list[Item]]:
        """Everything the store holds, in portions, while nobody changes it: see `transfer.py`. Acked claims that
        could still be read are not among it; raises `InvalidRequest` if a claim is held."""
        ...

    async def load(self, items: Sequence[Item], *, now: int) -> None:
        """Take up a portion that any store dumped. The first portion comes to a store that is empty."""
        ...
