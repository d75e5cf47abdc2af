# Generated from ../_async/message.py by `make generate`: change that file.
"""A message in the hands of its reader: ack, release, extend."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

from miniq.client.delivery import HELD, Delivery
from miniq.errors import MiniQError

if TYPE_CHECKING:
    from miniq.client._sync.queue import Queue  # noqa: F401  named in a text below


class Message(Delivery["Queue"]):
    """A message that was received, or looked at.

    `with message:` acks it on success and releases it on an exception, unless that was done by hand.
    """

    __slots__ = ()

    def ack(self) -> bool:
        """It was processed: remove it. False if it was gone already; `StaleReceipt` if somebody else has it."""
        return self._acked(self._from._perform(self._ack()))

    def release(self, delay: float = 0) -> None:
        """Give it back, ready again at once or after `delay` seconds."""
        self._released(self._from._perform(self._release(delay)))

    def extend(self, seconds: float | None = None) -> datetime:
        """Let the lease end so many seconds from now (the queue's visibility timeout), and say when that is."""
        return self._extended(self._from._perform(self._extend(seconds)))

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._state is not HELD:
            return
        if error is None:
            self.ack()
            return
        try:
            self.release()
        except MiniQError as problem:
            self._not_released(error, problem)
