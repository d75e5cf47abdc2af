"""The broker: send, receive, ack, release, extend, edit, peek, redrive and the rest, on any store.

Calls run in one event loop. Each validates its arguments and makes one atomic change of the store at a time; one that
raises a `MiniQError` has changed nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from miniq.broker import rules
from miniq.broker.background import Background
from miniq.broker.catalog import Catalog, CheckNew
from miniq.broker.claims import Claims
from miniq.broker.clock import Clock, SystemClock
from miniq.broker.consumers import Consumers
from miniq.broker.delivery import Deliveries
from miniq.broker.failures import Failures
from miniq.broker.firing import Firings
from miniq.broker.history import read_page
from miniq.broker.intake import Intake
from miniq.broker.keyring import KeyRing
from miniq.broker.metrics import Metrics
from miniq.broker.moves import Moves
from miniq.broker.rates import Rates
from miniq.broker.redrive import Redrives
from miniq.broker.results import Results
from miniq.broker.schedules import Schedules, Stamp
from miniq.broker.search import Search
from miniq.broker.sharing import Sharing
from miniq.broker.stages import Stages
from miniq.broker.timings import Timings
from miniq.broker.topic_stages import TopicStages
from miniq.broker.topics import Topics
from miniq.broker.trends import Trends
from miniq.broker.upkeep import Upkeep
from miniq.broker.waiters import Permit, Waiters
from miniq.errors import Closed, InvalidRequest, QueueNotFound, show
from miniq.ids import IdSource
from miniq.message import (
    Draft,
    HistoryPage,
    HistorySpan,
    Lease,
    Leased,
    Mode,
    Outcome,
    Page,
    PlainBatch,
    QueueInfo,
    RedriveProgress,
    Status,
    Stored,
)
from miniq.options import Limits, Options
from miniq.store.arguments import ANY, FREE, Change, Edit, NewTime, Scan
from miniq.store.contract import Store
from miniq.store.names import STORE, STORE_ID
from miniq.store.transfer import check_complete


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
        self.rates = Rates(self)
        self.results = Results(self)
        self.deliveries = Deliveries(self)
        self.claims = Claims(self)
        self.stages = Stages(self)
        self.topics = Topics(self)
        self.publish = self.topics.publish
        self.topic_stages = TopicStages(self)
        self.move = Moves(self).move
        self._redrives = Redrives(self)
        self.schedules = Schedules(self)
        self.firings = Firings(self)
        self.sweeper = Upkeep(self)
        self.tracer: Any = None
        """Records spans (`server/tracing.py`) while tracing is on."""
        self.search = Search(self)
        self.consumers = Consumers(self)
        self.timings = Timings()
        self.failures = Failures()
        self.sharing = Sharing(self)
        self.trends = Trends(self)
        self.store_id = ""  # made with the store; the same for all brokers that share it
        self.is_open = False
        self.is_closing = False
        """Whether long polls must return."""
        self.background = Background()

    @property
    def eager(self) -> bool:
        """Whether calls may start without a task; shared stores and tracers need the current task."""
        return not self.store.shared and self.tracer is None

    async def open(self) -> None:
        """Open the store, load queues and keys, start the background tasks."""
        self.store.on_ready = self.waiters.wake
        self.store.on_change = self.catalog.on_change
        self.store.on_finished = self.results.look
        self.store.on_lease_expired = self.deliveries.lease_expired
        self.keys.on_loss = self._check_permits
        await self.store.open()
        try:
            await check_complete(self.store)
            self.store_id = (await self.store.add_record(STORE, STORE_ID, secrets.token_hex(8).encode())).decode()
            self.ids = IdSource(await self.store.last_id())
            await self.keys.load()
            await self.topics.load()
            self.is_open = True
            await self.catalog.load()
            await self.firings.open()
        except BaseException:
            self.is_open = False
            await self.store.close()
            raise
        if self.options.upkeep_interval > 0:
            self.background.spawn(self.sweeper.run())
        if self.store.shared and self.options.refresh_interval > 0:
            self.background.spawn(self.catalog.keep_fresh())
            self.background.spawn(self.sharing.run())

    def begin_shutdown(self) -> None:
        """Make long polls and event streams return now: the broker will close soon."""
        self.is_closing = True
        self.trends.end()
        self.waiters.wake_all()
        self.results.wake_all()

    async def close(self) -> None:
        """Refuse new calls, let long polls return, flush and close the store. Idempotent."""
        await self.deliveries.stop()  # a release needs the settings of its queue
        self.is_open = False
        self.catalog.queues.clear()
        self.begin_shutdown()
        await self.intake.stop()
        await self.deliveries.stop()
        await self._redrives.stop()
        await self.results.stop()
        await self.background.stop()
        await self.store.close()

    async def __aenter__(self) -> Broker:
        await self.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    # Queues

    async def configure(
        self, queue: str, changes: dict[str, Any] | None = None, check_new: CheckNew | None = None
    ) -> QueueInfo:
        """Create a queue or change some of its settings. Its dead-letter queue is created with it. `check_new` raises
        if the caller may not create the queues that this would create."""
        self.check_open()
        await self.catalog.change(queue, changes or {}, check_new)
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

    async def send(
        self,
        queue: str,
        drafts: Sequence[Draft],
        call: str | None = None,
        scope: str = "",
        stamp: Stamp | None = None,
        limits: Limits | None = None,
    ) -> list[str]:
        """Add messages, all or none, and return their ids once they are on disk. A `call` (idempotency key) of the last
        five minutes in the same `scope` (see `KeyRing.scope`) adds nothing and gets the same answer; with other ones it
        is refused. The record that `stamp` names is changed too, or nothing is. `limits` replace the options' own."""
        settings = self.catalog.find(queue) or await self.catalog.get_or_create(queue)
        now = self.clock.now()
        messages = rules.admit(queue, settings, drafts, self.ids, now, limits or self._limits)
        once = None if call is None else rules.once(rules.check_call(call, self._limits), scope, drafts, now)
        own = messages.ids if isinstance(messages, PlainBatch) else [message.id for message in messages]
        put = rules.put(settings, now, once)
        if stamp is not None:
            record = stamp(own)
            put = replace(put, record=record, reason=f"{record.kind}:{record.name}")
        try:
            ids = await self.store.messages.put(messages, put)
        except QueueNotFound:
            self.catalog.forget(queue)  # just deleted by a concurrent call
            return await self.send(queue, drafts, call, scope, stamp, limits)
        if not isinstance(messages, PlainBatch):
            ends = [message.expires_at for message in messages if message.expires_at is not None]
            if ends:
                self.sweeper.expect(queue, min(ends))
        self.metrics.sent(queue, own, ids)
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
    ) -> Leased:
        """Lease up to `max` messages; with `wait`, wait that long for the first one, while there is a `permit`. With
        `auto_create`, a queue that does not exist counts as empty."""
        limits = self._limits
        rules.check_count(max, "max", 1, limits.batch)
        if wait:
            rules.check_seconds(wait, "wait", 0, limits.wait)
        if visibility_timeout is not None:
            rules.check_seconds(visibility_timeout, "visibility_timeout", 0, limits.visibility_timeout)
        if consumer is not None:
            rules.check_text(consumer, "consumer", limits)
        if mode not in ("at-least-once", "at-most-once"):
            raise InvalidRequest(f"mode: {show(mode)}; use at-least-once or at-most-once", field="mode")
        if self.catalog.find(queue) is None:
            self.check_open()
            await self.catalog.check_usable(queue)
        taken = await self.deliveries.take(queue, max, visibility_timeout, consumer, mode)
        if taken or not wait:
            return taken
        take = partial(self.deliveries.take, queue, max, visibility_timeout, consumer, mode)
        undo = partial(self.deliveries.give_back_taken, queue) if mode == "at-least-once" else None
        return await self.deliveries.long_poll(queue, consumer, wait, take, bool, permit, undo)

    async def ack(self, queue: str, leases: Sequence[Lease], late: bool = True) -> list[Outcome]:
        """Delete messages that were processed, and keep their results where the queue does. Unless `late`, a lease that
        has expired is stale."""
        settings = await self.catalog.require(queue)
        rules.check_batch(leases, "leases", self._limits)
        now = self.clock.now()
        change = Change(now, settings.history, "acked", remember=self.results.of_acks(leases, settings, now))
        fences = rules.fences(leases) if late else await self.deliveries.unexpired(queue, leases)
        outcomes = await self.store.messages.drop(queue, fences, change)
        self.metrics.messages[queue, "acked"] += outcomes.count("done")
        self.consumers.settled(queue, fences, outcomes, now, "acked")
        self.deliveries.left(queue, settings, fences)
        return outcomes

    async def release(
        self, queue: str, leases: Sequence[Lease], delay: float = 0, late: bool = True, unused: bool = False
    ) -> list[Outcome]:
        """Make messages ready again, at once or after `delay`. One that has reached max_receives goes to the
        dead-letter queue instead; but with `unused`, which also takes back the receive, none does. `late` is as with
        `ack`."""
        settings = await self.catalog.require(queue)
        rules.check_batch(leases, "leases", self._limits)
        rules.check_seconds(delay, "delay", 0, self._limits.delay)
        fences = rules.fences(leases) if late else await self.deliveries.unexpired(queue, leases)
        outcomes = await self.deliveries.release(queue, settings, list(dict.fromkeys(fences)), delay, unused)
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
        self, queue: str, leases: Sequence[Lease], visibility_timeout: float | None = None, late: bool = True
    ) -> tuple[int, list[Outcome]]:
        """Make leases end `visibility_timeout` from now; return when that is, and the outcome for each. `late` is as
        with `ack`."""
        settings = await self.catalog.require(queue)
        rules.check_batch(leases, "leases", self._limits)
        seconds = rules.lease_seconds(visibility_timeout, settings, self._limits)
        now = self.clock.now()
        until = now + rules.micros(seconds)
        fences = rules.fences(leases) if late else await self.deliveries.unexpired(queue, leases)
        outcomes = await self.store.messages.reschedule(queue, fences, NewTime(until), Change(now))
        self.metrics.messages[queue, "extended"] += outcomes.count("done")
        self.consumers.touched(queue, fences, outcomes, now)
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
            raise InvalidRequest(f"status: {show(status)}; use ready, delayed or leased", field="status")
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
        self.metrics.messages[queue, "edited"] += 1
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
        self.metrics.messages[queue, "purged"] += 1
        self.deliveries.left(queue, settings, [fence])

    async def ack_by_id(self, queue: str, id: str) -> bool:
        """Ack without a receipt: only for the short routes and `MiniQ`, which have none."""
        settings = await self.catalog.require(queue)
        now = self.clock.now()
        change = Change(now, settings.history, "acked", remember=self.results.of_removed(1, settings, now))
        outcomes = await self.store.messages.drop(queue, [(id, ANY)], change)
        self.metrics.messages[queue, "acked"] += outcomes.count("done")
        self.consumers.acked(queue, None, now, outcomes.count("done"))
        self.deliveries.left(queue, settings, [(id, ANY)])
        return outcomes[0] == "done"

    async def edit_by_id(self, queue: str, id: str, body: bytes, content_type: str) -> bool:
        """Change a body without a receipt, leased or not: only for the short routes."""
        settings = await self.catalog.require(queue)
        rules.check_body(body, content_type, self._limits)
        edit = Edit(body=body, content_type=content_type)
        change = Change(self.clock.now(), settings.history)
        outcome = await self.store.messages.edit(queue, (id, ANY), edit, change)
        self.metrics.messages[queue, "edited"] += outcome == "done"
        return outcome == "done"

    async def purge(self, queue: str, forget: bool = False) -> int:
        """Delete all messages of a queue, leased ones included, and return how many there were. With `forget`, dedup
        ids can be used again at once."""
        settings = await self.catalog.require(queue)
        purged = await self.store.messages.clear(queue, Change(self.clock.now(), settings.history), forget)
        self.metrics.messages[queue, "purged"] += purged
        self.deliveries.freed(queue, settings, purged)
        self.results.wake(queue)
        return purged

    async def redrive(
        self,
        queue: str,
        *,
        ids: Sequence[str] | None = None,
        to: str | None = None,
        rate: float | None = None,
        may_send: Callable[[str], bool] | None = None,
        check_new: CheckNew | None = None,
        patience: float | None = None,
    ) -> RedriveProgress:
        """Move dead letters back to their source queue, or `to` another one: all, or those in `ids`. With `rate` it
        runs in the background at this many messages per second, and without it goes on there after `patience` seconds;
        `queue()` shows the progress. Messages stay if the target has no room, if the caller may not send to it, or if
        it does not exist and cannot be created."""
        await self.catalog.require(queue)
        return await self._redrives.run(queue, ids, to, rate, may_send, check_new, patience)

    async def cancel_redrive(self, queue: str) -> RedriveProgress | None:
        """Stop the redrive of a queue that runs in the background; messages not moved yet stay where they are."""
        await self.catalog.require(queue)
        return await self._redrives.cancel(queue)

    # History, backup, upkeep

    async def history(
        self, *, after: int = 0, limit: int = 100, queue: str | None = None, many: bool = False
    ) -> HistoryPage:
        """Events in order of offset, after the offset `after`. `many` allows long pages. A page ends at
        `limits.response_bytes` of bodies."""
        self.check_open()
        rules.check_count(after, "after", 0, 2**63 - 1)
        rules.check_count(limit, "limit", 1, rules.MANY if many else self._limits.batch)
        if queue is not None and self.catalog.find(queue) is None:
            rules.check_name(queue)
        return await read_page(self.store.history, after, limit, queue, self._limits.response_bytes)

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

    def _check_permits(self) -> None:
        """Make long polls and event streams look whether they are still allowed."""
        self.waiters.wake_all()
        self.results.wake_all()
        self.trends.wake()

    def check_open(self) -> None:
        """Raise `Closed` unless the broker is open."""
        if not self.is_open:
            raise Closed("the broker is closed")
