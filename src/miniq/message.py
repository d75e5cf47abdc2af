"""The records that everything else passes around: drafts, messages, their state, queues, history.

All are frozen. Moments are integers, microseconds since 1970 UTC; durations that people type are
seconds. `body` is bytes as the sender gave them; with a JSON content type they are JSON text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Literal, TypedDict, overload

from msgspec import Struct

JSON = "application/json"
SECOND = 1_000_000
NEVER = 2**62
"""A moment that does not come: the deadline of a claim."""

Status = Literal["ready", "delayed", "leased"]
History = Literal["off", "events", "full"]
Mode = Literal["at-least-once", "at-most-once"]
Outcome = Literal["done", "stale", "leased", "missing"]
"""What became of one conditional change: made; the receipt is not the current one; the message is
with a consumer; there is no such message."""


class Draft(Struct, frozen=True, gc=False):
    """What a sender gives. `delay=None` takes the queue's own delay."""

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


class PlainDrafts(Sequence[Draft]):
    """Plain drafts: they differ in their bodies alone. A draft is made only where somebody looks at one."""

    __slots__ = ("bodies", "content_type")

    def __init__(self, bodies: list[bytes], content_type: str = JSON) -> None:
        self.bodies = bodies
        self.content_type = content_type

    def __len__(self) -> int:
        return len(self.bodies)

    def __iter__(self) -> Iterator[Draft]:
        return map(Draft, self.bodies, repeat(self.content_type))

    @overload
    def __getitem__(self, place: int) -> Draft: ...
    @overload
    def __getitem__(self, place: slice) -> PlainDrafts: ...
    def __getitem__(self, place: int | slice) -> Draft | PlainDrafts:
        if isinstance(place, slice):
            return PlainDrafts(self.bodies[place], self.content_type)
        return Draft(self.bodies[place], self.content_type)


class DeadLetter(Struct, frozen=True, array_like=True, gc=False):
    """Where a dead letter came from and why, how often it was handed out there, and when it died."""

    origin: str
    reason: str
    receives: int
    at: int


class Message(Struct, frozen=True, array_like=True, gc=False):
    """A message as it was sent (or last edited or moved). Its position in the array is its format on
    disk: add new fields at the end, with a default."""

    id: str
    queue: str
    sent_at: int
    due_at: int
    """When it was or will be ready for the first time: `sent_at` plus its delay."""
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

    @property
    def size(self) -> int:
        """The bytes it counts for in `max_bytes` and statistics: body, header names and header values."""
        if self.headers is None:
            return len(self.body)
        return len(self.body) + sum(len(k) + len(v) for k, v in self.headers.items())


class PlainBatch(Sequence[Message]):
    """Messages that were sent together and differ in id and body alone. A message is made only where
    somebody looks at one: most travel from the wire to the disk and back without that."""

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
        """The bytes that all of them count for."""
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
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> PlainBatch: ...
    def __getitem__(self, place: int | slice) -> Message | PlainBatch:
        ids, bodies = self.ids[place], self.bodies[place]
        if isinstance(ids, list) and isinstance(bodies, list):
            return PlainBatch(ids, self.queue, self.sent_at, self.due_at, bodies, self.content_type, self.priority)
        assert isinstance(ids, str) and isinstance(bodies, bytes)  # noqa: S101, PT018
        return Message(ids, self.queue, self.sent_at, self.due_at, bodies, self.content_type, self.priority)


_SPECIAL = Message.__struct_fields__[Message.__struct_fields__.index("priority") + 1 :]
special_of = attrgetter(*_SPECIAL)
"""What only some messages have: the fields that a `PlainBatch` has no place for."""
_NOTHING_SPECIAL = special_of(Message("", "", 0, 0, b""))


def is_plain(message: Message) -> bool:
    """Whether a message has nothing special, and so may lie in a `PlainBatch`."""
    return bool(special_of(message) == _NOTHING_SPECIAL)


class Stored(Struct, frozen=True, gc=False):
    """A message with its present state. One timestamp serves delay and lease."""

    message: Message
    visible_at: int
    receives: int = 0
    receipt: str | None = None
    consumer: str | None = None

    def status(self, now: int) -> Status:
        """Ready once `visible_at` has come, otherwise leased if it has a receipt, else delayed."""
        if self.visible_at <= now:
            return "ready"
        return "delayed" if self.receipt is None else "leased"


class Page(Struct, frozen=True):
    """Some messages of a queue and the cursor of those that follow, None at the end."""

    messages: list[Stored]
    next: str | None
    looked: int | None = None
    """How many messages a search looked at."""


