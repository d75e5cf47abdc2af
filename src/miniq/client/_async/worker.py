"""The worker loop: for each queue one task or thread receives, one settles what handlers have done, one extends leases
and one watches timeouts. The handlers run in threads or tasks of their own (`worker/crews.py`).

Acks share calls: while one call is made, and for some milliseconds while more work is about to end, others gather.
Every exception of an ack, fail, release or extend is caught: the message is delivered again anyway, and a thread that
died would go unnoticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from miniq.api.operations import Receive
from miniq.client._async.message import AsyncMessage
from miniq.client.pauses import AsyncBell, async_pause
from miniq.errors import StoreUnavailable
from miniq.message import Failed, Leased
from miniq.worker import plan as rules
from miniq.worker.crews import AsyncCrew
from miniq.worker.jobs import Job, Trial
from miniq.worker.plan import LOOK, Backoff, Plan
from miniq.worker.shift import Batch, Shift
from miniq.worker.sources import Source

if TYPE_CHECKING:
    from miniq.client._async.queue import AsyncQueue

LINGER = 0.003
"""Seconds that an ack waits for others."""


class AsyncWorker:
    """One run of `AsyncQueue.consume`, or of an app's worker, which has several queues."""

    def __init__(self, sources: Sequence[Source[AsyncMessage]], plan: Plan) -> None:
        self._sources = sources
        self._plan = plan
        self._shift: Shift[AsyncMessage] = Shift(plan, len(sources))
        self._shift.unit = max(source.unit for source in sources)
        self._shift.timeouts = min(source.timeouts for source in sources)
        self._crew = AsyncCrew(plan.concurrency, self._shift, self._finish)
        self._rooms = [AsyncBell() for _ in sources]
        """Rung when more may be received."""
        self._finished = AsyncBell()
        """Rung when there is something to settle, and at the end."""
        self._leased = AsyncBell()
        """Rung when there are leases to extend, and at the end."""
        self._changed = AsyncBell()
        """Rung when the next timeout may be sooner, and at the end."""
        self._over = asyncio.Event()
        """Set when nothing is left to do."""
        self._error: BaseException | None = None
        self.on_timeout: Callable[[Job[Any]], None] | None = None
        """Called with each job that took too long."""

    @property
    def shift(self) -> Shift[AsyncMessage]:
        return self._shift

    async def run(self) -> None:
        """Work until stopped or interrupted; raise the error that ended it, if any."""
        self._crew.start(self._keep)
        self._crew.start(self._watch)
        fetchers = [partial(self._fetch, source, room) for source, room in zip(self._sources, self._rooms, strict=True)]
        try:
            await self._crew.run([*fetchers, self._settle], self.end, partial(self._abandon, at_once=True))
        finally:
            # Also after a second interruption: the leases of handlers that still run expire.
            self._over.set()
            self.end()
            await self._crew.finish()
        if self._error is not None:
            raise self._error

    def end(self, error: BaseException | None = None) -> None:
        """Begin to end: receive and start no more; the first error is raised by `run`."""
        self._error = self._error or error
        self._shift.end()
        for bell in (*self._rooms, self._finished, self._leased, self._changed):
            bell.ring()

    # Receiving

    async def _fetch(self, source: Source[AsyncMessage], room: AsyncBell) -> None:
        """Receive whenever a handler will be free; release what was not started at the end."""
        try:
            await self._fetch_until_stopped(source, room)
        except BaseException as error:
            self.end(error)
        self.end()
        self._shift.add(source.rest())
        self._shift.end_fetch()
        self._finished.ring()

    async def _fetch_until_stopped(self, source: Source[AsyncMessage], room: AsyncBell) -> None:
        plan, timeout, backoff, queue = self._plan, self._plan.visibility_timeout, Backoff(), source.queue
        while not (plan.stopped() or self._shift.ending):
            wanted = source.missing(self._shift.wanted(source))
            leased = Leased()
            if not wanted:
                await room.wait(LOOK)
            else:
                try:
                    wait = source.wait(plan.wait, monotonic())
                    leased = await queue._perform(Receive(queue.name, wanted, wait, timeout, plan.consumer))
                    backoff.worked()
                except StoreUnavailable as error:
                    await async_pause(self._over, backoff.failed(error))
            if leased:
                try:
                    source.result_bytes = leased.result_bytes
                    timeout = rules.check_lease(leased.seconds)
                    self._shift.received(timeout)
                    self._leased.ring()
                except Exception as error:
                    self.end(error)
            jobs = source.jobs([AsyncMessage(queue, stored) for stored in leased], monotonic())
            if jobs:
                self._crew.submit(self._shift.add(jobs))
                self._changed.ring()

    # Settling

    def _finish(self, job: Job[Any], trial: Trial) -> bool:
        """Note that a job ended, in its thread or task; False if it took too long and was settled before."""
        if trial.fatal is not None:
            self.end(trial.fatal)
        counts = self._shift.finish(job, trial)
        self._finished.ring()
        if self._shift.is_low():
            for room in self._rooms:
                room.ring()
        return counts

    async def _settle(self) -> None:
        """Ack, fail or release the messages of jobs that ended."""
        try:
            await self._settle_until_over()
        except BaseException as error:
            self.end(error)
            raise

    async def _settle_until_over(self) -> None:
        while not self._shift.is_over():
            await self._finished.wait()
            if self._shift.lingers():
                await async_pause(self._over, LINGER)
            for batch in self._shift.settlements():
                await self._settle_batch(batch)
            self._shift.settled()
        self._over.set()

    async def _settle_batch(self, batch: Batch) -> None:
        queue: AsyncQueue = batch.source.queue
        messages = batch.messages
        try:
            if batch.verdict == "ack":
                rules.note_lost(messages, await queue.ack(messages, batch.results or None))
            elif batch.failure is not None:
                error, dead = batch.failure.error, batch.failure.dead
                delay = None if dead else batch.failure.delay
                outcomes = await queue.fail(messages, error, delay, dead)
                rules.note_failed(messages, outcomes, await self._dead_letter_queue(queue, outcomes))
            else:
                rules.note_lost(messages, await queue.release(messages, unused=batch.is_unused))
        except Exception as problem:
            rules.note_unsettled(messages, batch.verdict, problem)

    async def _dead_letter_queue(self, queue: AsyncQueue, outcomes: Sequence[Failed]) -> str | None:
        """Where messages went, if one has failed for good and the worker's key may know."""
        if any(each.outcome == "dead" for each in outcomes):
            with suppress(Exception):
                return (await queue.info()).settings.dead_letter_queue or f"{queue.name}.dead"
        return None

    # Leases and timeouts

    async def _keep(self) -> None:
        """Extend all leases at regular intervals."""
        while not self._over.is_set():
            await self._leased.wait(self._shift.next_renewal(monotonic()))
            for source, messages, seconds in self._shift.renewals(monotonic()):
                try:
                    rules.note_lost(messages, await source.queue.extend(messages, seconds))
                except Exception as problem:
                    rules.note_unextended(len(messages), problem)

    async def _watch(self) -> None:
        """Fail jobs that take too long, and release what still runs when the grace time is over."""
        while not self._over.is_set():
            await self._changed.wait(self._shift.next_look(monotonic()))
            now = monotonic()
            for job in self._shift.expire(now):
                rules.note_timeout(job)
                self._crew.cancel(job)
                if self.on_timeout is not None:
                    self.on_timeout(job)
            self._shift.overdue(now)
            if self._shift.is_out_of_time(now):
                self._abandon()
            self._finished.ring()

    def _abandon(self, at_once: bool = False) -> None:
        """Release what still runs."""
        for job in self._shift.abandon(at_once):
            rules.note_abandoned(job)
            self._crew.cancel(job)
        self._finished.ring()
