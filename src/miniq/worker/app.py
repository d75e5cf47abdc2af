"""`miniq.App`: a broker's address with the tasks and handlers of a program."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from miniq.client._async.client import AsyncClient
from miniq.client._async.message import AsyncMessage
from miniq.client._sync.client import Client
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.client.connection import connect, connect_async
from miniq.client.delivery import Delivery
from miniq.client.one_process import OneProcess
from miniq.client.url import STORES, locate
from miniq.errors import Closed, InvalidRequest, Overloaded
from miniq.message import QueueChanges
from miniq.schedule import CatchUp
from miniq.worker.declarations import check_function, check_queue, check_setting
from miniq.worker.jobs import Handler, Hook, Hooks, Unfit, is_coroutine
from miniq.worker.plan import TIMEOUT, check_count, check_seconds
from miniq.worker.schedules import CronDecorator, TaskSchedule, Timing, declare
from miniq.worker.sources import Source
from miniq.worker.tasks import TASK, Sender, Task
from miniq.worker.typed import Body, name_of

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Hook)


class QueueHandler(NamedTuple):
    """What `@app.handler` was given."""

    function: Callable[..., Any]
    name: str
    timeout: float | None
    batch: int | None
    linger: float


class App(OneProcess):
    """The tasks and handlers of a program, and the broker that they are sent through.

    `url` and `options` are those of `miniq.connect`; nothing is opened before it is needed. `miniq worker
    module:app` runs the tasks.
    """

    def __init__(self, url: str | os.PathLike[str] | None = None, **options: Any) -> None:
        self.url = os.environ.get("MINIQ_URL", "http://127.0.0.1:5000") if url is None else url
        self.tasks: dict[str, Task[Any, Any, Any]] = {}
        """By name."""
        self.handlers: dict[str, QueueHandler] = {}
        """By queue."""
        self.settings: dict[str, dict[str, Any]] = {}
        """The settings that tasks ask for, by queue; a worker applies them when it starts."""
        self.schedules: dict[str, TaskSchedule] = {}
        """By name; a worker registers those of its queues when it starts."""
        self._setters: dict[tuple[str, str], str] = {}
        """By queue and setting: which task or handler asked first."""
        self._options = options
        self._before: list[Hook] = []
        self._after: list[Hook] = []
        self._failed: list[Hook] = []
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = WeakKeyDictionary()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<App {self.url!s} with {len(self.tasks)} tasks and {len(self.handlers)} handlers>"

    # Declarations

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    @overload
    def task(
        self,
        *,
        queue: str = "default",
        name: str | None = None,
        timeout: float | None = TIMEOUT,
        **settings: Unpack[QueueChanges],
    ) -> Decorator: ...
    def task(  # type: ignore[misc]  # mypy does not see through Unpack here
        self,
        function: Any = None,
        /,
        *,
        queue: str = "default",
        name: str | None = None,
        timeout: float | None = TIMEOUT,
        **settings: Unpack[QueueChanges],
    ) -> Any:
        """Declare a task: `@app.task(queue="emails", timeout=30, max_receives=8)`.

        `timeout` is how many seconds it may take, None for any time. `settings` are those of its queue
        (`max_receives` and the like), which a worker applies when it starts. `name`, by default that of the function,
        travels with each message.
        """
        if function is not None:
            return self._add_task(function, queue, name, timeout, {})
        return Decorator(self, queue, name, timeout, settings)

    def _add_task(
        self, function: Callable[..., Any], queue: str, name: str | None, timeout: float | None, settings: Any
    ) -> Task[Any, Any, Any]:
        use = f'@app.task(queue="{function}")' if isinstance(function, str) else "@app.task above a function"
        check_function(function, name or (name_of(function) if callable(function) else "task"), use)
        name = name or name_of(function)
        if name in self.tasks:
            raise InvalidRequest(f"task: there is a task {name!r} already; give one of them a `name`", field="name")
        check_queue(queue, name)
        check_seconds("timeout", timeout, 0.001, name)
        task: Task[Any, Any, Any] = Task(self, function, name=name, queue=queue, timeout=timeout)
        self._set(queue, settings, "task", name)
        self.tasks[name] = task
        return task

    def _set(self, queue: str, settings: dict[str, Any], kind: str, of: str) -> None:
        """Note the settings that a task or handler declares; refuse what no broker would take."""
        for name, value in settings.items():
            check_setting(name, value, kind, of)
        known = self.settings.setdefault(queue, {})
        for name, value in settings.items():
            if known.setdefault(name, value) != value:
                raise InvalidRequest(
                    f"{of}: {name}: {value!r} for queue {queue!r}, which {self._setters[queue, name]} sets to "
                    f"{known[name]!r}",
                    field=name,
                )
            self._setters.setdefault((queue, name), of)

    def handler(
        self,
        queue: str,
        *,
        batch: int | None = None,
        linger: float = 0.0,
        timeout: float | None = TIMEOUT,
        **settings: Unpack[QueueChanges],
    ) -> Callable[[F], F]:
        """Declare the handler of a queue's messages: `@app.handler("orders")`.

        The function, or coroutine function, takes the body as its annotation says, and the message if a parameter is
        annotated as `miniq.Message` or `miniq.AsyncMessage`. With `batch`, it takes lists of up to that many bodies
        (and messages), for which a worker waits up to `linger` seconds.
        """
        if not isinstance(queue, str):
            raise InvalidRequest(
                f'{name_of(queue)}: a handler needs a queue; use @app.handler("orders"), or @app.task', field="queue"
            )
        of = f"handler of {queue!r}"
        check_queue(queue, of)
        check_count("batch", batch, of)
        check_seconds("linger", linger, 0, of)
        check_seconds("timeout", timeout, 0.001, of)

        def declare(function: F) -> F:
            check_function(function, of, f"@app.handler({queue!r}) above a function")
            if queue in self.handlers:
                text = f"{name_of(function)}: queue: {queue!r} has a handler already, {self.handlers[queue].name}"
                raise InvalidRequest(text, field="queue")
            self._set(queue, dict(settings), "handler", name_of(function))
            self.handlers[queue] = QueueHandler(function, name_of(function), timeout, batch, linger)
            return function

        return declare

    def schedule(
        self,
        task: Task[Any, Any, Any] | Sender[Any, Any],
        *,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **timing: Unpack[Timing],
    ) -> None:
        """Send a task by the clock: `app.schedule(report, cron="0 3 * * *", timezone="Europe/Berlin")`.

        A worker registers it with the broker when it starts; the broker then sends it, whether a worker runs or not.
        `args` and `kwargs` are those of the task, `name` is that of the schedule, by default the task's. `every` and
        `at` take the place of `cron`; `catch_up` is as with `Client.schedule`. For options of the message, use
        `report.options(priority=5)`.
        """
        declared = declare(task, name, args, kwargs, timing)
        if declared.name in self.schedules:
            text = f"name: there is a schedule {declared.name!r} already; give one of them a `name`"
            raise InvalidRequest(text, field="name")
        self.schedules[declared.name] = declared

    def cron(
        self,
        expression: str,
        *,
        name: str | None = None,
        queue: str = "default",
        timezone: str = "UTC",
        catch_up: CatchUp = "last",
        timeout: float | None = TIMEOUT,
        **settings: Unpack[QueueChanges],
    ) -> CronDecorator:
        """Declare a task without arguments that is sent by the clock: `@app.cron("0 3 * * *")`. Above `@app.task(...)`
        it is a schedule of that task."""
        if not isinstance(expression, str):
            text = f'cron: {expression!r:.80} is not a cron expression; write @app.cron("0 3 * * *")'
            raise InvalidRequest(text, field="cron")
        timing: Timing = {"cron": expression, "timezone": timezone, "catch_up": catch_up}

        def task(function: Callable[..., Any]) -> Any:
            return self._add_task(function, queue, name, timeout, settings)

        return CronDecorator(self, task, name, timing)

    def setter(self, queue: str, field: str | None) -> str:
        """The task or handler that declares a setting of a queue."""
        return self._setters.get((queue, (field or "").partition(".")[0]), f"queue {queue!r}")

    def before(self, hook: H) -> H:
        """Call a function with an `Attempt` before each task or handler; an exception fails the attempt."""
        self._before.append(hook)
        return hook

    def after(self, hook: H) -> H:
        """Call a function with an `Attempt` after each task or handler that succeeded."""
        self._after.append(hook)
        return hook

    def failed(self, hook: H) -> H:
        """Call a function with an `Attempt` after each task or handler that raised."""
        self._failed.append(hook)
        return hook

    # Connections

    @property
    def is_embedded(self) -> bool:
        """Whether the broker runs in this process."""
        return locate(self.url)[0] in STORES

    @property
    def tracing(self) -> Any:
        """What the option `tracing` was: False, True or a provider."""
        return self._options.get("tracing", False)

    @property
    def client(self) -> Client:
        """The blocking client, which is connected on first use."""
        with self._lock:
            if self._is_closed:
                raise Closed("the app is closed")
            if self._client is None:
                self._client = connect(self.url, **self._options)
            return self._client

    async def client_async(self) -> AsyncClient:
        """The client of the running event loop, which is connected on first use."""
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            if self.is_embedded:
                from miniq.client.embedded import beside

                client = AsyncClient(beside(self.client))
            else:
                client = await connect_async(self.url, **self._options)
                client = self._clients.setdefault(loop, client)
            self._clients[loop] = client
        return client

    async def reach(self) -> None:
        """Make a call to the broker, without the retries of a client; raises `StoreUnavailable` if none answers."""
        if not self.is_embedded:
            async with connect_async(self.url, **self._options | {"retry": 0, "tracing": False}) as probe:
                with suppress(Overloaded):
                    await probe.whoami()

    def queue(self, name: str) -> Queue:
        """A queue by name; makes no call yet."""
        return self.client.queue(name)

    def close(self) -> None:
        """Close the blocking client. Safe to repeat."""
        with self._lock:
            self._is_closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()

    async def close_async(self) -> None:
        """Close the client of the running event loop, and the blocking one."""
        await self.leave_loop()
        await asyncio.to_thread(self.close)

    async def leave_loop(self) -> None:
        """Close the client of the running event loop, which is about to end."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def __enter__(self) -> App:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> App:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close_async()

    # What a worker needs

    @property
    def queues(self) -> list[str]:
        """The queues of tasks and handlers."""
        return sorted({*self.handlers, *(task.queue for task in self.tasks.values())})

    def check(self, queue: str) -> None:
        """Raise what is wrong with the annotations of the tasks and the handler of a queue."""
        for task in self.tasks.values():
            if task.queue == queue:
                task.parameters.prepare()
        if (handler := self.handlers.get(queue)) is not None:
            Body(handler.function, handler.batch is not None)

    def hooks(self, around: Any = None) -> Hooks:
        return Hooks(self._before, self._after, self._failed, around)

    def source(self, queue: Any, hooks: Hooks) -> Source[Any]:
        """A queue with its tasks and handler, ready to run; raises what is wrong with their annotations."""
        name = queue.name
        tasks = {task.name: _task_handler(task, hooks) for task in self.tasks.values() if task.queue == name}
        rest = None if name not in self.handlers else _queue_handler(self, self.handlers[name], hooks)
        if rest is None and len(tasks) == 1:
            [rest] = tasks.values()
        unknown = _unknown(name, [*tasks], hooks)

        def route(message: Delivery[Any]) -> Handler:
            headers = message._stored.message.headers
            task = None if headers is None else headers.get(TASK)
            if task is None:
                return rest or unknown
            return tasks.get(task) or (rest if not tasks and rest else unknown)

        return Source(queue, route, [*tasks.values(), *([rest] if rest else [])])

    def view(self, message: Delivery[Any]) -> Message:
        """A message with blocking methods."""
        if isinstance(message, Message):
            return message
        return Message(self.client.queue(message.queue), message._stored)

    def view_async(self, message: Delivery[Any]) -> AsyncMessage:
        """A message for coroutines; the app is connected in the running event loop."""
        if isinstance(message, AsyncMessage):
            return message
        client = self._clients[asyncio.get_running_loop()]
        return AsyncMessage(client.queue(message.queue), message._stored)


