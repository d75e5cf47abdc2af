"""The bounded background pass: what nobody meets must not stay forever.

Leases and delays need no sweeping. This pass walks each queue a page at a time and drops what its ttl or
retention has ended, lets the store remove records without meaning, and keeps the history in its limits.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING

from miniq.broker import background, rules
from miniq.errors import MiniQError, QueueNotFound
from miniq.store.arguments import FREE, Change, Fence, Scan

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
        """Run a pass every `upkeep_interval`; 0 leaves it to the caller."""
        if self._broker.options.upkeep_interval > 0:
            self._task = asyncio.create_task(self._loop())

    async def stop(self) -> None:
        """End the background task."""
        if self._task is not None:
            await background.end(self._task)
            self._task = None

    async def once(self) -> None:
        """One pass over everything."""
        broker = self._broker
        left = broker.options.upkeep_batch
        names = sorted(broker.catalog.names())
        start = bisect_right(names, self._last)
        for queue in names[start:] + names[:start]:
            with suppress(QueueNotFound):  # it was deleted meanwhile
                left -= await self._expire(queue, left)
            self._last = queue
            if left <= 0:
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

    async def _expire(self, queue: str, most: int) -> int:
        """Look at the next page of a queue, and at more while most of it has ended; say how many were
        looked at in vain."""
        broker = self._broker
        while queue in broker.catalog.names():
            settings = broker.catalog.settings(queue)
            now = broker.clock.now()
            size, after = broker.options.limits.response_bytes, self._cursors.get(queue)
            page = await broker.store.messages.scan(queue, Scan(limit=most, max_bytes=size, now=now, after=after))
            over: dict[str, list[Fence]] = {}
            for stored in page.messages:
                reason = rules.expired(stored, settings, now)
                if reason is not None:
                    over.setdefault(reason, []).append((stored.message.id, FREE))
            for why, fences in over.items():
                await broker.store.messages.drop(queue, fences, Change(now, settings.history, "expired", why))
            if page.next is None:
                self._cursors.pop(queue, None)
            else:
                self._cursors[queue] = page.next
            ended = sum(map(len, over.values()))
            if page.next is None or ended * 2 < len(page.messages):
                return len(page.messages) - ended
            await asyncio.sleep(0)
        return 0

    async def _trim_history(self) -> None:
        """Forget the oldest tenth when the history is too large, and all that is too old."""
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
