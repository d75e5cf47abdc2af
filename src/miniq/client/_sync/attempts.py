# Generated from ../_async/attempts.py by `make generate`: change that file.
"""Repeats a call until it succeeds or fails for good, over any wire."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from time import monotonic
from typing import Any, TypeVar, cast

from miniq.api.operation import Call
from miniq.client.exchange import Exchange, Retryable
from miniq.client.interrupts import shield
from miniq.client.pauses import pause
from miniq.client.retries import Retries
from miniq.errors import Closed

T = TypeVar("T")


class Attempts(ABC):
    """Performs calls on a server: from any thread, or in the event loop it was created in."""

    def __init__(self, retry: float) -> None:
        self._retry = retry
        self._closed = threading.Event()

    @abstractmethod
    def _prepare(self, call: Call[Any]) -> Exchange:
        """A call, encoded."""

    @abstractmethod
    def _attempt(self, exchange: Any, now: float) -> object:
        """Send a call and read its reply; `Retryable` if another attempt may succeed."""

    def perform(self, call: Call[T]) -> T:
        with shield:
            return cast(T, self._repeat(self._prepare(call)))

    def _repeat(self, exchange: Exchange) -> object:
        began = now = monotonic()
        retries: Retries | None = None
        while True:
            if self._closed.is_set():
                raise Closed("the client is closed")
            try:
                return self._attempt(exchange, now)
            except Retryable as failure:
                if self._closed.is_set():
                    if exchange.operation.long_poll:
                        return exchange.nothing
                    raise Closed("the client is closed") from None
                retries = retries or Retries(exchange, self._retry, began)
                seconds = retries.pause(failure, monotonic())
            if seconds:
                pause(self._closed, seconds)
            now = monotonic()
            retries.again(now)
