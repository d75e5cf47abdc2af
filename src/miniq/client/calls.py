"""The calls a client makes: one record per operation, the transports that carry them, and what replies mean.

A call knows the type of its reply, so that `transport.perform(call)` is checked. No I/O here, and no queue
rules: what is allowed is the broker's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from msgspec import UNSET, Struct, UnsetType

from miniq.client.bodies import encode
from miniq.client.tables import TablePage
from miniq.errors import MessageNotFound, StaleReceipt
from miniq.message import (
    Claim,
    ClaimGroup,
    Committed,
    Draft,
    HistoryPage,
    Lease,
    Mode,
    Outcome,
    Page,
    QueueInfo,
    RedriveProgress,
    Stage,
    StageName,
    Status,
    Stored,
)

T = TypeVar("T")


class Call(Struct, Generic[T], frozen=True):
    """One operation; `T` is what it is answered with."""


class Transport(Protocol):
    """Carries calls to a broker and waits. May be used by many threads at once."""

    def perform(self, call: Call[T]) -> T:
        """The reply, or the broker's error raised again."""
        ...

    def close(self) -> None:
        """Let go of everything; calls that wait come back soon. Harmless to repeat."""
        ...


class AsyncTransport(Protocol):
    """Carries calls to a broker from within an event loop."""

    async def perform(self, call: Call[T]) -> T:
        """The reply, or the broker's error raised again."""
        ...

    async def close(self) -> None:
        """Let go of everything; calls that wait come back soon. Harmless to repeat."""
        ...


# Messages


class Send(Call[list[str]], frozen=True):
    queue: str
    drafts: Sequence[Draft]


class SendTable(Call[list[str]], frozen=True):
    """Each row of a `pyarrow.Table` is a message."""

    queue: str
    table: Any


class Receive(Call[list[Stored]], frozen=True):
    queue: str
    max: int = 1
    wait: float = 0
    visibility_timeout: float | None = None
    consumer: str | None = None
    mode: Mode = "at-least-once"


class Ack(Call[list[Outcome]], frozen=True):
    queue: str
    leases: Sequence[Lease]


class AckById(Call[bool], frozen=True):
    """Ack without a receipt: only for `MiniQ`, whose users have none."""

    queue: str
    id: str


class Release(Call[list[Outcome]], frozen=True):
    queue: str
    leases: Sequence[Lease]
    delay: float = 0


class Extended(Struct, frozen=True):
    """What became of each lease, and the moment until which those that were extended run."""

    outcomes: list[Outcome]
    until: int


class Extend(Call[Extended], frozen=True):
    """`seconds=None` is the queue's visibility timeout."""

    queue: str
    leases: Sequence[Lease]
    seconds: float | None = None


class Get(Call[Stored], frozen=True):
    queue: str
    id: str


class Peek(Call[Page], frozen=True):
    queue: str
    status: Status | None = None
    after: str | None = None
    limit: int = 100


class PeekTable(Call[TablePage], frozen=True):
    queue: str
    status: Status | None = None
    after: str | None = None
    limit: int = 10_000


class Edit(Call[Stored], frozen=True):
    """None leaves a field as it is."""

    queue: str
    id: str
    body: bytes | None = None
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: int | None = None
    delay: float | None = None
    receipt: str | None = None


class Remove(Call[None], frozen=True):
    queue: str
    id: str
    receipt: str | None = None


# Claims


class OpenClaims(Call[ClaimGroup], frozen=True):
    queue: str
    group: str


class NextClaim(Call[Claim | None], frozen=True):
    queue: str
    group: str
    after: int
    epoch: int | None = None
    max_messages: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    wait: float = 0
    consumer: str | None = None


class ReadClaim(Call[list[Stored]], frozen=True):
    queue: str
    group: str
    claim: int
    part: int = 0
    parts: int = 1


class ClaimTable(Call[Any], frozen=True):
    """A part of a claim as a `pyarrow.Table`."""

    queue: str
    group: str
    claim: int
    part: int = 0
    parts: int = 1


class AckClaims(Call[None], frozen=True):
    queue: str
    group: str
    upto: int
    epoch: int | None = None


class ReleaseClaims(Call[int], frozen=True):
    queue: str
    group: str
    epoch: int | None = None


class ListClaims(Call[list[ClaimGroup]], frozen=True):
    queue: str


# Stages


class Upload(Call[tuple[int, int]], frozen=True):
    """`messages` are drafts, or a `pyarrow.Table`. Answered with how many they were, and their bytes."""

    queue: str
    stage: StageName
    part: int
    messages: Any


class CommitStages(Call[Committed], frozen=True):
    queue: str
    job: str
    batch: str
    stages: Sequence[tuple[str, str]]


class DiscardStages(Call[int], frozen=True):
    queue: str
    job: str
    batch: str


class ListStages(Call[list[Stage]], frozen=True):
    queue: str


# Queues


class Purge(Call[int], frozen=True):
    queue: str


class Redrive(Call[RedriveProgress], frozen=True):
    queue: str
    ids: Sequence[str] | None = None
    to: str | None = None
    rate: float | None = None


class Configure(Call[QueueInfo], frozen=True):
    queue: str
    changes: dict[str, Any]


class GetQueue(Call[QueueInfo], frozen=True):
    queue: str


class ListQueues(Call[list[QueueInfo]], frozen=True):
    pass


class DeleteQueue(Call[None], frozen=True):
    queue: str


# The broker as a whole


class History(Call[HistoryPage], frozen=True):
    after: int = 0
    limit: int = 100
    queue: str | None = None


class HistoryTable(Call[TablePage], frozen=True):
    after: int = 0
    limit: int = 10_000
    queue: str | None = None


class Backup(Call[None], frozen=True):
    """A transport that cannot do it raises `InvalidRequest`."""

    path: str


def edit(
    queue: str,
    id: str,
    body: Any | UnsetType,
    content_type: str | None,
    headers: dict[str, str] | None,
    priority: int | None,
    delay: float | None,
    receipt: str | None,
) -> Edit:
    """The edit of one message; a body that is not given stays, and None is a body like any other."""
    data: bytes | None = None
    if body is not UNSET:
        data, content_type = encode(body, content_type)
    return Edit(queue, id, data, content_type, headers, priority, delay, receipt)


def may_wait(call: Call[Any]) -> bool:
    """Whether a call is a long poll, which ends when its client is closed."""
    return isinstance(call, Receive | NextClaim)


def unanswered_poll(call: Call[Any]) -> Any:
    """What a long poll is answered with that found nothing."""
    return [] if isinstance(call, Receive) else None


def check_held(outcome: Outcome, queue: str, id: str) -> None:
    """Raise what an outcome means to one who counted on still having the message."""
    if outcome == "missing":
        raise MessageNotFound(f"id: there is no message {id!r} in queue {queue!r} any more", field="id")
    if outcome != "done":
        raise StaleReceipt(f"receipt: message {id!r} has been handed out again or given back", field="receipt")
