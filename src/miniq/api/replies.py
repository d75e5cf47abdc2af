"""Replies, both ways: what the broker's results look like on a wire, and the results that a client reads from there.

Each pair stands together, so that the two ends cannot drift apart. Readers take JSON; what a newer broker says more is
passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import msgspec
from msgspec import UNSET, Struct

from miniq.api import codec, shapes
from miniq.api.codec import Format, moment
from miniq.api.messages import Received, body_bytes, micros, shown_messages, wire_messages
from miniq.message import (
    JSON,
    Claim,
    ClaimGroup,
    Committed,
    Counts,
    Event,
    Extended,
    HistoryPage,
    HistoryRecord,
    Lease,
    Outcome,
    Page,
    QueueInfo,
    Stage,
    StageName,
    Stored,
)

T = TypeVar("T")
S = TypeVar("S")
Now = Callable[[], int]


class Reply(Struct, Generic[T], frozen=True):
    """A kind of reply; `T` is the result that it carries."""

    shape: Any
    """The record on the wire, None if there is none."""
    write: Callable[[T, Any, Format, Now], Any]
    """The record for a result, the call that led to it, the format and the broker's clock."""
    read: Callable[[bytes], T]
    """The result in a reply; raises `ValueError` or its kin if it cannot be read."""
    nothing: Any = None
    """The result of a long poll that was not answered."""


# Kinds of pairs


def _pair(shape: type[S], write: Callable[[T], S], read: Callable[[S], T]) -> Reply[T]:
    """A record that says the same as the result."""
    decode = msgspec.json.Decoder(shape).decode
    return Reply(shape, lambda result, call, format, now: write(result), lambda body: read(decode(body)))


def same(shape: type[S]) -> Reply[S]:
    """The result is the record."""
    return _pair(shape, lambda result: result, lambda reply: reply)


def single(shape: Any) -> Reply[Any]:
    """The result is the record's only field."""
    (field,) = shape.__struct_fields__
    return _pair(shape, shape, lambda reply: getattr(reply, field))


def _alike(shape: type[S], record: type[T]) -> tuple[Callable[[T], S], Callable[[S], T]]:
    """Record and result have the same fields in the same order."""
    theirs, ours = cast(Any, shape).__struct_fields__, cast(Any, record).__struct_fields__

    def write(result: T) -> S:
        return shape(*[getattr(result, name) for name in ours[: len(theirs)]])

    def read(reply: S) -> T:
        return record(*[getattr(reply, name) for name in theirs])

    return write, read


NONE: Reply[None] = Reply(None, lambda result, call, format, now: None, lambda body: None)


# Messages


class _Messages(Struct):
    messages: list[Received]


class _Page(Struct):
    messages: list[Received]
    next: str | None = None
    looked: int | None = None


class _Outcome(Struct, gc=False):
    outcome: str


class _Outcomes(Struct):
    results: list[_Outcome]
    lease_until: str = ""


_sent = msgspec.json.Decoder(shapes.SentReply).decode
_messages = msgspec.json.Decoder(_Messages).decode
_page = msgspec.json.Decoder(_Page).decode
_message = msgspec.json.Decoder(Received).decode
_outcomes = msgspec.json.Decoder(_Outcomes).decode
_OUTCOMES: dict[str, Outcome] = {
    "acked": "done",
    "released": "done",
    "extended": "done",
    "stale": "stale",
    "missing": "missing",
}


def _seen(message: Received) -> Stored:
    """A message that was not received: its receipt is its holder's own, but that there is one shows."""
    if (message.lease_until is not None or message.visible is None) and message.receipt is None:
        message.receipt = ""
    return cast(Stored, message)


def _write_page(page: Page, call: Any, format: Format, now: Now) -> shapes.PageReply:
    looked = UNSET if page.looked is None else page.looked
    return shapes.PageReply(shown_messages(page.messages, now(), format), page.next, looked)


def _read_page(body: bytes) -> Page:
    page = _page(body)
    return Page([_seen(message) for message in page.messages], page.next, page.looked)


def outcomes_reply(leases: Sequence[Lease], outcomes: Sequence[Outcome], done: str) -> list[shapes.OutcomeReply]:
    """What became of each lease; `done` is the word for success."""
    return [
        shapes.OutcomeReply(lease.id, done if outcome == "done" else "stale" if outcome == "leased" else outcome)
        for lease, outcome in zip(leases, outcomes, strict=True)
    ]


