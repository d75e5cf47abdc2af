"""The columns of `format("miniq")` in Spark and Arrow, and the conversion of rows to messages.

Spark accepts a record batch only if its schema matches exactly, so batches from the broker are converted first (`fit`),
which costs nothing if they already match.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from miniq.errors import InvalidRequest

_TEXT, _BYTES, _INT, _LONG, _NUMBER, _MOMENT = (
    StringType(), BinaryType(), IntegerType(), LongType(), DoubleType(), TimestampType()
)  # fmt: skip
MESSAGES = StructType(
    [
        StructField("id", _TEXT, nullable=False),
        StructField("queue", _TEXT, nullable=False),
        StructField("body", _TEXT),
        StructField("data", _BYTES),
        StructField("content_type", _TEXT),
        StructField("headers", MapType(_TEXT, _TEXT)),
        StructField("priority", _INT),
        StructField("key", _TEXT),
        StructField("recipient", _TEXT),
        StructField("group", _TEXT),
        StructField("dedup_id", _TEXT),
        StructField("receives", _INT),
        StructField("sent_at", _MOMENT),
    ]
)
HISTORY = StructType(
    [
        StructField("offset", _LONG, nullable=False),
        StructField("at", _MOMENT),
        StructField("event", _TEXT),
        StructField("queue", _TEXT),
        StructField("id", _TEXT),
        StructField("consumer", _TEXT),
        StructField("receives", _INT),
        StructField("wait_ms", _NUMBER),
        StructField("held_ms", _NUMBER),
        StructField("bytes", _LONG),
        StructField("reason", _TEXT),
        StructField("body", _TEXT),
        StructField("data", _BYTES),
        StructField("content_type", _TEXT),
        StructField("count", _LONG),
    ]
)

SET_BY_BROKER = ("id", "queue", "receives", "sent_at")
"""Columns that writes ignore, so that rows read from one queue can be written to another."""
_TEXTS = ("content_type", "key", "recipient", "group", "dedup_id")
WRITTEN: dict[str, pa.DataType] = {
    "body": pa.string(),
    "data": pa.binary(),
    **dict.fromkeys(_TEXTS, pa.string()),
    "headers": pa.map_(pa.string(), pa.string()),
    "priority": pa.int32(),
    "delay": pa.float64(),
    "ttl": pa.float64(),
}
"""Columns that can be written, with their types on the wire."""


def spark_schema(view: str) -> StructType:
    """The columns of a view."""
    return HISTORY if view == "history" else MESSAGES


def check_read_schema(schema: StructType, view: str) -> None:
    """Raise if the user gave a schema: the columns are fixed."""
    expected = spark_schema(view)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in expected]:
        raise InvalidRequest(
            f"schema: the columns of view={view} are {', '.join(expected.names)}; leave out .schema(…) and use select",
            field="schema",
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of record batches."""
    return to_arrow_schema(schema, timezone="UTC")


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a record batch from the broker to the names, order, types and nullability that Spark expects."""
    if batch.schema.equals(schema):
        return batch
    names = set(batch.schema.names)
    columns = []
    for field in schema:
        if field.name not in names:
            columns.append(pa.nulls(batch.num_rows, field.type))
            continue
        column = batch.column(field.name)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# Rows to messages


def check_written_schema(schema: StructType, content_type: str | None) -> None:
    """Raise if there are columns that messages do not have, or columns of the wrong type."""
    names = [field.name for field in schema]
    allowed = ", ".join(WRITTEN)
    for name in names:
        if name not in WRITTEN and name not in SET_BY_BROKER:
            raise InvalidRequest(
                f"{name}: not a column of a message; use {allowed}. To put all columns into the body: "
                "select(struct('*').alias('body'))",
                field=name,
            )
    if "body" not in names and "data" not in names:
        raise InvalidRequest(f"body: both body and data are missing; the columns are {', '.join(names)}", field="body")
    for field in schema:
        _check_type(field.name, field.dataType)
    if content_type is not None and "content_type" in names:
        raise InvalidRequest("contentType: the rows already have a column content_type", field="contentType")


_WHOLE = ("tinyint", "smallint", "int", "bigint")
_SECONDS = (*_WHOLE, "float", "double", "decimal")
_TYPES: dict[str, tuple[str, ...]] = {
    "data": ("binary",),
    "headers": ("map<string,string>",),
    "priority": _WHOLE,
    "delay": _SECONDS,
    "ttl": _SECONDS,
    **dict.fromkeys(_TEXTS, ("string",)),
}
"""The types allowed for each column, as Spark spells them; `body` may have any type but binary."""


def _check_type(name: str, kind: DataType) -> None:
    actual = kind.simpleString()
    allowed = _TYPES.get(name)
    # Precision follows the name of a decimal, and collation that of a string.
    if allowed is not None and actual not in allowed and actual.partition("(")[0].partition(" ")[0] not in allowed:
        raise InvalidRequest(f"{name}: the column has type {actual}; use {' or '.join(allowed)}", field=name)
    if name == "body" and actual == "binary":
        raise InvalidRequest("body: the column has type binary; write bytes to the column data", field="body")


def messages_of(batch: pa.RecordBatch, content_type: str | None) -> pa.RecordBatch:
    """Convert rows to the wire format: known columns only, and a body of any type but string as JSON."""
    names: list[str] = []
    columns: list[Any] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        wire_type = WRITTEN.get(name)
        if wire_type is None:
            continue
        if name == "body" and not _is_text(column.type):
            column = _as_json(column)
        names.append(name)
        columns.append(column if column.type.equals(wire_type) else column.cast(wire_type))
    if content_type is not None:
        names.append("content_type")
        columns.append(pa.repeat(pa.scalar(content_type), batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, names=names)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _as_json(column: pa.Array) -> pa.Array:
    """Each value as JSON text. Null fields of a struct are left out, as in Spark's `to_json`."""
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        return pc.cast(column, pa.string())
    encode = msgspec.json.Encoder(decimal_format="number").encode
    return pa.array(
        [None if value is None else encode(_without_nulls(value)).decode() for value in column.to_pylist()], pa.string()
    )


def _without_nulls(value: Any) -> Any:
    """A value without its null fields. Arrow returns a map as a list of pairs."""
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        if value and all(isinstance(item, tuple) and len(item) == 2 for item in value):
            return {str(name): _without_nulls(item) for name, item in value}
        return [_without_nulls(item) for item in value]
    return value
