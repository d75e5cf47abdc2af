"""Messages and history as Arrow: record batches in columns, for clients that read or write many rows at once.

The schemas are exact: order, nullability and types are those that Spark expects of a source. A body is in `body` if it
is JSON or text in UTF-8, as it was sent, else in `data`. `pyarrow` is an extra, imported on first use.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import cache
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from miniq.api.codec import OCTETS, check_json, is_json
from miniq.batch import Portion
from miniq.errors import BadRequest, InvalidRequest, MissingExtra, TooLarge, install
from miniq.message import JSON, NEVER, SHOWN, Draft, Event, HistoryRecord, Message, PlainBatch, PlainDrafts, Stored
from miniq.packed import WIDTH, Packed, PackedIds, pack

if TYPE_CHECKING:
    import pyarrow as pa

MEDIA = "application/vnd.apache.arrow.stream"
SENT = ("body", "data", *Draft.__struct_fields__[1:])
"""The columns that a sender may give."""
STATES = ("status", "visible_at", "error")
"""The columns that messages of a claim do not have: they are leased to it until it is acked."""
DEAD = ("dead_origin", "dead_reason", "dead_error", "dead_receives", "dead_at")
"""The columns that only dead letters have."""
_MOMENTS = ("sent_at", "at", "visible_at", "dead_at")
_DICTIONARY, _BATCH = 2, 3
"""Types of Arrow messages."""
METADATA = 256 * 1024
"""Maximum size of the metadata of a schema or batch, in bytes."""
BATCHES = 4096
"""Maximum number of batches in a stream; each takes some KB, however few rows it has."""
END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream."""
ID_BYTES = 36
_raw_values = msgspec.json.Decoder(msgspec.Raw).decode_lines


