"""`drain`: a queue into files, each message exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from miniq.spark.pipelines.owner import Owner, own
from miniq.spark.pipelines.runs import Run, Summary, absolute, check_format, digest, follow, read_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

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

    `out` is a folder with a folder `batch=N` per batch, which is written again if Spark repeats the batch and not all
    of its rows are there; so any reader of the files finds each message once. `parquet` and `json` contain all columns,
    `text` only the bodies, one per line, binary ones in base64. The checkpoint is in `out/_checkpoint`. By default,
    each `out` has its own `group`. A folder that another checkpoint writes to is refused.
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
        write_batch(batch, f"{out}/batch={number:06d}", format)

    return follow("drain", rows.writeStream.foreachBatch(write), run, checkpoint, queue=queue, out=out, group=group)


def write_batch(batch: DataFrame, folder: str, format: str) -> None:
    """Write a batch to its folder, unless it holds exactly these rows. To replace files is to remove them first: if the
    query ended in between and went on with a newer copy of its checkpoint, they would not be written again."""
    column = "value" if format == "text" else "id"
    found = _written(batch.sparkSession, folder, format, column)
    if found is None:
        batch.write.mode("overwrite").format(format).save(folder)
        return
    batch.persist()
    try:
        if _digest(batch, column) != found:
            batch.write.mode("overwrite").format(format).save(folder)
    finally:
        batch.unpersist()


def _written(spark: SparkSession, folder: str, format: str, column: str) -> Row | None:
    """The digest of the rows in a folder, None if there is no such folder or it cannot be read."""
    from pyspark.errors import PySparkException

    try:
        return _digest(spark.read.format(format).schema(f"{column} string").load(folder), column)
    except PySparkException:
        return None


def _digest(rows: DataFrame, column: str) -> Row | None:
    """How many rows there are, and a checksum of a column that does not depend on their order. A text with line breaks
    is several rows in a file."""
    from pyspark.sql import functions as F

    if column == "value":
        rows = rows.select(F.explode(F.split(column, "\r\n|\r|\n")).alias(column))
    hashes = F.xxhash64(column).cast("decimal(38,0)")
    return rows.agg(F.count(F.lit(1)).alias("rows"), F.sum(hashes).alias("checksum")).first()
