"""The one clock of a broker. Nothing else in MiniQ asks what time it is."""

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
        """The present moment; it never goes back while the clock exists."""
        ...

    def call_at(self, moment: int, callback: Callable[[], None]) -> Timer:
        """Call back in the event loop's thread once `moment` has come."""
        ...


class SystemClock:
    """Wall time at start, advanced by the monotonic clock: a jump of the wall clock while the broker
    runs neither ends leases early nor keeps them."""

    def __init__(self) -> None:
        # A busy machine may do something else between two readings, and the clock would be wrong by that for good:
        # leases from before a restart would end early. So the two that were closest of some count.
        self._offset = min(_compare() for _ in range(20))[1]

    def now(self) -> int:
        return (self._offset + time.monotonic_ns()) // 1000

    def call_at(self, moment: int, callback: Callable[[], None]) -> Timer:
        delay = max(0, moment - self.now()) / SECOND
        return asyncio.get_running_loop().call_later(delay, callback)


def _compare() -> tuple[int, int]:
    """How long the readings took, and how far the wall clock is ahead of the monotonic one."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    after = time.monotonic_ns()
    return after - before, wall - (before + after) // 2
