"""What is wrong with a queue: no consumer, failures, stuck claims, dead letters; on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from miniq.api.codec import moment
from miniq.broker import Broker
from miniq.broker.trends import QueueStats
from miniq.failure import FailureGroup, HeldClaim, LastDeath, RecentFailures
from miniq.message import SECOND
from miniq.options import Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import leases, send


@pytest.fixture
async def brokers(url: str, broker: Broker, clock: FrozenClock) -> AsyncIterator[list[Broker]]:
    """Two brokers, on one store if it can be shared; otherwise the same one twice."""
    if not broker.store.shared:
        yield [broker, broker]
        return
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as other:
        yield [broker, other]


async def stats(broker: Broker, queue: str = "q") -> QueueStats:
    [found] = await broker.trends.stats([queue])
    return found


async def test_a_queue_that_nobody_consumes_says_since_when(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q")
    assert (await stats(broker)).problems == [], "nothing waits"
    await send(broker, "q", 1, 2)
    found = await stats(broker)
    assert (found.problems, found.unattended_since) == (["no_consumer"], None), "there never was one"
    [one] = await broker.receive("q", consumer="ann", visibility_timeout=20)
    seen = clock.now()
    clock.advance(10)
    assert (await stats(broker)).problems == [], "it works on one"
    clock.advance(79)
    assert (await stats(broker)).problems == [], "it may come back"
    clock.advance(1)
    found = await stats(broker)
    assert (found.problems, found.unattended_since) == (["no_consumer"], moment(seen))
    assert one.receipt
    await broker.configure("q", {"paused": True})
    assert (await stats(broker)).problems == ["paused"], "messages wait because they should"


async def test_a_consumer_that_waits_is_a_consumer(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    with broker.waiters.join("q", "patient"):
        clock.advance(100)
        assert (await stats(broker)).problems == []
    assert (await stats(broker)).problems == ["no_consumer"]


async def test_failures_are_counted_among_attempts_and_grouped_by_error(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", *range(12))
    for number in range(9):
        [one] = await broker.receive("q", consumer="ann", visibility_timeout=600)
        if number % 3:
            await broker.ack("q", leases([one]))
        else:
            await broker.deliveries.fail("q", leases([one]), f"KeyError: order {number}\n  at line 1", delay=900)
        clock.advance(1)
    found = await stats(broker)
    last = moment(clock.now() - 3 * SECOND)
    assert found.failures == RecentFailures(3, 9, "KeyError: order 6", last)
    assert found.problems == ["failing", "no_consumer"] if found.unattended_since else ["failing"]
    [one] = await broker.receive("q", consumer="ann", visibility_timeout=5)
    clock.advance(6)
    again = await broker.receive("q", consumer="ann", max=9)
    assert (await stats(broker)).failures == RecentFailures(4, 10, "lease expired", moment(clock.now()))
    first, now = moment(clock.now() - 15 * SECOND), moment(clock.now())
    assert await broker.trends.failure_groups("q") == [
        FailureGroup("lease expired", 1, now, now),
        FailureGroup("KeyError: order 6\n  at line 1", 3, first, last),
    ]
    await broker.ack("q", leases(again))
    clock.advance(400)
    assert (await stats(broker)).failures is None
    assert len(await broker.trends.failure_groups("q")) == 2
    clock.advance(3600)
    assert await broker.trends.failure_groups("q") == []
    await broker.delete_queue("q")
    await broker.configure("q")
    assert broker.failures.queues == {}


async def test_a_claim_that_is_held_for_five_minutes_is_stuck(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2, 3)
    await broker.claims.next("q", "etl", 0, max_messages=2)
    made = moment(clock.now())
    clock.advance(200)
    await broker.claims.next("q", "late", 0)
    clock.advance(99)
    found = await stats(broker)
    assert (found.problems, found.claim) == ([], HeldClaim("etl", 1, 2, made))
    clock.advance(1)
    broker.trends._claims_as_of = 0
    assert (await stats(broker)).problems == ["stuck_claim"]
    await broker.claims.release("q", "etl")
    broker.trends._claims_as_of = 0
    found = await stats(broker)
    assert found.claim is not None
    assert (found.claim.group, found.problems) == ("late", [])


async def test_the_claims_of_all_queues_are_listed_at_once(broker: Broker) -> None:
    for queue in ("b", "a", "none"):
        await send(broker, queue, 1, 2)
    for queue, group in (("b", "y"), ("b", "x"), ("a", "x")):
        await broker.claims.next(queue, group, 0, max_messages=1)
    await broker.claims.ack("a", "x", 0)
    await broker.claims.fetch("b", "x", 1)
    await broker.claims.ack("b", "x", 1)
    found = await broker.claims.everywhere()
    assert {queue: [one.group for one in groups] for queue, groups in found.items()} == {"a": ["x"], "b": ["x", "y"]}
    for queue, groups in found.items():
        assert groups == await broker.claims.list(queue)
    held = await broker.store.claims.all_groups(broker.clock.now(), held=True)
    assert {queue: [one.group for one in groups] for queue, groups in held.items()} == {"a": ["x"], "b": ["y"]}
    await broker.delete_queue("b")
    assert list(await broker.claims.everywhere()) == ["a"]


async def test_dead_letters_say_when_and_why_also_after_a_restart(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        await send(broker, "q", 1, 2)
        for error in ("first", "second"):
            [one] = await broker.receive("q")
            clock.advance(1)
            await broker.deliveries.fail("q", leases([one]), error, dead=True)
        found = await stats(broker)
        assert (found.dead, found.last_death) == (2, LastDeath(moment(clock.now()), "second"))
        assert found.dead_oldest == moment(clock.now() - 2 * SECOND)
        assert (await stats(broker, "q.dead")).problems == [], "dead letters wait for people"
    if url != "memory:":
        async with Broker(open_store(url), options, clock) as broker:
            found = await stats(broker)
            assert found.last_death == LastDeath(moment(clock.now() - SECOND), "first"), "the oldest"


async def test_a_full_queue_says_so(broker: Broker) -> None:
    await broker.configure("q", {"max_length": 2})
    await send(broker, "q", 1, 2)
    await broker.receive("q", max=2)
    assert (await stats(broker)).problems == ["full"]


async def test_each_broker_shows_the_failures_of_all(brokers: list[Broker], clock: FrozenClock) -> None:
    here, there = brokers
    await send(here, "q", *range(4))
    for broker in (here, there, here):
        taken = await broker.receive("q")
        await broker.deliveries.fail("q", leases(taken), "broken 7", dead=True)
    for broker in brokers:
        await broker.sharing.write()
    for broker in brokers:
        [group] = await broker.trends.failure_groups("q")
        assert (group.count, group.error) == (3, "broken 7")
        found = await stats(broker)
        assert found.failures is not None
        assert (found.failures.failed, found.last_death is not None) == (3, True)


async def test_the_last_hour_survives_a_restart(url: str, clock: FrozenClock) -> None:
    if url == "memory:":  # ends with its broker
        return
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        for minute in range(3):
            await send(broker, "q", *range(30))
            taken = await broker.receive("q", max=10 + minute, consumer="ann")
            await broker.ack("q", leases(taken))
            await broker.trends.tick()
            clock.advance(15)
        [before] = broker.trends.last_hour(["q"], ["ready", "sent", "acked"], 240)
        await broker.trends._log.save()
    clock.advance(120)
    async with Broker(open_store(url), options, clock) as broker:
        await broker.trends._restore(await broker.trends._log.load(clock.now()))
        assert (await stats(broker)).unattended_since == moment(clock.now() - 135 * SECOND), "who was seen, too"
        await send(broker, "q", *range(150))  # more than were counted before the restart
        await broker.trends.tick()
        [after] = broker.trends.last_hour(["q"], ["ready", "sent", "acked"], 240)
        for name, values in before.series.items():
            kept = after.series[name]
            assert kept[: len(values)] == values, name
        assert (after.series["ready"][-1], after.series["sent"][-1]) == (207, 10.0)
        await broker.trends._log.save()
        clock.advance(4000)
        await send(broker, "q", 1)
        await broker.trends.tick()
        await broker.trends._log.save()
        assert len(await broker.store.records("trends")) == 1, "those of an hour ago are gone"
