"""Exclusive, fenced, at least once or at most once: on every store."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from miniq.batch import StageName
from miniq.broker import Broker
from miniq.errors import InvalidRequest, MessageLeased, MessageNotFound, StaleReceipt
from miniq.message import SECOND, Draft, Lease
from tests.clock import FrozenClock
from tests.kit import bodies, case, draft, drain, ids, leases, send, states


async def test_sent_messages_are_received_as_they_were_sent(broker: Broker) -> None:
    raw = "application/octet-stream"
    sent = await broker.send("q", [Draft(b"\x00\xff", raw, {"a": "b"})])
    (got,) = await broker.receive("q", consumer="me")
    message = got.message
    assert [message.id] == sent
    assert (message.body, message.content_type, message.headers) == (b"\x00\xff", raw, {"a": "b"})
    assert (message.queue, message.priority, message.key, message.dead) == ("q", 0, None, None)
    assert (got.receives, got.consumer) == (1, "me")


async def test_a_leased_message_is_invisible_to_others(broker: Broker) -> None:
    await send(broker, "q", 1, 2)
    first = await broker.receive("q", max=1)
    second = await broker.receive("q", max=10)
    assert (bodies(first), bodies(second)) == ([1], [2])
    assert await broker.receive("q", max=10) == []
    assert await states(broker, "q") == (0, 0, 2)


async def test_expired_lease_goes_to_the_next_worker_at_its_deadline(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    (first,) = await broker.receive("q", visibility_timeout=5)
    assert first.visible_at == clock.now() + 5 * SECOND
    clock.advance(4.999999)
    assert await broker.receive("q") == []
    clock.advance(0.000001)
    (second,) = await broker.receive("q")
    assert second.message == first.message
    assert (first.receives, second.receives) == (1, 2)
    assert first.receipt != second.receipt
    assert second.visible_at == clock.now() + 30 * SECOND


async def test_a_zero_visibility_timeout_leaves_the_message_ready(broker: Broker) -> None:
    await send(broker, "q", 1)
    for receives in (1, 2, 3):
        (got,) = await broker.receive("q", max=5, visibility_timeout=0)
        assert got.receives == receives
    assert await states(broker, "q") == (1, 0, 0)


async def test_acked_messages_do_not_come_back(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2, 3)
    got = await broker.receive("q", max=3)
    assert await broker.ack("q", leases(got)) == ["done", "done", "done"]
    clock.advance(100)
    assert await broker.receive("q", max=3) == []
    assert await states(broker, "q") == (0, 0, 0)
    assert (await broker.queue("q")).counts.bytes == 0


async def test_a_repeated_ack_is_harmless_and_says_missing(broker: Broker) -> None:
    await send(broker, "q", 1)
    got = await broker.receive("q")
    assert await broker.ack("q", leases(got) * 2) == ["done", "missing"]
    assert await broker.ack("q", leases(got)) == ["missing"]


async def test_a_late_ack_counts_if_nobody_else_got_the_message(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    got = await broker.receive("q", visibility_timeout=1)
    clock.advance(50)
    assert await states(broker, "q") == (1, 0, 0)
    assert await broker.ack("q", leases(got)) == ["done"]
    assert await broker.receive("q") == []


async def test_an_old_receipt_is_refused_once_handed_out_again(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    old = leases(await broker.receive("q", visibility_timeout=1))
    clock.advance(1)
    new = await broker.receive("q")
    before = await states(broker, "q")
    assert await broker.ack("q", old) == ["stale"]
    assert await broker.release("q", old) == ["stale"]
    assert (await broker.extend("q", old, 100))[1] == ["stale"]
    with pytest.raises(StaleReceipt):
        await broker.edit("q", old[0].id, priority=3, receipt=old[0].receipt)
    with pytest.raises(StaleReceipt):
        await broker.remove("q", old[0].id, receipt=old[0].receipt)
    assert await states(broker, "q") == before
    assert await broker.get("q", old[0].id) == new[0]
    assert await broker.ack("q", leases(new)) == ["done"]


async def test_no_made_up_receipt_opens_a_lease(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    made_up = [Lease(id, receipt) for receipt in ("", "*", "?", "nonsense")]
    for lease in made_up:
        with case(lease):
            assert await broker.ack("q", [lease]) == ["stale"]
    await broker.receive("q")
    for lease in made_up:
        with case(lease):
            assert await broker.ack("q", [lease]) == ["stale"]
            assert await states(broker, "q") == (0, 0, 1)


async def test_a_released_message_is_ready_again_and_keeps_its_place(broker: Broker) -> None:
    await send(broker, "q", 1, 2, 3)
    got = await broker.receive("q", max=2)
    assert await broker.release("q", leases(got)) == ["done", "done"]
    assert await broker.ack("q", leases(got)) == ["stale", "stale"]
    again = await broker.receive("q", max=3)
    assert bodies(again) == [1, 2, 3]
    assert [stored.receives for stored in again] == [2, 2, 1]


async def test_a_message_released_with_a_delay_comes_back_when_it_is_over(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    await broker.release("q", leases(await broker.receive("q")), delay=10)
    assert await states(broker, "q") == (0, 1, 0)
    clock.advance(9.9)
    assert await broker.receive("q") == []
    clock.advance(0.1)
    assert bodies(await broker.receive("q")) == [1]


async def test_the_receive_of_a_message_that_was_not_used_does_not_count(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 2, "history": "events"})
    await send(broker, "q", 1, 2)
    await broker.deliveries.fail("q", leases(await broker.receive("q")), "boom", delay=0)
    for _ in range(3):
        got = await broker.receive("q", max=2)
        assert [(stored.receives, stored.error) for stored in got] == [(2, "boom"), (1, None)]
        assert await broker.release("q", leases(got), unused=True) == ["done", "done"]
        peeked = (await broker.peek("q")).messages
        assert [(stored.receives, stored.receipt) for stored in peeked] == [(1, None), (0, None)]
    records = (await broker.history(limit=1000, queue="q")).records
    events = [(record.event.event, record.event.receives) for record in records]
    again = [("received", 2), ("received", 1), ("released", 1), ("released", 0)]
    assert events == [("sent", 0), ("sent", 0), ("received", 1), ("failed", 1), *again * 3]


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_message_that_was_not_used_is_never_worn_out(broker: Broker, group: str | None) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", 1, group=group)
    for _ in range(3):
        (got,) = await broker.receive("q")
        assert got.receives == 1
        assert await broker.release("q", leases([got]), delay=0, unused=True) == ["done"]
    got = await broker.receive("q")
    assert await broker.release("q", leases(got)) == ["done"]
    assert await states(broker, "q") == (0, 0, 0)
    (dead,) = (await broker.peek("q.dead")).messages
    assert dead.message.dead is not None
    assert dead.message.dead.receives == 1


async def test_a_receipt_that_is_not_current_takes_no_receive_back(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    old = await broker.receive("q", visibility_timeout=1)
    clock.advance(1)
    new = await broker.receive("q")
    assert await broker.release("q", leases(old), unused=True) == ["stale"]
    assert await broker.release("q", [Lease("no-such-id", "x")], unused=True) == ["missing"]
    assert (await broker.get("q", new[0].message.id)).receives == 2
    assert await broker.release("q", leases(new) * 2, unused=True) == ["done", "done"]
    assert await broker.release("q", leases(new), unused=True) == ["stale"]
    assert (await broker.get("q", new[0].message.id)).receives == 1


async def test_extend_moves_the_deadline_from_now(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2)
    got = await broker.receive("q", max=2, visibility_timeout=10)
    clock.advance(9)
    assert (await broker.extend("q", leases(got)[:1], 20))[1] == ["done"]
    clock.advance(2)
    assert bodies(await broker.receive("q", max=2)) == [2]
    clock.advance(17.9)
    assert await broker.receive("q", max=1) == []
    clock.advance(0.2)
    assert 1 in bodies(await broker.receive("q", max=2))


async def test_extend_can_end_a_lease_early(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    got = await broker.receive("q")
    assert (await broker.extend("q", leases(got), 0))[1] == ["done"]
    assert bodies(await broker.receive("q")) == [1]


async def test_parts_of_one_receive_can_go_different_ways(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", *range(10))
    got = await broker.receive("q", max=10, visibility_timeout=10)
    held = leases(got)
    assert await broker.ack("q", [held[1], held[5], held[9]]) == ["done"] * 3
    assert await broker.release("q", [held[0], held[2]]) == ["done"] * 2
    assert (await broker.extend("q", [held[7], held[3]], 60))[1] == ["done"] * 2
    assert await states(broker, "q") == (2, 0, 5)
    assert bodies(await broker.receive("q", max=10, visibility_timeout=100)) == [0, 2]
    clock.advance(10)
    assert bodies(await broker.receive("q", max=10, visibility_timeout=100)) == [4, 6, 8]
    clock.advance(50)
    assert bodies(await broker.receive("q", max=10, visibility_timeout=100)) == [3, 7]
    assert await broker.ack("q", held) == ["stale", "missing", *["stale"] * 3, "missing", *["stale"] * 3, "missing"]


async def test_at_most_once_removes_before_handing_out(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2)
    got = await broker.receive("q", max=1, mode="at-most-once")
    assert bodies(got) == [1]
    assert await states(broker, "q") == (1, 0, 0)
    clock.advance(1000)
    assert await drain(broker, "q") == [2]
    assert await broker.ack("q", leases(got)) == ["missing"]


async def test_concurrent_consumers_never_share_a_message(broker: Broker) -> None:
    sent = await send(broker, "q", *range(500))
    seen: list[str] = []

    async def consume(size: int) -> None:
        while got := await broker.receive("q", max=size):
            seen.extend(ids(got))
            await asyncio.sleep(0)
            await broker.ack("q", leases(got))

    await asyncio.gather(*[consume(size) for size in (1, 2, 3, 5, 7, 11, 13)])
    assert sorted(seen) == sorted(sent)
    assert await states(broker, "q") == (0, 0, 0)


async def test_concurrent_senders_and_consumers_lose_nothing(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": None})
    seen: list[str] = []
    sent: list[str] = []
    senders = 8

    async def produce(name: int) -> None:
        nonlocal senders
        for number in range(20):
            sent.extend(await send(broker, "q", *range(number % 4 + 1), priority=name % 3))
        senders -= 1

    async def consume() -> None:
        while True:
            got = await broker.receive("q", max=5)
            if not got and not senders:
                return
            half = len(got) // 2
            if half:
                await broker.release("q", leases(got[:half]))
            if got[half:]:
                assert set(await broker.ack("q", leases(got[half:]))) == {"done"}
                seen.extend(ids(got[half:]))
            await asyncio.sleep(0)

    await asyncio.gather(*[produce(n) for n in range(8)], *[consume() for _ in range(6)])
    assert sorted(seen) == sorted(sent)


async def test_only_one_of_two_simultaneous_acks_counts(broker: Broker) -> None:
    await send(broker, "q", 1)
    got = leases(await broker.receive("q"))
    outcomes = await asyncio.gather(broker.ack("q", got), broker.ack("q", got))
    assert sorted(outcome for (outcome,) in outcomes) == ["done", "missing"]


async def test_edit_changes_a_message_that_is_not_leased(broker: Broker) -> None:
    first, second, third = await send(broker, "q", 1, 2, 3)
    edited = await broker.edit("q", second, body=b'"two"', headers={"a": "b"})
    assert (edited.message.body, edited.message.headers, edited.receives) == (b'"two"', {"a": "b"}, 0)
    got = await broker.receive("q", max=3)
    assert ids(got) == [first, second, third]
    assert bodies(got) == [1, "two", 3]


async def test_edit_of_priority_moves_a_message_in_line(broker: Broker) -> None:
    _, _, third = await send(broker, "q", 1, 2, 3)
    await broker.edit("q", third, priority=9)
    await broker.edit("q", third, body=b'"3"')
    assert await drain(broker, "q") == ["3", 1, 2]


async def test_edit_of_delay_hides_and_shows_a_message(broker: Broker, clock: FrozenClock) -> None:
    first, _ = await send(broker, "q", 1, 2)
    await broker.edit("q", first, delay=10)
    assert await states(broker, "q") == (1, 1, 0)
    assert await drain(broker, "q") == [2]
    await broker.edit("q", first, delay=0)
    assert await drain(broker, "q") == [1]


async def test_edit_of_a_leased_message_needs_its_receipt_and_keeps_the_lease(
    broker: Broker, clock: FrozenClock
) -> None:
    (id,) = await send(broker, "q", 1)
    (got,) = await broker.receive("q", visibility_timeout=10)
    with pytest.raises(MessageLeased):
        await broker.edit("q", id, body=b"2")
    with pytest.raises(MessageLeased):
        await broker.remove("q", id)
    edited = await broker.edit("q", id, body=b"2", receipt=got.receipt)
    assert (edited.visible_at, edited.receives, edited.receipt) == (got.visible_at, 1, got.receipt)
    assert await broker.receive("q") == []
    clock.advance(10)
    (again,) = await broker.receive("q")
    assert (again.message.body, again.receives) == (b"2", 2)
    assert await broker.ack("q", leases([again])) == ["done"]


async def test_remove_takes_one_message_out(broker: Broker) -> None:
    _, second, _ = await send(broker, "q", 1, 2, 3)
    await broker.remove("q", second)
    with pytest.raises(MessageNotFound):
        await broker.remove("q", second)
    with pytest.raises(MessageNotFound):
        await broker.get("q", second)
    assert await drain(broker, "q") == [1, 3]


async def test_ack_by_id_needs_no_receipt(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    await broker.receive("q")
    assert await broker.ack_by_id("q", id) is True
    assert await broker.ack_by_id("q", id) is False


async def test_a_response_stops_at_its_cap_but_gives_at_least_one(broker: Broker) -> None:
    cap = broker._limits.response_bytes
    big = "x" * (broker._limits.body_bytes - 2)
    for _ in range(20):
        await send(broker, "q", big)
    first = await broker.receive("q", max=100)
    assert len(first) == cap // (len(big) + 2)
    assert len(await broker.receive("q", max=100)) == 20 - len(first)


async def test_a_leased_message_past_its_ttl_is_seen_until_its_lease_ends(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2, ttl=1)
    one, two = await broker.receive("q", max=2, visibility_timeout=60)
    clock.advance(5)
    assert (await broker.queue("q")).counts.leased == 2
    assert ids((await broker.peek("q", status="leased")).messages) == ids([one, two])
    assert (await broker.get("q", one.message.id)).message.id == one.message.id
    assert await broker.ack("q", leases([one])) == ["done"]
    clock.advance(60)
    assert (await broker.peek("q")).messages == []
    assert await broker.receive("q") == []


async def test_a_message_is_delivered_at_its_moment(broker: Broker, clock: FrozenClock) -> None:
    moment = datetime.fromtimestamp(clock.now() / SECOND, UTC)
    await broker.configure("q", {"delay": 600})
    zone = timezone(timedelta(hours=2))
    await broker.send("q", [draft(1, deliver_at=(moment + timedelta(seconds=5)).astimezone(zone))])
    await broker.send("q", [draft(2, deliver_at=moment - timedelta(days=1)), draft(3, deliver_at=moment)])
    assert bodies(await broker.receive("q", max=9)) == [2, 3]
    clock.advance(4.999)
    assert await broker.receive("q") == []
    clock.advance(0.001)
    assert bodies(await broker.receive("q")) == [1]


async def test_a_moment_that_is_no_moment_is_refused(broker: Broker, clock: FrozenClock) -> None:
    moment = datetime.fromtimestamp(clock.now() / SECOND, UTC)
    for fields in (
        {"deliver_at": moment.replace(tzinfo=None)},
        {"deliver_at": "2027-01-31"},
        {"deliver_at": moment, "delay": 1},
        {"deliver_at": moment + timedelta(days=15)},
    ):
        with case(fields), pytest.raises(InvalidRequest) as caught:
            await broker.send("q", [draft(1, **fields)])
        assert caught.value.field == "deliver_at"
    assert caught.value.text.endswith("is too far ahead; use a moment at most 14 days from now")
    with pytest.raises(InvalidRequest, match="not supported in a stage"):
        await broker.stages.upload("q", StageName("j", "b", "p", "a"), 0, [draft(1, deliver_at=moment)])
