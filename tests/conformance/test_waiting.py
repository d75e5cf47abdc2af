"""Long polls: woken at once by a send, a release, an expired lease, a delay that ends: on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from miniq.broker import Broker
from miniq.message import Stored
from tests.clock import FrozenClock
from tests.kit import bodies, ids, leases, send, settle, waiting


async def result(task: asyncio.Task[list[Stored]]) -> list[Any]:
    return bodies(await asyncio.wait_for(task, 5))


async def test_a_send_wakes_a_waiting_receive(broker: Broker) -> None:
    task = await waiting(broker, broker.receive("q", wait=60))
    await send(broker, "q", 1)
    assert await result(task) == [1]


async def test_a_wait_for_a_queue_that_does_not_exist_yet_ends_with_its_first_message(broker: Broker) -> None:
    task = await waiting(broker, broker.receive("not-there-yet", wait=60))
    await send(broker, "not-there-yet", 1)
    assert await result(task) == [1]


async def test_a_wait_ends_empty_at_its_deadline(broker: Broker, clock: FrozenClock) -> None:
    task = await waiting(broker, broker.receive("default", wait=5))
    clock.advance(4.9)
    await settle(broker)
    assert not task.done()
    clock.advance(0.1)
    assert await result(task) == []


async def test_a_release_wakes_a_waiting_receive(broker: Broker) -> None:
    await send(broker, "q", 1)
    got = await broker.receive("q")
    task = await waiting(broker, broker.receive("q", wait=60))
    await broker.release("q", leases(got))
    assert await result(task) == [1]


async def test_an_expired_lease_wakes_a_waiting_receive(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    await broker.receive("q", visibility_timeout=10)
    task = await waiting(broker, broker.receive("q", wait=60))
    clock.advance(9.9)
    await settle(broker)
    assert not task.done()
    clock.advance(0.1)
    assert await result(task) == [1]


@pytest.mark.parametrize("verb", ["receive", "claim"])
async def test_what_becomes_visible_just_while_somebody_looks_is_not_passed_over(
    broker: Broker, clock: FrozenClock, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(broker, "q", 1, delay=10)
    part, method = (broker.store.messages, "take") if verb == "receive" else (broker.store.claims, "next")
    ask_store = getattr(part, method)
    looks = 0

    async def look(*asked: Any) -> Any:
        nonlocal looks
        found = await ask_store(*asked)
        looks += 1
        if looks == 2:  # the first look is made before it waits
            clock.advance(10)
        return found

    monkeypatch.setattr(part, method, look)
    if verb == "receive":
        assert bodies(await asyncio.wait_for(broker.receive("q", wait=60), 5)) == [1]
    else:
        claimed, _ = await asyncio.wait_for(broker.claims.next("q", "g", 0, max_messages=5, wait=60), 5)
        assert claimed is not None
        assert claimed.messages == 1


async def test_a_lease_taken_while_somebody_waits_wakes_him_when_it_expires(broker: Broker, clock: FrozenClock) -> None:
    task = await waiting(broker, broker.receive("q", wait=60, consumer="waits"))
    await send(broker, "q", 1, recipient="other")
    await broker.receive("q", visibility_timeout=10, consumer="other")
    await send(broker, "q", 2, delay=20)
    await settle(broker)
    clock.advance(19)
    await settle(broker)
    assert not task.done()
    clock.advance(1)
    assert await result(task) == [2]


async def test_an_ended_delay_wakes_a_waiting_receive(broker: Broker, clock: FrozenClock) -> None:
    task = await waiting(broker, broker.receive("q", wait=60))
    await send(broker, "q", 1, delay=7)
    await settle(broker)
    assert not task.done()
    clock.advance(7)
    assert await result(task) == [1]


async def test_a_shortened_lease_wakes_a_waiting_receive(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    got = await broker.receive("q", visibility_timeout=50)
    task = await waiting(broker, broker.receive("q", wait=60))
    await broker.extend("q", leases(got), 5)
    await settle(broker)
    clock.advance(5)
    assert await result(task) == [1]


async def test_an_ack_in_a_group_wakes_who_waits_for_the_next(broker: Broker) -> None:
    await send(broker, "q", 1, 2, group="g")
    got = await broker.receive("q")
    task = await waiting(broker, broker.receive("q", wait=60))
    await broker.ack("q", leases(got))
    assert await result(task) == [2]


async def test_a_dead_letter_and_a_redrive_wake_who_waits(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", 1)
    got = await broker.receive("q")
    dead = await waiting(broker, broker.receive("q.dead", wait=60, visibility_timeout=0))
    await broker.release("q", leases(got))
    assert await result(dead) == [1]
    back = await waiting(broker, broker.receive("q", wait=60))
    await broker.redrive("q.dead")
    assert await result(back) == [1]


async def test_a_message_for_a_recipient_wakes_that_one(broker: Broker) -> None:
    anybody = await waiting(broker, broker.receive("q", wait=60))
    bob = await waiting(broker, broker.receive("q", wait=60, consumer="bob"))
    ann = await waiting(broker, broker.receive("q", wait=60, consumer="ann"))
    await send(broker, "q", "for ann", recipient="ann")
    assert await result(ann) == ["for ann"]
    assert not bob.done()
    assert not anybody.done()
    await send(broker, "q", 1, 2)
    assert sorted([*await result(bob), *await result(anybody)]) == [1, 2]


async def test_each_of_many_waiters_gets_a_message(broker: Broker) -> None:
    tasks = [await waiting(broker, broker.receive("q", wait=60)) for _ in range(20)]
    sent = await send(broker, "q", *range(20))
    got = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert sorted(id for messages in got for id in ids(messages)) == sorted(sent)


async def test_leases_that_expire_together_go_to_all_who_wait(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2, 3)
    await broker.receive("q", max=3, visibility_timeout=10)
    tasks = [await waiting(broker, broker.receive("q", wait=60)) for _ in range(3)]
    clock.advance(10)
    got = await asyncio.wait_for(asyncio.gather(*tasks), 5)
    assert sorted(bodies([stored for messages in got for stored in messages])) == [1, 2, 3]


async def test_a_receive_that_is_cancelled_while_it_drops_an_expired_message_leaves_no_lease(
    broker: Broker, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(broker, "q", "old", ttl=5)
    await send(broker, "q", "new")
    clock.advance(5)
    dropping = asyncio.Event()

    async def drop(*args: Any) -> Any:
        dropping.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(broker.store.messages, "drop", drop)
        receiving = asyncio.create_task(broker.receive("q", max=9))
        await dropping.wait()
        receiving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await receiving
    await broker.deliveries.stop()
    assert (await broker.queue("q")).counts.leased == 0
    assert bodies(await broker.receive("q", max=9)) == ["new"]
    assert broker.metrics.messages["q", "received"] == 2  # the history has both


async def test_a_cancelled_wait_takes_nothing(broker: Broker) -> None:
    task = await waiting(broker, broker.receive("q", wait=60))
    other = await waiting(broker, broker.receive("q", wait=60))
    task.cancel()
    await settle(broker)
    await send(broker, "q", 1)
    assert await result(other) == [1]


async def test_closing_the_broker_ends_waits(broker: Broker) -> None:
    task = await waiting(broker, broker.receive("q", wait=60))
    await broker.close()
    assert await result(task) == []
