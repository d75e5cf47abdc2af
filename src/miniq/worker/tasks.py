"""Tasks: functions that are called by sending a message, and the jobs that come of it."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast

from miniq.api.operations import Result, Send
from miniq.client.bodies import decode, draft
from miniq.client.failure import ResultTimeout, TaskFailed
from miniq.errors import InvalidRequest, NotFound
from miniq.message import JSON, Draft, DraftOptions
from miniq.result import Progress
from miniq.worker.plan import check_seconds
from miniq.worker.typed import Parameters, returned

if TYPE_CHECKING:
    from miniq.worker.app import App

P = ParamSpec("P")
C = TypeVar("C")
"""What calling the function returns: its value, or a coroutine."""
R = TypeVar("R")
"""The value that a job results in."""

LONGEST_POLL = 20.0
"""Seconds that one call waits for a result."""
TASK = "task"
"""The header of a message with the name of its task."""


class Sender(Generic[P, R]):
    """Sends a task with message options: `welcome.options(delay=60).send(to="ann@example.com")`."""

    def __init__(self, task: Task[P, Any, R], options: DraftOptions) -> None:
        self._task = task
        self._options = options

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Send a message that calls the task with these arguments; returns once it is stored."""
        task = self._task
        [id] = task.app.client.perform(Send(task.queue, [self.draft(*args, **kwargs)]))
        return Job(task, id)

    async def send_async(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The same in an event loop."""
        task = self._task
        client = await task.app.client_async()
        [id] = await client.perform(Send(task.queue, [self.draft(*args, **kwargs)]))
        return Job(task, id)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """The message, for `queue.send_many`."""
        task, options = self._task, dict(self._options)
        headers = {**(options.pop("headers", None) or {}), TASK: task.name}  # type: ignore[dict-item]
        return draft(task.parameters.bind(args, kwargs), headers=headers, **options)  # type: ignore[arg-type]


class Task(Generic[P, C, R]):
    """A function of an app. `task(...)` calls it here and now; `task.send(...)` lets a worker do so."""

    def __init__(self, app: App, function: Callable[P, C], *, name: str, queue: str, timeout: float | None) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.queue = queue
        self.timeout = timeout
        self.parameters = Parameters(function, name)
        self._plain: Sender[P, R] = Sender(self, {})
        self.__doc__ = function.__doc__
        self.__name__ = name
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<Task {self.name!r} of queue {self.queue!r}>"

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """Send a message that calls the task with these arguments; returns once it is stored."""
        return self._plain.send(*args, **kwargs)

    async def send_async(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """The same in an event loop."""
        return await self._plain.send_async(*args, **kwargs)

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """The message, for `queue.send_many`."""
        return self._plain.draft(*args, **kwargs)

    def options(self, **options: Unpack[DraftOptions]) -> Sender[P, R]:
        """The task with options of its message: `delay`, `priority`, `group`, `dedup_id` and others of `send`."""
        known = [name for name in DraftOptions.__annotations__ if name != "content_type"]
        for name in options:
            if name not in known:
                text = f"{self.name}: the message of a task has no option {name!r}; use one of {', '.join(known)}"
                raise InvalidRequest(text, field=name)
        return Sender(self, options)

    def job(self, id: str) -> Job[R]:
        """A job that was sent earlier, by its id."""
        return Job(self, id)


class Job(Generic[R]):
    """A task that was sent."""

    def __init__(self, task: Task[Any, Any, R], id: str) -> None:
        self.task = task
        self.id = id
        """The id of its message."""

    def result(self, wait: float = 0) -> R:
        """What the task returned; waits up to `wait` seconds for it. Raises `TaskFailed` if it failed for good,
        `ResultTimeout` if it is not finished yet, `NotFound` if nothing is known of it any more, and `ResultsOff` if
        its queue keeps no results (`@app.task(results=3600)`)."""
        poll = Poll(self, wait)
        while poll.goes_on:
            poll.take(self.task.app.client.perform(poll.call()))
        return poll.value()

    async def result_async(self, wait: float = 0) -> R:
        """The same in an event loop."""
        client = await self.task.app.client_async()
        poll = Poll(self, wait)
        while poll.goes_on:
            poll.take(await client.perform(poll.call()))
        return poll.value()

    def __repr__(self) -> str:
        return f"<Job {self.id} of task {self.task.name!r}>"


class Poll(Generic[R]):
    """A wait for the result of a job, in calls of bounded length."""

    def __init__(self, job: Job[R], wait: float) -> None:
        check_seconds("wait", wait, 0)
        self._job = job
        self._wait = wait
        self._deadline = monotonic() + wait
        self._progress: Progress | None = None

    @property
    def goes_on(self) -> bool:
        progress = self._progress
        return progress is None or not (progress.is_final or monotonic() >= self._deadline)

    def call(self) -> Result:
        left = min(max(0.0, self._deadline - monotonic()), LONGEST_POLL)
        return Result(self._job.task.queue, self._job.id, round(left, 3))

    def take(self, progress: Progress) -> None:
        self._progress = progress

    def value(self) -> R:
        job, progress = self._job, self._progress
        name = f"task {job.task.name!r} ({job.id})"
        if progress is None or not progress.is_final:
            state = "waiting" if progress is None else progress.status
            last = f"; its last attempt failed: {progress.error}" if progress is not None and progress.error else ""
            waited = f" after {self._wait:g} s" if self._wait else ""
            raise ResultTimeout(f"{name} is still {state}{waited}{last}")
        if progress.status == "dead":
            raise TaskFailed(f"{name} failed: {progress.error}", progress.error)
        if progress.status == "unknown":
            name = f"task {job.task.name!r} with id {job.id!r}"
            text = f"id: no result for {name}: it was never sent, was removed, or its result is no longer kept"
            raise NotFound(text, field="id")
        if progress.result is None:
            return cast(R, None)
        return cast(R, returned(job.task.function, decode(progress.result, JSON)))
