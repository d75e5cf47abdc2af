"""The columns of `format("miniq")` in Spark and Arrow, and the conversion of rows to messages.

Spark accepts a record batch only if its schema matches exactly, so batches from the broker are converted first
(`Layout.fit`), which costs nothing if they already match.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import DataType, StringType, StructField, StructType, _parse_datatype_json_string

from miniq.api.arrow import DEAD, STATES, history_schema, messages_schema
from miniq.errors import InvalidRequest
from miniq.spark.bodies import BodyReader, Corrupt, as_json, check_readable, check_writable
from miniq.spark.options import Mode

CORRUPT = "_corrupt"
"""The column with the text of a body that does not fit its type."""
Bury = Callable[[Sequence[tuple[str, str]]], None]
"""Called with ids of messages, each with what is wrong with it."""
_TYPE = re.compile(r"\s*\w+\s*(<.*>|\([\d, ]*\))?\s*", re.DOTALL)
"""A type such as `array<int>`, unlike a list of columns such as `order int, amount double`."""
SET_BY_BROKER = ("id", "queue", "topic", "receives", "sent_at", *STATES, *DEAD)
"""Columns that writes ignore, so that rows read from one queue can be written to another."""
WRITTEN: dict[str, pa.DataType] = {
    **{field.name: field.type for field in messages_schema() if field.name not in SET_BY_BROKER},
    "delay": pa.float64(),
    "ttl": pa.float64(),
}
"""Columns that can be written, with their types on the wire."""


def spark_schema(view: str, body: str | None = None) -> StructType | str:
    """The columns of a view; with `body`, a DDL text or a type in JSON, its bodies are typed."""
    columns = view_columns(view)
    if body is None:
        return columns
    corrupt = StructField(CORRUPT, StringType())
    if body.lstrip().startswith("{"):
        try:
            kind = _parse_datatype_json_string(body)
        except (ValueError, KeyError, TypeError, PySparkException) as error:
            raise InvalidRequest(f"bodySchema: is not the JSON of a StructType: {error}", field="bodySchema") from None
        typed = [StructField("body", kind) if field.name == "body" else field for field in columns]
        return StructType([*typed, corrupt])
    # Only Spark can parse DDL.
    texts = [
        f"`{field.name}` {_type_text(body) if field.name == 'body' else field.dataType.simpleString()}"
        + ("" if field.nullable else " not null")
        for field in [*columns, corrupt]
    ]
    return ", ".join(texts)


def _type_text(body: str) -> str:
    return body if _TYPE.fullmatch(body) else f"struct<{body}>"


def check_body_schema(body: str) -> None:
    """Raise unless Spark can parse the type of bodies. Needs a session, which a data source does not have."""
    if body.lstrip().startswith("{"):
        spark_schema("messages", body)
        return
    try:
        DataType.fromDDL(f"body {body}" if _TYPE.fullmatch(body) else body)
    except PySparkException as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        text = f"bodySchema: {body!r} is not a schema: {reason}"
        raise InvalidRequest(text, field="bodySchema") from None


class Layout:
    """The columns that a reader returns: which there are, and how bodies are read. Pickled to executors."""

    def __init__(self, schema: StructType, view: str, body_schema: str | None, mode: Mode | None) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self._view = view
        self._mode: Mode = mode or "permissive"
        self._fields: StructType | None = None
        """The type of the bodies, if their fields are the columns."""
        self._body: DataType | None = None
        """The type of the bodies, if it is not string."""
        if "body" not in schema.names:
            self._fields = StructType([field for field in schema if field.name != CORRUPT])
            self._body = self._fields
        elif not isinstance(schema["body"].dataType, StringType):
            self._body = schema["body"].dataType
        self._check(schema, body_schema, mode)

    def _check(self, schema: StructType, body_schema: str | None, mode: Mode | None) -> None:
        if body_schema is not None and self._fields is not None:
            raise InvalidRequest("bodySchema: describes the bodies, and so does .schema(…); give one", field="schema")
        if CORRUPT in schema.names and not isinstance(schema[CORRUPT].dataType, StringType):
            raise InvalidRequest(
                f"{CORRUPT}: has type {schema[CORRUPT].dataType.simpleString()}; use string", field=CORRUPT
            )
        if self._body is not None:
            check_readable(self._body, "body" if body_schema is None else "bodySchema")
        elif mode is not None:
            raise InvalidRequest("mode: is for typed bodies; set bodySchema too", field="mode")
        if self._fields is not None:
            if not self._fields.names:
                raise InvalidRequest("schema: has no columns of the body", field="schema")
            return
        known = {field.name: field.dataType for field in view_columns(self._view)}
        for field in schema:
            if field.name in ("body", CORRUPT):
                continue
            if field.name not in known:
                raise InvalidRequest(
                    f"schema: {field.name!r} is not a column of view={self._view}, which are {', '.join(known)}; "
                    "a schema without a column body describes the bodies themselves",
                    field="schema",
                )
            if field.dataType != known[field.name]:
                raise InvalidRequest(
                    f"schema: {field.name} has type {known[field.name].simpleString()}, not "
                    f"{field.dataType.simpleString()}",
                    field="schema",
                )

    @cached_property
    def _reader(self) -> BodyReader:
        kind = pa.struct(self._own_fields()) if self._fields is not None else self.schema.field("body").type
        return BodyReader(cast(DataType, self._body), kind)

    def _own_fields(self) -> list[pa.Field]:
        return [field for field in self.schema if field.name != CORRUPT]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_reader"}

    def fit(self, batch: pa.RecordBatch, bury: Bury | None = None) -> pa.RecordBatch:
        """Convert a record batch from the broker to the names, order, types and nullability that Spark expects.
        `bury` is called with the corrupt messages where they become dead letters."""
        if self._body is None:
            return self._fitted(batch, {})
        body, corrupt = self._reader.read(batch.column("body"), batch.column("data"))
        typed: dict[str, pa.Array] = {"body": body}
        if self._fields is not None:
            typed = dict(zip(self._fields.names, body.flatten(), strict=True))
        if corrupt and self._mode == "fail":
            raise self._corrupt(batch, corrupt[0])
        texts: list[str | None] = [None] * batch.num_rows
        for bad in corrupt:
            texts[bad.row] = bad.text
        fitted = self._fitted(batch, typed | {CORRUPT: pa.array(texts, pa.string())})
        if not corrupt or self._mode == "permissive":
            return fitted
        if self._mode == "dead" and bury is not None:
            ids = batch.column("id")
            bury([(ids[bad.row].as_py(), f"body: {bad.reason}") for bad in corrupt])
        return fitted.filter(pa.array([text is None for text in texts]))

    def _fitted(self, batch: pa.RecordBatch, typed: Mapping[str, pa.Array]) -> pa.RecordBatch:
        if batch.schema.equals(self.schema):
            return batch
        given = dict(zip(batch.schema.names, batch.columns, strict=True)) if self._fields is None else {}
        given |= typed
        columns = [
            given[field.name].cast(field.type) if field.name in given else pa.nulls(batch.num_rows, field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _corrupt(self, batch: pa.RecordBatch, bad: Corrupt) -> InvalidRequest:
        id, queue = (batch.column(name)[bad.row].as_py() for name in ("id", "queue"))
        return InvalidRequest(
            f"body: message {id} of queue {queue!r} does not fit the schema: {bad.reason}; its body is "
            f"{bad.text[:80]!r}. Read on with mode permissive, drop or dead",
            field="body",
        )


def view_columns(view: str) -> StructType:
    """The columns of a view, where bodies are text."""
    return from_arrow_schema(history_schema() if view == "history" else messages_schema())


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
        if field.name == "body":
            check_writable(field.dataType, "body")
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
        columns["body"] = as_json(columns["body"])
    if content_type is not None:
        columns["content_type"] = pa.repeat(pa.scalar(content_type), batch.num_rows)
    arrays = [column.cast(WRITTEN[name]) for name, column in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
