"""Why messages of each queue failed in the last hour: how many by minute, and their errors in groups.

A consumer's report, a lease that expired and the death of a message are failures. Errors whose first lines differ only
in numbers and ids are one group. Memory is bounded: the last `MOST_GROUPS` groups of a queue, and the last `MAX_QUEUES`
queues with failures. Brokers that share a store tell each other (`sharing.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct, field

from miniq.broker.timings import MINUTE, MINUTES
from miniq.failure import FailureGroup
from miniq.message import LEASE_EXPIRED, moment

WINDOW = 60
"""Minutes for which failures are shown."""
MOST_GROUPS = 20
MAX_QUEUES = 1000
LONGEST = 200
"""Letters of a first line that tell two errors apart."""
_VARIABLE = re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b0x[0-9a-fA-F]+\b|\d+")


class Group(Struct, array_like=True, gc=False):
    """Failures with about the same error; `error` is the last one."""

    error: str
    count: int
    first_at: int
    last_at: int


class QueueFailures(Struct, array_like=True, gc=False):
    """The failures of a queue: how many by minute, and by the pattern of their errors."""

    minutes: dict[int, int] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    died_at: int = 0
    """When a message of this queue last became a dead letter, and why; 0 if none did since the broker started."""
    died_of: str = ""


def pattern(error: str) -> str:
    """What errors of one group have in common."""
    return _VARIABLE.sub("#", error.lstrip().split("\n", 1)[0][:LONGEST])


class Failures:
    """The failures that a broker has seen."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueFailures] = {}
        self.changes = 0

    def failed(self, queue: str, error: str, count: int, now: int) -> None:
        """Messages failed."""
        if not count:
            return
        self.changes += 1
        failures = self._queue(queue)
        minutes, minute = failures.minutes, now // MINUTE
        if minute not in minutes:
            for old in [other for other in minutes if other <= minute - WINDOW]:
                del minutes[old]
        minutes[minute] = minutes.get(minute, 0) + count
        key = pattern(error)
        group = failures.groups.pop(key, None)
        if group is None:
            if len(failures.groups) >= MOST_GROUPS:
                del failures.groups[next(iter(failures.groups))]
            group = Group(error, 0, now, now)
        failures.groups[key] = Group(error, group.count + count, group.first_at, now)  # the newest is last

    def died(self, queue: str, error: str | None, now: int) -> None:
        """Messages became dead letters."""
        self.changes += 1
        failures = self._queue(queue)
        failures.died_at, failures.died_of = now, error or ""

    def expired(self, queue: str, now: int) -> int:
        """How many leases expired in the last minutes, about: attempts that were not settled."""
        failures = self.queues.get(queue)
        group = None if failures is None else failures.groups.get(LEASE_EXPIRED)
        return 0 if group is None or group.last_at <= now - MINUTES * MINUTE else group.count

    def forget(self, queue: str) -> None:
        """A queue was deleted."""
        self.queues.pop(queue, None)

    def _queue(self, queue: str) -> QueueFailures:
        failures = self.queues.pop(queue, None)
        if failures is None:
            if len(self.queues) >= MAX_QUEUES:
                del self.queues[next(iter(self.queues))]
            failures = QueueFailures()
        self.queues[queue] = failures
        return failures


def recent(brokers: Iterable[QueueFailures], now: int) -> tuple[int, Group | None]:
    """How many messages failed in the last minutes (see `timings.MINUTES`), and the last failure."""
    first = now // MINUTE - MINUTES + 1
    count, last = 0, None
    for failures in brokers:
        count += sum(many for minute, many in failures.minutes.items() if minute >= first)
        for group in failures.groups.values():
            if last is None or group.last_at > last.last_at:
                last = group
    return count, last


def last_death(brokers: Iterable[QueueFailures]) -> tuple[int, str]:
    """When a message last died and of what; 0 if that is not known."""
    return max(((failures.died_at, failures.died_of) for failures in brokers), default=(0, ""))


def grouped(brokers: Iterable[QueueFailures], now: int) -> list[FailureGroup]:
    """The groups of the last hour, the one that failed last first."""
    groups: dict[str, Group] = {}
    for failures in brokers:
        for key, group in failures.groups.items():
            if group.last_at > now - WINDOW * MINUTE:
                known = groups.get(key, group)
                error = group.error if group.last_at >= known.last_at else known.error
                count = group.count if known is group else known.count + group.count
                first = min(known.first_at, group.first_at)
                groups[key] = Group(error, count, first, max(known.last_at, group.last_at))
    order = sorted(groups.values(), key=lambda group: group.last_at, reverse=True)
    return [FailureGroup(one.error, one.count, moment(one.first_at), moment(one.last_at)) for one in order]
