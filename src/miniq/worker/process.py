"""One process of `miniq worker`: the app's queues in one event loop, signals, logs, metrics, spans."""

from __future__ import annotations

import _thread
import asyncio
import importlib
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Coroutine
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from msgspec import Struct

from miniq import tracing
from miniq.client._async.worker import AsyncWorker
from miniq.client.pauses import async_pause
from miniq.client.url import without_password
from miniq.errors import Forbidden, InvalidRequest, MiniQError, StoreUnavailable
from miniq.worker.app import App
from miniq.worker.jobs import Attempt, Job, note_results
from miniq.worker.metrics import MetricsServer, Numbers
from miniq.worker.plan import Backoff, Plan, own_name

log = logging.getLogger("miniq.worker")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ENDED_AT_ONCE = 1
"""The exit code after a second signal."""
LAST_SECONDS = 3.0
"""Seconds for exit handlers, and for threads and tasks of the program."""
LATE = 5.0
"""Seconds beyond the grace time after which a process that was told to end is ended."""
STUBBORN = 5.0
"""Seconds after which a coroutine that was cancelled, and still runs, is taken to hang."""
BLOCKED = 3.0
"""Seconds without a turn of the event loop after which this process reports no more."""
SLOW = 2.0
"""Seconds after which a broker that does not answer at the start is mentioned."""
PACKAGE = str(Path(__file__).parents[1])
RETIRED = 75
"""The exit code of a process that is to be replaced, because one of its threads hangs."""


class Settings(Struct, frozen=True, kw_only=True):
    """The options of `miniq worker`."""

    app: str
    """`module:name`."""
    queues: list[str] | None = None
    """None: all that the app has tasks and handlers for."""
    concurrency: int = 8
    processes: int | None = None
    """None: this process."""
    grace: float = 30.0
    reload: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    log_level: str = "info"
    log_format: str = "text"


def load(name: str) -> App:
    """The app that `module:name` names; the current folder is searched first."""
    module, colon, attribute = name.partition(":")
    words = module.split(".")
    if not all(word.isidentifier() for word in words) or words[-1] == "py" or (colon and not attribute):
        raise InvalidRequest(
            f"app: {name!r} is not MODULE:NAME, such as shop.tasks:app{_spelling(module)}", field="app"
        )
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from None  # an import of the module itself
        raise InvalidRequest(f"app: there is no module {error.name!r} in {os.getcwd()}", field="app") from None
    except Exception as error:
        raise _broken(module, error) from None
    place = module
    for part in (attribute or "app").split("."):
        if not hasattr(loaded, part):
            raise InvalidRequest(_missing(place, loaded, part), field="app")
        loaded = getattr(loaded, part)
        place = f"{place}{'.' if ':' in place else ':'}{part}"
    if not isinstance(loaded, App):
        raise InvalidRequest(f"app: {module}:{attribute or 'app'} is {loaded!r:.80}, not a miniq.App", field="app")
    return loaded


def _spelling(path: str) -> str:
    """How a file is named as a module."""
    words = os.path.normpath(path).removesuffix(".py").split(os.sep)
    return f"; use {'.'.join(words)}:app" if all(word.isidentifier() for word in words) else ""


def _missing(place: str, loaded: Any, part: str) -> str:
    """What to say about a name that is not there."""
    if ":" in place:
        return f"app: {place!r} has no {part!r}"
    apps = ", ".join(sorted(name for name, value in vars(loaded).items() if isinstance(value, App)))
    return f"app: module {place!r} has no {part!r}; its apps: {apps or 'none'}"


def _broken(module: str, error: Exception) -> MiniQError:
    """What is shown of an exception in the user's module: the lines of the program, without ours and Python's."""
    shown = traceback.TracebackException.from_exception(error)
    frames = traceback.StackSummary.from_list([frame for frame in shown.stack if _is_users(frame.filename)])
    text = "".join([*frames.format(), *shown.format_exception_only()]).rstrip()
    return MiniQError(f"app: {module!r} cannot be imported:\n{text}", field="app")


def _is_users(filename: str) -> bool:
    return not filename.startswith((f"{PACKAGE}{os.sep}", "<frozen importlib", os.path.dirname(importlib.__file__)))


