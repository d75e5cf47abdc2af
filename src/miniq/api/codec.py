"""Records on the wire, shared by servers and clients: how messages, replies and errors look.

JSON and MessagePack carry the same names. A message's `body` is any JSON value, or text where its content
type is `text/*`; other bytes travel as `data` (base64 in JSON). JSON bodies are checked once, when they
come in, and handed on as they are. Moments are RFC 3339 in UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from miniq.api.shapes import Problem
from miniq.errors import BY_CODE, InvalidRequest, MiniQError, TooLarge
from miniq.message import JSON

MSGPACK = "application/msgpack"
PROBLEM = "application/problem+json"
OCTETS = "application/octet-stream"

Format = Literal["json", "msgpack"]

MEDIA: dict[Format, str] = {"json": JSON, "msgpack": MSGPACK}

STATUS: dict[str, int] = {
    "invalid": 400,
    "bad_name": 400,
    "bad_request": 400,
    "too_large": 413,
    "unauthorized": 401,
    "forbidden": 403,
    "cross_origin": 403,
    "no_route": 404,
    "not_found": 404,
    "queue_not_found": 404,
    "message_not_found": 404,
    "claim_unknown": 404,
    "wrong_method": 405,
    "missing_extra": 406,
    "stale_receipt": 409,
    "message_leased": 409,
    "queue_protected": 409,
    "fenced": 409,
    "stage_unknown": 409,
    "claim_gone": 410,
    "wrong_media": 415,
    "queue_full": 429,
    "closed": 503,
    "store_unavailable": 503,
    "store_failed": 503,
    "no_space": 507,
}
"""The HTTP status of each error code. A code that is not here would be a fault of ours: 500."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(micros: int) -> datetime:
    """A moment as it goes on the wire."""
    return _EPOCH + timedelta(microseconds=micros)


def micros(at: datetime) -> int:
    """A moment as it is kept."""
    return (at - _EPOCH) // timedelta(microseconds=1)


# Bytes


_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
encode_json = _json.encode
encode_msgpack = _msgpack.encode


def encode(reply: Any, format: Format) -> bytes:
    """A reply as bytes."""
    return _json.encode(reply) if format == "json" else _msgpack.encode(reply)


