"""When to try a call again: at once, after a while, or no more. No I/O."""

from __future__ import annotations

import random

from miniq.api.operation import Call
from miniq.client.exchange import Exchange, Retryable

FIRST = 0.05
SLOWEST = 2.0
REMEMBERED = 240.0
"""Seconds for which a send that may have been carried out is repeated at most: the broker knows the name of a call
again for five minutes, and after that it would add the messages once more."""


class Retries:
    """The further attempts of one call. The time for them begins with the first trouble, not with the call, so
    that a long poll has them too."""

    def __init__(self, exchange: Exchange, seconds: float, began: float) -> None:
        self._exchange = exchange
        self._call: Call[object] = exchange.call
        self._seconds = seconds
        self._began = self._attempt = began
        self._doubtful: float | None = None
        """When the first attempt began that may have been carried out."""
        self._first: float | None = None
        self._pause = FIRST

    def pause(self, trouble: Retryable, now: float) -> float:
        """Seconds until the next attempt, which `again` prepares; raises the error if there is none."""
        exchange = self._exchange
        exchange.doubtful = exchange.doubtful or trouble.heard
        if trouble.heard and self._doubtful is None:
            self._doubtful = self._attempt
        if trouble.final or (trouble.heard and exchange.operation.repeat == "once"):
            raise trouble.error from trouble.__cause__
        if trouble.stale:
            return 0
        if self._first is None:
            self._first = now
        left = self._first + self._seconds - now
        if self._doubtful is not None and exchange.operation.repeat == "named":
            left = min(left, self._doubtful + REMEMBERED - now)
        if left <= 0:
            raise trouble.error from trouble.__cause__
        pause = min(self._pause * random.uniform(0.5, 1), left)  # noqa: S311  no secret
        self._pause = min(2 * self._pause, SLOWEST)
        return pause

    def again(self, now: float) -> None:
        """Make the exchange ready to be sent once more."""
        self._attempt = now
        self._exchange.shorten(self._call, now - self._began)
