"""Dead letters, redrive, expiry and purge: on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from miniq.broker import Broker
from miniq.errors import InvalidRequest, QueueNotFound
from miniq.message import DeadLetter, Page, Stored
from miniq.store.arguments import Scan
from tests.clock import FrozenClock
from tests.kit import bodies, case, draft, drain, ids, leases, send, states


async def wear_out(broker: Broker, clock: FrozenClock, queue: str, times: int) -> None:
    for _ in range(times):
        assert await broker.receive(queue, max=100, visibility_timeout=1)
        clock.advance(1)


async def test_a_message_dies_after_max_receives(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 2})
    (id,) = await send(broker, "q", "poison", priority=4)
    await send(broker, "q", "fine")
    await wear_out(broker, clock, "q", 2)
    assert await broker.receive("q", max=9) == []
    got = await broker.receive("q.dead", max=9)
    assert {*ids(got)} >= {id}
    dead = next(stored for stored in got if stored.message.id == id)
    assert dead.message.dead == DeadLetter("q", "max_receives", 2, clock.now(), "lease expired")
    assert (dead.message.priority, dead.receives, dead.message.queue) == (4, 1, "q.dead")


async def test_good_messages_are_handed_out_beside_dying_ones(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 1, "dead_letter_queue": "graveyard"})
    await send(broker, "q", 1, 2)
    await broker.receive("q", max=1, visibility_timeout=1)
    clock.advance(1)
    assert bodies(await broker.receive("q", max=5)) == [2]
    assert bodies(await broker.receive("graveyard", max=5)) == [1]
    assert await states(broker, "q") == (0, 0, 1)


async def test_a_release_of_many_asks_the_store_for_all_at_once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.configure("q", {"max_receives": 2})
    await send(broker, "q", *range(30))
    got = await broker.receive("q", max=30)
    asked: list[int] = []
    find = broker.store.messages.find

    async def counted(queue: str, ids: Sequence[str]) -> dict[str, Stored]:
        asked.append(len(ids))
        return await find(queue, ids)

    monkeypatch.setattr(broker.store.messages, "find", counted)
    assert await broker.release("q", leases(got)) == ["done"] * 30
    assert asked == [30]


async def test_release_of_a_worn_out_message_buries_it_at_once(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", 1)
    got = await broker.receive("q")
    assert await broker.release("q", leases(got) * 2) == ["done", "done"]
    assert await states(broker, "q") == (0, 0, 0)
    assert await states(broker, "q.dead") == (1, 0, 0)
    assert await broker.release("q", leases(got)) == ["missing"]


async def test_dead_letters_keep_their_body_headers_and_key_and_outlive_their_ttl(
    broker: Broker, clock: FrozenClock
) -> None:
    await broker.configure("q", {"max_receives": 1})
    await broker.send("q", [draft("x", ttl=5, key="k", headers={"a": "b"})])
    await broker.release("q", leases(await broker.receive("q")))
    clock.advance(10)
    (got,) = await broker.receive("q.dead")
    assert (got.message.body, got.message.key, got.message.headers) == (b'"x"', "k", {"a": "b"})


async def test_redrive_brings_all_back_where_they_came_from(broker: Broker, clock: FrozenClock) -> None:
    for name in ("a", "b"):
        await broker.configure(name, {"max_receives": 1, "dead_letter_queue": "dead"})
        await send(broker, name, f"{name}1", f"{name}2")
        await broker.release(name, leases(await broker.receive(name, max=2)))
    await send(broker, "dead", "sent here by hand")
    progress = await broker.redrive("dead")
    assert (progress.moved, progress.skipped, progress.running) == (4, 1, False)
    assert await drain(broker, "a") == ["a1", "a2"]
    (got,) = await broker.receive("b", max=1)
    assert (got.receives, got.message.dead) == (1, None)
    assert await drain(broker, "dead") == ["sent here by hand"]


async def test_redrive_of_some_ids_or_to_another_queue(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    sent = await send(broker, "q", 1, 2, 3)
    await broker.release("q", leases(await broker.receive("q", max=3)))
    assert (await broker.redrive("q.dead", ids=[sent[1], "no-such-id"])).moved == 1
    assert await drain(broker, "q") == [2]
    assert (await broker.redrive("q.dead", to="elsewhere")).moved == 2
    assert await drain(broker, "elsewhere") == [1, 3]
    assert await states(broker, "q.dead") == (0, 0, 0)


async def test_a_redriven_message_keeps_its_place_by_age(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", "old")
    await broker.release("q", leases(await broker.receive("q")))
    await send(broker, "q", "young")
    await broker.redrive("q.dead")
    assert await drain(broker, "q") == ["old", "young"]


async def test_redrive_skips_what_its_target_would_drop_at_once(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 1, "retention": 60})
    await send(broker, "q", 1)
    await broker.release("q", leases(await broker.receive("q")))
    clock.advance(61)
    done = await broker.redrive("q.dead")
    assert (done.moved, done.skipped) == (0, 1)
    assert await states(broker, "q.dead") == (1, 0, 0)
    await broker.configure("q", {"retention": 3600})
    assert (await broker.redrive("q.dead")).moved == 1
    assert await drain(broker, "q") == [1]


async def test_the_ttl_of_a_redriven_message_starts_again_each_time(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", "mortal", ttl=60)
    for _ in range(2):
        clock.advance(40)
        await broker.release("q", leases(await broker.receive("q")))
        clock.advance(100)
        assert (await broker.redrive("q.dead")).moved == 1
        (stored,) = (await broker.peek("q")).messages
        assert stored.message.expires_at == clock.now() + 60_000_000
    clock.advance(60)
    assert await broker.receive("q") == []


@pytest.mark.parametrize("limit", [{"max_length": 8}, {"max_bytes": 8}], ids=["max_length", "max_bytes"])
async def test_redrive_moves_what_its_target_has_room_for_and_loses_nothing(
    broker: Broker, limit: dict[str, int]
) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", *range(9))
    await broker.release("q", leases(await broker.receive("q", max=9)))
    await broker.configure("q", limit)
    await send(broker, "q", 9)
    for to in (None, "q"):
        done = await broker.redrive("q.dead", to=to)
        assert (done.moved + done.skipped, done.reasons) == (9 if to is None else 2, {"queue_full": 2})
    assert await states(broker, "q") == (8, 0, 0)
    assert await drain(broker, "q.dead") == [7, 8]
    assert await drain(broker, "q") == [*range(7), 9]


async def test_a_dead_letter_queue_takes_what_dies_though_it_is_full(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    await broker.configure("q.dead", {"max_length": 1})
    await send(broker, "q", 1, 2, 3)
    await broker.release("q", leases(await broker.receive("q", max=3)))
    assert await states(broker, "q.dead") == (3, 0, 0)


async def test_redrive_says_why_it_left_a_message(broker: Broker) -> None:
    for name in ("mine", "theirs"):
        await broker.configure(name, {"max_receives": 1, "dead_letter_queue": "dead"})
        await send(broker, name, name)
        await broker.release(name, leases(await broker.receive(name)))
    await send(broker, "dead", "by hand")
    done = await broker.redrive("dead", may_send=lambda queue: queue == "mine")
    assert (done.moved, done.skipped, done.reasons) == (1, 2, {"forbidden": 1, "no_source": 1})
    assert await states(broker, "theirs") == (0, 0, 0)
    assert sorted(await drain(broker, "dead")) == ["by hand", "theirs"]


async def test_redrive_counts_ids_that_are_not_in_the_queue(broker: Broker) -> None:
    (id,) = await send(broker, "dead", 1)
    done = await broker.redrive("dead", ids=["not there", id, "nor this"], to="q")
    assert (done.moved, done.skipped, done.reasons) == (1, 2, {"missing": 2})
    await broker.redrive("dead", ids=["not there"], to="q", rate=1000)
    while (done := (await broker.queue("dead")).redrive).running:  # type: ignore[union-attr]  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert (done.moved, done.reasons) == (0, {"missing": 1})


async def test_redrive_leaves_leased_messages_alone(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", 1, 2)
    await broker.release("q", leases(await broker.receive("q", max=2)))
    held = await broker.receive("q.dead")
    assert (await broker.redrive("q.dead")).moved == 1
    assert (await broker.redrive("q.dead", ids=ids(held))).skipped == 1
    assert await broker.ack("q.dead", leases(held)) == ["done"]


async def test_redrive_at_a_rate_goes_on_in_the_background(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", *range(30))
    await broker.release("q", leases(await broker.receive("q", max=30)))
    assert (await broker.redrive("q.dead", rate=500)).running
    for _ in range(2000):
        progress = (await broker.queue("q.dead")).redrive
        if progress is not None and not progress.running:
            break
        await asyncio.sleep(0.005)
    assert progress is not None
    assert (progress.moved, progress.running) == (30, False)
    assert await drain(broker, "q") == list(range(30))


async def test_a_redrive_that_takes_long_is_answered_and_goes_on(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    for _ in range(3):
        await broker.send("q", [draft(number) for number in range(400)])
    await broker.release("q", leases(await broker.receive("q", max=1000)))
    await broker.release("q", leases(await broker.receive("q", max=1000)))
    progress = await broker.redrive("q.dead", patience=0)
    assert progress.running or not broker.store.shared, "what waits for nothing is done at once"
    for _ in range(3000):
        shown = (await broker.queue("q.dead")).redrive or progress
        if not shown.running:
            break
        await asyncio.sleep(0.01)
    assert (shown.moved, shown.skipped, shown.running) == (1200, 0, False)
    assert (await states(broker, "q"), await states(broker, "q.dead")) == ((1200, 0, 0), (0, 0, 0))


async def test_a_redrive_of_some_ids_is_answered_when_it_is_done(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    sent = await send(broker, "q", 1, 2)
    await broker.release("q", leases(await broker.receive("q", max=2)))
    progress = await broker.redrive("q.dead", ids=sent, patience=0)
    assert (progress.moved, progress.running) == (2, False)


async def test_a_wrong_redrive_is_refused(broker: Broker) -> None:
    await send(broker, "q", 1)
    for asked in ({"rate": 0}, {"rate": -1}, {"to": "a b"}, {"to": "q"}, {"ids": []}):
        with case(asked):
            with pytest.raises(InvalidRequest) as error:
                await broker.redrive("q", **asked)  # type: ignore[arg-type]
            assert error.value.field == next(iter(asked))
    with pytest.raises(QueueNotFound):
        await broker.redrive("nowhere")


async def test_ttl_ends_a_message_wherever_it_is_met(broker: Broker, clock: FrozenClock) -> None:
    short, long = await broker.send("q", [draft("short", ttl=5), draft("long", ttl=500)])
    clock.advance(5)
    page = await broker.peek("q")
    assert ids(page.messages) == [long]
    assert bodies(await broker.receive("q", max=5)) == ["long"]
    assert await states(broker, "q") == (0, 0, 1)
    with pytest.raises(Exception, match=short):
        await broker.get("q", short)


async def test_a_message_that_expires_while_leased_can_still_be_acked(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, ttl=5)
    got = await broker.receive("q", visibility_timeout=60)
    clock.advance(30)
    await broker.upkeep()
    assert await broker.ack("q", leases(got)) == ["done"]


async def test_retention_follows_the_settings_of_the_queue(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"retention": 100})
    await send(broker, "q", "old")
    clock.advance(60)
    await send(broker, "q", "young")
    clock.advance(40)
    assert await drain(broker, "q") == ["young"]


async def test_upkeep_removes_what_nobody_meets(broker: Broker, clock: FrozenClock) -> None:
    await broker.send("q", [draft(n, ttl=10) for n in range(900)])
    await send(broker, "q", "stays", group="g")
    await send(broker, "q", "goes", group="g", ttl=1)
    await send(broker, "q", "goes too", recipient="nobody", ttl=1)
    clock.advance(10)
    for _ in range(4):
        await broker.upkeep()
    assert await states(broker, "q") == (1, 0, 0)
    assert await drain(broker, "q") == ["stays"]


async def test_upkeep_leaves_a_queue_alone_in_which_nothing_can_have_ended(
    broker: Broker, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(broker, "q", *range(700))
    if broker.store.shared:
        for _ in range(3):
            await broker.upkeep()
    looked: list[str] = []
    scan = broker.store.messages.scan

    async def counted(queue: str, asked: Scan) -> Page:
        looked.append(queue)
        return await scan(queue, asked)

    monkeypatch.setattr(broker.store.messages, "scan", counted)
    await send(broker, "q", *range(10))
    clock.advance(20)
    await broker.upkeep()
    assert looked == []
    clock.advance(15 * 86400)
    for _ in range(4):
        await broker.upkeep()
    assert "q" in looked
    assert await states(broker, "q") == (0, 0, 0)


async def test_upkeep_notices_what_ends_early_in_a_queue_that_it_has_walked(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"retention": 1000, "max_receives": 1})
    await send(broker, "q", "redriven")
    await broker.release("q", leases(await broker.receive("q")))
    clock.advance(900)
    await send(broker, "q", "young")
    await broker.upkeep()
    await send(broker, "q", "short", ttl=5)
    clock.advance(5)
    await broker.upkeep()
    assert await states(broker, "q") == (1, 0, 0)
    await broker.redrive("q.dead")
    assert await states(broker, "q") == (2, 0, 0)
    clock.advance(95)
    await broker.upkeep()
    assert await states(broker, "q") == (1, 0, 0)
    await broker.configure("q", {"retention": 50})
    await broker.upkeep()
    assert await states(broker, "q") == (0, 0, 0)


async def test_upkeep_comes_back_for_what_was_leased_when_it_ended(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, ttl=10)
    await broker.receive("q", visibility_timeout=30)
    clock.advance(15)
    await broker.upkeep()
    assert await states(broker, "q") == (0, 0, 1)
    clock.advance(15)
    await broker.upkeep()
    assert await states(broker, "q") == (0, 0, 0)


async def test_retention_of_a_dead_letter_starts_when_it_dies(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 1})
    await broker.configure("q.dead", {"retention": 100})
    await send(broker, "q", 1)
    clock.advance(90)
    await broker.release("q", leases(await broker.receive("q")))
    clock.advance(90)
    await broker.upkeep()
    assert await states(broker, "q.dead") == (1, 0, 0)
    clock.advance(10)
    await broker.upkeep()
    assert await states(broker, "q.dead") == (0, 0, 0)


async def test_purge_empties_a_queue_in_whatever_state(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", *range(300))
    await send(broker, "q", 1, 2, delay=10)
    await send(broker, "q", 1, 2, group="g")
    held = await broker.receive("q", max=10)
    assert await broker.purge("q") == 304
    assert await states(broker, "q") == (0, 0, 0)
    assert set(await broker.ack("q", leases(held))) == {"missing"}
    clock.advance(1000)
    assert await broker.receive("q", max=10) == []
    await broker.upkeep()
    await send(broker, "q", "new", group="g")
    assert await drain(broker, "q") == ["new"]
    assert await broker.purge("q") == 0
