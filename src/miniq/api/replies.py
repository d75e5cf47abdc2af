"""Replies in both directions: how the results of the broker are written, and how a client reads them.

Each pair stands together, so that the two ends cannot drift apart. Clients read JSON and ignore unknown fields: a newer
broker may send more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, Literal, TypeVar, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.api import codec, shapes
from miniq.api.codec import Format, from_wire, moment, to_wire
from miniq.api.messages import Received, body_bytes, micros, shown_messages, wire_messages
from miniq.batch import Claim, ClaimGroup, Committed, OpenedGroup, Stage, StageName
from miniq.consumer import Consumer
from miniq.errors import InvalidRequest
from miniq.message import (
    JSON,
    SHOWN,
    ConfiguredQueue,
    Counts,
    Event,
    Extended,
    Failed,
    HistoryPage,
    HistoryRecord,
    Lease,
    Leased,
    Outcome,
    Page,
    QueueInfo,
    Stored,
)
from miniq.result import Progress
from miniq.topic import ConfiguredTopic, TopicInfo

T = TypeVar("T")
S = TypeVar("S")
Now = Callable[[], int]


class Reply(Struct, Generic[T], frozen=True):
    """A kind of reply; `T` is the result that it carries."""

    shape: Any
    """The record on the wire, None if there is none."""
    write: Callable[[T, Any, Format, Now], Any]
    """The record for a result, given the call, the format and the broker's clock."""
    read: Callable[[bytes], T]
    """The result in a reply; raises `ValueError`, `KeyError`, `TypeError` or `RecursionError` if it is invalid."""
    nothing: Any = None
    """The result of a long poll that ends without a reply."""


# Kinds of replies


def _pair(shape: type[S], write: Callable[[T], S], read: Callable[[S], T]) -> Reply[T]:
    """A shape and a result that can be computed from each other."""
    decode = msgspec.json.Decoder(shape).decode
    return Reply(shape, lambda result, call, format, now: write(result), lambda body: read(decode(body)))


def same(shape: type[S]) -> Reply[S]:
    """The result is the shape itself."""
    return _pair(shape, lambda result: result, lambda reply: reply)


def single(name: str, **field: Any) -> Reply[Any]:
    """The result is the only field of a shape with that name."""
    shape: Any = msgspec.defstruct(name, field.items())
    return _pair(shape, shape, attrgetter(*field))


def _list(name: str, write: Callable[[T], Any], read: Callable[[Any], T], **field: Any) -> Reply[list[T]]:
    """The result is a list, whose elements are in the only field of a shape with that name."""
    ((key, element),) = field.items()
    shape: Any = msgspec.defstruct(name, [(key, list[element])])  # type: ignore[valid-type]
    return _pair(
        shape,
        lambda results: shape([write(result) for result in results]),
        lambda reply: [read(element) for element in getattr(reply, key)],
    )


NONE: Reply[None] = Reply(None, lambda result, call, format, now: None, lambda body: None)


# Messages


class _Messages(Struct):
    messages: list[Received]
    visibility_timeout: float | None = None
    result_bytes: int | None = None


class _Page(Struct):
    messages: list[Received]
    next: str | None = None
    looked: int | None = None


class _Outcome(Struct, gc=False):
    outcome: str


class _Outcomes(Struct):
    results: list[_Outcome]
    lease_until: str = ""


class _Failure(Struct, gc=False):
    outcome: Literal["retried", "dead", "stale", "missing"]
    visible_at: str | None = None


class _Failures(Struct):
    results: list[_Failure]


_sent = msgspec.json.Decoder(shapes.SentReply).decode
_messages = msgspec.json.Decoder(_Messages).decode
_page = msgspec.json.Decoder(_Page).decode
_message = msgspec.json.Decoder(Received).decode
_outcomes = msgspec.json.Decoder(_Outcomes).decode
_progress = msgspec.json.Decoder(shapes.ResultReply).decode


