"""The jobs of one worker, without I/O: what it fetches, what runs, what is to be settled, which leases are extended.

Jobs move from waiting to running to finished. Fetched messages wait only if handlers are quick: as many as keep them
busy for a tenth of a second are fetched ahead, so that slow work stays available to other workers. A lease is extended
after a third of its time, so that two attempts may fail before it is lost, and never past the handler's timeout.

All methods may be called from any thread.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable
from time import monotonic
from typing import Any, Generic, NamedTuple

from msgspec import UNSET, Raw

from miniq.client.delivery import HELD, D
from miniq.worker.jobs import Failure, Job, Trial, Verdict, note_timeout
from miniq.worker.plan import Plan

BULK = 500
"""The most leases in one call."""
RESULTS = 4 * 1024 * 1024
"""The most bytes of results in one call."""
AHEAD = 0.1
"""Seconds of work that are fetched ahead."""
OVERDUE = 2.0
"""Seconds after which messages that were fetched ahead are released if all handlers are busy with other work."""
SLACK = 1.0
"""Seconds by which a lease outlives the handler's timeout, in which the worker can report it."""


class Batch(NamedTuple):
    """Messages of one queue that are settled by one call."""

    source: Any
    messages: list[Any]
    verdict: Verdict
    failure: Failure | None = None
    results: list[Raw] = []  # noqa: RUF012
    """Of acks: one per message, or none at all."""
    is_unused: bool = False
    """Of a release: whether no handler has begun with the messages."""


class Renewal(NamedTuple):
    """Leases of one queue that are extended by one call, for so many seconds."""

    source: Any
    messages: list[Any]
    seconds: float


