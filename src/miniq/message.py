"""The records shared by all packages: drafts, messages and their state, queues, claims, stages, history.

All are frozen. Moments are integers, microseconds since 1970 UTC; durations that people type are in seconds. `body` is
the bytes that the sender gave; with a JSON content type they are JSON text.

A new field of a message is added to `Draft` and `DraftOptions` if senders give it, and at the end of `Message`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from operator import attrgetter
from typing import ClassVar, Literal, TypedDict, overload

from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.packed import Packed

JSON = "application/json"
OCTETS = "application/octet-stream"
NAME_LENGTH = 128
NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_LENGTH}}}")
"""Names of queues and topics."""
SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NEVER = 2**62
"""A moment that is never reached: the deadline of a claim."""

Status = Literal["ready", "delayed", "leased"]
History = Literal["off", "events", "full"]
Mode = Literal["at-least-once", "at-most-once"]
Outcome = Literal["done", "stale", "leased", "missing"]
"""The result of a conditional change: done; the receipt is not the current one; the message is leased; there is no such
message."""
LEASE_EXPIRED = "lease expired"
"""The error of a message whose lease ran out."""


def moment(micros: int) -> datetime:
    """A moment as a timestamp."""
    return EPOCH + timedelta(microseconds=micros)


class Draft(Struct, frozen=True, omit_defaults=True, gc=False):
    """A message to send. With neither `delay` nor `deliver_at` the queue's own delay applies."""

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
    deliver_at: datetime | None = None


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
    deliver_at: datetime | None


class PlainDrafts(Sequence[Draft]):
    """Drafts that differ only in their bodies. `Draft` objects are created only when an element is accessed."""

    __slots__ = ("bodies", "content_type")

    def __init__(self, bodies: Sequence[bytes], content_type: str = JSON) -> None:
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
    """The queue a dead letter came from, why it was moved, how often it was received there, when it was moved, and its
    last error. Stored like the fields of `Message`: by position."""

    origin: str
    reason: str
    receives: int
    at: int
    error: str | None = None


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
    topic: str | None = None
    """The topic it was published to."""

    @property
    def size(self) -> int:
        """Its size for `max_bytes` and statistics: the bytes of its body and the characters of its headers."""
        if self.headers is None:
            return len(self.body)
        return len(self.body) + sum(len(k) + len(v) for k, v in self.headers.items())


class PlainBatch(Sequence[Message]):
    """Messages that were sent together and differ only in id and body. `Message` objects are created only when an
    element is accessed: most messages go from the wire to the disk and back without one."""

    __slots__ = ("bodies", "content_type", "due_at", "ids", "priority", "queue", "sent_at", "topic")

    def __init__(
        self,
        ids: Sequence[str],
        queue: str,
        sent_at: int,
        due_at: int,
        bodies: Sequence[bytes],
        content_type: str = JSON,
        priority: int = 0,
        topic: str | None = None,
    ) -> None:
        self.ids = ids
        self.queue = queue
        self.sent_at = sent_at
        self.due_at = due_at
        self.bodies = bodies
        self.content_type = content_type
        self.priority = priority
        self.topic = topic

    @property
    def size(self) -> int:
        """The bytes of all messages."""
        bodies = self.bodies
        return len(bodies.blob) if isinstance(bodies, Packed) else sum(map(len, bodies))

    @property
    def sizes(self) -> list[int]:
        """The bytes of each message."""
        bodies = self.bodies
        return bodies.sizes if isinstance(bodies, Packed) else list(map(len, bodies))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[Message]:
        if self.topic is not None:
            return map(self.__getitem__, range(len(self.ids)))
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
        ids, bodies = self.ids, self.bodies
        common = (self.queue, self.sent_at, self.due_at)
        if isinstance(index, slice):
            kind = (self.content_type, self.priority, self.topic)
            return PlainBatch(ids[index], *common, bodies[index], *kind)
        return Message(ids[index], *common, bodies[index], self.content_type, self.priority, topic=self.topic)


SHOWN = tuple(name for name in Draft.__struct_fields__ if name in Message.__struct_fields__)
"""The fields that a sender gives and a receiver sees."""
special_of = attrgetter(*Message.__struct_fields__[Message.__struct_fields__.index("priority") + 1 :])
"""The fields that only some messages have."""
_own = attrgetter(
    *[name for name in Message.__struct_fields__ if name not in PlainBatch.__slots__ and name not in ("id", "body")]
)
"""The fields that a `PlainBatch` does not have."""
_NOTHING_OWN = _own(Message("", "", 0, 0, b""))


def is_plain(message: Message) -> bool:
    """Whether a message can be part of a `PlainBatch`."""
    return bool(_own(message) == _NOTHING_OWN)


