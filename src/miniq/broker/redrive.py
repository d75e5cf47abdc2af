"""Redrives: dead letters moved back to their source queue, at once or in the background at a limited rate."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from miniq.broker import rules
from miniq.broker.catalog import CheckNew
from miniq.errors import InvalidRequest, MiniQError, NoSpace, QueueFull, QueueNotFound, TooManyQueues, show
from miniq.message import Message, RedriveProgress, Stored
from miniq.store.arguments import FREE, Fence, Scan

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.redrive")
PAGE = 500
PATIENCE = 2.0
"""Seconds after which a client of a server gets the reply, while its redrive goes on in the background."""


MaySend = Callable[[str], bool]
"""Whether the caller may still send to a queue."""


class _Job:
    def __init__(self, queue: str, to: str | None, may_send: MaySend | None, check_new: CheckNew | None) -> None:
        self.queue = queue
        self.to = to
        self.may_send = may_send
        self.check_new = check_new
        self.moved = 0
        self.skipped: Counter[str] = Counter()
        """Messages by the reason why they were skipped."""
        self.running = True
        self.task: asyncio.Task[None] | None = None

    def progress(self) -> RedriveProgress:
        return RedriveProgress(self.moved, self.skipped.total(), self.running, dict(self.skipped))


class Redrives:
    """The redrives of a broker. A queue has at most one in the background; a new one replaces it."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._jobs: dict[str, _Job] = {}

    def progress(self, queue: str) -> RedriveProgress | None:
        """The progress of a queue's latest background redrive."""
        job = self._jobs.get(queue)
        return None if job is None else job.progress()

    async def run(
        self,
        queue: str,
        ids: Sequence[str] | None,
        to: str | None,
        rate: float | None,
        may_send: MaySend | None = None,
        check_new: CheckNew | None = None,
        patience: float | None = None,
    ) -> RedriveProgress:
        """Move messages and return the counts; with `rate` (messages per second), start in the background, and go on
        there after `patience` seconds, unless it is for some `ids`. `may_send` restricts the queues to which messages
        are moved, `check_new` those that are created for them."""
        broker = self._broker
        if ids is not None:
            rules.check_batch(ids, "ids", broker.options.limits)
        if to is not None:
            rules.check_name(to, "to")
            if to == queue:
                raise InvalidRequest(f"to: {to!r} is the source queue; choose another", field="to")
            await self._check_target(to, check_new)
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1e6):
            raise InvalidRequest(f"rate: {show(rate)} is out of range; use more than 0, at most 1000000", field="rate")
        job = _Job(queue, to, may_send, check_new)
        if rate is None:
            job.task = asyncio.create_task(self._at_once(job, ids))
            try:
                await asyncio.wait([job.task], timeout=patience if ids is None else None)
            except asyncio.CancelledError:
                await self._cancel(job)
                raise
            if job.task.done():
                job.task.result()
                return job.progress()
        await self._cancel(self._jobs.get(queue))
        self._jobs[queue] = job
        if rate is None:
            assert job.task is not None  # noqa: S101
            job.task.add_done_callback(partial(_log_failure, job))
        else:
            job.task = asyncio.create_task(self._paced(job, ids, rate))
        return job.progress()

    async def cancel(self, queue: str) -> RedriveProgress | None:
        """Cancel the background redrive of a queue, and return its progress; None if there was none."""
        await self._cancel(self._jobs.get(queue))
        return self.progress(queue)

    async def stop(self) -> None:
        """Cancel all background redrives; messages not moved yet stay where they are."""
        for job in self._jobs.values():
            await self._cancel(job)

    async def _at_once(self, job: _Job, ids: Sequence[str] | None) -> None:
        try:
            async for page in self._pages(job, ids):
                await self._move(job, page)
        finally:
            job.running = False

    async def _paced(self, job: _Job, ids: Sequence[str] | None, rate: float) -> None:
        """Move a batch about twenty times per second, or single messages at rates below that."""
        size = max(1, round(rate / 20))
        try:
            async for page in self._pages(job, ids):
                for start in range(0, len(page), size):
                    batch = page[start : start + size]
                    await self._move(job, batch)
                    await asyncio.sleep(len(batch) / rate)
        except MiniQError as error:
            _log_stopped(job, error)
        finally:
            job.running = False

    async def _pages(self, job: _Job, ids: Sequence[str] | None) -> AsyncIterator[list[Stored]]:
        """The messages to move, by page. Skipped messages stay in the queue, but behind the cursor."""
        broker = self._broker
        if ids is not None:
            messages = await broker.store.messages.find(job.queue, ids)
            job.skipped.update("missing" for id in ids if id not in messages)
            yield [messages[id] for id in ids if id in messages]
            return
        after: str | None = None
        while True:
            size, now = broker.options.limits.response_bytes, broker.clock.now()
            scan = Scan(limit=PAGE, max_bytes=size, now=now, status="ready", after=after)
            page = await broker.store.messages.scan(job.queue, scan)
            yield page.messages
            after = page.next
            if after is None:
                return

    async def _move(self, job: _Job, page: list[Stored]) -> None:
        broker = self._broker
        now = broker.clock.now()
        targets: dict[str, list[tuple[Fence, Message]]] = {}
        for stored in page:
            message = stored.message
            to = job.to or (message.dead.origin if message.dead is not None else None)
            if to is None or to == job.queue:
                job.skipped["no_source"] += 1
                continue
            if job.may_send is not None and not job.may_send(to):
                job.skipped["forbidden"] += 1
                continue
            revived = rules.revive(message, to, now)
            settings = broker.catalog.find(to)
            if settings is not None and rules.ends_at(revived, settings) <= now:
                job.skipped["expired"] += 1  # past the retention of the target, which would drop it at once
            else:
                targets.setdefault(to, []).append(((message.id, FREE), revived))
        for to, moves in targets.items():
            await self._move_to(job, to, moves)

    async def _check_target(self, to: str, check_new: CheckNew | None) -> None:
        """Raise if a queue does not exist and may not be created."""
        catalog = self._broker.catalog
        if catalog.find(to) is None:
            await catalog.check_creatable(to)
            if check_new is not None:
                check_new([to])

    async def _move_to(self, job: _Job, to: str, moves: list[tuple[Fence, Message]]) -> None:
        """Move messages to one queue, as many as it has room for."""
        broker = self._broker
        try:
            await self._check_target(to, job.check_new)
        except (QueueNotFound, TooManyQueues) as error:  # a source queue that was deleted
            job.skipped[error.code] += len(moves)
            return
        size = len(moves)
        while moves:
            batch = moves[:size]
            try:
                broker.store.check_space(sum(len(message.body) for _, message in batch), len(batch))
                outcomes = await broker.move(job.queue, to, batch, event="redriven", limited=True)
            except NoSpace:
                job.skipped["no_space"] += len(moves)
                return
            except QueueFull:
                if size == 1:
                    job.skipped["queue_full"] += len(moves)
                    return
                size //= 2
                continue
            del moves[:size]
            settings = broker.catalog.settings(to)
            broker.sweeper.expect(to, min(rules.ends_at(message, settings) for _, message in batch))
            job.moved += outcomes.count("done")
            job.skipped.update(outcome for outcome in outcomes if outcome != "done")

    @staticmethod
    async def _cancel(job: _Job | None) -> None:
        if job is not None and job.task is not None:
            job.task.cancel()
            await asyncio.gather(job.task, return_exceptions=True)


def _log_failure(job: _Job, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log_stopped(job, error)


def _log_stopped(job: _Job, error: BaseException) -> None:
    log.warning("redrive of %s stopped after %d messages: %s", job.queue, job.moved, error)
