"""`archive`: the history into a lake of Parquet files, partitioned by date and queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniq.spark.pipelines.owner import Owner, own
from miniq.spark.pipelines.runs import Run, Summary, absolute, follow, read_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RECORDS = 500_000
"""Default records per batch: large, for fewer and larger files."""


def archive(spark: SparkSession, lake: str, *, queue: str | None = None, run: Run | None = None) -> Summary:
    """Append new history records, of one queue or of all, to a lake.

    Files are in `date=…/queue=…` (UTC). Spark's log in the lake lists the valid files, so a crash leaves no duplicates
    for readers that use Spark. The checkpoint is in `lake/_checkpoint`. A lake that another checkpoint writes to is
    refused.
    """
    run = run or Run()
    lake = absolute(lake)
    checkpoint = absolute(run.checkpoint or f"{lake}/_checkpoint")
    owner = Owner(pipeline="archive", checkpoint=checkpoint, queue=queue)
    own(spark, run, lake, ["_spark_metadata", "date=*"], owner)
    options = {"view": "history", "queue": queue, "maxMessagesPerBatch": RECORDS}
    rows = with_date(read_stream(spark, run, **options))
    writer = rows.writeStream.format("parquet").partitionBy("date", "queue").option("path", lake)
    return follow("archive", writer, run, checkpoint, lake=lake)


def with_date(rows: DataFrame) -> DataFrame:
    """Add the date in UTC, independent of the session's time zone."""
    from pyspark.sql import functions as F

    days = F.floor(F.unix_micros("at") / F.lit(86_400_000_000)).cast("int")
    return rows.withColumn("date", F.date_add(F.lit("1970-01-01").cast("date"), days))
