"""What runs the parts of a worker loop: tasks of an event loop, or threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

from miniq.client.delivery import Delivery
from miniq.errors import InvalidRequest
from miniq.worker.plan import Plan


class Crew:
    """Threads. The caller's thread only waits, so that Ctrl-C does not interrupt an operation midway."""

    def __init__(self, plan: Plan) -> None:
        if plan.is_coroutine:
            raise InvalidRequest(
                f"handler: {plan.handler!r} is a coroutine function; use miniq.connect_async for it", field="handler"
            )
        self._plan = plan
        self._others: list[_Thread] = []

    def run(self, works: Iterable[Callable[[], None]], interrupt: Callable[[], None]) -> None:
        """Run functions until all have returned; on Ctrl-C call `interrupt`, and wait until they have."""
        threads = [_Thread(work) for work in works]
        try:
            for thread in threads:
                thread.start()
            _join(threads)
        except KeyboardInterrupt:
            interrupt()
            _join(threads)

    def start(self, work: Callable[[], None]) -> None:
        """Start a function that `finish` waits for."""
        thread = _Thread(work)
        thread.start()
        self._others.append(thread)

    def finish(self) -> None:
        _join(self._others)

    def call(self, message: Delivery[Any]) -> None:
        """Call the handler."""
        self._plan.handler(self._plan.argument(message))


class _Thread(threading.Thread):
    """A thread that can be waited for again after Ctrl-C: before Python 3.13, an interrupted `join` marks it as ended
    while it runs."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="miniq-worker", daemon=True)
        self._work = work
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            self._work()
        finally:
            self.ended.set()


def _join(threads: Iterable[_Thread]) -> None:
    """Wait for the threads that were started, in steps, so that Ctrl-C is seen on every platform."""
    for thread in threads:
        while thread.ident is not None and not thread.ended.wait(0.5):
            pass


class AsyncCrew:
    """Tasks; handlers that are not coroutine functions run in threads.

    Cancelling `consume`, as Ctrl-C does under `asyncio.run`, lets running handlers finish; cancelling it a second time
    does not wait for them.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pool = None if plan.is_coroutine else ThreadPoolExecutor(plan.concurrency, "miniq-worker")
        self._others: list[asyncio.Task[None]] = []

    async def run(
        self, works: Iterable[Callable[[], Coroutine[Any, Any, None]]], interrupt: Callable[[], None]
    ) -> None:
        tasks = [asyncio.create_task(work()) for work in works]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            interrupt()
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                raise
            raise

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._others.append(asyncio.create_task(work()))

    async def finish(self) -> None:
        for task in self._others:
            task.cancel()
        await asyncio.gather(*self._others, return_exceptions=True)
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    async def call(self, message: Delivery[Any]) -> None:
        handler, argument = self._plan.handler, self._plan.argument(message)
        if self._pool is None:
            await asyncio.create_task(handler(argument))  # with a context of its own
            return
        run = copy_context().run
        result = await asyncio.get_running_loop().run_in_executor(self._pool, run, handler, argument)
        if inspect.isawaitable(result):
            await result
