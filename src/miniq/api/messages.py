"""Messages on the wire, in both directions: drafts as they are sent, messages as they are received or peeked at.

A receive may return a thousand messages, so a client decodes them as `Received`, which has the attributes of a `Stored`
and its `Message` and converts moments and body on access. Unknown fields are ignored: a newer broker may send more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.api import codec
from miniq.api.checks import check_headers, check_moment, check_number, check_text, check_whole_number
from miniq.api.codec import EPOCH, Format, moment
from miniq.api.shapes import WireDead, WireDraft, WireMessage, with_fields_of
from miniq.errors import TooLarge
from miniq.message import JSON, NEVER, DeadLetter, Draft, Message, PlainDrafts, Status, Stored

# Drafts

CONVERTED_BYTES = 32 * 1024 * 1024
"""Maximum size of all bodies of a request in MessagePack, as JSON."""
_options = attrgetter(*Draft.__struct_fields__[2:])
"""The fields of a draft beside its body and content type; `WireDraft` has them in the same order."""
_NO_OPTIONS = _options(Draft(b""))
_CHECKS: dict[Any, Callable[..., Any]] = {
    str | None: check_text,
    float | None: check_number,
    int: check_whole_number,
    datetime | None: check_moment,
}
_CHECKED = [(info.name, _CHECKS[info.type]) for info in msgspec.structs.fields(WireDraft) if info.type in _CHECKS]


def draft_of(wire: WireDraft, format: Format, place: str = "") -> Draft:
    """A draft from the wire; `place` comes before the names of fields in errors."""
    body, content_type = codec.body_of(wire.body, wire.data, wire.content_type, format, place)
    return Draft(body, content_type, *_options(wire))


def drafts_of(wires: Sequence[WireDraft], format: Format) -> list[Draft]:
    """Many drafts from the wire. Most are JSON without a content type, which is the fast case."""
    if format == "msgpack":
        return _converted(wires)
    return [
        Draft(bytes(wire.body), JSON, *_options(wire))
        if wire.content_type is None and wire.data is UNSET and wire.body is not UNSET
        else draft_of(wire, format, f"messages[{number}].")
        for number, wire in enumerate(wires)
    ]


def _converted(wires: Sequence[WireDraft]) -> list[Draft]:
    """Drafts in MessagePack, whose bodies may become several times as large in JSON."""
    drafts: list[Draft] = []
    left = CONVERTED_BYTES
    for number, wire in enumerate(wires):
        drafts.append(draft_of(wire, "msgpack", f"messages[{number}]."))
        left -= len(drafts[-1].body)
        if left < 0:
            raise TooLarge(f"messages: more than {CONVERTED_BYTES} bytes as JSON; split it", field="messages")
    return drafts


def wire_drafts(drafts: Sequence[Draft]) -> list[WireDraft]:
    """Drafts as they are sent; JSON text stays as it is."""
    if isinstance(drafts, PlainDrafts):
        if drafts.content_type == JSON:
            return [WireDraft(Raw(body)) for body in drafts.bodies]
        if drafts.content_type == codec.OCTETS:
            return [WireDraft(UNSET, body) for body in drafts.bodies]
    is_single = len(drafts) == 1
    return [_wire_draft(draft, None if is_single else number) for number, draft in enumerate(drafts)]


def _wire_draft(draft: Draft, number: int | None) -> WireDraft:
    kind, options = draft.content_type, _options(draft)
    if kind == JSON and options == _NO_OPTIONS:
        return WireDraft(Raw(draft.body))
    for field, check in _CHECKED:
        check(getattr(draft, field), field, number)
    check_headers(draft.headers, number)
    body, data = codec.wire_body(draft.body, kind, "json")
    return WireDraft(body, data, None if kind == JSON else kind, *options)


def best_format(packed: object) -> Format:
    """The format for the body of a request: MessagePack if its messages are bytes, which JSON would need in base64."""
    if not isinstance(packed, WireDraft):
        return "json"
    drafts = getattr(packed, "messages", UNSET)
    if drafts is UNSET:
        return "json" if packed.data is UNSET else "msgpack"
    return "msgpack" if all(draft.data is not UNSET for draft in drafts) else "json"


# Messages


def wire_messages(leased: Sequence[Stored], format: Format) -> list[WireMessage]:
    """Messages as a receive returns them."""
    wires: list[WireMessage] = []
    last_sent = last_visible = -1
    sent_at: Any = None
    visible_at: datetime | None = None
    for stored in leased:
        message = stored.message
        if message.sent_at != last_sent:
            last_sent = message.sent_at
            sent_at = EPOCH + timedelta(microseconds=last_sent)  # `moment` without a call, for speed
        if stored.visible_at != last_visible:
            last_visible = stored.visible_at
            visible_at = None if last_visible == NEVER else moment(last_visible)
        if message.content_type == JSON and format == "json":
            body: Raw | UnsetType = Raw(message.body)
            data: bytes | UnsetType = UNSET
        else:
            body, data = codec.wire_body(message.body, message.content_type, format)
        wires.append(
            # Written out for speed; a unit test fails if a field of `Message` is missing.
            WireMessage(  # type: ignore[call-arg]
                message.id,
                message.queue,
                sent_at,
                stored.receives,
                visible_at,
                message.priority,
                message.content_type,
                body,
                data,
                UNSET,
                stored.receipt,
                None if stored.receipt is None else visible_at,
                stored.consumer,
                message.headers,
                None if message.expires_at is None else moment(message.expires_at),
                None if message.dead is None else codec.to_wire(WireDead, message.dead),
                stored.error,
                message.key,  # from here on the derived fields, in the order of `Message`
                message.recipient,
                message.group,
                message.dedup_id,
                message.topic,
            )
        )
    return wires


def shown_messages(peeked: Sequence[Stored], now: int, format: Format) -> list[WireMessage]:
    """Messages as a peek returns them: with their status, and without receipts, which only their consumers may know."""
    wires = wire_messages(peeked, format)
    for wire, stored in zip(wires, peeked, strict=True):
        wire.status = stored.status(now)
        wire.error = stored.last_error(now)
        wire.receipt = None
        if wire.status != "leased":
            wire.lease_until = wire.consumer = None
    return wires


def claimed_messages(claimed: Sequence[Stored], format: Format) -> list[WireMessage]:
    """Messages of a claim. They are acked with it, so they need no receipts."""
    wires = wire_messages(claimed, format)
    for wire in wires:
        wire.receipt = None
    return wires


@with_fields_of(Message, "due_at", "lifetime")
class Received(Struct, gc=False):
    """A message from the wire that can be used as a `Stored`, and as the `Message` in it."""

    id: str
    queue: str
    sent: str = msgspec.field(name="sent_at")
    visible: str | None = msgspec.field(name="visible_at", default=None)
    receives: int = 0
    priority: int = 0
    content_type: str = JSON
    raw: Raw | UnsetType = msgspec.field(name="body", default=UNSET)
    octets: bytes | UnsetType = msgspec.field(name="data", default=UNSET)
    receipt: str | None = None
    lease_until: str | None = None
    consumer: str | None = None
    expires: str | None = msgspec.field(name="expires_at", default=None)
    died: WireDead | None = msgspec.field(name="dead", default=None)
    error: str | None = None

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
        return body_bytes(self.raw, b"" if self.octets is UNSET else self.octets, self.content_type)

    @property
    def is_hidden(self) -> bool:
        """Whether the reply has no body, because the caller may not read it."""
        return self.raw is UNSET and self.octets is UNSET

    @property
    def dead(self) -> DeadLetter | None:
        return None if self.died is None else codec.from_wire(DeadLetter, self.died)

    def last_error(self, now: int) -> str | None:
        return self.error

    def status(self, now: int) -> Status:
        if self.visible_at <= now:
            return "ready"
        return "delayed" if self.receipt is None else "leased"


def body_bytes(raw: Raw | UnsetType, data: bytes, content_type: str) -> bytes:
    """The bytes that were sent: JSON as it is, text in UTF-8, and other bytes from `data`."""
    if raw is UNSET:
        return data
    if codec.is_json(content_type):
        return bytes(raw)
    return msgspec.json.decode(raw, type=str).encode()


def micros(text: str) -> int:
    """A timestamp on the wire as a moment."""
    return codec.micros(datetime.fromisoformat(text))
