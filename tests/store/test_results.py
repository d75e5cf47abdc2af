"""Results in a folder: nothing is left of them when their time is over, and none is missed while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from miniq.broker import Broker
from miniq.options import Options
from miniq.store.embedded import keys
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import FrozenClock
from tests.kit import ids, leases, send


@pytest.fixture
async def broker(tmp_path: Path, clock: FrozenClock) -> AsyncIterator[Broker]:
    store = EmbeddedStore("rocksdb", str(tmp_path / "data"))
    async with Broker(store, Options(upkeep_interval=0), clock) as opened:
        await opened.configure("q", {"results": 10})
        yield opened


def records(broker: Broker) -> list[bytes]:
    """The keys of results, and of their ends."""
    store = broker.store
    assert isinstance(store, EmbeddedStore)
    return [key for kind in (b"f", b"y") for key, _ in store._kv.scan(kind, keys.after(kind))]


async def finish(broker: Broker, count: int) -> None:
    await send(broker, "q", *range(count))
    await broker.ack("q", leases(await broker.receive("q", max=count)))


@pytest.mark.parametrize("how", ["time", "queue"])
async def test_nothing_is_left_of_results(broker: Broker, clock: FrozenClock, how: str) -> None:
    await finish(broker, 50)
    assert len(records(broker)) == 100
    if how == "time":
        clock.advance(10)
    else:
        await broker.delete_queue("q")
    await broker.upkeep()
    assert records(broker) == []


async def test_upkeep_removes_a_bounded_number_and_goes_on(broker: Broker, clock: FrozenClock) -> None:
    await finish(broker, 50)
    clock.advance(5)
    await finish(broker, 50)
    clock.advance(5)
    left = []
    for _ in range(4):
        await broker.store.tidy(clock.now(), 20)
        left.append(len(records(broker)) // 2)
    assert left == [80, 60, 50, 50]
    clock.advance(5)
    await broker.store.tidy(clock.now(), 1000)
    assert records(broker) == []


async def test_a_result_is_not_missed_while_it_is_written(broker: Broker) -> None:
    await send(broker, "q", *range(60))
    got = await broker.receive("q", max=60)
    for place in range(0, 60, 3):
        some = got[place : place + 3]
        acks = [asyncio.create_task(broker.ack("q", leases([stored]))) for stored in some]
        await asyncio.sleep(0)
        found = await asyncio.gather(*[broker.results.get("q", id) for id in ids(some)])
        assert {progress.status for progress in found} <= {"running", "done"}
        await asyncio.gather(*acks)
