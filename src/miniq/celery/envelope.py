"""A message of kombu as a message of MiniQ, and back. Pure.

The body stays what it is, so that JSON is JSON for everyone: a task is a list of args, kwargs and options. Each
header of kombu is a header of MiniQ: text as it is, other values as JSON, and text that would read as such a value
in quotes. Properties are headers named `amqp-…`, unless MiniQ has a field for them: the routing key is the `key`,
`expiration` the ttl, `priority` the priority. `eta` of a task becomes `deliver_at`: the broker holds the message
until then.

What MiniQ's headers cannot hold (more than 64, or one over 4 KiB) is wrapped: the body is then a JSON object of
`headers`, `properties`, and `body` in base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from miniq.client._sync.message import Message
from miniq.errors import InvalidRequest
from miniq.message import JSON, OCTETS, Draft

PROPERTY = "amqp-"
WRAPPED = "application/vnd.miniq.amqp+json"
MOST_HEADERS, HEADER_BYTES = 60, 4096
KEY_BYTES = 256
LOWEST, HIGHEST = 0, 9
LONGEST_DELAY = timedelta(days=7)
"""For what is due later, a worker sends the message again after this time: half of the retention that queues have."""
SOON = timedelta(minutes=1)
"""A worker waits by itself for what is due within this time."""
_OWN = {"body_encoding", "delivery_info", "delivery_mode", "delivery_tag", "expiration", "priority"}
"""Properties that have a place of their own, or that mean nothing to a broker."""


class Wrapped(msgspec.Struct):
    """A body of what does not fit into MiniQ's headers."""

    headers: dict[str, str]
    properties: dict[str, str]
    body: str
    content_type: str


_wrapped = msgspec.json.Decoder(Wrapped)
_check_json: msgspec.json.Decoder[msgspec.Raw] = msgspec.json.Decoder(msgspec.Raw)


def draft(message: Mapping[str, Any], exchange: str, routing_key: str, now: datetime) -> Draft:
    """What is sent for a message that kombu prepared."""
    properties, headers = message["properties"], message.get("headers") or {}
    body = message["body"] or b""
    data = body.encode() if isinstance(body, str) else bytes(body)
    content_type = message.get("content-type") or OCTETS
    texts = {name: to_text(value) for name, value in headers.items()}
    own = {name: value for name, value in properties.items() if name not in _OWN and value is not None}
    if own.get("correlation_id") == headers.get("id"):
        own.pop("correlation_id", None)
    if exchange:
        own["exchange"] = exchange
    if len(routing_key.encode()) > KEY_BYTES:
        own["routing_key"] = routing_key
    if is_transient(message):
        own["delivery_mode"] = 1
    if content_type == JSON and not _is_json(data):  # compressed, or with NaN, which only Python reads
        own["content_type"] = content_type
        content_type = OCTETS
    encoding = (message.get("content-encoding") or "utf-8").lower()
    if encoding != _usual_encoding(content_type):
        own["content_encoding"] = encoding
    given = {_header(name): to_text(value) for name, value in own.items()}
    if _fits(texts | given) and not any(not name or name.startswith(PROPERTY) for name in texts):
        texts |= given
    else:
        body = base64.b64encode(data).decode()
        wrapped = {"headers": texts, "properties": given, "body": body, "content_type": content_type}
        data, content_type = json.dumps(wrapped).encode(), WRAPPED
        texts = {name: texts[name] for name in ("task", "id", "eta", "retries") if name in texts}
        texts = texts if _fits(texts) else {}
    return Draft(
        data,
        content_type,
        texts or None,
        _priority(properties.get("priority")),
        ttl=_ttl(properties.get("expiration")),
        key=routing_key if routing_key and len(routing_key.encode()) <= KEY_BYTES else None,
        deliver_at=_due(headers, now),
    )


def is_transient(message: Mapping[str, Any]) -> bool:
    """Whether the sender does not mind if the message is lost, as with events and control messages."""
    return message["properties"].get("delivery_mode") in (1, "transient")


def due_again(message: Message, now: datetime) -> datetime | None:
    """The moment until which a task that was received has still to wait in the broker; None if it is due."""
    eta = message.headers.get("eta")
    if eta is None or "task" not in message.headers:
        return None
    return _due({"task": "", "eta": from_text(eta)}, now + SOON)


