"""An engine that lags behind the commit log."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from miniq.errors import StoreFailed
from miniq.message import Draft
from miniq.store.embedded import engine as engines
from miniq.store.embedded import logged
from miniq.store.embedded.kv import Op
from miniq.store.embedded.logged import LoggedKV
from miniq.store.embedded.store import EmbeddedStore
from tests.kit import bodies, drain, send
from tests.store.parts import copy_as_after_kill, opened


class Stall:
    """Makes the engine wait with every change, while it is closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
        self.open = threading.Event()
        self.open.set()
        self.failing: Exception | None = None
        kind: Any = engines.RocksEngine if engine == "rocksdb" else engines.LevelEngine
        real = kind.apply

        def apply(engine: Any, ops: Sequence[Op], number: int, wait: bool = True) -> bool:
            if self.failing is not None:
                raise self.failing
            if not self.open.is_set():
                if not wait:
                    return False
                assert self.open.wait(30)
            return bool(real(engine, ops, number, wait))

        monkeypatch.setattr(kind, "apply", apply)


@pytest.fixture
def stall(monkeypatch: pytest.MonkeyPatch, engine: str) -> Iterator[Stall]:
    stall = Stall(monkeypatch, engine)
    yield stall
    stall.open.set()


async def test_sends_are_confirmed_while_the_engine_is_stalled_and_a_kill_loses_none(
    url: str, engine: str, folder: Path, stall: Stall
) -> None:
    killed = folder.with_name("killed")
    async with opened(url) as broker:
        await send(broker, "q", "before")
        stall.open.clear()
        for number in range(20):
            await send(broker, "q", number)
        await asyncio.gather(*[send(broker, "q", number) for number in range(20, 40)])
        copy_as_after_kill(folder, killed)
        stall.open.set()
        assert sorted(map(str, await drain(broker, "q"))) == sorted(map(str, ["before", *range(40)]))
    async with opened(f"{engine}:{killed}") as broker:
        assert sorted(map(str, await drain(broker, "q"))) == sorted(map(str, ["before", *range(40)]))


async def test_a_read_finds_what_was_confirmed(url: str, stall: Stall) -> None:
    async with opened(url) as broker:
        await send(broker, "q", "before")
        stall.open.clear()
        ids = await send(broker, "q", "late", delay=60)
        threading.Timer(0.2, stall.open.set).start()
        assert (await broker.get("q", ids[0])).message.id == ids[0]
        assert len((await broker.peek("q", limit=10)).messages) == 2


async def test_a_backup_of_an_engine_that_lags_has_all_that_was_confirmed(
    url: str, engine: str, tmp_path: Path, stall: Stall
) -> None:
    async with opened(url) as broker:
        stall.open.clear()
        await send(broker, "q", *range(10))
        threading.Timer(0.2, stall.open.set).start()
        await broker.backup(str(tmp_path / "backup"))
    from miniq.store.embedded.backup import restore

    async with opened(restore(str(tmp_path / "backup"), str(tmp_path / "restored"))) as broker:
        assert bodies(await broker.receive("q", max=100)) == list(range(10))


async def test_senders_wait_when_more_than_the_limit_is_pending(
    url: str, stall: Stall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logged, "PENDING", 100_000)
    async with opened(url) as broker:
        await send(broker, "q", "before")
        kv = cast(LoggedKV, cast(EmbeddedStore, broker.store)._kv)
        stall.open.clear()
        pending = []

        def release() -> None:
            pending.append(kv._logged - kv._applied_bytes)
            stall.open.set()

        timer = threading.Timer(1.0, release)
        timer.start()
        for _ in range(100):
            await broker.send("q", [Draft(b"x" * 10_000, "text/plain")])
        timer.join()
        assert 100_000 < pending[0] < 130_000
        assert (await broker.queue("q")).counts.total == 101


async def test_an_engine_that_fails_after_the_confirmation_ends_everything(url: str, stall: Stall, engine: str) -> None:
    async with opened(url) as broker:
        await send(broker, "q", "kept")
        await asyncio.sleep(0)
        stall.failing = StoreFailed("store: Input/output error", field="store")
        await send(broker, "q", "confirmed")
        await asyncio.sleep(0)
        with pytest.raises(StoreFailed):
            await send(broker, "q", "refused")
        stall.failing = None
    async with opened(url) as broker:
        assert bodies(await broker.receive("q", max=10)) == ["kept", "confirmed"]


async def test_no_segment_is_removed_if_leveldb_could_not_write_its_memory_table(tmp_path: Path) -> None:
    """Its call does not say whether it failed."""
    pytest.importorskip("plyvel")
    folder = tmp_path / "queue"
    blocked: list[Path] = []
    with suppress(StoreFailed):  # as does closing it
        async with opened(f"leveldb:{folder}") as broker:
            await send(broker, "q", *range(100))
            kv = cast(LoggedKV, cast(EmbeddedStore, broker.store)._kv)
            blocked = [folder / "data" / f"{number:06d}.ldb" for number in range(100)]
            blocked = [path for path in blocked if not path.exists()]
            for path in blocked:
                path.mkdir()
            with pytest.raises(StoreFailed):
                kv._flush()
            copy_as_after_kill(folder, tmp_path / "killed")
    for path in blocked:
        (tmp_path / "killed" / "data" / path.name).rmdir()
    async with opened(f"leveldb:{tmp_path / 'killed'}") as broker:
        assert (await broker.queue("q")).counts.total == 100
