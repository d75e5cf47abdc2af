"""The worker loop: one task or thread fetches, one extends leases, the others run handlers.

They catch every exception of an ack, release or extend: the message is delivered again anyway, and a thread that died
would go unnoticed.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from miniq.client.delivery import HELD
from miniq.client.pauses import async_pause, async_wait
from miniq.errors import StoreUnavailable
from miniq.worker import plan as rules
from miniq.worker.crews import AsyncCrew
from miniq.worker.plan import LOOK, Backoff, Plan, Shift

if TYPE_CHECKING:
    from miniq.client._async.message import AsyncMessage
    from miniq.client._async.queue import AsyncQueue


class AsyncWorker:
    """One run of `AsyncQueue.consume`."""

    def __init__(self, queue: AsyncQueue, plan: Plan) -> None:
        self._queue = queue
        self._plan = plan
        self._crew = AsyncCrew(plan)
        self._shift: Shift[AsyncMessage] = Shift(plan)
        self._lock = asyncio.Lock()
        """Guards `_shift`."""
        self._added = asyncio.Condition(self._lock)
        """Notified when there are messages to handle, and at the end."""
        self._finished = asyncio.Condition(self._lock)
        """Notified when a handler is free."""
        self._over = asyncio.Event()
        """Set when leases need no more extending."""
        self._is_keeping = False
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Work until stopped or interrupted; raise the error that ended it, if any."""
        try:
            await self._crew.run([*[self._handle] * self._plan.concurrency, self._fetch], self._end)
        finally:
            # Also after a second interruption: the leases of handlers that still run expire.
            self._end()
            self._over.set()
            await self._crew.finish()
        if self._error is not None:
            raise self._error

    def _end(self, error: BaseException | None = None) -> None:
        """Begin to end; the first error is raised by `run`."""
        self._error = self._error or error
        self._shift.ending = True

    async def _fetch(self) -> None:
        """Receive whenever a handler is free; release what was not started at the end."""
        try:
            await self._fetch_until_stopped()
        except BaseException as error:
            self._end(error)
        async with self._lock:
            batches = self._shift.end()
            self._added.notify_all()
        for batch in batches:
            try:
                await self._queue.release(batch)
            except Exception as problem:
                rules.note_unsettled(batch[0], "release", problem)

    async def _fetch_until_stopped(self) -> None:
        plan, timeout, backoff, fetched = self._plan, self._plan.visibility_timeout, Backoff(), False
        while not (plan.stopped() or self._shift.ending):
            async with self._lock:
                wanted = self._shift.wanted()
            try:
                if fetched and not self._is_keeping:
                    # Only now, because the queue may not exist before its first message.
                    timeout = timeout or (await self._queue.info()).settings.visibility_timeout
                    self._crew.start(partial(self._keep, rules.check_lease(timeout) / 3))
                    self._is_keeping = True
                messages = await self._queue.receive(wanted, plan.wait, timeout, plan.consumer) if wanted else []
            except StoreUnavailable as error:
                await async_pause(self._over, backoff.failed(error))
                continue
            backoff.worked()
            async with self._lock:
                if messages:
                    fetched = True
                    self._shift.add(messages)
                    self._added.notify(len(messages))
                elif not wanted and not self._shift.ending:
                    await async_wait(self._finished, LOOK)

    async def _keep(self, every: float) -> None:
        """Extend all leases at regular intervals."""
        await async_pause(self._over, every)
        while not self._over.is_set():
            async with self._lock:
                batches = self._shift.held()
            for batch in batches:
                try:
                    rules.note_lost(batch, await self._queue.extend(batch, 3 * every))
                except Exception as problem:
                    rules.note_unextended(len(batch), problem)
            await async_pause(self._over, every)

    async def _handle(self) -> None:
        """Handle one message after the other."""
        while (message := await self._next()) is not None:
            try:
                await self._work(message)
            finally:
                async with self._lock:
                    self._shift.finish(message)
                    self._finished.notify()

    async def _next(self) -> AsyncMessage | None:
        """The next message to handle; None at the end."""
        async with self._lock:
            while (message := self._shift.start()) is None and not self._shift.ending:
                await self._added.wait()
            return message

    async def _work(self, message: AsyncMessage) -> None:
        verb = "ack"
        try:
            await self._crew.call(message)
        except Exception as error:
            rules.note_failure(message, error)
            verb = "release"
        except asyncio.CancelledError:  # async only
            if not self._plan.is_coroutine:  # async only
                raise  # a thread cannot be cancelled: it keeps the message until the lease runs out  # async only
            verb = "release"  # async only
        except BaseException as error:
            self._end(None if isinstance(error, KeyboardInterrupt) else error)
            verb = "release"
        if message._state is not HELD:
            return
        try:
            if verb == "ack":
                await message.ack()
            else:
                await message.release(self._plan.retry_delay)
        except Exception as problem:
            rules.note_unsettled(message, verb, problem)
