"""Argument records of the store calls: the broker builds a record and the store reads it, so that a new field changes
the record and the code that uses it, but no signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from miniq.batch import StageName
from miniq.message import EventName, History, Message, PlainBatch, Status, Stored
from miniq.result import Finished
from miniq.store.names import commit_name

FREE = ""
ANY = "*"
Fence = tuple[str, str]
"""A message id, and a receipt or `FREE` or `ANY`."""

Reserve = Callable[[int], str]
"""Reserves a number of ids above all existing ones and returns the first (see `ids.id_in_range`). A commit calls it
once, after all checks, with the width of all its parts (see `decisions.stretches`)."""

Refusal = Literal["ttl", "retention", "max_receives"]
"""Why a message must not be delivered."""


class Remember(Struct, frozen=True, gc=False):
    """What to keep of messages that leave their queue, in the order of the fences, and until when."""

    each: Sequence[Finished]
    until: int


class PutResult(Struct, frozen=True, gc=False):
    """A result to keep under an id, until when, and what must be kept there now."""

    now: int
    finished: Finished | None
    """None keeps no result any more."""
    until: int = 0
    expected: int | None = None
    """The `finished_at` of the result that is replaced; 0 if none may be kept, None for any or none."""

    def matches(self, kept: Finished | None) -> bool:
        """Whether this is what must be kept."""
        return self.expected is None or self.expected == (0 if kept is None else kept.finished_at)


class Change(Struct, frozen=True, gc=False):
    """The time of a change and what the history records of it."""

    now: int
    keep: History = "off"
    event: EventName | None = None
    """The event of a `drop`, `reschedule` or `move`; None records nothing."""
    reason: str | None = None
    extra: int = 0
    """Receives that a take counted though the messages were not fit; the history leaves them out."""
    remember: Remember | None = None
    """The results of a `drop` or `move`."""

    @property
    def recorded(self) -> EventName | None:
        """The event to write to the history, None if there is none."""
        return None if self.keep == "off" else self.event


class Once(Struct, frozen=True, gc=False):
    """A named call: repeating it before `until` adds nothing."""

    name: str
    until: int
    content: str = ""
    """Identifies its messages; a repetition must have the same. Empty: not compared."""


class Room(Struct, frozen=True, gc=False):
    """The limits of a queue; 0 is unlimited."""

    messages: int
    bytes: int


class RecordChange(Struct, frozen=True, gc=False):
    """A change of a small record of the broker, made only if the record still is what it `was`; None is no record."""

    kind: str
    name: str
    was: bytes | None
    value: bytes | None
    is_quiet: bool = False
    """Whether other brokers need not hear of it: `revision` stays."""


class RecordSet(Struct, frozen=True):
    """Small records of the broker that are written, or removed where the value is None, in one change. On a store that
    is shared, it is made only if no other has changed queues or records since `revision`."""

    values: Mapping[tuple[str, str], bytes | None]
    """By kind and name."""
    revision: int


class Put(Struct, frozen=True, kw_only=True, gc=False):
    """How messages are added."""

    now: int
    keep: History = "off"
    dedup_until: int = 0
    """When the dedup ids of these messages expire."""
    room: Room | None = None
    call: Once | None = None
    record: RecordChange | None = None
    """Made in the same change. It is quiet, replaces a record that exists, and is not combined with `call`."""
    reason: str | None = None
    """Why the messages are sent, for the history."""
    from_reserve: bool = False
    """Whether they are added even if the disk is nearly full, since they leave another queue."""


class Target(Struct, frozen=True, gc=False):
    """A queue that gets copies of a publication."""

    queue: str
    keep: History = "off"
    room: Room | None = None
    delay: int = 0
    """How long messages wait in it that have no due time of their own, in microseconds."""


class Stretch(Struct, frozen=True):
    """Consecutive messages of a publication that go to the same queues. A store may keep them as one record: they have
    consecutive ids of one run, and the same priority and due time; a message with a recipient, group or dedup id is
    alone."""

    messages: Sequence[Message]
    """They name no queue."""
    targets: Sequence[int]
    """The positions of the queues in `Publication.targets`."""
    timed: bool = False
    """Whether the messages have a due time of their own."""
    is_variant: bool = False
    """Whether these are the messages of the last stretch that is none, in another form for other queues: the ids are
    the same, and so is whether they are duplicates."""

    @property
    def first(self) -> Message:
        return self.messages[0]

    @property
    def ids(self) -> list[str]:
        messages = self.messages
        return list(messages.ids) if isinstance(messages, PlainBatch) else [message.id for message in messages]

    def due_at(self, target: Target) -> int:
        """When the copies in a queue are ready."""
        return self.first.due_at if self.timed else self.first.sent_at + target.delay

    def copies(self, target: Target) -> Sequence[Message]:
        """The messages as a queue gets them."""
        messages, due_at = self.messages, self.due_at(target)
        if isinstance(messages, PlainBatch):
            common = (messages.content_type, messages.priority, messages.topic)
            return PlainBatch(messages.ids, target.queue, messages.sent_at, due_at, messages.bodies, *common)
        return [replace(message, queue=target.queue, due_at=due_at) for message in messages]


class Publication(Struct, frozen=True, kw_only=True):
    """Messages that are published to a topic together, already matched with its subscriptions."""

    topic: str
    scope: str
    """Identifies the topic: one that is deleted and made again has another, and other dedup ids."""
    stretches: Sequence[Stretch]
    """All messages, in order."""
    targets: Sequence[Target]
    now: int
    keep: History = "off"
    """Whether the history gets a `published` event."""
    dedup_until: int = 0
    call: Once | None = None
    record: RecordChange | None = None
    """As in `Put`; it is changed also if no queue gets a message."""
    reason: str | None = None
    """Why the messages are published, for the history."""


class Fit(Struct, frozen=True, gc=False):
    """Which messages may be delivered; the broker handles the others by its rules."""

    since: int
    """Only messages sent, or dead-lettered, after this time."""
    receives: int
    """Only messages delivered fewer times than this."""

    def refusal(self, message: Message, receives: int, now: int) -> Refusal | None:
        """Why a message delivered `receives` times must not be delivered again, None if it may be."""
        if message.expires_at is not None and message.expires_at <= now:
            return "ttl"
        if (message.sent_at if message.dead is None else message.dead.at) <= self.since:
            return "retention"
        return "max_receives" if receives >= self.receives else None

    def allows_plain(self, sent_at: int, receives: int) -> bool:
        """Whether messages that were sent together, have no ttl and are not dead letters, may be delivered."""
        return sent_at > self.since and receives < self.receives

    def allows_taken(self, taken: Iterable[Stored]) -> bool:
        """A quick check that all taken messages may be delivered; False means that each must be checked."""
        since, max_receives = self.since, self.receives
        for stored in taken:
            message = stored.message
            if message.expires_at is not None or message.sent_at <= since or stored.receives > max_receives:
                return False
        return True


ANYTHING = Fit(-1, 2**62)
"""All messages without a ttl."""


class Take(Struct, frozen=True, kw_only=True, gc=False):
    """Which messages are leased, to which consumer, and until when."""

    limit: int
    max_bytes: int
    now: int
    until: int
    token: str
    consumer: str | None = None
    keep: History = "off"
    fit: Fit = ANYTHING
    """Which of them count as received."""
    in_flight: int = 0
    """How many messages of the queue may be leased afterwards, those in claims included; 0 is unlimited."""
    group_batch: bool = False
    """Whether the first message of a group comes with those that follow it."""


class Draw(Struct, frozen=True, gc=False):
    """A draw from the token bucket of a queue, which gains `rate` tokens per second and holds at most `most`."""

    count: int
    rate: float
    most: float
    now: int


class NewTime(Struct, frozen=True, gc=False):
    """When messages become visible, and whether their lease ends now."""

    visible_at: int
    release: bool = False
    error: str | None = None
    """Why the messages failed; None leaves their last error as it is."""
    unused: bool = False
    """With `release`: the receive of a lease that ends is taken back."""
    by_receives: dict[int, int] = {}
    """When messages that were received so often become visible, if not at `visible_at`."""

    def moment(self, receives: int) -> int:
        """When a message becomes visible."""
        return self.by_receives.get(receives, self.visible_at)


class Edit(Struct, frozen=True, kw_only=True):
    """What to change in a message; None leaves a field as it is."""

    body: bytes | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: int | None = None
    due_at: int | None = None
    """When the message becomes ready; ends a lease."""

    def apply(self, message: Message) -> Message:
        """The message with these changes."""
        changes = {field: getattr(self, field) for field in self.__struct_fields__}
        return replace(message, **{field: value for field, value in changes.items() if value is not None})


class Scan(Struct, frozen=True, kw_only=True, gc=False):
    """Which page of a queue to read."""

    limit: int
    max_bytes: int
    now: int
    status: Status | None = None
    after: str | None = None


class NextClaim(Struct, frozen=True, kw_only=True, gc=False):
    """A reader's request: ack all claims up to `after`, then return the next."""

    after: int
    now: int
    keep_until: int = 0
    """Until when the claims acked by this call stay readable."""
    fit: Fit = Fit(0, 0)
    limit: int = 0
    """0: only ack."""
    max_bytes: int = 0
    epoch: int | None = None
    reader: str | None = None
    """The reader's name, which must be the one that fetched the claims to ack, and the next one if it exists."""
    consumer: str | None = None
    keep: History = "off"

    @property
    def number(self) -> int:
        """The number of the requested claim."""
        return self.after + 1


class Places(Struct, frozen=True, kw_only=True, gc=False):
    """Which messages of a claim to read: positions `start` to `stop`, exclusive."""

    start: int
    stop: int
    max_bytes: int
    now: int


class Upload(Struct, frozen=True, gc=False):
    """Which part of a stage is uploaded, and when the stage expires."""

    stage: StageName
    part: int
    now: int
    until: int


class Batch(Struct, frozen=True):
    """The stages of one (job, batch) to commit together."""

    job: str
    batch: str
    stages: Sequence[tuple[str, str]]
    """(partition, attempt), in the order of their messages in the queue."""
    reserve: Reserve
    put: Put
    until: int
    """Until when the commit is remembered."""
    content: str = ""
    """Identifies its messages; a repetition must have the same. Empty: not compared."""

    @property
    def name(self) -> str:
        """The call name of the commit."""
        return commit_name(self.job, self.batch)
