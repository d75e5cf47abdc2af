"""The counters of Dramatiq's rate limiters and barriers, kept like results: each change is made only if the counter is
still what it was."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dramatiq.rate_limits import RateLimiterBackend

from miniq.client._sync.client import Client
from miniq.client.keeping import Keeping, id_of
from miniq.dramatiq.connection import URL, Connection, connection_errors
from miniq.dramatiq.results import SECONDS, WAIT, seconds
from miniq.result import Progress


class MiniQRateLimiterBackend(RateLimiterBackend):
    """A backend for Dramatiq's rate limiters, barriers and `GroupCallbacks`.

    Parameters:
      url: The address of a MiniQ server, or a store for a single process, as in `miniq.connect`.
      queue: The queue that keeps the counters as results. It is created, and holds no messages.
      client: A client to use instead of `url`.
      **options: Those of `miniq.connect`, such as `api_key`.
    """

    def __init__(
        self, url: str = URL, *, queue: str = "dramatiq.limits", client: Client | None = None, **options: Any
    ) -> None:
        connection = Connection(url, client, options)
        self._kept = Keeping(lambda: connection.client, queue, SECONDS)

    def add(self, key: str, value: int, ttl: int) -> bool:
        with connection_errors():
            return self._kept.put(id_of(key), b"%d" % value, seconds(ttl), new=True)

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        return self._change(key, lambda value: value + amount if value + amount <= maximum else None, ttl)

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        return self._change(key, lambda value: value - amount if value - amount >= minimum else None, ttl)

    def incr_and_sum(self, key: str, keys: Callable[[], list[str]], amount: int, maximum: int, ttl: int) -> bool:
        def change(value: int) -> int | None:
            if value + amount > maximum:
                return None
            others = (self._kept.get(id_of(other)) for other in keys())
            total = amount + sum(_value(found) for found in others)
            return None if total > maximum else value + amount

        return self._change(key, change, ttl)

    def wait(self, key: str, timeout: int | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        while True:
            left = WAIT if deadline is None else min(WAIT, max(0.0, deadline - time.monotonic()))
            with connection_errors():
                if self._kept.get(id_of(key), left) is not None:
                    return True
            if deadline is not None and time.monotonic() >= deadline:
                return False

    def wait_notify(self, key: str, ttl: int) -> None:
        with connection_errors():
            self._kept.put(id_of(key), b"1", seconds(ttl))

    def _change(self, key: str, change: Callable[[int], int | None], ttl: int) -> bool:
        """Change a counter, unless the change is not allowed; counters begin with 0."""
        id = id_of(key)
        with connection_errors():
            while True:
                was = self._kept.get(id)
                value = change(_value(was))
                if value is None:
                    return False
                if self._kept.put(id, b"%d" % value, seconds(ttl), was=was, new=was is None):
                    return True


def _value(found: Progress | None) -> int:
    return 0 if found is None or found.result is None else int(found.result)
