"""A handler, and one attempt to handle a message with it: its arguments, its hooks, and what becomes of the message.

The attempt is the same for functions in threads and for coroutines: only the call itself differs.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.client.bodies import encode_result
from miniq.client.delivery import ACKED, FAILED, HELD, RELEASED, D, Delivery
from miniq.client.failure import Reject, beginning, error_text, without_own_frames
from miniq.errors import InvalidRequest
from miniq.worker.plan import TIMEOUT

log = logging.getLogger("miniq.worker")

UNKEPT = "the task is done, but what it returned cannot be kept"
Verdict = Literal["ack", "fail", "release"]
Result = Literal["done", "failed", "released"]
"""What became of a message."""
RESULTS: dict[Verdict, Result] = {"ack": "done", "fail": "failed", "release": "released"}
_BY_HAND: dict[str, Result] = {ACKED: "done", FAILED: "failed", RELEASED: "released"}

_current: ContextVar[Delivery[Any] | None] = ContextVar("message", default=None)


class Unfit(Reject):
    """The body is not what the handler's annotations say."""


class BadResult(Reject):
    """The return value of a task cannot be kept. The work is done: to repeat it would end the same way."""


class NoneFits(Unfit):
    """No body of a batch is; each has failed by itself."""


class Failure(Struct, frozen=True):
    """Why a message failed, when to try again (None: as the queue's `retry` says), and whether it is final."""

    error: str
    delay: float | None = None
    dead: bool = False


class Attempt(Struct):
    """What hooks see: one attempt to handle a message."""

    task: str
    """The name of the task or handler."""
    message: Delivery[Any]
    """The message; of a batch, the first one."""
    messages: Sequence[Delivery[Any]]
    result: Any = None
    error: BaseException | None = None
    seconds: float = 0.0


Hook = Callable[[Attempt], object]


class Hooks(Struct, frozen=True):
    """Functions that are called around each attempt, in the thread or task of the handler. An exception of `before` is
    a failure of the attempt; exceptions of the others are logged."""

    before: Sequence[Hook] = ()
    after: Sequence[Hook] = ()
    failed: Sequence[Hook] = ()
    around: Callable[[Attempt], AbstractContextManager[object]] | None = None
    """Opens a context around the handler, such as a span."""


class Handler:
    """A function that handles messages, and how it is called."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str,
        arguments: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]],
        timeout: float | None = TIMEOUT,
        retry_delay: float | None = None,
        batch: int | None = None,
        linger: float = 0.0,
        hooks: Hooks | None = None,
        view: Callable[[Any], Delivery[Any]] | None = None,
        has_result: bool = False,
        read: Callable[[Any], Any] | None = None,
    ) -> None:
        self.function = function
        self.name = name
        self.arguments = arguments
        """The arguments for a message; if it handles batches, for the bodies and messages."""
        self.timeout = timeout
        self.retry_delay = retry_delay
        self.batch = batch
        """The most messages of one call; None if it takes one message."""
        self.linger = linger
        """Seconds to wait for a batch to fill up."""
        self.hooks = hooks or Hooks()
        self.read = read or _body
        """The body of a message of a batch."""
        self.view = view
        """Makes the message that the function and hooks see, if that is another object than the worker's own."""
        self.has_result = has_result
        """Whether what it returns is a result, to be kept where the queue does."""
        self.is_coroutine = is_coroutine(function)


def _body(message: Delivery[Any]) -> Any:
    return message.body


def is_coroutine(function: Any) -> bool:
    """Whether it is a coroutine function, or an object whose `__call__` is one."""
    call = getattr(function, "__call__", None)  # noqa: B004  not whether, but how it is called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)


