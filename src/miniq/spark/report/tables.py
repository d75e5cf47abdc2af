"""The tables of the report, as Spark makes them out of history records. All are small: a row per queue and piece of
time, consumer or reason, however long the history is."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import Struct
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STEPS = (1, 2, 5, 10, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
"""Lengths of a piece of time, in seconds; the shortest that gives no more than `PIECES` is taken."""
PIECES = 160
ACCURACY = 1000
"""Of percentiles: a rank is off by one in a thousand at most."""


class Span(Struct, frozen=True):
    """What time the records cover, in seconds since 1970, and how long a piece of it is."""

    begin: int
    end: int
    step: int
    records: int

    @property
    def pieces(self) -> range:
        """The beginnings of all pieces."""
        first = self.begin // self.step * self.step
        return range(first, self.end + 1, self.step)


def span_of(events: DataFrame) -> Span:
    """The span of some records; an empty one ends before it begins."""
    found = events.agg(
        F.min(F.unix_micros("at")).alias("begin"),
        F.max(F.unix_micros("at")).alias("end"),
        F.count("*").alias("records"),
    ).collect()[0]
    if not found.records:
        return Span(0, -1, 1, 0)
    begin, end = found.begin // 1_000_000, found.end // 1_000_000
    step = next((step for step in STEPS if (end - begin) // step < PIECES), STEPS[-1])
    return Span(begin, end, step, found.records)


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _piece(step: int) -> Column:
    """The beginning of the piece of time that a record falls into, whatever the session's time zone."""
    return F.timestamp_seconds(F.floor(F.unix_micros("at") / F.lit(step * 1_000_000)) * F.lit(step))


def _is(name: str) -> Column:
    return F.col("event") == name


def _sent() -> Column:
    """Whether somebody sent a message; one that died or was redriven arrives in a queue too, with a reason."""
    return _is("sent") & F.col("reason").isNull()


def _left() -> Column:
    """Whether a record says that a message left its queue."""
    over = _is("expired") & F.col("reason").isin("ttl", "retention")
    return F.col("event").isin("acked", "dead", "purged", "redriven") | over


def _lost_lease() -> Column:
    return _is("expired") & (F.col("reason") == "lease")


def _counted(condition: Column) -> Column:
    """How many messages records stand for; a purge of a whole queue stands for many."""
    return F.sum(F.when(condition, F.coalesce(F.col("count"), F.lit(1))).otherwise(0)).cast("bigint")


def _percentiles(column: str, where: Column) -> list[Column]:
    value = F.when(where, F.col(column))
    marks = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    return [
        F.percentile_approx(value, mark, ACCURACY).alias(f"{column[:-3]}_{name}_ms") for name, mark in marks.items()
    ]


def _counts() -> list[Column]:
    return [
        _counted(_sent()).alias("sent"),
        _counted(_is("received")).alias("received"),
        _counted(_is("received") & (F.col("receives") > 1)).alias("redelivered"),
        _counted(_is("acked")).alias("acked"),
        _counted(_is("released")).alias("released"),
        _counted(_lost_lease()).alias("lost_leases"),
        _counted(_is("dead")).alias("dead"),
    ]


def _times() -> list[Column]:
    """Wait: from when a message could be had until it was. Held: how long its consumer had it."""
    received = _is("received")
    return [*_percentiles("wait_ms", received), *_percentiles("held_ms", F.col("held_ms").isNotNull())]


def throughput(events: DataFrame, span: Span) -> DataFrame:
    """What happened in each queue in each piece of time, with waiting and processing times."""
    grouped = events.groupBy(_piece(span.step).alias("at"), "queue")
    return grouped.agg(*_counts(), *_times(), F.sum(F.when(_sent(), F.col("bytes"))).alias("bytes_sent"))


def backlog(events: DataFrame, span: Span) -> DataFrame:
    """Messages in each queue at the end of each piece of time in which that changed. The history may begin with
    messages in the queue already; the curve is lifted so that it is never below nothing."""
    from pyspark.sql import Window

    arrived = F.sum(F.when(_is("sent"), F.coalesce(F.col("count"), F.lit(1))).otherwise(0))
    gone = F.sum(F.when(_left(), F.coalesce(F.col("count"), F.lit(1))).otherwise(0))
    change = events.groupBy(_piece(span.step).alias("at"), "queue").agg((arrived - gone).cast("bigint").alias("change"))
    so_far = Window.partitionBy("queue").orderBy("at").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    whole = Window.partitionBy("queue")
    running = change.withColumn("messages", F.sum("change").over(so_far))
    lift = F.greatest(F.lit(0), -F.min("messages").over(whole))
    return running.withColumn("messages", F.col("messages") + lift)


def queues(events: DataFrame, span: Span) -> DataFrame:
    """Each queue over the whole time."""
    return events.groupBy("queue").agg(
        *_counts(), *_times(), F.sum(F.when(_sent(), F.col("bytes"))).alias("bytes_sent")
    )


def consumers(events: DataFrame, span: Span) -> DataFrame:
    """Each consumer of each queue: how much it got, what became of it, and how long it took."""
    named = events.where(F.col("consumer").isNotNull())
    return named.groupBy("queue", "consumer").agg(*_counts()[1:], *_times())


def receives(events: DataFrame, span: Span) -> DataFrame:
    """How many times messages had been handed out when they were acked."""
    return events.where(_is("acked")).groupBy("queue", "receives").agg(_counted(_is("acked")).alias("messages"))


def dead_letters(events: DataFrame, span: Span) -> DataFrame:
    """Why messages ended as dead letters."""
    dead = events.where(_is("dead"))
    return dead.groupBy("queue", F.coalesce(F.col("reason"), F.lit("unknown")).alias("reason")).agg(
        _counted(_is("dead")).alias("messages")
    )


TABLES: dict[str, Callable[[DataFrame, Span], DataFrame]] = {
    "throughput": throughput,
    "backlog": backlog,
    "queues": queues,
    "consumers": consumers,
    "receives": receives,
    "dead_letters": dead_letters,
}
"""Every table by the name of its folder."""
