"""Claims: frozen, numbered batches for readers that may have to read the same messages again, such as Spark.

A group of readers works through claims 1, 2, 3 and so on. Asking for the claim after n acks all up to n; asking again
returns the same claim. A reader that opens the group fences off all earlier readers.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from miniq.batch import Claim, ClaimGroup, OpenedGroup, Portion
from miniq.broker import rules
from miniq.broker.waiters import Permit
from miniq.errors import ClaimUnknown, InvalidRequest, QueueNotFound
from miniq.message import QueueSettings, Stored
from miniq.options import MIB
from miniq.store.arguments import Change, NextClaim, Places, Put
from miniq.store.contract import Claimed
from miniq.store.decisions import check_taken, claim_name, marks

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

STEP_BYTES = 4 * MIB
"""Bytes of a claim that are read at once."""
NUMBERS = 2**62
BURIED = 7 * 86400.0
"""Seconds for which a message of a claim is not buried again; as long as a commit of stages is remembered."""


class Claims:
    """The claims of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def open(self, queue: str, group: str) -> OpenedGroup:
        """Register a new reader of a group: from now on, calls with an earlier epoch are refused."""
        broker, now = self._broker, self._broker.clock.now()
        await self._settings(queue)
        rules.check_label(group, "group")
        opened = await broker.store.claims.open(queue, group, secrets.token_hex(8))
        groups = await broker.store.claims.groups(queue, now)
        claims = next((known.claims for known in groups if known.group == group), [])
        ready = (await broker.store.messages.counts(queue, now)).ready
        return OpenedGroup(group, opened.epoch, opened.acked, opened.last, claims, opened.id, broker.store_id, ready)

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
        reader: str | None = None,
        permit: Permit | None = None,
    ) -> tuple[Claim | None, int]:
        """Ack all claims up to `after`, and return the one that follows with the group's epoch; with `wait`, wait that
        long for messages, while there is a `permit`. None if there is nothing to claim. A `reader` that gives its name
        gets no claim that a reader of another name has fetched, and acks none."""
        broker = self._broker
        limits = broker.options.limits
        if epoch is None:
            await self._settings(queue)
        else:  # the reader has opened the group: a queue that is missing was deleted since
            await broker.catalog.require(queue)
        rules.check_label(group, "group")
        rules.check_count(after, "after", 0, NUMBERS)
        _check_epoch(epoch)
        rules.check_count(max_messages, "max_messages", 1, limits.claim)
        rules.check_count(max_bytes, "max_bytes", 1, limits.claim_bytes)
        rules.check_seconds(wait, "wait", 0, limits.wait)
        if consumer is not None:
            rules.check_text(consumer, "consumer", limits)
        _check_name(reader)
        request = NextClaim(
            after=after,
            now=0,
            epoch=epoch,
            limit=max_messages,
            max_bytes=max_bytes,
            consumer=consumer,
            reader=reader,
        )
        claimed = await self._claim(queue, group, request)
        if claimed.claim is None and wait:
            claim = partial(self._claim, queue, group, request)
            claimed = await broker.deliveries.long_poll(
                queue, consumer, wait, claim, lambda claimed: claimed.claim, permit, group=group
            )
        return claimed.claim, claimed.epoch

    async def ack(self, queue: str, group: str, upto: int, epoch: int | None = None, reader: str | None = None) -> None:
        """Ack all claims up to a number, all of which must have been fetched, if only in part."""
        broker = self._broker
        settings = await broker.catalog.require(queue)
        rules.check_label(group, "group")
        rules.check_count(upto, "upto", 0, NUMBERS)
        _check_epoch(epoch)
        _check_name(reader)
        await self._ask(queue, settings, group, NextClaim(after=upto, now=0, epoch=epoch, reader=reader))

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

    async def bury(
        self, queue: str, group: str, claim: int, ids: Sequence[str], reason: str, errors: Sequence[str] | None = None
    ) -> int:
        """Copy messages of a claim that is not acked to the dead-letter queue, as a reader that cannot process them
        asks, and return how many. The claim stays as it is, and its ack removes the originals. A message is copied once
        within `BURIED`, however often it is read. `errors` tells of each of the `ids` what is wrong with it."""
        broker = self._broker
        settings = await broker.catalog.require(queue)
        rules.check_label(group, "group")
        rules.check_count(claim, "claim", 1, NUMBERS)
        rules.check_count(len(ids), "ids", 1, broker.options.limits.batch)
        rules.check_text(reason, "reason", broker.options.limits)
        _check_errors(errors, ids)
        error_of = dict(zip(ids, errors or (), strict=False))
        name, now = claim_name(group, claim), broker.clock.now()
        found = await broker.store.messages.find(queue, list(dict.fromkeys(ids)))
        to = settings.dead_letter_queue or f"{queue}.dead"
        letters = []
        for id, stored in found.items():
            if stored.receipt == name:
                letter = rules.bury(stored.message, to, reason, stored.receives, now, error_of.get(id))
                # Copies of a published message have one id in several queues; no sender can know this name.
                once = f"buried {broker.store_id} {queue} {id}"
                letters.append(replace(letter, id=broker.ids.run(1, now)[0], dedup_id=once))
        if not letters:
            return 0
        while True:
            target = await broker.catalog.ensure(to)
            try:
                put = Put(now=now, keep=target.history, dedup_until=now + rules.micros(BURIED), reason="dead")
                added = await broker.store.messages.put(letters, put)
            except QueueNotFound:
                broker.catalog.forget(to)  # just deleted by a concurrent call
                continue
            broker.metrics.sent(to, [letter.id for letter in letters], added)
            return len(letters)

    async def list(self, queue: str) -> list[ClaimGroup]:
        """All groups of a queue with the claims that can be read."""
        broker = self._broker
        await broker.catalog.require(queue)
        return await broker.store.claims.groups(queue, broker.clock.now())

    async def everywhere(self) -> dict[str, Sequence[ClaimGroup]]:
        """The same of all queues that have groups, by queue."""
        self._broker.check_open()
        return {**await self._broker.store.claims.all_groups(self._broker.clock.now())}

    async def fetch(
        self, queue: str, group: str, number: int, part: int = 0, parts: int = 1, reader: str | None = None
    ) -> Part:
        """A part of a claim. Parts are disjoint, together hold all messages, and are the same each time. That the claim
        was fetched is recorded before there is anything to read, even if this part is empty; a `reader` of another name
        gets none of it."""
        broker = self._broker
        await broker.catalog.require(queue)
        rules.check_label(group, "group")
        rules.check_count(number, "claim", 1, NUMBERS)
        rules.check_count(parts, "parts", 1, broker.options.limits.claim)
        rules.check_count(part, "part", 0, parts - 1)
        _check_name(reader)
        claim = await broker.store.claims.find(queue, group, number, broker.clock.now())
        check_taken(group, claim, reader)
        if marks(claim, reader or ""):
            await broker.store.claims.mark(queue, group, number, reader or "")
        start, stop = claim.messages * part // parts, claim.messages * (part + 1) // parts
        return Part(broker, queue, group, claim, start, stop)

    # Inside

    async def _settings(self, queue: str) -> QueueSettings:
        broker = self._broker
        return broker.catalog.find(queue) or await broker.catalog.get_or_create(queue)

    async def _claim(self, queue: str, group: str, request: NextClaim) -> Claimed:
        """Make the next claim, discarding unfit messages on the way. Raises `QueueNotFound` if the queue was deleted
        while the caller waited."""
        while True:
            settings = await self._broker.catalog.require(queue)
            limit = request.limit
            if settings.paused or settings.max_in_flight or settings.rate:
                existing = await self._existing(queue, settings, group, request)
                limit = 0 if existing.claim is not None else await self._room(queue, settings, limit)
                if limit <= 0:
                    return existing
            claimed = await self._ask(queue, settings, group, replace(request, limit=limit))
            if settings.rate:
                self._broker.rates.give_back(queue, limit - (claimed.claim.messages if claimed.claim else 0))
            if claimed.unfit:
                await self._broker.deliveries.discard(queue, settings, claimed.unfit, self._broker.clock.now())
            if claimed.claim is not None or not claimed.unfit:
                return claimed

    async def _room(self, queue: str, settings: QueueSettings, limit: int) -> int:
        """How many messages a new claim may have, up to `limit`."""
        broker = self._broker
        if settings.paused:
            return 0
        if settings.max_in_flight:
            leased = (await broker.store.messages.counts(queue, broker.clock.now())).leased
            limit = min(limit, settings.max_in_flight - leased)
        return await broker.rates.reserve(queue, settings.rate, limit) if settings.rate and limit > 0 else limit

    async def _existing(self, queue: str, settings: QueueSettings, group: str, request: NextClaim) -> Claimed:
        """Ack earlier claims, and return the requested one only if it was made before."""
        claimed = await self._ask(queue, settings, group, replace(request, limit=0))
        try:
            claim = await self._broker.store.claims.find(queue, group, request.number, self._broker.clock.now())
        except ClaimUnknown:
            return claimed
        return replace(claimed, claim=claim)

    async def _ask(self, queue: str, settings: QueueSettings, group: str, request: NextClaim) -> Claimed:
        """Ask the store once, with the queue's current settings."""
        broker = self._broker
        now = broker.clock.now()
        keep_until = now + rules.micros(settings.claim_retention)
        fit = rules.fit(settings, now)
        request = replace(request, now=now, keep_until=keep_until, fit=fit, keep=settings.history)
        claimed = await broker.store.claims.next(queue, group, request)
        if claimed.acked:
            broker.metrics.messages[queue, "acked"] += claimed.acked
            broker.consumers.acked(queue, group, now, claimed.acked)
            broker.deliveries.freed(queue, settings, claimed.acked)
            if settings.results:
                broker.results.wake(queue)
        made = claimed.claim.messages if claimed.made and claimed.claim is not None else 0
        if made:
            broker.metrics.messages[queue, "received"] += made
        if request.limit:
            broker.consumers.received(queue, group, now, made)
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


def _check_name(reader: str | None) -> None:
    if reader is not None:
        rules.check_label(reader, "reader")


def _check_epoch(epoch: int | None) -> None:
    if epoch is not None:
        rules.check_count(epoch, "epoch", 0, NUMBERS)


def _check_errors(errors: Sequence[object] | None, ids: Sequence[str]) -> None:
    """Raise unless there is an error for each message, or none at all."""
    if errors is None:
        return
    if len(errors) != len(ids):
        raise InvalidRequest(f"errors: {len(errors)} for {len(ids)} ids; give one for each, or none", field="errors")
    for index, error in enumerate(errors):
        rules.check_error(error, f"errors[{index}]")
