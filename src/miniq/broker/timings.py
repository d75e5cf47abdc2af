"""How long messages wait and how long their processing takes, per queue.

The *wait* is the time from the moment at which a message is ready to its first receive; the *processing* time that from
a receive to its ack or fail. Both are counted in histograms with fixed buckets: since the broker started, for
Prometheus, and by minute, for the percentiles of the last minutes. The buckets are 20 per factor of ten, so a
percentile, which is the upper bound of its bucket, is at most 18 % too high.

At most `MAX_QUEUES` queues have timings. Once there are so many, another queue takes the place of one in which nothing
happened in the last minutes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from msgspec import Struct, field

from miniq.consumer import Percentiles
from miniq.message import SECOND, Stored

_STEPS = (1, 1.1, 1.2, 1.35, 1.5, 1.7, 2, 2.2, 2.5, 2.7, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9)
BOUNDS = tuple(round(step * int(10**power)) for power in range(2, 13) for step in _STEPS)
"""The upper bounds of the buckets, in microseconds: 100 µs to 104 days; one more bucket holds everything above."""
MINUTE = 60 * SECOND
MINUTES = 5
"""Minutes over which percentiles are computed, the current one included."""
MAX_QUEUES = 2000
SAMPLES = 16
"""Messages of one receive whose wait is computed; in a larger batch, each stands for its neighbours."""

Buckets = dict[int, int]
"""Counts by the position of the bucket, without empty ones."""


class Times(Struct, array_like=True, gc=False):
    """The waits and processing times of some messages."""

    wait: Buckets = field(default_factory=dict)
    processing: Buckets = field(default_factory=dict)


class QueueTimes(Struct, gc=False):
    """The timings of a queue."""

    minutes: dict[int, Times] = field(default_factory=dict)
    """By minute since 1970: the last ones in which something happened."""
    latest: int = -1
    """The newest of them."""
    current: Times = field(default_factory=Times)
    """That of `latest`."""
    total: Times = field(default_factory=Times)
    """Since the broker started."""
    wait_sum: int = 0
    processing_sum: int = 0
    """Of `total`, in microseconds."""


class Timings:
    """The timings of a broker's queues."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueTimes] = {}
        self._full = -1
        """The last minute in which there was no room for another queue."""

    def received(self, queue: str, taken: Sequence[Stored], now: int) -> None:
        """Messages were handed out now."""
        if not taken:
            return
        times = self.queues.get(queue)
        if times is None or times.latest != now // MINUTE:
            times = self._times(queue, now // MINUTE)
            if times is None:
                return
        minute, total = times.current.wait, times.total.wait
        weight = -(-len(taken) // SAMPLES)
        for stored in taken if weight == 1 else taken[::weight]:
            if stored.receives == 1:
                wait = now - stored.message.due_at
                bucket = bisect_left(BOUNDS, wait)
                minute[bucket] = minute.get(bucket, 0) + weight
                total[bucket] = total.get(bucket, 0) + weight
                times.wait_sum += wait * weight if wait > 0 else 0

    def processed(self, queue: str, now: int, micros: int, count: int) -> None:
        """Some messages were settled after this time."""
        times = self.queues.get(queue)
        if times is None or times.latest != now // MINUTE:
            times = self._times(queue, now // MINUTE)
            if times is None:
                return
        bucket = bisect_left(BOUNDS, micros)
        minute, total = times.current.processing, times.total.processing
        minute[bucket] = minute.get(bucket, 0) + count
        total[bucket] = total.get(bucket, 0) + count
        times.processing_sum += micros * count

    def forget(self, queue: str) -> None:
        """A queue was deleted."""
        self.queues.pop(queue, None)

    def recent(self, queue: str, now: int) -> dict[int, Times]:
        """The timings of the last minutes."""
        times = self.queues.get(queue)
        return {} if times is None else recent(times.minutes, now)

    def _times(self, queue: str, minute: int) -> QueueTimes | None:
        """The timings of a queue, of which this minute is the current one; None if there are too many queues."""
        times = self.queues.get(queue)
        if times is None:
            if len(self.queues) >= MAX_QUEUES:
                self._make_room(minute)
                if self._full == minute:
                    return None
            times = self.queues[queue] = QueueTimes()
        if minute not in times.minutes:
            for old in [other for other in times.minutes if other <= minute - MINUTES]:
                del times.minutes[old]
            times.minutes[minute] = Times()
        times.latest, times.current = minute, times.minutes[minute]
        return times

    def _make_room(self, minute: int) -> None:
        if self._full == minute:  # looked already
            return
        quiet = [queue for queue, times in self.queues.items() if max(times.minutes) <= minute - MINUTES]
        for queue in quiet:
            del self.queues[queue]
        if not quiet:
            self._full = minute


def recent(minutes: dict[int, Times], now: int) -> dict[int, Times]:
    """Those of the last minutes, by minute."""
    first = now // MINUTE - MINUTES + 1
    return {minute: times for minute, times in minutes.items() if minute >= first}


def percentiles(buckets: Iterable[Buckets]) -> Percentiles | None:
    """The percentiles of all counts together; None if there are none."""
    counts: Buckets = {}
    for some in buckets:
        for bucket, count in some.items():
            counts[bucket] = counts.get(bucket, 0) + count
    if not counts:
        return None
    order = sorted(counts)
    sums = list(accumulate(counts[bucket] for bucket in order))
    p50, p99 = (_seconds(order[bisect_left(sums, sums[-1] * share)]) for share in (0.5, 0.99))
    return Percentiles(p50, p99)


def _seconds(bucket: int) -> float:
    return BOUNDS[min(bucket, len(BOUNDS) - 1)] / SECOND
