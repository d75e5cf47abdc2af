"""Several messages of a group in flight at a time (`group_batch`): on every store."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import Any

import pytest

from miniq.broker import Broker
from miniq.errors import InvalidRequest, MessageLeased, StaleReceipt
from miniq.message import Stored
from miniq.options import Limits, Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import bodies, case, draft, ids, leases, send, states, waiting


@pytest.fixture
async def batching(broker: Broker) -> Broker:
    """A broker whose queue `q` hands out several messages of a group."""
    await broker.configure("q", {"group_batch": True})
    return broker


async def fail(broker: Broker, got: list[Stored], **how: Any) -> list[str]:
    return [failed.outcome for failed in await broker.deliveries.fail("q", leases(got), "boom", **how)]


async def test_one_message_of_a_group_is_in_flight_unless_the_setting_says_otherwise(broker: Broker) -> None:
    await send(broker, "q", 1, 2, 3, group="g")
    assert bodies(await broker.receive("q", max=9)) == [1]
    assert not (await broker.queue("q")).settings.group_batch


async def test_a_receive_gets_consecutive_messages_of_a_group_and_blocks_it(batching: Broker) -> None:
    await send(batching, "q", 1, 2, 3, 4, 5, group="g")
    got = await batching.receive("q", max=3)
    assert bodies(got) == [1, 2, 3]
    assert len({stored.receipt for stored in got}) == 1
    assert await states(batching, "q") == (2, 0, 3)
    assert await batching.receive("q", max=9) == []
    assert await batching.ack("q", leases(got)) == ["done"] * 3
    assert bodies(await batching.receive("q", max=9)) == [4, 5]


async def test_messages_of_a_group_come_together_before_those_of_the_next(batching: Broker) -> None:
    await batching.send("q", [draft(body, group=body[0]) for body in ("a1", "b1", "a2", "b2", "a3", "c1")])
    await send(batching, "q", "free", group=None)
    assert bodies(await batching.receive("q", max=4)) == ["a1", "a2", "a3", "b1"]
    assert bodies(await batching.receive("q", max=4)) == ["c1", "free"]


@pytest.mark.parametrize("how", ["acked", "released", "failed", "expired", "dead"])
async def test_nothing_of_a_group_is_handed_out_until_the_last_one_is_settled(
    batching: Broker, clock: FrozenClock, how: str
) -> None:
    await send(batching, "q", 1, 2, 3, 4, group="g")
    first, second, third = await batching.receive("q", max=3, visibility_timeout=60)
    assert await batching.ack("q", leases([first])) == ["done"]
    assert await batching.release("q", leases([second])) == ["done"]
    assert await batching.receive("q", max=9) == []
    assert await states(batching, "q") == (2, 0, 1)
    if how == "acked":
        await batching.ack("q", leases([third]))
    elif how == "released":
        await batching.release("q", leases([third]))
    elif how == "failed":
        assert await fail(batching, [third], delay=0) == ["retried"]
    elif how == "dead":
        assert await fail(batching, [third], dead=True) == ["dead"]
    else:
        clock.advance(60)
    gone = how in ("acked", "dead")
    assert bodies(await batching.receive("q", max=9)) == ([2, 4] if gone else [2, 3, 4])


async def test_what_comes_back_is_handed_out_first_and_in_order(batching: Broker) -> None:
    await send(batching, "q", 1, 2, 3, 4, 5, group="g")
    first, second, third = await batching.receive("q", max=3)
    for one in (third, first, second):
        await batching.release("q", leases([one]))
    again = await batching.receive("q", max=2)
    assert bodies(again) == [1, 2]
    assert [stored.receives for stored in again] == [2, 2]
    assert await batching.receive("q", max=2) == []
    await batching.ack("q", leases(again))
    rest = await batching.receive("q", max=9)
    assert [(stored.message.body, stored.receives) for stored in rest] == [(b"3", 2), (b"4", 1), (b"5", 1)]


async def test_a_failed_message_holds_the_rest_of_its_group_until_it_is_due(
    batching: Broker, clock: FrozenClock
) -> None:
    await send(batching, "q", 1, 2, 3, group="g")
    first, second = await batching.receive("q", max=2)
    assert await fail(batching, [first], delay=10) == ["retried"]
    assert await batching.release("q", leases([second])) == ["done"]
    assert await batching.receive("q", max=9) == []
    clock.advance(10)
    again = await batching.receive("q", max=9)
    assert bodies(again) == [1, 2, 3]
    assert again[0].error == "boom"


async def test_a_batch_ends_before_a_message_that_failed_and_is_not_due(batching: Broker, clock: FrozenClock) -> None:
    await send(batching, "q", 1, 2, 3, group="g")
    first, second, third = await batching.receive("q", max=3)
    await fail(batching, [second], delay=10)
    await batching.release("q", leases([first, third]))
    again = await batching.receive("q", max=9)
    assert bodies(again) == [1]
    await batching.ack("q", leases(again))
    assert await batching.receive("q", max=9) == []
    clock.advance(10)
    assert bodies(await batching.receive("q", max=9)) == [2, 3]


async def test_a_batch_ends_before_a_delayed_message(batching: Broker, clock: FrozenClock) -> None:
    await send(batching, "q", 1, 2, group="g")
    await send(batching, "q", 3, group="g", delay=10)
    await send(batching, "q", 4, group="g")
    got = await batching.receive("q", max=9)
    assert bodies(got) == [1, 2]
    await batching.ack("q", leases(got))
    assert await batching.receive("q", max=9) == []
    clock.advance(10)
    assert bodies(await batching.receive("q", max=9)) == [3, 4]


async def test_the_order_of_a_group_is_by_age_whatever_the_priorities(batching: Broker) -> None:
    await batching.send("q", [draft(1, group="g"), draft(2, group="g", priority=9), draft(3, group="g", priority=5)])
    await send(batching, "q", "urgent", group="h", priority=7)
    assert bodies(await batching.receive("q", max=9)) == ["urgent", 1, 2, 3]


async def test_a_batch_keeps_to_the_bytes_of_an_answer(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0, limits=Limits(response_bytes=10))
    async with Broker(open_store(url), options, clock) as broker:
        await broker.configure("q", {"group_batch": True})
        await send(broker, "q", "aaa", "bbb", "ccc", group="g")  # 5 bytes each
        await send(broker, "q", 1, group="h")
        got = await broker.receive("q", max=9)
        assert bodies(got) == ["aaa", "bbb"]
        assert bodies(await broker.receive("q", max=9)) == [1]
        await broker.ack("q", leases(got))
        assert bodies(await broker.receive("q", max=9)) == ["ccc"]


async def test_a_message_past_its_ttl_in_the_middle_of_a_group_is_left_out(
    batching: Broker, clock: FrozenClock
) -> None:
    await batching.send("q", [draft(1, group="g"), draft(2, group="g", ttl=5), draft(3, group="g")])
    clock.advance(6)
    got = await batching.receive("q", max=9)
    assert bodies(got) == [1, 3]
    assert await states(batching, "q") == (0, 0, 2)
    await batching.ack("q", leases(got))
    assert await states(batching, "q") == (0, 0, 0)


async def test_a_message_that_was_received_too_often_leaves_the_middle_of_its_group(batching: Broker) -> None:
    await batching.configure("q", {"max_receives": 2})
    await send(batching, "q", 1, 2, 3, group="g")
    first, second, third = await batching.receive("q", max=3)
    await batching.release("q", leases([second]))
    await batching.ack("q", leases([first]))
    await batching.release("q", leases([third]))
    again = await batching.receive("q", max=1)
    assert bodies(again) == [2]
    assert await batching.release("q", leases(again)) == ["done"]  # for the last time
    assert bodies(await batching.receive("q.dead", max=9)) == [2]
    assert bodies(await batching.receive("q", max=9)) == [3]


async def test_at_most_once_removes_the_whole_batch(batching: Broker) -> None:
    await send(batching, "q", 1, 2, 3, group="g")
    assert bodies(await batching.receive("q", max=2, mode="at-most-once")) == [1, 2]
    assert await states(batching, "q") == (1, 0, 0)
    assert bodies(await batching.receive("q", max=2, mode="at-most-once")) == [3]


async def test_messages_of_a_batch_are_removed_edited_and_purged_like_others(
    batching: Broker, clock: FrozenClock
) -> None:
    one, two, three, four = await send(batching, "q", 1, 2, 3, 4, group="g")
    got = await batching.receive("q", max=3)
    with pytest.raises(MessageLeased):
        await batching.remove("q", two)
    with pytest.raises(MessageLeased):
        await batching.edit("q", three, priority=5)
    await batching.edit("q", three, body=b'"three"', receipt=got[2].receipt)
    await batching.remove("q", two, got[1].receipt)
    await batching.release("q", leases([got[0], got[2]]))
    await batching.edit("q", one, delay=5)
    assert await batching.receive("q", max=9) == []
    await batching.remove("q", one)
    assert bodies(await batching.receive("q", max=9)) == ["three", 4]
    assert await batching.purge("q") == 2
    await send(batching, "q", "new", group="g")
    assert bodies(await batching.receive("q", max=9)) == ["new"]
    assert four is not None


async def test_the_setting_changes_while_messages_are_in_flight(batching: Broker) -> None:
    await send(batching, "q", 1, 2, 3, 4, 5, group="g")
    first, second, third = await batching.receive("q", max=3)
    await batching.configure("q", {"group_batch": False})
    await batching.ack("q", leases([first]))
    await batching.release("q", leases([second]))
    assert await batching.receive("q", max=9) == []
    await batching.release("q", leases([third]))
    single = await batching.receive("q", max=9)
    assert bodies(single) == [2]
    assert await batching.receive("q", max=9) == []
    await batching.configure("q", {"group_batch": True})
    assert await batching.receive("q", max=9) == []
    await batching.release("q", leases(single))
    assert bodies(await batching.receive("q", max=9)) == [2, 3, 4, 5]


async def test_limits_of_a_queue_hold_for_batches(batching: Broker, clock: FrozenClock) -> None:
    await batching.configure("q", {"max_in_flight": 4})
    await send(batching, "q", *range(6), group="g")
    await send(batching, "q", *range(10, 16), group="h")
    got = await batching.receive("q", max=3)
    assert bodies(got) == [0, 1, 2]
    assert bodies(await batching.receive("q", max=9)) == [10]
    assert await batching.receive("q", max=9) == []
    await batching.ack("q", leases(got))
    again = await batching.receive("q", max=9)
    assert bodies(again) == [3, 4, 5]
    await batching.configure("q", {"max_in_flight": 0, "rate": 2})
    await batching.ack("q", leases(again))
    await send(batching, "q", 6, 7, 8, group="g")
    assert bodies(await batching.receive("q", max=9)) in ([6], [6, 7])


async def test_a_batch_ends_before_a_message_for_another_recipient(batching: Broker) -> None:
    await batching.send(
        "q", [draft(1, group="g"), draft(2, group="g", recipient="ann"), draft(3, group="g"), draft(4, group="g")]
    )
    got = await batching.receive("q", max=9)
    assert bodies(got) == [1]
    await batching.ack("q", leases(got))
    assert await batching.receive("q", max=9) == []
    got = await batching.receive("q", max=2, consumer="ann")
    assert bodies(got) == [2, 3]
    await batching.release("q", leases(got))
    assert await batching.receive("q", max=9) == []
    assert bodies(await batching.receive("q", max=9, consumer="ann")) == [2, 3, 4]


async def test_a_late_ack_counts_and_a_late_extension_holds_the_group_again(
    batching: Broker, clock: FrozenClock
) -> None:
    await send(batching, "q", 1, 2, 3, 4, group="g")
    first, second, third = await batching.receive("q", max=3, visibility_timeout=5)
    clock.advance(6)
    assert (await batching.queue("q")).counts.oldest is not None
    assert await batching.ack("q", leases([second])) == ["done"]
    assert (await batching.extend("q", leases([third]), 10))[1] == ["done"]
    assert (await batching.queue("q")).counts.oldest is None
    assert await batching.receive("q", max=9) == []
    clock.advance(10)
    assert bodies(await batching.receive("q", max=9)) == [1, 3, 4]
    assert await batching.ack("q", leases([first])) == ["stale"]
    with pytest.raises(StaleReceipt):
        await batching.edit("q", third.message.id, body=b"0", receipt=third.receipt)


async def test_leases_of_a_batch_may_end_at_different_times(batching: Broker, clock: FrozenClock) -> None:
    await send(batching, "q", 1, 2, 3, group="g")
    got = await batching.receive("q", max=3, visibility_timeout=5)
    await batching.extend("q", leases(got[1:2]), 20)
    clock.advance(5)
    assert await batching.receive("q", max=9) == []
    assert await states(batching, "q") == (2, 0, 1)
    clock.advance(15)
    again = await batching.receive("q", max=9)
    assert bodies(again) == [1, 2, 3]
    assert {stored.error for stored in again} == {"lease expired"}


@pytest.mark.parametrize("how", ["ack", "release", "dead", "expire", "remove"])
async def test_who_waits_is_woken_by_the_last_of_a_batch(batching: Broker, clock: FrozenClock, how: str) -> None:
    await send(batching, "q", 1, 2, 3, group="g")
    first, second = await batching.receive("q", max=2, visibility_timeout=30)
    await batching.release("q", leases([first]))
    task = await waiting(batching, batching.receive("q", max=1, wait=60))
    if how == "ack":
        await batching.ack("q", leases([second]))
    elif how == "release":
        await batching.release("q", leases([second]))
    elif how == "dead":
        await fail(batching, [second], dead=True)
    elif how == "remove":
        await batching.remove("q", second.message.id, second.receipt)
    else:
        clock.advance(30)
    assert bodies(await asyncio.wait_for(task, 5)) == [1]


async def test_a_claim_has_one_message_of_a_group_and_waits_for_those_in_flight(batching: Broker) -> None:
    await send(batching, "q", 1, 2, 3, group="g")
    got = await batching.receive("q", max=2)
    assert (await batching.claims.next("q", "r", 0))[0] is None
    await batching.ack("q", leases(got[:1]))
    assert (await batching.claims.next("q", "r", 0))[0] is None
    await batching.release("q", leases(got[1:]))
    claim, _ = await batching.claims.next("q", "r", 0)
    assert claim is not None
    assert claim.messages == 1
    assert await batching.receive("q", max=9) == []
    part = await batching.claims.fetch("q", "r", 1)
    assert [bodies(some) async for some in part.each()] == [[2]]
    await batching.claims.ack("q", "r", 1)
    assert bodies(await batching.receive("q", max=9)) == [3]


async def test_a_released_claim_gives_the_group_back(batching: Broker) -> None:
    await send(batching, "q", 1, 2, 3, group="g")
    got = await batching.receive("q", max=2)
    await batching.release("q", leases(got))
    claim, _ = await batching.claims.next("q", "r", 0)
    assert claim is not None
    assert await batching.claims.release("q", "r") == 1
    assert bodies(await batching.receive("q", max=9)) == [1, 2, 3]


async def test_a_redriven_message_waits_for_those_that_were_handed_out(batching: Broker) -> None:
    await send(batching, "q", 1, 2, 3, 4, group="g")
    first, second, third = await batching.receive("q", max=3)
    await fail(batching, [first], dead=True)
    await batching.redrive("q.dead")
    await batching.release("q", leases([second, third]))
    assert bodies(await batching.receive("q", max=9)) == [2, 3, 1, 4]


async def test_a_batch_in_flight_survives_a_restart(url: str, clock: FrozenClock) -> None:
    if url == "memory:":
        return  # has nothing to open again
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        await broker.configure("q", {"group_batch": True})
        await send(broker, "q", 1, 2, 3, 4, group="g")
        first, second, third = await broker.receive("q", max=3)
        await broker.ack("q", leases([first]))
        await broker.release("q", leases([second]))
    async with Broker(open_store(url), options, clock) as broker:
        assert (await broker.queue("q")).settings.group_batch
        assert await broker.receive("q", max=9) == []
        assert await broker.release("q", leases([third])) == ["done"]
    async with Broker(open_store(url), options, clock) as broker:
        got = await broker.receive("q", max=9)
        assert [(stored.message.body, stored.receives) for stored in got] == [(b"2", 2), (b"3", 2), (b"4", 1)]
        assert await broker.ack("q", leases(got)) == ["done"] * 3
        assert await states(broker, "q") == (0, 0, 0)


async def test_groups_stay_in_order_whatever_many_consumers_do_with_them(url: str, clock: FrozenClock) -> None:
    """Two brokers on a database, one elsewhere. A group is in the hands of one consumer at a time, its messages come in
    order, and a message that was acked does not come again."""
    options = Options(upkeep_interval=0)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(Broker(open_store(url), options, clock))
        brokers = [broker]
        if broker.store.shared:
            brokers.append(await stack.enter_async_context(Broker(open_store(url), options, clock)))
        await broker.configure("q", {"group_batch": True, "max_receives": None})
        names = [f"g{number}" for number in range(4)]
        for round in range(10):
            await broker.send("q", [draft([name, round], group=name) for name in names])
        in_hand: dict[str, str] = {}
        done: dict[str, list[int]] = defaultdict(list)
        chance = random.Random(7)

        async def consume(me: str, at: Broker) -> None:
            while sum(map(len, done.values())) < 40:
                got = await at.receive("q", max=chance.randint(1, 6))
                by_group: dict[str, list[Stored]] = defaultdict(list)
                for stored in got:
                    by_group[stored.message.group or ""].append(stored)
                for group, some in by_group.items():
                    assert in_hand.setdefault(group, me) == me
                    assert ids(some) == sorted(ids(some))
                    numbers = [body[1] for body in bodies(some)]
                    missing = [number for number in range(10) if number not in done[group]]
                    assert numbers == missing[: len(numbers)]
                await asyncio.sleep(0)
                for group, some in by_group.items():
                    chance.shuffle(some)
                    for left, stored in zip(reversed(range(len(some))), some, strict=True):
                        acked = chance.random() < 0.7
                        if acked:
                            done[group].append(bodies([stored])[0][1])
                        if not left:
                            del in_hand[group]
                        settle = at.ack if acked else at.release
                        assert await settle("q", leases([stored])) == ["done"]
                await asyncio.sleep(0.001)

        await asyncio.wait_for(
            asyncio.gather(*[consume(f"c{number}", brokers[number % len(brokers)]) for number in range(5)]), 60
        )
        assert {name: sorted(numbers) for name, numbers in done.items()} == {name: list(range(10)) for name in names}
        assert await states(broker, "q") == (0, 0, 0)


async def test_a_wrong_group_batch_is_refused(broker: Broker) -> None:
    for value in (1, "yes", None):
        with case(value), pytest.raises(InvalidRequest) as caught:
            await broker.configure("q", {"group_batch": value})
        assert caught.value.field == "group_batch"


async def test_a_message_that_was_not_used_stays_before_those_that_were(batching: Broker) -> None:
    await batching.configure("q", {"max_receives": 3})
    await send(batching, "q", 1, 2, 3, 4, group="g")
    first, second, third = await batching.receive("q", max=3)
    assert await batching.release("q", leases([first]), unused=True) == ["done"]
    assert await fail(batching, [second], delay=0) == ["retried"]
    assert await batching.receive("q", max=9) == []
    assert await batching.release("q", leases([third]), unused=True) == ["done"]
    got = await batching.receive("q", max=9)
    assert [(body, stored.receives) for body, stored in zip(bodies(got), got, strict=True)] == [
        (1, 1), (2, 2), (3, 1), (4, 1),
    ]  # fmt: skip
    assert await batching.release("q", leases(got), unused=True) == ["done"] * 4
    assert await batching.ack("q", leases(await batching.receive("q", max=1))) == ["done"]
    assert bodies(await batching.receive("q", max=9)) == [2, 3, 4]


async def test_a_message_that_is_published_into_a_group_in_flight_waits_for_all_of_it(batching: Broker) -> None:
    await batching.topics.subscribe("t", "q")
    await send(batching, "q", 1, 2, group="g")
    first, second = await batching.receive("q", max=9)
    await batching.publish("t", [draft(3, group="g")])
    assert (await batching.queue("q")).counts.oldest is None
    assert await batching.receive("q") == []
    await batching.ack("q", leases([second]))
    assert await batching.receive("q") == []
    await batching.ack("q", leases([first]))
    assert bodies(await batching.receive("q")) == [3]