def _peeked(message: Received) -> Stored:
    """A message that was not received: its receipt is unknown, but a leased one must have one."""
    if (message.lease_until is not None or message.visible is None) and message.receipt is None:
        message.receipt = ""
    return cast(Stored, message)


def _write_page(page: Page, call: Any, format: Format, now: Now) -> shapes.PageReply:
    looked = UNSET if page.looked is None else page.looked
    return shapes.PageReply(shown_messages(page.messages, now(), format), page.next, looked)


def _read_page(body: bytes) -> Page:
    page = _page(body)
    return Page([_peeked(message) for message in page.messages], page.next, page.looked)


def _outcome_replies(leases: Sequence[Lease], outcomes: Sequence[Outcome], done: str) -> list[shapes.OutcomeReply]:
    """The outcome of each lease; `done` is the word for success."""
    return [
        shapes.OutcomeReply(lease.id, done if outcome == "done" else "stale" if outcome == "leased" else outcome)
        for lease, outcome in zip(leases, outcomes, strict=True)
    ]


def _read_outcomes(reply: _Outcomes, done: str) -> list[Outcome]:
    meanings: dict[str, Outcome] = {done: "done", "stale": "stale", "missing": "missing"}
    return [meanings[result.outcome] for result in reply.results]


def outcomes(done: str) -> Reply[list[Outcome]]:
    """The result is the outcome of each lease; `done` is the word for success."""
    return Reply(
        shapes.OutcomesReply,
        lambda result, call, format, now: shapes.OutcomesReply(_outcome_replies(call.leases, result, done)),
        lambda body: _read_outcomes(_outcomes(body), done),
    )


def _write_extended(result: Extended, call: Any, format: Format, now: Now) -> shapes.ExtendReply:
    return shapes.ExtendReply(_outcome_replies(call.leases, result.outcomes, "extended"), moment(result.until))


def _read_extended(body: bytes) -> Extended:
    reply = _outcomes(body)
    return Extended(_read_outcomes(reply, "extended"), micros(reply.lease_until))


def _write_progress(progress: Progress, call: Any, format: Format, now: Now) -> shapes.ResultReply:
    result: Raw | UnsetType = UNSET
    if progress.result is not None:
        result, data = codec.wire_body(progress.result, JSON, format)
        if data is not UNSET:
            text = "result: has a number that MessagePack cannot carry, or is nested too deeply; request JSON"
            raise InvalidRequest(text, field="result")
    return to_wire(shapes.ResultReply, progress, result=result)


def _read_progress(body: bytes) -> Progress:
    reply = _progress(body)
    return from_wire(Progress, reply, result=None if reply.result is UNSET else bytes(reply.result))


def _write_failed(results: list[Failed], call: Any, format: Format, now: Now) -> shapes.FailReply:
    replies = []
    for lease, failed in zip(call.leases, results, strict=True):
        visible_at = None if failed.visible_at is None else moment(failed.visible_at)
        replies.append(shapes.FailedReply(lease.id, failed.outcome, visible_at))
    return shapes.FailReply(replies)


def _read_failed(body: bytes) -> list[Failed]:
    results = msgspec.json.decode(body, type=_Failures).results
    return [Failed(result.outcome, micros(result.visible_at) if result.visible_at else None) for result in results]


def _write_leased(leased: Leased, call: Any, format: Format, now: Now) -> shapes.MessagesReply:
    seconds = UNSET if leased.seconds is None else leased.seconds
    most = UNSET if leased.result_bytes is None else leased.result_bytes
    return shapes.MessagesReply(wire_messages(leased, format), seconds, most)


def _read_leased(body: bytes) -> Leased:
    reply = _messages(body)
    return Leased(cast("list[Stored]", reply.messages), reply.visibility_timeout, reply.result_bytes)


