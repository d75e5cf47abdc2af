"""Claims: frozen, numbered batches for readers that may have to read the same messages again, such as Spark.

A group of readers works through claims 1, 2, 3 and so on. Asking for the claim after n acks all up to n; asking again
returns the same claim. A reader that opens the group fences off all earlier readers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from miniq.broker import rules
from miniq.broker.waiters import Permit
from miniq.message import Claim, ClaimGroup, Portion, QueueSettings, Stored
from miniq.options import MIB
from miniq.store.arguments import Change, NextClaim, Places
from miniq.store.contract import Claimed
from miniq.store.decisions import claim_name

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

STEP_BYTES = 4 * MIB
"""Bytes of a claim that are read at once."""
NUMBERS = 2**62


class Claims:
    """The claims of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def open(self, queue: str, group: str) -> ClaimGroup:
        """Register a new reader of a group: from now on, calls with an earlier epoch are refused."""
        await self._settings(queue)
        rules.check_label(group, "group")
        return await self._broker.store.claims.open(queue, group)

    async def next(
        self,
        queue: str,
        group: str,
        after: int,
        *,
        epoch: int | None = None,
        max_messages: int = 10_000,
        max_bytes: int = 64 * MIB,
        wait: float = 0,
        consumer: str | None = None,
        permit: Permit | None = None,
    ) -> tuple[Claim | None, int]:
        """Ack all claims up to `after`, and return the one that follows with the group's epoch; with `wait`, wait that
        long for messages, while there is a `permit`. None if there is nothing to claim."""
        broker = self._broker
        limits = broker.options.limits
        await self._settings(queue)
        rules.check_label(group, "group")
        rules.check_count(after, "after", 0, NUMBERS)
        _check_epoch(epoch)
        rules.check_count(max_messages, "max_messages", 1, limits.claim)
        rules.check_count(max_bytes, "max_bytes", 1, limits.claim_bytes)
        rules.check_seconds(wait, "wait", 0, limits.wait)
        if consumer is not None:
            rules.check_text(consumer, "consumer", limits)
        request = NextClaim(after=after, now=0, epoch=epoch, limit=max_messages, max_bytes=max_bytes, consumer=consumer)
        claimed = await self._claim(queue, group, request)
        if claimed.claim is None and wait:
            claim = partial(self._claim, queue, group, request)
            claimed = await broker.deliveries.long_poll(
                queue, consumer, wait, claim, lambda claimed: claimed.claim, permit
            )
        return claimed.claim, claimed.epoch

    async def ack(self, queue: str, group: str, upto: int, epoch: int | None = None) -> None:
        """Ack all claims up to a number."""
        broker = self._broker
        settings = await broker.catalog.require(queue)
        rules.check_label(group, "group")
        rules.check_count(upto, "upto", 0, NUMBERS)
        _check_epoch(epoch)
        await self._ask(queue, settings, group, NextClaim(after=upto, now=0, epoch=epoch))

    async def release(self, queue: str, group: str, epoch: int | None = None) -> int:
        """Release the messages of all claims that are not acked, and return how many."""
        broker = self._broker
        settings = await broker.catalog.require(queue)
        rules.check_label(group, "group")
        _check_epoch(epoch)
        change = Change(broker.clock.now(), settings.history)
        released = await broker.store.claims.release(queue, group, epoch, change)
        broker.metrics.messages[queue, "released"] += released
        return released

    async def list(self, queue: str) -> list[ClaimGroup]:
        """All groups of a queue with the claims that can be read."""
        broker = self._broker
        await broker.catalog.require(queue)
        return await broker.store.claims.groups(queue, broker.clock.now())

    async def find(self, queue: str, group: str, number: int, part: int = 0, parts: int = 1) -> Part:
        """A part of a claim. Parts are disjoint, together hold all messages, and are the same each time."""
        broker = self._broker
        await broker.catalog.require(queue)
        rules.check_label(group, "group")
        rules.check_count(number, "claim", 1, NUMBERS)
        rules.check_count(parts, "parts", 1, broker.options.limits.claim)
        rules.check_count(part, "part", 0, parts - 1)
        claim = await broker.store.claims.find(queue, group, number, broker.clock.now())
        start, stop = claim.messages * part // parts, claim.messages * (part + 1) // parts
        return Part(broker, queue, group, claim, start, stop)

    # Inside

    async def _settings(self, queue: str) -> QueueSettings:
        broker = self._broker
        return broker.catalog.find(queue) or await broker.catalog.get_or_create(queue)

    async def _claim(self, queue: str, group: str, request: NextClaim) -> Claimed:
        """Make the next claim, discarding unfit messages on the way."""
        while True:
            settings = await self._settings(queue)
            claimed = await self._ask(queue, settings, group, request)
            if claimed.unfit:
                await self._broker.deliveries.discard(queue, settings, claimed.unfit, self._broker.clock.now())
            if claimed.claim is not None or not claimed.unfit:
                return claimed

    async def _ask(self, queue: str, settings: QueueSettings, group: str, request: NextClaim) -> Claimed:
        """Ask the store once, with the queue's current settings."""
        broker = self._broker
        now = broker.clock.now()
        keep_until = now + rules.micros(settings.claim_retention)
        fit = rules.fit(settings, now)
        request = replace(request, now=now, keep_until=keep_until, fit=fit, keep=settings.history)
        claimed = await broker.store.claims.next(queue, group, request)
        broker.metrics.messages[queue, "acked"] += claimed.acked
        if claimed.made and claimed.claim is not None:
            broker.metrics.messages[queue, "received"] += claimed.claim.messages
        return claimed


class Part:
    """A range of messages of a claim, which can be read any number of times."""

    def __init__(self, broker: Broker, queue: str, group: str, claim: Claim, start: int, stop: int) -> None:
        self._broker = broker
        self._queue = queue
        self._group = group
        self.claim = claim
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    async def read(self) -> AsyncIterator[list[Portion]]:
        """The messages in order, a few MiB at a time."""
        start = self._start
        while start < self._stop:
            places = Places(start=start, stop=self._stop, max_bytes=STEP_BYTES, now=self._broker.clock.now())
            portions = await self._broker.store.claims.read(self._queue, self._group, self.claim.number, places)
            yield portions
            start += sum(map(len, portions))

    async def each(self) -> AsyncIterator[list[Stored]]:
        """The same as single messages."""
        name = claim_name(self._group, self.claim.number)
        async for portions in self.read():
            yield [stored for portion in portions for stored in portion.each(name, self._group)]


def _check_epoch(epoch: int | None) -> None:
    if epoch is not None:
        rules.check_count(epoch, "epoch", 0, NUMBERS)
