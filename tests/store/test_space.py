"""A disk that is nearly full: sends are refused in time, so that receive and ack can go on."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest

from miniq.errors import NoSpace, StoreFailed, StoreUnavailable
from miniq.store.embedded import folder
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import FrozenClock
from tests.kit import bodies, draft, drain, leases, send, states
from tests.store.parts import opened


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
        assert await broker.redrive("q.dead")
        await broker.edit("q", (await broker.peek("q", status="ready")).messages[0].message.id, body=b'"edited"')
        assert bodies(await broker.receive("q", max=2, mode="at-most-once")) == [1, "edited"]
        await broker.purge("q")
        with pytest.raises(NoSpace):
            await send(broker, "q", "x")
    async with opened(url, clock) as broker:
        # Space is back, and what was refused left no trace, not even its dedup id.
        new = await send(broker, "q", "y", dedup_id="d")
        assert await broker.get("q", new[0])
        assert await drain(broker, "q") == ["y"]


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


async def test_a_folder_that_was_removed_under_a_broker_is_told_to_those_who_send(url: str, folder: Path) -> None:
    told = ""
    with contextlib.suppress(StoreFailed):  # closing it can no longer work
        async with opened(url, FrozenClock()) as broker:
            await broker.configure("q")
            shutil.rmtree(folder)
            try:
                await broker.send("q", [draft("x" * 2000)] * 1000)
            except StoreUnavailable as error:
                told = error.text
    assert "is unreachable" in told
