"""When to retry a call: at once, after a pause, or not at all. No I/O."""

from __future__ import annotations

import random

from miniq.api.operation import Call
from miniq.client.exchange import Exchange, Retryable

FIRST = 0.05
SLOWEST = 2.0
REMEMBERED = 240.0
"""Seconds for which a send that may have been carried out is repeated at most: the broker remembers an idempotency key
for five minutes, and after that would add the messages again."""


class Retries:
    """The further attempts of one call. Their time begins with the first failure, not with the call, so that a long
    poll is retried as well."""

    def __init__(self, exchange: Exchange, seconds: float, began: float) -> None:
        self._exchange = exchange
        self._call: Call[object] = exchange.call
        self._seconds = seconds
        self._began = self._attempt = began
        self._doubtful: float | None = None
        """When the first attempt that may have been carried out began."""
        self._first: float | None = None
        self._pause = FIRST

    def pause(self, failure: Retryable, now: float) -> float:
        """Seconds until the next attempt, which `again` prepares; raises the error if there is to be none."""
        exchange = self._exchange
        exchange.doubtful = exchange.doubtful or failure.heard
        if failure.heard and self._doubtful is None:
            self._doubtful = self._attempt
        if failure.final or (failure.heard and exchange.operation.repeat == "once"):
            raise failure.error from failure.__cause__
        if failure.stale:
            return 0
        if self._first is None:
            self._first = now
        left = self._first + self._seconds - now
        if self._doubtful is not None and exchange.operation.repeat == "named":
            left = min(left, self._doubtful + REMEMBERED - now)
        if left <= 0:
            raise failure.error from failure.__cause__
        pause = min(self._pause * random.uniform(0.5, 1), left)  # noqa: S311  not for secrets
        self._pause = min(2 * self._pause, SLOWEST)
        return pause

    def again(self, now: float) -> None:
        """Prepare the exchange to be sent again."""
        self._attempt = now
        self._exchange.shorten(self._call, now - self._began)
