"""`replay`: archived messages from the lake back into a queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniq.errors import InvalidRequest
from miniq.spark.pipelines.runs import Run, Summary, absolute, digest, follow, observed, state_folder

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
    try:
        schema = spark.read.parquet(lake).schema
    except Exception as error:
        raise InvalidRequest(
            f"lake: {lake!r} cannot be read; archive to it first ({_first_line(error)})", field="lake"
        ) from None
    checkpoint = run.checkpoint or state_folder("replay", run.url, lake, queue, digest(where))
    rows = spark.readStream.schema(schema).parquet(lake)
    sent = rows.where("event = 'sent' and reason is null and (body is not null or data is not null)").where(where)
    messages = sent.selectExpr("body", "data", "content_type", "id as key")
    writer = observed(messages).writeStream.format("miniq").options(**run.source(queue=queue))
    return follow("replay", writer, run, checkpoint, lake=lake, queue=queue, where=where)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
