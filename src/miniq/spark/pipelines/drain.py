"""A queue into files, each message once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniq.spark.pipelines.runs import Run, Summary, absolute, check_format, digest, follow, read_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("parquet", "json", "text")


def drain(
    spark: SparkSession,
    queue: str,
    out: str,
    *,
    format: str = "parquet",
    group: str | None = None,
    run: Run | None = None,
) -> Summary:
    """Move the messages of a queue into files, and ack them.

    `out` is a folder; each batch is one folder `batch=N` in it, which is written again if the batch is. So any
    reader of the files finds each message once. `parquet` and `json` have all columns, `text` the bodies alone,
    a line each, bytes in base64. The checkpoint is in `out/_checkpoint`. `group` is by default one for each `out`.
    """
    run = run or Run()
    check_format(format, FORMATS)
    out = absolute(out)
    group = group or f"drain-{digest(out)}"
    checkpoint = run.checkpoint or f"{out}/_checkpoint"
    rows = read_stream(spark, run, queue=queue, group=group).load()
    if format == "text":
        rows = rows.selectExpr("coalesce(body, base64(data)) as value")

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").format(format).save(f"{out}/batch={number:06d}")

    return follow("drain", rows.writeStream.foreachBatch(write), run, checkpoint, queue=queue, out=out, group=group)
