"""Shared by all pipelines: run settings (`Run`), following a stream to its end (`follow`), progress and summaries."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from miniq.errors import InvalidRequest, MiniQError
from miniq.spark.options import DEFAULT_URL, Options, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

OBSERVED = "miniq"
POLL = 0.1
"""Seconds between two checks of a running stream."""


class Progress(Struct, frozen=True):
    """The progress of a run so far."""

    batches: int
    messages: int
    seconds: float


class Summary(Struct, frozen=True, omit_defaults=True):
    """The result of a run."""

    pipeline: str
    messages: int
    seconds: float
    batches: int = 0
    checkpoint: str | None = None
    stopped: bool = False
    """Whether it was stopped before it was done."""
    details: dict[str, Any] = {}


class Run(Struct, frozen=True, kw_only=True):
    """The address of the broker, and how a pipeline runs."""

    url: str = field(default_factory=lambda: os.environ.get("MINIQ_URL") or DEFAULT_URL)
    api_key: str | None = None
    options: Mapping[str, str] = {}
    """More options of `format("miniq")`, such as `partitions` or `maxMessagesPerBatch`."""
    checkpoint: str | None = None
    """Folder where a stream keeps its position; each pipeline has its own default."""
    continuous: bool = False
    """Run until stopped, instead of ending once everything available is processed."""
    every: float = 0.0
    """Seconds between the batches of a continuous run; 0 starts one as soon as there is data."""
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], bool] | None = None
    """Polled; the run ends when it returns True."""

    def source(self, **options: object) -> dict[str, str]:
        """Options for `format("miniq")`: the connection, and those that the pipeline passes."""
        given = {"url": self.url, "api_key": self.api_key, **options}
        return {name: str(value) for name, value in given.items() if value is not None}

    def broker(self) -> Options:
        """The connection options, for executors."""
        return read_options(self.source())

    def stopped(self) -> bool:
        return self.stop is not None and self.stop()


def read_stream(spark: SparkSession, run: Run, **options: object) -> DataFrame:
    """A stream from `format("miniq")`; the user's options override the pipeline's."""
    return spark.readStream.format("miniq").options(**(run.source(**options) | dict(run.options))).load()


def write_stream(rows: DataFrame, run: Run, **options: object) -> DataStreamWriter:
    """A stream to `format("miniq")`, which counts the rows: with a filter, fewer are written than read."""
    from pyspark.sql import functions as F

    counted = rows.observe(OBSERVED, F.count(F.lit(1)).alias("messages"))
    return counted.writeStream.format("miniq").options(**run.source(**options))


def read_lake(spark: SparkSession, lake: str) -> DataFrame:
    """The archived history."""
    try:
        return spark.read.parquet(lake)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InvalidRequest(f"lake: {lake!r} cannot be read; archive to it first ({reason})", field="lake") from None


def repeat(name: str, run: Run, pause: float, work: Callable[[], tuple[int, dict[str, Any]]]) -> Summary:
    """Run a batch job once, or in a continuous run until stopped, with pauses of `pause` seconds unless the run sets
    others. `work` returns the number of messages and the details of the summary, both so far."""
    began = time.perf_counter()
    rounds = 0
    while True:
        messages, details = work()
        rounds += 1
        if run.progress is not None:
            run.progress(Progress(rounds, messages, time.perf_counter() - began))
        if not run.continuous:
            break
        deadline = time.monotonic() + (run.every or pause)
        while time.monotonic() < deadline and not run.stopped():
            time.sleep(POLL)
        if run.stopped():
            break
    seconds = round(time.perf_counter() - began, 3)
    return Summary(name, messages, seconds, rounds, stopped=run.stopped(), details=details)


def follow(name: str, writer: DataStreamWriter, run: Run, checkpoint: str, **details: Any) -> Summary:
    """Start a stream and wait for it: until all available data is processed, or until the run is stopped."""
    writer = writer.option("checkpointLocation", checkpoint).queryName(f"miniq {name} {os.getpid()}")
    if not run.continuous:
        writer = writer.trigger(availableNow=True)
    elif run.every:
        writer = writer.trigger(processingTime=f"{run.every} seconds")
    began = time.perf_counter()
    query = writer.start()
    counts = Counts(began)
    stopped = False
    try:
        while query.isActive:
            if run.stopped():
                stopped = True
                break
            time.sleep(POLL)
            counts.update(query)
            if run.progress is not None:
                run.progress(counts.progress())
        if not stopped:
            query.awaitTermination()
    finally:
        if query.isActive:
            query.stop()
    counts.update(query)
    total = counts.progress()
    return Summary(name, total.messages, round(total.seconds, 3), total.batches, checkpoint, stopped, details)


class Counts:
    """Messages per batch of a query, as far as its progress reports go."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._batches: dict[int, int] = {}

    def update(self, query: StreamingQuery) -> None:
        """Read the query's latest progress reports."""
        reports: list[Any] = list(query.recentProgress)
        for report in reports:
            observed_rows = _observed_count(report.observedMetrics.get(OBSERVED))
            messages = report.numInputRows if observed_rows is None else observed_rows
            self._batches[report.batchId] = max(messages, self._batches.get(report.batchId, 0))

    def progress(self) -> Progress:
        batches = [messages for messages in self._batches.values() if messages]
        return Progress(len(batches), sum(batches), time.perf_counter() - self._began)


def _observed_count(row: Any) -> int | None:
    """The number in a row of observed metrics; over Spark Connect it is in a list beside its name."""
    for value in row or ():
        number = value[0] if isinstance(value, list) and value else value
        if isinstance(number, int):
            return number
    return None


def failure(error: Exception) -> Exception:
    """The useful part of an error from Spark: the MiniQ error inside it if there is one, else its first line."""
    text = str(error)
    for line in reversed(text.splitlines()):
        module, dot, rest = line.strip().rpartition("miniq.errors.")
        if dot and not module.strip():
            _, _, message = rest.partition(": ")
            return MiniQError(message or rest)
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        return MiniQError(first.strip())
    return error


def state_folder(name: str, *identity: object) -> str:
    """The default checkpoint folder of a pipeline: the same arguments give the same folder."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "miniq", "pipelines", f"{name}-{digest(*identity)}")


def digest(*identity: object) -> str:
    """A short hash of these arguments."""
    return hashlib.sha256("\0".join(str(argument) for argument in identity).encode()).hexdigest()[:12]


def absolute(path: str) -> str:
    """A path that means the same in every process; a URL such as s3a://… stays as it is."""
    return path if "://" in path else os.path.abspath(path)


def check_format(format: str, known: tuple[str, ...]) -> None:
    if format not in known:
        raise InvalidRequest(f"format: {format!r} is invalid; use {', '.join(known)}", field="format")
