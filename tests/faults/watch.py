"""What a drill observes beside the promises: slow calls, gaps without a delivery, the database's slow statements."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import Struct

SLOW_STATEMENT = 0.2
"""Seconds from which on a statement is slow."""
POSTGRESQL = f"log_min_duration_statement = {round(SLOW_STATEMENT * 1000)}\nlog_line_prefix = ''"
"""Settings with which a server writes its slow statements to its log."""


class Span(Struct):
    """From when until when, by the monotonic clock."""

    begins: float
    ends: float

    def overlaps(self, other: Span) -> bool:
        return self.begins < other.ends and other.begins < self.ends


class Watch:
    """The calls and deliveries of all clients of a drill."""

    def __init__(self) -> None:
        self.calls = 0
        self._slowest: list[tuple[float, str, Span]] = []
        self._deliveries: list[float] = []
        self._expected: list[Span] = []
        self.down: list[Span] = []
        """When the database was down."""

    def called(self, what: str, began: float, wait: float = 0) -> None:
        """A call ended now that was to wait this long."""
        now = time.monotonic()
        self.calls += 1
        self._slowest.append((now - began - wait, what, Span(began, now)))
        if len(self._slowest) > 2000:
            self._slowest = sorted(self._slowest, key=lambda call: -call[0])[:1000]

    def delivered(self) -> None:
        self._deliveries.append(time.monotonic())

    def expect(self) -> None:
        """From now on there is always something to deliver."""
        self._expected.append(Span(time.monotonic(), float("inf")))

    def rest(self) -> None:
        """No longer."""
        self._expected[-1].ends = time.monotonic()

    def slowest(self) -> tuple[float, str]:
        """The slowest call that the database was up for all the time, in seconds, and what it was."""
        return max(
            (
                (max(0.0, seconds), what)
                for seconds, what, span in self._slowest
                if not any(span.overlaps(down) for down in self.down)
            ),
            default=(0.0, ""),
        )

    def gap(self) -> float:
        """The longest time without a delivery, while there was something to deliver and the database was up."""
        return max((gap for expected in self._expected for gap in self._gaps(expected)), default=0.0)

    def _gaps(self, expected: Span) -> Iterator[float]:
        moments = [moment for moment in self._deliveries if expected.begins < moment < expected.ends]
        for begins, ends in pairwise([expected.begins, *moments, expected.ends]):
            gap = Span(begins, ends)
            for down in self.down:
                if down.overlaps(gap):
                    yield down.begins - gap.begins
                    gap = Span(min(down.ends, ends), ends)
            yield gap.ends - gap.begins


class Statement(Struct, frozen=True):
    """A statement that took long."""

    name: str
    seconds: float


class SlowLog:
    """The slow statements in the log of a server, from a moment on."""

    def __init__(self, path: Path, read: Callable[[str], Iterator[Statement]]) -> None:
        self._path = path
        self._read = read
        self._begin = path.stat().st_size

    def statements(self) -> list[Statement]:
        with self._path.open("rb") as file:
            file.seek(self._begin)
            text = file.read().decode(errors="replace")
        return list(self._read(text))


_DURATION = re.compile(r"^LOG:  duration: ([\d.]+) ms  (?:\w+ \S+: |statement: )?(?:/\* miniq:(\w+) \*/)?(.*)$", re.M)


def of_postgresql(text: str) -> Iterator[Statement]:
    """The statements in a log of PostgreSQL. Those of the store are named in a comment."""
    for found in _DURATION.finditer(text):
        yield Statement(found[2] or found[3].strip()[:40], float(found[1]) / 1000)


def of_mongodb(text: str) -> Iterator[Statement]:
    """The commands in a log of MongoDB. A change stream that waits is not slow."""
    for line in text.splitlines():
        if '"Slow query"' not in line:
            continue
        told: dict[str, Any] = json.loads(line)["attr"]
        command: dict[str, Any] = told.get("command", {})
        seconds = told.get("durationMillis", 0) / 1000
        if seconds < SLOW_STATEMENT or "$changeStream" in line or "hello" in command:
            continue
        verb = next(iter(command), told.get("type", ""))
        if verb in ("q", "u"):  # one update or delete of several, logged alone
            verb = told.get("type", "update")
        yield Statement(f"{verb} {str(told.get('ns', '')).partition('.')[2]}", seconds)


def summary(statements: list[Statement]) -> str:
    """How many there were of each, and the longest."""
    times = Counter(statement.name for statement in statements)
    return ", ".join(
        f"{count} of `{name}` (≤ {max(one.seconds for one in statements if one.name == name):.2f} s)"
        for name, count in times.most_common()
    )
