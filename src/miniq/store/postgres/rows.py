"""Conversion between rows and records, and query parameters.

`about` holds the less common fields of a message as JSON; it is null for a plain message. PostgreSQL has no character 0
in text, so names that users choose are escaped in columns: `\\0` for it, `\\\\` for a backslash.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, repeat
from operator import attrgetter
from typing import Any

import msgspec
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

from miniq.ids import ids_from
from miniq.message import Event, HistoryRecord, Message, Stored, special_of

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ESCAPED = re.compile(r"\\(.)")
_SIZE = struct.Struct(">i").pack
BYTEA, BYTEA_ARRAY = 17, 1001
TAKEN_BACK = 1 << 30
"""In the column `receives`: none, but it was taken. Of messages of groups: those of a front have `receives > 0`."""

OWN = ("id", "queue", "sent_at", "due_at", "body", "priority")
"""Message fields with columns of their own."""
_FIELDS = [field for field in msgspec.structs.fields(Message) if field.name not in OWN]
"""The other fields."""
About: type[Any] = msgspec.defstruct(
    "About", [(field.name, field.type, field.default) for field in _FIELDS], frozen=True, omit_defaults=True
)
_unusual = attrgetter(*(field.name for field in _FIELDS))
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(About).decode
_ORDINARY = About()


def escape(text: str | None) -> str | None:
    """A name as a column value."""
    if text is None or ("\\" not in text and "\0" not in text):
        return text
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def unescape(text: str | None) -> str | None:
    """The name in a column value."""
    if text is None or "\\" not in text:
        return text
    return _ESCAPED.sub(lambda match: "\0" if match[1] == "0" else match[1], text)


def is_id(id: str) -> bool:
    """Whether this can be a message id; the server would also accept other spellings of a UUID."""
    return _ID.fullmatch(id) is not None


def about(message: Message) -> str | None:
    """The `about` column of a message."""
    text = _encode(About(*_unusual(message)))
    return None if text == b"{}" else text.decode()


def columns(messages: Sequence[Message]) -> dict[str, Any]:
    """Parameters for messages with one row each."""
    return {
        "ids": array([message.id for message in messages]),
        "sent": array([message.sent_at for message in messages]),
        "due": array([message.due_at for message in messages]),
        "sizes": array([message.size for message in messages]),
        "ranks": array([-message.priority for message in messages]),
        "recipients": [escape(message.recipient) for message in messages],
        "groups": [escape(message.group) for message in messages],
        "abouts": [about(message) for message in messages],
        "content_types": [message.content_type for message in messages],
        "bodies": Blobs([message.body for message in messages]),
    }


def messages(queue: str, row: Sequence[Any]) -> list[Message]:
    """The messages in a row that starts with id, sent_at, due_at, rank, receives, about, body, sizes."""
    id, sent_at, due_at, rank, _, unusual, body, sizes = row[:8]
    fields = _ORDINARY if unusual is None else _decode(unusual)
    if sizes is None:
        each: Iterable[tuple[str, bytes]] = ((id, body),)
    else:
        ends = list(accumulate(sizes, initial=0))
        each = zip(ids_from(id, len(sizes)), map(body.__getitem__, map(slice, ends, ends[1:])), strict=True)
    kind, priority, rest = fields.content_type, -rank, special_of(fields)
    return [Message(id, queue, sent_at, due_at, body, kind, priority, *rest) for id, body in each]


def stored(queue: str, row: Sequence[Any]) -> list[Stored]:
    """The messages in a row with their state, from the columns visible_at, receipt, consumer, error that follow."""
    receives, visible_at = row[4] % TAKEN_BACK, row[8]
    receipt, consumer, error = map(unescape, row[9:12])
    return [Stored(message, visible_at, receives, receipt, consumer, error) for message in messages(queue, row)]


def records(row: Sequence[Any]) -> Iterator[HistoryRecord]:
    """The events in a history row."""
    first, at, *required, consumers, waits, helds, reasons, bodies, kinds, count, errors, targets = row
    optional = [column or repeat(None) for column in (consumers, waits, helds, reasons, bodies, kinds, errors)]
    for offset, columns in enumerate(zip(*required, *optional, strict=False), first):
        name, queue, id, receives, size, consumer, wait, held, reason, body, kind, error = columns
        wait_ms, held_ms = (None if micros is None else micros / 1000 for micros in (wait, held))
        state = (receives % TAKEN_BACK, size, unescape(consumer), wait_ms, held_ms)
        event = Event(at, name, queue, id, *state, reason, body, kind, count or 1, unescape(error), targets)
        yield HistoryRecord(offset, event)


def array(items: Sequence[object]) -> str:
    """Ids or numbers as an array literal."""
    return "{" + ",".join(map(str, items)) + "}"


class Blobs:
    """Bodies as one binary array parameter, encoded without a dumper call per body."""

    __slots__ = ("data",)

    def __init__(self, bodies: Sequence[bytes]) -> None:
        parts = [struct.pack(">iiiii", 1, 0, BYTEA, len(bodies), 1)]
        for body in bodies:
            parts += (_SIZE(len(body)), body)
        self.data = b"".join(parts)


class BlobsDumper(Dumper):
    format = Format.BINARY
    oid = BYTEA_ARRAY

    def dump(self, obj: Blobs) -> Buffer:
        return obj.data
