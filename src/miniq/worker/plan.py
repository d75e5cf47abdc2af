"""The worker loop without its I/O: which messages it holds, when it fetches, and what is logged.

A lease is extended after a third of its time, so that two attempts may fail before it is lost. `_async/worker.py` of
the client drives this, with tasks or threads (`crews.py`).
"""

from __future__ import annotations

import inspect
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol

from msgspec import Struct

from miniq.client.delivery import HELD, D, Delivery
from miniq.errors import InvalidRequest, StaleReceipt
from miniq.message import Outcome

log = logging.getLogger("miniq.worker")

LOOK = 0.1
"""Seconds between checks of `stop` while all handlers are busy."""
SLOWEST_RETRY = 5.0
BULK = 500
"""The most leases in one call."""


class Event(Protocol):
    def is_set(self) -> bool: ...


Stop = Event | Callable[[], object] | None
"""`threading.Event`, `asyncio.Event`, or a function that returns whether the worker is to end."""


class Plan(Struct, frozen=True, kw_only=True):
    """The options of a worker."""

    handler: Callable[[Any], Any]
    concurrency: int
    batch: int | None
    wait: float
    visibility_timeout: float | None
    consumer: str | None
    retry_delay: float
    pass_message: bool
    """Whether the handler is called with the message instead of its body."""
    stop: Stop

    def __post_init__(self) -> None:
        if not callable(self.handler):
            raise InvalidRequest(f"handler: {self.handler!r} cannot be called", field="handler")
        for field, count in (("concurrency", self.concurrency), ("batch", self.batch)):
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise InvalidRequest(f"{field}: {count!r} is not a whole number of at least 1", field=field)
        if self.visibility_timeout is not None:
            check_lease(self.visibility_timeout)
        if not isinstance(self.pass_message, bool):
            raise InvalidRequest(f"pass_message: {self.pass_message!r}; use True or False", field="pass_message")
        if not (self.stop is None or hasattr(self.stop, "is_set") or callable(self.stop)):
            raise InvalidRequest(f"stop: {self.stop!r} is neither an Event nor a function", field="stop")

    @property
    def is_coroutine(self) -> bool:
        """Whether the handler is a coroutine function, or an object whose `__call__` is one."""
        call = getattr(self.handler, "__call__", None)  # noqa: B004  not whether, but how it is called
        return inspect.iscoroutinefunction(self.handler) or inspect.iscoroutinefunction(call)

    def stopped(self) -> bool:
        """Whether `stop` says that the worker is to end."""
        if self.stop is None:
            return False
        is_set = getattr(self.stop, "is_set", None)
        return bool(self.stop() if is_set is None else is_set())  # type: ignore[operator]

    def argument(self, message: Delivery[Any]) -> Any:
        """The argument of the handler."""
        return message if self.pass_message else message.body


class Shift(Generic[D]):
    """The messages of one worker loop: fetched and waiting for a free handler, or being handled."""

    def __init__(self, plan: Plan) -> None:
        self.ending = False
        self._plan = plan
        self._waiting: deque[D] = deque()
        self._running: set[D] = set()

    def wanted(self) -> int:
        """How many messages to fetch now: none while some wait or no handler is free."""
        free = self._plan.concurrency - len(self._running)
        if self.ending or self._waiting or free <= 0:
            return 0
        return self._plan.batch or min(free, BULK)

    def add(self, messages: Iterable[D]) -> None:
        self._waiting.extend(messages)

    def start(self) -> D | None:
        """The next message to handle, if there is one and a handler is free. Messages whose lease was lost are
        skipped."""
        while self._waiting and not self.ending and len(self._running) < self._plan.concurrency:
            message = self._waiting.popleft()
            if message._state is HELD:
                self._running.add(message)
                return message
        return None

    def finish(self, message: D) -> None:
        self._running.discard(message)

    def held(self) -> list[list[D]]:
        """The messages whose leases are to be extended, in batches for one call each."""
        return _batches((*self._running, *self._waiting))

    def end(self) -> list[list[D]]:
        """Start no more messages, and return those that were not started, to be released."""
        self.ending = True
        batches = _batches(self._waiting)
        self._waiting.clear()
        return batches


def _batches(messages: Iterable[D]) -> list[list[D]]:
    held = [message for message in messages if message._state is HELD]
    return [held[start : start + BULK] for start in range(0, len(held), BULK)]


class Backoff:
    """Pauses after consecutive failures to receive."""

    def __init__(self) -> None:
        self._next = LOOK

    def failed(self, error: Exception) -> float:
        """Seconds to wait before the next attempt."""
        seconds = self._next
        self._next = min(2 * seconds, SLOWEST_RETRY)
        log.warning("cannot receive, next attempt in %.1f s: %s", seconds, error)
        return seconds

    def worked(self) -> None:
        self._next = LOOK


def check_lease(seconds: float) -> float:
    """Refuse a lease that leaves no time to work."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds <= 0:
        raise InvalidRequest(
            f"visibility_timeout: {seconds!r} leaves no time to work; use a number of seconds above 0",
            field="visibility_timeout",
        )
    return seconds


def note_failure(message: Delivery[Any], error: BaseException) -> None:
    """Log that the handler raised, so that the message is released."""
    log.error("handler failed on message %s of %s", message.id, message.queue, exc_info=error)


def note_lost(messages: Iterable[Delivery[Any]], outcomes: Iterable[Outcome]) -> None:
    """Log leases that were lost to another consumer."""
    for message, outcome in zip(messages, outcomes, strict=True):
        if outcome == "stale":
            log.warning("lost the lease on message %s of %s, another consumer may have it", message.id, message.queue)


def note_unsettled(message: Delivery[Any], verb: str, problem: Exception) -> None:
    """Log that an ack or release failed."""
    if isinstance(problem, StaleReceipt):
        note_lost([message], ["stale"])
    else:
        log.error("could not %s message %s of %s, to be delivered again: %s", verb, message.id, message.queue, problem)


def note_unextended(count: int, problem: Exception) -> None:
    """Log that leases could not be extended; two thirds of their time are left."""
    log.warning("could not extend %d leases, will retry: %s", count, problem)
