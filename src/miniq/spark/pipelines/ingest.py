"""Files into a queue, each row a message. A file that was sent is not sent again; new ones are."""

from __future__ import annotations

import os
from glob import glob
from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

from miniq.errors import InvalidRequest
from miniq.spark.pipelines.runs import Run, Summary, absolute, check_format, follow, observed, select_body, state_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("text", "jsonl", "csv", "parquet")
SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}


def ingest(
    spark: SparkSession, files: str, queue: str, *, format: str | None = None, run: Run | None = None
) -> Summary:
    """Send the rows of files to a queue.

    `files` is a file, a folder, or a pattern such as `logs/*.jsonl`. A line of text is a text, a line of JSON
    Lines a body as it stands there, a row of CSV (with a head line; all values are text) or Parquet an object.
    Each batch of files is committed at once, and once, whatever fails: the checkpoint knows which are done.
    Give a continuous run a folder, and it sends what is put there.
    """
    run = run or Run()
    files = absolute(files)
    format = format or _format_of(files)
    check_format(format, FORMATS)
    checkpoint = run.checkpoint or state_folder("ingest", run.url, queue, format, files)
    if "://" not in files and not glob(files):
        raise InvalidRequest(f"files: there is nothing at {files!r}", field="files")
    rows = _rows(spark, files, format, run)
    more = {"contentType": "text/plain; charset=utf-8"} if format == "text" else {}
    writer = observed(rows).writeStream.format("miniq").options(**run.source(queue=queue, **more))
    return follow("ingest", writer, run, checkpoint, queue=queue, files=files, format=format)


def _format_of(files: str) -> str:
    found = SUFFIXES.get(os.path.splitext(files)[1].lower())
    if found is None:
        raise InvalidRequest(f"format: not clear from {files!r}; use one of {', '.join(FORMATS)}", field="format")
    return found


def _rows(spark: SparkSession, files: str, format: str, run: Run) -> DataFrame:
    """The rows that are in the files, and come to be there, as columns of messages."""
    schema = _schema(spark, files, format)
    files = _pattern(files)
    reader = spark.readStream
    if "maxFilesPerTrigger" in run.options:
        reader = reader.option("maxFilesPerTrigger", run.options["maxFilesPerTrigger"])
    if format in ("text", "jsonl"):
        # A line ends with a line feed only; JSON takes a carriage return for a space.
        lines = reader.option("lineSep", "\n").text(files)
        if format == "text":
            return lines.selectExpr("value as body")
        return lines.where("trim(both ' \t\r' from value) != ''").selectExpr("value as body")
    if format == "csv":
        return select_body(reader.option("header", True).schema(schema).csv(files))
    return select_body(reader.schema(schema).parquet(files))


def _schema(spark: SparkSession, files: str, format: str) -> StructType:
    """The columns of the files that are there now; a stream wants to know them before it begins."""
    if format == "csv":
        return spark.read.option("header", True).csv(files).schema
    if format == "parquet":
        return spark.read.parquet(files).schema
    return StructType()


def _pattern(files: str) -> str:
    """A single file as a pattern that only it fits: Spark streams folders and patterns."""
    return f"{files[:-1]}[{files[-1]}]" if os.path.isfile(files) else files
