"""The report's tables, computed by Spark from history records. All are small, however long the history is: a row per
queue and time interval, consumer or reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct
from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, GroupedData

STEPS = (1, 2, 5, 10, 30, 60, 300, 900, 1800, 3600, 3 * 3600, 6 * 3600, 86400, 7 * 86400, 30 * 86400)
"""Possible lengths of a time interval, in seconds; the shortest that gives at most `MAX_INTERVALS` is used."""
MAX_INTERVALS = 160
ACCURACY = 1000
"""Accuracy of percentiles: the rank is off by at most 1/1000."""

BY_PRODUCERS = "event = 'sent' and (reason is null or reason = 'published' or startswith(reason, 'schedule:'))"
"""Arrivals that a producer, a topic or a schedule has made. Messages that were moved, such as dead letters, also arrive
as `sent`, with other reasons."""


class Span(Struct, frozen=True):
    """The time that the records cover, in seconds since 1970, and the length of its intervals."""

    begin: int
    end: int
    step: int
    records: int

    @property
    def intervals(self) -> range:
        """The start of each interval."""
        first = self.begin // self.step * self.step
        return range(first, self.end + 1, self.step)


def span_of(events: DataFrame) -> Span:
    """The span of these records; without records, it ends before it begins."""
    at = F.unix_micros("at")
    begin, end, records = events.agg(F.min(at), F.max(at), F.count("*")).collect()[0]
    if not records:
        return Span(0, -1, 1, 0)
    begin, end = begin // 1_000_000, end // 1_000_000
    step = next((step for step in STEPS if (end - begin) // step < MAX_INTERVALS), STEPS[-1])
    return Span(begin, end, step, records)


def _interval(step: int) -> Column:
    """The start of the interval that a record falls into, independent of the session's time zone."""
    return F.timestamp_seconds(F.floor(F.unix_micros("at") / F.lit(step * 1_000_000)) * F.lit(step))


def _is(name: str) -> Column:
    return F.col("event") == name


def _sent() -> Column:
    return F.expr(BY_PRODUCERS)


def _left() -> Column:
    """Whether the message left its queue with this event."""
    expired = _is("expired") & F.col("reason").isin("ttl", "retention")
    return F.col("event").isin("acked", "dead", "purged", "redriven") | expired


def _counted(condition: Column) -> Column:
    """The number of messages that these records stand for; purging a whole queue is one record for many."""
    return F.sum(F.when(condition, F.coalesce(F.col("count"), F.lit(1))).otherwise(0)).cast("bigint")


def _counts() -> list[Column]:
    return [
        _counted(_sent()).alias("sent"),
        _counted(_is("received")).alias("received"),
        _counted(_is("received") & (F.col("receives") > 1)).alias("redelivered"),
        _counted(_is("acked")).alias("acked"),
        _counted(_is("released")).alias("released"),
        _counted(_is("failed")).alias("failed"),
        _counted(_is("expired") & (F.col("reason") == "lease")).alias("lost_leases"),
        _counted(_is("dead")).alias("dead"),
    ]


def _latency() -> Column:
    """On `acked`: the milliseconds since the message was sent, which its id tells (UUIDv7)."""
    sent_ms = F.conv(F.concat(F.substring("id", 1, 8), F.substring("id", 10, 4)), 16, 10).cast("bigint")
    is_timed = _is("acked") & (F.length("id") == 36) & (F.substring("id", 15, 1) == "7")
    return F.when(is_timed, F.greatest(F.lit(0.0), F.unix_micros("at") / 1000 - sent_ms))


def _times() -> list[Column]:
    """Percentiles of wait (from ready to received), held (from received to the end of the lease) and latency (from sent
    to acked)."""
    values = {"wait": F.when(_is("received"), F.col("wait_ms")), "held": F.col("held_ms"), "latency": _latency()}
    return [
        F.percentile_approx(value, mark / 100, ACCURACY).alias(f"{name}_p{mark}_ms")
        for name, value in values.items()
        for mark in (50, 90, 99)
    ]


def _totals(groups: GroupedData) -> DataFrame:
    return groups.agg(*_counts(), *_times(), F.sum(F.when(_sent(), F.col("bytes"))).alias("bytes_sent"))


def throughput(events: DataFrame, span: Span) -> DataFrame:
    """Events per queue and interval, with wait and processing times."""
    return _totals(events.groupBy(_interval(span.step).alias("at"), "queue"))


def overall(events: DataFrame, span: Span) -> DataFrame:
    """The same over all queues."""
    return _totals(events.groupBy(_interval(span.step).alias("at")))


def total(events: DataFrame, span: Span) -> DataFrame:
    """Events over all queues and the whole time."""
    return _totals(events.groupBy())


def backlog(events: DataFrame, span: Span) -> DataFrame:
    """Messages in each queue at the end of each interval in which their number changed. If the history begins with
    messages already in the queue, the curve is shifted up so that it never goes below zero."""
    change = (_counted(_is("sent")) - _counted(_left())).alias("change")
    changes = events.groupBy(_interval(span.step).alias("at"), "queue").agg(change)
    whole = Window.partitionBy("queue")
    so_far = whole.orderBy("at").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = changes.withColumn("messages", F.sum("change").over(so_far))
    shift = F.greatest(F.lit(0), -F.min("messages").over(whole))
    return running.withColumn("messages", F.col("messages") + shift)


def queues(events: DataFrame, span: Span) -> DataFrame:
    """Events per queue over the whole time."""
    return _totals(events.groupBy("queue"))


def consumers(events: DataFrame, span: Span) -> DataFrame:
    """Events per queue and consumer, with processing times."""
    named = events.where(F.col("consumer").isNotNull())
    return named.groupBy("queue", "consumer").agg(*_counts()[1:], *_times())


def receives(events: DataFrame, span: Span) -> DataFrame:
    """How often messages had been received when they were acked."""
    return events.where(_is("acked")).groupBy("queue", "receives").agg(_counted(_is("acked")).alias("messages"))


def dead_letters(events: DataFrame, span: Span) -> DataFrame:
    """Dead letters per queue and reason."""
    reason = F.coalesce("reason", F.lit("unknown")).alias("reason")
    return events.where(_is("dead")).groupBy("queue", reason).agg(_counted(_is("dead")).alias("messages"))


TABLES: dict[str, Callable[[DataFrame, Span], DataFrame]] = {
    table.__name__: table for table in (throughput, overall, total, backlog, queues, consumers, receives, dead_letters)
}
"""Every table, by the name of its file."""
