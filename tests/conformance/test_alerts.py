"""What alerts and consoles watch is right at every moment: counts by state, the oldest message, events counted."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from msgspec import Struct

from miniq.broker import Broker
from miniq.message import SECOND
from miniq.options import Options
from miniq.server.http import prometheus
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import draft, leases, send

MANY = 1200
"""Messages that become due at the same moment, more than a store moves at once."""


@pytest.fixture
async def brokers(url: str, clock: FrozenClock) -> AsyncIterator[list[Broker]]:
    """Two brokers where a store may have several, else one, twice: calls go to the one, looks to the other."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Broker(open_store(url), Options(upkeep_interval=0), clock))
        if not first.store.shared:
            yield [first, first]
            return
        yield [first, await stack.enter_async_context(Broker(open_store(url), Options(upkeep_interval=0), clock))]


class Seen(Struct):
    """What is shown of a queue."""

    ready: int
    delayed: int
    leased: int
    oldest: float
    """Its age in seconds, 0 if there is none."""


async def metrics(broker: Broker) -> dict[str, float]:
    text = b"".join([piece async for piece in await prometheus.render(broker)]).decode()
    return {name: float(value) for name, value in re.findall(r"^(miniq_\S+) (\S+)$", text, re.MULTILINE)}


async def seen(broker: Broker, queue: str) -> Seen:
    """By the queue's counts, the list of queues, the statistics and the metrics, which must say the same."""
    counts = (await broker.queue(queue)).counts
    assert {info.name: info.counts for info in await broker.queues()}[queue] == counts
    (stats,) = await broker.trends.stats([queue])
    assert stats.counts == counts
    age = 0.0 if counts.oldest is None else (broker.clock.now() - counts.oldest) / SECOND
    found = await metrics(broker)
    for state in ("ready", "delayed", "leased"):
        assert found[f'miniq_queue_messages{{queue="{queue}",state="{state}"}}'] == getattr(counts, state)
    assert found[f'miniq_queue_bytes{{queue="{queue}"}}'] == counts.bytes
    assert found[f'miniq_queue_oldest_age_seconds{{queue="{queue}"}}'] == age
    return Seen(counts.ready, counts.delayed, counts.leased, age)


async def test_counts_the_oldest_message_and_what_alerts_watch_are_right_in_every_state(
    brokers: list[Broker], clock: FrozenClock
) -> None:
    broker, other = brokers
    await broker.configure("q", {"max_receives": 2})
    assert await seen(other, "q") == Seen(0, 0, 0, 0)
    await broker.send("q", [draft(number) for number in range(10)])  # these may share what a store keeps of them
    clock.advance(10)
    await broker.send("q", [draft(number, delay=20, key=f"k{number}") for number in range(5)])
    assert await seen(other, "q") == Seen(10, 5, 0, 10)

    taken = await broker.receive("q", max=4, visibility_timeout=5)
    assert await seen(other, "q") == Seen(6, 5, 4, 10)
    clock.advance(5)
    assert await seen(other, "q") == Seen(10, 5, 0, 15), "leases ended, and nobody has received since"
    assert await broker.ack("q", leases(taken[:1])) == ["done"], "late, and in time"
    assert await seen(other, "q") == Seen(9, 5, 0, 15)
    rest = await broker.receive("q", max=9, visibility_timeout=60)
    assert len(rest) == 9
    assert await seen(other, "q") == Seen(0, 5, 9, 0)
    clock.advance(15)
    assert await seen(other, "q") == Seen(5, 0, 9, 20), "delays ended, and nobody has received since"

    claim, _ = await broker.claims.next("q", "readers", 0, max_messages=3)
    assert claim is not None
    assert await seen(other, "q") == Seen(2, 0, 12, 20), "a claim counts as leased"
    clock.advance(44.9)
    assert await seen(other, "q") == Seen(2, 0, 12, 64.9)
    clock.advance(0.1)
    assert await seen(other, "q") == Seen(11, 0, 3, 75), "the leases ended, the claim did not"
    await broker.claims.fetch("q", "readers", claim.number)  # what nobody has read is not acked
    await broker.claims.ack("q", "readers", claim.number)
    assert await seen(other, "q") == Seen(11, 0, 0, 75)

    worn = await broker.receive("q", max=3, visibility_timeout=60)
    assert sorted(stored.receives for stored in worn) == [2, 2, 2]
    await broker.release("q", leases(worn))
    assert await seen(other, "q") == Seen(5, 0, 0, 75), "three were worn before, and three are now"
    assert await seen(other, "q.dead") == Seen(6, 0, 0, 75), "dead letters are as old as their messages"
    found = await metrics(broker)
    assert found['miniq_messages_total{event="dead",queue="q"}'] == 6
    assert found['miniq_messages_total{event="lease_expired",queue="q"}'] == 3 + 6, "noticed by the receives"
    assert (await broker.redrive("q.dead")).moved == 6
    assert await seen(other, "q.dead") == Seen(0, 0, 0, 0)
    assert await seen(other, "q") == Seen(11, 0, 0, 75)
    await broker.purge("q")
    assert await seen(other, "q") == Seen(0, 0, 0, 0)
    found = await metrics(broker)
    assert (found["miniq_store_up"], found['miniq_messages_total{event="purged",queue="q"}']) == (1, 11)


async def test_of_very_many_leases_and_delays_that_end_at_once_all_are_counted(
    brokers: list[Broker], clock: FrozenClock
) -> None:
    broker, other = brokers
    for start in range(0, MANY, 600):
        await broker.send("q", [draft(number, key="leased") for number in range(start, start + 600)])
        await broker.receive("q", max=600, visibility_timeout=30)
        await broker.send("q", [draft(number, key="delayed", delay=30) for number in range(start, start + 600)])
    assert await seen(other, "q") == Seen(0, MANY, MANY, 0)
    clock.advance(30)
    assert await seen(other, "q") == Seen(2 * MANY, 0, 0, 30)
    taken = await broker.receive("q", max=1000, visibility_timeout=30)
    assert len(taken) == 1000
    assert await seen(other, "q") == Seen(2 * MANY - 1000, 0, 1000, 30)
    await send(broker, "q", "later")
    clock.advance(30)
    assert await seen(other, "q") == Seen(2 * MANY + 1, 0, 0, 60)
