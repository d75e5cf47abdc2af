"""Calls to the broker that run one ahead: while a task waits for the next reply, Spark works on the last one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(calls: Iterable[Callable[[], T]]) -> Iterator[T]:
    """The results of calls, in order. Each call runs in another thread while the result of the one before it is used,
    and while `calls` prepares the next."""
    with ThreadPoolExecutor(1, "miniq-ahead") as thread:
        running: Future[T] | None = None
        for call in calls:
            started = thread.submit(call)
            if running is not None:
                yield running.result()
            running = started
        if running is not None:
            yield running.result()
