"""Messages as rows of a file: bare (the body alone) or full (all fields of the message).

A bare row is the body: an object is a row with its names as columns, any other value a row with the column `body`.
A full row has the field names of the HTTP API, and `delay` and `ttl` with the seconds that are left of them; `body`
holds JSON or text, `data` other bytes in base64.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import Raw

from miniq.api import shapes
from miniq.api.messages import draft_of
from miniq.cli.output import message_record
from miniq.client._sync.message import Message
from miniq.client.bodies import draft
from miniq.client.delivery import moment
from miniq.errors import InvalidRequest, MiniQError
from miniq.json_values import is_json
from miniq.message import JSON, Draft

FIRST = ("id", "queue", "status")
LEASE = ("receipt", "lease_until")
COLUMNS = (*FIRST, *(f for f in shapes.WireMessage.__struct_fields__ if f not in FIRST + LEASE), "delay", "ttl")
"""The columns of full rows in tables."""
GIVEN = tuple(field for field in shapes.WireDraft.__struct_fields__ if field not in ("body", "data"))
"""The columns of full rows that are sent again, besides the body."""

Record = dict[str, Any]


_LEFT_OUT = tuple(field for field in (*COLUMNS, *LEASE) if field not in shapes.WireDraft.__struct_fields__)
"""The fields of full rows that are not sent again."""
_KNOWN = frozenset((*COLUMNS, *LEASE))
_FullRow: Any = msgspec.defstruct("_FullRow", [(name, Any, None) for name in _LEFT_OUT], bases=(shapes.WireDraft,))
_read_full: Callable[[bytes], shapes.WireDraft] = msgspec.json.Decoder(_FullRow).decode


def full_line(message: Message) -> bytes:
    """All fields of a message as a line of JSON, except those of its lease."""
    return _on_one_line(msgspec.json.encode(_full(message)))


def bare_line(message: Message) -> bytes:
    """The body as a line of JSON, as it was sent."""
    return _on_one_line(message.data) if message.content_type == JSON else msgspec.json.encode(bare(message))


def _on_one_line(json: bytes) -> bytes:
    """JSON whose line breaks, which can only be between its tokens, are spaces."""
    return json.replace(b"\n", b" ").replace(b"\r", b" ")


def bare_row(value: Any) -> Record:
    """A body as a row of a table."""
    return value if isinstance(value, dict) else {"body": value}


def full_row(message: Message) -> Record:
    """A message as a row of a table; each column is a number or text."""
    row = _full(message)
    for name in ("headers", "dead"):
        if name in row:
            row[name] = msgspec.json.encode(row[name]).decode()
    if "body" in row:
        text = bytes(row["body"]).decode()
        row["body"] = text if is_json(message.content_type) else msgspec.json.decode(text)
    return {name: row.get(name) for name in COLUMNS}


def _full(message: Message) -> Record:
    row: Record = msgspec.to_builtins(message_record(message), builtin_types=(Raw,))
    now = datetime.now(UTC)
    expires_at = message._stored.message.expires_at
    if message.receipt is None and message.status == "delayed":
        row["delay"] = _left(message.visible_at, now)
    if expires_at is not None:
        row["ttl"] = _left(moment(expires_at), now)
    return {name: value for name, value in row.items() if name not in LEASE}


def _left(end: datetime, now: datetime) -> float:
    return max(round((end - now).total_seconds(), 3), 0.001)


def bare(message: Message) -> Any:
    """The body alone, which must be JSON or text."""
    if is_json(message.content_type) or message.content_type.startswith("text/"):
        return message.body
    raise InvalidRequest(
        f"message {message.id} holds {message.content_type}, which is neither JSON nor text; use --full", field="body"
    )


def bare_draft(line: bytes, position: str) -> Draft:
    """The message whose body is a line of JSON."""
    try:
        return draft(line, content_type=JSON)
    except MiniQError:
        _check_encoding(line, position)
        raise InvalidRequest(f"{position}: {line[:60].decode(errors='replace')!r} is not JSON") from None


def full_draft(line: bytes, position: str) -> Draft:
    """The message in a full line of JSON."""
    _check_encoding(line, position)
    try:
        return _sendable(_read_full(line), position)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{position}: not a message with all its fields: {error}") from None


def _check_encoding(line: bytes, position: str) -> None:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{position}: not UTF-8 at byte {error.start} of the line") from None


def row_body(row: Record) -> Any:
    """The body that is a bare row."""
    return row["body"] if set(row) == {"body"} else row


def table_draft(row: Record, full: bool, position: str) -> Draft:
    """The message in a row of a table."""
    if not full:
        try:
            return draft(row_body(row))
        except MiniQError as error:
            raise InvalidRequest(f"{position}: {error}") from None
    if not row.keys() <= _KNOWN:
        unknown = next(name for name in row if name not in _KNOWN)
        raise InvalidRequest(f"{position}: unknown column {unknown!r}; a full row has {', '.join(COLUMNS)}")
    fields: Record = {name: row[name] for name in GIVEN if row.get(name) not in (None, "")}
    content_type = fields.get("content_type", JSON)
    try:
        if "headers" in fields:
            fields["headers"] = msgspec.json.decode(fields["headers"])
        message = msgspec.convert(fields, shapes.WireDraft, strict=False)
        if is_json(content_type):
            text = row.get("body") or ""
            msgspec.json.decode(text)
            message.body = Raw(text.encode())
        elif content_type.startswith("text/") and not row.get("data"):
            message.body = Raw(msgspec.json.encode(row.get("body") or ""))
        else:
            message.data = msgspec.convert(row.get("data") or "", bytes)
    except (msgspec.DecodeError, RecursionError, TypeError) as error:
        raise InvalidRequest(f"{position}: not a message with all its fields: {error}") from None
    return _sendable(message, position)


def _sendable(row: shapes.WireDraft, position: str) -> Draft:
    try:
        return draft_of(row, "json", f"{position}: ")
    except InvalidRequest as error:
        raise InvalidRequest(error.text) from None  # without a field: it is not the usage that is wrong
