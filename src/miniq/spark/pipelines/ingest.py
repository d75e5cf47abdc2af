"""`ingest`: files into a queue, one message per row. Files already sent are skipped in later runs."""

from __future__ import annotations

import os
from glob import glob
from typing import TYPE_CHECKING

from miniq.errors import InvalidRequest
from miniq.spark.pipelines.runs import Run, Summary, absolute, check_format, follow, state_folder, write_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("text", "jsonl", "csv", "parquet")
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}


def ingest(
    spark: SparkSession, files: str, queue: str, *, format: str | None = None, run: Run | None = None
) -> Summary:
    """Send the rows of files to a queue.

    `files` is a file, a folder, or a pattern such as `logs/*.jsonl`. A line of text becomes a text body, a line of JSON
    Lines is the body itself, and a row of CSV (with a header line; all values are strings) or Parquet becomes a JSON
    object. Each batch of files is committed atomically and exactly once: the checkpoint records which files are done.
    A continuous run watches a folder and sends new files.
    """
    run = run or Run()
    files = absolute(files)
    format = format or SUFFIXES.get(os.path.splitext(files)[1].lower())
    if format is None:
        raise InvalidRequest(
            f"format: cannot be guessed from {files!r}; use one of {', '.join(FORMATS)}", field="format"
        )
    check_format(format, FORMATS)
    checkpoint = run.checkpoint or state_folder("ingest", run.url, queue, format, files)
    if "://" not in files and not glob(files):
        raise InvalidRequest(f"files: no file matches {files!r}", field="files")
    rows = _rows(spark, files, format, run)
    content_type = "text/plain; charset=utf-8" if format == "text" else None
    writer = write_stream(rows, run, queue=queue, contentType=content_type)
    return follow("ingest", writer, run, checkpoint, queue=queue, files=files, format=format)


def _rows(spark: SparkSession, files: str, format: str, run: Run) -> DataFrame:
    """A stream of the rows in the files, with the columns of messages."""
    stream = spark.readStream
    if "maxFilesPerTrigger" in run.options:
        stream = stream.option("maxFilesPerTrigger", run.options["maxFilesPerTrigger"])
    # Spark streams folders and patterns, not files: turn a single file into a pattern that matches only it.
    pattern = f"{files[:-1]}[{files[-1]}]" if os.path.isfile(files) else files
    if format in ("text", "jsonl"):
        # Only a line feed ends a line; to JSON, a carriage return is white space.
        lines = stream.option("lineSep", "\n").text(pattern).selectExpr("value as body")
        return lines if format == "text" else lines.where("trim(both ' \t\r' from body) != ''")
    # A stream must know the columns before it starts: those of the files that are there now.
    columns = spark.read.format(format).option("header", True).load(files).schema
    rows = stream.format(format).option("header", True).schema(columns).load(pattern)
    return rows.selectExpr("to_json(struct(*)) as body")
