"""The store contract: one atomic, conditional change at a time, and no queue rules.

A store has five parts, `messages`, `claims`, `stages`, `results` and `history`; queues, small records, the lifecycle
and copying belong to the store itself. A call names its subject (a queue, a group, fences, messages) and passes one
record with the details. Decisions that all stores make alike are in `decisions.py`.

A store knows two predicates. A message can be taken when `visible_at <= now`, in queue order. A message may be changed
only while its fence holds. Everything else (limits, deadlines, ids, tokens, dead-lettering) is computed by the broker
and passed in. `now` is always an argument; no store reads a clock.

**Queue order** is higher priority first, then lower id. A message with a recipient is visible only to that consumer.

**Groups.** Messages of a group are taken in order. Its *front* is the messages of it that were taken and have not left
the queue. The *head* is the lowest id of the front; of a group without a front, the first message to arrive, and when
that leaves, the lowest remaining id. Of a group only the head can be taken, and nothing while one of its messages is
leased. A take with `group_batch` that gets the head also gets the messages after it, next to it in the answer: those of
the front by id, then the others by id, up to the first that is not visible, is for another recipient, or exceeds the
limits of the take.

**Fences.** A change names `(id, receipt)`. A receipt matches while it is the one of the last take, even after that
lease expired. `FREE` matches when the message is not leased at `now`; `ANY` always matches.
Outcomes: `done`; `stale` (receipt differs); `leased` (wanted `FREE`); `missing` (no such message).

**Claims.** A claim is a lease that does not expire: `visible_at = NEVER`, `receipt` its name (`claim_name`), `consumer`
its group. It is numbered from 1 within (queue, group), and frozen: no fence matches a message in a claim, not even
`ANY`; the outcome is `leased`. Its messages leave it all at once, when the claim is acked or released, or with the
queue. Numbers are never reused while the queue exists.

**Stages.** Messages can be uploaded part by part into invisible stages, and many stages of one (job, batch) be
committed in one change, once. A staged message has no id; its `sent_at` is 0, its `due_at` and `expires_at` count from
the commit, which makes it a message like any other.

**Results.** A `drop` or `move` with `remember` keeps, in the same change, how each of its messages was finished; a
message that it does not remove leaves what is kept as it is. A result is found until its time is over. It is kept
beside the messages of its queue and counts for none of their limits; it stays when the queue is purged, and goes with
the queue.

**Durability.** When a call returns, its change survives `kill -9`. Unless it is a `take`, it also survives power loss.
A crash leaves a claim whole or not at all. A message can be taken, found and scanned only once its `put` is durable.

**Sharing.** With `shared`, several brokers may work on the same data. What a broker caches of queues and records may
then be stale; `revision` and `on_change` tell when to read it again.

**History.** With `keep` other than `off`, the events of a change are written in the same atomic change. Offsets start
at 1, rise by one, have no gaps and are never reused.

**Numbers.** In each queue, at any moment, the messages that arrived (`sent`) minus those that left (`acked`, `purged`,
`dead`, `redriven`, `expired` with reason `ttl` or `retention`) are those that `counts` finds: according to the history,
and according to the answers of the calls, from which the broker makes its metrics. So every answer is exact, with and
without a history. A lease has expired if its message is taken, claimed, or changed under `FREE` in a way that ends its
receipt (`drop`, `move`, an `edit` of `due_at`): that change records `expired` with reason `lease` before its own event,
and reports it by `on_lease_expired`. After a late call with the receipt the lease has not expired.

**Errors.** A message keeps the `error` of its last `reschedule` that had one. A `take`, a claim, or an `edit` of
`due_at` that finds its lease expired sets it to `LEASE_EXPIRED`. It leaves with the message: a message that is moved
arrives without one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from miniq.batch import Claim, ClaimGroup, Committed, Portion, Stage
from miniq.consumer import Holding
from miniq.errors import IdempotencyMismatch, MiniQError, QueueNotFound
from miniq.message import (
    Counts,
    History,
    HistoryPage,
    HistorySpan,
    Message,
    Outcome,
    Page,
    PlainBatch,
    QueueSettings,
    Stored,
)
from miniq.result import Finished
from miniq.store.arguments import (
    Batch,
    Change,
    Draw,
    Edit,
    Fence,
    NewTime,
    NextClaim,
    Once,
    Places,
    Publication,
    Put,
    PutResult,
    RecordChange,
    RecordSet,
    Room,
    Scan,
    Take,
    Upload,
)
from miniq.store.transfer import Item
from miniq.topic import Published

T = TypeVar("T")
HOME = "default"
"""The queue that always exists. Records of what was published are kept with its own."""
UNFIT = 1000
"""How many unfit messages a claim skips at most."""
ReadyHint = Callable[[str, str | None, int], None]
"""Called with (queue, recipient or None, count) when messages arrived or were given back, due now or later."""
ChangeHint = Callable[[], None]
"""Called when another broker changed queues or records."""
FinishHint = Callable[[str], None]
"""Called with a queue of which another broker has finished messages whose results are kept."""
LeaseCount = Callable[[str, int], None]
"""Called with (queue, count) after a change that found this many leases expired. Exact, not a hint."""


class ByName(dict[str, T]):
    """Queues by name. A missing one was never created, or was deleted during a call."""

    def __missing__(self, name: str) -> T:
        raise no_queue(name)


def no_queue(name: str) -> QueueNotFound:
    """The error for a queue that does not exist."""
    return QueueNotFound(f"queue: there is no queue {name!r}", field="queue")


class RecordChanged(MiniQError):
    """A small record was not what it was expected to be: another call or broker has changed it."""

    def __init__(self, change: RecordChange) -> None:
        super().__init__(f"store: the {change.kind} {change.name!r} was changed meanwhile; try again", field="store")


class RevisionChanged(MiniQError):
    """Another broker has changed queues or records since the revision that a change was based on."""

    def __init__(self) -> None:
        super().__init__("store: queues or records were changed meanwhile; try again", field="store")


class Claimed(Struct, frozen=True):
    """The result of `ClaimStore.next`."""

    claim: Claim | None
    """The claim after `after`, None if there were no messages for it."""
    epoch: int
    made: bool = False
    """Whether this call made it."""
    acked: int = 0
    """How many messages this call acked."""
    unfit: list[Stored] = []
    """Messages that were skipped, up to `UNFIT`."""


class MessageStore(Protocol):
    """The messages of all queues."""

    async def put(self, messages: Sequence[Message], put: Put) -> list[str]:
        """Add messages of one existing queue, all or none; each is ready at its `due_at`.

        A message whose `dedup_id` is on record and has not expired at `now` is not added; the answer has the recorded
        id. Other dedup ids are recorded until `dedup_until`. A `call` on record adds nothing: see
        `decisions.repeated_call`. Raises `QueueFull` if the queue would exceed `room`, `NoSpace` if the disk is nearly
        full. A `record` is changed in the same change, also if no message is added; raises `RecordChanged`, with
        nothing changed, if it is not what it was.
        """

    async def put_each(
        self, batch: PlainBatch, calls: Sequence[Once | None], change: Change
    ) -> list[list[str] | IdempotencyMismatch]:
        """Add messages each of which is a call of its own, named or not. A repeated call, also within the batch, adds
        nothing; each call gets its own answer, or the reason why it was refused."""
        answers: list[list[str] | IdempotencyMismatch] = []
        for message, call in zip(batch, calls, strict=True):
            try:
                answers.append(await self.put([message], Put(now=change.now, keep=change.keep, call=call)))
            except IdempotencyMismatch as error:
                answers.append(error)
        return answers

    async def publish(self, publication: Publication) -> Published:
        """Add messages to several existing queues, in all of them or in none; each copy has the id of its message.

        A message whose dedup id is on record for the `scope` is not added; the answer has the recorded id. Other dedup
        ids are recorded until `dedup_until`. A `call` on record adds nothing: see `decisions.repeated_publication`.
        These records are kept with those of the queue `HOME`, which always exists. Raises `QueueFull` if one of the
        queues would exceed its `room`, and `QueueNotFound` if one does not exist, with nothing changed. A `record` is
        changed in the same change, as with `put`. The history gets a `published` event, and the arrivals in each queue
        that keeps one.
        """

    async def take(self, queue: str, take: Take) -> list[Stored]:
        """Lease up to `limit` messages to `consumer` until `until`, in queue order; with `group_batch`, messages of a
        group directly after its head.

        Each gets `receipt = token`, `visible_at = until`, `receives + 1`. Takes no more than leaves `in_flight` of the
        queue leased at `now`, also with concurrent takes. Stops before `max_bytes` is exceeded, but returns at
        least one message. If an earlier lease of a message expired, `expired` (reason `lease`) precedes its
        `received` in the history. Messages that are not `fit` are leased like the others, but not `received`; the
        broker then drops or moves them.
        """

    async def draw(self, queue: str, draw: Draw) -> int:
        """Take up to `count` whole tokens from the bucket of a queue, and return how many there were; a new bucket is
        full. A store that is not `shared` has none: the broker keeps it."""
        return draw.count

    async def drop(self, queue: str, fences: Sequence[Fence], change: Change) -> list[Outcome]:
        """Remove messages, each under its own fence."""

    async def reschedule(self, queue: str, fences: Sequence[Fence], to: NewTime, change: Change) -> list[Outcome]:
        """Set `visible_at`, as `to` says of each message; with `release` also clear receipt and consumer; with `error`
        also set that. `receives` stays; with `unused`, a message that has a receipt gets one less. It has been taken
        all the same, and stays in the front of its group."""

    async def edit(self, queue: str, fence: Fence, edit: Edit, change: Change) -> Outcome:
        """Change one message in place; its lease continues unless `due_at` is set. Raises `NoSpace` if the disk is
        nearly full."""

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        change: Change,
        keep_to: History,
        room: Room | None = None,
    ) -> list[Outcome]:
        """Remove messages from `queue` and, in the same change, put each as given into the existing queue it names,
        ready at its `due_at`, with `receives` 0 and no receipt. Its id, which no message of that queue has, may differ
        from the one in the fence; results and events of `queue` have the latter. `keep_to` is the history setting for
        their arrivals. With `room`, all go to one queue; raises `QueueFull`, with nothing changed, if that has no room.
        The history of the change has the error of each dead letter."""

    async def clear(self, queue: str, change: Change, forget: bool = False) -> int:
        """Remove all messages in any state and return how many there were. The history gets one `purged` event with
        their `count`, if any. Stages stay, and so do the records of calls and, unless `forget`, of dedup ids. All
        claims end: see `decisions.ended`."""

    async def find(self, queue: str, ids: Sequence[str]) -> dict[str, Stored]:
        """The messages with these ids that exist, by id."""

    async def scan(self, queue: str, scan: Scan) -> Page:
        """Browse without changing anything. Order and cursor are the store's own; while nothing changes, following
        `next` returns every message once. A page may be shorter than `limit`."""

    async def held(self, queue: str, token: str, until: int) -> list[Stored]:
        """The messages that are leased under `token` until `until`, in order of id."""

    async def counts(self, queue: str, now: int) -> Counts:
        """How many messages are in each state."""

    async def holdings(self, queue: str, now: int) -> dict[str | None, Holding]:
        """What each consumer holds at `now`, those in claims included; None is all consumers without a name."""

    async def next_visible(self, queue: str, now: int) -> int | None:
        """The earliest `visible_at` after `now` of a leased or delayed message; claims have none."""


class ClaimStore(Protocol):
    """The claims of all queues. `decisions.plan_claim` decides, the store carries out."""

    async def open(self, queue: str, group: str, id: str = "") -> ClaimGroup:
        """Raise the epoch of a group by one; a new group starts at 0. A group that has no id gets this one."""

    async def next(self, queue: str, group: str, asked: NextClaim) -> Claimed:
        """Ack all claims up to `after`, then return the next one. Idempotent; a crash may fall between the two.

        Raises as `decisions.check_reader`, with nothing changed. Acked messages leave the queue (`acked` in the
        history) and stay readable until `keep_until`. If claim `after + 1` exists, it is returned, acked or not;
        `ClaimGone` if it is no longer readable. Otherwise it is made, with `made_at = now`, from up to `limit` messages
        that `consumer` could take and that are `fit`, in queue order (`received` in the history, as with `take`); it
        stops before `max_bytes` is exceeded, but has at least one message. Takeable messages that are not fit stay as
        they are and are returned, up to `UNFIT`; after that many the claim may end. Without any fit message no claim is
        made and its number stays unused. With `limit` 0 nothing is made or returned.
        """

    async def find(self, queue: str, group: str, number: int, now: int) -> Claim:
        """One claim, held or acked; raises `decisions.no_claim` if it is not readable at `now`."""

    async def read(self, queue: str, group: str, number: int, places: Places) -> list[Portion]:
        """Some messages of a claim, by priority (higher first), then id; always the same, acked or not. Stops before
        `max_bytes` is exceeded, but returns at least one. Raises as `find`. Reads no more than it returns."""

    async def mark(self, queue: str, group: str, number: int, reader: str) -> None:
        """Record that a reader fetches a claim, as `decisions.marks` says. Durable when it returns: the reader may ack
        as soon as it has the messages, after any crash. Does nothing to a claim that is not held."""

    async def release(self, queue: str, group: str, epoch: int | None, change: Change) -> int:
        """Give back all messages of unacked claims (`released` in the history), ready at `now`, and return how many.
        Those claims end: see `decisions.ended`. Raises as `decisions.check_reader`."""

    async def groups(self, queue: str, now: int) -> list[ClaimGroup]:
        """All groups by name, with their claims that are readable at `now` by number."""

    async def all_groups(self, now: int, held: bool = False) -> dict[str, list[ClaimGroup]]:
        """The same of every queue that has groups, by queue. With `held`, only the claims that are not acked, and only
        the groups that have such claims."""


class StageStore(Protocol):
    """Uploaded messages that are not committed yet."""

    async def upload(self, queue: str, upload: Upload, messages: Sequence[Message]) -> tuple[int, int]:
        """Keep messages as a part of a stage, all or none, until the stage is committed, discarded or expires. Returns
        the number of messages and bytes of the part; an existing part stays as it is. A stage expires with the last
        `until` of its parts. Raises `NoSpace` if the disk is nearly full."""

    async def commit(self, queue: str, batch: Batch) -> Committed:
        """Put all messages of some stages into the queue, in that order and by part, in one change that is made once
        per (job, batch) until `until`; repetitions get the first answer, `repeated`.

        Each message gets `sent_at = now`, its times relative to now, and an id: the parts follow each other in the
        reserved ids, and `decisions.stretches` gives the position of each message in a part. Dedup ids, `room` and
        history are as in `put`; a message that is not added leaves its id unused. All stages of the (job, batch) are
        removed, also those not named. Raises `StageUnknown` if one does not exist at `now`, and `QueueFull`, with
        nothing changed.
        """

    async def read(self, queue: str, batch: Batch) -> list[Sequence[Message]] | Published:
        """The messages of some stages as they were uploaded, in the order of a commit, for a publication whose `call`
        is that of `put`. Changes nothing. If that publication is on record, the answer is the first one, as in
        `MessageStore.publish`. Raises `StageUnknown` as `commit` does."""

    async def discard(self, queue: str, job: str, batch: str) -> int:
        """Remove all stages of a (job, batch) and return how many there were."""

    async def list(self, queue: str, now: int) -> list[Stage]:
        """All stages that have not expired at `now`, by name."""


class ResultStore(Protocol):
    """How messages were finished; written by `MessageStore.drop` and `move`, and by `put` under ids of the callers."""

    async def find(self, queue: str, ids: Sequence[str], now: int) -> dict[str, Finished]:
        """The results with these ids that are kept at `now`, by id; also of a message that is in the queue again."""

    async def put(self, queue: str, id: str, put: PutResult) -> bool:
        """Keep a result under an id instead of what was kept, or keep none any more; False, with no change, if what is
        kept is not what was expected."""


class HistoryStore(Protocol):
    """The events of all queues, by offset."""

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage:
        """Up to `limit` records with offsets above `after`, of one queue if given. A page may be short or empty though
        more follow; at the end `next` no longer rises."""

    async def span(self) -> HistorySpan:
        """The first and last offset, and the size."""

    async def trim(self, upto: int) -> None:
        """Remove records with offsets up to `upto`, or slightly fewer where they are stored together."""


class Store(Protocol):
    """One broker's durable state. Calls may run concurrently in one event loop."""

    shared: bool
    """Whether other brokers may work on the same data."""
    on_ready: ReadyHint
    """A hint for long polls that may be wrong or missing. The broker sets it."""
    on_change: ChangeHint
    """A hint that queues or records may have changed. The broker sets it."""
    on_finished: FinishHint
    """A hint for calls that wait for results, which may be wrong or missing. The broker sets it."""
    on_lease_expired: LeaseCount
    """How many leases a change of this broker found expired. The broker sets it."""

    # Read-only here, so that a store may have its own class for each part.
    @property
    def messages(self) -> MessageStore: ...
    @property
    def claims(self) -> ClaimStore: ...
    @property
    def stages(self) -> StageStore: ...
    @property
    def results(self) -> ResultStore: ...
    @property
    def history(self) -> HistoryStore: ...

    async def open(self) -> None:
        """Prepare for use; raises `StoreLocked`, `StoreCorrupt`, `StoreFormat` or `StoreUnavailable`."""

    async def close(self) -> None:
        """Write pending changes and release all resources. Idempotent."""

    def failure(self) -> Exception | None:
        """The error that made this store permanently unusable, None while it works. Asked every second: a store on disk
        looks whether its folder is still the one that was opened."""

    async def check(self) -> None:
        """Raise `StoreUnavailable` if the store is unreachable."""

    def hint(self, queue: str, count: int) -> None:
        """Give other brokers the hint that `count` more messages of a queue may be handed out."""

    def check_space(self, size: int, count: int) -> None:
        """Raise `NoSpace` if the disk is nearly full, before that many bytes in so many pieces are written. `put`,
        `publish`, `upload` and `edit` do that themselves. A database says so when it refuses a change."""

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        """All queues with their settings."""

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        """Create a queue or replace its settings."""

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        """Create a queue that does not exist (`was` None), or replace settings that still equal `was`; False if they do
        not."""

    async def delete_queue(self, name: str, change: Change, records: RecordSet | None = None) -> bool:
        """Remove a queue with all its messages, stages, results and dedup records; False if it does not exist. The
        history gets one `purged` event (reason `deleted`) with the number of messages, if any. With `records`, these
        are changed in the same change, or nothing is: see `save_records`."""

    async def records(self, kind: str) -> dict[str, bytes]:
        """Small records that the broker keeps beside the messages, such as API keys, by name."""

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        """Write a small record, or remove it."""

    async def save_records(self, records: RecordSet) -> None:
        """Write and remove small records, all or none; raises `RevisionChanged`."""

    async def add_record(self, kind: str, name: str, value: bytes) -> bytes:
        """Write a small record unless it exists; the one that is there now, whichever broker wrote it."""

    async def change_record(self, change: RecordChange) -> bool:
        """Write, replace or remove a small record that still is what it was; False if it is not."""

    async def revision(self) -> int:
        """A number that changes with every change of queues or records that is not quiet, by any broker."""

    async def last_id(self) -> str:
        """An id not below any message id so far, "" if there was none."""

    # Upkeep

    async def tidy(self, now: int, limit: int) -> int:
        """Remove up to about `limit` obsolete records (expired dedup records, results, stages and acked claims,
        remains of deleted queues) and return how many."""

    async def backup(self, path: str) -> None:
        """Write a consistent copy to the new folder `path` while work goes on."""

    # Copying to another store

    def dump(self) -> AsyncIterator[list[Item]]:
        """Everything the store holds, in portions, while nothing changes it: see `transfer.py`. Acked claims are left
        out; raises `InvalidRequest` if a claim is held."""

    async def load(self, items: Sequence[Item], now: int) -> None:
        """Add a portion dumped by any store. The first portion goes to an empty store."""


class SingleProcessStore:
    """Base of stores that only one broker can open."""

    shared = False

    def __init__(self) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.on_change: ChangeHint = lambda: None
        self.on_finished: FinishHint = lambda queue: None
        self.on_lease_expired: LeaseCount = lambda queue, count: None

    async def check(self) -> None:
        return

    def hint(self, queue: str, count: int) -> None:
        return

    def check_space(self, size: int, count: int) -> None:
        return

    async def revision(self) -> int:
        return 0
