"""The broker's counters and latency histograms, as plain numbers; `/metrics` and the console read them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Sequence

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds; one more bucket holds everything above."""


class Latency:
    """A histogram of call durations."""

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.count += 1
        self.total += seconds

    def add_all(self, durations: Sequence[float]) -> None:
        """Add calls that were answered together; fast when all fall into one bucket, as they usually do."""
        buckets = self.buckets
        first, last = bisect_left(BUCKETS, min(durations)), bisect_left(BUCKETS, max(durations))
        if first == last:
            buckets[first] += len(durations)
        else:
            for seconds in durations:
                buckets[bisect_left(BUCKETS, seconds, first, last)] += 1
        self.count += len(durations)
        self.total += sum(durations)

    def merge(self, other: Latency) -> None:
        """Add the calls of another histogram."""
        self.buckets = [mine + theirs for mine, theirs in zip(self.buckets, other.buckets, strict=True)]
        self.count += other.count
        self.total += other.total


class Metrics:
    """Messages by queue and event; calls by protocol, name and queue; errors by protocol and code."""

    def __init__(self, queues: Container[str]) -> None:
        self._queues = queues
        self.messages: Counter[tuple[str, str]] = Counter()
        """(queue, event) → messages; events are sent, received, acked, released, extended, dead, expired."""
        self.calls: dict[tuple[str, str, str], Latency] = {}
        """(wire, call, queue) → durations; the queue is "" for calls without one."""
        self.errors: Counter[tuple[str, str]] = Counter()
        """(wire, code) → errors."""

    def call(self, wire: str, name: str, queue: str, seconds: float) -> None:
        """Record the duration of a call. Names of queues that do not exist are not kept: requests may have any."""
        self.latency(wire, name, queue if queue in self._queues else "").add(seconds)

    def latency(self, wire: str, name: str, queue: str) -> Latency:
        """The histogram of one kind of call."""
        latency = self.calls.get((wire, name, queue))
        if latency is None:
            latency = self.calls[wire, name, queue] = Latency()
        return latency

    def forget(self, queue: str) -> None:
        """Drop the numbers of a deleted queue."""
        for counter in [key for key in self.messages if key[0] == queue]:
            del self.messages[counter]
        for call in [key for key in self.calls if key[2] == queue]:
            del self.calls[call]
