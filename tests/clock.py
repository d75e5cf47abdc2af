"""A clock that stands still until a test moves it: leases, delays and time limits are tested without sleeping."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from itertools import count

from miniq.message import SECOND

START = 1_800_000_000 * SECOND
"""Any moment will do; a fixed one makes a failure repeatable."""


class FrozenTimer:
    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class FrozenClock:
    """A `miniq.broker.clock.Clock` whose time passes by `advance` alone."""

    def __init__(self, start: int = START) -> None:
        self._now = start
        self._timers: list[tuple[int, int, FrozenTimer]] = []
        self._serial = count()
        self.ahead = 0.0
        """Seconds by which the computer's clock was set forward."""

    def now(self) -> int:
        return self._now

    def wall(self) -> int:
        return self._now + round(self.ahead * SECOND)

    def call_at(self, moment: int, callback: Callable[[], None]) -> FrozenTimer:
        timer = FrozenTimer(callback)
        if moment <= self._now:
            # As with the real clock, never inside the caller's own stack.
            asyncio.get_running_loop().call_soon(timer.fire)
        else:
            heapq.heappush(self._timers, (moment, next(self._serial), timer))
        return timer

    def advance(self, seconds: float) -> None:
        """Let time pass; what falls due on the way is called back in its order, each at its own moment."""
        end = self._now + round(seconds * SECOND)
        while self._timers and self._timers[0][0] <= end:
            moment, _, timer = heapq.heappop(self._timers)
            self._now = max(self._now, moment)
            timer.fire()
        self._now = end
