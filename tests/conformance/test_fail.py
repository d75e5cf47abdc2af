"""Failures: retries with their delays, what is final, and errors that stay with their messages; on every store."""

from __future__ import annotations

import random
from typing import Any

import pytest

from miniq.broker import Broker
from miniq.errors import BadName, InvalidRequest, QueueNotFound, TooLarge
from miniq.message import LEASE_EXPIRED, SECOND, DeadLetter, Failed, Lease, QueueSettings, Retry, Stored
from tests.clock import FrozenClock
from tests.kit import bodies, case, draft, ids, leases, send, states

ERROR = "ValueError: no such address\n  line 2 ü"


async def fail(broker: Broker, got: list[Stored], error: str = ERROR, queue: str = "q", **how: object) -> list[Failed]:
    return await broker.deliveries.fail(queue, leases(got), error, **how)  # type: ignore[arg-type]


async def error_of(broker: Broker, id: str, queue: str = "q") -> str | None:
    stored = await broker.get(queue, id)
    return stored.last_error(broker.clock.now())


async def test_a_failed_message_waits_as_the_policy_says_and_keeps_its_error(
    broker: Broker, clock: FrozenClock
) -> None:
    await broker.configure("q", {"retry": {"delay": 2, "factor": 3, "max": 10, "jitter": 0}})
    (id,) = await send(broker, "q", 1)
    for receives, seconds in ((1, 2), (2, 6), (3, 10), (4, 10)):
        got = await broker.receive("q")
        assert [stored.receives for stored in got] == [receives]
        assert got[0].error == (None if receives == 1 else f"{ERROR} {receives - 1}")
        due = clock.now() + seconds * SECOND
        assert await fail(broker, got, f"{ERROR} {receives}") == [Failed("retried", due)]
        stored = await broker.get("q", id)
        assert (stored.visible_at, stored.receipt, stored.consumer) == (due, None, None)
        assert (stored.status(clock.now()), stored.error) == ("delayed", f"{ERROR} {receives}")
        clock.advance(seconds)


async def test_the_delay_varies_by_the_jitter(
    broker: Broker, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.configure("q", {"retry": {"delay": 10, "jitter": 0.5}})
    for chance, seconds in ((0.0, 5), (0.5, 10), (1.0, 15)):
        monkeypatch.setattr(random, "random", lambda chance=chance: chance)
        await send(broker, "q", 1)
        (failed,) = await fail(broker, await broker.receive("q"))
        assert failed.visible_at == clock.now() + seconds * SECOND


async def test_a_delay_of_the_caller_comes_before_the_policy(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1)
    assert await fail(broker, await broker.receive("q"), delay=0) == [Failed("retried", clock.now())]
    assert await fail(broker, await broker.receive("q"), delay=7) == [Failed("retried", clock.now() + 7 * SECOND)]


async def test_a_rejection_without_a_text_keeps_the_earlier_error_or_gives_the_reason(
    broker: Broker, clock: FrozenClock
) -> None:
    await broker.configure("q", {"results": 60, "retry": {"delay": 0}})
    first, second = await send(broker, "q", 1, 2)
    await fail(broker, await broker.receive("q", max=1), "boom")
    got = {stored.message.id: stored for stored in await broker.receive("q", max=2)}
    await fail(broker, [got[first], got[second]], "", dead=True)
    results = [await broker.results.get("q", id) for id in (first, second)]
    assert [(each.status, each.error) for each in results] == [("dead", "boom"), ("dead", "rejected")]
    dead = {stored.message.id: stored.message.dead for stored in await broker.receive("q.dead", max=2)}
    assert dead == {
        first: DeadLetter("q", "rejected", 2, clock.now(), "boom"),
        second: DeadLetter("q", "rejected", 1, clock.now(), "rejected"),
    }


async def test_a_rejected_message_is_dead_at_once(broker: Broker, clock: FrozenClock) -> None:
    (id,) = await send(broker, "q", "bad")
    assert await fail(broker, await broker.receive("q"), dead=True) == [Failed("dead")]
    assert await states(broker, "q") == (0, 0, 0)
    dead = await broker.get("q.dead", id)
    assert dead.message.dead == DeadLetter("q", "rejected", 1, clock.now(), ERROR)
    assert (dead.receives, dead.error) == (0, None)
    await broker.redrive("q.dead")
    back = await broker.get("q", id)
    assert (back.message.dead, back.error) == (None, None)


async def test_the_last_failure_that_max_receives_allows_is_final(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 2, "dead_letter_queue": "graves"})
    (id,) = await send(broker, "q", 1)
    assert (await fail(broker, await broker.receive("q"), "first", delay=0))[0].outcome == "retried"
    assert await fail(broker, await broker.receive("q"), "second", delay=5) == [Failed("dead")]
    dead = (await broker.get("graves", id)).message.dead
    assert dead == DeadLetter("q", "max_receives", 2, clock.now(), "second")


