"""Encoding of records, bodies and errors on the wire, shared by servers and clients.

JSON and MessagePack have the same field names. A message's `body` is any JSON value, or a string if its content type is
`text/*`; other bytes are sent as `data` (base64 in JSON). JSON bodies are validated once, on arrival, and passed on
unchanged. Moments are RFC 3339 in UTC.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from functools import cache
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.api import bounds
from miniq.api.bounds import Format as Format
from miniq.api.shapes import Problem
from miniq.errors import BY_CODE, MOMENT, NUMBERS, SECONDS, WHOLE_NUMBER, InvalidRequest, MiniQError, TooLarge, show
from miniq.json_values import check_finite, too_deep
from miniq.json_values import is_json as is_json
from miniq.message import EPOCH as EPOCH
from miniq.message import JSON, SECOND
from miniq.message import OCTETS as OCTETS
from miniq.message import moment as moment

MSGPACK = "application/msgpack"
PROBLEM = "application/problem+json"

S = TypeVar("S", bound=Struct)

MEDIA: dict[Format, str] = {"json": JSON, "msgpack": MSGPACK}

STATUS: dict[str, int] = {
    "invalid": 400,
    "bad_name": 400,
    "bad_request": 400,
    "too_large": 413,
    "url_too_long": 414,
    "unauthorized": 401,
    "forbidden": 403,
    "cross_origin": 403,
    "no_route": 404,
    "not_found": 404,
    "queue_not_found": 404,
    "message_not_found": 404,
    "schedule_not_found": 404,
    "topic_not_found": 404,
    "subscription_not_found": 404,
    "claim_unknown": 404,
    "wrong_method": 405,
    "missing_extra": 406,
    "stale_receipt": 409,
    "message_leased": 409,
    "queue_protected": 409,
    "fenced": 409,
    "results_off": 409,
    "stage_unknown": 409,
    "batch_mismatch": 409,
    "claim_unread": 409,
    "claim_taken": 409,
    "claim_gone": 410,
    "wrong_media": 415,
    "idempotency_mismatch": 422,
    "queue_full": 429,
    "too_many_queues": 429,
    "too_many_schedules": 429,
    "too_many_topics": 429,
    "too_many_subscriptions": 429,
    "too_many_streams": 503,
    "overloaded": 503,
    "head_too_large": 431,
    "closed": 503,
    "store_unavailable": 503,
    "store_failed": 503,
    "no_space": 507,
}
"""The HTTP status of each error code. Any other code is an internal error: 500."""

# Records


def micros(at: datetime) -> int:
    """A timestamp as a moment."""
    since = at - EPOCH
    return (since.days * 86400 + since.seconds) * SECOND + since.microseconds


def to_wire(shape: type[S], record: object, **others: Any) -> S:
    """A record as a shape of the wire: `others`, and the fields that both have, moments as timestamps."""
    for name, is_moment in _shape_fields(shape):
        if name not in others:
            value = getattr(record, name)
            others[name] = moment(value) if is_moment and isinstance(value, int) else value
    return shape(**others)


def from_wire(kind: type[S], wire: Struct, **others: Any) -> S:
    """A record from a shape of the wire: `others`, and the fields that both have, timestamps as moments
    unless the record has timestamps."""
    for name, is_timestamp in _shape_fields(kind):
        if name not in others and hasattr(wire, name):
            value = getattr(wire, name)
            others[name] = micros(value) if isinstance(value, datetime) and not is_timestamp else value
    return kind(**others)


@cache
def _shape_fields(shape: type[Struct]) -> list[tuple[str, bool]]:
    """The fields of a shape, and whether they are timestamps."""
    infos = msgspec.structs.fields(shape)
    return [(info.name, info.type is datetime or datetime in get_args(info.type)) for info in infos]


_json = msgspec.json.Encoder()
_msgpack = msgspec.msgpack.Encoder()
encode_json = _json.encode
encode_msgpack = _msgpack.encode


def encode(reply: Any, format: Format) -> bytes:
    """A record as bytes."""
    return _json.encode(reply) if format == "json" else _msgpack.encode(reply)


class Reader:
    """Decodes one kind of request in either format; `InvalidRequest` names the field that is invalid."""

    def __init__(self, kind: Any) -> None:
        self.kind = kind
        self._json = msgspec.json.Decoder(kind).decode
        self._msgpack = msgspec.msgpack.Decoder(kind).decode
        fields = msgspec.structs.fields(kind) if isinstance(kind, type) and issubclass(kind, Struct) else ()
        self.has_bodies = any(field.name == "messages" or Raw in _kinds(field.type) for field in fields)

    def read(self, raw: bytes, format: Format) -> Any:
        if len(raw) > bounds.SMALL:
            bounds.check_values(raw, format, self.has_bodies)
        return self.decode(raw, format)

    def decode(self, raw: bytes, format: Format) -> Any:
        """`read`, when the number of values is known to be bounded."""
        try:
            if format == "json":
                bounds.check_text(raw)
                return self._json(raw)
            return self._msgpack(raw)
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"request: not UTF-8 at byte {error.start}", field="request") from None
        except msgspec.ValidationError as error:
            raise invalid(error, raw, format, self.kind) from None
        except RecursionError:
            raise too_deep("request") from None
        except msgspec.DecodeError as error:
            name = "JSON" if format == "json" else "MessagePack"
            raise InvalidRequest(f"request: not valid {name}: {error}", field="request") from None


def _kinds(kind: Any) -> tuple[Any, ...]:
    return (kind, *get_args(kind))


_TYPES = {
    "str": "text",
    "int": WHOLE_NUMBER,
    "float": SECONDS,
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "datetime": MOMENT,
}
"""The names of `msgspec` for types, and what errors call them; a number with a fraction is a duration unless its field
is in `NUMBERS`."""
_PLAIN: dict[str, Any] = {"str": str, "int": int, "float": float, "bool": bool, "array": list, "object": dict}
"""The same names, and what they are in Python."""


def invalid(
    error: msgspec.ValidationError, request: Any, format: Format | None = None, kind: Any = None
) -> InvalidRequest:
    """A validation error of `msgspec` as one that names the field and its value. `request` is what was validated: bytes
    in a format, or an object; `kind` is the type that it should have."""
    text, _, path = str(error).partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    if path.startswith("[...]"):  # some value of a map
        path = _undecodable(request, format)
    if text.startswith(("Object contains unknown", "Object missing")):
        name = text.split("`")[1][:80]
        field = f"{path}.{name}" if path else name
        if text.startswith("Object missing"):
            return InvalidRequest(f"{field} is required", field=field)
        known = ", ".join(_names_at(kind, path))
        return InvalidRequest(f"{field}: no such field" + (f"; use {known}" if known else ""), field=field)
    field = path or "request"
    problem = f"{text[:1].lower()}{text[1:]}"
    if field == "api_key":  # a secret
        return InvalidRequest(f"{field}: {problem}", field=field)
    with suppress(
        ValueError, LookupError, TypeError, RecursionError, StopIteration
    ):  # a value in a map, or one out of range
        value = request if format is None else _library(format).decode(request)
        for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
            value = value[name] if name else value[int(index)]
        if path.endswith("[...]"):  # some value of a map
            name, value = next((name, each) for name, each in value.items() if not _is_of(text, each))
            field = f"{path.removesuffix('[...]')}.{name:.80}"
        problem = f"{show(value)} {_mismatch(text, field) or f'is invalid: {problem}'}"
    return InvalidRequest(f"{field}: {problem}", field=field)


def _is_of(text: str, value: Any) -> bool:
    """Whether a value has the type that a validation error misses in another one."""
    if "| null" in text and value is None:
        return True
    try:
        msgspec.convert(value, _PLAIN[text.split("`")[1].split(" ")[0]])
    except msgspec.ValidationError:
        return False
    return True


def _mismatch(text: str, field: str) -> str | None:
    """What a value is not, by the text of a validation error about its type."""
    if text.startswith("Invalid RFC3339"):
        return f"is not {MOMENT}"
    expected = re.match(r"Expected `(\w+)(?: \| null)?`", text)
    if expected is None or expected[1] not in _TYPES:
        return None
    name = field.rpartition(".")[2]
    return f"is not {NUMBERS.get(name, SECONDS) if expected[1] == 'float' else _TYPES[expected[1]]}"


def _names_at(kind: Any, path: str) -> list[str]:
    """The names of the fields of the record at a path of a type; none if there is no record."""
    for name, _ in re.findall(r"(\w+)|\[(\d+)\]", path):
        record = _record_in(kind)
        types = {} if record is None else {info.encode_name: info.type for info in msgspec.structs.fields(record)}
        kind = types.get(name, kind)  # the record of an index is that of the list
    record = _record_in(kind)
    return [] if record is None else list(record.__struct_encode_fields__)


def _record_in(kind: Any) -> type[Struct] | None:
    """The record that a type is, or that its lists and unions contain."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return kind
    return next((record for inner in get_args(kind) if (record := _record_in(inner)) is not None), None)


