"""The rate of a queue: how many messages per second may be handed out, as a token bucket.

A broker that has its store to itself keeps the bucket in memory. Brokers that share a store share a bucket there, and
draw a tenth of a second's tokens at a time: none of them holds many, so each gets what it hands out, and all together
no more than the rate. A broker that found too few tokens there waits before it looks again, and a little longer if it
had some before: so the one with the most consumers does not get the most, nor does the one that happens to look first.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from msgspec import Struct

from miniq.message import SECOND
from miniq.store.arguments import Draw

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

PORTION = 0.1
"""Seconds' worth of tokens that a broker draws at once."""
PAUSE = 0.02
"""Seconds between two looks for tokens, at least."""


class _Bucket(Struct):
    tokens: float
    at: int
    rate: float
    next_draw: int = 0
    """When to look for tokens in the store again, after there were too few."""
    is_served: bool = False
    """Whether there were tokens at the last look."""


class Rates:
    """The tokens that a broker has for each queue with a rate."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._buckets: dict[str, _Bucket] = {}

    async def reserve(self, queue: str, rate: float, limit: int) -> int:
        """How many messages of up to `limit` may be handed out now; what is not used is given back. If there is none,
        receives that wait are woken when there may be one."""
        broker = self._broker
        now, most = broker.clock.now(), max(1.0, rate)
        bucket = self._buckets.get(queue)
        if bucket is None:
            bucket = self._buckets[queue] = _Bucket(0.0 if broker.store.shared else most, now, rate)
        if bucket.rate != rate:
            bucket.rate, bucket.next_draw = rate, 0
        if not broker.store.shared:
            bucket.tokens += rate * max(0, now - bucket.at) / SECOND
            bucket.at = max(bucket.at, now)
        elif bucket.tokens < 1 and now >= bucket.next_draw:
            wanted = max(1, math.ceil(rate * PORTION))
            drawn = await broker.store.messages.draw(queue, Draw(wanted, rate, most, now))
            bucket.tokens += drawn
            if drawn < wanted:
                pause = max((1 - min(bucket.tokens, 1)) / rate, PAUSE)
                if bucket.is_served:
                    pause += random.random() * PAUSE  # noqa: S311
                bucket.next_draw = now + round(pause * SECOND)
            bucket.is_served = drawn > 0
        bucket.tokens = min(bucket.tokens, most)
        count = min(limit, int(bucket.tokens + 1e-9))  # a tenth of a second ten times is one token
        bucket.tokens -= count
        if not count:
            again = now + round(max((1 - bucket.tokens) / rate, PAUSE) * SECOND)
            broker.waiters.expect(queue, bucket.next_draw if broker.store.shared else again)
        return count

    def give_back(self, queue: str, count: int) -> None:
        """Some of the reserved messages were not handed out."""
        bucket = self._buckets.get(queue)
        if bucket is not None:
            bucket.tokens += count

    def forget(self, queue: str) -> None:
        self._buckets.pop(queue, None)
