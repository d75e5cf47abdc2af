"""A message with what a consumer does with it: ack, release, fail, extend."""

from __future__ import annotations

from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from miniq.api.operations import Ack, Extend, Fail, Release
from miniq.client.delivery import ACKED, FAILED, HELD, RELEASED, Delivery, check_held, moment, of_single_lease, settle
from miniq.client.failure import Reject, error_text
from miniq.client.interrupts import async_shield
from miniq.errors import MessageNotFound, MiniQError, StaleReceipt, TooLarge

if TYPE_CHECKING:
    from miniq.client._async.queue import AsyncQueue  # noqa: F401  used in a string below


class AsyncMessage(Delivery["AsyncQueue"]):
    """A message that was received, or peeked at.

    `async with message:` acks it on success and fails it on an exception, unless that was done by hand. An exception
    that is not an error, such as KeyboardInterrupt, releases it.
    """

    __slots__ = ()

    async def ack(self, result: Any = UNSET) -> bool:
        """Remove the message after processing. `result` is any JSON value, which `queue.result` returns for as long as
        the queue keeps results. False if it was removed before; `StaleReceipt` if the lease was lost."""
        try:
            [outcome] = await self._from._perform(Ack(self.queue, [self._acked_lease(result)]))
        except TooLarge as error:
            raise of_single_lease(error) from None
        settle([self], [outcome], ACKED)
        if outcome != "missing":
            check_held(outcome, self.queue, self.id)
        return outcome == "done"

    async def release(self, delay: float = 0, unused: bool = False) -> None:
        """Return it to the queue, ready at once or after `delay` seconds. With `unused` the receive does not count:
        nothing was done with it."""
        [outcome] = await self._from._perform(Release(self.queue, [self._lease()], delay, unused))
        settle([self], [outcome], RELEASED)
        check_held(outcome, self.queue, self.id)

    async def fail(self, error: str | BaseException, delay: float | None = None, dead: bool = False) -> bool:
        """Report that it could not be processed, and why. It is ready again after `delay` seconds, by default as the
        queue's `retry` says; with `dead`, or once it has reached `max_receives`, it goes to the dead-letter queue.
        Returns whether it will be tried again."""
        [failed] = await self._from._perform(Fail(self.queue, [self._lease()], error_text(error), delay, dead))
        settle([self], [failed.outcome], FAILED)
        if failed.outcome == "stale" or failed.outcome == "missing":
            check_held(failed.outcome, self.queue, self.id)
        return failed.outcome == "retried"

    async def extend(self, seconds: float | None = None) -> datetime:
        """Extend the lease to that many seconds from now (default: the queue's visibility timeout); returns its end."""
        reply = await self._from._perform(Extend(self.queue, [self._lease()], seconds))
        self._renewed(reply.outcomes[0], reply.until)
        check_held(reply.outcomes[0], self.queue, self.id)
        return moment(reply.until)

    async def __aenter__(self) -> AsyncMessage:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._state is not HELD:
            return
        with async_shield:
            if error is None:
                await self.ack()
                return
            try:
                if isinstance(error, Exception):
                    await self.fail(error, dead=isinstance(error, Reject))
                else:
                    await self.release()
            except (StaleReceipt, MessageNotFound):
                pass
            except MiniQError as problem:  # the handler's exception matters more
                error.add_note(f"message {self.id} could not be returned to its queue: {problem}")