def _outcomes_of(done: str) -> Reply[list[Outcome]]:
    return Reply(
        shapes.OutcomesReply,
        lambda result, call, format, now: shapes.OutcomesReply(outcomes_reply(call.leases, result, done)),
        lambda body: [_OUTCOMES[result.outcome] for result in _outcomes(body).results],
    )


def _write_extended(result: Extended, call: Any, format: Format, now: Now) -> shapes.ExtendReply:
    return shapes.ExtendReply(outcomes_reply(call.leases, result.outcomes, "extended"), moment(result.until))


def _read_extended(body: bytes) -> Extended:
    reply = _outcomes(body)
    return Extended([_OUTCOMES[result.outcome] for result in reply.results], micros(reply.lease_until))


IDS: Reply[list[str]] = Reply(
    shapes.SentReply,
    lambda ids, call, format, now: shapes.SentReply(ids),
    lambda body: _sent(body).ids,
)
RECEIVED: Reply[list[Stored]] = Reply(
    shapes.MessagesReply,
    lambda taken, call, format, now: shapes.MessagesReply(wire_messages(taken, format)),
    lambda body: cast("list[Stored]", _messages(body).messages),
    nothing=[],
)
CLAIMED: Reply[list[Stored]] = Reply(
    shapes.MessagesReply,
    lambda taken, call, format, now: taken,  # written piece by piece by the server
    lambda body: [_seen(message) for message in _messages(body).messages],
)
MESSAGE: Reply[Stored] = Reply(
    shapes.WireMessage,
    lambda stored, call, format, now: shown_messages([stored], now(), format)[0],
    lambda body: _seen(_message(body)),
)
PAGE: Reply[Page] = Reply(shapes.PageReply, _write_page, _read_page)
ACKED = _outcomes_of("acked")
RELEASED = _outcomes_of("released")
EXTENDED: Reply[Extended] = Reply(shapes.ExtendReply, _write_extended, _read_extended)
RELEASED_ONE: Reply[bool] = Reply(
    shapes.OutcomeReply,
    lambda released, call, format, now: shapes.OutcomeReply(call.id, "released" if released else "free"),
    lambda body: msgspec.json.decode(body, type=shapes.OutcomeReply).outcome == "released",
)


# Claims and stages


def _write_claim(result: tuple[Claim | None, int], call: Any, format: Format, now: Now) -> shapes.ClaimReply:
    claim, epoch = result
    if claim is None:
        return shapes.ClaimReply(call.group, None, 0, 0, None, epoch)
    return shapes.ClaimReply(call.group, claim.number, claim.messages, claim.bytes, moment(claim.made_at), epoch)


def _read_claim(body: bytes) -> tuple[Claim | None, int]:
    reply = msgspec.json.decode(body, type=shapes.ClaimReply)
    if reply.claim is None or reply.made_at is None:
        return None, reply.epoch
    return Claim(reply.claim, reply.messages, reply.bytes, codec.micros(reply.made_at)), reply.epoch


def _write_group(group: ClaimGroup) -> shapes.WireClaimGroup:
    claims = [
        shapes.WireClaim(
            claim.number,
            "held" if claim.acked_at is None else "acked",
            claim.messages,
            claim.bytes,
            moment(claim.made_at),
            None if claim.acked_at is None else moment(claim.acked_at),
        )
        for claim in group.claims
    ]
    return shapes.WireClaimGroup(group.group, group.epoch, group.acked, group.last, claims)


def _read_group(group: shapes.WireClaimGroup) -> ClaimGroup:
    claims = [
        Claim(
            claim.claim,
            claim.messages,
            claim.bytes,
            codec.micros(claim.made_at),
            None if claim.acked_at is None else codec.micros(claim.acked_at),
        )
        for claim in group.claims
    ]
    return ClaimGroup(group.group, group.epoch, group.acked, group.last, claims)


def _write_stage(stage: Stage) -> shapes.WireStage:
    name = stage.name
    made_at, expires_at = moment(stage.made_at), moment(stage.until)
    return shapes.WireStage(
        name.job,
        name.batch,
        name.partition,
        name.attempt,
        stage.parts,
        stage.messages,
        stage.bytes,
        made_at,
        expires_at,
    )


