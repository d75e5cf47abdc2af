"""The worker loop of the async client: coroutine handlers run as tasks, functions in threads.

The loop runs in a task of its own, so that cancelling `consume` (as Ctrl-C does under `asyncio.run`) lets running
handlers finish; cancelling it a second time does not wait for them.
"""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING

from miniq.client.delivery import HELD
from miniq.errors import StoreUnavailable
from miniq.worker import plan as rules
from miniq.worker.plan import LOOK, Backoff, Plan, Shift

if TYPE_CHECKING:
    from miniq.client._async.message import AsyncMessage
    from miniq.client._async.queue import AsyncQueue


class TaskWorker:
    """One run of `AsyncQueue.consume`."""

    def __init__(self, queue: AsyncQueue, plan: Plan) -> None:
        self._queue = queue
        self._plan = plan
        self._shift: Shift[AsyncMessage] = Shift(plan)
        self._handlers: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._pool = None if plan.is_coroutine else ThreadPoolExecutor(plan.concurrency, "miniq-worker")
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Work until stopped or cancelled; raise the error that ended it, if any."""
        life = asyncio.create_task(self._live())
        try:
            await asyncio.wait({life})
        except asyncio.CancelledError:
            self._shift.ending = True
            try:
                await asyncio.wait({life})
            except asyncio.CancelledError:
                life.cancel()
                await asyncio.wait({life})
                raise
            raise
        life.result()
        if self._error is not None:
            raise self._error

    async def _live(self) -> None:
        """Fetch until stopped, release what was not started, wait for the handlers."""
        try:
            try:
                await self._fetch_until_stopped()
            finally:
                for batch in self._shift.end():
                    try:
                        await self._queue.release(batch)
                    except Exception as problem:
                        rules.note_unsettled(batch[0], "release", problem)
                if self._handlers:
                    await asyncio.wait(self._handlers)
        except asyncio.CancelledError:
            for task in self._handlers:
                task.cancel()
            raise
        finally:
            if self._keeper is not None:
                self._keeper.cancel()
            await asyncio.gather(*self._handlers, *([self._keeper] if self._keeper else []), return_exceptions=True)
            if self._pool is not None:
                self._pool.shutdown(wait=False)

    async def _fetch_until_stopped(self) -> None:
        plan, timeout, backoff, fetched = self._plan, self._plan.visibility_timeout, Backoff(), False
        while not (plan.stopped() or self._shift.ending):
            wanted = self._shift.wanted()
            try:
                if fetched and self._keeper is None:
                    # Only now, because the queue may not exist before its first message.
                    timeout = timeout or (await self._queue.info()).settings.visibility_timeout
                    self._keeper = asyncio.create_task(self._keep(rules.check_lease(timeout) / 3))
                messages = await self._queue.receive(wanted, plan.wait, timeout, plan.consumer) if wanted else []
            except StoreUnavailable as error:
                await asyncio.sleep(backoff.failed(error))
                continue
            backoff.worked()
            if messages:
                fetched = True
                self._shift.add(messages)
                self._start()
            elif not wanted and self._handlers:  # all may have finished while the settings were fetched
                await asyncio.wait(self._handlers, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)

    def _start(self) -> None:
        """Start waiting messages while handlers are free."""
        while (message := self._shift.start()) is not None:
            task = asyncio.create_task(self._work(message))
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)

    async def _keep(self, every: float) -> None:
        """Extend all leases at regular intervals."""
        while True:
            await asyncio.sleep(every)
            for batch in self._shift.held():
                try:
                    rules.note_lost(batch, await self._queue.extend(batch, 3 * every))
                except Exception as problem:
                    rules.note_unextended(len(batch), problem)

    async def _work(self, message: AsyncMessage) -> None:
        try:
            await self._work_on(message)
        finally:
            self._shift.finish(message)
            self._start()

    async def _work_on(self, message: AsyncMessage) -> None:
        verb = "ack"
        try:
            await self._call(message)
        except Exception as error:
            rules.note_failure(message, error)
            verb = "release"
        except asyncio.CancelledError:
            if self._pool is not None:
                raise  # a thread cannot be cancelled: it keeps the message until the lease runs out
            verb = "release"
        except BaseException as error:
            self._error = self._error or error
            self._shift.ending = True
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

    async def _call(self, message: AsyncMessage) -> None:
        handler, argument = self._plan.handler, self._plan.argument(message)
        if self._pool is None:
            await handler(argument)
            return
        run = copy_context().run
        result = await asyncio.get_running_loop().run_in_executor(self._pool, run, handler, argument)
        if inspect.isawaitable(result):
            await result