async def test_a_lease_that_ran_out_is_a_failure_with_that_error(broker: Broker, clock: FrozenClock) -> None:
    (id,) = await send(broker, "q", 1)
    assert await error_of(broker, id) is None
    await broker.receive("q", visibility_timeout=1)
    assert await error_of(broker, id) is None
    clock.advance(1)
    assert await error_of(broker, id) == LEASE_EXPIRED
    (taken,) = await broker.receive("q")
    assert (taken.error, taken.receives) == (LEASE_EXPIRED, 2)
    await broker.release("q", leases([taken]))
    assert await error_of(broker, id) == LEASE_EXPIRED
    (taken,) = await broker.receive("q")
    await fail(broker, [taken], "other", delay=0)
    assert await error_of(broker, id) == "other"
    (taken,) = await broker.receive("q", visibility_timeout=1)
    assert taken.error == "other"
    clock.advance(1)
    assert await error_of(broker, id) == LEASE_EXPIRED


async def test_a_late_failure_counts_while_nobody_else_has_the_message(broker: Broker, clock: FrozenClock) -> None:
    (id,) = await send(broker, "q", 1)
    late = await broker.receive("q", visibility_timeout=1)
    clock.advance(1)
    assert (await fail(broker, late, delay=0))[0].outcome == "retried"
    assert await error_of(broker, id) == ERROR
    assert await fail(broker, late) == [Failed("stale")]
    await broker.receive("q")
    assert await fail(broker, late, dead=True) == [Failed("stale")]
    assert await fail(broker, late, queue="default") == [Failed("missing")]
    assert await error_of(broker, id) == ERROR


async def test_many_fail_at_once_each_in_its_own_way(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 2, "retry": {"delay": 1, "jitter": 0}})
    old = await send(broker, "q", 1, 2)
    await broker.release("q", leases(await broker.receive("q", max=2)))
    new = await send(broker, "q", *range(200))
    got = await broker.receive("q", max=300)
    await broker.ack("q", leases(got[5:6]))
    asked = [*leases(got), Lease(new[0], "stranger"), *leases(got[:1])]
    failed = await broker.deliveries.fail("q", asked, ERROR)
    due = clock.now() + SECOND
    retried = [Failed("retried", due)] * 200
    retried[3] = Failed("missing")
    assert failed == [*[Failed("dead")] * 2, *retried, Failed("stale"), Failed("dead")]
    assert await states(broker, "q") == (0, 199, 0)
    assert {*ids((await broker.peek("q.dead")).messages)} == {*old}
    assert {stored.error for stored in (await broker.peek("q", limit=300)).messages} == {ERROR}
    clock.advance(1)
    again = await broker.receive("q", max=300)
    assert {(stored.error, stored.receives) for stored in again} == {(ERROR, 2)}
    await broker.ack("q", leases(again))
    assert await states(broker, "q") == (0, 0, 0)


