"""Messages and history as Arrow: record batches in columns, for readers and writers that move many at once.

The schemas are exact: order, nullability and types are what Spark expects of a source. A body is in `body` if it is
JSON or text in UTF-8, as it was sent, else in `data`. `pyarrow` is an extra, imported when it is first needed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from miniq.api.codec import OCTETS, is_json
from miniq.errors import BadRequest, InvalidRequest, MissingExtra
from miniq.message import JSON, Draft, HistoryRecord, Message, PlainBatch, PlainDrafts, Portion, Stored

if TYPE_CHECKING:
    import pyarrow as pa

MEDIA = "application/vnd.apache.arrow.stream"
_TEXTS = ("content_type", "key", "recipient", "group", "dedup_id")
SENT = ("body", "data", "content_type", "headers", "priority", "delay", "ttl", "key", "recipient", "group", "dedup_id")
"""The columns that a sender may give."""
_DICTIONARY, _BATCH = 2, 3
"""Kinds of Arrow messages."""
_many = msgspec.json.Decoder(list[msgspec.Raw]).decode


@cache
def arrow() -> Any:
    """`pyarrow`, or an error that names the pip command."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("Arrow needs pyarrow: pip install 'miniq[arrow]'") from None
    return pyarrow


@cache
def messages_schema() -> pa.Schema:
    pa = arrow()
    text = pa.string()
    return pa.schema(
        [
            pa.field("id", text, nullable=False),
            pa.field("queue", text, nullable=False),
            ("body", text),
            ("data", pa.binary()),
            ("content_type", text),
            ("headers", pa.map_(text, text)),
            ("priority", pa.int32()),
            ("key", text),
            ("recipient", text),
            ("group", text),
            ("dedup_id", text),
            ("receives", pa.int32()),
            ("sent_at", pa.timestamp("us", "UTC")),
        ]
    )


@cache
def history_schema() -> pa.Schema:
    pa = arrow()
    text, number = pa.string(), pa.float64()
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            ("at", pa.timestamp("us", "UTC")),
            ("event", text),
            ("queue", text),
            ("id", text),
            ("consumer", text),
            ("receives", pa.int32()),
            ("wait_ms", number),
            ("held_ms", number),
            ("bytes", pa.int64()),
            ("reason", text),
            ("body", text),
            ("data", pa.binary()),
            ("content_type", text),
            ("count", pa.int64()),
        ]
    )


# Out


def portions(some: Sequence[Portion]) -> pa.RecordBatch:
    """Messages of a claim. Parcels, the common case, are taken as they are, without looking at single messages."""
    parcels = [one.messages for one in some if isinstance(one.messages, PlainBatch)]
    if len(parcels) == len(some):
        return _parcels(parcels, [one.receives for one in some])
    receives = [one.receives for one in some for _ in range(len(one))]
    return _messages([message for one in some for message in one.messages], receives)


def stored(found: Sequence[Stored]) -> pa.RecordBatch:
    """Messages as they lie in a queue."""
    return _messages([one.message for one in found], [one.receives for one in found])


