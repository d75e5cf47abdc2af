"""What happened, written with the change: on every store."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from miniq.broker import Broker
from miniq.errors import InvalidRequest
from miniq.message import Event
from miniq.options import Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import draft, leases, send


async def story(broker: Broker, queue: str | None = None) -> list[Event]:
    page = await broker.history(limit=1000, queue=queue)
    return [record.event for record in page.records]


async def told(broker: Broker) -> list[tuple[str, str, str | None]]:
    return [(event.event, event.queue, event.reason) for event in await story(broker)]


async def test_history_is_off_unless_asked_for(broker: Broker) -> None:
    await send(broker, "q", 1)
    await broker.ack("q", leases(await broker.receive("q")))
    assert await story(broker) == []


async def test_the_life_of_a_message_is_told_with_times(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "events"})
    (id,) = await send(broker, "q", "body", headers={"a": "b"})
    start = clock.now()
    clock.advance(2)
    await broker.receive("q", consumer="ann", visibility_timeout=5)
    clock.advance(7)
    got = await broker.receive("q", consumer="bob")
    clock.advance(1)
    await broker.release("q", leases(got), delay=3)
    clock.advance(4)
    got = await broker.receive("q", consumer="cyn")
    clock.advance(0.5)
    await broker.ack("q", leases(got))
    s = 1_000_000
    assert await story(broker) == [
        Event(start, "sent", "q", id, 0, 8),
        Event(start + 2 * s, "received", "q", id, 1, 8, "ann", 2000.0),
        Event(start + 9 * s, "expired", "q", id, 1, 8, "ann", None, 5000.0, "lease"),
        Event(start + 9 * s, "received", "q", id, 2, 8, "bob", 2000.0),
        Event(start + 10 * s, "released", "q", id, 2, 8, "bob", None, 1000.0),
        Event(start + 14 * s, "received", "q", id, 3, 8, "cyn", 1000.0),
        Event(start + 14 * s + s // 2, "acked", "q", id, 3, 8, "cyn", None, 500.0),
    ]


async def test_full_history_keeps_bodies(broker: Broker) -> None:
    await broker.configure("q", {"history": "full"})
    (id,) = await send(broker, "q", "old")
    await broker.edit("q", id, body=b"new", content_type="text/plain")
    sent, edited = await story(broker)
    assert (sent.body, sent.content_type) == (b'"old"', "application/json")
    assert (edited.event, edited.body, edited.content_type) == ("edited", b"new", "text/plain")


async def test_every_way_out_is_told(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "events", "max_receives": 1})
    await broker.configure("q.dead", {"history": "events"})
    await send(broker, "q", 1)
    await broker.release("q", leases(await broker.receive("q")))
    await broker.redrive("q.dead")
    (removed,) = await send(broker, "q", 2)
    await broker.remove("q", removed)
    await broker.receive("q", mode="at-most-once")
    await send(broker, "q", 3, ttl=1)
    clock.advance(1)
    await broker.upkeep()
    await send(broker, "q", 4, 5)
    await broker.purge("q")
    assert await told(broker) == [
        ("sent", "q", None),
        ("received", "q", None),
        ("dead", "q", "max_receives"),
        ("sent", "q.dead", "dead"),
        ("redriven", "q.dead", None),
        ("sent", "q", "redriven"),
        ("sent", "q", None),
        ("purged", "q", "removed"),
        ("received", "q", None),
        ("acked", "q", "at-most-once"),
        ("sent", "q", None),
        ("expired", "q", "ttl"),
        ("sent", "q", None),
        ("sent", "q", None),
        ("purged", "q", None),
    ]
    assert (await story(broker))[-1].count == 2


async def test_offsets_rise_by_one_whoever_writes(broker: Broker) -> None:
    for name in ("a", "b"):
        await broker.configure(name, {"history": "events"})

    async def work(queue: str) -> None:
        for number in range(15):
            await send(broker, queue, *range(number % 3 + 1))
            if got := await broker.receive(queue, max=2):
                await broker.ack(queue, leases(got))

    await asyncio.gather(*[work(queue) for queue in "abab"])
    page = await broker.history(limit=1000)
    assert [record.offset for record in page.records] == list(range(1, len(page.records) + 1))
    assert page.next == len(page.records)
    only = await broker.history(limit=1000, queue="a")
    assert [record for record in page.records if record.event.queue == "a"] == only.records


async def test_history_is_read_page_by_page(broker: Broker) -> None:
    await broker.configure("q", {"history": "events"})
    await send(broker, "q", *range(25))
    found: list[int] = []
    after = 0
    while True:
        page = await broker.history(after=after, limit=7)
        if page.next == after:
            break
        found += [record.offset for record in page.records]
        after = page.next
    assert found == list(range(1, 26))
    assert (await broker.history(after=10**9)).records == []
    with pytest.raises(InvalidRequest):
        await broker.history(after=-1)
    with pytest.raises(InvalidRequest):
        await broker.history(limit=0)


async def test_a_refused_change_leaves_no_trace(broker: Broker) -> None:
    await broker.configure("q", {"history": "events", "max_length": 1})
    await send(broker, "q", 1)
    before = await story(broker)
    for wrong in (send(broker, "q", 2), broker.send("q", [draft(priority=99)]), broker.remove("q", "nope")):
        with pytest.raises(Exception, match=r"max_length|priority|nope"):
            await wrong
    assert await story(broker) == before


async def test_history_is_kept_within_age_and_size(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0, history_retention=100, history_max_bytes=20_000)
    async with Broker(open_store(url), options, clock) as broker:
        await broker.configure("q", {"history": "full"})
        for _ in range(20):
            await send(broker, "q", *range(10))
        clock.advance(60)
        await send(broker, "q", "young")
        clock.advance(60)
        await broker.upkeep()
        span = await broker.history_span()
        assert (span.first, span.last) == (201, 201)
        for _ in range(40):
            await send(broker, "q", "x" * 1000)
        for _ in range(60):
            await broker.upkeep()
        span = await broker.history_span()
        assert span.bytes <= 20_000
        assert span.last == 241
        records = (await broker.history(limit=1000)).records
        assert [record.offset for record in records] == list(range(span.first, 242))


async def test_a_page_says_how_far_the_history_reaches(broker: Broker) -> None:
    page = await broker.history()
    assert (page.records, page.last - page.first) == ([], -1)
    await broker.configure("q", {"history": "events"})
    await send(broker, "q", *range(5))
    page = await broker.history(after=1, limit=2)
    assert [record.offset for record in page.records] == [2, 3]
    assert (page.next, page.first, page.last) == (3, 1, 5)


async def test_a_page_ends_at_a_size_and_the_next_goes_on(broker: Broker) -> None:
    await broker.configure("q", {"history": "full"})
    broker._limits = replace(broker._limits, response_bytes=10_000)
    for number in range(40):
        await send(broker, "q", f"{number}" + "x" * 1000)
    after, pages = 0, []
    while (page := await broker.history(after=after, limit=1000)).records:
        pages.append(page)
        after = page.next
    assert [record.offset for page in pages for record in page.records] == list(range(1, 41))
    assert {len(page.records) for page in pages} == {10}