@cache
def arrow() -> Any:
    """`pyarrow`, or an error that names the pip command."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra(f"Arrow needs pyarrow: {install('arrow')}") from None
    return pyarrow


@cache
def _compute() -> Any:
    """`pyarrow.compute`."""
    arrow()
    import pyarrow.compute

    return pyarrow.compute


# Schemas


@cache
def messages_schema() -> pa.Schema:
    columns = ("id", "queue", "body", "data", *SHOWN[1:], "topic", "receives", "sent_at", *STATES, *DEAD)
    return _schema(columns, ("id", "queue"), Message, Stored)


@cache
def history_schema() -> pa.Schema:
    columns = (
        "offset", "at", "event", "queue", "id", "consumer", "receives", "wait_ms", "held_ms", "bytes", "reason",
        "error", "body", "data", "content_type", "count",
    )  # fmt: skip
    return _schema(columns, ("offset",), Event)


@cache
def _sent_schema() -> pa.Schema:
    return _schema(SENT, (), Draft)


def _schema(columns: Sequence[str], required: Sequence[str], *records: type[msgspec.Struct]) -> pa.Schema:
    """A schema whose columns are fields of the records, but for a few types that only the column has."""
    pa = arrow()
    types = {field.name: _type_of(field.type) for record in records for field in msgspec.structs.fields(record)}
    types |= dict.fromkeys(("status", *DEAD), pa.string()) | {"dead_receives": pa.int32()}
    types |= dict.fromkeys(_MOMENTS, pa.timestamp("us", "UTC"))
    types |= dict.fromkeys(("offset", "bytes", "count"), pa.int64())
    types |= {"body": pa.string(), "data": pa.binary()}
    return pa.schema([pa.field(name, types[name], nullable=name not in required) for name in columns])


def _type_of(kind: Any) -> pa.DataType:
    pa = arrow()
    kinds = (kind, *get_args(kind))
    if int in kinds:
        return pa.int32()
    if datetime in kinds:
        return pa.timestamp("us", "UTC")
    if float in kinds:
        return pa.float64()
    return pa.map_(pa.string(), pa.string()) if dict[str, str] in kinds else pa.string()


# Messages and history to Arrow


def portions(claimed: Sequence[Portion]) -> pa.RecordBatch:
    """Messages of a claim. The common case, plain batches only, needs no `Message` objects."""
    batches = [portion.messages for portion in claimed if isinstance(portion.messages, PlainBatch)]
    if len(batches) == len(claimed):
        return _plain_batches(batches, [portion.receives for portion in claimed])
    receives = [portion.receives for portion in claimed for _ in range(len(portion))]
    return _messages([message for portion in claimed for message in portion.messages], receives)


def stored(messages: Sequence[Stored], now: int) -> pa.RecordBatch:
    """Messages of a queue, with the state that they have at `now`."""
    states: dict[str, list[Any]] = {
        "status": [stored.status(now) for stored in messages],
        "visible_at": [stored.visible_at if stored.visible_at < NEVER else None for stored in messages],
        "error": [stored.last_error(now) for stored in messages],
    }
    return _messages([stored.message for stored in messages], [stored.receives for stored in messages], states)


def _plain_batches(batches: Sequence[PlainBatch], receives: Sequence[int]) -> pa.RecordBatch:
    pa = arrow()
    sizes = [len(batch) for batch in batches]
    count = sum(sizes)

    def each(values: Sequence[Any]) -> list[Any]:
        """The value of each message, from one per batch."""
        return [value for value, size in zip(values, sizes, strict=True) for _ in range(size)]

    kinds = [batch.content_type for batch in batches]
    packed = _packed_bodies([pack(batch.bodies) for batch in batches])
    body, data = _split(packed, each(kinds) if len(set(kinds)) > 1 else kinds[:1])
    columns = {"id": _ids([batch.ids for batch in batches], count), "body": body, "data": data}
    for field in messages_schema():
        name = field.name
        if name in columns:
            continue
        if name != "receives" and name not in PlainBatch.__slots__:
            columns[name] = pa.nulls(count, field.type)
            continue
        values = receives if name == "receives" else [getattr(batch, name) for batch in batches]
        if len(set(values)) == 1:
            columns[name] = pa.repeat(pa.scalar(values[0], field.type), count)
        else:
            columns[name] = pa.array(each(values), field.type)
    return _record_batch(columns, messages_schema())


def _messages(
    messages: Sequence[Message], receives: list[int], states: dict[str, list[Any]] | None = None
) -> pa.RecordBatch:
    """Messages with their columns. Those of a claim have no `states`."""
    pa, schema = arrow(), messages_schema()
    body, data = _bodies([message.body for message in messages], [message.content_type for message in messages])
    headers = [None if message.headers is None else list(message.headers.items()) for message in messages]
    columns: dict[str, Any] = {"body": body, "data": data, "receives": receives, "headers": headers}
    columns |= states or {name: pa.nulls(len(messages), schema.field(name).type) for name in STATES}
    letters = [message.dead for message in messages]
    for name in DEAD:
        if any(letters):
            columns[name] = [getattr(letter, name.removeprefix("dead_"), None) for letter in letters]
        else:
            columns[name] = pa.nulls(len(messages), schema.field(name).type)
    return _record_batch(columns, schema, messages)


def history(records: Sequence[HistoryRecord]) -> pa.RecordBatch:
    """Events, with bodies where they are kept."""
    events = [record.event for record in records]
    body, data = _bodies([event.body for event in events], [event.content_type or JSON for event in events])
    offsets, sizes = [record.offset for record in records], [event.size for event in events]
    columns = {"offset": offsets, "bytes": sizes, "body": body, "data": data}
    return _record_batch(columns, history_schema(), events)


def _record_batch(columns: dict[str, Any], schema: pa.Schema, records: Sequence[Any] = ()) -> pa.RecordBatch:
    """Columns in the order of the schema; those that are not given are attributes of the records."""
    pa = arrow()
    arrays = []
    for field in schema:
        values = columns[field.name] if field.name in columns else list(map(attrgetter(field.name), records))
        arrays.append(values if isinstance(values, pa.Array) else pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _packed_bodies(parts: Sequence[Packed]) -> pa.Array:
    """Bodies as an array of binary values."""
    pa = arrow()
    lengths = pa.py_buffer(b"".join([bytes(WIDTH), *(part.lengths for part in parts)]))
    offsets = pa.Array.from_buffers(pa.int32(), lengths.size // WIDTH, [None, lengths])
    offsets = _compute().cumulative_sum_checked(offsets)
    blob = pa.py_buffer(b"".join(part.blob for part in parts))
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, offsets.buffers()[1], blob])


def _ids(runs: Sequence[Sequence[str]], count: int) -> pa.Array:
    """Ids as an array of strings."""
    pa = arrow()
    packed = [ids for ids in runs if isinstance(ids, PackedIds)]
    if len(packed) < len(runs):
        return pa.array([id for ids in runs for id in ids], pa.string())
    joined = b"".join(ids.joined() for ids in packed)
    offsets = pa.py_buffer(array("i", range(0, ID_BYTES * count + 1, ID_BYTES)))
    return pa.Array.from_buffers(pa.string(), count, [None, offsets, pa.py_buffer(joined)])


def _bodies(bodies: Sequence[bytes | None], kinds: list[str]) -> tuple[pa.Array, pa.Array]:
    """The columns `body` and `data`; a single content type applies to all bodies."""
    return _split(arrow().array(bodies, arrow().binary()), kinds)


def _split(bodies: pa.Array, kinds: list[str]) -> tuple[pa.Array, pa.Array]:
    """The same of bodies in an array."""
    pa = arrow()
    count = len(bodies)
    if len(set(kinds)) == 1:
        if not _is_text(kinds[0]):
            return pa.nulls(count, pa.string()), bodies
        try:
            return bodies.cast(pa.string()), pa.nulls(count, pa.binary())
        except pa.ArrowInvalid:  # some are not UTF-8
            kinds = kinds * count if len(kinds) == 1 else kinds
    texts: list[bytes | None] = []
    others: list[bytes | None] = []
    for body, kind in zip(bodies.to_pylist(), kinds, strict=True):
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
    """Writes an Arrow stream in pieces: the schema with the first batch, each batch, the end."""

    def __init__(self, schema: pa.Schema, metadata: dict[str, str] | None = None) -> None:
        self._schema: bytes = (schema.with_metadata(metadata) if metadata else schema).serialize().to_pybytes()

    def batch(self, batch: pa.RecordBatch) -> memoryview | bytes:
        piece = memoryview(batch.serialize())
        if self._schema:
            self._schema, first = b"", self._schema
            return b"".join((first, piece))
        return piece

    def end(self) -> bytes:
        return self._schema + END


def encode(batches: Iterable[pa.RecordBatch], schema: pa.Schema, metadata: dict[str, str] | None = None) -> bytes:
    """A whole stream; the metadata is part of its schema."""
    encoder = Encoder(schema, metadata)
    return b"".join([*map(encoder.batch, batches), encoder.end()])


# Arrow to drafts


def drafts_of(body: bytes, most: int) -> Sequence[Draft]:
    """The messages of an Arrow stream, at most `most`; an error names what is wrong with it. What its metadata declare
    is checked first: rows of nulls take no bytes in the stream, and much memory when they are decoded."""
    pa = arrow()
    try:
        _check_messages(pa.ipc.MessageReader.open_stream(body), most)
        with pa.ipc.open_stream(body) as reader:
            schema = reader.schema
            _check_columns(schema)
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        raise BadRequest(f"request: is not an Arrow stream: {error}", field="request") from None
    return drafts_of_table(pa.Table.from_batches(batches, schema))


def drafts_of_table(table: pa.Table) -> Sequence[Draft]:
    """The messages of a table, one per row; an error names the column or row that is wrong."""
    schema = table.schema
    _check_columns(schema)
    converted = {name: _converted(table.column(name), name) for name in schema.names}
    columns = {name: column for name, column in converted.items() if column.null_count < len(column)}
    if set(columns) == {"body"} and not columns["body"].null_count:
        return PlainDrafts(_json_bodies(columns["body"]))
    if set(columns) == {"data"} and not columns["data"].null_count:
        return PlainDrafts(_packed(columns["data"]), OCTETS)
    return list(_drafts(columns, table.num_rows))


def _check_messages(messages: Iterable[Any], most: int) -> None:
    """Refuse a stream whose messages declare more than it may have."""
    rows = batches = 0
    for message in messages:
        metadata = message.metadata
        if metadata.size > METADATA:
            raise TooLarge(f"request: {metadata.size} bytes of Arrow metadata; at most {METADATA}", field="request")
        declared = _rows(metadata.to_pybytes())
        if declared is not None:
            rows += declared
            batches += 1
        if rows > most:
            raise TooLarge(f"messages: {rows} in one call; at most {most}", field="messages")
        if batches > BATCHES:
            raise TooLarge(f"request: more than {BATCHES} record batches; combine them", field="request")


def _rows(metadata: bytes) -> int | None:
    """The rows that a record batch declares, None for other messages. Refuses compressed batches and dictionaries,
    which could become much larger when decoded.

    `metadata` is a FlatBuffers table `Message` (see Arrow's Message.fbs), whose content pyarrow does not expose.
    """

    def field(table: int, number: int) -> int:
        """The position of a field of a table, 0 if it is not set."""
        fields = table - struct.unpack_from("<i", metadata, table)[0]
        if struct.unpack_from("<H", metadata, fields)[0] <= 4 + 2 * number:
            return 0
        offset: int = struct.unpack_from("<H", metadata, fields + 4 + 2 * number)[0]
        return table + offset if offset else 0

    message = struct.unpack_from("<I", metadata, 0)[0]
    kind, header = field(message, 1), field(message, 2)
    if kind and header and metadata[kind] == _DICTIONARY:
        raise InvalidRequest("request: has columns with dictionaries; cast them to strings", field="request")
    if not (kind and header and metadata[kind] == _BATCH):
        return None
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    if field(batch, 3):
        raise InvalidRequest("request: is a compressed Arrow stream; write it without compression", field="request")
    length = field(batch, 0)
    rows: int = struct.unpack_from("<q", metadata, length)[0] if length else 0
    if rows < 0:
        raise ValueError(f"a record batch of {rows} rows")
    return rows


def _check_columns(schema: pa.Schema) -> None:
    seen: set[str] = set()
    try:
        names = schema.names
    except UnicodeDecodeError:
        raise InvalidRequest(
            f"request: the name of a column is not UTF-8; use {', '.join(SENT)}", field="request"
        ) from None
    for name in names:
        if name not in SENT:
            raise InvalidRequest(f"{name[:80]}: no such column; there are {', '.join(SENT)}", field=name[:80])
        if name in seen:
            raise InvalidRequest(f"{name}: there are two columns of that name", field=name)
        seen.add(name)
        if not _is_convertible(schema.field(name).type, _sent_schema().field(name).type):
            raise _wrong_type(schema.field(name).type, name)
    if "body" not in seen and "data" not in seen:
        raise InvalidRequest("body: is missing, and so is data", field="body")


def _is_convertible(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column can be converted to a type of the schema: other widths of numbers and strings, and nulls."""
    pa, is_type = arrow(), arrow().types
    if is_type.is_map(given) and is_type.is_map(wanted):
        return _is_convertible(given.key_type, wanted.key_type) and _is_convertible(given.item_type, wanted.item_type)
    accepted = {
        pa.string(): (is_type.is_large_string, is_type.is_string_view),
        pa.binary(): (is_type.is_large_binary, is_type.is_binary_view),
        pa.int32(): (is_type.is_integer,),
        pa.float64(): (is_type.is_integer, is_type.is_floating),
        pa.timestamp("us", "UTC"): (lambda kind: is_type.is_timestamp(kind) and kind.tz is not None,),
    }.get(wanted, ())
    return given.equals(wanted) or any(test(given) for test in (*accepted, is_type.is_null))


def _wrong_type(given: pa.DataType, name: str) -> InvalidRequest:
    wanted = _sent_schema().field(name).type
    return InvalidRequest(f"{name}: is a column of {str(given)[:80]}; use {wanted}", field=name)


def _converted(column: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    """A column in the type of the schema."""
    wanted = _sent_schema().field(name).type
    if column.type.equals(wanted):
        return column
    try:
        return column.cast(wanted)
    except arrow().ArrowException:
        raise _wrong_type(column.type, name) from None


def _packed(column: pa.ChunkedArray) -> Packed:
    """Strings or binary values in one piece, without an object for each."""
    values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    count, first = len(values), values.offset
    _, offsets, blob = values.buffers()
    places = memoryview(offsets).cast("B")[WIDTH * first : WIDTH * (first + count + 1)].cast("i")
    lengths = _compute().binary_length(values).buffers()[1]
    text = memoryview(b"" if blob is None else blob).cast("B")[places[0] : places[count]]
    return Packed(text, memoryview(lengths).cast("B")[: WIDTH * count], None if places[0] else places)


def _json_bodies(column: pa.ChunkedArray) -> Packed:
    """Strings that must be JSON, in one piece. All are parsed at once; if that fails, one by one to name the first."""
    column = column.cast(arrow().binary())
    if not all(map(_is_json, column.chunks)):
        for row, body in enumerate(column.to_pylist()):
            check_json(body, f"messages[{row}].body")
    return _packed(column)


def _is_json(bodies: pa.Array) -> bool:
    """Whether each of many bodies is JSON without white space around it; False may also mean that it was not found
    out."""
    pa = arrow()
    lines = pa.ListArray.from_arrays(pa.array([0, len(bodies)], pa.int32()), bodies)
    try:
        values = _raw_values(_compute().binary_join(lines, b"\n")[0].as_buffer())
    except (msgspec.DecodeError, RecursionError):
        return False
    # Two invalid bodies can form a valid one, such as `[1,` and `2]`; their lengths then differ.
    return bool(pa.array(map(len, values), pa.int32()).equals(_compute().binary_length(bodies)))


def _drafts(columns: dict[str, pa.ChunkedArray], count: int) -> Iterator[Draft]:
    """Drafts of rows that have more than a body."""

    def values(name: str, default: Any = None) -> Iterable[Any]:
        if name not in columns:
            return repeat(default, count)
        column: Any = columns[name] if default is None else columns[name].fill_null(default)
        return cast("list[Any]", column.to_pylist())

    if "body" in columns:
        columns["body"] = columns["body"].cast(arrow().binary())
    options = [values(field.name, field.default) for field in msgspec.structs.fields(Draft)[3:]]
    rows = zip(values("body"), values("data"), values("content_type"), values("headers"), *options, strict=True)
    for row, (text, data, kind, headers, *others) in enumerate(rows):
        field = f"messages[{row}].body"
        if (text is None) == (data is None):
            problem = "is missing, and so is data" if text is None else "there is data too; give one of them"
            raise InvalidRequest(f"{field}: {problem}", field=field)
        if kind is None:
            kind = JSON if data is None else OCTETS
        if is_json(kind):
            check_json(text if data is None else data, field)
        elif data is None and not kind.startswith("text/"):
            raise InvalidRequest(f"{field}: is for JSON and text; give {kind[:80]} as data", field=field)
        yield Draft(text if data is None else data, kind, _headers(headers, row), *others)


def _headers(pairs: list[tuple[str, str | None]] | None, row: int) -> dict[str, str] | None:
    for name, value in pairs or ():
        if value is None:
            field = f"messages[{row}].headers"
            raise InvalidRequest(f"{field}: {name!r} has no value", field=field)
    return None if pairs is None else cast("dict[str, str]", dict(pairs))
