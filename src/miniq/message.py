"""The records shared by all packages: drafts, messages and their state, queues, claims, stages, history.

All are frozen. Moments are integers, microseconds since 1970 UTC; durations that people type are in seconds. `body` is
the bytes that the sender gave; with a JSON content type they are JSON text.

A new field of a message is added to `Draft` and `DraftOptions` if senders give it, and at the end of `Message`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Literal, TypedDict, overload

from msgspec import Struct

JSON = "application/json"
SECOND = 1_000_000
NEVER = 2**62
"""A moment that is never reached: the deadline of a claim."""

Status = Literal["ready", "delayed", "leased"]
History = Literal["off", "events", "full"]
Mode = Literal["at-least-once", "at-most-once"]
Outcome = Literal["done", "stale", "leased", "missing"]
"""The result of a conditional change: done; the receipt is not the current one; the message is leased; there is no such
message."""


class Draft(Struct, frozen=True, omit_defaults=True, gc=False):
    """A message to send. With `delay=None` the queue's own delay applies."""

    body: bytes
    content_type: str = JSON
    headers: dict[str, str] | None = None
    priority: int = 0
    delay: float | None = None
    ttl: float | None = None
    key: str | None = None
    recipient: str | None = None
    group: str | None = None
    dedup_id: str | None = None


class DraftOptions(TypedDict, total=False):
    """The keywords of `send` and `draft`: the fields of `Draft` beside the body."""

    content_type: str | None
    headers: Mapping[str, str] | None
    priority: int
    delay: float | None
    ttl: float | None
    key: str | None
    recipient: str | None
    group: str | None
    dedup_id: str | None


class PlainDrafts(Sequence[Draft]):
    """Drafts that differ only in their bodies. `Draft` objects are created only when an element is accessed."""

    __slots__ = ("bodies", "content_type")

    def __init__(self, bodies: list[bytes], content_type: str = JSON) -> None:
        self.bodies = bodies
        self.content_type = content_type

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[Draft]:
        return map(Draft, self.bodies, repeat(self.content_type))

    @overload
    def __getitem__(self, index: int) -> Draft: ...
    @overload
    def __getitem__(self, index: slice) -> PlainDrafts: ...
    def __getitem__(self, index: int | slice) -> Draft | PlainDrafts:
        if isinstance(index, slice):
            return PlainDrafts(self.bodies[index], self.content_type)
        return Draft(self.bodies[index], self.content_type)


class DeadLetter(Struct, frozen=True, array_like=True, gc=False):
    """The queue a dead letter came from, why it was moved, how often it was received there, and when it was moved."""

    origin: str
    reason: str
    receives: int
    at: int


class Message(Struct, frozen=True, array_like=True, gc=False):
    """A message as it was sent (or last edited or moved). The position of a field is the format on disk: add new fields
    at the end, with a default."""

    id: str
    queue: str
    sent_at: int
    due_at: int
    """When it first becomes ready: `sent_at` plus its delay."""
    body: bytes
    content_type: str = JSON
    priority: int = 0
    headers: dict[str, str] | None = None
    expires_at: int | None = None
    key: str | None = None
    recipient: str | None = None
    group: str | None = None
    dedup_id: str | None = None
    dead: DeadLetter | None = None
    lifetime: int | None = None
    """Of a message that is or was a dead letter: its ttl, which starts again when it is redriven."""

    @property
    def size(self) -> int:
        """Its bytes for `max_bytes` and statistics: body, header names and header values."""
        if self.headers is None:
            return len(self.body)
        return len(self.body) + sum(len(k) + len(v) for k, v in self.headers.items())


