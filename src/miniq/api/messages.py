"""Messages on the wire, both ways: drafts as they are sent, messages as they are handed out or looked at.

A receive may bring a thousand messages, so a client reads them as `Received`, which stands where a `Stored` and its
`Message` would and reads moments and the body only when it is asked for them. Readers pass over unknown fields: a newer
broker may say more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.api import codec
from miniq.api.checks import check_headers, check_number, check_text
from miniq.api.codec import Format, moment
from miniq.api.shapes import WireDead, WireDraft, WireMessage
from miniq.message import JSON, NEVER, SECOND, DeadLetter, Draft, PlainDrafts, Status, Stored

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# Drafts


_beside = attrgetter(*Draft.__struct_fields__[2:])
"""What a draft says beside its body, in the same names and order on the wire."""
_NOTHING = _beside(Draft(b""))
_CHECKS: dict[Any, Callable[..., Any]] = {str | None: check_text, float | None: check_number}
_CHECKED = [(info.name, _CHECKS[info.type]) for info in msgspec.structs.fields(WireDraft) if info.type in _CHECKS]


def draft_of(wire: WireDraft, format: Format, place: str = "") -> Draft:
    """The draft that a message on the wire stands for."""
    body, content_type = codec.body_of(wire.body, wire.data, wire.content_type, format, place)
    return Draft(body, content_type, *_beside(wire))


def drafts_of(wires: Sequence[WireDraft], format: Format) -> list[Draft]:
    """The drafts of many messages; most are JSON without a word on their type, which is quickly done."""
    return [
        Draft(bytes(wire.body), JSON, *_beside(wire))
        if format == "json" and wire.content_type is None and wire.data is UNSET and wire.body is not UNSET
        else draft_of(wire, format, f"messages[{place}].")
        for place, wire in enumerate(wires)
    ]


def wire_drafts(drafts: Sequence[Draft]) -> list[WireDraft]:
    """Drafts as they travel; JSON text goes as it is."""
    if isinstance(drafts, PlainDrafts):
        if drafts.content_type == JSON:
            return [WireDraft(Raw(body)) for body in drafts.bodies]
        if drafts.content_type == codec.OCTETS:
            return [WireDraft(UNSET, body) for body in drafts.bodies]
    alone = len(drafts) == 1
    return [_wire_draft(draft, None if alone else place) for place, draft in enumerate(drafts)]


def _wire_draft(draft: Draft, place: int | None) -> WireDraft:
    kind, beside = draft.content_type, _beside(draft)
    if kind == JSON and beside == _NOTHING:
        return WireDraft(Raw(draft.body))
    for field, check in _CHECKED:
        check(getattr(draft, field), field, place)
    check_headers(draft.headers, place)
    body, data = codec.wire_body(draft.body, kind, "json")
    return WireDraft(body, data, None if kind == JSON else kind, *beside)


def best_format(packed: object) -> Format:
    """The format for the body of a request: bodies that are bytes would be spelled in base64 in JSON."""
    if not isinstance(packed, WireDraft):
        return "json"
    drafts = getattr(packed, "messages", UNSET)
    if drafts is UNSET:
        return "json" if packed.data is UNSET else "msgpack"
    return "msgpack" if all(draft.data is not UNSET for draft in drafts) else "json"


# Messages


def wire_messages(taken: Sequence[Stored], format: Format) -> list[WireMessage]:
    """Messages that were handed out."""
    moments: dict[int, datetime | None] = {NEVER: None}
    found: list[WireMessage] = []
    for stored in taken:
        message = stored.message
        sent_at = moments.get(message.sent_at)
        if sent_at is None:
            sent_at = moments[message.sent_at] = moment(message.sent_at)
        visible_at = stored.visible_at
        if visible_at not in moments:
            moments[visible_at] = moment(visible_at)
        until = moments[visible_at]
        if message.content_type == JSON and format == "json":
            body: Raw | UnsetType = Raw(message.body)
            data: bytes | UnsetType = UNSET
        else:
            body, data = codec.wire_body(message.body, message.content_type, format)
        dead = message.dead
        found.append(
            WireMessage(
                message.id,
                message.queue,
                sent_at,
                stored.receives,
                until,
                message.priority,
                message.content_type,
                body,
                data,
                UNSET,
                stored.receipt,
                until if stored.receipt is not None else None,
                stored.consumer,
                message.headers,
                None if message.expires_at is None else moment(message.expires_at),
                message.key,
                message.recipient,
                message.group,
                message.dedup_id,
                None if dead is None else WireDead(dead.origin, dead.reason, dead.receives, moment(dead.at)),
            )
        )
    return found


def shown_messages(seen: Sequence[Stored], now: int, format: Format) -> list[WireMessage]:
    """Messages that were looked at: with their state, and without receipts, which are their holders' own."""
    found = wire_messages(seen, format)
    for wire, stored in zip(found, seen, strict=True):
        wire.status = stored.status(now)
        wire.receipt = None
        if wire.status != "leased":
            wire.lease_until = wire.consumer = None
    return found


def claimed_messages(claimed: Sequence[Stored], format: Format) -> list[WireMessage]:
    """Messages of a claim. They are acked with it, so they need no receipts."""
    found = wire_messages(claimed, format)
    for wire in found:
        wire.receipt = None
    return found


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
    died: WireDead | None = msgspec.field(name="dead", default=None)

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


def micros(text: str) -> int:
    """A moment on the wire as it is kept."""
    since = datetime.fromisoformat(text) - _EPOCH
    return (since.days * 86400 + since.seconds) * SECOND + since.microseconds
