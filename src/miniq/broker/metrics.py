"""What a broker counts while it works: plain numbers, read by whoever shows them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds in seconds; a last bucket holds the rest."""


class Latency:
    """How long calls of one kind took."""

    __slots__ = ("buckets", "count", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS) + 1)
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKETS, seconds)] += 1
        self.count += 1
        self.total += seconds

    def add_all(self, many: Sequence[float]) -> None:
        """Calls that were answered together: mostly they took about as long."""
        buckets = self.buckets
        first, last = bisect_left(BUCKETS, min(many)), bisect_left(BUCKETS, max(many))
        if first == last:
            buckets[first] += len(many)
        else:
            for seconds in many:
                buckets[bisect_left(BUCKETS, seconds, first, last)] += 1
        self.count += len(many)
        self.total += sum(many)


class Metrics:
    """Messages by queue and what happened to them; calls by wire, name and queue; errors by code."""

    def __init__(self) -> None:
        self.messages: Counter[tuple[str, str]] = Counter()
        """(queue, event) → messages; events are sent, received, acked, released, extended, dead, expired."""
        self.calls: dict[tuple[str, str, str], Latency] = {}
        """(wire, call, queue) → how long; the queue is empty for calls that are about none."""
        self.errors: Counter[tuple[str, str]] = Counter()

    def call(self, wire: str, name: str, queue: str, seconds: float) -> None:
        """A call was answered."""
        self.latency(wire, name, queue).add(seconds)

    def latency(self, wire: str, name: str, queue: str) -> Latency:
        """Of calls of one kind."""
        found = self.calls.get((wire, name, queue))
        if found is None:
            found = self.calls[wire, name, queue] = Latency()
        return found

    def forget(self, queue: str) -> None:
        """A queue is gone, and with it what was counted for it."""
        for counted in [key for key in self.messages if key[0] == queue]:
            del self.messages[counted]
        for timed in [key for key in self.calls if key[2] == queue]:
            del self.calls[timed]
