"""Schedules of tasks: what an app declares, and how a worker registers it with the broker."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, overload

from msgspec import Struct

from miniq.api.operations import PutSchedule
from miniq.errors import InvalidRequest
from miniq.message import Draft
from miniq.schedule import CatchUp, Definition
from miniq.timetable import timing_of
from miniq.worker.tasks import Sender, Task
from miniq.worker.typed import name_of

if TYPE_CHECKING:
    from miniq.worker.app import App

P = ParamSpec("P")
C = TypeVar("C")
R = TypeVar("R")


class Timing(TypedDict, total=False):
    """When a task is sent: by one of `cron`, `every` (seconds) and `at`; see `Client.schedule`."""

    cron: str | None
    every: float | None
    at: datetime | None
    timezone: str
    catch_up: CatchUp


class TaskSchedule(Struct, frozen=True):
    """A task that is sent by the clock."""

    name: str
    queue: str
    call: PutSchedule
    """Creates it, or changes it if it is another one; whether it is paused stays."""


def declare(
    task: Any, name: str | None, args: Sequence[Any], kwargs: Mapping[str, Any] | None, timing: Timing
) -> TaskSchedule:
    """The schedule of a task, or of a task with options; raises what is wrong with its arguments."""
    if not isinstance(task, Task | Sender):
        raise InvalidRequest(f"task: {task!r:.80} is not a task; declare it with @app.task", field="task")
    of = task if isinstance(task, Task) else task._task
    name = name or of.name
    unknown = sorted(timing.keys() - Timing.__annotations__.keys())
    if unknown:
        known = ", ".join(Timing.__annotations__)
        raise InvalidRequest(f"{name}: a schedule has no option {unknown[0]!r}; use one of {known}", field=unknown[0])
    given = [field for field in ("cron", "every", "at") if timing.get(field) is not None]
    if len(given) != 1:
        which = "none was given" if not given else f"{' and '.join(given)} were given"
        raise InvalidRequest(f"{name}: a schedule needs exactly one of cron, every and at; {which}", field="cron")
    definition = Definition(task.draft(*args, **kwargs or {}), of.queue, **timing)
    _check(name, definition)
    return TaskSchedule(name, of.queue, PutSchedule(name, definition))


def check_timing(name: str, timing: Timing) -> None:
    """Raise what is wrong with the timing of a schedule; a moment may have passed."""
    _check(name, Definition(Draft(b"null"), **timing))


def _check(name: str, definition: Definition) -> None:
    try:
        timing_of(definition)
    except InvalidRequest as error:
        raise InvalidRequest(f"{name}: {error.text}", field=error.field) from None


class CronDecorator:
    """`@app.cron(...)`: of a task, or of a function, which becomes one."""

    def __init__(self, app: App, task: Callable[[Any], Any], name: str | None, timing: Timing) -> None:
        self._app = app
        self._task = task
        self._name = name
        self._timing = timing

    @overload
    def __call__(self, function: Task[P, C, R], /) -> Task[P, C, R]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        check_timing(self._name or getattr(function, "name", None) or name_of(function), self._timing)
        task = function if isinstance(function, Task) else self._task(function)
        self._app.schedule(task, name=self._name, **self._timing)
        return task
