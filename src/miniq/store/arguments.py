"""Argument records of the store calls: the broker builds a record and the store reads it, so that a new field changes
the record and the code that uses it, but no signature."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from miniq.message import EventName, History, Message, PlainBatch, StageName, Status, Stored
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


class Change(Struct, frozen=True, gc=False):
    """The time of a change and what the history records of it."""

    now: int
    keep: History = "off"
    event: EventName | None = None
    """The event of a `drop`, `reschedule` or `move`; None records nothing."""
    reason: str | None = None

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


class Put(Struct, frozen=True, kw_only=True, gc=False):
    """How messages are added."""

    now: int
    keep: History = "off"
    dedup_until: int = 0
    """When the dedup ids of these messages expire."""
    room: Room | None = None
    call: Once | None = None


class Take(Struct, frozen=True, kw_only=True, gc=False):
    """Which messages are leased, to which consumer, and until when."""

    limit: int
    max_bytes: int
    now: int
    until: int
    token: str
    consumer: str | None = None
    keep: History = "off"


class NewTime(Struct, frozen=True, gc=False):
    """When messages become visible, and whether their lease ends now."""

    visible_at: int
    release: bool = False


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

    def allows_batch(self, batch: PlainBatch, receives: int) -> bool:
        """Whether all messages of a batch, which have no ttl and are not dead letters, may be delivered."""
        return batch.sent_at > self.since and receives < self.receives

    def allows_taken(self, taken: Iterable[Stored]) -> bool:
        """A quick check that all taken messages may be delivered; False means that each must be checked."""
        since, max_receives = self.since, self.receives
        for stored in taken:
            message = stored.message
            if message.expires_at is not None or message.sent_at <= since or stored.receives > max_receives:
                return False
        return True


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

    @property
    def name(self) -> str:
        """The call name of the commit."""
        return commit_name(self.job, self.batch)
