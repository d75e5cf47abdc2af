"""The background pass that removes what no receive would ever touch, a bounded amount at a time.

Leases and delays need no sweeper. This pass scans each queue page by page and drops messages past their ttl or the
queue's retention, lets the store remove obsolete records, and trims the history.

A completed scan knows when the first message it saw will expire. Until then, and as long as no message with a shorter
ttl arrives, the queue is skipped. A store shared with other brokers is scanned again after `OTHERS`. While nothing
happens at all, only every `IDLE`th pass is made.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from miniq.broker import rules
from miniq.errors import MiniQError, QueueNotFound, StoreFailed
from miniq.message import SECOND, QueueSettings
from miniq.store.arguments import FREE, Change, Fence, Scan

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.upkeep")

OTHERS = 60 * SECOND
"""Longest time between two scans of a queue on a store to which other brokers may send."""
IDLE = 10


class _QueueScan:
    """How far a queue was scanned, and a time before which none of the messages seen expires."""

    __slots__ = ("cursor", "earliest", "retention")

    def __init__(self, retention: float, earliest: int) -> None:
        self.retention = retention
        self.earliest = earliest
        self.cursor: str | None = None


class Upkeep:
    """The background task of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._running: dict[str, _QueueScan] = {}
        self._completed: dict[str, _QueueScan] = {}
        self._last = ""
        """The queue at which the last pass ended."""
        self._next_due = 0
        """When something may be due, unless calls change something before."""

    async def run(self) -> None:
        """Make a pass every `upkeep_interval` seconds, as long as there may be something to do."""
        broker, interval = self._broker, self._broker.options.upkeep_interval
        changes, skipped = (-1, -1), 0
        while True:
            await asyncio.sleep(interval)
            previous, changes = changes, (broker.metrics.messages.total(), broker.catalog.changes)
            if changes == previous and skipped < IDLE and broker.clock.now() < self._next_due:
                skipped += 1
                continue
            skipped = 0
            try:
                await self.run_once()
            except StoreFailed:
                return
            except MiniQError as error:
                log.warning("upkeep pass failed: %s", error)

    def created(self, queue: str, settings: QueueSettings) -> None:
        """This broker created a queue: it is empty, so it needs no scan."""
        self._running.pop(queue, None)
        self._completed[queue] = self._start_scan(settings)

    def expect(self, queue: str, moment: int) -> None:
        """A message arrived that expires at `moment`, which may be before the queue's retention ends."""
        self._next_due = min(self._next_due, moment)
        for scan in (self._running.get(queue), self._completed.get(queue)):
            if scan is not None and moment < scan.earliest:
                scan.earliest = moment

    def scan_again(self, queue: str) -> None:
        """Messages arrived whose expiry is unknown."""
        self._next_due = 0
        self._completed.pop(queue, None)
        scan = self._running.get(queue)
        if scan is not None:
            scan.earliest = 0

    async def run_once(self) -> None:
        """Make one pass. It continues with the queue after the last one of the previous pass."""
        broker = self._broker
        budget = broker.options.upkeep_batch
        now = broker.clock.now()
        queues = dict(broker.catalog.queues)
        for scans in (self._running, self._completed):
            for deleted in scans.keys() - queues.keys():
                del scans[deleted]
        names = sorted(queues)
        start = bisect_right(names, self._last)
        for queue in names[start:] + names[:start]:
            completed = self._completed.get(queue)
            if completed is None or completed.earliest <= now or completed.retention != queues[queue].retention:
                self._completed.pop(queue, None)
                with suppress(QueueNotFound):  # deleted in the meantime
                    budget -= await self._expire(queue, budget)
            self._last = queue
            if budget <= 0:
                break
        removed = await broker.store.tidy(now, broker.options.upkeep_batch * 10)
        trimmed = await self._trim_history(now)
        has_more = removed or trimmed or len(self._completed) < len(names)
        self._next_due = 0 if has_more else min((scan.earliest for scan in self._completed.values()), default=0)

    async def _expire(self, queue: str, limit: int) -> int:
        """Drop expired messages from the next page of a queue, and from further pages as long as at least half of
        each has expired. Return how many messages of the last page had not."""
        broker = self._broker
        while (settings := broker.catalog.find(queue)) is not None:
            now = broker.clock.now()
            scan = self._running.get(queue)
            if scan is None or scan.retention != settings.retention:
                scan = self._running[queue] = self._start_scan(settings)
            size = broker.options.limits.response_bytes
            page = await broker.store.messages.scan(
                queue, Scan(limit=limit, max_bytes=size, now=now, after=scan.cursor)
            )
            expired: dict[str, list[Fence]] = {}
            for stored in page.messages:
                end = rules.ends_at(stored.message, settings)
                if end > now:
                    scan.earliest = min(scan.earliest, end)
                elif (reason := rules.expired(stored, settings, now)) is not None:
                    expired.setdefault(reason, []).append((stored.message.id, FREE))
            for why, fences in expired.items():
                change = Change(now, settings.history, "expired", why)
                if "leased" in await broker.store.messages.drop(queue, fences, change):
                    scan.earliest = 0  # try again in the next scan
            scan.cursor = page.next
            if page.next is None:
                self._completed[queue] = scan
                del self._running[queue]
            dropped = sum(map(len, expired.values()))
            if page.next is None or dropped * 2 < len(page.messages):
                return len(page.messages) - dropped
            await asyncio.sleep(0)
        return 0

    def _start_scan(self, settings: QueueSettings) -> _QueueScan:
        """A scan that starts now: unless it has a ttl, what arrives later lives as long as the queue's retention."""
        now = self._broker.clock.now()
        end = now + rules.micros(settings.retention)
        return _QueueScan(settings.retention, min(end, now + OTHERS) if self._broker.store.shared else end)

    async def _trim_history(self, now: int) -> bool:
        """Remove the oldest tenth of a history that is too large, and all events that are too old."""
        broker = self._broker
        options = broker.options
        span = await broker.store.history.span()
        upto = 0
        if span.bytes > options.history_max_bytes:
            upto = span.first + (span.last - span.first) // 10
        cutoff = now - round(options.history_retention * SECOND)
        if span.oldest_at is not None and span.oldest_at <= cutoff:
            after = span.first - 1
            while records := (await broker.store.history.read(after, 1000)).records:
                old = [record.offset for record in records if record.event.at <= cutoff]
                upto = max([upto, *old])
                if len(old) < len(records):
                    break
                after = records[-1].offset
                await asyncio.sleep(0)
        if upto:
            await broker.store.history.trim(upto)
        return upto > 0
