"""What limits the delivery of a queue: pauses, its rate, and the number of messages in flight; on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from miniq.batch import Claim
from miniq.broker import Broker
from miniq.broker.rates import PAUSE
from miniq.errors import InvalidRequest
from miniq.options import Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import bodies, case, draft, ids, leases, send, states, waiting


async def fetched(broker: Broker, after: int, **options: Any) -> Claim | None:
    """The claim that follows, with its messages read, as a stream does before it asks for the next."""
    claim, _ = await broker.claims.next("q", "g", after, **options)
    if claim is not None:
        part = await broker.claims.fetch("q", "g", claim.number)
        assert [stored async for some in part.each() for stored in some]
    return claim


async def test_a_paused_queue_takes_messages_and_hands_out_none(broker: Broker) -> None:
    await broker.configure("q", {"paused": True})
    sent = await send(broker, "q", 1, 2)
    assert await broker.receive("q", max=9) == []
    assert await broker.claims.next("q", "g", 0) == (None, 0)
    assert ids((await broker.peek("q")).messages) == sent
    await broker.configure("q", {"paused": False})
    assert bodies(await broker.receive("q", max=9)) == [1, 2]


async def test_what_is_in_flight_when_a_queue_is_paused_can_be_settled(broker: Broker) -> None:
    await send(broker, "q", 1, 2, 3)
    first, second, third = await broker.receive("q", max=3)
    await broker.configure("q", {"paused": True})
    assert await broker.ack("q", leases([first])) == ["done"]
    assert await broker.release("q", leases([second])) == ["done"]
    assert (await broker.deliveries.fail("q", leases([third]), "x", delay=0))[0].outcome == "retried"
    assert await states(broker, "q") == (2, 0, 0)
    assert await broker.receive("q") == []


async def test_a_claim_that_was_made_before_a_pause_is_given_again(broker: Broker) -> None:
    await send(broker, "q", 1, 2)
    assert await fetched(broker, 0, max_messages=1) is not None
    await broker.configure("q", {"paused": True})
    assert await fetched(broker, 0) is not None
    assert (await broker.claims.next("q", "g", 1))[0] is None
    await broker.configure("q", {"paused": False})
    following, _ = await broker.claims.next("q", "g", 1)
    assert following is not None
    assert (following.number, following.messages) == (2, 1)


async def test_resuming_a_queue_wakes_those_that_wait(broker: Broker) -> None:
    await broker.configure("q", {"paused": True})
    await send(broker, "q", 1)
    task = await waiting(broker, broker.receive("q", wait=60))
    await broker.configure("q", {"paused": False})
    assert bodies(await asyncio.wait_for(task, 5)) == [1]


async def test_raising_the_rate_wakes_those_that_wait(broker: Broker) -> None:
    await broker.configure("q", {"rate": 0.001})
    await send(broker, "q", 1, 2)
    assert await handed_out(broker) == 1
    task = await waiting(broker, broker.receive("q", wait=60))
    await broker.configure("q", {"rate": 0})
    assert bodies(await asyncio.wait_for(task, 5)) == [2]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"paused": True}, {"paused": False}),
        ({"max_in_flight": 1}, {"max_in_flight": 0}),
        ({"rate": 0.001}, {"rate": 0}),
    ],
)
async def test_a_change_at_one_broker_wakes_those_that_wait_at_another(
    broker: Broker, clock: FrozenClock, url: str, before: dict[str, Any], after: dict[str, Any]
) -> None:
    if not broker.store.shared:
        return  # a folder belongs to one broker
    await broker.configure("q", before)
    await send(broker, "q", 1, 2)
    got = bodies(await broker.receive("q"))
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as other:
        task = await waiting(other, other.receive("q", wait=60))
        await broker.configure("q", after)
        assert got + bodies(await asyncio.wait_for(task, 20)) in ([1], [1, 2])


async def test_no_more_than_max_in_flight_are_leased_at_a_time(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_in_flight": 3})
    await send(broker, "q", *range(10))
    first = await broker.receive("q", max=2)
    second = await broker.receive("q", max=9, visibility_timeout=5)
    assert (len(first), len(second)) == (2, 1)
    assert await broker.receive("q") == []
    await broker.ack("q", leases(first[:1]))
    assert len(await broker.receive("q", max=9)) == 1
    clock.advance(5)
    assert ids(await broker.receive("q", max=9)) == ids(second)
    await broker.configure("q", {"max_in_flight": 0})
    assert len(await broker.receive("q", max=20)) == 6


async def test_messages_in_claims_are_in_flight(broker: Broker) -> None:
    await broker.configure("q", {"max_in_flight": 3})
    await send(broker, "q", *range(9))
    got = await broker.receive("q")
    claim = await fetched(broker, 0)
    assert claim is not None
    assert claim.messages == 2
    assert await fetched(broker, 0) is not None
    assert await broker.receive("q") == []
    assert (await broker.claims.next("q", "other", 0))[0] is None
    await broker.ack("q", leases(got))
    following, _ = await broker.claims.next("q", "g", 1)
    assert following is not None
    assert following.messages == 3


async def test_each_message_that_leaves_makes_room_for_one_that_waits(broker: Broker) -> None:
    await broker.configure("q", {"max_in_flight": 1, "max_receives": 2})
    sent = await send(broker, "q", *range(7))
    for settle in (
        lambda got: broker.ack("q", leases(got)),
        lambda got: broker.deliveries.fail("q", leases(got), "x", dead=True),
        lambda got: broker.deliveries.fail("q", leases(got), "x", delay=600),
        lambda got: broker.release("q", leases(got), 600),
        lambda got: broker.remove("q", got[0].message.id, got[0].receipt),
        lambda got: broker.ack_by_id("q", got[0].message.id),
    ):
        got = await broker.receive("q")
        task = await waiting(broker, broker.receive("q", wait=60))
        await settle(got)
        (following,) = await asyncio.wait_for(task, 5)
        assert following.message.id == sent[sent.index(got[0].message.id) + 1]
        await broker.release("q", leases([following]))


async def heard(broker: Broker, other: Broker) -> None:
    """Return once hints of a broker reach another one, which has just been opened and knows the queue `hints`."""
    task = await waiting(other, other.receive("hints", wait=60))
    while not task.done():
        await send(broker, "hints", 1)
        await asyncio.wait([task], timeout=0.1)


@pytest.mark.parametrize("how", ["ack", "release", "reject", "remove", "claim"])
async def test_a_message_that_leaves_at_one_broker_makes_room_for_one_that_waits_at_another(
    broker: Broker, clock: FrozenClock, url: str, how: str
) -> None:
    if not broker.store.shared:
        return  # a folder belongs to one broker
    await broker.configure("q", {"max_in_flight": 1})
    await broker.configure("hints")
    await send(broker, "q", 1, 2)
    if how == "claim":
        assert await fetched(broker, 0, max_messages=1) is not None
        got = []
    else:
        got = leases(await broker.receive("q", visibility_timeout=3600))
    async with Broker(open_store(url), Options(upkeep_interval=0, refresh_interval=3600), clock) as other:
        await heard(broker, other)
        task = await waiting(other, other.receive("q", wait=60))
        if how == "ack":
            await broker.ack("q", got)
        elif how == "release":
            await broker.release("q", got, delay=600)
        elif how == "reject":
            await broker.deliveries.fail("q", got, "no", dead=True)
        elif how == "remove":
            await broker.remove("q", got[0].id, got[0].receipt)
        else:
            await broker.claims.ack("q", "g", 1)
        assert bodies(await asyncio.wait_for(task, 20)) == [2]


async def test_raising_the_limit_wakes_those_that_wait(broker: Broker) -> None:
    await broker.configure("q", {"max_in_flight": 1})
    await send(broker, "q", 1, 2)
    await broker.receive("q")
    task = await waiting(broker, broker.receive("q", wait=60))
    await broker.configure("q", {"max_in_flight": 2})
    assert bodies(await asyncio.wait_for(task, 5)) == [2]


async def test_concurrent_receives_do_not_exceed_the_limit(broker: Broker) -> None:
    await broker.configure("q", {"max_in_flight": 5})
    await send(broker, "q", *range(100))
    seen: list[int] = []
    most = 0

    async def consume() -> None:
        nonlocal most
        while len(seen) < 100:
            got = await broker.receive("q", max=3)
            most = max(most, (await broker.queue("q")).counts.leased)
            await asyncio.sleep(0)
            if got:
                seen.extend(bodies(got))
                await broker.ack("q", leases(got))

    await asyncio.gather(*[consume() for _ in range(6)])
    assert sorted(seen) == list(range(100))
    assert 0 < most <= 5


async def test_limits_hold_for_a_recipient_and_for_groups(broker: Broker) -> None:
    await broker.configure("q", {"max_in_flight": 2})
    await broker.send("q", [draft(1, recipient="ann"), draft(2, group="g"), draft(3, group="g"), draft(4)])
    assert bodies(await broker.receive("q", max=9, consumer="ann")) == [1, 2]
    assert await broker.receive("q", max=9, consumer="ann") == []


async def handed_out(broker: Broker, most: int = 1000) -> int:
    """How many messages a consumer gets that asks until there are no more, and acks each."""
    count = 0
    while got := await broker.receive("q", max=most):
        await broker.ack("q", leases(got))
        count += len(got)
    return count


def late(broker: Broker) -> float:
    """Seconds by which a broker that shares its store may look later for what the rate lets through."""
    return PAUSE if broker.store.shared else 0


async def test_a_rate_lets_through_a_burst_and_then_so_many_per_second(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"rate": 20})
    await send(broker, "q", *range(400))
    assert await handed_out(broker) == 20
    for seconds, expected in ((0.5, 10), (0.05, 1), (1, 20), (60, 20)):
        clock.advance(seconds + late(broker))
        assert await handed_out(broker, 7) == expected
    await broker.configure("q", {"rate": 0})
    assert await handed_out(broker) == 400 - 71


async def test_a_rate_below_one_lets_through_one_at_a_time(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"rate": 0.25})
    await send(broker, "q", *range(9))
    assert await handed_out(broker) == 1
    clock.advance(3.9)
    assert await handed_out(broker) == 0
    clock.advance(0.1 + late(broker))
    assert await handed_out(broker) == 1


async def test_what_was_not_there_to_be_handed_out_can_be_later(broker: Broker) -> None:
    await broker.configure("q", {"rate": 5})
    assert await handed_out(broker) == 0
    await send(broker, "q", *range(3))
    assert await handed_out(broker) == 3
    await send(broker, "q", *range(3))
    assert await handed_out(broker) == 2


async def test_a_receive_waits_for_the_rate(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"rate": 2})
    await send(broker, "q", 1, 2, 3)
    assert await handed_out(broker) == 2
    task = await waiting(broker, broker.receive("q", wait=60))
    clock.advance(0.5 + late(broker))
    assert bodies(await asyncio.wait_for(task, 5)) == [3]


async def test_claims_keep_to_the_rate(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"rate": 4})
    await send(broker, "q", *range(10))
    number = 0
    for expected in (4, 2):
        count = 0
        while (claim := await fetched(broker, number)) is not None:
            assert await fetched(broker, number) is not None
            count += claim.messages
            number = claim.number
        assert count == expected
        clock.advance(0.5)


async def test_brokers_on_one_database_share_the_rate(broker: Broker, clock: FrozenClock, url: str) -> None:
    if not broker.store.shared:
        return  # a folder belongs to one broker
    await broker.configure("q", {"rate": 100})
    await send(broker, "q", *range(999))
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as other:
        counts = {broker: 0, other: 0}
        for one in (broker, other):
            counts[one] += await handed_out(one)
        assert 100 <= sum(counts.values()) <= 110
        counts = {broker: 0, other: 0}
        for step in range(40):
            clock.advance(0.05)
            for one in (broker, other) if step % 2 else (other, broker):
                for got in [await one.receive("q", max=5)]:
                    counts[one] += len(got)
        assert 160 <= sum(counts.values()) <= 220
        assert 0.8 <= counts[broker] / counts[other] <= 1.25


@pytest.mark.parametrize("busy", [1, 8])
async def test_a_broker_that_asks_more_often_gets_no_larger_share_of_the_rate(
    broker: Broker, clock: FrozenClock, url: str, busy: int
) -> None:
    if not broker.store.shared:
        return  # a folder belongs to one broker
    await broker.configure("q", {"rate": 100})
    await send(broker, "q", *range(999))
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as other:
        counts = {broker: 0, other: 0}
        for one in (broker, other):
            await handed_out(one)  # the burst
        for _ in range(2000):
            clock.advance(0.001)
            for one in (*[broker] * busy, other):  # always in this order
                counts[one] += len(await one.receive("q", max=10))
        assert 180 <= sum(counts.values()) <= 220
        assert 0.8 <= counts[broker] / (sum(counts.values()) / 2) <= 1.2, "its share, within a fifth"


async def test_a_rate_that_is_raised_counts_at_once(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"rate": 0.001})
    await send(broker, "q", *range(20))
    assert await handed_out(broker) == 1
    await broker.configure("q", {"rate": 100})
    clock.advance(0.1)
    assert await handed_out(broker) in (10, 11)


async def test_wrong_limits_are_refused(broker: Broker) -> None:
    for field, value in (
        ("paused", 1),
        ("paused", None),
        ("max_in_flight", -1),
        ("max_in_flight", 1.5),
        ("rate", -1),
        ("rate", True),
        ("rate", float("nan")),
        ("rate", 1e-9),
    ):
        with case((field, value)), pytest.raises(InvalidRequest) as caught:
            await broker.configure("q", {field: value})
        assert caught.value.field == field
