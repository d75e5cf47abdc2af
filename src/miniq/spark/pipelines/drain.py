"""`drain`: a queue into files, each message exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniq.spark.pipelines.owner import Owner, own
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
    """Write the messages of a queue to files, and ack them.

    `out` is a folder with a folder `batch=N` per batch, which is overwritten if Spark runs the batch again; so any
    reader of the files finds each message once. `parquet` and `json` contain all columns, `text` only the bodies, one
    per line, binary ones in base64. The checkpoint is in `out/_checkpoint`. By default, each `out` has its own `group`.
    A folder that another checkpoint writes to is refused.
    """
    run = run or Run()
    check_format(format, FORMATS)
    out = absolute(out)
    group = group or f"drain-{digest(out)}"
    checkpoint = absolute(run.checkpoint or f"{out}/_checkpoint")
    own(spark, run, out, ["batch=*"], Owner(pipeline="drain", checkpoint=checkpoint, queue=queue, group=group))
    rows = read_stream(spark, run, queue=queue, group=group)
    if format == "text":
        rows = rows.selectExpr("coalesce(body, base64(data)) as value")

    def write(batch: DataFrame, number: int) -> None:
        batch.write.mode("overwrite").format(format).save(f"{out}/batch={number:06d}")

    return follow("drain", rows.writeStream.foreachBatch(write), run, checkpoint, queue=queue, out=out, group=group)
