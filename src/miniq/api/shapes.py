"""The shapes of requests and replies, shared by servers and clients: every record that crosses a wire.

Requests refuse what they do not know. Replies leave out what is empty. The OpenAPI document is made from these.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.message import QueueSettings, RedriveProgress

# What comes in


class WireDraft(Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A message to send: `body` for JSON and text, `data` for other bytes."""

    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: int = 0
    delay: float | None = None
    ttl: float | None = None
    key: str | None = None
    recipient: str | None = None
    group: str | None = None
    dedup_id: str | None = None


class SendBody(WireDraft):
    """One message, or `messages` with up to 1,000 of them."""

    messages: list[WireDraft] | UnsetType = UNSET


class EditBody(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What to change; what is not named stays."""

    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    content_type: str | None = None
    headers: dict[str, str] | None = None
    priority: int | None = None
    delay: float | None = None
    receipt: str | None = None


class UploadBody(Struct, forbid_unknown_fields=True):
    """Messages for a stage."""

    messages: list[WireDraft]


class StageId(Struct, forbid_unknown_fields=True):
    """One try of one task."""

    partition: int | str
    attempt: int | str


class Command(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A request over ZeroMQ. `payload` has the names of the HTTP call: those of its path, query and body."""

    type: str
    payload: Raw | UnsetType = UNSET
    api_key: str | None = None
    idempotency_key: str | None = None


# What goes out


class SentReply(Struct, gc=False):
    ids: list[str]


class WireDead(Struct, gc=False):
    origin: str
    reason: str
    receives: int
    at: datetime


class WireMessage(Struct, omit_defaults=True, gc=False):
    id: str
    queue: str
    sent_at: datetime
    receives: int
    visible_at: datetime | None
    """When it is or was ready; null for one in a claim, which does not end by itself."""
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
    key: str | None = None
    recipient: str | None = None
    group: str | None = None
    dedup_id: str | None = None
    dead: WireDead | None = None


class MessagesReply(Struct, gc=False):
    messages: list[WireMessage]


class PageReply(Struct, omit_defaults=True):
    messages: list[WireMessage]
    next: str | None
    looked: int | UnsetType = UNSET
    """How many messages a search with `find` looked at."""


class OutcomeReply(Struct, gc=False):
    id: str
    outcome: str


class OutcomesReply(Struct, gc=False):
    results: list[OutcomeReply]


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
    counts: WireCounts
    redrive: RedriveProgress | None = None


class QueuesReply(Struct):
    queues: list[QueueReply]


class Rates(Struct):
    """Messages a second, over the last five seconds."""

    sent: float
    received: float
    acked: float
    released: float
    expired: float
    dead: float


class QueueStats(Struct):
    """A queue now. `dead` counts what lies in its dead-letter queue."""

    name: str
    ready: int
    delayed: int
    leased: int
    total: int
    bytes: int
    oldest: datetime | None
    rates: Rates
    dead_letter_queue: str | None
    dead: int


class Stats(Struct):
    at: datetime
    queues: list[QueueStats]


class StatsEvent(Stats):
    """What `GET /v1/events` sends: queues that changed since the event before, and those that are gone."""

    gone: list[str]


class QueueTrend(Struct):
    """Series of a queue, oldest value first; a queue that is younger than the first moment has fewer values."""

    name: str
    series: dict[str, list[float]]


class Trends(Struct):
    """`at` is the moment of the last values, `step` the seconds between two."""

    at: datetime
    step: float
    queues: list[QueueTrend]


class Identity(Struct):
    """Who the caller is to the broker, and which rights it has: on a queue, or on the broker as a whole."""

    open: bool
    """Whether everybody may do everything, because there are no keys."""
    name: str | None
    id: str | None
    allow: list[str]
    verbs: list[str]
    report: bool
    """Whether there may be a page at `/v1/report`."""
    version: str


class PurgeReply(Struct):
    purged: int


class ClaimReply(Struct):
    """A claim; its number is null if there was nothing to claim."""

    group: str
    claim: int | None
    messages: int
    bytes: int
    made_at: datetime | None
    epoch: int


class ClaimsOpenedReply(Struct):
    group: str
    epoch: int
    acked: int
    last: int


class ClaimsAckedReply(Struct):
    acked: int


class ClaimsReleasedReply(Struct):
    released: int


class WireClaim(Struct):
    claim: int
    state: str
    messages: int
    bytes: int
    made_at: datetime
    acked_at: datetime | None


class WireClaimGroup(Struct):
    group: str
    epoch: int
    acked: int
    last: int
    claims: list[WireClaim]


class ClaimGroupsReply(Struct):
    groups: list[WireClaimGroup]


class UploadReply(Struct):
    messages: int
    bytes: int


class CommitStagesReply(Struct):
    committed: int
    repeated: bool


class DiscardReply(Struct):
    discarded: int


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


class StagesReply(Struct):
    stages: list[WireStage]


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
    """Shown once, in the answer that creates the key."""
    public: str | None = None
    """Of a CURVE key."""
    server: str | None = None
    """The broker's own public key, in the answer that lists a CURVE key."""


class KeysReply(Struct):
    keys: list[ApiKey]


class HealthReply(Struct, omit_defaults=True):
    status: str
    reason: str | None = None


class AddressReply(Struct):
    """Where an endpoint is. The host is that of the server; one who reached it by another name uses the port."""

    address: str
    port: int


class SizeReply(Struct):
    size: int


class CancelReply(Struct):
    cancelled: int


class CommandReply(Struct):
    """The reply to a command that went well."""

    ok: bool
    data: Any


class CommandError(Struct, omit_defaults=True):
    code: str
    text: str
    field: str | None = None


class CommandRefusal(Struct):
    """The reply to a command that did not."""

    ok: bool
    error: CommandError


class Problem(Struct, omit_defaults=True):
    """RFC 9457. `code` is stable; `field` names the input that was wrong."""

    title: str
    status: int
    code: str
    detail: str
    field: str | None = None
    type: str = "about:blank"
