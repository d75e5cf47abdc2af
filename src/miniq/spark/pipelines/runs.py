"""Shared by all pipelines: run settings (`Run`), following a stream to its end (`follow`), progress and summaries."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from miniq.errors import InvalidRequest, MiniQError
from miniq.spark.lag import Lag, lag_of
from miniq.spark.options import DEFAULT_URL, RULES, Options, check_use, no_option, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

OBSERVED = "miniq"
POLL = 0.1
"""Seconds between two checks of a running stream."""
STOP_POLL = 0.01
"""The same when it is about to end, since its next batch begins soon."""
_STREAM_FAILED = re.compile(r"\[STREAM_FAILED\] .*? terminated with exception: ")
BETWEEN_BATCHES = ("Initializing", "Getting offsets", "Waiting")
"""What Spark says of a stream while it asks for new data."""


class Progress(Struct, frozen=True):
    """The progress of a run so far."""

    batches: int
    messages: int
    seconds: float
    lag: Lag | None = None
    """What the source still holds, if it tells."""


class Summary(Struct, frozen=True, omit_defaults=True):
    """The result of a run."""

    pipeline: str
    messages: int
    seconds: float
    batches: int = 0
    checkpoint: str | None = None
    stopped: bool = False
    """Whether it was stopped before it was done."""
    lag: Lag | None = None
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


OWN_OPTIONS = {"ingest": ("maxFilesPerTrigger",), "replay": (), "reprocess": ("partitions",)}
"""The options of pipelines that do not pass them to a stream of `format("miniq")`."""


def check_options(pipeline: str, given: Mapping[str, str]) -> None:
    """Raise if an option does not exist, has an invalid value, or has no effect on a pipeline. Needs no Spark."""
    own = OWN_OPTIONS.get(pipeline)
    if own is None:
        place = {"view": "history"} if pipeline == "archive" else {"queue": "q", "group": "g"}
        read = {"url": DEFAULT_URL, **place, **given}
        check_use(read_options(read), read, "readStream")
        return
    known = {name.lower() for name in RULES}
    for name in given:
        if name in own:
            continue
        if name.lower() not in known:
            if own:
                raise no_option(name, own)
            raise InvalidRequest(f"{name}: no such option; {pipeline} has no options", field=name)
        only = f"; it has only {', '.join(own)}" if own else ", which has no options"
        raise InvalidRequest(f"{name}: has no effect on {pipeline}{only}", field=name)


def read_stream(spark: SparkSession, run: Run, **options: object) -> DataFrame:
    """A stream from `format("miniq")`; the user's options override the pipeline's."""
    given = run.source(**options) | dict(run.options)
    body = next((text for name, text in given.items() if name.lower() == "bodyschema"), None)
    if body:
        from miniq.spark.schema import check_body_schema

        check_body_schema(body)
    return spark.readStream.format("miniq").options(**given).load()


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
    """Start a stream and wait for it: until all available data is processed, or until the batch ends during which the
    run is stopped."""
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
                finish_batch(query)
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
    seconds = round(total.seconds, 3)
    return Summary(name, total.messages, seconds, total.batches, checkpoint, stopped, total.lag, details)


def finish_batch(query: StreamingQuery) -> None:
    """Wait until the batch that is running has ended. Spark has no call for it, and interrupts what is running."""
    running = _last_batch(query)
    while query.isActive and _in_batch(query) and _last_batch(query) == running:
        time.sleep(STOP_POLL)


def _in_batch(query: StreamingQuery) -> bool:
    status = query.status
    return bool(status["isTriggerActive"]) and not status["message"].startswith(BETWEEN_BATCHES)


def _last_batch(query: StreamingQuery) -> int:
    """The last batch that has ended in this run."""
    progress = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])


class Counts:
    """Messages per batch of a query, as far as its progress reports go."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._batches: dict[int, int] = {}
        self._lag: Lag | None = None

    def update(self, query: StreamingQuery) -> None:
        """Read the query's latest progress reports."""
        reports: list[Any] = list(query.recentProgress)
        if reports:
            self._lag = lag_of(reports[-1])
        for report in reports:
            observed_rows = _observed_count(report.observedMetrics.get(OBSERVED))
            messages = report.numInputRows if observed_rows is None else observed_rows
            self._batches[report.batchId] = max(messages, self._batches.get(report.batchId, 0))

    def progress(self) -> Progress:
        batches = [messages for messages in self._batches.values() if messages]
        return Progress(len(batches), sum(batches), time.perf_counter() - self._began, self._lag)


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
        return MiniQError(_STREAM_FAILED.sub("", first.strip()))
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
