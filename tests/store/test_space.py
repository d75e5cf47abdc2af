"""A disk that is nearly full: sends are refused in time, so that receive and ack can go on."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from msgspec import Raw

from miniq.broker import Broker
from miniq.errors import NoSpace, StoreFailed, StoreUnavailable
from miniq.message import Draft
from miniq.schedule import Definition
from miniq.store.embedded import folder
from miniq.store.embedded import log as commit_log
from miniq.store.embedded.log import CommitLog
from miniq.store.embedded.logged import LoggedKV
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import FrozenClock
from tests.kit import bodies, draft, drain, leases, send, states
from tests.store.parts import opened

OWN = "0b2c5e0e-7f0a-4d3f-9a35-7c1a4cb41d3e"


async def test_nearly_full_disk_refuses_sends_and_changes_nothing_while_the_rest_goes_on(
    url: str, folder: Path
) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await broker.configure("q", {"history": "events", "max_receives": 1})
        await send(broker, "q", *range(6))
    more = shutil.disk_usage(folder).total + 1
    async with opened(url, clock, min_free_bytes=more) as broker:
        before = await broker.queue("q")
        span = await broker.history_span()
        for drafts in ([draft("x")], [draft("y", dedup_id="d")], [draft("z", group="g"), draft("w", delay=9)]):
            with pytest.raises(NoSpace) as caught:
                await broker.send("q", drafts)
            assert str(folder) in caught.value.text
            assert str(more) in caught.value.text
        assert await broker.queue("q") == before
        assert await broker.history_span() == span
        got = await broker.receive("q", max=4)
        assert bodies(got) == [0, 1, 2, 3]
        assert await broker.ack("q", leases(got[:1])) == ["done"]
        # Used up its receives: also the way to the dead letters stays open.
        assert await broker.release("q", leases(got[1:2])) == ["done"]
        assert await states(broker, "q.dead") == (1, 0, 0)
        assert bodies(await broker.receive("q", max=1, mode="at-most-once")) == [4]
        await broker.purge("q")
        with pytest.raises(NoSpace):
            await send(broker, "q", "x")
    async with opened(url, clock) as broker:
        # Space is back, and what was refused left no trace, not even its dedup id.
        new = await send(broker, "q", "y", dedup_id="d")
        assert await broker.get("q", new[0])
        assert await drain(broker, "q") == ["y"]


async def test_nothing_else_takes_the_space_that_is_kept_for_receive_and_ack(url: str, folder: Path) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await broker.configure("q", {"max_receives": 1})
        await send(broker, "q", "dead")
        await broker.deliveries.fail("q", leases(await broker.receive("q")), "no", dead=True)
        (id,) = await send(broker, "q", "as sent")
        await broker.schedules.put("often", Definition(draft("x"), queue="q", every=60))
        await broker.configure("results", {"results": 60})
        await broker.results.put("results", OWN)
    async with opened(url, clock, min_free_bytes=shutil.disk_usage(folder).total + 1) as broker:
        with pytest.raises(NoSpace):
            await broker.results.put("results", OWN, Raw(b"1"))
        assert await broker.results.put("results", OWN, ttl=0)
        for change in ({"body": b'"other"'}, {"priority": 9}, {"headers": {"a": "b"}}):
            with pytest.raises(NoSpace):
                await broker.edit("q", id, **change)
        with pytest.raises(NoSpace):
            await broker.edit_by_id("q", id, b'"other"', "application/json")
        with pytest.raises(NoSpace):
            await broker.schedules.put("often", Definition(draft("y"), queue="q", every=60))
        with pytest.raises(NoSpace):
            await broker.topics.configure("t")
        with pytest.raises(NoSpace):
            await broker.keys.create("ops", ["*"], clock.now())
        redriven = await broker.redrive("q.dead")
        assert (redriven.moved, redriven.reasons) == (0, {"no_space": 1})
        await broker.schedules.put("often", None, paused=True)
        await broker.schedules.delete("often")
        assert bodies((await broker.peek("q")).messages) == ["as sent"]
        assert await states(broker, "q.dead") == (1, 0, 0)


async def test_published_messages_become_dead_letters_on_a_nearly_full_disk_too(url: str, folder: Path) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await broker.configure("q", {"max_receives": 1})
        await broker.topics.subscribe("t", "q")
        await broker.publish("t", [draft("rejected"), draft("expired")])
    async with opened(url, clock, min_free_bytes=shutil.disk_usage(folder).total + 1) as broker:
        rejected, _ = await broker.receive("q", max=2, visibility_timeout=1)
        (failed,) = await broker.deliveries.fail("q", leases([rejected]), "no", dead=True)
        assert failed.outcome == "dead"
        clock.advance(2)
        assert await broker.receive("q") == []
        assert bodies((await broker.peek("q.dead")).messages) == ["rejected", "expired"]


async def test_a_firing_that_finds_no_space_takes_none(url: str, folder: Path) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await broker.configure("q")
        await broker.schedules.put("often", Definition(draft("x" * 1000), queue="q", every=60))
    async with opened(url, clock, min_free_bytes=shutil.disk_usage(folder).total + 1) as broker:
        assert isinstance(broker.store, EmbeddedStore)
        written = broker.store.commits
        for _ in range(3):
            clock.advance(60)
            await broker.firings.fire_due()
        assert broker.store.commits == written
        results = (await broker.schedules.get("often")).results
        assert [result.outcome for result in results] == ["failed"] * 3
        broker.store._space.min_free = 0
        clock.advance(60)
        await broker.firings.fire_due()
        assert await drain(broker, "q") == ["x" * 1000]


async def test_sends_work_again_by_themselves_once_there_is_space(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The real limit on a real disk: what is free now is what we ask to be kept.
    async with opened(url) as broker:
        store = broker.store
        assert isinstance(store, EmbeddedStore)
        store._space.min_free = 2**62
        for _ in range(3):
            with pytest.raises(NoSpace):
                await send(broker, "q", "refused")
        store._space.min_free = 0
        await send(broker, "q", "taken")
        assert await drain(broker, "q") == ["taken"]


async def test_disk_is_looked_at_again_after_a_megabyte(url: str) -> None:
    async with opened(url) as broker:
        store = broker.store
        assert isinstance(store, EmbeddedStore)
        await send(broker, "q", "first")
        store._space.min_free = 2**62
        sent = 0

        async def send_on() -> None:
            nonlocal sent
            while sent < 4 * folder.CHECK_BYTES:
                await broker.send("q", [draft("x" * 100_000)])
                sent += 100_000

        with pytest.raises(NoSpace):
            await send_on()
        assert 0 < sent <= folder.CHECK_BYTES


async def test_a_send_that_finds_the_folder_removed_fails_the_store_for_good(url: str, folder: Path) -> None:
    async with opened(url, FrozenClock()) as broker:
        await broker.configure("q")
        shutil.rmtree(folder)
        with pytest.raises(StoreFailed, match="was removed"):
            await broker.send("q", [draft("x" * 2000)] * 1000)
        with pytest.raises(StoreFailed, match="was removed"):
            await broker.receive("q")


async def test_a_disk_that_cannot_be_asked_for_its_space_is_unreachable(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with opened(url, FrozenClock()) as broker:
        await broker.configure("q")
        with monkeypatch.context() as patch:
            patch.setattr(os, "statvfs", fail)
            with pytest.raises(StoreUnavailable, match="is unreachable: Input/output error"):
                await broker.send("q", [draft("x" * 2000)] * 1000)
        await send(broker, "q", "taken")


def refuse_segments(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fill(self: CommitLog, size: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(CommitLog, "_fill", fill)
    monkeypatch.setattr(commit_log, "RETRY", 0.0)


async def fill_half_a_segment(broker: Broker, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Until the next segment was to be made, and could not."""
    refuse_segments(monkeypatch, number)
    await broker.send("q", [Draft(b"x" * 2000, "text/plain") for _ in range(80)])
    kv = cast(LoggedKV, cast(EmbeddedStore, broker.store)._kv)
    await asyncio.to_thread(kv._log._spare.join)  # type: ignore[union-attr]


