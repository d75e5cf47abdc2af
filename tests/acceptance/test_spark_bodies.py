"""Typed bodies: `bodySchema`, `.schema` and `mode` on a real broker, and types that JSON lacks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")

import miniq
from tests.acceptance.test_spark_read import drain, forget_commit, stream, table
from tests.acceptance.test_spark_write import write
from tests.serving import Served

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = "order int, amount double"


@pytest.fixture
def url(server: Served, broker: miniq.Client) -> str:
    """Where the empty broker is."""
    return server.url


@pytest.fixture
def mixed(broker: miniq.Client) -> miniq.Queue:
    """Two orders, three messages that are none, and the ways in which they are not."""
    orders = broker.queue("orders")
    orders.send_many([{"order": 1, "amount": 0.5}, {"order": "two"}, {"order": 3, "amount": 4, "more": []}])
    orders.send("hello", content_type="text/plain")
    orders.send(b"\xff")
    return orders


def test_bodies_become_columns_and_corrupt_ones_are_kept_dropped_or_fatal(
    spark: SparkSession, url: str, mixed: miniq.Queue
) -> None:
    rows = table(spark, url, queue="orders", bodySchema=ORDER)
    assert rows.schema["body"].dataType.simpleString() == "struct<order:int,amount:double>"
    assert [tuple(row) for row in rows.orderBy("id").select("body.order", "body.amount", "_corrupt").collect()] == [
        (1, 0.5, None),
        (None, None, '{"order":"two"}'),
        (3, 4.0, None),
        (None, None, "hello"),
        (None, None, "/w=="),
    ]
    dropped = table(spark, url, queue="orders", bodySchema=ORDER, mode="drop")
    assert dropped.selectExpr("sum(body.order)", "count(*)").collect()[0][:] == (4, 2)
    with pytest.raises(
        Exception,
        match=r"body: message .* of queue 'orders' does not fit the schema: Expected `int \| null`, got `str`",
    ):
        table(spark, url, queue="orders", bodySchema=ORDER, mode="fail").collect()
    with pytest.raises(Exception, match="mode: 'dead' is invalid; only a stream of messages can have dead letters"):
        table(spark, url, queue="orders", bodySchema=ORDER, mode="dead").collect()


def test_a_schema_describes_the_bodies_or_names_the_columns(spark: SparkSession, url: str, mixed: miniq.Queue) -> None:
    from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType

    fields = [StructField("order", IntegerType()), StructField("amount", DoubleType())]
    reader = spark.read.format("miniq").options(url=url, queue="orders")
    bodies = reader.schema(StructType([*fields, StructField("_corrupt", StringType())])).load()
    good = bodies.where("_corrupt is null").drop("_corrupt").orderBy("order")
    assert [tuple(row) for row in good.collect()] == [(1, 0.5), (3, 4.0)]
    some = reader.schema("sent_at timestamp, body struct<order: int>, key string").load()
    assert some.columns == ["sent_at", "body", "key"]
    assert some.where("body is not null and sent_at <= now()").count() == 2
    as_json = table(spark, url, queue="orders", bodySchema=StructType(fields).json(), mode="drop")
    assert as_json.count() == 2


def test_variants_maps_and_nan_come_back_as_they_were_written(
    spark: SparkSession, url: str, broker: miniq.Client
) -> None:
    rows = spark.sql(
        "select named_struct('v', parse_json('{\"a\": [1, null]}'), 'm', map('x', double('NaN')), "
        "'none', cast(map() as map<int, int>), 'f', float('-Infinity')) as body"
    )
    write(rows, url)
    assert broker.queue("orders").peek()[0].body == {
        "v": {"a": [1, None]},
        "m": {"x": "NaN"},
        "none": {},
        "f": "-Infinity",
    }
    read = table(spark, url, queue="orders", bodySchema="v variant, m map<string, double>, none map<int, int>, f float")
    row = read.selectExpr("to_json(body.v) v", "body.m.x", "size(body.none) size", "body.f", "_corrupt").collect()[0]
    assert (json.loads(row.v), row.size, row.f, row._corrupt) == ({"a": [1, None]}, 0, -math.inf, None)
    assert math.isnan(row.x)
    write(spark.sql("select parse_json('[true]') as body"), url, "variants")
    assert broker.queue("variants").peek()[0].body == [True]
    with pytest.raises(Exception, match=r"body\.i: has type interval day, which JSON lacks"):
        write(spark.sql("select named_struct('i', interval '1' day) as body"), url)


def test_corrupt_messages_of_a_stream_become_dead_letters_once(
    spark: SparkSession, url: str, mixed: miniq.Queue, broker: miniq.Client, tmp_path: Path
) -> None:
    def run() -> list[Any]:
        drain(stream(spark, url, bodySchema=ORDER, mode="dead").select("body.order"), tmp_path)
        return [row["order"] for row in spark.read.parquet(str(tmp_path / "out")).collect()]

    assert sorted(run()) == [1, 3]
    assert mixed.info().counts.total == 0
    forget_commit(tmp_path / "checkpoint", 0)
    assert sorted(run()) == [1, 3]
    letters = table(spark, url, queue="orders.dead").orderBy("sent_at", "id").collect()
    assert [letter.body for letter in letters] == ['{"order":"two"}', "hello", None]
    assert {(letter.dead_origin, letter.dead_reason, letter.dead_receives) for letter in letters} == {
        ("orders", "corrupt body", 1)
    }
    assert [letter.dead_error for letter in letters] == [
        "body: Expected `int | null`, got `str` - at `$.order`",
        "body: JSON is malformed: invalid character (byte 0)",
        "body: its content type is neither JSON nor text",
    ]
    assert all(letter.dead_at >= letter.sent_at and letter.status == "ready" for letter in letters)
    assert broker.queue("orders.dead").redrive().moved == 3
