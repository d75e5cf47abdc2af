"""The broker's clock. Nothing else in MiniQ reads the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from miniq.message import SECOND


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    def now(self) -> int:
        """Microseconds since 1970 UTC; never goes backwards."""
        ...

    def wall(self) -> int:
        """The same as the computer's clock shows it, which may be set forward and back: for schedules."""
        ...

    def call_at(self, moment: int, callback: Callable[[], None]) -> Timer:
        """Run `callback` in the event loop's thread at `moment`."""
        ...


class SystemClock:
    """Wall time at start, advanced by the monotonic clock: a jump of the wall clock neither shortens nor prolongs
    leases while the broker runs."""

    def __init__(self) -> None:
        # A preemption between the two readings would put the clock off for good, and leases from before a restart
        # would end early. So of several pairs of readings the closest one is used.
        self._offset = min(_wall_offset() for _ in range(20))[1]

    def now(self) -> int:
        return (self._offset + time.monotonic_ns()) // 1000

    def wall(self) -> int:
        return time.time_ns() // 1000

    def call_at(self, moment: int, callback: Callable[[], None]) -> Timer:
        delay = max(0, moment - self.now()) / SECOND
        return asyncio.get_running_loop().call_later(delay, callback)


def _wall_offset() -> tuple[int, int]:
    """How long the readings took, and how far the wall clock is ahead of the monotonic clock, in nanoseconds."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return after - before, wall - (before + after) // 2
