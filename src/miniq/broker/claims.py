"""Claims: frozen, numbered batches for readers that may have to read the same again, such as Spark.

A group of readers works through claims 1, 2, 3 and so on. Asking for the claim after n acks all up to n; asking again
gives the same one. A reader that opens the group fences all earlier ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from msgspec.structs import replace

from miniq.broker import rules
from miniq.message import Claim, ClaimGroup, Portion, QueueSettings, Stored
from miniq.options import MIB
from miniq.store.arguments import Change, NextClaim, Places
from miniq.store.contract import Claimed
from miniq.store.decisions import claim_name

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

STEP_BYTES = 4 * MIB
"""What is read of a claim at once."""
NUMBERS = 2**62


class Claims:
    """The claims of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def open(self, queue: str, group: str) -> ClaimGroup:
        """A new reader of a group: from now on earlier ones are refused where they name their epoch."""
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
    ) -> tuple[Claim | None, int]:
        """Ack all claims up to `after`, then give the one that follows; with `wait`, wait that long until it can be
        made. None if there is nothing to claim. Also says the group's epoch."""
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
        now = broker.clock.now()
        deadline = now + rules.micros(wait)
        asked = NextClaim(after=after, now=now, epoch=epoch, limit=max_messages, max_bytes=max_bytes, consumer=consumer)
        found = await self._claim(queue, group, asked)
        if found.claim is not None or not wait:
            return found.claim, found.epoch
        with broker.waiters.join(queue, consumer) as waiter:
            while True:
                looked = broker.clock.now()
                found = await self._claim(queue, group, asked)
                if found.claim is not None:
                    broker.waiters.wake_each(queue)
                    return found.claim, found.epoch
                now = broker.clock.now()
                if now < deadline and broker.patient:
                    broker.waiters.expect(queue, await broker.store.messages.next_visible(queue, looked))
                    await waiter.until(deadline)
                if now >= deadline or not broker.patient:
                    return None, found.epoch

    async def ack(self, queue: str, group: str, upto: int, epoch: int | None = None) -> None:
        """Ack all claims up to a number; those that are acked already stay so."""
        broker = self._broker
        settings = await broker.catalog.existing(queue)
        rules.check_label(group, "group")
        rules.check_count(upto, "upto", 0, NUMBERS)
        _check_epoch(epoch)
        await self._ask(queue, settings, group, NextClaim(after=upto, now=0, epoch=epoch))

    async def release(self, queue: str, group: str, epoch: int | None = None) -> int:
        """Give the messages of all claims that are not acked back, and say how many."""
        broker = self._broker
        settings = await broker.catalog.existing(queue)
        rules.check_label(group, "group")
        _check_epoch(epoch)
        change = Change(broker.clock.now(), settings.history)
        released = await broker.store.claims.release(queue, group, epoch, change)
        broker.metrics.messages[queue, "released"] += released
        return released

    async def list(self, queue: str) -> list[ClaimGroup]:
        """All groups of a queue with the claims that can be read."""
        broker = self._broker
        await broker.catalog.existing(queue)
        return await broker.store.claims.groups(queue, broker.clock.now())

    async def find(self, queue: str, group: str, number: int, part: int = 0, parts: int = 1) -> Part:
        """A part of a claim, to be read: parts are disjoint, hold everything, and are the same each time."""
        broker = self._broker
        await broker.catalog.existing(queue)
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
        return broker.catalog.find(queue) or await broker.catalog.first_use(queue)

    async def _claim(self, queue: str, group: str, asked: NextClaim) -> Claimed:
        """Ask until there is a claim, or nothing to make one from."""
        while True:
            settings = await self._settings(queue)
            found = await self._ask(queue, settings, group, asked)
            if found.unfit:
                await self._broker.deliveries.discard(queue, settings, found.unfit, self._broker.clock.now())
            if found.claim is not None or not found.unfit:
                return found

    async def _ask(self, queue: str, settings: QueueSettings, group: str, asked: NextClaim) -> Claimed:
        """Ask once, by what the queue says now."""
        broker = self._broker
        now = broker.clock.now()
        keep_until = now + rules.micros(settings.claim_retention)
        fit = rules.fit(settings, now)
        asked = replace(asked, now=now, keep_until=keep_until, fit=fit, keep=settings.history)
        found = await broker.store.claims.next(queue, group, asked)
        broker.metrics.messages[queue, "acked"] += found.acked
        if found.made and found.claim is not None:
            broker.metrics.messages[queue, "received"] += found.claim.messages
        return found


class Part:
    """Some messages of a claim, which can be read as often as wanted."""

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
        place = self._start
        while place < self._stop:
            places = Places(start=place, stop=self._stop, max_bytes=STEP_BYTES, now=self._broker.clock.now())
            some = await self._broker.store.claims.read(self._queue, self._group, self.claim.number, places)
            yield some
            place += sum(map(len, some))

    async def each(self) -> AsyncIterator[list[Stored]]:
        """The same, one by one."""
        name = claim_name(self._group, self.claim.number)
        async for some in self.read():
            yield [stored for portion in some for stored in portion.each(name, self._group)]


def _check_epoch(epoch: int | None) -> None:
    if epoch is not None:
        rules.check_count(epoch, "epoch", 0, NUMBERS)
