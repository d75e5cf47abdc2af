"""How messages and events look in rows, and parameters on their way to the server.

`about` holds, as JSON, what is unusual about a message; of an ordinary one it is null. Text has no character 0 in
PostgreSQL, so names that users chose are escaped where they stand in columns: `\\0` for it, `\\\\` for a backslash.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any

import msgspec
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

from miniq.ids import SHARE, ids_from
from miniq.message import Event, HistoryRecord, Message, Stored, special_of

_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ESCAPED = re.compile(r"\\(.)")
_SIZE = struct.Struct(">i").pack
BYTEA, BYTEA_ARRAY = 17, 1001

OWN = ("id", "queue", "sent_at", "due_at", "body", "priority")
"""Fields of a message that have columns of their own."""
_FIELDS = [field for field in msgspec.structs.fields(Message) if field.name not in OWN]
_FIELDS.sort(key=lambda field: field.name == "dead")
"""The others; `dead` is the last, where the function `is_fit` looks for it."""
About: type[Any] = msgspec.defstruct(
    "About", [(field.name, field.type, field.default) for field in _FIELDS], frozen=True, omit_defaults=True
)
_unusual = attrgetter(*(field.name for field in _FIELDS))
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(About).decode
_ORDINARY = About()


def escape(text: str | None) -> str | None:
    """A name as it stands in a column."""
    if text is None or ("\\" not in text and "\0" not in text):
        return text
    return text.replace("\\", "\\\\").replace("\0", "\\0")


def unescape(text: str | None) -> str | None:
    """The name that stands in a column."""
    if text is None or "\\" not in text:
        return text
    return _ESCAPED.sub(lambda found: "\0" if found[1] == "0" else found[1], text)


def is_id(id: str) -> bool:
    """Whether this can be a message's id at all; the server would read other spellings of a UUID, too."""
    return _ID.fullmatch(id) is not None


def pack_ids(ids: Sequence[str]) -> str:
    """Ids in one text with commas; those that follow each other in a run as the first and their number."""
    packed: list[str] = []
    for start in range(0, len(ids), SHARE):
        some = list(ids[start : start + SHARE])
        if len(some) > 1 and int(some[0][34:], 16) + len(some) <= 256 and some == ids_from(some[0], len(some)):
            packed.append(f"{some[0]}*{len(some)}")
        else:
            packed += some
    return ",".join(packed)


def unpack_ids(text: str) -> list[str]:
    """The ids in a text made by `pack_ids`."""
    ids: list[str] = []
    for item in text.split(","):
        first, star, count = item.partition("*")
        if star:
            ids += ids_from(first, int(count))
        else:
            ids.append(first)
    return ids


def about(message: Message) -> str | None:
    """What is unusual about a message, None if nothing is."""
    text = _encode(About(*_unusual(message)))
    return None if text == b"{}" else text.decode()


def columns(messages: Sequence[Message]) -> dict[str, Any]:
    """Messages that have a row each, as parameters."""
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
    """The messages in a row that begins with id, sent_at, due_at, rank, receives, about, body, sizes."""
    id, sent_at, due_at, rank, _, unusual, body, sizes = row[:8]
    a = _ORDINARY if unusual is None else _decode(unusual)
    if sizes is None:
        each: Iterable[tuple[str, bytes]] = ((id, body),)
    else:
        ends = list(accumulate(sizes, initial=0))
        each = zip(ids_from(id, len(sizes)), map(body.__getitem__, map(slice, ends, ends[1:])), strict=True)
    kind, priority, rest = a.content_type, -rank, special_of(a)
    return [Message(id, queue, sent_at, due_at, body, kind, priority, *rest) for id, body in each]


def stored(queue: str, row: Sequence[Any]) -> list[Stored]:
    """The same with their state: visible_at, receipt, consumer follow."""
    visible_at, receives, receipt, consumer = row[8], row[4], unescape(row[9]), unescape(row[10])
    return [Stored(message, visible_at, receives, receipt, consumer) for message in messages(queue, row)]


def records(row: Sequence[Any]) -> Iterator[HistoryRecord]:
    """The events of one row of the history."""
    first, at, names, queues, ids, receives, sizes, *optional, count = row
    consumers, waits, helds, reasons, bodies, kinds = (column or [None] * len(ids) for column in optional)
    for place, id in enumerate(ids):
        wait, held = waits[place], helds[place]
        event = Event(
            at,
            names[place],
            queues[place],
            id,
            receives[place],
            sizes[place],
            unescape(consumers[place]),
            None if wait is None else wait / 1000,
            None if held is None else held / 1000,
            reasons[place],
            bodies[place],
            kinds[place],
            1 if count is None else count,
        )
        yield HistoryRecord(first + place, event)


def array(items: Sequence[object]) -> str:
    """Ids or numbers as the text of an array."""
    return "{" + ",".join(map(str, items)) + "}"


class Blobs:
    """Bodies as one array parameter in the binary format, made without a dumper's call for each."""

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
