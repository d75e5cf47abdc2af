"""The background pass that removes what no receive would ever touch, a bounded amount at a time.

Leases and delays need no sweeper. This pass scans each queue page by page and drops messages past their ttl or the
queue's retention, lets the store remove obsolete records, and trims the history.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from miniq.broker import background, rules
from miniq.errors import MiniQError, QueueNotFound
from miniq.store.contract import FREE, Fence

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.upkeep")


class Upkeep:
    """The background task of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._cursors: dict[str, str] = {}
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

    async def once(self) -> None:
        """Run one pass. It continues with the queue after the last one of the previous pass."""
        broker = self._broker
        budget = broker.options.upkeep_batch
        names = sorted(broker.catalog.names())
        start = bisect_right(names, self._last)
        for queue in names[start:] + names[:start]:
            with suppress(QueueNotFound):  # deleted in the meantime
                budget -= await self._expire(queue, budget)
            self._last = queue
            if budget <= 0:
                break
        await broker.store.tidy(now=broker.clock.now(), limit=broker.options.upkeep_batch * 10)
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
        while queue in broker.catalog.names():
            settings = broker.catalog.settings(queue)
            now = broker.clock.now()
            page = await broker.store.scan(
                queue,
                status=None,
                after=self._cursors.get(queue),
                limit=limit,
                max_bytes=broker.options.limits.response_bytes,
                now=now,
            )
            expired: dict[str, list[Fence]] = {}
            for stored in page.messages:
                reason = rules.expired(stored, settings, now)
                if reason is not None:
                    expired.setdefault(reason, []).append((stored.message.id, FREE))
            for why, fences in expired.items():
                await broker.store.drop(queue, fences, now=now, event="expired", reason=why, keep=settings.history)
            if page.next is None:
                self._cursors.pop(queue, None)
            else:
                self._cursors[queue] = page.next
            dropped = sum(map(len, expired.values()))
            if page.next is None or dropped * 2 < len(page.messages):
                return len(page.messages) - dropped
            await asyncio.sleep(0)
        return 0

    async def _trim_history(self) -> None:
        """Remove the oldest tenth of a history that is too large, and all events that are too old."""
        broker = self._broker
        options = broker.options
        span = await broker.store.history_span()
        upto = 0
        if span.bytes > options.history_max_bytes:
            upto = span.first + (span.last - span.first) // 10
        cutoff = broker.clock.now() - rules.micros(options.history_retention)
        if span.oldest_at is not None and span.oldest_at <= cutoff:
            after = span.first - 1
            while records := (await broker.store.history(after=after, limit=1000, queue=None)).records:
                old = [record.offset for record in records if record.event.at <= cutoff]
                upto = max([upto, *old])
                if len(old) < len(records):
                    break
                after = records[-1].offset
                await asyncio.sleep(0)
        if upto:
            await broker.store.trim_history(upto)
