"""The background pass that removes what no receive would ever touch, a bounded amount at a time.

Leases and delays need no sweeper. This pass scans each queue page by page and drops messages past their ttl or the
queue's retention, lets the store remove obsolete records, and trims the history.

A completed walk knows when the first message it saw will expire. Until then, and as long as no message with a shorter
ttl arrives, the queue is skipped. A store shared with other brokers is walked again after `OTHERS`.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from miniq.broker import background, rules
from miniq.errors import MiniQError, QueueNotFound
from miniq.message import SECOND, QueueSettings
from miniq.store.arguments import FREE, Change, Fence, Scan

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.upkeep")

OTHERS = 60 * SECOND
"""How long a queue is left alone at most where other brokers, which nobody here hears of, may send to it."""


class _Walk:
    """How far a queue was looked through, and the moment before which nothing of what was met will end."""

    __slots__ = ("cursor", "earliest", "retention")

    def __init__(self, retention: float, earliest: int) -> None:
        self.retention = retention
        self.earliest = earliest
        self.cursor: str | None = None


class Upkeep:
    """The background task of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._walks: dict[str, _Walk] = {}
        """Queues that are being looked through."""
        self._quiet: dict[str, _Walk] = {}
        """Those of which a walk has come to its end."""
        self._last = ""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Run a pass every `upkeep_interval` seconds; with 0 the caller runs them."""
        if self._broker.options.upkeep_interval > 0:
            self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """Cancel the background task."""
        if self._task is not None:
            await background.end(self._task)
            self._task = None

    def created(self, queue: str, settings: QueueSettings) -> None:
        """A queue was made by this broker: it is empty, so there is nothing to look for."""
        self._walks.pop(queue, None)
        self._quiet[queue] = self._walk(settings)

    def expect(self, queue: str, moment: int) -> None:
        """A message arrived that ends at `moment`, which may be before its queue's retention is over."""
        for walk in (self._walks.get(queue), self._quiet.get(queue)):
            if walk is not None and moment < walk.earliest:
                walk.earliest = moment

    def look_again(self, queue: str) -> None:
        """Messages arrived of which nothing is known: the queue has to be walked again."""
        self._quiet.pop(queue, None)
        walk = self._walks.get(queue)
        if walk is not None:
            walk.earliest = 0

    async def once(self) -> None:
        """Run one pass. It continues with the queue after the last one of the previous pass."""
        broker = self._broker
        budget = broker.options.upkeep_batch
        queues = broker.catalog.all()
        now = broker.clock.now()
        for known in (self._walks, self._quiet):
            for gone in known.keys() - queues.keys():
                del known[gone]
        names = sorted(queues)
        start = bisect_right(names, self._last)
        for queue in names[start:] + names[:start]:
            quiet = self._quiet.get(queue)
            if quiet is None or quiet.earliest <= now or quiet.retention != queues[queue].retention:
                self._quiet.pop(queue, None)
                with suppress(QueueNotFound):  # deleted in the meantime
                    budget -= await self._expire(queue, budget)
            self._last = queue
            if budget <= 0:
                break
        await broker.store.tidy(broker.clock.now(), broker.options.upkeep_batch * 10)
        await self._trim_history()

    async def _loop(self) -> None:
        interval = self._broker.options.upkeep_interval
        while self._broker.store.failure() is None:
            await asyncio.sleep(interval)
            try:
                await self.once()
            except MiniQError as error:
                log.warning("upkeep pass failed: %s", error)

    async def _expire(self, queue: str, limit: int) -> int:
        """Drop expired messages from the next page of a queue, and from further pages as long as at least half of
        each has expired. Return how many messages of the last page had not."""
        broker = self._broker
        while (settings := broker.catalog.find(queue)) is not None:
            now = broker.clock.now()
            walk = self._walks.get(queue)
            if walk is None or walk.retention != settings.retention:
                walk = self._walks[queue] = self._walk(settings)
            size = broker.options.limits.response_bytes
            scan = Scan(limit=limit, max_bytes=size, now=now, after=walk.cursor)
            page = await broker.store.messages.scan(queue, scan)
            expired: dict[str, list[Fence]] = {}
            for stored in page.messages:
                end = rules.ends_at(stored.message, settings)
                if end > now:
                    walk.earliest = min(walk.earliest, end)
                elif (reason := rules.expired(stored, settings, now)) is not None:
                    expired.setdefault(reason, []).append((stored.message.id, FREE))
            for why, fences in expired.items():
                change = Change(now, settings.history, "expired", why)
                done = await broker.store.messages.drop(queue, fences, change)
                if "leased" in done:
                    walk.earliest = 0  # to be met again
            walk.cursor = page.next
            if page.next is None:
                self._quiet[queue] = walk
                del self._walks[queue]
            dropped = sum(map(len, expired.values()))
            if page.next is None or dropped * 2 < len(page.messages):
                return len(page.messages) - dropped
            await asyncio.sleep(0)
        return 0

    def _walk(self, settings: QueueSettings) -> _Walk:
        """One that begins now: what arrives from now on lives as long as the queue's retention, unless it has a ttl."""
        now = self._broker.clock.now()
        end = now + rules.micros(settings.retention)
        return _Walk(settings.retention, min(end, now + OTHERS) if self._broker.store.shared else end)

    async def _trim_history(self) -> None:
        """Remove the oldest tenth of a history that is too large, and all events that are too old."""
        broker = self._broker
        options = broker.options
        span = await broker.store.history.span()
        upto = 0
        if span.bytes > options.history_max_bytes:
            upto = span.first + (span.last - span.first) // 10
        cutoff = broker.clock.now() - rules.micros(options.history_retention)
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
