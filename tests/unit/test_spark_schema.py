"""Columns: writes check names and types, and encode bodies other than text as JSON."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from miniq.api.arrow import SENT
from miniq.errors import InvalidRequest
from miniq.spark import schema
from miniq.spark.schema import Layout, check_written_schema, messages_of, spark_schema, view_columns

TYPES: dict[str, DataType] = {
    "string": StringType(),
    "int": IntegerType(),
    "binary": BinaryType(),
    "timestamp": TimestampType(),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def columns(ddl: str) -> StructType:
    """A schema from DDL; Spark's own parser needs a session."""
    fields = [field.split(" ", 1) for field in ddl.split(", ")]
    return StructType([StructField(name, TYPES[kind]) for name, kind in fields])


@pytest.mark.parametrize(
    ("ddl", "text"),
    [
        ("body string, amount int", "amount: not a column of a message; use body, data"),
        ("key string", "body: both body and data are missing; the columns are key"),
        ("body binary", "body: the column has type binary; write bytes to the column data"),
        ("data string", "data: the column has type string; use binary"),
        ("body string, priority string", "priority: the column has type string; use tinyint or smallint"),
        (
            "body string, headers map<string,int>",
            "headers: the column has type map<string,int>; use map<string,string>",
        ),
        ("body string, delay timestamp", "delay: the column has type timestamp; use"),
    ],
)
def test_unknown_columns_and_wrong_types_are_rejected_by_name(ddl: str, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_written_schema(columns(ddl), None)
    assert caught.value.text.startswith(text)


def test_the_columns_of_a_read_can_be_written() -> None:
    check_written_schema(view_columns("messages"), None)
    with pytest.raises(InvalidRequest, match="contentType: the rows already have a column"):
        check_written_schema(view_columns("messages"), "text/plain")


def test_every_column_that_the_broker_accepts_can_be_written() -> None:
    assert set(schema.WRITTEN) == set(SENT) - {"deliver_at"}  # Spark writes stages, whose times count from the commit
    assert set(schema.WRITTEN.values()) <= set(schema._ALLOWED)


def test_a_schema_names_columns_of_the_view_or_describes_the_bodies() -> None:
    Layout(view_columns("history"), "history", None, None)
    some = Layout(columns("body int, sent_at timestamp, id string"), "messages", None, None)
    assert some.schema.names == ["body", "sent_at", "id"]
    assert Layout(columns("id string"), "messages", None, None).schema.names == ["id"]
    for ddl, text in [
        ("body string, amount int", "schema: 'amount' is not a column of view=messages"),
        ("body string, sent_at string", "schema: sent_at has type timestamp, not string"),
        ("body int, _corrupt int", "_corrupt: has type int; use string"),
        ("_corrupt string", "schema: has no columns of the body"),
    ]:
        with pytest.raises(InvalidRequest, match=re.escape(text)):
            Layout(columns(ddl), "messages", None, None)
    with pytest.raises(InvalidRequest, match="mode: is for typed bodies"):
        Layout(view_columns("messages"), "messages", None, "fail")
    with pytest.raises(InvalidRequest, match="bodySchema: describes the bodies, and so does"):
        Layout(columns("id string"), "messages", "id string", None)


def test_the_schema_of_bodies_is_ddl_or_json() -> None:
    assert "`body` struct<order int, tags array<string>>, `data` binary" in str(
        spark_schema("messages", "order int, tags array<string>")
    )
    for kind in ("array<struct<a: int>>", "decimal(10, 2)", "variant"):
        assert f"`body` {kind}, `data` binary" in str(spark_schema("messages", kind))
    given = columns("a int, b string")
    typed = spark_schema("history", given.json())
    assert isinstance(typed, StructType)
    assert (typed["body"].dataType, typed.names[-1]) == (given, "_corrupt")
    with pytest.raises(InvalidRequest, match="bodySchema: is not the JSON of a StructType"):
        spark_schema("messages", "{}")


def test_bodies_other_than_text_become_json() -> None:
    rows = [
        {"n": 1, "when": datetime(2026, 11, 15, 8, tzinfo=UTC), "day": date(2026, 1, 2), "price": Decimal("1.50")},
        {"n": None, "tags": ["a", None], "inner": {"x": True, "y": None}},
    ]
    kind = pa.struct(
        [
            ("n", pa.int64()),
            ("when", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("price", pa.decimal128(10, 2)),
            ("tags", pa.list_(pa.string())),
            ("inner", pa.struct([("x", pa.bool_()), ("y", pa.int32())])),
        ]
    )
    batch = pa.RecordBatch.from_arrays([pa.array(rows, kind), pa.array(["a", "b"])], names=["body", "key"])
    first, second = (json.loads(body) for body in messages_of(batch, None).column("body").to_pylist())
    assert first == {"n": 1, "when": "2026-11-15T08:00:00Z", "day": "2026-01-02", "price": 1.5}
    assert second == {"tags": ["a", None], "inner": {"x": True}}


@pytest.mark.parametrize(
    ("values", "kind", "encoded"),
    [
        ([1, -2, None], pa.int64(), ["1", "-2", None]),
        ([True, False], pa.bool_(), ["true", "false"]),
        ([1.5], pa.float64(), ["1.5"]),
        ([["a"], []], pa.list_(pa.string()), ['["a"]', "[]"]),
        ([[("k", 1)], [], [("n", None)]], pa.map_(pa.string(), pa.int32()), ['{"k":1}', "{}", '{"n":null}']),
        ([[(True, 1)]], pa.map_(pa.bool_(), pa.int32()), ['{"true":1}']),
        ([math.nan, math.inf, -math.inf], pa.float64(), ['"NaN"', '"Infinity"', '"-Infinity"']),
        ([[0.5, math.nan, None]], pa.list_(pa.float32()), ['[0.5,"NaN",null]']),
        (
            [{"x": [{"y": math.nan}]}],
            pa.struct([("x", pa.list_(pa.struct([("y", pa.float64())])))]),
            ['{"x":[{"y":"NaN"}]}'],
        ),
        (['{"as": "it is"}'], pa.string(), ['{"as": "it is"}']),
    ],
)
def test_every_type_of_body_is_encoded_as_json(values: list[Any], kind: pa.DataType, encoded: list[str | None]) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(values, kind)], names=["body"])
    assert messages_of(batch, None).column("body").to_pylist() == encoded


def test_columns_set_by_the_broker_are_dropped_and_numbers_are_cast() -> None:
    batch = pa.RecordBatch.from_pydict(
        {"id": ["x"], "queue": ["q"], "receives": [1], "body": ["1"], "priority": pa.array([7], pa.int64()), "ttl": [3]}
    )
    messages = messages_of(batch, "text/plain")
    assert messages.schema.names == ["body", "priority", "ttl", "content_type"]
    assert (messages.column("priority").type, messages.column("ttl").type) == (pa.int32(), pa.float64())
    assert messages.column("content_type").to_pylist() == ["text/plain"]


def test_record_batches_get_the_schema_that_spark_expects() -> None:
    layout = Layout(view_columns("history"), "history", None, None)
    expected = layout.schema
    received = pa.RecordBatch.from_pydict(
        {"at": pa.array([0], pa.timestamp("ms", "UTC")), "offset": [5], "event": pa.array(["sent"], pa.large_string())}
    )
    batch = layout.fit(received)
    assert batch.schema.equals(expected)
    assert batch.to_pylist()[0]["event"] == "sent"
    assert layout.fit(batch) is batch
