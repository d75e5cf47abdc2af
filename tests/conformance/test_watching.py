"""What those see who watch: rates, the last hour, and searches that are bounded."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from miniq.broker import Broker, search, trends
from miniq.errors import InvalidRequest, MessageNotFound
from miniq.message import SECOND
from miniq.options import Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import bodies, draft, ids, leases, send


async def test_rates_are_those_of_the_last_five_seconds(broker: Broker, clock: FrozenClock) -> None:
    await broker.trends.tick()
    await send(broker, "q", *range(20))
    for _ in range(4):
        clock.advance(1)
        await broker.trends.tick()
    (now,) = await broker.trends.stats(["q"])
    assert (now.rates["sent"], now.rates["acked"]) == (5.0, 0.0)
    got = await broker.receive("q", max=6)
    await broker.ack("q", leases(got))
    clock.advance(2)
    (now,) = await broker.trends.stats(["q"])
    assert (now.rates["received"], now.rates["acked"]) == (1.0, 1.0)
    for _ in range(8):
        clock.advance(1)
        await broker.trends.tick()
    (now,) = await broker.trends.stats(["q", "no such queue"])
    assert set(now.rates.values()) == {0.0}
    assert (now.counts.ready, now.dead_letter_queue, now.dead) == (14, None, 0)


async def test_dead_letters_are_counted_with_the_queue_they_came_from(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", 1, 2)
    await broker.release("q", leases(await broker.receive("q", max=2)))
    (now,) = await broker.trends.stats(["q"])
    assert (now.counts.total, now.dead_letter_queue, now.dead) == (0, "q.dead", 2)


async def test_the_last_hour_is_kept_and_no_more(broker: Broker, clock: FrozenClock) -> None:
    step = trends.STEP
    await send(broker, "q", "first")
    await broker.trends.tick()
    for _ in range(4):
        clock.advance(step)
        await send(broker, "q", *range(step))
        await broker.trends.tick()
    (found,) = broker.trends.last_hour(["q", "other"], ["total", "ready", "sent"], 240)
    assert found.series == {"total": [1, 16, 31, 46, 61], "ready": [1, 16, 31, 46, 61], "sent": [0.067, 1, 1, 1, 1]}
    (found,) = broker.trends.last_hour(["q"], ["total", "sent"], 120)
    assert found.series == {"total": [1, 31, 61], "sent": [0.033, 1, 1]}
    await broker.purge("q")
    for _ in range(260):
        clock.advance(step)
        await broker.trends.tick()
    (found,) = broker.trends.last_hour(["q"], ["total", "sent"], 240)
    assert found.series == {"total": [0] * 240, "sent": [0] * 240}
    await broker.delete_queue("q")
    clock.advance(step)
    await broker.trends.tick()
    assert broker.trends.last_hour(["q"], ["total"], 60) == []


async def test_the_first_interval_of_a_queue_counts_from_zero(broker: Broker, clock: FrozenClock) -> None:
    await broker.trends.tick()
    await send(broker, "q", *range(30))
    clock.advance(1)
    await broker.trends.tick()
    clock.advance(trends.STEP)
    await broker.trends.tick()
    for points in (240, 120, 60):
        (found,) = broker.trends.last_hour(["q"], ["sent"], points)
        assert found.series["sent"] == [30 * points / 3600]
    await broker.delete_queue("q")
    await send(broker, "q", *range(15))  # the counters of a queue that is created again begin at zero
    clock.advance(trends.STEP)
    await broker.trends.tick()
    (found,) = broker.trends.last_hour(["q"], ["sent"], 240)
    assert found.series["sent"] == [2, 1]


async def test_a_queue_that_gets_a_history_late_counts_only_what_is_recent(
    broker: Broker, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trends, "MAX_QUEUES", 1)
    await broker.trends.tick()  # "default" has the only history
    await send(broker, "q", *range(300))
    for _ in range(2 * trends.ROWS):
        clock.advance(trends.STEP)
        await send(broker, "default", 1)
        await broker.trends.tick()
    assert broker.trends.last_hour(["q"], ["sent"], 240) == []
    await broker.purge("default")
    for _ in range(trends.ROWS + 1):
        clock.advance(trends.STEP)
        await broker.trends.tick()
    await send(broker, "q", *range(15))
    clock.advance(trends.STEP)
    await broker.trends.tick()
    (found,) = broker.trends.last_hour(["q"], ["sent"], 240)
    assert found.series["sent"] == [1]


async def test_a_busy_queue_has_no_longer_past_than_an_hour(broker: Broker, clock: FrozenClock) -> None:
    for _ in range(trends.ROWS + 60):
        await send(broker, "q", 1)
        clock.advance(trends.STEP)
        await broker.trends.tick()
    assert len(broker.trends._rows["q"]) == trends._WIDTH * (trends.ROWS + 1)
    (found,) = broker.trends.last_hour(["q"], ["total", "sent"], 240)
    assert found.series["total"] == [*range(61, 301)]
    assert set(found.series["sent"]) == {round(1 / trends.STEP, 3)}


async def test_those_who_watch_are_let_go_when_the_broker_will_close(broker: Broker) -> None:
    watching = asyncio.create_task(broker.trends.pause(60))
    await asyncio.sleep(0)
    broker.begin_shutdown()
    assert await asyncio.wait_for(watching, 20) is False


async def test_wrong_series_and_points_are_named(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="series: 'nope' is unknown; use total, ready"):
        broker.trends.last_hour(["default"], ["nope"], 60)
    with pytest.raises(InvalidRequest, match="points: 7 does not divide 240"):
        broker.trends.last_hour(["default"], ["total"], 7)


async def test_messages_are_found_by_id_key_header_and_text(broker: Broker) -> None:
    wanted = await broker.send(
        "q",
        [
            draft("x", key="Order-77"),
            draft("x", headers={"Tenant": "ACME"}),
            draft({"text": "Größe"}),  # with \\u escapes, as many send it
            msgspec.structs.replace(draft(), body='{"text":"GRÖSSE größe"}'.encode()),
        ],
    )
    await send(broker, "q", *range(50))
    for text, expected in (
        ("order-77", wanted[:1]),
        ("acme", wanted[1:2]),
        ("tenant", wanted[1:2]),
        ("größe", wanted[2:]),
        (wanted[0], wanted[:1]),
        ("nowhere", []),
    ):
        found = await broker.search.messages("q", text)
        assert (ids(found.messages), found.next, found.looked) == (expected, None, 54), text
    with pytest.raises(InvalidRequest, match="find: 0 characters"):
        await broker.search.messages("q", "")


async def test_a_search_looks_at_so_many_and_goes_on_from_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_MESSAGES", 400)
    await send(broker, "q", *[n if n % 100 else f"every {n}" for n in range(1000)])
    assert (await broker.search.messages("q", "nowhere")).looked == 400
    found, after, calls = [], None, 0
    while True:
        page = await broker.search.messages("q", "every", after=after, limit=3)
        assert page.looked <= 400
        assert len(page.messages) <= 3
        found += bodies(page.messages)
        calls += 1
        after = page.next
        if after is None:
            break
    assert found == [f"every {n}" for n in range(0, 1000, 100)]
    assert calls >= 4


async def test_the_history_is_searched_by_message_event_consumer_and_time(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "events"})
    await send(broker, "q", *range(300))
    clock.advance(3600)
    (id,) = await send(broker, "q", "x", priority=9)
    clock.advance(1)
    middle = clock.now()
    await broker.ack("q", leases(await broker.receive("q", consumer="ann")))
    page = await broker.search.events(id=id)
    assert [record.event.event for record in page.records] == ["sent", "received", "acked"]
    assert page.next == 303
    page = await broker.search.events(event="sent", limit=10)
    assert ([record.offset for record in page.records], page.next) == ([*range(1, 11)], 10)
    assert [r.offset for r in (await broker.search.events(consumer="ann", event="received")).records] == [302]
    assert [r.offset for r in (await broker.search.events(since=middle)).records] == [302, 303]
    assert [r.offset for r in (await broker.search.events(since=middle, before=303)).records] == [302]
    assert (await broker.search.events(since=clock.now() + SECOND)).records == []
    assert (await broker.search.events(id="not an id")).records == []
    with pytest.raises(InvalidRequest, match="event: 'eaten'; use one of sent, received"):
        await broker.search.events(event="eaten")


async def test_a_held_message_is_taken_back_by_its_id(broker: Broker) -> None:
    await broker.configure("q", {"max_receives": 2})
    (id,) = await send(broker, "q", "x")
    assert await broker.release_by_id("q", id) is False
    held = await broker.receive("q")
    assert await broker.release_by_id("q", id) is True
    assert await broker.ack("q", leases(held)) == ["stale"]
    (again,) = await broker.receive("q")
    assert again.receives == 2
    assert await broker.release_by_id("q", id, 5) is True
    assert (await broker.queue("q.dead")).counts.ready == 1, "it had used up its receives"
    with pytest.raises(MessageNotFound):
        await broker.release_by_id("q", id)


async def test_the_history_since_a_moment_is_complete_though_the_clocks_of_brokers_differ(
    url: str, clock: FrozenClock
) -> None:
    late = FrozenClock(clock.now() - SECOND)
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        if not broker.store.shared:
            return  # the clock of one broker never goes backwards
        async with Broker(open_store(url), options, late) as other:
            await broker.configure("q", {"history": "events"})
            await send(broker, "q", "first")
            assert (await broker.search.events()).next == 1
            await send(other, "q", "second", "third")
            assert [record.offset for record in (await broker.search.events(since=late.now())).records] == [1, 2, 3]
            assert [record.offset for record in (await broker.search.events(since=clock.now())).records] == [1]
            assert (await broker.search.events(since=clock.now() + 1)).records == []
