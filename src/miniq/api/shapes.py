"""The shapes of requests and replies, shared by servers and clients: every record on the wire.

Requests with unknown fields are refused; replies omit fields that are empty. The OpenAPI document is built from these.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.consumer import Percentiles
from miniq.failure import HeldClaim, LastDeath, QueueProblem, RecentFailures
from miniq.message import AckedLease, Draft, Message, QueueSettings, RedriveProgress

S = TypeVar("S", bound=Struct)


def with_fields_of(record: type[Struct], *omitted: str) -> Callable[[type[S]], type[S]]:
    """Adds to a shape the fields of a record that it does not have itself: they are on the wire as they are."""

    def extend(shape: type[S]) -> type[S]:
        known = {*shape.__struct_encode_fields__, *omitted}
        fields = [field for field in msgspec.structs.fields(record) if field.name not in known]
        extended: Any = msgspec.defstruct(
            shape.__name__,
            [(field.name, field.type, field.default) for field in fields],
            bases=(shape,),
            module=shape.__module__,
            namespace={"__doc__": shape.__doc__},
        )
        return extended  # type: ignore[no-any-return]

    return extend


# Requests


@with_fields_of(Draft)
class WireDraft(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A message to send: `body` for JSON and text, `data` for other bytes."""

    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    content_type: str | None = None
    headers: dict[str, str] | None = None


class SendBody(WireDraft):
    """One message, or `messages` with up to 1,000 of them."""

    messages: list[WireDraft] | UnsetType = UNSET


class EditBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Fields to change; the others stay as they are."""

    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: int | None = None
    delay: float | None = None
    receipt: str | None = None


class AckBody(Struct, forbid_unknown_fields=True, gc=False):
    """Leases to ack; `result` is any JSON value, which the queue keeps if its settings say so."""

    leases: list[AckedLease]


class UploadBody(Struct, forbid_unknown_fields=True):
    """Messages for a stage."""

    messages: list[WireDraft]


class StageId(Struct, forbid_unknown_fields=True):
    """An attempt of a task."""

    partition: int | str
    attempt: int | str


class Command(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A request over ZeroMQ. `payload` has the names of the HTTP request: those of its path, query and body."""

    type: str
    payload: Raw | UnsetType = UNSET
    api_key: str | None = None
    idempotency_key: str | None = None


# Replies


class SentReply(Struct, gc=False):
    ids: list[str]


class WireDead(Struct, gc=False):
    origin: str
    reason: str
    receives: int
    at: datetime
    error: str | None = None


@with_fields_of(Message, "due_at", "lifetime")
class WireMessage(Struct, omit_defaults=True, gc=False):
    id: str
    queue: str
    sent_at: datetime
    receives: int
    visible_at: datetime | None
    """When it becomes or became ready; null for a message in a claim, which does not expire."""
    priority: int
    content_type: str
    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    status: str | UnsetType = UNSET
    receipt: str | None = None
    lease_until: datetime | None = None
    consumer: str | None = None
    headers: dict[str, str] | None = None
    expires_at: datetime | None = None
    dead: WireDead | None = None
    error: str | None = None
    """Why it failed last."""


class MessagesReply(Struct, gc=False):
    messages: list[WireMessage]
    visibility_timeout: float | UnsetType = UNSET
    """The length of the leases of a receive, in seconds."""
    result_bytes: int | UnsetType = UNSET
    """The size that the result of each may have, if the queue keeps results."""


class PageReply(Struct, omit_defaults=True):
    messages: list[WireMessage]
    next: str | None
    looked: int | UnsetType = UNSET
    """How many messages a search with `find` examined."""


class OutcomeReply(Struct, gc=False):
    id: str
    outcome: str


class OutcomesReply(Struct, gc=False):
    results: list[OutcomeReply]


class ResultReply(Struct, omit_defaults=True, gc=False):
    """What became of a message: `waiting`, `running`, `done`, `dead` or `unknown`."""

    id: str
    status: str
    result: Raw | UnsetType = UNSET
    """What its consumer gave with the ack."""
    error: str | None = None
    """Why it failed last."""
    finished_at: datetime | None = None


