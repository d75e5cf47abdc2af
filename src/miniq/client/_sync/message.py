# Generated from ../_async/message.py by `make generate`: change that file.
"""A message with what a consumer does with it: ack, release, extend."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING

from miniq.api.operations import Ack, Extend, Release
from miniq.client.delivery import HELD, SETTLED, Delivery, check_held, moment
from miniq.errors import MessageNotFound, MiniQError, StaleReceipt

if TYPE_CHECKING:
    from miniq.client._sync.queue import Queue  # noqa: F401  used in a string below


class Message(Delivery["Queue"]):
    """A message that was received, or peeked at.

    `with message:` acks it on success and releases it on an exception, unless that was done by hand.
    """

    __slots__ = ()

    def ack(self) -> bool:
        """Remove the message after processing. False if it was removed before; `StaleReceipt` if the lease was lost."""
        [outcome] = self._from._perform(Ack(self.queue, [self._lease()]))
        self._state = SETTLED
        if outcome != "missing":
            check_held(outcome, self.queue, self.id)
        return outcome == "done"

    def release(self, delay: float = 0) -> None:
        """Return it to the queue, ready at once or after `delay` seconds."""
        [outcome] = self._from._perform(Release(self.queue, [self._lease()], delay))
        self._state = SETTLED
        check_held(outcome, self.queue, self.id)

    def extend(self, seconds: float | None = None) -> datetime:
        """Extend the lease to that many seconds from now (default: the queue's visibility timeout); returns its end."""
        reply = self._from._perform(Extend(self.queue, [self._lease()], seconds))
        self._renewed(reply.outcomes[0], reply.until)
        check_held(reply.outcomes[0], self.queue, self.id)
        return moment(reply.until)

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
        except (StaleReceipt, MessageNotFound):
            pass
        except MiniQError as problem:  # the handler's exception matters more
            error.add_note(f"message {self.id} could not be released: {problem}")
