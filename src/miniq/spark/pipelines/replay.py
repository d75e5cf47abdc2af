"""`replay`: archived messages from the lake back into a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniq.spark.pipelines.runs import Run, Summary, absolute, digest, follow, read_lake, state_folder, write_stream
from miniq.spark.report.tables import BY_PRODUCERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def replay(spark: SparkSession, lake: str, queue: str, *, where: str | None = None, run: Run | None = None) -> Summary:
    """Send archived messages to a queue. Only queues whose history is `full` have archived bodies.

    `where` is an SQL condition on the columns of the history, such as `queue = 'orders' and at >= '2026-11-01'`.
    The checkpoint records what was sent: another run sends only what is new in the lake.
    """
    run = run or Run()
    lake = absolute(lake)
    where = where or "true"
    schema = read_lake(spark, lake).schema
    checkpoint = run.checkpoint or state_folder("replay", run.url, lake, queue, digest(where))
    rows = spark.readStream.schema(schema).parquet(lake)
    sent = rows.where(BY_PRODUCERS).where(where)
    sent = sent.where("body is not null or data is not null")
    messages = sent.selectExpr("body", "data", "content_type", "id as key")
    return follow(
        "replay", write_stream(messages, run, queue=queue), run, checkpoint, lake=lake, queue=queue, where=where
    )
