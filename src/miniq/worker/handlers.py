"""The handler of `queue.consume`: a function of a body, or of a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from miniq.errors import InvalidRequest
from miniq.worker.declarations import check_function
from miniq.worker.jobs import Attempt, Handler, Hooks, is_coroutine
from miniq.worker.plan import check_seconds
from miniq.worker.sources import Source


def plain_source(
    queue: Any,
    function: Callable[[Any], object],
    pass_message: bool,
    timeout: float | None,
    retry_delay: float | None,
    hooks: Hooks,
) -> Source[Any]:
    """A queue whose messages one function handles."""
    if not callable(function):
        raise InvalidRequest(f"handler: {function!r} cannot be called", field="handler")
    check_function(function, "handler", "a function")
    if not isinstance(pass_message, bool):
        raise InvalidRequest(f"pass_message: {pass_message!r}; use True or False", field="pass_message")
    check_seconds("timeout", timeout, 0.001)
    check_seconds("retry_delay", retry_delay, 0)
    handler = Handler(
        function,
        name=getattr(function, "__qualname__", type(function).__name__),
        arguments=_message if pass_message else _body,
        timeout=timeout,
        retry_delay=retry_delay,
        hooks=hooks,
    )
    return Source(queue, lambda message: handler, [handler])


def refuse_coroutine(function: object) -> None:
    if is_coroutine(function):
        raise InvalidRequest(
            f"handler: {function!r} is a coroutine function; use miniq.connect_async for it", field="handler"
        )


def hooks_of(
    before: Callable[[Attempt], object] | None,
    after: Callable[[Attempt], object] | None,
    on_error: Callable[[Any, Exception], object] | None,
) -> Hooks:
    """The hooks of `consume`."""

    def failed(attempt: Attempt) -> None:
        if on_error is not None:
            on_error(attempt.message, attempt.error)  # type: ignore[arg-type]  # hardly ever another BaseException

    return Hooks(
        () if before is None else (before,), () if after is None else (after,), () if on_error is None else (failed,)
    )


def _body(message: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (message.body,), {}


def _message(message: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (message,), {}
