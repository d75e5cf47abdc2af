"""`report`: statistics tables and an HTML page from the lake."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from miniq.spark.pipelines.runs import Run, Summary, absolute, read_lake, repeat
from miniq.spark.report.page import Rows, render
from miniq.spark.report.tables import TABLES, span_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

REFRESH = 60.0
"""Default seconds between the reports of a continuous run."""


def report(
    spark: SparkSession,
    lake: str,
    out: str,
    *,
    where: str | None = None,
    title: str = "MiniQ report",
    run: Run | None = None,
) -> Summary:
    """Write the report of a lake, optionally filtered by an SQL condition: `out/report.html`, and a Parquet file per
    table in `out/tables`. A continuous run rewrites it periodically."""
    run = run or Run()
    lake, out = absolute(lake), os.path.abspath(out)
    page, tables = os.path.join(out, "report.html"), os.path.join(out, "tables")

    def work() -> tuple[int, dict[str, Any]]:
        records = _make(read_lake(spark, lake).where(where or "true"), page, tables, title)
        return records, {"page": page, "tables": tables, "lake": lake}

    return repeat("report", run, REFRESH, work)


def _make(events: DataFrame, page: str, tables: str, title: str) -> int:
    """Write the tables and the page for these history records; return their number."""
    os.makedirs(tables, exist_ok=True)
    columns = ("at", "event", "queue", "id", "consumer", "receives", "wait_ms", "held_ms", "bytes", "reason", "count")
    events = events.select(*columns).persist()
    try:
        span = span_of(events)
        rows: dict[str, Rows] = {}
        in_queues = events.where("event != 'published'")  # whose queue is a topic; each copy is `sent` as well
        for name, query in TABLES.items():
            table = query(in_queues, span).toArrow()
            with _replaced(os.path.join(tables, f"{name}.parquet")) as part:
                parquet.write_table(table, part)
            rows[name] = _rows(table)
    finally:
        events.unpersist()
    with _replaced(page) as part, open(part, "w", encoding="utf-8") as file:
        file.write(render(rows, span, datetime.now(UTC), title))
    return span.records


def _rows(table: pa.Table) -> Rows:
    """A table as rows for the page, where times are whole seconds."""
    if "at" in table.schema.names:
        column = table.schema.get_field_index("at")
        micros = table.column(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        table = table.set_column(column, "at", pc.divide(micros, 1_000_000))
    rows: Rows = table.to_pylist()
    return rows


@contextmanager
def _replaced(path: str) -> Iterator[str]:
    """The path of a temporary file that atomically replaces `path` at the end, for the sake of concurrent readers."""
    part = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}")
    yield part
    os.replace(part, path)
