"""Wire records to results and back: what `codec.py` puts on a wire, as the client's calls give and take it.

A receive may bring a thousand messages, so `Received` stands where a `Stored` and its `Message` would, and
reads moments and the body from what came only when it is asked for them. Unknown fields are passed over: a
newer broker may say more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.api import codec, shapes
from miniq.client.calls import (
    Ack,
    Backup,
    Configure,
    Edit,
    Extend,
    Extended,
    NextClaim,
    Receive,
    Redrive,
    Release,
    Send,
)
from miniq.client.keys import CreateKey
from miniq.errors import InvalidRequest
from miniq.message import (
    JSON,
    NEVER,
    SECOND,
    Claim,
    ClaimGroup,
    Committed,
    Counts,
    DeadLetter,
    Draft,
    Event,
    EventName,
    HistoryPage,
    HistoryRecord,
    Outcome,
    Page,
    QueueInfo,
    QueueSettings,
    RedriveProgress,
    Stage,
    StageName,
    Status,
    Stored,
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OUTCOMES: dict[str, Outcome] = {
    "acked": "done",
    "released": "done",
    "extended": "done",
    "stale": "stale",
    "missing": "missing",
}


def micros(text: str) -> int:
    """A moment on the wire as it is kept."""
    since = datetime.fromisoformat(text) - _EPOCH
    return (since.days * 86400 + since.seconds) * SECOND + since.microseconds


# What comes back


class Received(Struct, gc=False):
    """A message on a wire; to its reader it is a `Stored` and the `Message` in it."""

    id: str
    queue: str
    sent: str = msgspec.field(name="sent_at")
    visible: str | None = msgspec.field(name="visible_at", default=None)
    receives: int = 0
    priority: int = 0
    content_type: str = JSON
    raw: Raw | UnsetType = msgspec.field(name="body", default=UNSET)
    data: bytes = b""
    receipt: str | None = None
    lease_until: str | None = None
    consumer: str | None = None
    headers: dict[str, str] | None = None
    expires: str | None = msgspec.field(name="expires_at", default=None)
    key: str | None = None
    recipient: str | None = None
    group: str | None = None
    dedup_id: str | None = None
    died: shapes.WireDead | None = msgspec.field(name="dead", default=None)

    @property
    def message(self) -> Received:
        return self

    @property
    def sent_at(self) -> int:
        return micros(self.sent)

    @property
    def visible_at(self) -> int:
        return NEVER if self.visible is None else micros(self.visible)

    @property
    def expires_at(self) -> int | None:
        return None if self.expires is None else micros(self.expires)

    @property
    def body(self) -> bytes:
        return body_bytes(self.raw, self.data, self.content_type)

    @property
    def dead(self) -> DeadLetter | None:
        died = self.died
        return None if died is None else DeadLetter(died.origin, died.reason, died.receives, codec.micros(died.at))

    def status(self, now: int) -> Status:
        if self.visible_at <= now:
            return "ready"
        return "delayed" if self.receipt is None else "leased"


def body_bytes(raw: Raw | UnsetType, data: bytes, content_type: str) -> bytes:
    """The bytes that were sent: JSON as it is, text in UTF-8, and other bytes, which came as `data`."""
    if raw is UNSET:
        return data
    if codec.is_json(content_type):
        return bytes(raw)
    return msgspec.json.decode(raw, type=str).encode()


class _Received(Struct):
    messages: list[Received]


class _Seen(Struct):
    messages: list[Received]
    next: str | None = None


class _Outcome(Struct, gc=False):
    outcome: str


class _Outcomes(Struct):
    results: list[_Outcome]
    lease_until: str = ""


_sent = msgspec.json.Decoder(shapes.SentReply).decode
_received = msgspec.json.Decoder(_Received).decode
_seen = msgspec.json.Decoder(_Seen).decode
_one = msgspec.json.Decoder(Received).decode
_outcomes = msgspec.json.Decoder(_Outcomes).decode
_queue = msgspec.json.Decoder(shapes.QueueReply).decode
_queues = msgspec.json.Decoder(shapes.QueuesReply).decode
_key = msgspec.json.Decoder(shapes.KeyReply).decode
_keys = msgspec.json.Decoder(shapes.KeysReply).decode
_purged = msgspec.json.Decoder(shapes.PurgeReply).decode
_redrive = msgspec.json.Decoder(shapes.RedriveReply).decode
_opened = msgspec.json.Decoder(shapes.ClaimsOpenedReply).decode
_claim = msgspec.json.Decoder(shapes.ClaimReply).decode
_released = msgspec.json.Decoder(shapes.ClaimsReleasedReply).decode
_uploaded = msgspec.json.Decoder(shapes.UploadReply).decode
_committed = msgspec.json.Decoder(shapes.CommitStagesReply).decode
_discarded = msgspec.json.Decoder(shapes.DiscardReply).decode
_stages = msgspec.json.Decoder(shapes.StagesReply).decode
_groups = msgspec.json.Decoder(shapes.ClaimGroupsReply).decode
_history = msgspec.json.Decoder(shapes.HistoryReply).decode


def read_ids(body: bytes) -> list[str]:
    return _sent(body).ids


def read_received(body: bytes) -> list[Stored]:
    return cast("list[Stored]", _received(body).messages)


def read_page(body: bytes) -> Page:
    page = _seen(body)
    return Page([_looked_at(message) for message in page.messages], page.next)


def read_message(body: bytes) -> Stored:
    return _looked_at(_one(body))


def _looked_at(message: Received) -> Stored:
    """A message that was not received: its receipt is its holder's own, but that there is one shows."""
    if (message.lease_until is not None or message.visible is None) and message.receipt is None:
        message.receipt = ""
    return cast(Stored, message)


