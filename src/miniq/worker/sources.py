"""Where a worker's messages come from: a queue, which handler a message is for, and the batches that fill up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic

from miniq.client.delivery import D
from miniq.worker.jobs import Handler, Job


class Source(Generic[D]):
    """A queue of a worker. Messages of a batch handler are gathered until the batch is full or its linger is over."""

    def __init__(self, queue: Any, route: Callable[[D], Handler], handlers: Sequence[Handler]) -> None:
        self.queue = queue
        self.route = route
        self.unit = max((handler.batch or 1 for handler in handlers), default=1)
        """The messages of the largest job."""
        self.timeouts = min((handler.timeout or math.inf for handler in handlers), default=math.inf)
        self.result_bytes: int | None = None
        """The size that the result of a message may have; None while its queue keeps none."""
        self._gathered: dict[Handler, Job[D]] = {}

    def jobs(self, messages: Iterable[D], now: float) -> list[Job[D]]:
        """The jobs that are ready after these messages have arrived."""
        jobs = []
        for message in messages:
            handler = self.route(message)
            if handler.batch is None:
                jobs.append(Job(self, handler, [message], now))
                continue
            job = self._gathered.get(handler)
            if job is None:
                self._gathered[handler] = Job(self, handler, [message], now)
            else:
                job.messages.append(message)
                job.size += 1
            if self._gathered[handler].size >= handler.batch:
                jobs.append(self._gathered.pop(handler))
        return jobs + self._due(now)

    def wait(self, seconds: float, now: float) -> float:
        """How long to wait for messages, given how long one would wait otherwise."""
        return min([seconds, *(max(0.0, job.added + job.handler.linger - now) for job in self._gathered.values())])

    def missing(self, wanted: int) -> int:
        """How many messages to receive: not more than fill the batches."""
        return min([wanted, *(job.handler.batch - job.size for job in self._gathered.values() if job.handler.batch)])

    def rest(self) -> list[Job[D]]:
        """What was gathered, at the end."""
        return self._due(math.inf)

    def _due(self, now: float) -> list[Job[D]]:
        due = [handler for handler, job in self._gathered.items() if now >= job.added + handler.linger]
        return [self._gathered.pop(handler) for handler in due]
