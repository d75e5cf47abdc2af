"""Bodies: Python values to bytes with a content type, and back.

`bytes` are sent unchanged, and strings with a content type other than JSON as text. Everything else is encoded as JSON:
dataclasses, `attrs` classes, `msgspec` records and pydantic models as objects, tuples and sets as arrays, `datetime`,
`date`, `time` and `timedelta` in ISO 8601, `Decimal` and `UUID` as text, enum members as their values, bytes within a
value in base64. NaN and infinities, which JSON does not have, are refused.
"""

from __future__ import annotations

import codecs
import contextlib
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Unpack

import msgspec
from msgspec import Raw

from miniq.api.codec import OCTETS
from miniq.client.arguments import as_list
from miniq.errors import InvalidRequest
from miniq.json_values import check_depth, check_finite, is_json, too_deep
from miniq.message import JSON, Draft, DraftOptions, PlainDrafts


def _model(value: Any) -> Any:
    """A pydantic model as a JSON value."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    return dump(mode="json")


_to_json = msgspec.json.Encoder(enc_hook=_model).encode
_from_json: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def draft(body: Any, **options: Unpack[DraftOptions]) -> Draft:
    """A message ready to be sent, for `send_many`; see `DraftOptions` for the keywords."""
    fields: Any = options
    data, kind = encode(body, fields.pop("content_type", None))
    headers = fields.get("headers")
    if headers is not None and isinstance(headers, Mapping):
        fields["headers"] = dict(headers)  # a copy: the caller may change the original
    try:
        return Draft(data, kind, **fields)
    except TypeError:
        for name in fields.keys() - DraftOptions.__annotations__.keys():
            near = get_close_matches(name, DraftOptions.__annotations__, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(DraftOptions.__annotations__)}"
            raise TypeError(f"a message has no option {name!r}; {advice}") from None
        raise


def drafts(items: Iterable[Any]) -> Sequence[Draft]:
    """Drafts of bodies; items that are drafts are kept."""
    items = as_list(items, "messages", "bodies or drafts; use send for one")
    kinds = set(map(type, items))
    if kinds == {bytes}:
        return PlainDrafts(items, OCTETS)
    if kinds and not any(issubclass(kind, Draft | bytes | bytearray | memoryview) for kind in kinds):
        with contextlib.suppress(TypeError, ValueError, OverflowError, RecursionError):
            bodies = list(map(_to_json, items))
            if b"null" in b" ".join(bodies):
                for number, item in enumerate(items):
                    check_finite(item, f"messages[{number}].body", _builtin)
            return PlainDrafts(bodies)
    for item in items:
        if type(item) is Draft and isinstance(item.body, bytes) and _is_json(item.content_type):
            _read_json(item.body, "not JSON text, as the draft's content_type says")
    return [item if type(item) is Draft else Draft(*encode(item, None)) for item in items]


def encode(body: Any, content_type: str | None) -> tuple[bytes, str]:
    """The bytes of a body and their content type."""
    if isinstance(body, bytes | bytearray | memoryview):
        data = bytes(body)
        if content_type is None:
            return data, OCTETS
        if _is_json(content_type):
            _read_json(data, "not given as JSON text; use another content_type, or give the value itself")
        return data, content_type
    if content_type is None:
        content_type = JSON
    elif not isinstance(content_type, str):
        raise InvalidRequest(f"content_type: {content_type!r} is not a media type such as {JSON}", field="content_type")
    elif not is_json(content_type):
        if isinstance(body, str):
            return _encode_text(body, content_type), content_type
        raise InvalidRequest(
            f"body: a {type(body).__name__} cannot be sent as {content_type!r}; give bytes or str", field="body"
        )
    return _encode_json(body, "body"), content_type


def encode_result(result: Any) -> Raw:
    """A result as JSON; one that is encoded stays as it is."""
    if isinstance(result, Raw):
        return result
    return Raw(_encode_json(result, "result"))


def check_json(value: Any, field: str) -> None:
    """Refuse a value that cannot be a body."""
    _encode_json(value, field)


def _encode_json(value: Any, field: str) -> bytes:
    try:
        data = _to_json(value)
    except RecursionError:
        raise too_deep(field) from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidRequest(f"{field}: not a JSON value: {error}", field=field) from None
    check_depth(data, field)
    if b"null" in data:  # NaN and infinities are encoded so
        check_finite(value, field, _builtin)
    return data


def _is_json(content_type: object) -> bool:
    return isinstance(content_type, str) and is_json(content_type)


def _builtin(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=_model)


def decode(data: bytes, content_type: str) -> Any:
    """A body as a Python value: the JSON value, text, or the bytes."""
    if content_type == JSON or is_json(content_type):
        return _read_json(data, f"not JSON though its content type is {content_type!r}; read `data`")
    if content_type[:5].lower() == "text/":
        try:
            return data.decode(_charset(content_type))
        except (UnicodeDecodeError, LookupError) as error:
            raise InvalidRequest(f"body: not text ({error}); read `data`", field="body") from None
    return data


def _read_json(data: bytes, problem: str) -> Any:
    try:
        return _from_json.decode(data)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"body: {problem} ({error})", field="body") from None


def _encode_text(body: str, content_type: str) -> bytes:
    try:
        return body.encode(_charset(content_type))
    except (UnicodeEncodeError, LookupError) as error:
        raise InvalidRequest(f"body: cannot be written as {content_type!r}: {error}", field="body") from None


def _charset(content_type: str) -> str:
    """The charset of a media type, UTF-8 by default."""
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return codecs.lookup(value.strip().strip('"')).name
    return "utf-8"
