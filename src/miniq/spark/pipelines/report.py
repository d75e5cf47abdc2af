"""`report`: statistics tables and an HTML page from the lake."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from miniq.errors import InvalidRequest
from miniq.spark.pipelines.runs import Progress, Run, Summary, absolute
from miniq.spark.report.page import Rows, render
from miniq.spark.report.tables import TABLES, Span, span_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PAGE = "report.html"
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
    began = time.perf_counter()
    rounds = 0
    while True:
        events = _events(spark, lake).where(where or "true")
        span = make(events, out, title)
        rounds += 1
        if run.progress is not None:
            run.progress(Progress(rounds, span.records, time.perf_counter() - began))
        if not run.continuous or run.pause(REFRESH):
            break
    details: dict[str, Any] = {"page": os.path.join(out, PAGE), "tables": os.path.join(out, "tables"), "lake": lake}
    return Summary(
        "report", span.records, round(time.perf_counter() - began, 3), rounds, stopped=run.stopped(), details=details
    )


def _events(spark: SparkSession, lake: str) -> DataFrame:
    try:
        return spark.read.parquet(lake)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidRequest(f"lake: {lake!r} cannot be read; archive to it first ({reason})", field="lake") from None


def make(events: DataFrame, out: str, title: str) -> Span:
    """Write the tables and the page for these history records."""
    tables = os.path.join(out, "tables")
    os.makedirs(tables, exist_ok=True)
    columns = ("at", "event", "queue", "id", "consumer", "receives", "wait_ms", "held_ms", "bytes", "reason", "count")
    events = events.select(*columns).persist()
    try:
        span = span_of(events)
        rows: dict[str, Rows] = {}
        for name, query in TABLES.items():
            table = query(events, span).toArrow()
            with _replaced(os.path.join(tables, f"{name}.parquet")) as part:
                parquet.write_table(table, part)
            rows[name] = _rows(table)
    finally:
        events.unpersist()
    with _replaced(os.path.join(out, PAGE)) as part, open(part, "w", encoding="utf-8") as file:
        file.write(render(rows, span, datetime.now(UTC), title))
    return span


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
