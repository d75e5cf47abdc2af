"""The store contract: one atomic, conditional change at a time, and no queue rules.

A store has four parts, `messages`, `claims`, `stages` and `history`; queues, small records, the lifecycle and copying
are its own. A call names what it is about (a queue, a group, fences, messages) and has one record that says how. What
all stores decide in the same way stands in `decisions.py`.

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

from msgspec import Struct

from miniq.errors import QueueNotFound
from miniq.message import (
    Claim,
    ClaimGroup,
    Committed,
    Counts,
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
    Stored,
)
from miniq.store.arguments import Batch, Change, Edit, Fence, NewTime, NextClaim, Once, Places, Put, Scan, Take, Upload
from miniq.store.transfer import Item

T = TypeVar("T")
UNFIT = 1000
"""How many messages a claim passes over at most."""

ReadyHint = Callable[[str, str | None, int], None]
"""Called with (queue, recipient or None, how many) when messages came or came back, due now or later."""

ChangeHint = Callable[[], None]
"""Called when another broker changed queues or records."""


class ByName(dict[str, T]):
    """Queues by name. One that is not there was deleted while a call was under way, or never made."""

    def __missing__(self, name: str) -> T:
        raise no_queue(name)


def no_queue(name: str) -> QueueNotFound:
    """There is no queue of this name."""
    return QueueNotFound(f"queue: there is no queue {name!r}", field="queue")


class Claimed(Struct, frozen=True):
    """What `ClaimStore.next` did."""

    claim: Claim | None
    """The claim that follows `after`, None if there was nothing to make it from."""
    epoch: int
    made: bool = False
    """Whether this call made it."""
    acked: int = 0
    """How many messages this call acked."""
    unfit: list[Stored] = []
    """Messages that were passed over, up to `UNFIT` of them."""


class MessageStore(Protocol):
    """The messages of all queues."""

    async def put(self, messages: Sequence[Message], put: Put) -> list[str]:
        """Add messages, all of one existing queue, all or none; ready at their `due_at`.

        A message with a `dedup_id` that stands in the queue's records and has not run out at `now` is
        not added; the answer has the id that stands. Others with a `dedup_id` are recorded until
        `dedup_until`. A `call` that stands in the queue's records adds nothing at all and gets the ids it
        got the first time. Raise `QueueFull` if the queue would then hold more than `room`, `NoSpace` if the
        disk is nearly full.
        """
        ...

    async def put_each(
        self, batch: PlainBatch, calls: Sequence[str | None], until: int, change: Change
    ) -> list[list[str]]:
        """Add messages of which each is a call of its own, known until `until` by its name if it has one. A call that
        was made before, also in the same batch, adds nothing; each gets its own answer."""
        answers: list[list[str]] = []
        for message, name in zip(batch, calls, strict=True):
            call = None if name is None else Once(name, until)
            answers.append(await self.put([message], Put(now=change.now, keep=change.keep, call=call)))
        return answers

    async def take(self, queue: str, take: Take) -> list[Stored]:
        """Lease up to `limit` messages to `consumer` until `until`, in queue order.

        Each gets `receipt = token`, `visible_at = until`, `receives + 1`. Stops before `max_bytes` is
        passed, but gives at least one. If one had a lease that ran out, `expired` (reason `lease`)
        precedes its `received` in the history.
        """
        ...

    async def drop(self, queue: str, fences: Sequence[Fence], change: Change) -> list[Outcome]:
        """Remove messages, each on its own fence."""
        ...

    async def reschedule(self, queue: str, fences: Sequence[Fence], to: NewTime, change: Change) -> list[Outcome]:
        """Set `visible_at`; with `release` also forget receipt and consumer. `receives` stays."""
        ...

    async def edit(self, queue: str, fence: Fence, edit: Edit, change: Change) -> Outcome:
        """Change one message in place; its lease, if it has one, goes on unless `due_at` is set."""
        ...

    async def move(
        self, queue: str, moves: Sequence[tuple[Fence, Message]], change: Change, keep_to: History
    ) -> list[Outcome]:
        """Take messages out of `queue` and, in the same change, put each as given (same id) into the
        existing queue it names, ready at its `due_at`, with `receives` 0 and no receipt. `keep_to` is how much the
        history keeps of their arrivals."""
        ...

    async def clear(self, queue: str, change: Change) -> int:
        """Remove all messages, in whatever state, and say how many there were. Dedup records stay.
        The history gets one `purged` event with their `count`, if any. Stages stay. All claims are gone: see
        `decisions.ended`."""
        ...

    async def find(self, queue: str, ids: Sequence[str]) -> dict[str, Stored]:
        """Those of some messages that are there, by id."""
        ...

    async def scan(self, queue: str, scan: Scan) -> Page:
        """Browse without changing anything. Order and cursor are the store's own; while nothing changes,
        following `next` gives every message once. A page may be shorter than `limit`."""
        ...

    async def held(self, token: str) -> list[Stored]:
        """All messages whose receipt is `token`, in order of id."""
        ...

    async def counts(self, queue: str, now: int) -> Counts:
        """How many messages there are in each state."""
        ...

    async def next_visible(self, queue: str, now: int) -> int | None:
        """The earliest `visible_at` after `now` of a leased or delayed message; claims have none."""
        ...


class ClaimStore(Protocol):
    """The claims of all queues. `decisions.plan_claim` decides, the store carries out."""

    async def open(self, queue: str, group: str) -> ClaimGroup:
        """Raise the epoch of a group by one; a group that is not there begins with 0."""
        ...

    async def next(self, queue: str, group: str, asked: NextClaim) -> Claimed:
        """Ack all claims up to `after`, then give the next one. Harmless to repeat; a crash may fall between the two.

        Refused, and nothing is changed: see `decisions.check_reader`. Acked messages leave the queue (`acked` in the
        history) and stay readable until `keep_until`. If claim `after + 1` was made before, it is
        the answer, acked or not; `ClaimGone` if it can no longer be read. Otherwise it is made, with
        `made_at = now`, from up to `limit` messages that `consumer` could take and that are `fit`, in queue
        order (`received` in the history, as with `take`); it stops before `max_bytes` is passed, but has at least
        one. Those that could be taken but are not fit stay as they are and are answered, up to `UNFIT`; when
        that many were met the claim may end there. Without any fit message there is no claim, and its number is
        not used. With `limit` 0 nothing is made or given.
        """
        ...

    async def find(self, queue: str, group: str, number: int, now: int) -> Claim:
        """One claim, held or acked; raise as `decisions.no_claim` says if it cannot be read at `now`."""
        ...

    async def read(self, queue: str, group: str, number: int, places: Places) -> list[Portion]:
        """Some messages of a claim, by priority (higher first), then id; always the same, acked or not. Stops before
        `max_bytes` is passed, but gives at least one. Raises as `find`. Reads no more than it gives."""
        ...

    async def release(self, queue: str, group: str, epoch: int | None, change: Change) -> int:
        """Give all messages of claims that are not acked back (`released` in the history), ready at `now`, and
        say how many. Those claims are gone: see `decisions.ended`. Raises as `decisions.check_reader`."""
        ...

    async def groups(self, queue: str, now: int) -> list[ClaimGroup]:
        """All groups by name, with the claims that can be read at `now` by number."""
        ...


class StageStore(Protocol):
    """What is uploaded and not committed."""

    async def upload(self, queue: str, upload: Upload, messages: Sequence[Message]) -> tuple[int, int]:
        """Keep messages as a part of a stage, all or none, until the stage is committed, discarded or runs out: how
        many, and their bytes. A part that is there already stays as it is and is the answer. A stage runs out when
        `until` of its last part has come. Raise `NoSpace` if the disk is nearly full."""
        ...

    async def commit(self, queue: str, batch: Batch) -> Committed:
        """Put all messages of some stages into the queue, in that order and by part, in one change that is made once
        per (job, batch) until `until`; later ones get its answer, `repeated`.

        Each message gets `sent_at = now`, its times from now, and an id: parts follow each other in the ids that
        are reserved, and `decisions.stretches` says where each message of a part is. Dedup ids, `room` and history
        are as in `put`; a message that is not added leaves its id unused. All stages of the (job, batch) are gone
        then, also those not named. Raise `StageUnknown` if one is not there at `now`, and `QueueFull`; nothing is
        changed then.
        """
        ...

    async def discard(self, queue: str, job: str, batch: str) -> int:
        """Remove all stages of a (job, batch), and say how many there were."""
        ...

    async def list(self, queue: str, now: int) -> list[Stage]:
        """All stages that have not run out at `now`, by name."""
        ...


class HistoryStore(Protocol):
    """The events of all queues, by offset."""

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage:
        """Up to `limit` records with offsets above `after`, of one queue if given. A page may be short
        or empty though more follow; at the end `next` no longer rises."""
        ...

    async def span(self) -> HistorySpan:
        """How far it reaches."""
        ...

    async def trim(self, upto: int) -> None:
        """Forget records with offsets up to `upto`, or a few less where they are stored together."""
        ...


class Store(Protocol):
    """One broker's durable state. Calls may run concurrently in one event loop."""

    shared: bool
    """Whether other brokers may work on the same data."""

    on_ready: ReadyHint
    """A hint for long polls, never the truth. The broker sets it."""

    on_change: ChangeHint
    """A hint that queues or records are no longer what they were, never the truth. The broker sets it."""

    # Read-only here, so that a store may have its own class for each part.
    @property
    def messages(self) -> MessageStore: ...
    @property
    def claims(self) -> ClaimStore: ...
    @property
    def stages(self) -> StageStore: ...
    @property
    def history(self) -> HistoryStore: ...

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

    # Upkeep

    async def tidy(self, now: int, limit: int) -> int:
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

    async def load(self, items: Sequence[Item], now: int) -> None:
        """Take up a portion that any store dumped. The first portion comes to a store that is empty."""
        ...


class SingleProcessStore(ABC):
    """A store that only one broker has open: nobody else changes anything."""

    shared = False

    def __init__(self) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.on_change: ChangeHint = lambda: None

    async def check(self) -> None:
        return

    async def revision(self) -> int:
        return 0

    @abstractmethod
    async def queues(self) -> dict[str, QueueSettings]: ...

    @abstractmethod
    async def save_queue(self, name: str, settings: QueueSettings) -> None: ...

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        if (await self.queues()).get(name) != was:
            return False
        await self.save_queue(name, settings)
        return True