def _parcels(parcels: Sequence[PlainBatch], receives: Sequence[int]) -> pa.RecordBatch:
    pa = arrow()
    sizes = [len(parcel) for parcel in parcels]
    many = sum(sizes)

    def column(values: Sequence[Any], kind: Any) -> Any:
        """What each parcel has for all its messages."""
        if values.count(values[0]) == len(values):
            return pa.repeat(pa.scalar(values[0], kind), many)
        return pa.array([value for value, size in zip(values, sizes, strict=True) for _ in range(size)], kind)

    schema = messages_schema()
    kinds = [parcel.content_type for parcel in parcels]
    bodies = [body for parcel in parcels for body in parcel.bodies]
    each = (
        [kind for kind, size in zip(kinds, sizes, strict=True) for _ in range(size)]
        if len(set(kinds)) > 1
        else kinds[:1]
    )
    body, data = _bodies(bodies, each)
    made = {"id": pa.array([id for parcel in parcels for id in parcel.ids], pa.string()), "body": body, "data": data}
    shared = {"receives": receives, "content_type": kinds}
    columns = []
    for field in schema:
        name = field.name
        if name in made:
            columns.append(made[name])
        elif name in shared or name in ("queue", "priority", "sent_at"):
            values = shared.get(name) or [getattr(parcel, name) for parcel in parcels]
            columns.append(column(list(values), field.type))
        else:
            columns.append(pa.nulls(many, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _messages(messages: Sequence[Message], receives: list[int]) -> pa.RecordBatch:
    pa = arrow()
    schema = messages_schema()
    body, data = _bodies([message.body for message in messages], [message.content_type for message in messages])
    headers = [None if message.headers is None else list(message.headers.items()) for message in messages]
    given = {"body": body, "data": data, "receives": receives, "headers": headers}
    columns = []
    for field in schema:
        values = given.get(field.name)
        if values is None:
            values = list(map(attrgetter(field.name), messages))
        columns.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def history(records: Sequence[HistoryRecord]) -> pa.RecordBatch:
    """What happened, with bodies where they are kept."""
    pa = arrow()
    schema = history_schema()
    events = [record.event for record in records]
    bodies = [event.body for event in events]
    if any(body is not None for body in bodies):
        body, data = _bodies(bodies, [event.content_type or JSON for event in events])
    else:
        body, data = pa.nulls(len(events), pa.string()), pa.nulls(len(events), pa.binary())
    given = {"offset": [record.offset for record in records], "bytes": [event.size for event in events]}
    columns = []
    for field in schema:
        if field.name in ("body", "data"):
            columns.append(body if field.name == "body" else data)
            continue
        values = given.get(field.name) or list(map(attrgetter(field.name), events))
        columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _bodies(bodies: Sequence[bytes | None], kinds: list[str]) -> tuple[pa.Array, pa.Array]:
    """The columns `body` and `data`; one kind is that of all."""
    pa = arrow()
    many = len(bodies)
    if not many:
        return pa.nulls(0, pa.string()), pa.nulls(0, pa.binary())
    if len(kinds) == 1 or kinds.count(kinds[0]) == many:
        if not _is_text(kinds[0]):
            return pa.nulls(many, pa.string()), pa.array(bodies, pa.binary())
        raw = pa.array(bodies, pa.binary())
        try:
            return raw.cast(pa.string()), pa.nulls(many, pa.binary())
        except pa.ArrowInvalid:
            kinds = kinds * many if len(kinds) == 1 else kinds
    texts: list[bytes | None] = []
    others: list[bytes | None] = []
    for body, kind in zip(bodies, kinds, strict=True):
        is_text = body is not None and _is_text(kind) and _is_utf8(body)
        texts.append(body if is_text else None)
        others.append(None if is_text else body)
    return pa.array(texts, pa.binary()).cast(pa.string()), pa.array(others, pa.binary())


@cache
def _is_text(kind: str) -> bool:
    return kind.startswith("text/") or is_json(kind)


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


class Encoder:
    """An Arrow stream as pieces of bytes: the schema with the first batch, each batch, the end."""

    def __init__(self, schema: pa.Schema, about: dict[str, str] | None = None) -> None:
        pa = arrow()
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(self._sink, schema.with_metadata(about) if about else schema)

    def batch(self, batch: pa.RecordBatch) -> bytes:
        self._writer.write_batch(batch)
        return self._sink.take()

    def end(self) -> bytes:
        self._writer.close()
        return self._sink.take()


class _Sink:
    """A file that only keeps what was written since somebody took it."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken, self._pieces = b"".join(self._pieces), []
        return taken

    def flush(self) -> None:
        """Nothing is held back."""


def encode(batches: Iterable[pa.RecordBatch], schema: pa.Schema, about: dict[str, str] | None = None) -> bytes:
    """A whole stream; `about` is kept with its schema."""
    encoder = Encoder(schema, about)
    return b"".join([*map(encoder.batch, batches), encoder.end()])


# In


def drafts_of(body: bytes) -> Sequence[Draft]:
    """The messages that an Arrow stream asks to send; names what is wrong with it."""
    pa = arrow()
    try:
        for message in pa.ipc.MessageReader.open_stream(body):
            _check_message(message.metadata.to_pybytes())
        with pa.ipc.open_stream(body) as reader:
            batches = list(reader)
            schema = reader.schema
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        raise BadRequest(f"request: is not an Arrow stream: {error}", field="request") from None
    return drafts_of_table(pa.Table.from_batches(batches, schema))


def drafts_of_table(table: pa.Table) -> Sequence[Draft]:
    """The messages that the rows of a table are; names the column or row that is wrong."""
    schema = table.schema
    _check_columns(schema)
    fitted = {name: _fitted(table.column(name), name) for name in schema.names}
    columns = {name: column for name, column in fitted.items() if column.null_count < len(column)}
    if set(columns) == {"body"} and not columns["body"].null_count:
        return PlainDrafts(_json_bodies(columns["body"]))
    if set(columns) == {"data"} and not columns["data"].null_count:
        return PlainDrafts(columns["data"].to_pylist(), OCTETS)
    return list(_drafts(columns, table.num_rows))


def _check_message(metadata: bytes) -> None:
    """Refuse what would become much larger when it is read: compressed batches, and dictionaries.

    `metadata` is a FlatBuffers table `Message` (see Arrow's Message.fbs); pyarrow does not say what is in it.
    """

    def field(table: int, number: int) -> int:
        """Where a field of a table is, 0 if it is not set."""
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        if struct.unpack_from("<H", metadata, fields)[0] <= 4 + 2 * number:
            return 0
        offset: int = struct.unpack_from("<H", metadata, fields + 4 + 2 * number)[0]
        return table + offset if offset else 0

    message = struct.unpack_from("<I", metadata, 0)[0]
    kind, header = field(message, 1), field(message, 2)
    if kind and header and metadata[kind] == _DICTIONARY:
        raise InvalidRequest("request: has columns with dictionaries; cast them to strings", field="request")
    if kind and header and metadata[kind] == _BATCH:
        batch = header + struct.unpack_from("<I", metadata, header)[0]
        if field(batch, 3):
            raise InvalidRequest("request: is a compressed Arrow stream; write it without compression", field="request")


def _check_columns(schema: pa.Schema) -> None:
    seen: set[str] = set()
    for name in schema.names:
        if name not in SENT:
            raise InvalidRequest(f"{name}: no such column; there are {', '.join(SENT)}", field=name)
        if name in seen:
            raise InvalidRequest(f"{name}: there are two columns of that name", field=name)
        seen.add(name)
    if "body" not in seen and "data" not in seen:
        raise InvalidRequest("body: is missing, and so is data", field="body")


@cache
def _wanted() -> dict[str, Any]:
    pa = arrow()
    kinds = dict.fromkeys(_TEXTS, pa.string()) | {"body": pa.string(), "data": pa.binary(), "priority": pa.int32()}
    return kinds | {"headers": pa.map_(pa.string(), pa.string()), "delay": pa.float64(), "ttl": pa.float64()}


def _fitted(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column as the type that it has to be; other widths of numbers and texts are taken."""
    pa = arrow()
    wanted = _wanted()[name]
    if column.type.equals(wanted):
        return column
    alike = {
        "body": _is_string,
        "data": lambda kind: pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
        "priority": pa.types.is_integer,
        "delay": lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
        "ttl": lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind),
        "headers": pa.types.is_map,
    }.get(name, _is_string)
    try:
        if not alike(column.type) and not pa.types.is_null(column.type):
            raise pa.ArrowInvalid
        return column.cast(wanted)
    except pa.ArrowException:
        raise InvalidRequest(f"{name}: is a column of {column.type}; use {wanted}", field=name) from None


def _is_string(kind: pa.DataType) -> bool:
    pa = arrow()
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _json_bodies(column: pa.ChunkedArray) -> list[bytes]:
    """Texts that must be JSON, as bytes. All are looked at in one go; only if that fails, one by one."""
    bodies: list[bytes] = column.cast(arrow().binary()).to_pylist()
    try:
        # Two bodies that are wrong could make up for each other, as `[1` and `2]` do; their lengths could not.
        found = _many(b"[" + b",".join(bodies) + b"]")
        whole = list(map(len, found)) == list(map(len, bodies))
    except (msgspec.DecodeError, RecursionError):
        whole = False
    if not whole:
        for place, body in enumerate(bodies):
            _check_json(body, place)
    return bodies


def _check_json(body: bytes, place: int) -> None:
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        shown = body[:60].decode(errors="replace")
        field = f"messages[{place}].body"
        raise InvalidRequest(
            f"{field}: {shown!r} is not JSON; for text set content_type to text/plain", field=field
        ) from None


def _drafts(columns: dict[str, pa.ChunkedArray], many: int) -> Iterator[Draft]:
    """Drafts of rows that have more than a body."""

    def values(name: str) -> Iterable[Any]:
        return columns[name].to_pylist() if name in columns else repeat(None, many)

    texts = columns["body"].cast(arrow().binary()).to_pylist() if "body" in columns else [None] * many
    rest = ("content_type", "headers", "priority", "delay", "ttl", "key", "recipient", "group", "dedup_id")
    rows = zip(texts, values("data"), *map(values, rest), strict=True)
    for place, (text, data, kind, headers, priority, delay, ttl, key, recipient, group, dedup_id) in enumerate(rows):
        if (text is None) == (data is None):
            told = "is missing, and so is data" if text is None else "there is data too; give one of them"
            field = f"messages[{place}].body"
            raise InvalidRequest(f"{field}: {told}", field=field)
        if kind is None:
            kind = JSON if data is None else OCTETS
        if data is None and is_json(kind):
            _check_json(text, place)
        elif data is None and not kind.startswith("text/"):
            field = f"messages[{place}].body"
            raise InvalidRequest(f"{field}: is for JSON and text; give {kind[:80]} as data", field=field)
        body = text if data is None else data
        if data is not None and is_json(kind):
            _check_json(data, place)
        some = None if headers is None else _headers(headers, place)
        yield Draft(body, kind, some, priority or 0, delay, ttl, key, recipient, group, dedup_id)


def _headers(pairs: list[tuple[str, str | None]], place: int) -> dict[str, str]:
    for name, value in pairs:
        if value is None:
            field = f"messages[{place}].headers"
            raise InvalidRequest(f"{field}: {name!r} has no value", field=field)
    return {name: value for name, value in pairs if value is not None}