def check(app: App, settings: Settings) -> list[str]:
    """The queues to work on; raises what is wrong with the app or the settings."""
    queues = settings.queues or app.queues
    for queue in queues:
        if queue not in app.queues:
            known = ", ".join(app.queues) or "none"
            raise InvalidRequest(
                f"queues: the app has no task or handler for {queue!r}, only for: {known}", field="queues"
            )
        app.check(queue)
    if not queues:
        raise InvalidRequest(f"app: {settings.app} has no tasks and no handlers", field="app")
    if str(app.url).startswith("memory:"):
        raise InvalidRequest(
            "url: a broker in memory is only for its own process; use miniq.testing.drain there, or start "
            "`miniq serve` and give the app its address",
            field="url",
        )
    if settings.processes is not None and app.is_embedded and not str(app.url).startswith(("postgresql:", "mongodb:")):
        raise InvalidRequest(
            "processes: only one process can open a folder; start `miniq serve` and give the app its address",
            field="processes",
        )
    return queues


def run(process: Process) -> int:
    """Work until a signal; returns the exit code."""
    try:
        from uvloop import run as run_loop
    except ImportError:
        from asyncio import run as run_loop  # type: ignore[assignment]
    return run_loop(process.run())


def exit_after(seconds: float, code: int) -> None:
    """End this process then, whatever hangs: a thread, a coroutine that ignores its cancellation, an exit handler."""

    def exit() -> None:
        sleep(seconds)
        os._exit(code)

    _thread.start_new_thread(exit, ())  # a `threading.Thread` takes a lock, which a signal handler must not wait for


