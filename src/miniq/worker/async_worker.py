"""The worker loop of the client for event loops: handlers are tasks, plain functions run in threads.

The loop lives in a task of its own, so that cancelling `consume` (Ctrl-C under `asyncio.run` does that) lets
running handlers finish; cancelling it once more does not wait for them.
"""

from __future__ import annotations

import asyncio
import inspect
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING

from miniq.client.delivery import HELD
from miniq.worker.plan import (
    AWAY,
    LOOK,
    Backoff,
    Plan,
    Shift,
    check_lease,
    note_failure,
    note_lost,
    note_unextended,
    note_unsettled,
)

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
        """Work until stopped or cancelled; raise what ended it if that was an error."""
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
        """Fetch until stopped, give back what is left, wait for the handlers."""
        try:
            try:
                await self._fetch_until_stopped()
            finally:
                for portion in self._shift.end():
                    try:
                        await self._queue.release(portion)
                    except Exception as problem:
                        note_unsettled(portion[0], "release", problem)
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
                    # Asked only now because before its first message the queue may not exist.
                    timeout = timeout or (await self._queue.info()).settings.visibility_timeout
                    self._keeper = asyncio.create_task(self._keep(check_lease(timeout) / 3))
                messages = await self._queue.receive(wanted, plan.wait, timeout, plan.consumer) if wanted else []
            except AWAY as error:
                await asyncio.sleep(backoff.failed(error))
                continue
            backoff.worked()
            if messages:
                fetched = True
                self._shift.add(messages)
                self._start()
            elif not wanted and self._handlers:  # all may have finished while the queue was asked for its settings
                await asyncio.wait(self._handlers, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)

    def _start(self) -> None:
        """Give each free handler a message that waits."""
        while (message := self._shift.start()) is not None:
            task = asyncio.create_task(self._work(message))
            self._handlers.add(task)
            task.add_done_callback(self._handlers.discard)

    async def _keep(self, every: float) -> None:
        """Extend everything that is held, again and again."""
        while True:
            await asyncio.sleep(every)
            for portion in self._shift.held():
                try:
                    note_lost(portion, await self._queue.extend(portion, 3 * every))
                except Exception as problem:
                    note_unextended(len(portion), problem)

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
            note_failure(message, error)
            verb = "release"
        except asyncio.CancelledError:
            if self._pool is not None:
                raise  # a thread cannot be stopped: the message stays with it until its lease runs out
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
            note_unsettled(message, verb, problem)

    async def _call(self, message: AsyncMessage) -> None:
        handler, argument = self._plan.handler, self._plan.argument(message)
        if self._pool is None:
            await handler(argument)
            return
        run = copy_context().run
        result = await asyncio.get_running_loop().run_in_executor(self._pool, run, handler, argument)
        if inspect.isawaitable(result):
            await result
