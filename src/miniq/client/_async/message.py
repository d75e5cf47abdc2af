"""A message in the hands of its reader: ack, release, extend."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

from miniq.client.delivery import HELD, Delivery
from miniq.errors import MiniQError

if TYPE_CHECKING:
    from miniq.client._async.queue import AsyncQueue  # noqa: F401  named in a text below


class AsyncMessage(Delivery["AsyncQueue"]):
    """A message that was received, or looked at.

    `async with message:` acks it on success and releases it on an exception, unless that was done by hand.
    """

    __slots__ = ()

    async def ack(self) -> bool:
        """It was processed: remove it. False if it was gone already; `StaleReceipt` if somebody else has it."""
        return self._acked(await self._from._perform(self._ack()))

    async def release(self, delay: float = 0) -> None:
        """Give it back, ready again at once or after `delay` seconds."""
        self._released(await self._from._perform(self._release(delay)))

    async def extend(self, seconds: float | None = None) -> datetime:
        """Let the lease end so many seconds from now (the queue's visibility timeout), and say when that is."""
        return self._extended(await self._from._perform(self._extend(seconds)))

    async def __aenter__(self) -> AsyncMessage:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._state is not HELD:
            return
        if error is None:
            await self.ack()
            return
        try:
            await self.release()
        except MiniQError as problem:
            self._not_released(error, problem)