def _read_stage(stage: shapes.WireStage) -> Stage:
    name = StageName(stage.job, stage.batch, stage.partition, stage.attempt)
    made_at, until = codec.micros(stage.made_at), codec.micros(stage.expires_at)
    return Stage(name, stage.parts, stage.messages, stage.bytes, made_at, until)


CLAIM: Reply[tuple[Claim | None, int]] = Reply(shapes.ClaimReply, _write_claim, _read_claim, nothing=(None, 0))
CLAIMS_OPENED: Reply[ClaimGroup] = _pair(shapes.ClaimsOpenedReply, *_alike(shapes.ClaimsOpenedReply, ClaimGroup))
CLAIMS_ACKED: Reply[None] = Reply(
    shapes.ClaimsAckedReply, lambda result, call, format, now: shapes.ClaimsAckedReply(call.upto), lambda body: None
)
CLAIM_GROUPS: Reply[list[ClaimGroup]] = _pair(
    shapes.ClaimGroupsReply,
    lambda groups: shapes.ClaimGroupsReply([_write_group(group) for group in groups]),
    lambda reply: [_read_group(group) for group in reply.groups],
)
UPLOADED: Reply[tuple[int, int]] = _pair(
    shapes.UploadReply, lambda result: shapes.UploadReply(*result), lambda reply: (reply.messages, reply.bytes)
)
COMMITTED: Reply[Committed] = _pair(shapes.CommitStagesReply, *_alike(shapes.CommitStagesReply, Committed))
STAGES: Reply[list[Stage]] = _pair(
    shapes.StagesReply,
    lambda stages: shapes.StagesReply([_write_stage(stage) for stage in stages]),
    lambda reply: [_read_stage(stage) for stage in reply.stages],
)


# Queues, history, the broker


def queue_reply(info: QueueInfo) -> shapes.QueueReply:
    """A queue as it goes on the wire."""
    counts = info.counts
    return shapes.QueueReply(
        info.name,
        info.settings,
        shapes.WireCounts(
            counts.ready,
            counts.delayed,
            counts.leased,
            counts.total,
            counts.bytes,
            None if counts.oldest is None else moment(counts.oldest),
        ),
        info.redrive,
    )


def _read_queue(queue: shapes.QueueReply) -> QueueInfo:
    counts = queue.counts
    oldest = None if counts.oldest is None else codec.micros(counts.oldest)
    found = Counts(counts.ready, counts.delayed, counts.leased, counts.bytes, oldest)
    return QueueInfo(queue.name, queue.settings, found, queue.redrive)


def wire_event(record: HistoryRecord, format: Format) -> shapes.WireEvent:
    """A line of history as it goes on the wire."""
    event = record.event
    made = shapes.WireEvent(record.offset, moment(event.at), **{name: getattr(event, name) for name in _EVENT_FIELDS})
    if event.body is not None:
        made.body, made.data = codec.wire_body(event.body, event.content_type or JSON, format)
    return made


def _read_event(event: shapes.WireEvent) -> HistoryRecord:
    body = None
    if event.body is not UNSET or event.data is not UNSET:
        body = body_bytes(event.body, event.data or b"", event.content_type or JSON)
    fields = {name: getattr(event, name) for name in _EVENT_FIELDS}
    return HistoryRecord(event.offset, Event(codec.micros(event.at), body=body, **fields))


_EVENT_FIELDS = tuple(name for name in Event.__struct_fields__ if name not in ("at", "body"))
"""What an event says on the wire as it does here."""


def _write_history(page: HistoryPage, call: Any, format: Format, now: Now) -> shapes.HistoryReply:
    events = [wire_event(record, format) for record in page.records]
    return shapes.HistoryReply(events, page.next, page.first, page.last)


def _read_history(body: bytes) -> HistoryPage:
    page = msgspec.json.decode(body, type=shapes.HistoryReply)
    return HistoryPage([_read_event(event) for event in page.events], page.next, page.first, page.last)


QUEUE: Reply[QueueInfo] = _pair(shapes.QueueReply, queue_reply, _read_queue)
QUEUES: Reply[list[QueueInfo]] = _pair(
    shapes.QueuesReply,
    lambda infos: shapes.QueuesReply([queue_reply(info) for info in infos]),
    lambda reply: [_read_queue(queue) for queue in reply.queues],
)
HISTORY: Reply[HistoryPage] = Reply(shapes.HistoryReply, _write_history, _read_history)