def payload(message: Message, queue: str) -> dict[str, Any]:
    """The arguments of kombu's `Message` for a message that was received from `queue`. `InvalidRequest` if it only says
    that it is wrapped."""
    texts = message.headers
    body, content_type = message.data, message.content_type
    if content_type == WRAPPED:
        body, content_type, texts, given = _unwrapped(body)
    else:
        given = {name: text for name, text in texts.items() if name.startswith(PROPERTY)}
        texts = {name: text for name, text in texts.items() if name not in given}
    headers = {name: from_text(text) for name, text in texts.items()}
    properties = {name[len(PROPERTY) :].replace("-", "_"): from_text(text) for name, text in given.items()}
    if "task" in headers:
        headers |= {name: texts[name] for name in ("task", "id") if not isinstance(headers.get(name, ""), str)}
        if not headers.get("id"):  # it was sent by another program, or by a schedule
            headers |= {"id": message.id, "lang": "py"}
        properties.setdefault("correlation_id", headers["id"])
    properties["priority"] = message.priority
    properties["delivery_mode"] = properties.get("delivery_mode", 2)
    properties["delivery_info"] = {
        "exchange": properties.pop("exchange", message.topic or ""),
        "routing_key": properties.pop("routing_key", message.key or ("" if message.topic else queue)),
        "redelivered": message.receives > 1,
    }
    return {
        "body": body,
        "content_type": properties.pop("content_type", content_type),
        "content_encoding": properties.pop("content_encoding", _usual_encoding(content_type)),
        "headers": headers,
        "properties": properties,
        "delivery_info": properties["delivery_info"],
    }


def _unwrapped(data: bytes) -> tuple[bytes, str, dict[str, str], dict[str, str]]:
    """Body, content type, headers and properties of what was wrapped."""
    try:
        wrapped = _wrapped.decode(data)
        return base64.b64decode(wrapped.body), wrapped.content_type, wrapped.headers, wrapped.properties
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"body: not a body of {WRAPPED}: {error}", field="body") from None


def to_text(value: object) -> str:
    """The value of a header as text, from which `from_text` makes the same value."""
    if isinstance(value, str):
        return value if _read(value) is None else json.dumps(value)
    return json.dumps(value, default=str)


def from_text(text: str) -> Any:
    value = _read(text)
    return text if value is None else value[0]


def _read(text: str) -> tuple[Any] | None:
    """The JSON value that a text is, in a tuple; None if it is just text."""
    if text[:1] in '{["-0123456789tfnNI':
        try:
            return (json.loads(text),)
        except (ValueError, RecursionError):
            return None
    return None


def _header(name: str) -> str:
    return PROPERTY + name.replace("_", "-")


def _fits(texts: Mapping[str, str]) -> bool:
    if len(texts) > MOST_HEADERS:
        return False
    return all(len(name.encode()) <= KEY_BYTES and len(text.encode()) <= HEADER_BYTES for name, text in texts.items())


def _usual_encoding(content_type: str) -> str:
    return "binary" if content_type == OCTETS else "utf-8"


def _is_json(data: bytes) -> bool:
    try:
        _check_json.decode(data)
        data.decode()
    except (ValueError, RecursionError):
        return False
    return True


def _priority(value: object) -> int:
    try:
        return min(max(int(value or 0), LOWEST), HIGHEST)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError):
        raise InvalidRequest(f"priority: {value!r:.80} is not a number from 0 to 9", field="priority") from None


def _ttl(expiration: object) -> float | None:
    """AMQP's `expiration`, milliseconds as text, in seconds."""
    if expiration in (None, ""):
        return None
    try:
        return max(float(expiration), 1.0) / 1000  # type: ignore[arg-type]
    except (TypeError, ValueError):
        text = f"expiration: {expiration!r:.80} is not a number of milliseconds"
        raise InvalidRequest(text, field="expiration") from None


def _due(headers: Mapping[str, Any], now: datetime) -> datetime | None:
    """The moment until which the broker holds a task."""
    eta = headers.get("eta") if "task" in headers else None
    if not eta:
        return None
    if isinstance(eta, str):
        try:
            eta = datetime.fromisoformat(eta)
        except ValueError:
            return None  # the worker says what is wrong with it
    if not isinstance(eta, datetime):
        return None
    eta = eta if eta.tzinfo is not None else eta.replace(tzinfo=UTC)
    return min(eta, now + LONGEST_DELAY) if eta > now else None