IDS: Reply[list[str]] = Reply(
    shapes.SentReply, lambda ids, call, format, now: shapes.SentReply(ids), lambda body: _sent(body).ids
)
RECEIVED: Reply[Leased] = Reply(shapes.MessagesReply, _write_leased, _read_leased, nothing=Leased())
CLAIMED: Reply[list[Stored]] = Reply(
    shapes.MessagesReply,
    lambda claimed, call, format, now: claimed,  # the server writes these in pieces
    lambda body: [_peeked(message) for message in _messages(body).messages],
)
MESSAGE: Reply[Stored] = Reply(
    shapes.WireMessage,
    lambda stored, call, format, now: shown_messages([stored], now(), format)[0],
    lambda body: _peeked(_message(body)),
)
PAGE: Reply[Page] = Reply(shapes.PageReply, _write_page, _read_page)
PROGRESS: Reply[Progress] = Reply(shapes.ResultReply, _write_progress, _read_progress, nothing=Progress("", "waiting"))
KEPT: Reply[bool] = Reply(
    shapes.KeptReply,
    lambda kept, call, format, now: shapes.KeptReply(kept),
    lambda body: msgspec.json.decode(body, type=shapes.KeptReply).kept,
)
FAILED: Reply[list[Failed]] = Reply(shapes.FailReply, _write_failed, _read_failed)
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
    return to_wire(shapes.ClaimReply, claim, group=call.group, claim=claim.number, epoch=epoch)


def _read_claim(body: bytes) -> tuple[Claim | None, int]:
    reply = msgspec.json.decode(body, type=shapes.ClaimReply)
    return None if reply.claim is None else from_wire(Claim, reply, number=reply.claim), reply.epoch


def _write_claims(group: ClaimGroup) -> list[shapes.WireClaim]:
    return [
        to_wire(shapes.WireClaim, claim, claim=claim.number, state="held" if claim.acked_at is None else "acked")
        for claim in group.claims
    ]


def _read_claims(wire: shapes.WireClaimGroup | shapes.ClaimsOpenedReply) -> list[Claim]:
    return [from_wire(Claim, claim, number=claim.claim) for claim in wire.claims]


def _write_stage(stage: Stage) -> shapes.WireStage:
    names = msgspec.structs.asdict(stage.name)
    return to_wire(shapes.WireStage, stage, expires_at=moment(stage.until), **names)


def _read_stage(stage: shapes.WireStage) -> Stage:
    return from_wire(Stage, stage, name=from_wire(StageName, stage), until=codec.micros(stage.expires_at))


CLAIM: Reply[tuple[Claim | None, int]] = Reply(shapes.ClaimReply, _write_claim, _read_claim, nothing=(None, 0))
CLAIMS_OPENED: Reply[OpenedGroup] = _pair(
    shapes.ClaimsOpenedReply,
    lambda group: to_wire(shapes.ClaimsOpenedReply, group, claims=_write_claims(group)),
    lambda reply: from_wire(OpenedGroup, reply, claims=_read_claims(reply)),
)
CLAIMS_ACKED: Reply[None] = Reply(
    shapes.ClaimsAckedReply, lambda result, call, format, now: shapes.ClaimsAckedReply(call.upto), lambda body: None
)
CLAIM_GROUPS: Reply[list[ClaimGroup]] = _list(
    "ClaimGroupsReply",
    lambda group: to_wire(shapes.WireClaimGroup, group, claims=_write_claims(group)),
    lambda wire: from_wire(ClaimGroup, wire, claims=_read_claims(wire)),
    groups=shapes.WireClaimGroup,
)
ALL_CLAIMS: Reply[list[tuple[str, ClaimGroup]]] = _list(
    "AllClaimsReply",
    lambda found: to_wire(shapes.WireQueueClaimGroup, found[1], claims=_write_claims(found[1]), queue=found[0]),
    lambda wire: (wire.queue, from_wire(ClaimGroup, wire, claims=_read_claims(wire))),
    groups=shapes.WireQueueClaimGroup,
)
UPLOADED: Reply[tuple[int, int]] = _pair(
    shapes.UploadReply, lambda result: shapes.UploadReply(*result), lambda reply: (reply.messages, reply.bytes)
)
COMMITTED: Reply[Committed] = _pair(
    shapes.CommitStagesReply,
    lambda result: shapes.CommitStagesReply(result.messages, result.repeated),
    lambda reply: Committed(reply.committed, reply.repeated),
)
STAGES: Reply[list[Stage]] = _list("StagesReply", _write_stage, _read_stage, stages=shapes.WireStage)