class Shift(Generic[D]):
    """The jobs of one worker."""

    def __init__(self, plan: Plan, sources: int = 1) -> None:
        self.ending = False
        self.lease: float | None = None
        """Seconds of a lease, once one was received."""
        self.timeouts = math.inf
        """The shortest timeout of a handler."""
        self.unit = 1
        """The messages of the largest job."""
        self.on_finish: Callable[[Job[D]], None] | None = None
        """Called with each job that ended."""
        self._plan = plan
        self._lock = threading.Lock()
        self._waiting: dict[Job[D], None] = {}
        self._running: dict[Job[D], None] = {}
        self._finished: deque[Job[D]] = deque()
        self._settling: list[tuple[Any, D]] = []
        self._held: dict[int, int] = {}
        """Messages that wait or run, by the identity of their queue."""
        self._total = 0
        self._mean: float | None = None
        """Seconds that a handler takes, averaged over the last ones."""
        self._ahead = 0
        self._low = plan.concurrency - 1
        self._fetching = sources
        self._ended: float | None = None
        self._is_abandoned = False
        self._is_hurried = False
        self._extended = 0.0

    # Fetching

    def wanted(self, source: object) -> int:
        """How many messages of a queue to fetch now. While others have messages too, each gets an equal share."""
        plan = self._plan
        with self._lock:
            if self.ending:
                return 0
            if plan.batch is not None:
                return 0 if self._waiting or len(self._running) >= plan.concurrency else plan.batch
            mine = self._held.get(id(source), 0)
            queues = 1 + sum(1 for key, count in self._held.items() if count and key != id(source))
            limit = plan.concurrency * self.unit + self._ahead
            room = max(limit - self._total, max(1, limit // queues) - mine)
            return min(BULK, room) if room >= max(1, self._ahead // 2 // queues) else 0

    def add(self, jobs: Iterable[Job[D]]) -> list[Job[D]]:
        """Take jobs, and return those to run: none at the end, when they are released."""
        with self._lock:
            jobs = list(jobs)
            if self.ending:
                self._finished.extend(jobs)
                return []
            for job in jobs:
                self._waiting[job] = None
                key = id(job.source)
                self._held[key] = self._held.get(key, 0) + job.size
                self._total += job.size
            return jobs

    def end_fetch(self) -> None:
        """One queue is fetched from no more."""
        with self._lock:
            self._fetching -= 1

    # Running

    def begin(self, job: Job[D]) -> bool:
        """Whether to run a job now: not if its lease was lost, it was released, or the worker ends."""
        with self._lock:
            if job not in self._waiting or self.ending:
                return False
            del self._waiting[job]
            if job.is_lost():
                self._forget(job)
                return False
            job.begin(monotonic())
            self._running[job] = None
            return True

    def finish(self, job: Job[D], trial: Trial | None = None) -> bool:
        """Note that a job ended; False if that was decided before, by its timeout or the end of the worker."""
        with self._lock:
            if job not in self._running:
                return False
            del self._running[job]
            if trial is not None:
                job.take(trial)
            self._finish(job)
        self._report([job])
        return True

    def _finish(self, job: Job[D]) -> None:
        self._forget(job)
        self._finished.append(job)
        assert job.started is not None  # noqa: S101
        job.seconds = monotonic() - job.started
        self._note_pace(job.seconds / job.size)

    def _report(self, jobs: Iterable[Job[D]]) -> None:
        if self.on_finish is not None:
            for job in jobs:
                self.on_finish(job)

    def _forget(self, job: Job[D]) -> None:
        self._held[id(job.source)] -= job.size
        self._total -= job.size

    def _note_pace(self, seconds: float) -> None:
        self._mean = seconds if self._mean is None else 0.9 * self._mean + 0.1 * seconds
        concurrency = self._plan.concurrency
        self._ahead = min(BULK, max(0, int(concurrency * AHEAD / max(self._mean, 1e-6)) - concurrency))
        self._low = concurrency * self.unit + self._ahead // 2 - 1

    def is_low(self) -> bool:
        """Whether more is to be fetched."""
        return self._total <= self._low

    def load(self) -> tuple[int, int]:
        """How many jobs run, and how many messages wait."""
        with self._lock:
            return len(self._running), sum(job.size for job in self._waiting)

    # Settling

    def lingers(self) -> bool:
        """Whether an ack should wait a little for others: more jobs are about to end, and no group waits for it."""
        with self._lock:
            if self.ending or not (self._waiting or self._running) or len(self._finished) >= BULK:
                return False
            return not any(message.group is not None for job in self._finished for message in job.messages)

    def settlements(self) -> list[Batch]:
        """What became of the jobs that ended, in calls."""
        with self._lock:
            keeps = self._may_return()
            jobs = [job for job in self._finished if not keeps or job.verdict != "release"]
            self._finished = deque(job for job in self._finished if keeps and job.verdict == "release")
            groups: dict[Any, Batch] = {}
            for job in jobs:
                for message in job.messages:
                    if message._state is HELD:
                        self._settle(groups, job, message)
                for message, failure in job.apart:
                    self._settle(groups, job, message, failure)
            self._settling = [(batch.source, message) for batch in groups.values() for message in batch.messages]
        return [part for batch in groups.values() for part in _parts(batch)]

    def _may_return(self) -> bool:
        """Whether what is released could be received again by this worker, which is ending."""
        return self.ending and self._fetching > 0 and not self._is_hurried

    def _settle(
        self,
        groups: dict[Any, Batch],
        job: Job[D],
        message: D,
        apart: Failure | None = None,
    ) -> None:
        """Add a message to the batch that it is settled with; `apart` is its failure if it failed by itself."""
        source, verdict, failure, result = job.source, job.verdict, job.failure, job.encoded
        if apart is not None:
            verdict, failure, result = "fail", apart, UNSET
        kept = result is not UNSET and verdict == "ack"
        unused = verdict == "release" and job.started is None
        key = (id(source), verdict, failure, kept, unused)
        batch = groups.setdefault(key, Batch(source, [], verdict, failure, [], unused))
        batch.messages.append(message)
        if result is not UNSET and kept:
            batch.results.append(result)

    def settled(self) -> None:
        """The settlements have been made."""
        with self._lock:
            self._settling = []

    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        with self._lock:
            return self.ending and not (self._fetching or self._running or self._finished)

    # Leases, timeouts, the end

    def renewals(self, now: float) -> list[Renewal]:
        """The leases to extend now."""
        lease = self.lease
        if lease is None or now < self._extended + lease / 3:
            return []
        self._extended = now
        groups: dict[tuple[int, float], Renewal] = {}
        with self._lock:
            for job in self._running:
                job.note_settled()
            held = [(job.source, message, job.deadline) for job in (*self._running, *self._waiting, *self._finished)
                    for message in job.messages]  # fmt: skip
            held += [(source, message, None) for source, message in self._settling]
        for source, message, deadline in held:
            if message._state is not HELD:
                continue
            seconds = lease if deadline is None else min(lease, max(1.0, math.ceil(deadline + SLACK - now)))
            renewal = groups.setdefault((id(source), seconds), Renewal(source, [], seconds))
            renewal.messages.append(message)
        return [
            Renewal(renewal.source, renewal.messages[start : start + BULK], renewal.seconds)
            for renewal in groups.values()
            for start in range(0, len(renewal.messages), BULK)
        ]

    def next_renewal(self, now: float) -> float | None:
        """Seconds until leases are extended; None while there are none."""
        return None if self.lease is None else max(0.0, self._extended + self.lease / 3 - now)

    def received(self, seconds: float) -> None:
        """The length of leases, as the broker said."""
        if self.lease is None:
            self._extended = monotonic()
        self.lease = seconds if self.lease is None else min(self.lease, seconds)

    def expire(self, now: float) -> list[Job[D]]:
        """Fail the jobs whose time is over; returns them."""
        with self._lock:
            late = [job for job in self._running if job.deadline is not None and job.deadline <= now]
            for job in late:
                del self._running[job]
                job.note_settled()
                job.fail(Failure(f"timeout: not done after {job.handler.timeout:g} s", job.handler.retry_delay))
                self._finish(job)
        self._report(late)
        for job in late:
            note_timeout(job)
        return late

    def abandon(self, at_once: bool = False) -> list[Job[D]]:
        """Release the jobs that still run: the worker has no more time; `at_once`, not even for a receive to end."""
        with self._lock:
            self._is_hurried = at_once
            self._is_abandoned = True
            jobs = list(self._running)
            self._running.clear()
            for job in jobs:
                job.note_settled()
                job.verdict = "release"
                self._finish(job)
        self._report(jobs)
        return jobs

    def overdue(self, now: float) -> None:
        """Release what was fetched ahead and waits for long, because all handlers are busy with other work."""
        if self._plan.batch is not None:
            return
        with self._lock:
            if not self._waiting or len(self._running) < self._plan.concurrency:
                return
            first = next(iter(self._waiting))
            if now - first.added >= OVERDUE:
                self._note_pace(10 * (now - first.added))
                self._release_waiting()

    def end(self) -> None:
        """Start no more jobs, and release those that wait."""
        with self._lock:
            self.ending = True
            if self._ended is None:
                self._ended = monotonic()
            self._release_waiting()

    def _release_waiting(self) -> None:
        for job in self._waiting:
            self._forget(job)
            self._finished.append(job)
        self._waiting.clear()

    def next_look(self, now: float) -> float | None:
        """Seconds until something is due: a timeout, the end of the grace time. None: nothing."""
        with self._lock:
            moments = [job.deadline for job in self._running if job.deadline is not None]
            moments.append(now + self.timeouts)
            if self._waiting:
                moments.append(now + OVERDUE)
        if self._ended is not None and self._plan.grace is not None and not self._is_abandoned:
            moments.append(self._ended + self._plan.grace)
        earliest = min(moments)
        return None if earliest == math.inf else max(0.0, earliest - now)

    def is_out_of_time(self, now: float) -> bool:
        """Whether the grace time is over."""
        if self._ended is None or self._plan.grace is None or self._is_abandoned:
            return False
        return now >= self._ended + self._plan.grace


def _parts(batch: Batch) -> Iterable[Batch]:
    bulk = BULK
    if batch.results:  # a request has a limit, too
        largest = max(len(bytes(result)) for result in batch.results)
        bulk = max(1, min(BULK, RESULTS // max(1, largest)))
    for start in range(0, len(batch.messages), bulk):
        part = slice(start, start + bulk)
        yield batch._replace(messages=batch.messages[part], results=batch.results[part])
