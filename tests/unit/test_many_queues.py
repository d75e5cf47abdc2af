"""What the number of queues must not cost: work that is proportional to it where nothing happens in most of them."""

from __future__ import annotations

import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from miniq.api import codec, replies
from miniq.broker import Broker
from miniq.broker.trends import STEP
from miniq.options import Options
from miniq.server import streams
from miniq.store import open_store
from miniq.store.embedded import blocks
from miniq.store.memory import MemoryKV
from tests.clock import FrozenClock
from tests.kit import drain, send


@asynccontextmanager
async def opened(queues: int, clock: FrozenClock) -> AsyncIterator[Broker]:
    """A broker with that many queues and a message in each, which were all scanned."""
    async with Broker(open_store("memory:"), Options(upkeep_interval=0), clock) as broker:
        for number in range(queues):
            await send(broker, f"q{number:04}", 1)
        for _ in range(queues // 100 + 2):
            await broker.upkeep()
        await broker.trends.tick()
        yield broker


async def calls(work: Callable[[], Awaitable[Any]]) -> int:
    """How many functions are called, those written in C included; not those of a garbage collection, which Hypothesis
    listens to."""
    count = 0

    def profile(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event.endswith("call")

    gc.disable()
    sys.setprofile(profile)
    try:
        await work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


async def test_a_pass_of_an_idle_broker_costs_the_same_with_many_queues(clock: FrozenClock) -> None:
    cost = []
    for queues in (5, 500):
        async with opened(queues, clock) as broker:
            cost.append((await calls(broker.upkeep), await calls(broker.trends.tick)))
    assert cost[0] == cost[1]


async def test_a_pass_scans_the_queue_in_which_something_expires_and_no_other(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(50, clock) as broker:
        await send(broker, "q0007", 2, ttl=5)
        clock.advance(6)
        scanned: list[str] = []
        scan = broker.store.messages.scan
        monkeypatch.setattr(broker.store.messages, "scan", lambda queue, how: scanned.append(queue) or scan(queue, how))
        await broker.upkeep()
        assert scanned == ["q0007"]
        assert (await broker.queue("q0007")).counts.total == 1


async def test_a_changed_retention_is_kept_to_in_a_queue_that_was_scanned(clock: FrozenClock) -> None:
    async with opened(50, clock) as broker:
        clock.advance(10)
        await broker.configure("q0007", {"retention": 5})
        await broker.upkeep()
        empty = [info.name for info in await broker.queues() if not info.counts.total]
        assert empty == ["default", "q0007"]


async def test_many_queues_are_scanned_in_turns(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory:")
    async with Broker(store, Options(upkeep_interval=0), clock) as broker:
        for number in range(250):
            await send(broker, f"q{number:04}", 1)
    scanned: list[str] = []
    async with Broker(store, Options(upkeep_interval=0), clock) as broker:
        scan = store.messages.scan
        monkeypatch.setattr(store.messages, "scan", lambda queue, how: scanned.append(queue) or scan(queue, how))
        passes = []
        for _ in range(4):
            await broker.upkeep()
            passes.append(len(scanned))
    assert passes == [100, 200, 251, 251]
    assert len(set(scanned)) == 251


async def test_a_queue_is_created_without_a_look_at_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Broker(open_store("memory:"), Options(upkeep_interval=0)) as broker:
        monkeypatch.setattr(broker.store, "queues", None)
        await send(broker, "q", 1)
        await broker.configure("q", {"delay": 5})


async def test_a_store_is_opened_with_few_scans(clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store("memory:")
    async with Broker(store, Options(upkeep_interval=0), clock) as broker:
        for number in range(100):
            await send(broker, f"q{number}", 1, 2)
        await broker.receive("q7")
    scans = 0
    scan = MemoryKV.scan

    def counted(self: MemoryKV, start: bytes, end: bytes) -> Any:
        nonlocal scans
        scans += 1
        return scan(self, start, end)

    monkeypatch.setattr(MemoryKV, "scan", counted)
    await store.open()
    assert scans < 20
    counts = [await store.messages.counts(f"q{number}", clock.now()) for number in range(100)]
    assert sum(count.ready for count in counts) == 199
    assert counts[7].leased == 1


async def test_queues_that_nobody_uses_have_no_lanes_after_a_start(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store("memory:")
    async with Broker(store, Options(upkeep_interval=0), clock) as broker:
        for number in range(20):
            await send(broker, f"q{number}", 1, 2)
            await send(broker, f"q{number}", 3, priority=5)
    made: list[int] = []
    real = blocks.new_lanes

    def counted(number: int, owner: str, more: bool) -> list[blocks.Lane]:
        made.append(number)
        return real(number, owner, more)

    monkeypatch.setattr(blocks, "new_lanes", counted)
    async with Broker(store, Options(upkeep_interval=0), clock) as broker:
        assert made == []
        assert [await drain(broker, "q7"), await drain(broker, "q7")] == [[3, 1, 2], []]
        await send(broker, "q8", 4)
        assert await drain(broker, "q8") == [3, 1, 2, 4]
        assert len(made) == 2


async def test_nothing_is_kept_of_queues_that_were_purged_or_deleted(clock: FrozenClock) -> None:
    """Not for the consumers either that received from them by name."""
    async with Broker(open_store("memory:"), Options(upkeep_interval=0), clock) as broker:
        for number in range(10):
            queue = f"left-{number}"
            await send(broker, queue, 1, 2, 3)
            await send(broker, queue, 4, recipient="ann")
            await broker.receive(queue, consumer="ann")
            await broker.receive(queue, consumer="bob")
            await broker.purge(queue)
            if number % 2:
                await broker.delete_queue(queue)
        gc.collect()
        kept = [one for one in gc.get_objects() if isinstance(one, blocks.Shelf) and one.name.startswith("left-")]
        assert len(kept) == 5, "those of the queues that are there"


async def test_an_active_queue_has_trends_however_many_others_there_are(
    clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniq.broker.trends.MAX_QUEUES", 5)
    async with opened(50, clock) as broker:
        for _ in range(2):
            await send(broker, "q0042", 2)
            clock.advance(STEP)
            await broker.trends.tick()
        (trend,) = broker.trends.last_hour(["q0042"], ["sent"], 240)
        assert trend.series["sent"][-1] > 0
        clock.advance(STEP)
        await broker.trends.tick()
        assert broker.trends.last_hour(["q0042"], ["sent"], 240), "it stays although it is quiet now"
        kept = broker.trends.last_hour(broker.catalog.names(), ["total"], 240)
        assert len(kept) == 5


async def test_rates_are_those_of_the_last_seconds(clock: FrozenClock) -> None:
    async with opened(3, clock) as broker:
        rates = []
        for second in range(8):
            if second == 2:
                await send(broker, "q0001", *range(10))
            clock.advance(1)
            await broker.trends.tick()
            entries = {entry.name: entry.rates["sent"] for entry in await broker.trends.stats(["q0000", "q0001"])}
            assert entries["q0000"] == 0
            rates.append(entries["q0001"])
        assert max(rates) == 3.33
        assert rates[:2] == [0, 0]
        assert rates[-1] == 0


@pytest.mark.parametrize("format", ["json", "msgpack"])
async def test_a_long_list_of_queues_is_written_in_pieces(format: codec.Format, clock: FrozenClock) -> None:
    async with opened(450, clock) as broker:
        infos = await broker.queues()
        pieces = [piece async for piece in streams.queues(infos, format).pieces]
        assert max(map(len, pieces)) < 2 * len(b"".join(pieces)) / 3
        whole = codec.encode(replies.QUEUES.write(infos, None, format, clock.now), format)
        assert decoded(b"".join(pieces), format) == decoded(whole, format)


def decoded(raw: bytes, format: codec.Format) -> Any:
    return (msgspec.json if format == "json" else msgspec.msgpack).decode(raw)
