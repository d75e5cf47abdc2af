"""Who consumes each queue: names, counts, and when a consumer was last seen.

What a consumer holds, the store knows. What it received and settled, the broker counts: a receive has the consumer's
name, and a receipt has the tag of that name (`receipts.py`), so no lease has to be remembered. The counts are lost when
the broker ends. Brokers that share a store share what they know (`sharing.py`).

Callers choose the names, so their number is bounded; those that were not seen for the longest time are forgotten first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

from miniq.broker.receipts import UNNAMED, origin, tag_of
from miniq.consumer import NOTHING, Consumer
from miniq.message import SECOND, Outcome, moment
from miniq.store.arguments import Fence

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

WINDOW = 300 * SECOND
"""How long a consumer is shown after it was last seen, in microseconds."""
MOST = 1000
"""Consumers of one queue that are remembered, and shown."""
MOST_OVERALL = 10_000
"""Consumers of all queues that are remembered."""


class Sight(Struct, array_like=True, gc=False):
    """What a broker knows about a consumer of a queue. `name` is None for consumers without one, and while only the tag
    is known."""

    name: str | None
    last_seen: int
    received: int = 0
    acked: int = 0
    failed: int = 0


Sights = dict[str, Sight]
"""By tag."""
_age = itemgetter(0)
_receipt = itemgetter(1)


class Consumers:
    """The consumers of a broker's queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.queues: dict[str, Sights] = {}
        self._count = 0
        self.before: dict[str, int] = {}
        """By queue: when a consumer was last seen before this broker started, as far as is known."""
        self.changes = 0
        """How often a count changed."""

    # What consumers do

    def received(self, queue: str, consumer: str | None, now: int, count: int) -> None:
        """A consumer asked for messages, and got this many."""
        tag = tag_of(consumer)
        sights = self.queues.get(queue)
        sight = None if sights is None else sights.get(tag)
        if sight is None:
            sight = self._new_sight(queue, tag, now)
        sight.last_seen = now
        sight.name = consumer
        if count:
            sight.received += count
            self.changes += 1

    def settled(
        self,
        queue: str,
        fences: Sequence[Fence],
        outcomes: Sequence[Outcome],
        now: int,
        how: Literal["acked", "failed"],
    ) -> None:
        """Messages were acked or failed; those whose outcome is not `done` were not."""
        receipts: dict[str, int]
        if len(fences) == 1:
            if outcomes[0] == "done":
                self._settle(queue, fences[0][1], 1, now, how)
            return
        if outcomes.count("done") == len(outcomes):
            receipts = Counter(map(_receipt, fences))
        else:
            receipts = Counter(fence[1] for fence, outcome in zip(fences, outcomes, strict=True) if outcome == "done")
        for receipt, count in receipts.items():
            self._settle(queue, receipt, count, now, how)

    def _settle(self, queue: str, receipt: str, count: int, now: int, how: Literal["acked", "failed"]) -> None:
        """Messages of one receive were acked or failed."""
        lease = origin(receipt, now)
        if lease is not None:
            tag, age = lease
            sight = self._sight(queue, tag, now)
            if how == "acked":
                sight.acked += count
            else:
                sight.failed += count
            self.changes += 1
            self._broker.timings.processed(queue, now, age, count)

    def acked(self, queue: str, consumer: str | None, now: int, count: int) -> None:
        """Messages were acked in another way than by their receipts."""
        if count:
            self._sight(queue, tag_of(consumer), now).acked += count
            self.changes += 1

    def touched(self, queue: str, fences: Sequence[Fence], outcomes: Sequence[Outcome], now: int) -> None:
        """A consumer extended its leases."""
        if "done" in outcomes:
            lease = origin(fences[outcomes.index("done")][1], now)
            if lease is not None:
                self._sight(queue, lease[0], now)

    def forget(self, queue: str) -> None:
        """A queue was deleted."""
        self._count -= len(self.queues.pop(queue, ()))
        self.before.pop(queue, None)

    def _sight(self, queue: str, tag: str, now: int) -> Sight:
        """What is known about a consumer, which is seen now."""
        sights = self.queues.get(queue)
        sight = None if sights is None else sights.get(tag)
        if sight is None:
            return self._new_sight(queue, tag, now)
        sight.last_seen = now
        return sight

    def _new_sight(self, queue: str, tag: str, now: int) -> Sight:
        sights = self.queues.setdefault(queue, {})
        if len(sights) >= MOST or self._count >= MOST_OVERALL:
            self._make_room(sights, now)
        sight = sights[tag] = Sight(None, now)
        self._count += 1
        return sight

    def _make_room(self, sights: Sights, now: int) -> None:
        """Forget consumers that are not shown any more; if these are few, others."""
        places = [(sight.last_seen, of, tag) for of in self.queues.values() for tag, sight in of.items()]
        old = [place for place in places if place[0] <= now - WINDOW]
        if len(sights) >= MOST:
            old += sorted((place for place in places if place[1] is sights), key=_age)[: MOST // 10]
        if len(places) - len(old) > MOST_OVERALL * 9 // 10:
            old += sorted(places, key=_age)[: MOST_OVERALL // 10]
        for _, of, tag in old:
            of.pop(tag, None)
        for queue in [queue for queue, of in self.queues.items() if not of and of is not sights]:
            del self.queues[queue]
        self._count = sum(map(len, self.queues.values()))

    # Who they are

    async def list(self, queue: str) -> list[Consumer]:
        """Who was seen in the last five minutes, by any broker, and who holds messages; by name, those without one
        last."""
        broker = self._broker
        await broker.catalog.require(queue)
        now = broker.clock.now()
        holdings = await broker.store.messages.holdings(queue, now)
        await broker.sharing.read()
        sights = merged([self.queues.get(queue, {}), *broker.sharing.sights(queue)])
        for name, holding in holdings.items():
            sight = sights.setdefault(tag_of(name), Sight(name, holding.taken_at, holding.messages))
            sight.name = name
            sight.last_seen = max(sight.last_seen, holding.taken_at)
        for name in broker.waiters.names(queue):
            sights.setdefault(tag_of(name), Sight(name, now)).last_seen = now
        found = []
        for tag, sight in sights.items():
            in_flight = holdings.get(sight.name, NOTHING).messages if is_known(tag, sight) else 0
            if is_known(tag, sight) and (in_flight or sight.last_seen > now - WINDOW):
                counts = (sight.received, sight.acked, sight.failed)
                found.append(Consumer(sight.name, in_flight, *counts, moment(sight.last_seen)))
        found.sort(key=lambda consumer: (consumer.in_flight > 0, consumer.last_seen), reverse=True)
        return sorted(found[:MOST], key=lambda consumer: (consumer.name is None, consumer.name))

    def presence(self, queue: str, now: int) -> tuple[int, int | None]:
        """How many consumers were seen in the last five minutes, and when one was seen last, as far as is known."""
        own, others = self.queues.get(queue), self._broker.sharing.sights(queue)
        last = self.before.get(queue)
        number = 0
        if own is not None or others:
            sights = merged([own or {}, *others]) if others else own or {}
            number = sum(is_known(tag, sight) and sight.last_seen > now - WINDOW for tag, sight in sights.items())
            last = max((sight.last_seen for sight in sights.values()), default=last)
        return number, now if self._broker.waiters.waits_for(queue) else last


def is_known(tag: str, sight: Sight) -> bool:
    """Whether the name of a consumer is known: a broker may only have seen its receipts."""
    return sight.name is not None or tag == UNNAMED


def merged(brokers: Iterable[Sights]) -> Sights:
    """What several brokers know about the consumers of a queue."""
    result: Sights = {}
    for sights in brokers:
        for tag, sight in sights.items():
            before = result.get(tag)
            if before is None:
                before = result[tag] = Sight(sight.name, 0)
            before.name = before.name or sight.name
            before.last_seen = max(before.last_seen, sight.last_seen)
            before.received += sight.received
            before.acked += sight.acked
            before.failed += sight.failed
    return result