class PlainBatch(Sequence[Message]):
    """Messages that were sent together and differ only in id and body. `Message` objects are created only when an
    element is accessed: most messages go from the wire to the disk and back without one."""

    __slots__ = ("bodies", "content_type", "due_at", "ids", "priority", "queue", "sent_at")

    def __init__(
        self,
        ids: list[str],
        queue: str,
        sent_at: int,
        due_at: int,
        bodies: list[bytes],
        content_type: str = JSON,
        priority: int = 0,
    ) -> None:
        self.ids = ids
        self.queue = queue
        self.sent_at = sent_at
        self.due_at = due_at
        self.bodies = bodies
        self.content_type = content_type
        self.priority = priority

    @property
    def size(self) -> int:
        """The bytes of all messages."""
        return sum(map(len, self.bodies))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Message]:
        return map(
            Message,
            self.ids,
            repeat(self.queue),
            repeat(self.sent_at),
            repeat(self.due_at),
            self.bodies,
            repeat(self.content_type),
            repeat(self.priority),
        )

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> PlainBatch: ...
    def __getitem__(self, index: int | slice) -> Message | PlainBatch:
        ids, bodies = self.ids[index], self.bodies[index]
        if isinstance(ids, list) and isinstance(bodies, list):
            return PlainBatch(ids, self.queue, self.sent_at, self.due_at, bodies, self.content_type, self.priority)
        assert isinstance(ids, str) and isinstance(bodies, bytes)  # noqa: S101, PT018
        return Message(ids, self.queue, self.sent_at, self.due_at, bodies, self.content_type, self.priority)


SHOWN = tuple(name for name in Draft.__struct_fields__ if name in Message.__struct_fields__)
"""The fields that a sender gives and a receiver sees."""
special_of = attrgetter(*Message.__struct_fields__[Message.__struct_fields__.index("priority") + 1 :])
"""The fields that only some messages have, and a `PlainBatch` does not."""
_NOTHING_SPECIAL = special_of(Message("", "", 0, 0, b""))


def is_plain(message: Message) -> bool:
    """Whether a message can be part of a `PlainBatch`."""
    return bool(special_of(message) == _NOTHING_SPECIAL)


class Stored(Struct, frozen=True, gc=False):
    """A message with its current state. One timestamp serves delay and lease."""

    message: Message
    visible_at: int
    receives: int = 0
    receipt: str | None = None
    consumer: str | None = None

    def status(self, now: int) -> Status:
        """Ready from `visible_at` on; before that, leased if there is a receipt, else delayed."""
        if self.visible_at <= now:
            return "ready"
        return "delayed" if self.receipt is None else "leased"


class Page(Struct, frozen=True):
    """Some messages of a queue and the cursor of the next page, None at the end."""

    messages: list[Stored]
    next: str | None
    looked: int | None = None
    """How many messages a search examined."""


class QueueSettings(Struct, frozen=True, kw_only=True):
    """How a queue behaves. Durations are in seconds; a limit of 0 means unlimited."""

    visibility_timeout: float = 30.0
    max_receives: int | None = None
    dead_letter_queue: str | None = None
    retention: float = 14 * 86400.0
    delay: float = 0.0
    dedup_window: float = 300.0
    max_length: int = 0
    max_bytes: int = 0
    history: History = "off"
    claim_retention: float = 3600.0


class QueueChanges(TypedDict, total=False):
    """The keywords of `configure`: the fields of `QueueSettings`. Settings that are not given stay as they are."""

    visibility_timeout: float
    max_receives: int | None
    dead_letter_queue: str | None
    retention: float
    delay: float
    dedup_window: float
    max_length: int
    max_bytes: int
    history: History
    claim_retention: float


class Counts(Struct, frozen=True):
    """How many messages a queue holds in each state, their bytes, and when the oldest message that is available to any
    consumer was sent (to the millisecond)."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    bytes: int = 0
    oldest: int | None = None

    @property
    def total(self) -> int:
        return self.ready + self.delayed + self.leased


class ConfiguredQueue(Struct, frozen=True):
    """A queue's name, settings, current counts, and the redrive that is running on it, if any. A caller that may
    configure the queue but not read it gets no counts."""

    name: str
    settings: QueueSettings
    counts: Counts | None
    redrive: RedriveProgress | None = None


class QueueInfo(ConfiguredQueue, frozen=True):
    """A queue's name, settings, current counts, and the redrive that is running on it, if any."""

    counts: Counts