async def test_many_fail_in_one_change_of_the_store_however_often_each_was_received(
    broker: Broker, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.configure("q", {"max_receives": 9, "retry": {"delay": 2, "factor": 3, "max": 100, "jitter": 0}})
    seconds = {1: 2, 2: 6, 3: 18, 4: 54}
    groups: dict[int, str | None] = {1: "g", 2: None, 3: None, 4: None}
    for receives in (4, 3, 2, 1):  # in one block of some stores where neighbours are alike
        await broker.send("q", [draft(f"{receives} {n}", group=groups[receives]) for n in range(5)])
        if receives > 1:
            await broker.release("q", leases(await broker.receive("q", max=100)))
    got = await broker.receive("q", max=100)
    assert sorted({stored.receives for stored in got}) == [1, 2, 3, 4]
    asked: list[str] = []

    def count(name: str) -> None:
        call = getattr(broker.store.messages, name)

        async def counted(*args: Any) -> Any:
            asked.append(name)
            return await call(*args)

        monkeypatch.setattr(broker.store.messages, name, counted)

    count("find")
    count("reschedule")
    random.shuffle(got)
    failed = await fail(broker, got)
    assert asked == ["find", "reschedule"]
    assert failed == [Failed("retried", clock.now() + seconds[stored.receives] * SECOND) for stored in got]
    monkeypatch.undo()
    for stored, outcome in zip(got, failed, strict=True):
        now = await broker.get("q", stored.message.id)
        assert (now.visible_at, now.receives, now.receipt) == (outcome.visible_at, stored.receives, None)
    for receives in (1, 2, 3, 4):
        clock.advance(seconds[receives] - (seconds[receives - 1] if receives > 1 else 0))
        due = [stored.message.id for stored in got if stored.receives == receives]
        assert sorted(ids(await broker.receive("q", max=100, visibility_timeout=1000))) == sorted(due)


async def test_errors_are_seen_by_peek_in_every_state_and_found_by_search(broker: Broker, clock: FrozenClock) -> None:
    sent = await send(broker, "q", 1, 2, 3)
    for got, error in zip(await broker.receive("q", max=3), ("Apples", "pears", "plums"), strict=True):
        await fail(broker, [got], error, delay=0 if error != "pears" else 60)
    (taken,) = await broker.receive("q")
    assert (taken.message.id, taken.error) == (sent[0], "Apples")
    for status, expected in (
        (None, {sent[0]: "Apples", sent[1]: "pears", sent[2]: "plums"}),
        ("leased", {sent[0]: "Apples"}),
        ("delayed", {sent[1]: "pears"}),
        ("ready", {sent[2]: "plums"}),
    ):
        with case(status):
            page = await broker.peek("q", status=status)  # type: ignore[arg-type]
            assert {stored.message.id: stored.error for stored in page.messages} == expected
    assert ids((await broker.search.messages("q", "apple")).messages) == [sent[0]]
    await fail(broker, [taken], "worms", dead=True)
    assert ids((await broker.search.messages("q.dead", "worms")).messages) == [sent[0]]


async def test_an_error_survives_edits_claims_and_extensions(broker: Broker, clock: FrozenClock) -> None:
    (id,) = await send(broker, "q", 1)
    await fail(broker, await broker.receive("q"), delay=0)
    await broker.edit("q", id, body=b"2", priority=3)
    assert await error_of(broker, id) == ERROR
    await broker.edit("q", id, delay=0)
    assert await error_of(broker, id) == ERROR
    (taken,) = await broker.receive("q")
    await broker.extend("q", leases([taken]), 5)
    await broker.edit("q", id, body=b"3", receipt=taken.receipt)
    assert await error_of(broker, id) == ERROR
    await broker.release("q", leases([taken]))
    claim, _ = await broker.claims.next("q", "g", 0)
    assert claim is not None
    await broker.claims.release("q", "g")
    assert await error_of(broker, id) == ERROR
    assert bodies(await broker.receive("q")) == [3]


async def test_failures_are_in_the_history_and_counted(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "events", "max_receives": 2, "retry": {"jitter": 0}})
    first, second = await send(broker, "q", 1, 2)
    got = await broker.receive("q", max=2, consumer="ann")
    clock.advance(2)
    await fail(broker, got)
    clock.advance(1)
    again = await broker.receive("q", max=2)
    await fail(broker, again[:1], "rejected text", dead=True)
    await fail(broker, again[1:], "worn text")
    told = [record.event for record in (await broker.history(limit=100)).records if record.event.queue == "q"]
    failed = [event for event in told if event.event == "failed"]
    assert [(event.id, event.receives, event.consumer, event.held_ms, event.error) for event in failed] == [
        (first, 1, "ann", 2000.0, ERROR),
        (second, 1, "ann", 2000.0, ERROR),
    ]
    dead = [(event.id, event.reason, event.error) for event in told if event.event == "dead"]
    assert dead == [(first, "rejected", "rejected text"), (second, "max_receives", "worn text")]
    counted = broker.metrics.messages
    assert (counted["q", "failed"], counted["q", "dead"], counted["q", "released"]) == (2, 2, 0)


