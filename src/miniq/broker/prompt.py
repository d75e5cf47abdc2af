"""Coroutines that begin at once, not in the next turn of the event loop.

A call that waits for nothing is over before `begin` returns: its answer needs no task and no further turn. One that
waits goes on as a task. What runs before the first wait is nobody's task, so it must not ask for the current one, as
timeouts do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any

from miniq.errors import Closed

Done = Callable[[Any, Exception | None], None]
"""Called with what a coroutine returned, or with the error that it raised."""


def unless_wrong(_: object, error: Exception | None) -> None:
    """For a coroutine that answers for itself: an error is a mistake in that, and not to be swallowed."""
    if error is not None:
        raise error


def begin(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    done: Done = unless_wrong,
    *,
    at_once: bool = True,
) -> asyncio.Task[Any] | None:
    """Run a coroutine; the task that it became, None if it is over. `at_once` is False for one that has to be a task
    from its beginning."""
    if at_once:
        try:
            waits_for = coroutine.send(None)
        except StopIteration as end:
            done(end.value, None)
            return None
        except Exception as error:
            done(None, error)
            return None
        coroutine = _Begun(coroutine, waits_for)
    task = loop.create_task(coroutine)
    task.add_done_callback(lambda task: _end(task, done))
    return task


def _end(task: asyncio.Task[Any], done: Done) -> None:
    error = Closed("the broker is closing") if task.cancelled() else task.exception()
    if error is None:
        done(task.result(), None)
    else:
        done(None, error if isinstance(error, Exception) else Closed("the broker is closing"))


class _Begun(Coroutine[Any, Any, Any]):
    """The rest of a coroutine, which begins with what it waits for."""

    __slots__ = ("_coroutine", "_first")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], waits_for: Any) -> None:
        self._coroutine = coroutine
        self._first: list[Any] = [waits_for]

    def send(self, value: Any) -> Any:
        if self._first:
            return self._first.pop()
        return self._coroutine.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        at: TracebackType | None = None,
    ) -> Any:
        self._first.clear()
        return self._coroutine.throw(error if isinstance(error, BaseException) else kind)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()