class RedriveProgress(Struct, frozen=True, omit_defaults=True):
    """The progress of a redrive: messages moved, messages skipped, whether it still runs, and how many were skipped for
    each reason: `no_source`, `expired`, `leased`, `missing`, `queue_full`, `forbidden`."""

    moved: int
    skipped: int
    running: bool
    reasons: dict[str, int] = {}


class Lease(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message's id with the receipt that proves ownership."""

    id: str
    receipt: str


class Extended(Struct, frozen=True):
    """The outcome of each lease, and when the extended ones end."""

    outcomes: list[Outcome]
    until: int


class Claim(Struct, frozen=True, gc=False):
    """A frozen batch of messages, numbered within its group. Held until it is acked, then readable for
    `claim_retention`."""

    number: int
    messages: int
    bytes: int
    made_at: int
    acked_at: int | None = None


class ClaimGroup(Struct, frozen=True):
    """The claims of one group: the epoch of its newest reader, the last number acked, the last number given out, and
    the claims that can be read."""

    group: str
    epoch: int = 0
    acked: int = 0
    last: int = 0
    claims: list[Claim] = []


class Portion(Struct, frozen=True):
    """Consecutive messages of a claim, and how often each of them was received."""

    messages: Sequence[Message]
    receives: int

    def __len__(self) -> int:
        return len(self.messages)

    def each(self, receipt: str, readers: str) -> list[Stored]:
        """The messages as leased by the claim: its name is the receipt, its group the consumer."""
        return [Stored(message, NEVER, self.receives, receipt, readers) for message in self.messages]


class StageName(Struct, frozen=True, gc=False):
    """Identifies a stage: an attempt of a task (partition) of a batch of a job."""

    job: str
    batch: str
    partition: str
    attempt: str


class Stage(Struct, frozen=True, gc=False):
    """Messages that were uploaded and are not committed yet: how many, in how many parts, when created and when they
    expire. `alone` of them have a recipient, group or dedup id."""

    name: StageName
    parts: int
    messages: int
    bytes: int
    made_at: int
    until: int
    alone: int = 0


class Committed(Struct, frozen=True):
    """How many messages a commit added, and whether an earlier commit had added them."""

    messages: int
    repeated: bool = False


EventName = Literal["sent", "received", "acked", "released", "expired", "dead", "edited", "purged", "redriven"]


class Event(Struct, frozen=True, array_like=True, gc=False):
    """One line of history. A message arrives in a queue by `sent` and leaves it by `acked`, `dead`, `purged`,
    `redriven`, or `expired` with reason `ttl` or `retention`. `expired` with reason `lease` is a lease that ran out."""

    at: int
    event: EventName
    queue: str
    id: str
    receives: int = 0
    size: int = 0
    """Its bytes; `bytes` on the wire."""
    consumer: str | None = None
    wait_ms: float | None = None
    """On `received`: from when it was ready until it was received."""
    held_ms: float | None = None
    """On events that end a lease: how long the consumer held it."""
    reason: str | None = None
    body: bytes | None = None
    """On `sent` and `edited`, where the queue's history is `full`."""
    content_type: str | None = None
    count: int = 1
    """How many messages the event covers: on `purged` without an id, all messages of the queue."""


class HistoryRecord(Struct, frozen=True):
    """An event with its offset in the history: offsets rise by one and are never reused."""

    offset: int
    event: Event


class HistoryPage(Struct, frozen=True):
    """Some records, the offset to give as `after` for the next page, and the first and last offset of the history at
    that time (`last < first` when it is empty)."""

    records: list[HistoryRecord]
    next: int
    first: int = 1
    last: int = 0


class HistorySpan(Struct, frozen=True):
    """The extent of the history: first and last offset (`last < first` when empty), bytes, and the time of its oldest
    event."""

    first: int
    last: int
    bytes: int
    oldest_at: int | None