def _library(format: Format | None) -> Any:
    return msgspec.msgpack if format == "msgpack" else msgspec.json


def _undecodable(raw: bytes, format: Format | None) -> str:
    """The first name in a map whose value cannot be decoded, such as a number that is out of range."""
    library = _library(format)
    with suppress(ValueError):  # what follows that value may not even be JSON
        values: dict[str, Raw] = library.decode(raw, type=dict[str, Raw])
        for name, value in values.items():
            try:
                library.decode(value)
            except ValueError:
                return name[:80]
    return "request"


# Bodies


def body_of(
    body: Raw | UnsetType, data: bytes | UnsetType, content_type: str | None, format: Format, place: str = ""
) -> tuple[bytes, str]:
    """The bytes of a body and their content type; `place` comes before the names of fields in errors."""
    if data is not UNSET:
        if body is not UNSET:
            raise InvalidRequest(f"{place}data: given beside body; give one of them", field=f"{place}data")
        if content_type is not None and is_json(content_type):
            check_json(data, f"{place}data")
        return data, content_type or OCTETS
    field = f"{place}body"
    if body is UNSET:
        raise InvalidRequest(f"{field} is required (or data, for bytes)", field=field)
    kind = JSON if content_type is None else content_type
    if "/" not in kind:
        field = f"{place}content_type"
        raise InvalidRequest(f"{field}: {kind[:80]!r} is not a media type such as {JSON}", field=field)
    is_text = kind.startswith("text/")
    if not is_text and not is_json(kind):
        raise InvalidRequest(f"{field}: is for JSON and text; send {kind} as data (base64 in JSON)", field=field)
    raw = bytes(body) if format == "json" else json_of(bytes(body), field)
    if not is_text:
        return raw, kind
    try:
        return msgspec.json.decode(raw, type=str).encode(), kind
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(f"{field}: must be a string, because content_type is {kind}", field=field) from None


