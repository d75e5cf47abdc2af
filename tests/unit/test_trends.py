"""One pass over all queues serves everybody who asks at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from miniq.broker import Broker
from miniq.options import Options
from miniq.store import open_store
from tests.kit import send


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(open_store("memory:"), Options(upkeep_interval=0)) as broker:
        yield broker


async def test_streams_share_a_pass_over_the_queues(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(broker, "q", 1)
    counted: list[str] = []
    counts = broker.store.messages.counts
    monkeypatch.setattr(broker.store.messages, "counts", lambda queue, now: counted.append(queue) or counts(queue, now))
    snapshots = await asyncio.gather(*(broker.trends.current(1) for _ in range(50)))
    assert all(snapshot is snapshots[0] for snapshot in snapshots)
    assert sorted(counted) == ["default", "q"]
    assert await broker.trends.current(60) is snapshots[0]


async def test_a_call_sees_what_was_done_before_it(broker: Broker) -> None:
    for number in range(1, 4):
        await send(broker, "q", number)
        running = asyncio.create_task(broker.trends.current())
        await asyncio.sleep(0)
        await send(broker, "q2", number)  # while a pass runs that may have counted already
        assert (await broker.trends.current())["q2"].counts.total == number
        await running


async def test_numbers_that_have_not_changed_are_the_same_object(broker: Broker) -> None:
    await send(broker, "q", 1)
    before = await broker.trends.current()
    await send(broker, "q", 2)
    after = await broker.trends.current()
    assert after["q"] is not before["q"]
    assert after["default"] is before["default"]


async def test_a_caller_that_leaves_ends_no_pass(broker: Broker) -> None:
    leaving = asyncio.create_task(broker.trends.current())
    staying = asyncio.create_task(broker.trends.current())
    await asyncio.sleep(0)
    leaving.cancel()
    assert "default" in await staying