class Reader:
    """Reads one kind of request in either format, and says what is wrong with one that cannot be read."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._json = msgspec.json.Decoder(kind).decode
        self._msgpack = msgspec.msgpack.Decoder(kind).decode

    def read(self, raw: bytes, format: Format) -> Any:
        try:
            if format == "json":
                str(raw, "utf-8")  # a body is handed on unread, so bad UTF-8 would come out again
                return self._json(raw)
            return self._msgpack(raw)
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"request: not UTF-8 at byte {error.start}", field="request") from None
        except msgspec.ValidationError as error:
            raise _named(error, raw, format) from None
        except (msgspec.DecodeError, RecursionError) as error:
            name = "JSON" if format == "json" else "MessagePack"
            raise InvalidRequest(f"request: cannot be read as {name}: {error}", field="request") from None


def _named(error: msgspec.ValidationError, raw: bytes, format: Format) -> InvalidRequest:
    """The field that a validation error is about."""
    text, _, place = str(error).partition(" - at `$")
    place = place.rstrip("`").lstrip(".")
    if place.startswith("[...]"):  # some value of a map
        place = _unreadable(raw, format)
    if text.startswith("Object contains unknown field"):
        unknown = text.split("`")[1][:80]
        field = f"{place}.{unknown}" if place else unknown
        return InvalidRequest(f"{field}: there is no such field", field=field)
    if text.startswith("Object missing required field"):
        missing = text.split("`")[1]
        field = f"{place}.{missing}" if place else missing
        return InvalidRequest(f"{field}: is required", field=field)
    field = place or "request"
    return InvalidRequest(f"{field}: {text[:1].lower()}{text[1:]}", field=field)


def _unreadable(raw: bytes, format: Format) -> str:
    """The first name in a map whose value cannot be read, such as a number that is out of range."""
    library = msgspec.json if format == "json" else msgspec.msgpack
    found: dict[str, Raw] = library.decode(raw, type=dict[str, Raw])
    for name, value in found.items():
        try:
            library.decode(value)
        except ValueError:
            return name[:80]
    return "request"


# Bodies


def is_json(content_type: str) -> bool:
    """Whether bytes of this type are JSON text."""
    if content_type == JSON:
        return True
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def body_of(
    body: Raw | UnsetType, data: bytes | UnsetType, content_type: str | None, format: Format, place: str = ""
) -> tuple[bytes, str]:
    """The bytes of a body and their type."""
    if data is not UNSET:
        if body is not UNSET:
            raise InvalidRequest(f"{place}data: given beside body; give one of them", field=f"{place}data")
        if content_type is not None and is_json(content_type):
            _check_json(data, f"{place}data")  # it goes out as it is, and would spoil the answer it is in
        return data, content_type or OCTETS
    if body is UNSET:
        raise InvalidRequest(f"{place}body: is required (or data, for bytes)", field=f"{place}body")
    raw = bytes(body)
    if content_type is not None and "/" not in content_type:
        field = f"{place}content_type"
        raise InvalidRequest(f"{field}: {content_type[:80]!r} is not a media type such as {JSON}", field=field)
    if content_type is None or content_type == JSON:
        return raw if format == "json" else _json_of(raw, f"{place}body"), JSON
    if is_json(content_type):
        return raw if format == "json" else _json_of(raw, f"{place}body"), content_type
    if content_type.startswith("text/"):
        try:
            text = msgspec.json.decode(raw if format == "json" else _json_of(raw, f"{place}body"), type=str)
        except (msgspec.DecodeError, RecursionError):
            raise InvalidRequest(
                f"{place}body: must be a string, because content_type is {content_type}", field=f"{place}body"
            ) from None
        return text.encode(), content_type
    raise InvalidRequest(
        f"{place}body: is for JSON and text; send {content_type} as data (base64 in JSON)", field=f"{place}body"
    )


def _json_of(raw: bytes, field: str) -> bytes:
    """A MessagePack value as JSON, which has no extensions and only text as keys."""
    try:
        return _json.encode(msgspec.msgpack.decode(raw))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidRequest(f"{field}: cannot be kept as JSON: {error}", field=field) from None


def _check_json(data: bytes, field: str) -> None:
    """Refuse bytes that are not JSON text though they are sent as such."""
    try:
        str(data, "utf-8")
        msgspec.json.decode(data, type=Raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{field}: is not JSON, though its content type says so: {error}", field=field) from None


def wire_body(body: bytes, content_type: str, format: Format) -> tuple[Raw | UnsetType, bytes | UnsetType]:
    """A body as `body` or as `data`."""
    if is_json(content_type):
        if format == "json":
            return Raw(body), UNSET
        try:
            return Raw(_msgpack.encode(msgspec.json.decode(body))), UNSET
        except (ValueError, OverflowError, RecursionError):
            return UNSET, body  # a number that JSON has and MessagePack has not, or more brackets
    if content_type.startswith("text/"):
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return UNSET, body
        return Raw(_json.encode(text) if format == "json" else _msgpack.encode(text)), UNSET
    return UNSET, body


# Errors


def problem(error: MiniQError) -> Problem:
    """An error as it goes on the wire."""
    status = STATUS.get(error.code, 500)
    return Problem(error.code.replace("_", " "), status, error.code, error.text, error.field)


def raised(found: Problem) -> MiniQError:
    """The error that a problem stands for, of the class that the broker raised."""
    kind = BY_CODE.get(found.code)
    if kind is None:
        kind = TooLarge if found.status == 413 else MiniQError
    error = kind(found.detail, field=found.field)
    error.code = found.code
    return error
