"""The background pass that removes what no receive would ever touch, a bounded amount at a time.

Leases and delays need no sweeper. This pass scans each queue page by page and drops messages past their ttl or the
queue's retention, lets the store remove obsolete records, and trims the history.

A completed scan knows when the first message it saw will expire. Until then, and as long as no message with a shorter
ttl arrives, the queue is not looked at: a heap has the queues by this time. A queue of a store shared with others
is scanned again after `OTHERS`. While nothing happens at all, only every `IDLE`th pass is made.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from miniq.broker import rules
from miniq.errors import MiniQError, QueueNotFound, StoreFailed
from miniq.message import SECOND, QueueSettings, Stored
from miniq.store.arguments import Scan

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.upkeep")

OTHERS = 60 * SECOND
"""Time between two scans of a queue on a store to which other brokers may send; with many queues they take turns."""
IDLE = 10
"""Passes that are left out while there is nothing to do."""
IDLE_SHARED = 2
"""The same on a store that other brokers may share: what one that was killed has left must go on within 5 s."""
OBSOLETE = 1000
"""Obsolete entries that the heap of scans may have beside as many as there are queues."""
QUEUES = 100
"""Queues scanned per pass, at most."""


class _QueueScan:
    """How far a queue was scanned, and a time before which none of the messages seen expires."""

    __slots__ = ("cursor", "earliest")

    def __init__(self, earliest: int) -> None:
        self.earliest = earliest
        self.cursor: str | None = None


class Upkeep:
    """The background task of a broker. A pass costs as much as there is to do, however many queues there are."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._scans: dict[str, _QueueScan] = {}
        """By queue, the scan that runs or was completed last."""
        self._turns: dict[str, None] = {}
        """Queues to scan, or to go on with, in order."""
        self._due: list[tuple[int, str]] = []
        """A heap of completed scans by `earliest`; an entry with another time than its scan is obsolete."""
        self._next_due = 0
        """When something may be due, unless calls change something before."""

    async def run(self) -> None:
        """Make a pass every `upkeep_interval` seconds, as long as there may be something to do."""
        broker, interval = self._broker, self._broker.options.upkeep_interval
        idle = IDLE_SHARED if broker.store.shared else IDLE
        changes, skipped = (-1, -1), 0
        await asyncio.sleep(interval * random.random())  # noqa: S311 - brokers started together take turns
        while True:
            await asyncio.sleep(interval)
            if broker.store.failure() is not None:
                return
            previous, changes = changes, (broker.metrics.messages.changes, broker.catalog.changes)
            if changes == previous and skipped < idle and broker.clock.now() < self._next_due:
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
        self._turns.pop(queue, None)
        self._complete(queue, self._start_scan(settings))

    def found(self, queue: str) -> None:
        """There is a queue about which nothing is known, or whose retention has changed."""
        self._next_due = 0
        self._scans.pop(queue, None)
        self._turns[queue] = None

    def forget(self, queue: str) -> None:
        """A queue was deleted."""
        self._scans.pop(queue, None)
        self._turns.pop(queue, None)

    def expect(self, queue: str, moment: int) -> None:
        """A message arrived that expires at `moment`, which may be before the queue's retention ends."""
        self._next_due = min(self._next_due, moment)
        scan = self._scans.get(queue)
        if scan is not None and moment < scan.earliest:
            scan.earliest = moment
            if queue not in self._turns:
                heappush(self._due, (moment, queue))

    def scan_again(self, queue: str) -> None:
        """Messages arrived whose expiry is unknown."""
        self.expect(queue, 0)

    async def run_once(self) -> None:
        """Make one pass. It continues where the previous one ended."""
        broker = self._broker
        budget = broker.options.upkeep_batch
        now = broker.clock.now()
        while self._due and self._due[0][0] <= now:
            _, queue = heappop(self._due)
            scan = self._scans.get(queue)
            if scan is not None and scan.earliest <= now and queue not in self._turns:
                self.found(queue)
        for queue in list(itertools.islice(self._turns, QUEUES)):
            with suppress(QueueNotFound):  # deleted in the meantime
                budget -= await self._expire(queue, budget)
            if self._turns.pop(queue, 0) is None and (scan := self._scans.get(queue)) is not None:
                if scan.cursor is None:
                    self._complete(queue, scan)
                else:
                    self._turns[queue] = None
            if budget <= 0:
                break
            await asyncio.sleep(0)
        removed = await broker.store.tidy(now, broker.options.upkeep_batch * 10)
        trimmed = await self._trim_history(now)
        has_more = removed or trimmed or self._turns or not self._due
        self._next_due = 0 if has_more else self._due[0][0]

    async def _expire(self, queue: str, limit: int) -> int:
        """Drop expired messages from the next page of a queue, and from further pages as long as at least half of
        each has expired. Return how many messages of the last page had not."""
        broker = self._broker
        while (settings := broker.catalog.find(queue)) is not None:
            now = broker.clock.now()
            scan = self._scans.get(queue)
            if scan is None:
                scan = self._scans[queue] = self._start_scan(settings)
            size = broker.options.limits.response_bytes
            page = await broker.store.messages.scan(
                queue, Scan(limit=limit, max_bytes=size, now=now, after=scan.cursor)
            )
            expired: list[Stored] = []
            for stored in page.messages:
                end = rules.ends_at(stored.message, settings)
                if end > now:
                    scan.earliest = min(scan.earliest, end)
                else:
                    expired.append(stored)
            if "leased" in await broker.deliveries.discard(queue, settings, expired, now):
                scan.earliest = 0  # try again in the next scan
            scan.cursor = page.next
            if page.next is None or len(expired) * 2 < len(page.messages):
                return len(page.messages) - len(expired)
            await asyncio.sleep(0)
        return 0

    def _start_scan(self, settings: QueueSettings) -> _QueueScan:
        """A scan that starts now: unless it has a ttl, what arrives later lives as long as the queue's retention."""
        now = self._broker.clock.now()
        end = now + rules.micros(settings.retention)
        return _QueueScan(min(end, now + OTHERS) if self._broker.store.shared else end)

    def _complete(self, queue: str, scan: _QueueScan) -> None:
        self._scans[queue] = scan
        heappush(self._due, (scan.earliest, queue))
        if len(self._due) > 2 * len(self._scans) + OBSOLETE:
            self._due = [(scan.earliest, queue) for queue, scan in self._scans.items() if queue not in self._turns]
            heapify(self._due)

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
