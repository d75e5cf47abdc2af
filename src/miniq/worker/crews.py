"""What runs the jobs and the parts of a worker: threads, or tasks of an event loop."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from queue import Empty, SimpleQueue
from typing import Any

from miniq.client.interrupts import shield
from miniq.worker.jobs import Job, Trial
from miniq.worker.shift import Shift

log = logging.getLogger("miniq.worker")

Done = Callable[[Job[Any], Trial], bool]
"""Called when a job ended; returns whether its outcome counted."""
LAST_CALLS = 5.0
"""Seconds for the last calls of a worker that was told to end at once."""


class Threads:
    """Daemon threads that run jobs, one after the other.

    A thread whose job took too long cannot be ended: another one takes its place, and it ends after that job.
    """

    def __init__(self, count: int, run: Callable[[Job[Any]], bool]) -> None:
        self._count = count
        self._run = run
        """Runs a job; returns whether its outcome still counted."""
        self._jobs: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._is_started = False

    def submit(self, jobs: Iterable[Job[Any]]) -> None:
        if not self._is_started:
            self._is_started = True
            for _ in range(self._count):
                self.replace()
        for job in jobs:
            self._jobs.put(job)

    def replace(self) -> None:
        """Start one more thread."""
        threading.Thread(target=self._loop, name="miniq-handler", daemon=True).start()

    def end(self) -> None:
        """Let threads end after the job that they run."""
        try:
            while True:
                self._jobs.get_nowait()
        except Empty:
            for _ in range(self._count):
                self._jobs.put(None)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                counted = self._run(job)
            except Exception:  # of a log handler, for instance: the thread goes on, and the job times out
                log.exception("%s could not be run", job.handler.name)
                counted = True
            if not counted:
                return


class Crew:
    """Threads. The caller's thread only waits, so that Ctrl-C does not interrupt an operation midway. SIGTERM is
    handled like Ctrl-C, unless the program has a handler for it."""

    def __init__(self, concurrency: int, shift: Shift[Any], done: Done) -> None:
        self._shift = shift
        self._done = done
        self._threads = Threads(concurrency, self._run)
        self._others: list[_Thread] = []

    def run(
        self, works: Iterable[Callable[[], None]], interrupt: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        """Run functions until all have returned; on Ctrl-C call `interrupt`, and wait until they have. A second one is
        raised at once."""
        threads = [_Thread(work) for work in works]
        unhandled = _is_sigterm_unhandled()
        try:
            try:
                if unhandled:
                    signal.signal(signal.SIGTERM, signal.default_int_handler)
                with shield:
                    for thread in threads:
                        thread.start()
                _join(threads)
            except KeyboardInterrupt:
                interrupt()
            _join(threads)  # not above, where the first interruption would be shown with a second one
        finally:
            if unhandled:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def start(self, work: Callable[[], None]) -> None:
        """Start a function that `finish` waits for."""
        thread = _Thread(work)
        thread.start()
        self._others.append(thread)

    def finish(self) -> None:
        self._threads.end()
        _join(self._others)

    def submit(self, jobs: Iterable[Job[Any]]) -> None:
        self._threads.submit(jobs)

    def cancel(self, job: Job[Any]) -> None:
        """Give up a job: its thread goes on, and its outcome is ignored."""
        self._threads.replace()

    def _run(self, job: Job[Any]) -> bool:
        if not self._shift.begin(job):
            return True
        with Trial(job) as trial:
            args, kwargs = trial.arguments()
            trial.result = job.handler.function(*args, **kwargs)
        return self._done(job, trial)


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


def _is_sigterm_unhandled() -> bool:
    """Whether SIGTERM would kill this process, and this thread can change that."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class AsyncCrew:
    """Tasks; handlers that are not coroutine functions run in threads.

    Cancelling `consume`, as Ctrl-C does under `asyncio.run`, lets running handlers finish; cancelling it a second time
    does not wait for them. SIGTERM ends it as well, unless the program has a handler for it.
    """

    def __init__(self, concurrency: int, shift: Shift[Any], done: Done) -> None:
        self._concurrency = concurrency
        self._shift = shift
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(concurrency, self._run_in_thread)
        self._waiting: deque[Job[Any]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._given_up: set[asyncio.Task[None]] = set()
        """Tasks that were cancelled, which may take a while or never end; others run in their place."""
        self._others: list[asyncio.Task[None]] = []

    async def run(
        self,
        works: Iterable[Callable[[], Coroutine[Any, Any, None]]],
        interrupt: Callable[[], None],
        abandon: Callable[[], None],
    ) -> None:
        tasks = [asyncio.create_task(work()) for work in works]
        unhandled = _is_sigterm_unhandled()
        if unhandled:
            self._loop.add_signal_handler(signal.SIGTERM, interrupt)
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            interrupt()
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError:
                abandon()
                _, late = await asyncio.wait(tasks, timeout=LAST_CALLS)
                for task in late:
                    task.cancel()
                raise
            raise
        finally:
            if unhandled:
                self._loop.remove_signal_handler(signal.SIGTERM)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._others.append(asyncio.create_task(work()))

    async def finish(self) -> None:
        self._threads.end()
        for task in self._others:
            task.cancel()
        await asyncio.gather(*self._others, return_exceptions=True)

    def submit(self, jobs: Iterable[Job[Any]]) -> None:
        plain: list[Job[Any]] = []
        for job in jobs:
            (self._waiting if job.handler.is_coroutine else plain).append(job)
        if plain:
            self._threads.submit(plain)
        self._start_tasks()

    def cancel(self, job: Job[Any]) -> None:
        """Give up a job: cancel its task; a thread goes on, and its outcome is ignored."""
        job.is_given_up = True
        task = job.task
        if task is None:
            self._threads.replace()
            return
        task.cancel()
        if not task.done():
            self._given_up.add(task)
            self._end_task(task)

    def _start_tasks(self) -> None:
        while self._waiting and len(self._tasks) < self._concurrency:
            job = self._waiting.popleft()
            job.task = task = self._loop.create_task(self._run(job))
            self._tasks.add(task)
            task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.done():
            self._given_up.discard(task)
        self._start_tasks()

    async def _run(self, job: Job[Any]) -> None:
        if not self._shift.begin(job):
            return
        with Trial(job) as trial:
            args, kwargs = trial.arguments()
            trial.result = await job.handler.function(*args, **kwargs)
        self._done(job, trial)

    def _run_in_thread(self, job: Job[Any]) -> bool:
        if not self._shift.begin(job):
            return True
        with Trial(job) as trial:
            args, kwargs = trial.arguments()
            result = job.handler.function(*args, **kwargs)
            if inspect.isawaitable(result):
                result, error = asyncio.run_coroutine_threadsafe(_finished(result), self._loop).result()
                if error is not None:
                    raise error
            trial.result = result
        return self._done(job, trial)


async def _finished(awaitable: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """What it returns or raises; a `SystemExit` that leaves a task would end the event loop."""
    try:
        return await awaitable, None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return None, error