async def test_a_disk_without_room_for_the_next_segment_of_the_log_refuses_sends_until_there_is(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as broker:
        with monkeypatch.context() as full:
            await fill_half_a_segment(broker, full, errno.ENOSPC)
            for size in (1, 2000, 20_000, 1_000_000):
                with pytest.raises(NoSpace, match="too few for the commit log"):
                    await broker.send("q", [Draft(b"x" * size, "text/plain")])
            got = await broker.receive("q", max=3)
            assert await broker.ack("q", leases(got)) == ["done"] * 3
        with pytest.raises(NoSpace):  # which tries the next segment again
            await send(broker, "q", "x")
        for _ in range(1000):
            with suppress(NoSpace):
                await send(broker, "q", "room again")
                break
            await asyncio.sleep(0.01)
        assert (await broker.queue("q")).counts.total == 78
    async with opened(url) as broker:
        assert (await broker.queue("q")).counts.total == 78


async def test_an_error_of_the_disk_while_a_segment_is_made_is_final(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(url) as broker:
        with monkeypatch.context() as broken:
            await fill_half_a_segment(broker, broken, errno.EIO)
            with pytest.raises(StoreFailed, match="Input/output error"):
                await send(broker, "q", "x")
            with pytest.raises(StoreFailed):
                await broker.receive("q")
    async with opened(url) as broker:
        assert (await broker.queue("q")).counts.total == 80


async def test_a_full_disk_does_not_keep_a_store_from_being_closed(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as full:
        async with opened(url) as broker:
            await send(broker, "q", "x")
            refuse_segments(full, errno.ENOSPC)
    async with opened(url) as broker:
        assert (await broker.queue("q")).counts.total == 1
