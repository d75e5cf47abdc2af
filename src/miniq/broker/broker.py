"""The broker: send, receive, ack, release, extend, edit, peek, redrive and the rest, on any store.

Calls run in one event loop. Each validates its arguments and makes one atomic change of the store at a time; one that
raises a `MiniQError` has changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from miniq.broker import rules
from miniq.broker.catalog import Catalog
from miniq.broker.claims import Claims
from miniq.broker.clock import Clock, SystemClock
from miniq.broker.delivery import Deliveries
from miniq.broker.intake import Intake
from miniq.broker.keyring import KeyRing
from miniq.broker.metrics import Metrics
from miniq.broker.redrive import Redrives
from miniq.broker.search import Search
from miniq.broker.stages import Stages
from miniq.broker.trends import Trends
from miniq.broker.upkeep import Upkeep
from miniq.broker.waiters import Permit, Waiters
from miniq.errors import Closed, InvalidRequest, QueueNotFound
from miniq.ids import IdSource
from miniq.message import (
    Draft,
    EventName,
    HistoryPage,
    HistoryRecord,
    HistorySpan,
    Lease,
    Message,
    Mode,
    Outcome,
    Page,
    PlainBatch,
    QueueInfo,
    RedriveProgress,
    Status,
    Stored,
)
from miniq.options import Options
from miniq.store.arguments import ANY, FREE, Change, Edit, Fence, NewTime, Scan
from miniq.store.contract import Store
from miniq.store.transfer import check_complete

PATIENCE = 1.0
"""Seconds until the cancellation of a background task is repeated."""


class Broker:
    """The queue rules over one store. `async with Broker(store) as broker`."""

    def __init__(self, store: Store, options: Options | None = None, clock: Clock | None = None) -> None:
        self.options = options or Options()
        self.clock = clock or SystemClock()
        self.store = store
        self.keys = KeyRing(store)
        self._limits = self.options.limits
        self.catalog = Catalog(self)
        self.metrics = Metrics(self.catalog.queues)
        self.ids = IdSource()
        self.waiters = Waiters(self.clock)
        self.intake = Intake(self)
        self.deliveries = Deliveries(self)
        self.claims = Claims(self)
        self.stages = Stages(self)
        self._redrives = Redrives(self)
        self.sweeper = Upkeep(self)
        self.tracer: Any = None
        """Records spans (`server/tracing.py`) while tracing is on."""
        self.search = Search(self)
        self.trends = Trends(self)
        self.is_open = False
        self.is_closing = False
        """Whether long polls must return."""
        self._background: list[asyncio.Task[None]] = []

    @property
    def eager(self) -> bool:
        """Whether calls may start without a task; shared stores and tracers need the current task."""
        return not self.store.shared and self.tracer is None

    async def open(self) -> None:
        """Open the store, load queues and keys, start the background tasks."""
        self.store.on_ready = self.waiters.wake
        self.store.on_change = self.catalog.on_change
        self.keys.on_loss = self._check_permits
        await self.store.open()
        try:
            await check_complete(self.store)
        except BaseException:
            await self.store.close()
            raise
        self.ids = IdSource(await self.store.last_id())
        await self.keys.load()
        self.is_open = True
        await self.catalog.load()
        if self.options.upkeep_interval > 0:
            self.spawn(self.sweeper.run())
        if self.store.shared and self.options.refresh_interval > 0:
            self.spawn(self.catalog.keep_fresh())

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a background task until the broker closes."""
        self._background.append(asyncio.create_task(work))

    def begin_shutdown(self) -> None:
        """Make long polls and event streams return now: the broker will close soon."""
        self.is_closing = True
        self.trends.end()
        self.waiters.wake_all()

    async def close(self) -> None:
        """Refuse new calls, let long polls return, flush and close the store. Idempotent."""
        self.is_open = False
        self.catalog.queues.clear()
        self.begin_shutdown()
        await self.intake.stop()
        await self.deliveries.stop()
        await self._redrives.stop()
        for task in self._background:
            await end(task)
        await self.store.close()

    async def __aenter__(self) -> Broker:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Queues

    async def configure(self, queue: str, changes: dict[str, Any] | None = None) -> QueueInfo:
        """Create a queue or change some of its settings. Its dead-letter queue is created with it."""
        self.check_open()
        await self.catalog.change(queue, changes or {})
        return await self.queue(queue)

    async def delete_queue(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        await self.catalog.delete(queue)

    async def queue(self, queue: str) -> QueueInfo:
        """Settings and counts of one queue."""
        settings = await self.catalog.require(queue)
        counts = await self.store.messages.counts(queue, self.clock.now())
        return QueueInfo(queue, settings, counts, self._redrives.progress(queue))

    async def queues(self) -> list[QueueInfo]:
        """All queues by name."""
        self.check_open()
        await self.catalog.refresh()
        return [
            QueueInfo(name, settings, counts, self._redrives.progress(name))
            for name, counts in (await self.trends.count(self.catalog.names())).items()
            if (settings := self.catalog.find(name)) is not None  # else deleted in the meantime
        ]

    # Messages

    async def send(self, queue: str, drafts: Sequence[Draft], call: str | None = None, scope: str = "") -> list[str]:
        """Add messages, all or none, and return their ids once they are on disk. A `call` (idempotency key) of the last
        five minutes in the same `scope` (see `KeyRing.scope`) adds nothing and gets the same answer; with other
        messages it is refused."""
        settings = self.catalog.find(queue) or await self.catalog.get_or_create(queue)
        now = self.clock.now()
        messages = rules.admit(queue, settings, drafts, self.ids, now, self._limits)
        once = None
        if call is not None:
            once = rules.once(rules.check_call(call, self._limits), scope, drafts, now)
        try:
            ids = await self.store.messages.put(messages, rules.put(settings, now, once))
        except QueueNotFound:
            self.catalog.forget(queue)  # just deleted by a concurrent call
            return await self.send(queue, drafts, call, scope)
        if not isinstance(messages, PlainBatch):
            ends = [message.expires_at for message in messages if message.expires_at is not None]
            if ends:
                self.sweeper.expect(queue, min(ends))
        self.metrics.messages[queue, "sent"] += len(ids)
        return ids

    async def receive(
        self,
        queue: str,
        *,
        max: int = 1,
        visibility_timeout: float | None = None,
        wait: float = 0,
        consumer: str | None = None,
        mode: Mode = "at-least-once",
        permit: Permit | None = None,
    ) -> list[Stored]:
        """Lease up to `max` messages; with `wait`, wait that long for the first one, while there is a `permit`.

        With `auto_create`, a queue that does not exist counts as empty.
        """
        limits = self._limits
        rules.check_count(max, "max", 1, limits.batch)
        if wait:
            rules.check_seconds(wait, "wait", 0, limits.wait)
        if visibility_timeout is not None:
            rules.check_seconds(visibility_timeout, "visibility_timeout", 0, limits.visibility_timeout)
        if consumer is not None:
            rules.check_text(consumer, "consumer", limits)
        if mode not in ("at-least-once", "at-most-once"):
            raise InvalidRequest(f"mode: {mode!r:.80}; use at-least-once or at-most-once", field="mode")
        if self.catalog.find(queue) is None:
            self.check_open()
            await self.catalog.check_usable(queue)
        taken = await self.deliveries.take(queue, max, visibility_timeout, consumer, mode)
        if taken or not wait:
            return taken
        take = partial(self.deliveries.take, queue, max, visibility_timeout, consumer, mode)
        undo = partial(self.deliveries.give_back_taken, queue) if mode == "at-least-once" else None
        return await self.deliveries.long_poll(queue, consumer, wait, take, bool, permit, undo)

    async def ack(self, queue: str, leases: Sequence[Lease]) -> list[Outcome]:
        """Delete messages that were processed."""
        settings = await self.catalog.require(queue)
        rules.check_batch(leases, "leases", self._limits)
        change = Change(self.clock.now(), settings.history, "acked")
        outcomes = await self.store.messages.drop(queue, rules.fences(leases), change)
        self.metrics.messages[queue, "acked"] += outcomes.count("done")
        return outcomes

    async def release(self, queue: str, leases: Sequence[Lease], delay: float = 0) -> list[Outcome]:
        """Make messages ready again, at once or after `delay`. One that has reached max_receives goes to the
        dead-letter queue instead."""
        settings = await self.catalog.require(queue)
        rules.check_batch(leases, "leases", self._limits)
        rules.check_seconds(delay, "delay", 0, self._limits.delay)
        fences = rules.fences(leases)
        outcomes = await self.deliveries.release(queue, settings, list(dict.fromkeys(fences)), delay)
        return [outcomes[fence] for fence in fences]

    async def release_by_id(self, queue: str, id: str, delay: float = 0) -> bool:
        """Release a message without its receipt, which becomes stale: for operators. False if it is not leased."""
        stored = await self.get(queue, id)
        rules.check_seconds(delay, "delay", 0, self._limits.delay)
        if stored.receipt is None or stored.status(self.clock.now()) != "leased":
            return False
        outcomes = await self.release(queue, [Lease(id, stored.receipt)], delay)
        rules.check_done(queue, id, outcomes[0])
        return True

    async def extend(
        self, queue: str, leases: Sequence[Lease], visibility_timeout: float | None = None
    ) -> tuple[int, list[Outcome]]:
        """Make leases end `visibility_timeout` from now; return when that is, and the outcome for each."""
        settings = await self.catalog.require(queue)
        rules.check_batch(leases, "leases", self._limits)
        seconds = rules.lease_seconds(visibility_timeout, settings, self._limits)
        now = self.clock.now()
        until = now + rules.micros(seconds)
        fences = rules.fences(leases)
        outcomes = await self.store.messages.reschedule(queue, fences, NewTime(until), Change(now))
        self.metrics.messages[queue, "extended"] += outcomes.count("done")
        return until, outcomes

    async def get(self, queue: str, id: str) -> Stored:
        """One message, without consuming it."""
        settings = await self.catalog.require(queue)
        stored = (await self.store.messages.find(queue, [id])).get(id)
        if stored is None or rules.expired(stored, settings, self.clock.now()):
            raise rules.no_message(queue, id)
        return stored

    async def peek(
        self,
        queue: str,
        *,
        status: Status | None = None,
        after: str | None = None,
        limit: int = 100,
        many: bool = False,
    ) -> Page:
        """Browse a queue without consuming; `after` is the `next` of the previous page. `many` allows long pages."""
        settings = await self.catalog.require(queue)
        rules.check_count(limit, "limit", 1, rules.MANY if many else self._limits.batch)
        if status not in (None, "ready", "delayed", "leased"):
            raise InvalidRequest(f"status: {status!r}; use ready, delayed or leased", field="status")
        now = self.clock.now()
        scan = Scan(limit=limit, max_bytes=self._limits.response_bytes, now=now, status=status, after=after)
        page = await self.store.messages.scan(queue, scan)
        live = [stored for stored in page.messages if not rules.expired(stored, settings, now)]
        return page if len(live) == len(page.messages) else Page(live, page.next)

    async def edit(
        self,
        queue: str,
        id: str,
        *,
        body: bytes | None = None,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
        priority: int | None = None,
        delay: float | None = None,
        receipt: str | None = None,
    ) -> Stored:
        """Change a message that is not leased, or whose receipt the caller has."""
        settings = await self.catalog.require(queue)
        now = self.clock.now()
        if body is None and headers is None and priority is None and delay is None:
            raise InvalidRequest("edit: nothing to change; give body, headers, priority or delay", field="body")
        if body is None and content_type is not None:
            raise InvalidRequest("content_type: comes only with a new body", field="content_type")
        if body is not None:
            rules.check_body(body, "application/json" if content_type is None else content_type, self._limits)
        if headers is not None:
            rules.check_headers(headers, self._limits)
        if priority is not None:
            rules.check_count(priority, "priority", 0, 9)
        if delay is not None:
            rules.check_seconds(delay, "delay", 0, self._limits.delay)
            if receipt is not None:
                raise InvalidRequest("delay: a leased message has none; release it with a delay", field="delay")
        edit = Edit(
            body=body,
            content_type=content_type,
            headers=headers,
            priority=priority,
            due_at=None if delay is None else now + rules.micros(delay),
        )
        fence = (id, FREE if receipt is None else rules.receipt_of(receipt))
        outcome = await self.store.messages.edit(queue, fence, edit, Change(now, settings.history))
        rules.check_done(queue, id, outcome)
        stored = (await self.store.messages.find(queue, [id])).get(id)
        if stored is None:
            raise rules.no_message(queue, id)
        return stored

    async def remove(self, queue: str, id: str, receipt: str | None = None) -> None:
        """Delete one message that is not leased, or whose receipt the caller has."""
        settings = await self.catalog.require(queue)
        fence = (id, FREE if receipt is None else rules.receipt_of(receipt))
        change = Change(self.clock.now(), settings.history, "purged", "removed")
        outcomes = await self.store.messages.drop(queue, [fence], change)
        rules.check_done(queue, id, outcomes[0])

    async def ack_by_id(self, queue: str, id: str) -> bool:
        """Ack without a receipt: only for the short routes and `MiniQ`, which have none."""
        settings = await self.catalog.require(queue)
        change = Change(self.clock.now(), settings.history, "acked")
        outcomes = await self.store.messages.drop(queue, [(id, ANY)], change)
        return outcomes[0] == "done"

    async def edit_by_id(self, queue: str, id: str, body: bytes, content_type: str) -> bool:
        """Change a body without a receipt, leased or not: only for the short routes."""
        settings = await self.catalog.require(queue)
        rules.check_body(body, content_type, self._limits)
        edit = Edit(body=body, content_type=content_type)
        change = Change(self.clock.now(), settings.history)
        outcome = await self.store.messages.edit(queue, (id, ANY), edit, change)
        return outcome == "done"

    async def purge(self, queue: str) -> int:
        """Delete all messages of a queue, leased ones included, and return how many there were."""
        settings = await self.catalog.require(queue)
        return await self.store.messages.clear(queue, Change(self.clock.now(), settings.history))

    async def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[str] | None = None,
        to: str | None = None,
        rate: float | None = None,
        may_send: Callable[[str], bool] | None = None,
    ) -> RedriveProgress:
        """Move dead letters back to their source queue, or `to` another one: all, or those in `ids`. With `rate` it
        runs in the background at this many messages per second, and `queue()` shows the progress. Messages stay for
        which the target has no room, or to which the caller may not send."""
        await self.catalog.require(queue)
        return await self._redrives.run(queue, ids, to, rate, may_send)

    # History, backup, upkeep

    async def history(
        self, *, after: int = 0, limit: int = 100, queue: str | None = None, many: bool = False
    ) -> HistoryPage:
        """Events in order of offset, after the offset `after`. `many` allows long pages. A page ends at
        `limits.response_bytes` of bodies, so it is read in growing steps."""
        self.check_open()
        rules.check_count(after, "after", 0, 2**63 - 1)
        rules.check_count(limit, "limit", 1, rules.MANY if many else self._limits.batch)
        if queue is not None and self.catalog.find(queue) is None:
            rules.check_name(queue)
        span = await self.store.history.span()
        records: list[HistoryRecord] = []
        size, step = 0, 16
        while True:
            left = limit - len(records)
            count = min(step, left)
            page = await self.store.history.read(after, count, queue)
            for record in page.records:
                records.append(record)
                size += len(record.event.body or b"")
                if size >= self._limits.response_bytes:
                    return HistoryPage(records, record.offset, span.first, span.last)
            if count == left or page.next == after:
                return HistoryPage(records, page.next, span.first, span.last)
            after = page.next
            step *= 4

    async def history_span(self) -> HistorySpan:
        """The offsets, size and age of the history."""
        self.check_open()
        return await self.store.history.span()

    async def backup(self, path: str) -> None:
        """Write a consistent copy of the store to a new folder, while calls continue."""
        self.check_open()
        await self.store.backup(path)

    async def upkeep(self) -> None:
        """Run one bounded pass over ttl, retention, dedup records and history, as the background task does."""
        self.check_open()
        await self.sweeper.run_once()

    # Inside

    def reserve(self, count: int) -> str:
        """Reserve `count` ids for a commit, and return the first."""
        return self.ids.reserve(count, self.clock.now())

    async def move(
        self,
        queue: str,
        to: str,
        moves: Sequence[tuple[Fence, Message]],
        *,
        event: EventName,
        reason: str | None = None,
        limited: bool = False,
    ) -> list[Outcome]:
        """Move messages to another queue, which is created if necessary. With `limited`, its limits apply as to a
        send: a message must be dead-lettered even if there is no room."""
        settings = self.catalog.settings(queue)
        change = Change(self.clock.now(), settings.history, event, reason)
        while True:
            target = await self.catalog.ensure(to)
            try:
                room = rules.room(target) if limited else None
                return await self.store.messages.move(queue, moves, change, target.history, room)
            except QueueNotFound:
                if queue not in await self.store.queues():
                    raise
                self.catalog.forget(to)  # just deleted by a concurrent call

    def _check_permits(self) -> None:
        """Make long polls and event streams look whether they are still allowed."""
        self.waiters.wake_all()
        self.trends.wake()

    def check_open(self) -> None:
        """Raise `Closed` unless the broker is open."""
        if not self.is_open:
            raise Closed("the broker is closed")


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task until it has ended: a database driver may swallow a cancellation."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
    if not task.cancelled():
        task.exception()  # mark it as retrieved, or asyncio logs it
