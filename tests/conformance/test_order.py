"""Priorities, age, delays, recipients and groups: on every store."""

from __future__ import annotations

from miniq.broker import Broker
from miniq.message import Draft
from tests.clock import FrozenClock
from tests.kit import bodies, draft, drain, ids, leases, send, states


async def test_higher_priority_first_then_oldest_first(broker: Broker) -> None:
    for number, priority in enumerate([0, 5, 9, 5, 0, 9]):
        await send(broker, "q", number, priority=priority)
    assert await drain(broker, "q") == [2, 5, 1, 3, 0, 4]


async def test_one_batch_may_mix_priorities_and_delays(broker: Broker, clock: FrozenClock) -> None:
    sent = await broker.send(
        "q",
        [
            draft(0),
            draft(1, priority=3),
            draft(2, delay=5),
            draft(3),
            draft(4, priority=3),
            draft(5, delay=5, priority=3),
            draft(6, key="k"),
        ],
    )
    assert sent == sorted(sent)
    assert bodies(await broker.receive("q", max=10)) == [1, 4, 0, 3, 6]
    clock.advance(5)
    assert bodies(await broker.receive("q", max=10)) == [5, 2]


async def test_ids_rise_across_sends(broker: Broker, clock: FrozenClock) -> None:
    sent = [id for _ in range(5) for id in await send(broker, "q", *range(300))]
    assert sent == sorted(sent)
    assert len(set(sent)) == len(sent)


async def test_a_message_that_comes_back_keeps_its_place_by_age(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", *range(6))
    await broker.receive("q", max=3, visibility_timeout=1)
    clock.advance(1)
    assert bodies(await broker.receive("q", max=6)) == [0, 1, 2, 3, 4, 5]


async def test_a_delayed_message_is_hidden_until_it_is_due(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", "late", delay=60)
    await send(broker, "q", "now")
    assert await states(broker, "q") == (1, 1, 0)
    assert await drain(broker, "q") == ["now"]
    clock.advance(59.999)
    assert await drain(broker, "q") == []
    clock.advance(0.001)
    await send(broker, "q", "younger")
    assert await drain(broker, "q") == ["late", "younger"]


async def test_the_delay_of_a_queue_is_the_default_and_can_be_overruled(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"delay": 10})
    await send(broker, "q", "slow")
    await send(broker, "q", "fast", delay=0)
    assert await drain(broker, "q") == ["fast"]
    clock.advance(10)
    assert await drain(broker, "q") == ["slow"]


async def test_a_message_for_a_recipient_is_for_nobody_else(broker: Broker) -> None:
    await send(broker, "q", "for ann", recipient="ann")
    await send(broker, "q", "for all")
    await send(broker, "q", "for bob", recipient="bob")
    assert bodies(await broker.receive("q", max=10)) == ["for all"]
    assert bodies(await broker.receive("q", max=10, consumer="ann")) == ["for ann"]
    assert await broker.receive("q", max=10, consumer="ann") == []
    assert bodies(await broker.receive("q", max=10, consumer="bob")) == ["for bob"]


async def test_own_and_common_messages_are_merged_by_priority_and_age(broker: Broker) -> None:
    await send(broker, "q", 1)
    await send(broker, "q", 2, recipient="ann")
    await send(broker, "q", 3)
    await send(broker, "q", 4, recipient="ann", priority=1)
    await send(broker, "q", 5, recipient="bob", priority=9)
    assert bodies(await broker.receive("q", max=10, consumer="ann")) == [4, 1, 2, 3]


async def test_many_messages_for_others_do_not_stand_in_the_way(broker: Broker) -> None:
    for name in range(30):
        await send(broker, "q", *range(20), recipient=f"other-{name}")
    await send(broker, "q", "mine")
    assert bodies(await broker.receive("q", max=5, consumer="me")) == ["mine"]


async def test_a_recipient_gets_back_what_it_let_go(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2, recipient="ann")
    await broker.receive("q", max=1, consumer="ann", visibility_timeout=1)
    clock.advance(1)
    assert bodies(await broker.receive("q", max=5)) == []
    assert bodies(await broker.receive("q", max=5, consumer="ann")) == [1, 2]


async def test_one_message_of_a_group_is_in_flight_at_a_time(broker: Broker) -> None:
    await send(broker, "q", "a1", "a2", "a3", group="a")
    await send(broker, "q", "b1", "b2", group="b")
    await send(broker, "q", "free")
    first = await broker.receive("q", max=10)
    assert bodies(first) == ["a1", "b1", "free"]
    assert await broker.receive("q", max=10) == []
    await broker.ack("q", leases(first[:1]))
    assert bodies(await broker.receive("q", max=10)) == ["a2"]
    await broker.ack("q", leases(first[1:]))
    assert bodies(await broker.receive("q", max=10)) == ["b2"]


async def test_the_order_of_a_group_holds_across_redelivery(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2, 3, group="g")
    await broker.receive("q", visibility_timeout=5)
    clock.advance(5)
    got = await broker.receive("q", max=9)
    assert bodies(got) == [1]
    await broker.release("q", leases(got), delay=60)
    assert await broker.receive("q", max=9) == []
    clock.advance(60)
    assert await drain(broker, "q") == [1, 2, 3]


async def test_a_delayed_head_holds_its_group(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", "first", group="g", delay=10)
    await send(broker, "q", "second", group="g")
    await send(broker, "q", "third", group="g", delay=30)
    assert await states(broker, "q") == (1, 2, 0)
    assert await broker.receive("q", max=5) == []
    clock.advance(10)
    assert await drain(broker, "q") == ["first", "second"]
    clock.advance(20)
    assert await states(broker, "q") == (1, 0, 0)
    assert await drain(broker, "q") == ["third"]


async def test_a_removed_or_dead_head_makes_way_for_the_next(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 1})
    one, two, _, _ = await send(broker, "q", 1, 2, 3, 4, group="g")
    await broker.remove("q", one)
    await broker.remove("q", (await send(broker, "q", "x", group="other"))[0])
    assert bodies(got := await broker.receive("q", max=9)) == [2]
    assert await broker.release("q", leases(got)) == ["done"]
    assert ids(await broker.receive("q.dead", max=9)) == [two]
    assert await drain(broker, "q") == [3, 4]


async def test_followers_of_a_group_can_be_removed_and_edited(broker: Broker) -> None:
    sent = await send(broker, "q", 1, 2, 3, 4, group="g")
    await broker.remove("q", sent[1])
    await broker.edit("q", sent[2], body=b'"three"', priority=7)
    assert (await broker.get("q", sent[2])).message.body == b'"three"'
    assert await drain(broker, "q") == [1, "three", 4]
    assert await states(broker, "q") == (0, 0, 0)


async def test_a_group_message_may_have_a_recipient(broker: Broker) -> None:
    await broker.send("q", [Draft(b"1", group="g"), Draft(b"2", group="g", recipient="ann"), Draft(b"3", group="g")])
    assert await drain(broker, "q") == [1]
    assert await drain(broker, "q", consumer="ann") == [2, 3]


async def test_groups_are_reused_after_they_are_empty(broker: Broker) -> None:
    for round in range(4):
        await send(broker, "q", (round, 1), (round, 2), group="g")
        assert await drain(broker, "q") == [[round, 1], [round, 2]]
