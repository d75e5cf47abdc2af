"""What all pipelines share: the broker and how to run (`Run`), streams that are followed to their end, summaries."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from miniq.client._sync.client import Client
from miniq.errors import InvalidRequest, MiniQError
from miniq.spark.options import DEFAULT_URL, Options, read_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

OBSERVED = "miniq"
LOOK = 0.1
"""Seconds between two looks at a running stream."""


class Progress(Struct, frozen=True):
    """How far a run is."""

    batches: int
    messages: int
    seconds: float


class Summary(Struct, frozen=True, omit_defaults=True):
    """What a run did."""

    pipeline: str
    messages: int
    seconds: float
    batches: int = 0
    checkpoint: str | None = None
    stopped: bool = False
    """It was asked to end before it was done."""
    details: dict[str, Any] = {}


class Run(Struct, frozen=True, kw_only=True):
    """Where the broker is, and how a pipeline is to run."""

    url: str = field(default_factory=lambda: os.environ.get("MINIQ_URL") or DEFAULT_URL)
    api_key: str | None = None
    options: Mapping[str, str] = {}
    """More options of `format("miniq")`, such as `partitions` or `maxMessagesPerBatch`."""
    checkpoint: str | None = None
    """Where a stream keeps how far it is. Each pipeline has a place for it of its own."""
    continuous: bool = False
    """Go on for ever, instead of with what is there now."""
    every: float = 0.0
    """Seconds from one batch to the next of a continuous run; 0 is as soon as there is something."""
    progress: Callable[[Progress], None] | None = None
    stop: Callable[[], bool] | None = None
    """Asked now and then whether to end."""

    def source(self, **more: object) -> dict[str, str]:
        """Options for `format("miniq")`. What is only for reading or writing is given by the pipelines."""
        given: dict[str, object] = {"url": self.url, **more}
        if self.api_key is not None:
            given["api_key"] = self.api_key
        return {name: str(value) for name, value in given.items() if value is not None}

    def reading(self, **more: object) -> dict[str, str]:
        """Options to read a stream, with those that the user gave."""
        return self.source(**more) | dict(self.options)

    def connect(self) -> Client:
        """A client of the broker, for the driver."""
        return self.broker().connect(probe=True)

    def broker(self) -> Options:
        """The broker as executors can be told of it."""
        return read_options(self.source())

    def stopped(self) -> bool:
        return self.stop is not None and self.stop()

    def pause(self, otherwise: float) -> bool:
        """Wait until the next round of a continuous run is due; whether to end instead."""
        until = time.monotonic() + (self.every or otherwise)
        while time.monotonic() < until and not self.stopped():
            time.sleep(LOOK)
        return self.stopped()


def read_stream(spark: SparkSession, run: Run, **options: object) -> DataStreamReader:
    return spark.readStream.format("miniq").options(**run.reading(**options))


def observed(rows: DataFrame) -> DataFrame:
    """The same rows, counted as they pass: where a filter drops some, what is read is not what is written."""
    from pyspark.sql import functions as F

    return rows.observe(OBSERVED, F.count(F.lit(1)).alias("messages"))


def follow(name: str, writer: DataStreamWriter, run: Run, checkpoint: str, **details: Any) -> Summary:
    """Start a stream and follow it: to the end of what is there now, or until it is asked to end."""
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
            time.sleep(LOOK)
            counts.look(query)
            if run.progress is not None:
                run.progress(counts.progress())
        if not stopped:
            query.awaitTermination()
    finally:
        if query.isActive:
            query.stop()
    counts.look(query)
    done = counts.progress()
    return Summary(name, done.messages, round(done.seconds, 3), done.batches, checkpoint, stopped, details)


class Counts:
    """How many messages the batches of a query had, as far as it tells."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._batches: dict[int, int] = {}

    def look(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            told: Any = progress
            counted = _counted(told.observedMetrics.get(OBSERVED))
            many = told.numInputRows if counted is None else counted
            self._batches[told.batchId] = max(many, self._batches.get(told.batchId, 0))

    def progress(self) -> Progress:
        done = [many for many in self._batches.values() if many]
        return Progress(len(done), sum(done), time.perf_counter() - self._began)


def _counted(row: Any) -> int | None:
    """The one number in a row of observed metrics; over Connect it lies in a list beside its name."""
    for value in row or ():
        found = value[0] if isinstance(value, list) and value else value
        if isinstance(found, int):
            return found
    return None


def failure(error: Exception) -> Exception:
    """What a person wants to know of an error of Spark: ours inside it, if there is one, else its first line."""
    text = str(error)
    for line in reversed(text.splitlines()):
        module, dot, rest = line.strip().rpartition("miniq.errors.")
        if dot and not module.strip():
            _, _, told = rest.partition(": ")
            return MiniQError(told or rest)
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
        return MiniQError(first.strip())
    return error


def state_folder(name: str, *identity: object) -> str:
    """Where the checkpoint of a pipeline is that the user gave none for: the same for the same arguments."""
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "miniq", "pipelines", f"{name}-{digest(*identity)}")


def digest(*identity: object) -> str:
    """A short name for some arguments."""
    return hashlib.sha256("\0".join(str(one) for one in identity).encode()).hexdigest()[:12]


def absolute(path: str) -> str:
    """A path that means the same in every process; what has a scheme, such as s3a:, is one already."""
    return path if "://" in path else os.path.abspath(path)


def select_body(rows: DataFrame) -> DataFrame:
    """Rows of any columns as bodies: each row one JSON object."""
    from pyspark.sql import functions as F

    return rows.select(F.to_json(F.struct("*")).alias("body"))


def check_format(format: str, known: tuple[str, ...]) -> None:
    if format not in known:
        raise InvalidRequest(f"format: {format!r}; use {', '.join(known)}", field="format")
