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


class MessageCounter(Counter[tuple[str, str]]):
    """Numbers of messages by queue and event. It notes what changes, so that nothing has to compare all of them."""

    def __init__(self) -> None:
        self.changes = 0
        self.before: dict[tuple[str, str], int] = {}
        """What changed since the last `mark`, with the numbers at that time."""
        super().__init__()

    def __setitem__(self, key: tuple[str, str], count: int) -> None:
        self.changes += 1
        if key not in self.before:
            self.before[key] = self[key]
        dict.__setitem__(self, key, count)  # several times for each call: `super()` takes longer

    def mark(self) -> dict[tuple[str, str], int]:
        """Begin to note changes anew; they are added to the result."""
        self.before = {}
        return self.before


class Metrics:
    """Messages by queue and event; calls by protocol, name and queue; errors by protocol and code."""

    def __init__(self, queues: Container[str]) -> None:
        self._queues = queues
        self.messages = MessageCounter()
        """(queue, event) → messages. The events are those of the history, which tells of the same, and `deduplicated`,
        `extended` and `lease_expired` (in the history: `expired` with reason `lease`)."""
        self.calls: dict[tuple[str, str, str], Latency] = {}
        """(wire, call, queue) → durations; the queue is "" for calls without one."""
        self.errors: Counter[tuple[str, str]] = Counter()
        """(wire, code) → errors."""

        self.firings: Counter[tuple[str, str]] = Counter()
        """(schedule, outcome) → moments."""

    def sent(self, queue: str, own: Sequence[str], ids: Sequence[str]) -> None:
        """Count the messages of a send, whose answer has the `own` id of each one that was added."""
        if ids is own or ids == own:
            self.messages[queue, "sent"] += len(ids)
        else:
            added = len(set(own).intersection(ids))
            self.messages[queue, "sent"] += added
            self.messages[queue, "deduplicated"] += len(ids) - added

    def lease_expired(self, queue: str, count: int) -> None:
        """Count leases that a change found expired."""
        self.messages[queue, "lease_expired"] += count

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

    def forget_schedule(self, name: str) -> None:
        """Drop the counters of a deleted schedule."""
        for counter in [key for key in self.firings if key[0] == name]:
            del self.firings[counter]
