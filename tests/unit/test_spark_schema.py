"""Columns: writes check names and types, and encode bodies other than text as JSON."""

from __future__ import annotations

import json
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
from miniq.spark.schema import arrow_schema, check_read_schema, check_written_schema, fit, messages_of, spark_schema

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
    check_written_schema(spark_schema("messages"), None)
    with pytest.raises(InvalidRequest, match="contentType: the rows already have a column"):
        check_written_schema(spark_schema("messages"), "text/plain")


def test_every_column_that_the_broker_accepts_can_be_written() -> None:
    assert set(schema.WRITTEN) == set(SENT)
    assert set(schema.WRITTEN.values()) <= set(schema._ALLOWED)


def test_a_user_defined_schema_is_rejected() -> None:
    check_read_schema(spark_schema("history"), "history")
    with pytest.raises(InvalidRequest, match=r"leave out \.schema"):
        check_read_schema(columns("id string"), "messages")


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
        ([[("k", 1)]], pa.map_(pa.string(), pa.int32()), ['{"k":1}']),
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
    expected = arrow_schema(spark_schema("history"))
    received = pa.RecordBatch.from_pydict(
        {"at": pa.array([0], pa.timestamp("ms", "UTC")), "offset": [5], "event": pa.array(["sent"], pa.large_string())}
    )
    batch = fit(received, expected)
    assert batch.schema.equals(expected)
    assert batch.to_pylist()[0]["event"] == "sent"
    assert fit(batch, expected) is batch
