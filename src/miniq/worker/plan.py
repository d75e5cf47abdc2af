"""The options of a worker, and what it logs about receiving and leases."""

from __future__ import annotations

import logging
import math
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct

from miniq.client.delivery import Delivery
from miniq.errors import InvalidRequest, StaleReceipt
from miniq.message import Failed

if TYPE_CHECKING:
    from miniq.worker.jobs import Job

log = logging.getLogger("miniq.worker")

LOOK = 0.1
"""Seconds between checks of `stop` while all handlers are busy."""
SLOWEST_RETRY = 5.0
TIMEOUT = 3600.0
"""Seconds that a handler may take by default."""


class Event(Protocol):
    def is_set(self) -> bool: ...


Stop = Event | Callable[[], object] | None
"""`threading.Event`, `asyncio.Event`, or a function that returns whether the worker is to end."""


class Plan(Struct, frozen=True, kw_only=True):
    """The options of a worker."""

    concurrency: int = 1
    batch: int | None = None
    """Messages of one receive; None: by how long the handlers take."""
    wait: float = 1.0
    visibility_timeout: float | None = None
    consumer: str | None = None
    grace: float | None = None
    """Seconds that handlers have to finish when the worker ends; None: as long as they take."""
    stop: Stop = None

    def __post_init__(self) -> None:
        for field, count in (("concurrency", self.concurrency), ("batch", self.batch)):
            check_count(field, count)
        check_seconds("grace", self.grace, 0)
        if self.visibility_timeout is not None:
            check_lease(self.visibility_timeout)
        if not (self.stop is None or hasattr(self.stop, "is_set") or callable(self.stop)):
            raise InvalidRequest(f"stop: {self.stop!r} is neither an Event nor a function", field="stop")

    def stopped(self) -> bool:
        """Whether `stop` says that the worker is to end."""
        if self.stop is None:
            return False
        is_set = getattr(self.stop, "is_set", None)
        return bool(self.stop() if is_set is None else is_set())  # type: ignore[operator]


def check_count(field: str, count: object, of: str | None = None) -> None:
    """Refuse what is neither None nor a count; `of` names the task whose field it is."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        name = field if of is None else f"{of}: {field}"
        raise InvalidRequest(f"{name}: {count!r} is not a whole number of at least 1", field=field)


def check_seconds(field: str, seconds: object, least: float, of: str | None = None) -> None:
    """Refuse what is neither None nor a number of seconds from `least` on; `of` names the task whose field it is."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= least or seconds == math.inf:
        name = field if of is None else f"{of}: {field}"
        raise InvalidRequest(f"{name}: {seconds!r} is not a number of seconds of at least {least:g}", field=field)


def own_name() -> str:
    """The name under which a worker receives if it was given none: its host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


class Backoff:
    """Pauses after consecutive failures to reach the broker."""

    def __init__(self) -> None:
        self._next = LOOK

    def failed(self, error: Exception, doing: str = "receive") -> float:
        """Seconds to wait before the next attempt."""
        seconds = self._next
        self._next = min(2 * seconds, SLOWEST_RETRY)
        log.warning("cannot %s, next attempt in %.1f s: %s", doing, seconds, error)
        return seconds

    def worked(self) -> None:
        self._next = LOOK


def check_lease(seconds: float | None) -> float:
    """Refuse a lease that leaves no time to work."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds <= 0:
        raise InvalidRequest(
            f"visibility_timeout: {seconds!r} leaves no time to work; use a number of seconds above 0",
            field="visibility_timeout",
        )
    return seconds


def note_lost(messages: Iterable[Delivery[Any]], outcomes: Iterable[str]) -> None:
    """Log leases that were lost to another consumer."""
    for message, outcome in zip(messages, outcomes, strict=True):
        if outcome == "stale":
            log.warning("lost the lease on message %s of %s, another consumer may have it", message.id, message.queue)


def note_failed(messages: Iterable[Delivery[Any]], outcomes: Sequence[Failed], dead_letter_queue: str | None) -> None:
    """Log leases that were lost, and messages that are not tried again; the name of their dead-letter queue may be
    unknown."""
    messages = list(messages)
    note_lost(messages, [each.outcome for each in outcomes])
    for message, each in zip(messages, outcomes, strict=True):
        if each.outcome == "dead":
            extra = {"queue": message.queue, "id": message.id, "attempt": message.receives}
            where = dead_letter_queue or f"the dead-letter queue of {message.queue}"
            log.error("message %s failed for good: moved to %s", message.id, where, extra=extra)


def note_unsettled(messages: list[Any], verb: str, problem: Exception) -> None:
    """Log that an ack, fail or release did not succeed."""
    if isinstance(problem, StaleReceipt):
        note_lost(messages, ["stale"] * len(messages))
        return
    more = f" and {len(messages) - 1} more" if len(messages) > 1 else ""
    log.error(
        "could not %s message %s%s of %s, to be delivered again: %s",
        verb, messages[0].id, more, messages[0].queue, problem,
    )  # fmt: skip


def note_unextended(count: int, problem: Exception) -> None:
    """Log that leases could not be extended; two thirds of their time are left."""
    log.warning("could not extend %d leases, will retry: %s", count, problem)


def note_timeout(job: Job[Any]) -> None:
    """Log that a job took too long."""
    message = job.messages[0]
    log.error(
        "%s timed out after %g s on message %s of %s; the message fails",
        job.handler.name, job.handler.timeout, message.id, message.queue, extra=_fields(job),
    )  # fmt: skip


def note_abandoned(job: Job[Any]) -> None:
    """Log that a job did not end in time, so that its messages are released."""
    message = job.messages[0]
    log.warning(
        "%s did not end in time on message %s of %s, released",
        job.handler.name, message.id, message.queue, extra=_fields(job),
    )  # fmt: skip


def _fields(job: Job[Any]) -> dict[str, Any]:
    """What log lines about a job contain."""
    message = job.messages[0]
    return {"queue": message.queue, "task": job.handler.name, "id": message.id, "attempt": message.receives}
