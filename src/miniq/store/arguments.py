"""The arguments of the store's calls: a call that needs more than what it is about has one record of these.

The broker builds the record and the store reads it, so a new field changes the record, the broker and those stores that
need it, but no signature.
"""

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
"""Sets so many ids aside that follow all there are, and gives the first (see `ids.id_in_range`). To be called once in a
commit, when nothing can be refused any more, with the room that all its parts take (see `decisions.stretches`)."""

Refusal = Literal["ttl", "retention", "max_receives"]
"""Why a message must not be handed out."""


class Change(Struct, frozen=True, gc=False):
    """When a change is made, and what the history says of it."""

    now: int
    keep: History = "off"
    event: EventName | None = None
    """What happens to the messages of a `drop`, `reschedule` or `move`; None is not told."""
    reason: str | None = None

    @property
    def told(self) -> EventName | None:
        """The event that the history gets, None if it gets none."""
        return None if self.keep == "off" else self.event


class Once(Struct, frozen=True, gc=False):
    """The name that a sender gave to one call, so that repeating it adds nothing, and until when it counts."""

    name: str
    until: int


class Room(Struct, frozen=True, gc=False):
    """What a queue may hold in all; 0 is unlimited."""

    messages: int
    bytes: int


class Put(Struct, frozen=True, kw_only=True, gc=False):
    """How messages are added."""

    now: int
    keep: History = "off"
    dedup_until: int = 0
    """Until when the dedup ids of these messages are remembered."""
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
    """When messages become visible, and whether their lease ends."""

    visible_at: int
    release: bool = False


class Edit(Struct, frozen=True, kw_only=True):
    """What to change in a message; None leaves a field as it is."""

    body: bytes | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: int | None = None
    due_at: int | None = None
    """It is ready then; a lease ends."""

    def apply(self, message: Message) -> Message:
        """The message with these changes."""
        changes = {field: getattr(self, field) for field in self.__struct_fields__}
        return replace(message, **{field: value for field, value in changes.items() if value is not None})


class Scan(Struct, frozen=True, kw_only=True, gc=False):
    """Which page of a queue is wanted."""

    limit: int
    max_bytes: int
    now: int
    status: Status | None = None
    after: str | None = None


class Fit(Struct, frozen=True, gc=False):
    """Which messages may be handed out; the broker does with others what its rules say."""

    since: int
    """The message was sent, or died if it is a dead letter, after this moment."""
    receives: int
    """The message was handed out less often than this before."""

    def refusal(self, message: Message, receives: int, now: int) -> Refusal | None:
        """Why a message that was handed out `receives` times must not be handed out again, None if it may be."""
        if message.expires_at is not None and message.expires_at <= now:
            return "ttl"
        if (message.sent_at if message.dead is None else message.dead.at) <= self.since:
            return "retention"
        return "max_receives" if receives >= self.receives else None

    def allows_batch(self, batch: PlainBatch, receives: int) -> bool:
        """Whether all messages of a batch may be handed out: they have no ttl and are no dead letters."""
        return batch.sent_at > self.since and receives < self.receives

    def allows_taken(self, taken: Iterable[Stored]) -> bool:
        """Whether all messages that were just taken may be handed out, as can be said without a closer look."""
        since, most = self.since, self.receives
        for stored in taken:
            message = stored.message
            if message.expires_at is not None or message.sent_at <= since or stored.receives > most:
                return False
        return True


class NextClaim(Struct, frozen=True, kw_only=True, gc=False):
    """Which claim a reader asks for; all claims up to `after` are acked first."""

    after: int
    now: int
    keep_until: int = 0
    """Until when the claims that this call acks can be read."""
    fit: Fit = Fit(0, 0)
    limit: int = 0
    """0 acks only."""
    max_bytes: int = 0
    epoch: int | None = None
    consumer: str | None = None
    keep: History = "off"

    @property
    def number(self) -> int:
        """The number of the claim."""
        return self.after + 1


class Places(Struct, frozen=True, kw_only=True, gc=False):
    """Which messages of a claim are wanted: those at the places from `start` up to `stop`."""

    start: int
    stop: int
    max_bytes: int
    now: int


class Upload(Struct, frozen=True, gc=False):
    """Which part of a stage is uploaded, and until when the stage is kept."""

    stage: StageName
    part: int
    now: int
    until: int


class Batch(Struct, frozen=True):
    """The stages of one (job, batch) that are committed together."""

    job: str
    batch: str
    stages: Sequence[tuple[str, str]]
    """(partition, attempt), in the order in which their messages stand in the queue."""
    reserve: Reserve
    put: Put
    until: int
    """Until when it is remembered that the batch was committed."""

    @property
    def name(self) -> str:
        """The name of the call that commits it."""
        return commit_name(self.job, self.batch)
