"""What the tests of the embedded store share: opening it, copying it as a crash leaves it, a seam for faults."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from miniq.broker import Broker
from miniq.errors import StoreFailed
from miniq.message import QueueSettings
from miniq.options import Options
from miniq.store import open_store
from miniq.store.embedded import store as embedded
from miniq.store.embedded.folder import Folder
from miniq.store.embedded.kv import DiskKV, Op, Room, Seek
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import FrozenClock


@asynccontextmanager
async def opened(url: str, clock: FrozenClock | None = None, **options: Any) -> AsyncIterator[Broker]:
    """A broker on a folder, closed at the end; its upkeep is called by hand."""
    chosen = Options(upkeep_interval=0, **options)
    async with Broker(open_store(url, chosen), chosen, clock or FrozenClock()) as broker:
        yield broker


@asynccontextmanager
async def store_in(url: str, *queues: str) -> AsyncIterator[EmbeddedStore]:
    """The bare store, with some queues."""
    engine, _, path = url.partition(":")
    store = EmbeddedStore(engine, path)
    await store.open()
    try:
        for queue in queues:
            await store.save_queue(queue, QueueSettings())
        yield store
    finally:
        with suppress(StoreFailed):
            await store.close()


def copy_as_after_kill(folder: Path, to: Path) -> None:
    """What `kill -9` leaves is what the operating system has: the files as they are now."""
    for _ in range(20):
        # A file that is compacted away while it is copied: copy again.
        with suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(folder, to)
            return
        shutil.rmtree(to, ignore_errors=True)
    raise AssertionError("the folder does not hold still")


def in_company(store: EmbeddedStore) -> None:
    """Let the next write go to the thread, as where many write, and not be made at once by a caller who is alone."""
    assert store._commit is not None
    store._commit._alone = False


class FaultyKV:
    """A real database with a switch in front of `write`: it can fail, and it can be held."""

    def __init__(self, kv: DiskKV) -> None:
        self.kv = kv
        self.fail_after: int | None = None
        """So many writes still succeed, then all fail."""
        self.tear = False
        """Whether the write that fails gets onto disk all the same: nobody can tell after an fsync error."""
        self.reads = 0
        """Records that were read, one by one or in a scan."""
        self.hold_after_write: Callable[[], None] = lambda: None
        """Called in the writing thread between the write and its confirmation."""
        self.hold_before_write: Callable[[], None] = lambda: None

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return self.kv.get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for pair in self.kv.scan(start, end):
            self.reads += 1
            yield pair

    def seeking(self, end: bytes) -> AbstractContextManager[Seek]:
        return self.kv.seeking(end)

    def last(self, start: bytes, end: bytes) -> bytes | None:
        self.reads += 1
        return self.kv.last(start, end)

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        self.hold_before_write()
        if self.fail_after is not None:
            if self.fail_after == 0:
                if self.tear:
                    self.kv.write(ops, sync)
                raise StoreFailed("store: Input/output error", field="store")
            self.fail_after -= 1
        self.kv.write(ops, sync)
        self.hold_after_write()

    def catch_up(self) -> None:
        self.kv.catch_up()

    @property
    def room(self) -> Room:
        return self.kv.room

    def checkpoint(self, path: str) -> None:
        self.kv.checkpoint(path)

    def halt(self) -> None:
        self.kv.halt()

    def close(self) -> None:
        self.kv.close()


def seam(monkeypatch: pytest.MonkeyPatch) -> list[FaultyKV]:
    """Let every store opened from now on go through a `FaultyKV`; the list holds them, the newest last."""
    made: list[FaultyKV] = []
    real = embedded.open_kv

    def open_faulty(folder: Folder, durable: bool) -> FaultyKV:
        made.append(FaultyKV(real(folder, durable)))
        return made[-1]

    monkeypatch.setattr(embedded, "open_kv", open_faulty)
    return made