async def test_a_failed_message_of_a_group_keeps_its_place(broker: Broker, clock: FrozenClock) -> None:
    await broker.send("q", [draft(1, group="g"), draft(2, group="g")])
    await fail(broker, await broker.receive("q"), delay=5)
    assert await broker.receive("q") == []
    clock.advance(5)
    got = await broker.receive("q", max=9)
    assert (bodies(got), got[0].error) == ([1], ERROR)
    await fail(broker, got, dead=True)
    assert bodies(await broker.receive("q")) == [2]


async def test_a_purge_takes_the_errors_along(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    await fail(broker, await broker.receive("q"), delay=0)
    assert await broker.purge("q") == 1
    assert await broker.receive("q") == []
    (new,) = await send(broker, "q", 2)
    assert await error_of(broker, new) is None
    assert id not in await broker.store.messages.find("q", [id])


async def test_wrong_arguments_are_refused_and_change_nothing(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    (got,) = await broker.receive("q")
    for kind, field, call in (
        (TooLarge, "error", fail(broker, [got], "ü" * 2049)),
        (InvalidRequest, "error", fail(broker, [got], "\ud800")),
        (InvalidRequest, "error", fail(broker, [got], None)),  # type: ignore[arg-type]
        (InvalidRequest, "delay", fail(broker, [got], delay=-1)),
        (InvalidRequest, "delay", fail(broker, [got], delay=1e9)),
        (InvalidRequest, "delay", fail(broker, [got], delay=1, dead=True)),
        (InvalidRequest, "leases", fail(broker, [])),
        (QueueNotFound, "queue", fail(broker, [got], queue="none")),
    ):
        with case(field), pytest.raises(kind) as caught:
            await call
        assert caught.value.field == field
    assert (await broker.get("q", id)).receipt == got.receipt
    assert (await fail(broker, [got], "ü" * 2048))[0].outcome == "retried"


async def test_wrong_policies_are_refused(broker: Broker) -> None:
    for value, field in (
        (None, "retry"),
        (3, "retry"),
        ({"delay": -1}, "retry.delay"),
        ({"max": 1e9}, "retry.max"),
        ({"factor": 0.5}, "retry.factor"),
        ({"factor": True}, "retry.factor"),
        ({"jitter": 1.5}, "retry.jitter"),
        ({"jitter": float("nan")}, "retry.jitter"),
        ({"wait": 1}, "retry.wait"),
        ({"delay": 10, "max": 5}, "retry.delay"),
        ({"delay": 3601}, "retry.delay"),
    ):
        with case(value), pytest.raises(InvalidRequest) as caught:
            await broker.configure("q", {"retry": value})
        assert caught.value.field == field
    info = await broker.configure("q", {"retry": {"factor": 1}})
    assert info.settings.retry == Retry(factor=1)
    info = await broker.configure("q", {"retry": {"delay": 5}})
    assert info.settings.retry == Retry(factor=1, delay=5)


async def test_a_new_queue_gives_up_after_twenty_receives_and_a_dead_letter_queue_never(broker: Broker) -> None:
    await send(broker, "q", 1)
    assert (await broker.queue("q")).settings == QueueSettings(max_receives=20)
    for _ in range(19):
        await fail(broker, await broker.receive("q"), delay=0)
    assert "q.dead" not in {info.name for info in await broker.queues()}
    assert await fail(broker, await broker.receive("q"), delay=0) == [Failed("dead")]
    assert (await broker.queue("q.dead")).settings.max_receives is None
    for _ in range(25):
        await fail(broker, await broker.receive("q.dead"), queue="q.dead", delay=0)
    assert await states(broker, "q.dead") == (1, 0, 0)


async def test_a_queue_whose_name_leaves_no_room_for_a_dead_letter_queue_works_without(broker: Broker) -> None:
    long = "q" * 126
    await send(broker, long, 1)
    assert (await broker.queue(long)).settings.max_receives is None
    got = await broker.receive(long)
    with pytest.raises(BadName) as caught:
        await fail(broker, got, queue=long, dead=True)
    assert caught.value.field == "dead_letter_queue"
    assert (await fail(broker, got, queue=long))[0].outcome == "retried"
