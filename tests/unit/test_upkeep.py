"""Upkeep passes run while something happens, and pause while nothing does."""

from __future__ import annotations

import asyncio

import pytest

from miniq.broker import Broker
from miniq.broker.upkeep import Upkeep
from miniq.message import Draft
from miniq.options import Options
from miniq.store import open_store
from tests.clock import FrozenClock


async def test_an_idle_broker_makes_few_passes_until_something_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = 0
    run_once = Upkeep.run_once

    async def counted(self: Upkeep) -> None:
        nonlocal passes
        passes += 1
        await run_once(self)

    monkeypatch.setattr(Upkeep, "run_once", counted)
    monkeypatch.setattr("miniq.broker.upkeep.IDLE", 1_000_000)
    async with asyncio.timeout(30), Broker(open_store("memory:"), Options(upkeep_interval=0.001)) as broker:
        await broker.configure("q")
        before = -1
        while passes != before:  # until it is idle
            before = passes
            await asyncio.sleep(0.05)
        (id,) = await broker.send("q", [Draft(b"1", ttl=0.2)])
        while passes == before:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        # It expires while nothing else happens.
        while id in await broker.store.messages.find("q", [id]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert passes < before + 50


async def test_an_idle_broker_still_makes_a_pass_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniq.broker.upkeep.IDLE", 3)
    passes = asyncio.Semaphore(0)
    monkeypatch.setattr(Upkeep, "run_once", lambda self: asyncio.sleep(0, passes.release()))
    async with asyncio.timeout(30), Broker(open_store("memory:"), Options(upkeep_interval=0.001)) as broker:
        broker.sweeper._next_due = 2**62
        for _ in range(5):
            await passes.acquire()


async def test_an_idle_broker_looks_more_often_for_what_others_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniq.broker.upkeep.IDLE", 1_000_000)
    passes = asyncio.Semaphore(0)
    monkeypatch.setattr(Upkeep, "run_once", lambda self: asyncio.sleep(0, passes.release()))
    store = open_store("memory:")
    monkeypatch.setattr(store, "shared", True)
    async with asyncio.timeout(30), Broker(store, Options(upkeep_interval=0.001)) as broker:
        broker.sweeper._next_due = 2**62
        for _ in range(5):
            await passes.acquire()


async def test_messages_that_upkeep_drops_are_counted_as_expired() -> None:
    clock = FrozenClock()
    async with Broker(open_store("memory:"), Options(upkeep_interval=0), clock) as broker:
        await broker.send("q", [Draft(b"1", ttl=1), Draft(b"2", ttl=1), Draft(b"3")])
        clock.advance(2)
        await broker.upkeep()
        assert broker.metrics.messages["q", "expired"] == 2
        assert (await broker.queue("q")).counts.total == 1
