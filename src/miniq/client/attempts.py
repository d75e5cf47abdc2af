"""Attempts until a call comes through, for callers that block and for event loops, whatever the wire."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from time import monotonic
from typing import Any, TypeVar, cast

from miniq.client.calls import Call, may_wait, unanswered_poll
from miniq.client.exchange import Exchange, Retryable
from miniq.client.retries import Retries
from miniq.errors import Closed, InvalidRequest

T = TypeVar("T")


class Attempts(ABC):
    """Performs calls of any thread."""

    def __init__(self, retry: float) -> None:
        self._retry = retry
        self._closed = threading.Event()

    @abstractmethod
    def _prepare(self, call: Call[Any]) -> Exchange:
        """A call, ready to be sent."""

    @abstractmethod
    def _attempt(self, exchange: Any, now: float) -> object:
        """Send a call and read its answer; `Retryable` if that may go better the next time."""

    def perform(self, call: Call[T]) -> T:
        exchange = self._prepare(call)
        began = now = monotonic()
        retries: Retries | None = None
        while True:
            if self._closed.is_set():
                raise Closed("the client is closed")
            try:
                return cast(T, self._attempt(exchange, now))
            except Retryable as trouble:
                if self._closed.is_set():
                    if may_wait(call):
                        return cast(T, unanswered_poll(call))
                    raise Closed("the client is closed") from None
                retries = retries or Retries(exchange, self._retry, began)
                pause = retries.pause(trouble, monotonic())
            if pause:
                self._closed.wait(pause)
            now = monotonic()
            retries.again(now)


class AsyncAttempts(ABC):
    """Performs calls in the event loop it was made in."""

    def __init__(self, retry: float) -> None:
        self._retry = retry
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()

    @abstractmethod
    def _prepare(self, call: Call[Any]) -> Exchange:
        """A call, ready to be sent."""

    @abstractmethod
    async def _attempt(self, exchange: Any, now: float) -> object:
        """Send a call and read its answer; `Retryable` if that may go better the next time."""

    async def perform(self, call: Call[T]) -> T:
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidRequest("client: it belongs to another event loop; connect in this one", field="client")
        exchange = self._prepare(call)
        began = now = monotonic()
        retries: Retries | None = None
        while True:
            if self._closed.is_set():
                raise Closed("the client is closed")
            try:
                return cast(T, await self._attempt(exchange, now))
            except Retryable as trouble:
                if self._closed.is_set():
                    if may_wait(call):
                        return cast(T, unanswered_poll(call))
                    raise Closed("the client is closed") from None
                retries = retries or Retries(exchange, self._retry, began)
                pause = retries.pause(trouble, monotonic())
            if pause:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), pause)
            now = monotonic()
            retries.again(now)