# Queues, history, the broker


def queue_reply(info: ConfiguredQueue) -> shapes.QueueReply:
    """A queue as it is sent to clients."""
    counts = None if info.counts is None else to_wire(shapes.WireCounts, info.counts)
    return to_wire(shapes.QueueReply, info, counts=counts)


def _read_topic(topic: ConfiguredTopic) -> ConfiguredTopic:
    if topic.subscriptions is None or topic.rates is None:
        return topic
    return TopicInfo(topic.name, topic.settings, topic.subscriptions, topic.rates)


def without_counts(reply: shapes.QueueReply) -> None:
    """A queue for a caller that may not read it."""
    reply.counts = reply.redrive = None


def without_content(reply: shapes.WireMessage) -> None:
    """A message for a caller that may not read it: the state, without anything that a sender gave or a consumer did."""
    reply.body = reply.data = UNSET
    reply.dead = reply.consumer = reply.error = None
    for field in SHOWN:
        if field not in ("body", "content_type", "priority"):
            setattr(reply, field, None)


def _read_queue(queue: shapes.QueueReply) -> QueueInfo:
    info = _read_configured(queue)
    if info.counts is None:
        raise ValueError("a queue without counts")
    return cast(QueueInfo, info)


def _read_configured(queue: shapes.QueueReply) -> ConfiguredQueue:
    counts = None if queue.counts is None else from_wire(Counts, queue.counts)
    return from_wire(ConfiguredQueue if counts is None else QueueInfo, queue, counts=counts)


def wire_event(record: HistoryRecord, format: Format) -> shapes.WireEvent:
    """A line of history as it is sent to clients."""
    event = record.event
    wire = to_wire(shapes.WireEvent, event, offset=record.offset, body=UNSET, data=UNSET)
    if event.body is not None:
        wire.body, wire.data = codec.wire_body(event.body, event.content_type or JSON, format)
    return wire


def _read_event(event: shapes.WireEvent) -> HistoryRecord:
    body = None
    if event.body is not UNSET or event.data is not UNSET:
        body = body_bytes(event.body, event.data or b"", event.content_type or JSON)
    return HistoryRecord(event.offset, from_wire(Event, event, body=body))


def _write_history(page: HistoryPage, call: Any, format: Format, now: Now) -> shapes.HistoryReply:
    events = [wire_event(record, format) for record in page.records]
    return shapes.HistoryReply(events, page.next, page.first, page.last)


def _read_history(body: bytes) -> HistoryPage:
    page = msgspec.json.decode(body, type=shapes.HistoryReply)
    return HistoryPage([_read_event(event) for event in page.events], page.next, page.first, page.last)


QUEUE: Reply[QueueInfo] = _pair(shapes.QueueReply, queue_reply, _read_queue)
TOPIC_CHANGED: Reply[ConfiguredTopic] = _pair(ConfiguredTopic, lambda topic: topic, _read_topic)
QUEUE_CHANGED: Reply[ConfiguredQueue] = _pair(shapes.QueueReply, queue_reply, _read_configured)
QUEUES: Reply[list[QueueInfo]] = _list("QueuesReply", queue_reply, _read_queue, queues=shapes.QueueReply)
CONSUMERS: Reply[list[Consumer]] = _list(
    "ConsumersReply",
    lambda consumer: to_wire(shapes.WireConsumer, consumer),
    lambda wire: from_wire(Consumer, wire),
    consumers=shapes.WireConsumer,
)
HISTORY: Reply[HistoryPage] = Reply(shapes.HistoryReply, _write_history, _read_history)