def read_outcomes(body: bytes) -> list[Outcome]:
    return [_OUTCOMES[result.outcome] for result in _outcomes(body).results]


def read_extended(body: bytes) -> Extended:
    reply = _outcomes(body)
    return Extended([_OUTCOMES[result.outcome] for result in reply.results], micros(reply.lease_until))


def read_queue(body: bytes) -> QueueInfo:
    return _info(_queue(body))


def read_queues(body: bytes) -> list[QueueInfo]:
    return [_info(queue) for queue in _queues(body).queues]


def read_key(body: bytes) -> shapes.KeyReply:
    return _key(body)


def read_keys(body: bytes) -> list[shapes.KeyReply]:
    return _keys(body).keys


def read_purged(body: bytes) -> int:
    return _purged(body).purged


def read_redrive(body: bytes) -> RedriveProgress:
    reply = _redrive(body)
    return RedriveProgress(reply.moved, reply.skipped, reply.running)


def read_history(body: bytes) -> HistoryPage:
    page = _history(body)
    records = [HistoryRecord(event.offset, _event(event)) for event in page.events]
    return HistoryPage(records, page.next, page.first, page.last)


def read_opened(body: bytes) -> ClaimGroup:
    found = _opened(body)
    return ClaimGroup(found.group, found.epoch, found.acked, found.last)


def read_claim(body: bytes) -> Claim | None:
    found = _claim(body)
    if found.claim is None or found.made_at is None:
        return None
    return Claim(found.claim, found.messages, found.bytes, codec.micros(found.made_at))


def read_claimed(body: bytes) -> list[Stored]:
    return [_looked_at(message) for message in _received(body).messages]


def read_released(body: bytes) -> int:
    return _released(body).released


def read_uploaded(body: bytes) -> tuple[int, int]:
    found = _uploaded(body)
    return found.messages, found.bytes


def read_committed(body: bytes) -> Committed:
    found = _committed(body)
    return Committed(found.committed, found.repeated)


def read_discarded(body: bytes) -> int:
    return _discarded(body).discarded


def read_stages(body: bytes) -> list[Stage]:
    return [
        Stage(
            StageName(stage.job, stage.batch, stage.partition, stage.attempt),
            stage.parts,
            stage.messages,
            stage.bytes,
            codec.micros(stage.made_at),
            codec.micros(stage.expires_at),
        )
        for stage in _stages(body).stages
    ]