class ResultBody(Struct, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A result to keep under an id of the caller's own."""

    result: Raw | UnsetType = UNSET
    final: bool = True
    """Whether calls that wait for it return."""
    ttl: float | None = None
    """Seconds for which it is kept, by default as the queue's `results` says; 0 forgets it."""
    replaces: datetime | None = None
    """The `finished_at` of the result that it replaces: it is kept only if that is still the one."""
    new: bool = False
    """Keep it only if there is none."""


class KeptReply(Struct, gc=False):
    kept: bool


class FailedReply(Struct, omit_defaults=True, gc=False):
    id: str
    outcome: str
    visible_at: datetime | None = None
    """When a message that is `retried` is ready again."""


class FailReply(Struct, gc=False):
    results: list[FailedReply]


class ExtendReply(Struct, gc=False):
    results: list[OutcomeReply]
    lease_until: datetime


class WireCounts(Struct):
    ready: int
    delayed: int
    leased: int
    total: int
    bytes: int
    oldest: datetime | None


class QueueReply(Struct):
    name: str
    settings: QueueSettings
    counts: WireCounts | None
    """Null in the reply to a caller that may not read the queue."""
    redrive: RedriveProgress | None = None


class WireConsumer(Struct):
    """A consumer of a queue."""

    name: str | None
    """Null for all consumers together that gave no name; a group of readers of claims has that of the group."""
    in_flight: int
    """Messages that it holds now."""
    received: int
    """Messages that it received, acked and reported as failed, since the broker first saw it."""
    acked: int
    failed: int
    last_seen: datetime
    """When it last received, or settled or extended what it had received."""


class Rates(Struct):
    """Messages per second, over the last five seconds."""

    sent: float
    received: float
    acked: float
    released: float
    expired: float
    dead: float
    failed: float = 0.0


class QueueStats(Struct):
    """The current state of a queue. `dead` counts the messages in its dead-letter queue; it is null if the caller may
    not read that one."""

    name: str
    ready: int
    delayed: int
    leased: int
    total: int
    bytes: int
    oldest: datetime | None
    rates: Rates
    dead_letter_queue: str | None
    dead: int | None
    consumers: int = 0
    """How many consumers were seen in the last five minutes."""
    wait: Percentiles | None = None
    """From the moment at which a message is ready to its first receive; null if there was none."""
    processing: Percentiles | None = None
    """From a receive to the ack or fail."""
    problems: list[QueueProblem] = []
    """What is wrong with the queue, the worst first."""
    unattended_since: datetime | None = None
    """When a consumer was last seen, if that is more than 90 seconds ago and no message is leased; null if there is a
    consumer, and if there never was one."""
    failures: RecentFailures | None = None
    """Of the last five minutes: failed messages, attempts, and the last error."""
    claim: HeldClaim | None = None
    """The oldest claim that is not acked."""
    dead_oldest: datetime | None = None
    """When the oldest dead letter was sent."""
    last_death: LastDeath | None = None
    """The last dead letter: when it died, and of what."""


class Stats(Struct):
    at: datetime
    queues: list[QueueStats]


class StatsEvent(Stats):
    """Sent by `GET /v1/events`: queues that changed since the previous event, and queues that were deleted."""

    gone: list[str]


class QueueTrend(Struct):
    """Series of a queue, oldest value first; a queue created within that time has fewer values."""

    name: str
    series: dict[str, list[float]]


class Trends(Struct):
    """`at` is the time of the last values, `step` the seconds between two values."""

    at: datetime
    step: float
    queues: list[QueueTrend]


class Identity(Struct):
    """The caller's identity and permissions: on a queue, or on the broker as a whole."""

    open: bool
    """Whether every caller may do everything, because there are no keys."""
    name: str | None
    id: str | None
    allow: list[str]
    verbs: list[str]
    report: bool
    """Whether `/v1/report` is enabled."""
    version: str
    store: str = ""
    """The id of the store: made with it, kept by `miniq migrate`, and new after `miniq restore`."""


class ClaimReply(Struct):
    """A claim; its number is null if no message was ready."""

    group: str
    claim: int | None
    messages: int
    bytes: int
    made_at: datetime | None
    epoch: int


class ClaimsOpenedReply(Struct):
    """`id` is that of the group, `store` that of the store: with them, a reader knows again where its claims were."""

    group: str
    epoch: int
    acked: int
    last: int
    id: str = ""
    store: str = ""
    ready: int = 0
    """How many messages are ready now."""
    claims: list[WireClaim] = []


class ClaimsAckedReply(Struct):
    acked: int


class WireClaim(Struct):
    claim: int
    state: str
    messages: int
    bytes: int
    made_at: datetime
    acked_at: datetime | None
    reader: str | None = None
    """The reader that has fetched some of it: null if none has, "" if it gave no name."""


class WireClaimGroup(Struct):
    group: str
    epoch: int
    acked: int
    last: int
    claims: list[WireClaim]
    id: str = ""


class WireQueueClaimGroup(WireClaimGroup):
    """The claims of a group, with its queue."""

    queue: str = ""


class UploadReply(Struct):
    messages: int
    bytes: int


class CommitStagesReply(Struct):
    committed: int
    repeated: bool


class WireStage(Struct):
    job: str
    batch: str
    partition: str
    attempt: str
    parts: int
    messages: int
    bytes: int
    made_at: datetime
    expires_at: datetime


class WireEvent(Struct, omit_defaults=True):
    offset: int
    at: datetime
    event: str
    queue: str
    id: str = ""
    receives: int = 0
    size: int = msgspec.field(default=0, name="bytes")
    consumer: str | None = None
    wait_ms: float | None = None
    held_ms: float | None = None
    reason: str | None = None
    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    content_type: str | None = None
    count: int = 1
    error: str | None = None
    queues: list[str] | None = None
    """On `published`, whose `queue` is the topic: the queues that got copies."""


class HistoryReply(Struct):
    events: list[WireEvent]
    next: int
    first: int
    last: int


class ApiKey(Struct, omit_defaults=True):
    id: str
    name: str
    allow: list[str]
    created_at: datetime
    secret: str | None = None
    """Shown once, in the reply that creates the key."""
    public: str | None = None
    """Of a CURVE key."""
    server: str | None = None
    """The broker's own public key, in the reply that adds a CURVE key."""
    warnings: list[str] = []
    """What the new key changes for others, in the reply that creates it."""
    max_queues: int | None = None
    access_key: str | None = None
    """The access key id of a key for Amazon SQS."""


class HealthReply(Struct, omit_defaults=True):
    status: str
    reason: str | None = None


class AddressReply(Struct):
    """The address of an endpoint, with the host as the server knows it; a client that uses another host name needs only
    the port."""

    address: str
    port: int


class SizeReply(Struct):
    size: int


class CancelReply(Struct):
    cancelled: int


class CommandReply(Struct):
    """The reply to a command that succeeded."""

    ok: bool
    data: Any


class CommandError(Struct, omit_defaults=True):
    code: str
    text: str
    field: str | None = None


class CommandRefusal(Struct):
    """The reply to a command that failed."""

    ok: bool
    error: CommandError


class Problem(Struct, omit_defaults=True):
    """RFC 9457. `code` is stable; `field` names the invalid input."""

    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    type: str = "about:blank"
