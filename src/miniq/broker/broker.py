"""The broker: send, receive, ack, release, extend, edit, peek, redrive and the rest, on any store.

Calls run in one event loop. Each validates, asks the store for one atomic change at a time, and raises a
`MiniQError` that leaves the state as it was. `upkeep.py` holds what runs in the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
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
from miniq.broker.refresh import Refresh
from miniq.broker.search import Search
from miniq.broker.stages import Stages
from miniq.broker.trends import Trends
from miniq.broker.upkeep import Upkeep
from miniq.broker.waiters import Waiters
from miniq.errors import (
    Closed,
    InvalidRequest,
    QueueNotFound,
)
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
from miniq.store.arguments import ANY, FREE, Change, Edit, Fence, NewTime, Once, Scan
from miniq.store.contract import Store
from miniq.store.transfer import check_complete


class Broker:
    """The queue rules over one store. `async with Broker(store) as broker`."""

    def __init__(self, store: Store, options: Options | None = None, clock: Clock | None = None) -> None:
        self.options = options or Options()
        self.clock = clock or SystemClock()
        self.store = store
        self.keys = KeyRing(store)
        self.metrics = Metrics()
        self._limits = self.options.limits
        self.catalog = Catalog(self)
        self.ids = IdSource()
        self.waiters = Waiters(self.clock)
        self.intake = Intake(self)
        self.deliveries = Deliveries(self)
        self.claims = Claims(self)
        self.stages = Stages(self)
        self._redrives = Redrives(self)
        self.sweeper = Upkeep(self)
        self.refresh = Refresh(self)
        self.tracer: Any = None
        """Who writes down spans (`wire/tracing.py`), None if nobody does."""
        self.search = Search(self)
        self.trends = Trends(self)
        self.is_open = False
        self.patient = True
        """Whether long polls may wait; no longer when the broker is about to close."""

    @property
    def eager(self) -> bool:
        """Whether calls may start without a task (`intake.begin`): not where a store or a tracer looks for it."""
        return not self.store.shared and self.tracer is None

    async def open(self) -> None:
        """Open the store, learn its queues, begin upkeep."""
        self.store.on_ready = self.waiters.wake
        self.store.on_change = self.refresh.hint
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
        self.sweeper.start()
        self.refresh.start()

    def begin_shutdown(self) -> None:
        """Let long polls return now, and let no new one wait: the broker will close soon."""
        self.patient = False
        self.trends.end()
        self.waiters.wake_all()

    async def close(self) -> None:
        """Refuse new calls, let long polls return, flush and close the store. Harmless to repeat."""
        self.is_open = False
        self.begin_shutdown()
        await self.intake.stop()
        await self.deliveries.stop()
        await self._redrives.stop()
        await self.sweeper.stop()
        await self.refresh.stop()
        await self.trends.stop()
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
        """Remove a queue with everything in it."""
        await self.catalog.delete(queue)

    async def queue(self, queue: str) -> QueueInfo:
        """Settings and counts of one queue."""
        settings = await self.catalog.existing(queue)
        counts = await self.store.messages.counts(queue, self.clock.now())
        return QueueInfo(queue, settings, counts, self._redrives.progress(queue))

    async def queues(self) -> list[QueueInfo]:
        """All queues by name."""
        self.check_open()
        await self.refresh.once()
        found = []
        for name in sorted(self.catalog.names()):
            with suppress(QueueNotFound):  # it was deleted meanwhile
                found.append(await self.queue(name))
        return found

    # Messages

    async def send(self, queue: str, drafts: Sequence[Draft], call: str | None = None) -> list[str]:
        """Add messages, all or none, and return their ids once they are on disk. A `call` that was made
        before, in the last five minutes, adds nothing and gets the same answer."""
        settings = self.catalog.find(queue) or await self.catalog.first_use(queue)
        now = self.clock.now()
        messages = rules.admit(queue, settings, drafts, self.ids, now, self._limits)
        once = None
        if call is not None:
            once = Once(rules.check_call(call, self._limits), now + rules.CALL_WINDOW)
        try:
            ids = await self.store.messages.put(messages, rules.put(settings, now, once))
        except QueueNotFound:
            self.catalog.forget(queue)  # somebody else just deleted it
            return await self.send(queue, drafts, call)
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
    ) -> list[Stored]:
        """Lease up to `max` messages; with `wait`, wait that long for the first one.

        A queue that does not exist yet is an empty one, unless queues must be made by hand.
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
            await self.catalog.possible(queue)
        taken = await self.deliveries.take(queue, max, visibility_timeout, consumer, mode)
        if taken or not wait:
            return taken
        deadline = self.clock.now() + rules.micros(wait)
        with self.waiters.join(queue, consumer) as waiter:
            while True:
                looked = self.clock.now()
                taken = await self.deliveries.take(queue, max, visibility_timeout, consumer, mode)
                if taken:
                    self.waiters.wake_each(queue)
                    return taken
                if self.clock.now() >= deadline or not self.patient:
                    return []
                if self.catalog.find(queue) is not None:
                    # From before the look: what became visible during it may have been passed over.
                    self.waiters.expect(queue, await self.store.messages.next_visible(queue, looked))
                await waiter.until(deadline)

    async def ack(self, queue: str, leases: Sequence[Lease]) -> list[Outcome]:
        """Remove messages for good: they were processed."""
        settings = await self.catalog.existing(queue)
        rules.check_batch(leases, "leases", self._limits)
        change = Change(self.clock.now(), settings.history, "acked")
        outcomes = await self.store.messages.drop(queue, rules.fences(leases), change)
        self.metrics.messages[queue, "acked"] += outcomes.count("done")
        return outcomes

    async def release(self, queue: str, leases: Sequence[Lease], delay: float = 0) -> list[Outcome]:
        """Give messages back, ready again at once or after `delay`. One that has used up its receives
        goes to the dead-letter queue instead."""
        settings = await self.catalog.existing(queue)
        rules.check_batch(leases, "leases", self._limits)
        rules.check_seconds(delay, "delay", 0, self._limits.delay)
        asked = rules.fences(leases)
        outcomes = await self.deliveries.release(queue, settings, list(dict.fromkeys(asked)), delay)
        return [outcomes[fence] for fence in asked]

    async def release_by_id(self, queue: str, id: str, delay: float = 0) -> bool:
        """Take a message from whoever holds it, whose receipt is no longer good: for those who manage the queue.
        False if nobody holds it."""
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
        """Let leases end `visibility_timeout` from now; says when that is, and what became of each."""
        settings = await self.catalog.existing(queue)
        rules.check_batch(leases, "leases", self._limits)
        seconds = rules.lease_seconds(visibility_timeout, settings, self._limits)
        now = self.clock.now()
        until = now + rules.micros(seconds)
        fences = rules.fences(leases)
        outcomes = await self.store.messages.reschedule(queue, fences, NewTime(until), Change(now))
        self.metrics.messages[queue, "extended"] += outcomes.count("done")
        return until, outcomes

    async def get(self, queue: str, id: str) -> Stored:
        """Look at one message without consuming it."""
        settings = await self.catalog.existing(queue)
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
        """Browse a queue without consuming; `after` is the `next` of the page before. `many` allows long pages."""
        settings = await self.catalog.existing(queue)
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
        """Change a message that is not leased, or that the caller holds the receipt of."""
        settings = await self.catalog.existing(queue)
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
        """Delete one message that is not leased, or that the caller holds the receipt of."""
        settings = await self.catalog.existing(queue)
        fence = (id, FREE if receipt is None else rules.receipt_of(receipt))
        change = Change(self.clock.now(), settings.history, "purged", "removed")
        outcomes = await self.store.messages.drop(queue, [fence], change)
        rules.check_done(queue, id, outcomes[0])

    async def ack_by_id(self, queue: str, id: str) -> bool:
        """Ack without a receipt: only for the short routes and `MiniQ`, whose users have none."""
        settings = await self.catalog.existing(queue)
        change = Change(self.clock.now(), settings.history, "acked")
        outcomes = await self.store.messages.drop(queue, [(id, ANY)], change)
        return outcomes[0] == "done"

    async def edit_by_id(self, queue: str, id: str, body: bytes, content_type: str) -> bool:
        """Change a body without a receipt, leased or not: only for the short routes."""
        settings = await self.catalog.existing(queue)
        rules.check_body(body, content_type, self._limits)
        edit = Edit(body=body, content_type=content_type)
        change = Change(self.clock.now(), settings.history)
        outcome = await self.store.messages.edit(queue, (id, ANY), edit, change)
        return outcome == "done"

    async def purge(self, queue: str) -> int:
        """Remove all messages of a queue, leased ones too, and say how many there were."""
        settings = await self.catalog.existing(queue)
        return await self.store.messages.clear(queue, Change(self.clock.now(), settings.history))

    async def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[str] | None = None,
        to: str | None = None,
        rate: float | None = None,
    ) -> RedriveProgress:
        """Move dead letters back where they came from, or `to` another queue: all, or some `ids`.

        With `rate` it goes on in the background at so many a second; `queue()` shows how far it is.
        """
        await self.catalog.existing(queue)
        return await self._redrives.run(queue, ids, to, rate)

    # History and care

    async def history(
        self, *, after: int = 0, limit: int = 100, queue: str | None = None, many: bool = False
    ) -> HistoryPage:
        """What happened, by rising offset, from the one that follows `after`. `many` allows long pages. A page ends at
        `limits.response_bytes` of bodies, so it is read in steps: the first few records tell how large they are."""
        self.check_open()
        rules.check_count(after, "after", 0, 2**63 - 1)
        rules.check_count(limit, "limit", 1, rules.MANY if many else self._limits.batch)
        if queue is not None:
            rules.check_name(queue)
        span = await self.store.history.span()
        records: list[HistoryRecord] = []
        size, step = 0, 16
        while True:
            left = limit - len(records)
            most = min(step, left)
            page = await self.store.history.read(after, most, queue)
            for record in page.records:
                records.append(record)
                size += len(record.event.body or b"")
                if size >= self._limits.response_bytes:
                    return HistoryPage(records, record.offset, span.first, span.last)
            if most == left or page.next == after:
                return HistoryPage(records, page.next, span.first, span.last)
            after = page.next
            step *= 4

    async def history_span(self) -> HistorySpan:
        """How far the history reaches."""
        self.check_open()
        return await self.store.history.span()

    async def backup(self, path: str) -> None:
        """Write a consistent copy of everything to a new folder, while work goes on."""
        self.check_open()
        await self.store.backup(path)

    async def upkeep(self) -> None:
        """One bounded pass over ttl, retention, dedup records and history; also runs by itself."""
        self.check_open()
        await self.sweeper.once()

    # Inside

    def reserve(self, count: int) -> str:
        """The first of `count` ids for messages that are committed."""
        return self.ids.reserve(count, self.clock.now())

    async def move(
        self,
        queue: str,
        to: str,
        moves: Sequence[tuple[Fence, Message]],
        *,
        event: EventName,
        reason: str | None = None,
    ) -> list[Outcome]:
        """Move messages to another queue, which is created if need be."""
        settings = self.catalog.settings(queue)
        change = Change(self.clock.now(), settings.history, event, reason)
        while True:
            target = await self.catalog.ensure(to)
            try:
                outcomes = await self.store.messages.move(queue, moves, change, target.history)
                self.sweeper.expect(to, min(rules.ends_at(message, target) for _, message in moves))
                return outcomes
            except QueueNotFound:
                if queue not in await self.store.queues():
                    raise
                self.catalog.forget(to)  # somebody else just deleted it

    def check_open(self) -> None:
        """Refuse calls of a closed broker."""
        if not self.is_open:
            raise Closed("the broker is closed")
