"""Conditions of a batch read: what options and pushed filters leave of the rows, and of the history."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import datasource as ds

from miniq.spark.conditions import Conditions, FilteredReader, asked, narrowed
from miniq.spark.options import read_options

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
ROWS = pa.RecordBatch.from_pydict(
    {
        "offset": [1, 2, 3, 4],
        "at": pa.array([NOON + timedelta(hours=hour) for hour in range(4)], pa.timestamp("us", "UTC")),
        "event": ["sent", "received", "acked", "sent"],
        "queue": ["a", "a", "a", "b"],
    }
)


def left(*filters: ds.Filter, **options: Any) -> list[int]:
    """The offsets of the rows that options and filters leave."""
    conditions = asked(read_options({"view": "history", **options}))
    for filter in filters:
        conditions = narrowed(conditions, filter, "history")
    return [offset for offset in conditions.select(ROWS).column("offset").to_pylist() if offset >= conditions.first]


def test_options_and_filters_narrow_the_rows() -> None:
    assert left() == [1, 2, 3, 4]
    assert left(event="sent", queue="a") == [1]
    assert left(startingTime="2026-11-15T13:00:00Z", endingTime="2026-11-15T15:00:00Z") == [2, 3]
    assert left(ds.EqualTo(("queue",), "b")) == [4]
    assert left(ds.EqualTo(("queue",), "b"), queue="a") == []
    assert left(ds.In(("event",), ("sent", "acked", None))) == [1, 3, 4]
    assert left(ds.GreaterThan(("offset",), 1), ds.LessThanOrEqual(("offset",), 3)) == [1, 2, 3], (
        "Spark drops the first"
    )
    assert left(ds.EqualTo(("at",), NOON)) == [1]
    assert left(ds.GreaterThanOrEqual(("at",), NOON + timedelta(hours=2))) == [3, 4]
    assert left(ds.LessThan(("at",), (NOON + timedelta(hours=1)).replace(tzinfo=None))) == [1, 2], "and the last"


def test_what_cannot_be_expressed_changes_nothing() -> None:
    unknown = [
        ds.Not(ds.EqualTo(("queue",), "a")),
        ds.EqualTo(("consumer",), "x"),
        ds.EqualTo(("queue", "x"), "a"),
        ds.EqualNullSafe(("queue",), None),
        ds.GreaterThan(("queue",), "a"),
        ds.IsNotNull(("queue",)),
        ds.EqualTo(("offset",), "one"),
        ds.In(("offset",), (1, 2)),
    ]
    assert left(*unknown) == [1, 2, 3, 4]
    assert narrowed(Conditions(), ds.EqualTo(("offset",), 5), "messages") == Conditions()


def test_spark_reads_without_pushdown_and_pushes_with_it() -> None:
    """Spark compares the function behind the method with its own before it reads without pushdown."""

    class Reader(FilteredReader):
        def read(self, partition: Any) -> Any:
            raise NotImplementedError

    reader = Reader(read_options({"view": "history"}))
    assert reader.pushFilters.__func__ is ds.DataSourceReader.pushFilters
    filters = [ds.EqualTo(("queue",), "b"), ds.IsNotNull(("queue",))]
    assert reader.pushFilters(filters) is filters
    assert reader._conditions.only("queue") == "b"