def read_groups(body: bytes) -> list[ClaimGroup]:
    return [
        ClaimGroup(
            group.group,
            group.epoch,
            group.acked,
            group.last,
            [
                Claim(
                    claim.claim,
                    claim.messages,
                    claim.bytes,
                    codec.micros(claim.made_at),
                    None if claim.acked_at is None else codec.micros(claim.acked_at),
                )
                for claim in group.claims
            ],
        )
        for group in _groups(body).groups
    ]


def _info(queue: shapes.QueueReply) -> QueueInfo:
    counts, redrive = queue.counts, queue.redrive
    oldest = None if counts.oldest is None else codec.micros(counts.oldest)
    return QueueInfo(
        queue.name,
        QueueSettings(**msgspec.structs.asdict(queue.settings)),
        Counts(counts.ready, counts.delayed, counts.leased, counts.bytes, oldest),
        None if redrive is None else RedriveProgress(redrive.moved, redrive.skipped, redrive.running),
    )


def _event(event: shapes.WireEvent) -> Event:
    body = None
    if event.body is not UNSET or event.data is not UNSET:
        body = body_bytes(event.body, event.data or b"", event.content_type or JSON)
    return Event(
        codec.micros(event.at),
        cast(EventName, event.event),
        event.queue,
        event.id,
        event.receives,
        event.size,
        event.consumer,
        event.wait_ms,
        event.held_ms,
        event.reason,
        body,
        event.content_type,
        event.count,
    )


# What goes out


def wire_drafts(drafts: Sequence[Draft]) -> list[shapes.WireDraft]:
    """Drafts as they travel; JSON text goes as it is."""
    made: list[shapes.WireDraft] = []
    alone = len(drafts) == 1
    for place, draft in enumerate(drafts):
        kind = draft.content_type
        if (
            (kind != JSON and kind != codec.OCTETS)
            or draft.headers is not None
            or draft.delay is not None
            or draft.ttl is not None
            or draft.key is not None
            or draft.recipient is not None
            or draft.group is not None
            or draft.dedup_id is not None
        ):
            made.append(_wire_draft(draft, None if alone else place))
        elif kind == JSON:
            made.append(shapes.WireDraft(Raw(draft.body), UNSET, None, None, draft.priority))
        else:
            made.append(shapes.WireDraft(UNSET, draft.body, None, None, draft.priority))
    return made


def _wire_draft(draft: Draft, place: int | None) -> shapes.WireDraft:
    for field in ("content_type", "key", "recipient", "group", "dedup_id"):
        check_text(getattr(draft, field), field, place)
    for field in ("delay", "ttl"):
        check_number(getattr(draft, field), field, place)
    body, data = codec.wire_body(draft.body, draft.content_type, "json")
    return shapes.WireDraft(
        body,
        data,
        None if draft.content_type == JSON else draft.content_type,
        check_headers(draft.headers, place),
        draft.priority,
        draft.delay,
        draft.ttl,
        draft.key,
        draft.recipient,
        draft.group,
        draft.dedup_id,
    )


def all_data(drafts: Sequence[shapes.WireDraft]) -> bool:
    """Whether all bodies are bytes that JSON would have to spell in base64."""
    return all(draft.data is not UNSET for draft in drafts)


def wire_edit(call: Edit) -> shapes.EditBody:
    for field in ("content_type", "receipt"):
        check_text(getattr(call, field), field)
    check_number(call.delay, "delay")
    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    if call.body is not None:
        body, data = codec.wire_body(call.body, call.content_type or JSON, "json")
    return shapes.EditBody(
        body, data, call.content_type, check_headers(call.headers), call.priority, call.delay, call.receipt
    )


def send_body(call: Send) -> tuple[shapes.WireDraft, codec.Format]:
    """What is sent, and in which format."""
    drafts = wire_drafts(call.drafts)
    format: codec.Format = "msgpack" if all_data(drafts) else "json"
    return (drafts[0] if len(drafts) == 1 else shapes.SendBody(messages=drafts)), format


