"""Who consumes a queue, and how long messages wait and are processed, on every store; also of several brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from miniq.api.codec import micros, moment
from miniq.broker import Broker, consumers, timings
from miniq.broker.sharing import KIND
from miniq.consumer import Consumer, Percentiles
from miniq.errors import QueueNotFound
from miniq.message import Lease
from miniq.options import Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.conformance.wires import Caller
from tests.kit import leases, send, waiting


@pytest.fixture
async def brokers(url: str, broker: Broker, clock: FrozenClock) -> AsyncIterator[list[Broker]]:
    """Two brokers, on one store if it can be shared; otherwise the same one twice."""
    if not broker.store.shared:
        yield [broker, broker]
        return
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as other:
        yield [broker, other]


async def seen(broker: Broker, queue: str = "q") -> dict[str | None, tuple[int, int, int, int]]:
    """By name: in flight, received, acked, failed."""
    found = await broker.consumers.list(queue)
    return {one.name: (one.in_flight, one.received, one.acked, one.failed) for one in found}


async def test_what_each_consumer_holds_received_acked_and_failed(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", *range(10))
    ann = await broker.receive("q", max=5, consumer="ann")
    clock.advance(1)
    ben = await broker.receive("q", max=2, consumer="ben")
    nobody = await broker.receive("q", max=2)
    clock.advance(1)
    await broker.ack("q", leases(ann[:2]))
    await broker.deliveries.fail("q", leases([ann[2]]), "no", delay=60)
    await broker.deliveries.fail("q", leases([ben[0]]), "never", dead=True)
    await broker.ack("q", [*leases(nobody), Lease(ann[0].message.id, ann[0].receipt or "")])
    now = moment(clock.now())
    assert await broker.consumers.list("q") == [
        Consumer("ann", 2, 5, 2, 1, now),
        Consumer("ben", 1, 2, 0, 1, now),
        Consumer(None, 0, 2, 2, 0, now),
    ]
    await broker.release("q", leases(ann[3:4]))
    assert (await seen(broker))["ann"] == (1, 5, 2, 1)
    clock.advance(30)
    assert (await seen(broker))["ann"] == (0, 5, 2, 1), "its lease has expired"


async def test_a_consumer_is_shown_for_five_minutes(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2)
    await broker.receive("q", consumer="quick", visibility_timeout=5)
    long = await broker.receive("q", consumer="slow", visibility_timeout=400)
    clock.advance(299)
    assert await seen(broker) == {"quick": (0, 1, 0, 0), "slow": (1, 1, 0, 0)}
    clock.advance(2)
    assert await seen(broker) == {"slow": (1, 1, 0, 0)}, "it still holds a message"
    await broker.extend("q", leases(long), 10)
    clock.advance(60)
    assert await seen(broker) == {"slow": (0, 1, 0, 0)}
    clock.advance(300)
    assert await seen(broker) == {}


async def test_a_consumer_that_waits_is_there(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q")
    await broker.receive("q", consumer="idle")
    task = await waiting(broker, broker.receive("q", consumer="waits", wait=60))
    clock.advance(50)
    found = {one.name: clock.now() - micros(one.last_seen) for one in await broker.consumers.list("q")}
    assert found == {"idle": 50_000_000, "waits": 0}
    await send(broker, "q", 1)
    await task


async def test_messages_at_most_once_are_acked_and_never_in_flight(broker: Broker) -> None:
    await send(broker, "q", 1, 2)
    await broker.receive("q", max=2, consumer="ann", mode="at-most-once")
    assert await seen(broker) == {"ann": (0, 2, 2, 0)}


async def test_a_group_of_readers_is_a_consumer(broker: Broker) -> None:
    await send(broker, "q", 1, 2, 3)
    await broker.claims.next("q", "spark", 0, max_messages=2)
    assert await seen(broker) == {"spark": (2, 2, 0, 0)}
    part = await broker.claims.fetch("q", "spark", 1)
    assert len([stored async for some in part.each() for stored in some]) == 2
    await broker.claims.ack("q", "spark", 1)
    assert await seen(broker) == {"spark": (0, 2, 2, 0)}


async def test_messages_held_since_before_a_restart_are_in_flight(url: str, clock: FrozenClock) -> None:
    if url == "memory:":  # ends with its broker
        return
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        await send(broker, "q", *range(4))
        held = await broker.receive("q", max=3, consumer="ann\0\\")
    clock.advance(1)
    async with Broker(open_store(url), options, clock) as broker:
        [found] = await broker.consumers.list("q")
        assert (found.name, found.in_flight, micros(found.last_seen)) == ("ann\0\\", 3, clock.now() - 1_000_000)
        await broker.ack("q", leases(held[:1]))
        assert (await broker.trends.stats(["q"]))[0].processing == Percentiles(1.0, 1.0), "the receipt has the time"


async def test_only_a_queue_that_exists_has_consumers(broker: Broker) -> None:
    with pytest.raises(QueueNotFound):
        await broker.consumers.list("none")
    await broker.receive("none", consumer="ann")
    await send(broker, "q", 1)
    await broker.receive("q", consumer="ann")
    await broker.delete_queue("q")
    assert broker.consumers.queues == {}
    await send(broker, "q", 1)
    assert await broker.consumers.list("q") == []


async def test_each_broker_shows_what_all_of_them_saw(brokers: list[Broker], clock: FrozenClock) -> None:
    here, there = brokers
    await send(here, "q", *range(6))
    clock.advance(2)
    taken = await here.receive("q", max=3, consumer="ann")
    others = await there.receive("q", max=2, consumer="ben")
    clock.advance(1)
    await there.ack("q", leases(taken[:2]))
    await here.deliveries.fail("q", leases(others[:1]), "no", delay=9)
    for broker in brokers:
        await broker.sharing.write()
    expected = {"ann": (1, 3, 2, 0), "ben": (1, 2, 0, 1)}
    for broker in brokers:
        assert await seen(broker) == expected
        broker.sharing._as_of = 0
        [now] = await broker.trends.stats(["q"])
        assert (now.consumers, now.wait, now.processing) == (2, Percentiles(2.0, 2.0), Percentiles(1.0, 1.0))
    clock.advance(301)
    for broker in brokers:
        broker.sharing._as_of = 0
        [now] = await broker.trends.stats(["q"])
        assert (now.consumers, now.wait, now.processing) == (0, None, None)


async def test_a_broker_that_has_nothing_new_to_tell_writes_nothing(brokers: list[Broker], clock: FrozenClock) -> None:
    here, there = brokers
    if here is there:  # one broker at a time
        return
    await here.sharing.write()
    assert here.sharing._written is None
    await here.receive("default", consumer="ann")
    await here.sharing.write()
    first = here.sharing._written
    assert first is not None
    clock.advance(59)
    await here.receive("default", consumer="ann")
    await here.sharing.write()
    assert here.sharing._written is first, "that it asked again can wait for a minute"
    revision = await here.store.revision()
    await send(here, "default", 1)
    await here.receive("default", consumer="ann")
    await here.sharing.write()
    assert here.sharing._written is not first
    assert await here.store.revision() == revision, "no broker loads everything again"


async def test_the_record_of_a_broker_that_is_gone_is_removed(brokers: list[Broker], clock: FrozenClock) -> None:
    here, there = brokers
    if here is there:  # one broker at a time
        return
    for broker in brokers:
        await send(broker, "default", 1)
        await broker.receive("default", consumer="ann")
        await broker.sharing.write()
    assert set(await here.store.records(KIND)) == {here.sharing.id, there.sharing.id}
    clock.advance(601)
    here.sharing._as_of = 0
    await send(here, "default", 1)
    await here.receive("default", consumer="ann")
    await here.sharing.write()
    assert set(await here.store.records(KIND)) == {here.sharing.id}
    await send(there, "default", 1)
    await there.receive("default", consumer="ben")
    await there.sharing.write()
    await there.sharing.write()
    assert set(await here.store.records(KIND)) == {here.sharing.id, there.sharing.id}, "it was not gone, only silent"


async def test_invented_names_do_not_fill_the_memory(
    broker: Broker, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers, "MOST", 20)
    monkeypatch.setattr(consumers, "MOST_OVERALL", 60)
    for number in range(100):
        clock.advance(0.001)
        broker.consumers.received("default", f"invented {number}", clock.now(), 0)
    found = [one.name for one in await broker.consumers.list("default")]
    assert len(found) <= 20
    assert "invented 99" in found
    for number in range(200):
        clock.advance(0.001)
        broker.consumers.received(f"queue {number}", "ann", clock.now(), 0)
        assert sum(map(len, broker.consumers.queues.values())) == broker.consumers._count <= 60
    clock.advance(301)
    broker.consumers.received("default", "ben", clock.now(), 0)
    for number in range(60):
        broker.consumers.received("default", f"{number}", clock.now(), 0)
    assert set(broker.consumers.queues) == {"default"}


async def test_how_long_messages_wait_and_are_processed(broker: Broker, clock: FrozenClock) -> None:
    [nothing] = await broker.trends.stats(["default"])
    assert (nothing.wait, nothing.processing, nothing.consumers) == (None, None, 0)
    await send(broker, "q", *range(99))
    await send(broker, "q", "late", delay=3)
    clock.advance(2)
    first = await broker.receive("q", max=99, visibility_timeout=60)
    clock.advance(41)
    [last] = await broker.receive("q", max=99, consumer="ann")
    clock.advance(0.05)
    await broker.ack("q", leases([last]))
    await broker.deliveries.fail("q", leases(first[:1]), "no", delay=0)
    [now] = await broker.trends.stats(["q"])
    assert now.wait is not None
    assert now.wait.p50 == 2.0
    assert now.processing == Percentiles(0.05, 45.0), "41.05 s, rounded up"
    assert now.consumers == 2
    clock.advance(60 * timings.MINUTES)
    [now] = await broker.trends.stats(["q"])
    assert (now.wait, now.processing) == (None, None)


# Over the wires


def test_consumers_over_every_wire(wire: Caller) -> None:
    wire.ok("POST", "/v1/queues/work/messages", {"messages": [{"body": n} for n in range(4)]})
    taken = wire.ok("POST", "/v1/queues/work/receive", {"max": 2, "consumer": "ann"})["messages"]
    wire.ok("POST", "/v1/queues/work/receive", {})
    lease = {"id": taken[0]["id"], "receipt": taken[0]["receipt"]}
    wire.ok("POST", "/v1/queues/work/ack", {"leases": [lease]})
    found = wire.ok("GET", "/v1/queues/work/consumers")["consumers"]
    seen = [one.pop("last_seen") for one in found]
    assert all(moment.endswith("Z") for moment in seen)
    assert found == [
        {"name": "ann", "in_flight": 1, "received": 2, "acked": 1, "failed": 0},
        {"name": None, "in_flight": 1, "received": 1, "acked": 0, "failed": 0},
    ]
    [stats] = wire.ok("GET", "/v1/stats?queue=work")["queues"]
    assert stats["consumers"] == 2
    assert set(stats["wait"]) == set(stats["processing"]) == {"p50", "p99"}
    refusal = wire.refused("GET", "/v1/queues/none/consumers")
    assert (refusal.code, refusal.field) == ("queue_not_found", "queue")