class Job(Generic[D]):
    """Some messages and their handler: one, or a batch."""

    __slots__ = ("added", "apart", "attempt", "deadline", "encoded", "failure", "handler", "is_given_up", "messages",
                 "seconds", "shown", "size", "source", "started", "task", "verdict")  # fmt: skip

    def __init__(self, source: Any, handler: Handler, messages: list[D], added: float) -> None:
        self.source = source
        """The queue that it came from."""
        self.handler = handler
        self.messages = messages
        self.shown: list[Any] = messages
        """The same as the handler has them, which may settle them itself."""
        self.size = len(messages)
        self.added = added
        self.started: float | None = None
        self.seconds = 0.0
        self.deadline: float | None = None
        self.verdict: Verdict = "release"
        self.failure: Failure | None = None
        self.encoded: Raw | UnsetType = UNSET
        """What it came to, as JSON."""
        self.apart: list[tuple[D, Failure]] = []
        """Messages of a batch that failed by themselves."""
        self.attempt: Attempt | None = None
        self.task: asyncio.Task[None] | None = None
        self.is_given_up = False
        """Whether the worker decided what becomes of it while it ran."""

    def begin(self, now: float) -> None:
        self.started = now
        if self.handler.timeout is not None:
            self.deadline = now + self.handler.timeout

    def fail(self, failure: Failure) -> None:
        self.verdict = "fail"
        self.failure = failure

    def take(self, trial: Trial) -> None:
        """Take over what an attempt came to."""
        self.messages, self.shown, self.apart = trial.messages, trial.shown, trial.apart
        self.verdict, self.failure, self.encoded = trial.verdict, trial.failure, trial.encoded
        self.attempt = trial.attempt

    def note_settled(self) -> None:
        """Take over what the handler has settled itself."""
        _copy_states(self.shown, self.messages)

    def results(self) -> dict[Result, list[D]]:
        """What became of its messages, but for those apart: as the handler settled them itself, or as the verdict
        is."""
        otherwise = RESULTS[self.verdict]
        if self.size == 1 and self.messages:
            return {_BY_HAND.get(self.messages[0]._state, otherwise): self.messages}
        results: dict[Result, list[D]] = {}
        for message in self.messages:
            results.setdefault(_BY_HAND.get(message._state, otherwise), []).append(message)
        return results

    def is_lost(self) -> bool:
        """Whether no message of it is leased any more."""
        return not any(message._state is HELD for message in self.messages)


class Trial:
    """`with Trial(job) as trial:` is an attempt; what the block raises becomes a verdict.

    Every exception of the handler is a failure, also `SystemExit` and `CancelledError`, unless the worker cancelled it.
    One that the handler may not have raised itself, as Ctrl-C in the main thread, is also kept in `fatal`: it ends the
    worker.
    """

    __slots__ = ("_around", "_job", "_quiet", "_token", "apart", "attempt", "encoded", "failure", "fatal", "messages",
                 "result", "shown", "verdict")  # fmt: skip

    def __init__(self, job: Job[Any], quiet: bool = False) -> None:
        self._job = job
        self._quiet = quiet
        self._around: AbstractContextManager[object] | None = None
        self.messages: list[Any] = job.messages
        self.apart: list[tuple[Any, Failure]] = []
        """Messages of a batch that failed by themselves."""
        self.verdict: Verdict = "release"
        self.failure: Failure | None = None
        self.result: Any = None
        self.encoded: Raw | UnsetType = UNSET
        self.fatal: BaseException | None = None

    def __enter__(self) -> Trial:
        job = self._job
        self.shown = job.messages
        self.attempt = Attempt(job.handler.name, job.messages[0], job.messages)
        self._token: Token[Delivery[Any] | None] = _current.set(job.messages[0])
        return self

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Open the context, call `before`, and return the arguments of the function."""
        job, hooks, view = self._job, self._job.handler.hooks, self._job.handler.view
        if view is not None:
            job.shown = self.shown = self.attempt.messages = [view(message) for message in job.messages]
            self.attempt.message = self.shown[0]
            _current.set(self.shown[0])
        if hooks.around is not None:
            around = hooks.around(self.attempt)
            around.__enter__()
            self._around = around
        for hook in hooks.before:
            hook(self.attempt)
        if job.handler.batch is None:
            return job.handler.arguments(self.shown[0])
        return self._batch_arguments()

    def _batch_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the messages of a batch that fit; the others fail by themselves."""
        job = self._job
        fitting, bodies, shown = [], [], []
        for message, view in zip(job.messages, self.shown, strict=True):
            try:
                bodies.append(job.handler.read(view))
            except Exception as error:
                self.apart.append((message, failure_of(error, None)))
                self._note_unfit(view, error)
            else:
                fitting.append(message)
                shown.append(view)
        self.messages, self.shown = fitting, shown
        if not fitting:
            raise NoneFits(f"none of {job.size} messages fits")
        return job.handler.arguments((bodies, shown))

    def _note_unfit(self, message: Delivery[Any], error: Exception) -> None:
        """Log a message of a batch that the handler is not called with, and call the hooks of failures."""
        attempt = Attempt(self.attempt.task, message, [message], error=error)
        if not self._quiet:
            note_failure(attempt, error)
        _call(self._job.handler.hooks.failed, attempt)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        job, attempt = self._job, self.attempt
        handler = job.handler
        attempt.seconds = monotonic() - (job.started or 0.0)
        _copy_states(self.shown, self.messages)
        error = error or self._encode()
        try:
            if error is None:
                self.verdict, attempt.result = "ack", self.result
                if not job.is_given_up:
                    _call(handler.hooks.after, attempt)
            elif not (job.is_given_up and isinstance(error, asyncio.CancelledError)):
                attempt.error = error
                if _is_fatal(error, handler):
                    self.fatal = error
                error.__traceback__ = without_own_frames(at)
                self.verdict, self.failure = "fail", failure_of(error, handler.retry_delay)
                if not isinstance(error, NoneFits):
                    if not self._quiet:
                        note_failure(attempt, error)
                    _call(handler.hooks.failed, attempt)
        finally:
            if self._around is not None:
                self._around.__exit__(None if error is None else type(error), error, at)
            _current.reset(self._token)
        return True

    def _encode(self) -> BadResult | None:
        """Encode the result, if it is to be kept; why that is not possible."""
        if self.result is None or not self._job.handler.has_result or self.messages[0]._state is not HELD:
            return None
        most = self._job.source.result_bytes
        if most is None:
            return None
        try:
            encoded = encode_result(self.result)
        except InvalidRequest as problem:
            return BadResult(f"{problem}; {UNKEPT}")
        if (size := len(bytes(encoded))) > most:
            return BadResult(f"result: {size} bytes; at most {most}; {UNKEPT}")
        self.encoded = encoded
        return None


