"""The columns of `format("miniq")` in Spark and Arrow, and the conversion of rows to messages.

Spark accepts a record batch only if its schema matches exactly, so batches from the broker are converted first (`fit`),
which costs nothing if they already match.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from miniq.api.arrow import history_schema, messages_schema
from miniq.errors import InvalidRequest

SET_BY_BROKER = ("id", "queue", "receives", "sent_at")
"""Columns that writes ignore, so that rows read from one queue can be written to another."""
WRITTEN: dict[str, pa.DataType] = {
    **{field.name: field.type for field in messages_schema() if field.name not in SET_BY_BROKER},
    "delay": pa.float64(),
    "ttl": pa.float64(),
}
"""Columns that can be written, with their types on the wire."""


def spark_schema(view: str) -> StructType:
    """The columns of a view."""
    return from_arrow_schema(history_schema() if view == "history" else messages_schema())


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
    columns = [
        batch.column(field.name).cast(field.type) if field.name in names else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# Rows to messages


_WHOLE = ("tinyint", "smallint", "int", "bigint")
_ALLOWED: dict[pa.DataType, tuple[str, ...]] = {
    pa.string(): ("string",),
    pa.binary(): ("binary",),
    pa.map_(pa.string(), pa.string()): ("map<string,string>",),
    pa.int32(): _WHOLE,
    pa.float64(): (*_WHOLE, "float", "double", "decimal"),
}
"""The types that a column may have, as Spark spells them, by its type on the wire."""


def check_written_schema(schema: StructType, content_type: str | None) -> None:
    """Raise if there are columns that messages do not have, or columns of the wrong type."""
    names = schema.names
    for name in names:
        if name not in WRITTEN and name not in SET_BY_BROKER:
            raise InvalidRequest(
                f"{name}: not a column of a message; use {', '.join(WRITTEN)}. To put all columns into the body: "
                "select(struct('*').alias('body'))",
                field=name,
            )
    if "body" not in names and "data" not in names:
        raise InvalidRequest(f"body: both body and data are missing; the columns are {', '.join(names)}", field="body")
    for field in schema:
        _check_type(field.name, field.dataType.simpleString())
    if content_type is not None and "content_type" in names:
        raise InvalidRequest("contentType: the rows already have a column content_type", field="contentType")


def _check_type(name: str, actual: str) -> None:
    if name == "body":
        if actual == "binary":
            raise InvalidRequest("body: the column has type binary; write bytes to the column data", field="body")
    elif name in WRITTEN:
        allowed = _ALLOWED[WRITTEN[name]]
        # Precision follows the name of a decimal, and collation that of a string.
        if actual not in allowed and actual.partition("(")[0].partition(" ")[0] not in allowed:
            raise InvalidRequest(f"{name}: the column has type {actual}; use {' or '.join(allowed)}", field=name)


def messages_of(batch: pa.RecordBatch, content_type: str | None) -> pa.RecordBatch:
    """Convert rows to the wire format: known columns only, and a body of any type but string as JSON."""
    columns = {name: column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name in WRITTEN}
    if "body" in columns and not _is_text(columns["body"].type):
        columns["body"] = _as_json(columns["body"])
    if content_type is not None:
        columns["content_type"] = pa.repeat(pa.scalar(content_type), batch.num_rows)
    arrays = [column.cast(WRITTEN[name]) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


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