class Stored(Struct, frozen=True, gc=False):
    """A message with its current state. One timestamp serves delay and lease."""

    message: Message
    visible_at: int
    receives: int = 0
    receipt: str | None = None
    consumer: str | None = None
    error: str | None = None
    """Why the message failed last, as far as the store knows: see `last_error`."""

    def status(self, now: int) -> Status:
        """Ready from `visible_at` on; before that, leased if there is a receipt, else delayed."""
        if self.visible_at <= now:
            return "ready"
        return "delayed" if self.receipt is None else "leased"

    def last_error(self, now: int) -> str | None:
        """Why the message failed last, None if it never failed."""
        return LEASE_EXPIRED if self.receipt is not None and self.visible_at <= now else self.error


class Leased(list[Stored]):
    """The messages of one receive, and the length of their leases in seconds; None if there are none. Also the size
    that the result of each may have; None if the queue keeps none."""

    __slots__ = ("result_bytes", "seconds")

    def __init__(
        self, messages: Iterable[Stored] = (), seconds: float | None = None, result_bytes: int | None = None
    ) -> None:
        super().__init__(messages)
        self.seconds = seconds
        self.result_bytes = result_bytes


class Page(Struct, frozen=True):
    """Some messages of a queue and the cursor of the next page, None at the end."""

    messages: list[Stored]
    next: str | None
    looked: int | None = None
    """How many messages a search examined."""


class Retry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a failed message waits: `delay` seconds after its first receive, `factor` times as long after each
    further one, at most `max`, and up to a share of `jitter` more or less."""

    delay: float = 1.0
    factor: float = 2.0
    max: float = 3600.0
    jitter: float = 0.1


class QueueSettings(Struct, frozen=True, kw_only=True):
    """How a queue behaves. Durations are in seconds; a limit of 0 means unlimited. Stores keep every field, so that a
    new default applies to new queues only."""

    visibility_timeout: float = 30.0
    max_receives: int | None = 20
    dead_letter_queue: str | None = None
    retention: float = 14 * 86400.0
    delay: float = 0.0
    dedup_window: float = 300.0
    max_length: int = 0
    max_bytes: int = 0
    history: History = "off"
    claim_retention: float = 3600.0
    retry: Retry = Retry()
    max_in_flight: int = 0
    rate: float = 0.0
    paused: bool = False
    group_batch: bool = False
    results: float = 0.0
    """How long results are kept; 0: not at all."""
    tags: dict[str, str] = {}
    """Labels for people and programs; the broker does not interpret them."""
    sqs: dict[str, str] = {}
    """Attributes that only Amazon SQS has, by the names that it gives them; see `server/http/sqs`."""


class RetryChanges(TypedDict, total=False):
    """The fields of `Retry`. Those that are not given stay as they are."""

    delay: float
    factor: float
    max: float
    jitter: float


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
    retry: Retry | RetryChanges
    max_in_flight: int
    rate: float
    paused: bool
    group_batch: bool
    results: float
    tags: Mapping[str, str | None]
    sqs: Mapping[str, str | None]


class Counts(Struct, frozen=True):
    """How many messages a queue holds in each state, their bytes, and when the oldest message that is available to any
    consumer was sent (to the millisecond)."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    bytes: int = 0
    oldest: int | None = None
    """In microseconds since 1970-01-01 UTC; None if no message is available."""

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
    each reason: `no_source`, `expired`, `leased`, `missing`, `queue_full`, `no_space`, `forbidden`,
    `too_many_queues`, `queue_not_found`."""

    moved: int
    skipped: int
    running: bool
    reasons: dict[str, int] = {}


class Lease(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message's id with the receipt that proves ownership."""

    id: str
    receipt: str
    result: ClassVar[Raw | UnsetType] = UNSET
    """Only an ack has one."""


class AckedLease(Lease, frozen=True, forbid_unknown_fields=True, gc=False):
    """A lease to ack, with the result of the work as JSON, if there is one."""

    result: Raw | UnsetType = UNSET  # type: ignore[misc]


class Extended(Struct, frozen=True):
    """The outcome of each lease, and when the extended ones end."""

    outcomes: list[Outcome]
    until: int


class Failed(Struct, frozen=True, gc=False):
    """What became of a message that failed: `retried` at `visible_at`, `dead`, `stale` or `missing`."""

    outcome: Literal["retried", "dead", "stale", "missing"]
    visible_at: int | None = None


EventName = Literal[
    "sent", "received", "acked", "released", "failed", "expired", "dead", "edited", "purged", "redriven", "published"
]


class Event(Struct, frozen=True, array_like=True, gc=False):
    """One line of history. A message arrives in a queue by `sent` and leaves it by `acked`, `dead`, `purged`,
    `redriven`, or `expired` with reason `ttl` or `retention`. `expired` with reason `lease` is a lease that ran out.
    `published` is a publication to a topic, of `count` messages from `id` on."""

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
    error: str | None = None
    """On `failed` and `dead`: why."""
    queues: list[str] | None = None
    """On `published`, whose `queue` is the topic: the queues that got copies."""


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