class QueueSettings(Struct, frozen=True, kw_only=True):
    """How a queue behaves. Seconds, bytes and counts; 0 is unlimited where a limit is meant."""

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
    """Settings of a queue to change; those that are not named stay. The fields are those of `QueueSettings`."""

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
    """How many messages a queue holds in each state, their bytes, and when the oldest of those that
    anybody may take next was sent (to the millisecond)."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    bytes: int = 0
    oldest: int | None = None

    @property
    def total(self) -> int:
        return self.ready + self.delayed + self.leased


class QueueInfo(Struct, frozen=True):
    """A queue's name, settings, present counts, and the redrive that is running on it, if any."""

    name: str
    settings: QueueSettings
    counts: Counts
    redrive: RedriveProgress | None = None


class RedriveProgress(Struct, frozen=True):
    """How far a redrive has come: messages moved, messages that had nowhere to go, still at work."""

    moved: int
    skipped: int
    running: bool


class Lease(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A message's id with the receipt that proves who holds it."""

    id: str
    receipt: str


class Extended(Struct, frozen=True):
    """What became of each lease, and the moment until which those that were extended run."""

    outcomes: list[Outcome]
    until: int


class Claim(Struct, frozen=True, gc=False):
    """A frozen batch of messages, numbered within its group. Held until it is acked, then readable for a while."""

    number: int
    messages: int
    bytes: int
    made_at: int
    acked_at: int | None = None


class ClaimGroup(Struct, frozen=True):
    """The claims of one group: its newest reader's epoch, the last number that is finished, the last one given,
    and the claims that can be read."""

    group: str
    epoch: int = 0
    acked: int = 0
    last: int = 0
    claims: list[Claim] = []


class Portion(Struct, frozen=True):
    """Some messages of a claim in order, and how often each of them was handed out."""

    messages: Sequence[Message]
    receives: int

    def __len__(self) -> int:
        return len(self.messages)

    def each(self, receipt: str, readers: str) -> list[Stored]:
        """One by one, as a claim of that name holds them."""
        return [Stored(message, NEVER, self.receives, receipt, readers) for message in self.messages]


class StageName(Struct, frozen=True, gc=False):
    """Which try of which task of which batch of a job uploaded some messages."""

    job: str
    batch: str
    partition: str
    attempt: str


class Stage(Struct, frozen=True, gc=False):
    """Messages that were uploaded and are not committed yet: how many, in how many parts, since when and until when.
    `alone` of them have a recipient, group or dedup id."""

    name: StageName
    parts: int
    messages: int
    bytes: int
    made_at: int
    until: int
    alone: int = 0


class Committed(Struct, frozen=True):
    """How many messages a commit added, and whether that was done before."""

    messages: int
    repeated: bool = False


EventName = Literal["sent", "received", "acked", "released", "expired", "dead", "edited", "purged", "redriven"]


class Event(Struct, frozen=True, array_like=True, gc=False):
    """One line of history. Arrivals in a queue are `sent`; departures `acked`, `dead`, `purged`,
    `redriven`, and `expired` with reason `ttl` or `retention`. `expired` with reason `lease` is a
    lease that ran out."""

    at: int
    event: EventName
    queue: str
    id: str
    receives: int = 0
    size: int = 0
    """Its bytes; `bytes` on the wire."""
    consumer: str | None = None
    wait_ms: float | None = None
    """On `received`: from when it could first be had until it was handed out."""
    held_ms: float | None = None
    """On what ends a lease: how long the consumer had it."""
    reason: str | None = None
    body: bytes | None = None
    """On `sent` and `edited`, where the queue's history is `full`."""
    content_type: str | None = None
    count: int = 1
    """How many messages it stands for: on `purged` without an id, all that the queue held."""


class HistoryRecord(Struct, frozen=True):
    """An event at its place in the history: offsets rise by one and are never reused."""

    offset: int
    event: Event


class HistoryPage(Struct, frozen=True):
    """Some records, the offset to give as `after` for those that follow, and how far the history reached when they
    were asked for: its first and last offset (`last < first` when it is empty)."""

    records: list[HistoryRecord]
    next: int
    first: int = 1
    last: int = 0


class HistorySpan(Struct, frozen=True):
    """What the history holds now: first and last offset (`last < first` when empty), bytes, and the
    moment of its oldest event."""

    first: int
    last: int
    bytes: int
    oldest_at: int | None