def receive_body(call: Receive) -> shapes.ReceiveBody:
    check_text(call.consumer, "consumer")
    check_number(call.visibility_timeout, "visibility_timeout")
    check_number(call.wait, "wait")
    return shapes.ReceiveBody(call.max, call.visibility_timeout, call.wait, call.consumer, call.mode)


def ack_body(call: Ack) -> shapes.LeasesBody:
    return shapes.LeasesBody(list(call.leases))


def release_body(call: Release) -> shapes.ReleaseBody:
    check_number(call.delay, "delay")
    return shapes.ReleaseBody(list(call.leases), call.delay)


def extend_body(call: Extend) -> shapes.ExtendBody:
    check_number(call.seconds, "visibility_timeout")
    return shapes.ExtendBody(list(call.leases), call.seconds)


def claim_body(call: NextClaim) -> shapes.ClaimBody:
    check_text(call.group, "group")
    check_text(call.consumer, "consumer")
    check_number(call.wait, "wait")
    return shapes.ClaimBody(
        call.group, call.after, call.epoch, call.max_messages, call.max_bytes, call.wait, call.consumer
    )


def key_body(call: CreateKey) -> shapes.KeyBody:
    return shapes.KeyBody(call.name, call.allow, call.public)


def redrive_body(call: Redrive) -> shapes.RedriveBody:
    for id in call.ids or ():
        check_text(id, "ids")
    check_text(call.to, "to")
    check_number(call.rate, "rate")
    return shapes.RedriveBody(None if call.ids is None else list(call.ids), call.to, call.rate)


def configure_body(call: Configure) -> dict[str, Any]:
    for field, value in call.changes.items():
        check_number(value, field)
        if isinstance(value, bytes | bytearray):
            check_text(value, field)
    return call.changes


def backup_body(call: Backup) -> dict[str, Any]:
    check_text(call.path, "path")
    return {"path": call.path}


def encoded(record: Any, format: codec.Format = "json") -> bytes:
    """A record as bytes; what cannot be one is named."""
    try:
        return codec.encode(record, format)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unspeakable(record, format, "", error) from None


def _unspeakable(record: Any, format: codec.Format, place: str, error: Exception) -> InvalidRequest:
    """The first field of a record that cannot be written."""
    fields = record if isinstance(record, dict) else msgspec.structs.asdict(record)
    for field, value in fields.items():
        if value is UNSET:
            continue
        if field == "messages":
            for number, draft in enumerate(value):
                try:
                    codec.encode(draft, format)
                except Exception as problem:
                    return _unspeakable(draft, format, f"messages[{number}].", problem)
        try:
            codec.encode(value, format)
        except Exception as problem:
            return InvalidRequest(f"{place}{field}: {value!r:.80} cannot be sent: {problem}", field=place + field)
    return InvalidRequest(f"request: cannot be sent: {error}", field="request")


def check_text(value: object, field: str, place: int | None = None) -> None:
    """Refuse what is not text but would become some on the wire, such as bytes."""
    if value is not None and not isinstance(value, str):
        raise _wrong(field, place, f"{value!r:.80} is not text")


def check_number(value: object, field: str, place: int | None = None) -> None:
    """Refuse numbers that JSON does not have and that would be lost on the wire."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(field, place, f"{value!r} is not a number of seconds")


def check_headers(headers: Any, place: int | None = None) -> Any:
    """Refuse headers that are not a map from text to text."""
    if headers is None:
        return None
    if not isinstance(headers, dict):
        raise _wrong("headers", place, f"{headers!r:.80} is not a map from text to text")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _wrong("headers", place, f"{name!r:.80}: {value!r:.80} is not text to text")
    return headers


def _wrong(field: str, place: int | None, text: str) -> InvalidRequest:
    if place is not None:
        field = f"messages[{place}].{field}"
    return InvalidRequest(f"{field}: {text}", field=field)
