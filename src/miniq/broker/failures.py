"""Why messages of each queue failed in the last hour: how many by minute, and their errors in groups.

A consumer's report, a lease that expired and the death of a message are failures. Errors whose first lines differ only
in numbers and ids are one group. Memory is bounded: the last `MOST_GROUPS` groups of a queue, with errors of up to
`ERROR_SIZE` characters, and the last queues with failures: `MAX_QUEUES`, or fewer if their groups take `MOST_BYTES`.
Brokers that share a store tell each other (`sharing.py`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from msgspec import Struct, field

from miniq.broker.timings import MINUTE, MINUTES
from miniq.failure import FailureGroup
from miniq.message import LEASE_EXPIRED, moment

WINDOW = 60
"""Minutes for which failures are shown."""
MOST_GROUPS = 20
MAX_QUEUES = 1000
MOST_BYTES = 16 * 1024 * 1024
"""Memory of the groups of all queues."""
GROUP_BYTES = 350
"""What a group takes besides its texts."""
ERROR_SIZE = 1000
"""Characters of an error that are kept; of a longer one, `BEGINNING` characters and the end."""
BEGINNING = 300
LONGEST = 200
"""Characters of a first line that tell two errors apart, and that statistics show."""
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


def first_line(error: str) -> str:
    """The first line of an error, cut to `LONGEST` characters."""
    line = error.strip().split("\n", 1)[0]
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"


def shortened(error: str) -> str:
    """An error of at most `ERROR_SIZE` characters: the beginning and the end of a longer one."""
    if len(error) > ERROR_SIZE:
        error = error.strip()
    if len(error) > ERROR_SIZE:
        error = f"{error[:BEGINNING]}…{error[BEGINNING + 1 - ERROR_SIZE :]}"
    return error


def _size(key: str, group: Group) -> int:
    """The memory of a group; a character takes up to four bytes."""
    return sys.getsizeof(key) + sys.getsizeof(group.error) + GROUP_BYTES


class Failures:
    """The failures that a broker has seen."""

    def __init__(self) -> None:
        self.queues: dict[str, QueueFailures] = {}
        self.changes = 0
        self.size = 0
        """The memory of all groups, in bytes."""

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
        group = failures.groups.get(key)
        if group is not None:
            self._remove(failures, key)
        elif len(failures.groups) >= MOST_GROUPS:
            self._remove(failures, next(iter(failures.groups)))
        before, first = (0, now) if group is None else (group.count, group.first_at)
        group = Group(shortened(error), before + count, first, now)
        failures.groups[key] = group  # the newest is last
        self.size += _size(key, group)
        while self.size > MOST_BYTES:
            self.forget(next(iter(self.queues)))

    def died(self, queue: str, error: str | None, now: int) -> None:
        """Messages became dead letters."""
        self.changes += 1
        failures = self._queue(queue)
        failures.died_at, failures.died_of = now, first_line(error or "")

    def expired(self, queue: str, now: int) -> int:
        """How many leases expired in the last minutes, about: attempts that were not settled."""
        failures = self.queues.get(queue)
        group = None if failures is None else failures.groups.get(LEASE_EXPIRED)
        return 0 if group is None or group.last_at <= now - MINUTES * MINUTE else group.count

    def forget(self, queue: str) -> None:
        """A queue was deleted, or others have failed since."""
        failures = self.queues.pop(queue, None)
        if failures is not None:
            self.size -= sum(_size(key, group) for key, group in failures.groups.items())

    def _remove(self, failures: QueueFailures, key: str) -> None:
        self.size -= _size(key, failures.groups.pop(key))

    def _queue(self, queue: str) -> QueueFailures:
        failures = self.queues.pop(queue, None)
        if failures is None:
            if len(self.queues) >= MAX_QUEUES:
                self.forget(next(iter(self.queues)))
            failures = QueueFailures()
        self.queues[queue] = failures
        return failures


def recent(brokers: Iterable[QueueFailures], now: int) -> tuple[int, tuple[int, str] | None]:
    """How many messages failed in the last minutes (see `timings.MINUTES`), and when the last one, with the first line
    of its error."""
    first = now // MINUTE - MINUTES + 1
    count, last = 0, None
    for failures in brokers:
        count += sum(many for minute, many in failures.minutes.items() if minute >= first)
        for group in failures.groups.values():
            if last is None or group.last_at > last.last_at:
                last = group
    return count, None if last is None else (last.last_at, first_line(last.error))


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
