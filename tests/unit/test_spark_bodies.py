"""Typed bodies: values that fit their type exactly, and corrupt ones with the reason."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from miniq.errors import InvalidRequest
from miniq.spark.bodies import BodyReader, as_json, check_readable, check_writable


def read(kind: T.DataType, *texts: str | None) -> tuple[list[Any], list[str]]:
    """The values, and the texts that do not fit."""
    body = pa.array(texts, pa.string())
    values, corrupt = BodyReader(kind, to_arrow_type(kind, timezone="UTC")).read(body, pa.nulls(len(body), pa.binary()))
    assert all(bad.reason for bad in corrupt)
    return values.to_pylist(), [bad.text for bad in corrupt]


ORDER = T.StructType(
    [T.StructField("order", T.IntegerType(), False), T.StructField("tags", T.ArrayType(T.StringType()))]
)


def test_bodies_fit_or_are_corrupt() -> None:
    good = ['{"order": 1, "tags": ["a", null], "more": 0}', '{"order": 2}', "null", None]
    bad = ['{"order": "1"}', "{}", '{"order": 3000000000}', '{"order": 1', "[]", '{"order": null}']
    values, corrupt = read(ORDER, *good, *bad)
    assert values == [{"order": 1, "tags": ["a", None]}, {"order": 2, "tags": None}, *[None] * 8]
    assert corrupt == ["null", *bad], "a whole body that is null is not an order"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (T.StringType(), '"ü"', "ü"),
        (T.BooleanType(), "true", True),
        (T.ByteType(), "-128", -128),
        (T.LongType(), "9223372036854775807", 2**63 - 1),
        (T.FloatType(), "0.5", 0.5),
        (T.DoubleType(), "1", 1.0),
        (T.DoubleType(), '"-Infinity"', -math.inf),
        (T.DecimalType(20, 2), "123456789012345678.91", Decimal("123456789012345678.91")),
        (T.DateType(), '"2026-11-15"', date(2026, 11, 15)),
        (T.TimestampType(), '"2026-11-15T10:00:00+02:00"', datetime(2026, 11, 15, 8, tzinfo=UTC)),
        (T.TimestampNTZType(), '"2026-11-15T10:00:00"', datetime(2026, 11, 15, 10)),
        (T.BinaryType(), '"/wA="', b"\xff\x00"),
        (T.MapType(T.StringType(), T.DoubleType()), '{"a": 1, "b": null}', [("a", 1.0), ("b", None)]),
        (T.MapType(T.IntegerType(), T.StringType()), '{"7": "x"}', [(7, "x")]),
        (T.ArrayType(T.DoubleType()), '[0.5, "Infinity"]', [0.5, math.inf]),
    ],
)
def test_every_type_is_read(kind: T.DataType, text: str, value: Any) -> None:
    assert read(kind, text) == ([value], [])


def test_what_does_not_fit_its_type_is_corrupt() -> None:
    for kind, text in [
        (T.ByteType(), "300"),
        (T.LongType(), "9223372036854775808"),
        (T.StringType(), "1"),
        (T.DoubleType(), '"1.5"'),
        (T.DoubleType(), "true"),
        (T.DecimalType(4, 2), "123.456"),
        (T.DateType(), '"yesterday"'),
        (T.TimestampNTZType(), '"2026-11-15T10:00:00Z"'),
        (T.ArrayType(T.IntegerType(), False), "[1, null]"),
        (T.StringType(), "[" * 5000),
    ]:
        assert read(kind, text) == ([None], [text]), kind


def test_nan_and_variant_come_back_as_they_were_written() -> None:
    kind = T.StructType([T.StructField("x", T.DoubleType()), T.StructField("v", T.VariantType())])
    (value,), corrupt = read(kind, '{"x": "NaN", "v": {"a": [1, "b", null], "c": 0.5}}')
    assert corrupt == []
    assert math.isnan(value["x"])
    written = as_json(pa.array([value], to_arrow_type(kind, timezone="UTC"))).to_pylist()
    assert written == ['{"x":"NaN","v":{"a":[1,"b",null],"c":0.5}}']


def test_bytes_are_no_json() -> None:
    body, data = pa.nulls(2, pa.string()), pa.array([b"\xff", None], pa.binary())
    values, corrupt = BodyReader(ORDER, to_arrow_type(ORDER, timezone="UTC")).read(body, data)
    assert (values.to_pylist(), [(bad.row, bad.text) for bad in corrupt]) == ([None, None], [(0, "/w==")])


def test_types_without_a_form_in_json_are_refused_by_name() -> None:
    pairs = T.MapType(T.DateType(), T.StringType())
    with pytest.raises(InvalidRequest, match=r"bodySchema: map<date,string>: keys of type date are not supported"):
        check_readable(T.StructType([T.StructField("m", pairs)]), "bodySchema")
    with pytest.raises(InvalidRequest, match="bodySchema: type interval day to second is not supported"):
        check_readable(T.ArrayType(T.DayTimeIntervalType()), "bodySchema")
    with pytest.raises(InvalidRequest, match=r"body\.m: has keys of type date, which JSON lacks; cast them to string"):
        check_writable(T.StructType([T.StructField("m", pairs)]), "body")
    with pytest.raises(InvalidRequest, match="body: has type interval day to second, which JSON lacks"):
        check_writable(T.DayTimeIntervalType(), "body")
    check_writable(T.VariantType(), "body")