def json_of(raw: bytes, field: str) -> bytes:
    """A MessagePack value as JSON, which has no extension types, no NaN, no infinities, and only strings as keys."""
    bounds.check_body(raw, field)
    try:
        value = msgspec.msgpack.decode(raw)
        text = _json.encode(value)
    except RecursionError:
        raise too_deep(field) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{field}: cannot be stored as JSON: {error}", field=field) from None
    if b"null" in text:  # NaN and infinities are encoded so
        check_finite(value, field)
    return text


def check_json(body: bytes, field: str) -> None:
    """Refuse a body that is not JSON: it is passed on unchanged, and would make the reply invalid that contains it."""
    try:
        bounds.check_text(body)
        msgspec.json.decode(body, type=Raw)
    except RecursionError:
        raise too_deep(field) from None
    except ValueError:
        shown = body[:60].decode(errors="replace")
        text = f"{field}: {shown!r} is not JSON; for text set content_type to text/plain"
        raise InvalidRequest(text, field=field) from None


def wire_body(body: bytes, content_type: str, format: Format) -> tuple[Raw | UnsetType, bytes | UnsetType]:
    """A body as the fields `body` and `data`, one of them unset."""
    if is_json(content_type):
        if format == "json":
            return Raw(body), UNSET
        try:
            return Raw(_msgpack.encode(msgspec.json.decode(body))), UNSET
        except (ValueError, OverflowError, RecursionError):
            return UNSET, body  # a number out of MessagePack's range, or nested too deeply
    if content_type.startswith("text/"):
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return UNSET, body
        return Raw(_json.encode(text) if format == "json" else _msgpack.encode(text)), UNSET
    return UNSET, body


# Errors


def problem(error: MiniQError) -> Problem:
    """An error as a problem of RFC 9457."""
    status = STATUS.get(error.code, 500)
    return Problem(error.code.replace("_", " "), status, error.code, error.text, error.field)


def raised(problem: Problem) -> MiniQError:
    """The error for a problem, of the class that the broker raised."""
    kind = BY_CODE.get(problem.code) or (TooLarge if problem.status == 413 else MiniQError)
    error = kind(problem.detail, field=problem.field)
    error.code = problem.code
    return error