class Process:
    """The worker of one process."""

    def __init__(self, app: App, settings: Settings, number: int | None = None, numbers: Numbers | None = None) -> None:
        self._app = app
        self._settings = settings
        self._queues = check(app, settings)
        self._number = number
        """Which of several processes it is; None if it is the only one."""
        self._numbers = Numbers()
        self._lock = threading.Lock()
        """Guards `_numbers`."""
        self._worker: AsyncWorker | None = None
        self._told = asyncio.Event()
        """Set when a signal told it to end."""
        self._is_signalled = False
        self._is_retired = False
        self._turn: float | None = None
        """When the event loop had its last turn; None before the first."""

    async def run(self) -> int:
        """Work until a signal; returns the exit code."""
        loop = asyncio.get_running_loop()
        for signum in SIGNALS:
            # Not by the event loop, so that a second signal ends a process whose loop is blocked.
            signal.signal(signum, partial(self._signalled, loop))
        turns = asyncio.create_task(self._take_turns())
        code = 1
        try:
            await self._work()
            code = RETIRED if self._is_retired and not self._told.is_set() else 0
        finally:
            turns.cancel()
            exit_after(LAST_SECONDS, code)
        return code

    async def _work(self) -> None:
        app, settings = self._app, self._settings
        server = None
        if settings.metrics_port is not None and self._number is None:
            server = MetricsServer(settings.metrics_host, settings.metrics_port, self.numbers)
            log.info("metrics on http://%s:%d/metrics", settings.metrics_host, server.port)
        try:
            client = await self._unless_told(self._prepare())
            if client is None:
                return
            provider = app.tracing
            hooks = app.hooks(None if provider is False else Spans(provider))
            sources = [app.source(client.queue(queue), hooks) for queue in self._queues]
            plan = Plan(concurrency=settings.concurrency, grace=settings.grace, consumer=own_name())
            self._worker = worker = AsyncWorker(sources, plan)
            worker.shift.on_finish = self._record
            worker.on_timeout = self._retire
            if self._told.is_set():
                worker.end()
            log.info("working on queues %s (concurrency %d)", ", ".join(self._queues), settings.concurrency)
            await worker.run()
            log.info("process %d ended", os.getpid())
        finally:
            await app.close_async()
            if server is not None:
                server.close()

    def numbers(self) -> Numbers:
        """The numbers of this moment."""
        numbers = Numbers(concurrency=self._settings.concurrency)
        if self._worker is not None:
            numbers.running, numbers.waiting = self._worker.shift.load()
        with self._lock:
            numbers.add(self._numbers)
        return numbers

    async def _unless_told(self, work: Coroutine[Any, Any, Any]) -> Any:
        """What a coroutine returns; None if a signal comes first."""
        task, told = asyncio.create_task(work), asyncio.create_task(self._told.wait())
        try:
            done, _ = await asyncio.wait((task, told), timeout=SLOW, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                log.warning(
                    "no answer from %s yet; is a broker running there (`miniq serve`)? The address is that of "
                    "miniq.App(...), or else MINIQ_URL",
                    without_password(str(self._app.url)),
                )
                await asyncio.wait((task, told), return_when=asyncio.FIRST_COMPLETED)
            return await task if task.done() else None
        finally:
            task.cancel()
            told.cancel()
            await asyncio.wait((task, told))

    async def _prepare(self) -> Any:
        """Connect, give the queues the settings that their tasks ask for, and register the schedules of tasks; waits
        for a broker that is unreachable."""
        backoff = Backoff()
        settings = {queue: changes for queue in self._queues if (changes := self._app.settings.get(queue))}
        schedules = [each for each in self._app.schedules.values() if each.queue in self._queues]
        while not self._told.is_set():
            doing = "connect"
            try:
                await self._app.reach()
                client = await self._app.client_async()
                for queue, changes in settings.items():
                    doing = f"set {', '.join(changes)} of {queue}"
                    try:
                        await client.queue(queue).configure(**changes)
                    except Forbidden as error:
                        log.warning("cannot %s: %s", doing, error)
                    except InvalidRequest as error:
                        text = f"{self._app.setter(queue, error.field)}: {error.text}"
                        raise type(error)(text, field=error.field) from None
                for schedule in schedules:
                    doing = f"set the schedule {schedule.name}"
                    try:
                        await client.perform(schedule.call)
                    except (Forbidden, InvalidRequest) as error:
                        if isinstance(error, InvalidRequest) and error.field != "at":
                            raise type(error)(f"{schedule.name}: {error.text}", field=error.field) from None
                        log.warning("cannot %s: %s", doing, error)
                return client
            except StoreUnavailable as error:
                await async_pause(self._told, backoff.failed(error, doing))
        return None

    async def _take_turns(self) -> None:
        while True:
            self._turn = monotonic()
            await asyncio.sleep(BLOCKED / 3)

    def is_blocked(self) -> bool:
        """Whether a coroutine keeps the event loop from running."""
        return self._turn is not None and monotonic() - self._turn > BLOCKED

    def _signalled(self, loop: asyncio.AbstractEventLoop, signum: int, frame: object) -> None:
        if self._is_signalled:
            os._exit(ENDED_AT_ONCE)
        self._is_signalled = True
        exit_after(self._settings.grace + LATE, ENDED_AT_ONCE)
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(self._stop, signum)

    def _stop(self, signum: int) -> None:
        self._told.set()
        name = signal.Signals(signum).name
        if self._worker is None:
            log.info("%s: ending", name)
        else:
            log.info("%s: finishing running jobs, up to %g s", name, self._settings.grace)
            self._worker.end()

    def _retire(self, job: Job[Any]) -> None:
        """A job took too long. With several processes, this one is replaced if the job is a thread, or a coroutine that
        goes on although it was cancelled."""
        if self._number is None:
            return
        if job.task is None:
            self._replace(job)
        elif not job.task.done():
            asyncio.get_running_loop().call_later(STUBBORN, self._replace, job)

    def _replace(self, job: Job[Any]) -> None:
        if self._is_retired or (job.task is not None and job.task.done()):
            return
        self._is_retired = True
        log.warning("%s hangs: this process finishes what else runs, and is replaced", job.handler.name)
        if self._worker is not None:
            self._worker.end()

    def _record(self, job: Job[Any]) -> None:
        with self._lock:
            self._numbers.record(job)
        if job.verdict == "ack" and job.attempt is not None:  # others were logged
            note_results(job, job.attempt)


class Spans:
    """Spans of tasks and handlers, children of the span in which their message was sent."""

    def __init__(self, provider: Any) -> None:
        self._tracer = tracing.tracer(provider)

    def __call__(self, attempt: Attempt) -> AbstractContextManager[object]:
        return Span(self._tracer, attempt)


class Span(AbstractContextManager[object]):
    """The span of one attempt."""

    def __init__(self, tracer: Any, attempt: Attempt) -> None:
        from opentelemetry.trace import SpanKind

        message = attempt.message
        given = tracing.attributes("process", message.queue, len(attempt.messages) if attempt.messages[1:] else None)
        given |= {"messaging.message.id": message.id, "miniq.task": attempt.task, "miniq.attempt": message.receives}
        self._span = tracer.start_as_current_span(
            f"process {attempt.task}",
            context=tracing.context(message),
            kind=SpanKind.CONSUMER,
            attributes=given,
            record_exception=False,
            set_status_on_exception=False,
        )

    def __enter__(self) -> object:
        self._opened = self._span.__enter__()
        return self._opened

    def __exit__(self, kind: Any, error: BaseException | None, at: Any) -> None:
        if error is not None:
            tracing.failed(self._opened, error)
        self._span.__exit__(None, None, None)
