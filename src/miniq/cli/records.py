"""Messages as rows of a file: bare (the body alone) or full (all fields of the message).

A bare row is the body: an object is a row with its names as columns, any other value a row with the column `body`.
A full row has the field names of the HTTP API; `body` holds JSON or text, `data` other bytes in base64.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from miniq.api import shapes
from miniq.api.codec import is_json
from miniq.api.messages import draft_of
from miniq.cli.output import message_record
from miniq.client._sync.message import Message
from miniq.client.bodies import draft
from miniq.errors import InvalidRequest, MiniQError
from miniq.message import JSON, Draft

FIRST = ("id", "queue", "status")
COLUMNS = (*FIRST, *(f for f in shapes.WireMessage.__struct_fields__ if f not in (*FIRST, "receipt", "lease_until")))
"""The columns of full rows in tables."""
GIVEN = tuple(field for field in shapes.WireDraft.__struct_fields__ if field not in ("body", "data"))
"""The columns of full rows that are sent again, besides the body."""

Row = dict[str, Any]


class FullRow(shapes.WireDraft, forbid_unknown_fields=False):
    """The fields of a full row that are sent again."""


_read_full = msgspec.json.Decoder(FullRow).decode


def full_line(message: Message) -> bytes:
    """All fields of a message as a line of JSON, except those of its lease."""
    return msgspec.json.encode(_unleased(message))


def bare_line(message: Message) -> bytes:
    """The body as a line of JSON, as it was sent; a line break between JSON tokens becomes a space."""
    if message.content_type == JSON:
        return message.data.replace(b"\n", b" ").replace(b"\r", b" ")
    return msgspec.json.encode(_bare(message))


def table_row(message: Message, full: bool) -> Row:
    """A message as a row of a table; each column of a full row is a number or text."""
    if not full:
        value = _bare(message)
        return value if isinstance(value, dict) else {"body": value}
    row: Row = msgspec.to_builtins(_unleased(message), builtin_types=(Raw,))
    for name in ("headers", "dead"):
        if name in row:
            row[name] = msgspec.json.encode(row[name]).decode()
    if "body" in row:
        text = bytes(row["body"]).decode()
        row["body"] = text if is_json(message.content_type) else msgspec.json.decode(text)
    return {name: row.get(name) for name in COLUMNS}


def _unleased(message: Message) -> shapes.WireMessage:
    record = message_record(message)
    record.receipt = record.lease_until = None
    return record


def _bare(message: Message) -> Any:
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
        raise InvalidRequest(f"{position}: {line[:60].decode(errors='replace')!r} is not JSON") from None


def full_draft(line: bytes, position: str) -> Draft:
    """The message in a full line of JSON."""
    try:
        return draft_of(_read_full(line), "json", f"{position}: ")
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"{position}: not a message with all its fields: {error}") from None


def table_draft(row: Row, full: bool, position: str) -> Draft:
    """The message in a row of a table."""
    if not full:
        try:
            return draft(row["body"] if set(row) == {"body"} else row)
        except MiniQError as error:
            raise InvalidRequest(f"{position}: {error}") from None
    fields: Row = {name: row[name] for name in GIVEN if row.get(name) not in (None, "")}
    content_type = fields.get("content_type", JSON)
    try:
        if "headers" in fields:
            fields["headers"] = msgspec.json.decode(fields["headers"])
        message = msgspec.convert(fields, FullRow, strict=False)
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
    return draft_of(message, "json", f"{position}: ")
