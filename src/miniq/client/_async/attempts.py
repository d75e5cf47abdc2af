"""Repeats a call until it succeeds or fails for good, over any wire."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from time import monotonic
from typing import Any, TypeVar, cast

from miniq.api.operation import Call
from miniq.client._async.transport import foreign_loop  # async only
from miniq.client.exchange import Exchange, Retryable
from miniq.client.interrupts import async_shield
from miniq.client.pauses import async_pause
from miniq.client.retries import Retries
from miniq.errors import Closed

T = TypeVar("T")


class AsyncAttempts(ABC):
    """Performs calls on a server: from any thread, or in the event loop it was created in."""

    def __init__(self, retry: float) -> None:
        self._retry = retry
        self._loop = asyncio.get_running_loop()  # async only
        self._closed = asyncio.Event()

    @abstractmethod
    def _prepare(self, call: Call[Any]) -> Exchange:
        """A call, encoded."""

    @abstractmethod
    async def _attempt(self, exchange: Any, now: float) -> object:
        """Send a call and read its reply; `Retryable` if another attempt may succeed."""

    async def perform(self, call: Call[T]) -> T:
        if asyncio.get_running_loop() is not self._loop:  # async only
            raise foreign_loop()  # async only
        with async_shield:
            return cast(T, await self._repeat(self._prepare(call)))

    async def _repeat(self, exchange: Exchange) -> object:
        began = now = monotonic()
        retries: Retries | None = None
        while True:
            if self._closed.is_set():
                raise Closed("the client is closed")
            try:
                return await self._attempt(exchange, now)
            except Retryable as failure:
                if self._closed.is_set():
                    if exchange.operation.long_poll:
                        return exchange.nothing
                    raise Closed("the client is closed") from None
                retries = retries or Retries(exchange, self._retry, began)
                seconds = retries.pause(failure, monotonic())
            if seconds:
                await async_pause(self._closed, seconds)
            now = monotonic()
            retries.again(now)