class Decorator:
    """`@app.task(...)`."""

    def __init__(self, app: App, queue: str, name: str | None, timeout: float | None, settings: Any) -> None:
        self._app = app
        self._given = (queue, name, timeout, settings)

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        return self._app._add_task(function, *self._given)


def _task_handler(task: Task[Any, Any, Any], hooks: Hooks) -> Handler:
    task.parameters.prepare()
    return Handler(
        task.function,
        name=task.name,
        arguments=task.parameters.read,
        timeout=task.timeout,
        hooks=hooks,
        view=task.app.view_async if is_coroutine(task.function) else task.app.view,
        has_result=True,
    )


def _queue_handler(app: App, given: QueueHandler, hooks: Hooks) -> Handler:
    body = Body(given.function, given.batch is not None)

    def one(message: Delivery[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return body.arguments(body.read(message), message)

    def many(batch: tuple[Sequence[Any], Sequence[Any]]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return body.arguments(*batch)

    return Handler(
        given.function,
        name=given.name,
        arguments=one if given.batch is None else many,
        timeout=given.timeout,
        batch=given.batch,
        linger=given.linger,
        hooks=hooks,
        view=app.view if body.kind is Message else app.view_async,
        read=body.read,
    )


def _unknown(queue: str, names: list[str], hooks: Hooks) -> Handler:
    """What handles messages that no task is for: they are rejected."""

    def refuse(message: Delivery[Any]) -> Any:
        task = (message._stored.message.headers or {}).get(TASK)
        problem = f"queue {queue!r} has no task {task!r}"
        if task is None:
            problem = f"the message has no header `task`, and queue {queue!r} has several tasks"
        known = f"; its tasks are {', '.join(sorted(names))}" if names else ""
        raise Unfit(f"task: {problem}{known}")

    return Handler(print, name="unknown", arguments=refuse, hooks=hooks)