def _copy_states(shown: Sequence[Delivery[Any]], messages: Sequence[Delivery[Any]]) -> None:
    if shown is not messages:
        for view, message in zip(shown, messages, strict=True):
            message._state = view._state


def _is_fatal(error: BaseException, handler: Handler) -> bool:
    """Whether it may come from outside: Ctrl-C reaches the main thread, and a coroutine that is closed gets an exit."""
    if isinstance(error, KeyboardInterrupt):
        return threading.current_thread() is threading.main_thread()
    return isinstance(error, GeneratorExit) and handler.is_coroutine


def current_message() -> Any:
    """The message that the current thread or task handles: a `miniq.Message` in functions, a `miniq.AsyncMessage` in
    coroutines; None elsewhere."""
    return _current.get()


def failure_of(error: BaseException, delay: float | None) -> Failure:
    """What a broker is told about an exception."""
    text = beginning(str(error)) if isinstance(error, Unfit | BadResult) else error_text(error)
    return Failure(text, delay, isinstance(error, Reject))


def note_failure(attempt: Attempt, error: BaseException) -> None:
    """Log that a handler raised, with a traceback unless the message is at fault."""
    message, trace = attempt.message, None if isinstance(error, Reject) else error
    text = f": {error}" if trace is None else ""
    more = f" and {len(attempt.messages) - 1} more" if attempt.messages[1:] else ""
    log.error(
        "handler failed on message %s%s of %s%s",
        message.id, more, message.queue, text, exc_info=trace, extra=fields(attempt),
    )  # fmt: skip


def note_results(job: Job[Any], attempt: Attempt) -> None:
    """Log that a handler returned, and what became of its messages."""
    for result, messages in job.results().items():
        level = logging.WARNING if result == "failed" else logging.INFO
        if log.isEnabledFor(level):
            by_hand = "" if result == "done" else " by its handler"
            more = {"messages": len(messages)} if job.handler.batch is not None else {}
            log.log(level, "%s%s", result, by_hand, extra=fields(attempt) | {"id": messages[0].id} | more)


def note_timeout(job: Job[Any]) -> None:
    """Call the hooks of failures for a job that took too long; its handler may never end."""
    handler = job.handler
    messages = job.messages if handler.view is None else [handler.view(message) for message in job.messages]
    attempt = Attempt(handler.name, messages[0], messages)
    attempt.seconds = handler.timeout or 0.0
    attempt.error = TimeoutError("" if job.failure is None else job.failure.error)
    _call(handler.hooks.failed, attempt)


def fields(attempt: Attempt) -> dict[str, Any]:
    """What log lines about an attempt contain."""
    message = attempt.message
    return {
        "queue": message.queue,
        "task": attempt.task,
        "id": message.id,
        "attempt": message.receives,
        "ms": round(attempt.seconds * 1000, 1),
    }


def _call(hooks: Iterable[Hook], attempt: Attempt) -> None:
    for hook in hooks:
        try:
            hook(attempt)
        except Exception as problem:
            log.error("hook %r failed: %s", hook, problem, exc_info=problem, extra=fields(attempt))
