"""The columns of `format("miniq")`, as Spark and as Arrow have them, and how rows become messages.

Spark takes a record batch only if its schema is the expected one to the letter, so what comes from the broker is
laid out again (`fit`); where it fits already that costs nothing.
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

GIVEN_BY_BROKER = ("id", "queue", "receives", "sent_at")
"""Columns that are read and left out in writing, so that what was read can be written to another queue."""
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
"""Columns that a sender may give, as they travel."""


def spark_schema(view: str) -> StructType:
    """The columns of a view."""
    return HISTORY if view == "history" else MESSAGES


def check_read_schema(schema: StructType, view: str) -> None:
    """Refuse a schema of the user's own: the columns are what the broker has."""
    wanted = spark_schema(view)
    if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in wanted]:
        raise InvalidRequest(
            f"schema: the columns of view={view} are {', '.join(wanted.names)}; leave out .schema(…) and select",
            field="schema",
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects of record batches."""
    return to_arrow_schema(schema, timezone="UTC")


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch of the broker, with the names, order, types and nullability that Spark expects."""
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
    """Refuse columns that are no part of a message, or that cannot be what they are to be."""
    names = [field.name for field in schema]
    allowed = ", ".join(WRITTEN)
    for name in names:
        if name not in WRITTEN and name not in GIVEN_BY_BROKER:
            raise InvalidRequest(
                f"{name}: no column of a message; there are {allowed}. Put what belongs together into the body: "
                "select(struct('*').alias('body'))",
                field=name,
            )
    if "body" not in names and "data" not in names:
        raise InvalidRequest(f"body: is missing, and so is data; the columns are {', '.join(names)}", field="body")
    for field in schema:
        _check_type(field.name, field.dataType)
    if content_type is not None and "content_type" in names:
        raise InvalidRequest("contentType: there is a column content_type already", field="contentType")


_WHOLE = ("tinyint", "smallint", "int", "bigint")
_SECONDS = (*_WHOLE, "float", "double", "decimal")
_RIGHT: dict[str, tuple[str, ...]] = {
    "data": ("binary",),
    "headers": ("map<string,string>",),
    "priority": _WHOLE,
    "delay": _SECONDS,
    "ttl": _SECONDS,
    **dict.fromkeys(_TEXTS, ("string",)),
}
"""The types that columns may have, as Spark spells them; `body` may have any but binary."""


def _check_type(name: str, kind: DataType) -> None:
    found = kind.simpleString()
    right = _RIGHT.get(name)
    # A decimal has its digits behind its name, and a string its collation.
    if right is not None and found not in right and found.partition("(")[0].partition(" ")[0] not in right:
        raise InvalidRequest(f"{name}: is a column of {found}; use {' or '.join(right)}", field=name)
    if name == "body" and found == "binary":
        raise InvalidRequest("body: is a column of binary; bytes are written as data", field="body")


def messages_of(batch: pa.RecordBatch, content_type: str | None) -> pa.RecordBatch:
    """Rows as they travel to the broker: known columns only, and a body that is no text as JSON."""
    names: list[str] = []
    columns: list[Any] = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        wanted = WRITTEN.get(name)
        if wanted is None:
            continue
        if name == "body" and not _is_text(column.type):
            column = _as_json(column)
        names.append(name)
        columns.append(column if column.type.equals(wanted) else column.cast(wanted))
    if content_type is not None:
        names.append("content_type")
        columns.append(pa.repeat(pa.scalar(content_type), batch.num_rows))
    return pa.RecordBatch.from_arrays(columns, names=names)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _as_json(column: pa.Array) -> pa.Array:
    """Each value as JSON text, without the fields of a struct that are null, as Spark's `to_json` does it."""
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        return pc.cast(column, pa.string())
    encode = msgspec.json.Encoder(decimal_format="number").encode
    return pa.array(
        [None if value is None else encode(_plain(value)).decode() for value in column.to_pylist()], pa.string()
    )


def _plain(value: Any) -> Any:
    """A value without the fields that are null; Arrow gives a map as a list of pairs."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        if value and all(isinstance(one, tuple) and len(one) == 2 for one in value):
            return {str(name): _plain(one) for name, one in value}
        return [_plain(one) for one in value]
    return value
