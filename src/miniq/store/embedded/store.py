"""The embedded store: ordered keys in RocksDB, in LevelDB or in memory, for one process.

The backlog is on disk; memory holds leased and delayed messages and a window of the next ones. A change is made in
memory at once and staged for the next group commit; the call returns when that is written. Batches are written in
order, so a change is confirmed only after everything it depends on. A failed write is final, so changes in memory are
never rolled back.

The parts of the contract are in `messages.py`, `claims.py`, `stages.py`, `results.py` and `history.py`; they share
`core.py`. `keys.py` describes the records, `blocks.py` the data in memory, `window.py` reads the backlog, `ledger.py`
and `states.py` stage changes, `commit.py` is the group commit, `folder.py` the folder with its lock and format.
`verify.py` checks the files before the engine in `kv.py` opens them.
"""

from __future__ import annotations

import gc
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from functools import partial

from miniq.errors import Closed, StoreFailed
from miniq.message import QueueSettings
from miniq.store import events, transfer
from miniq.store.arguments import Change, RecordChange, RecordSet
from miniq.store.contract import SingleProcessStore
from miniq.store.embedded import backup, copying, forks, keys
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.check import check_counts
from miniq.store.embedded.claims import Claims
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.core import CheckSpace, Core, numbers_with
from miniq.store.embedded.engine import require_driver
from miniq.store.embedded.folder import Folder, Space, restored_as
from miniq.store.embedded.history import HistoryLog
from miniq.store.embedded.kv import KV, DiskKV
from miniq.store.embedded.logged import open_kv
from miniq.store.embedded.messages import Messages
from miniq.store.embedded.results import Results
from miniq.store.embedded.stages import Stages
from miniq.store.names import STORE, STORE_ID
from miniq.store.transfer import Item, portions, with_history


class KeyValueStore(SingleProcessStore, ABC):
    """The contract over ordered keys; see `Store`. Its parts exist once it is open."""

    messages: Messages
    claims: Claims
    stages: Stages
    results: Results
    history: HistoryLog

    def __init__(self) -> None:
        super().__init__()
        self._kv: KV
        self._commit: GroupCommit
        self._core: Core

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def backup(self, path: str) -> None: ...

    async def _start(self, kv: KV, commit: GroupCommit, check_space: CheckSpace) -> None:
        """Read what is in memory of an open database; closes the store if that fails."""
        self._kv, self._commit = kv, commit
        collects = gc.isenabled()
        gc.disable()  # of many queues there are millions of new objects, and no garbage
        try:
            self._core = core = Core(kv, commit, check_space, self.on_ready, self.on_lease_expired)
            check_counts(kv, core.shelves.values())
            self.history = core.history
            self.claims = Claims(core)
            self.stages = Stages(core)
            self.results = core.results
            self.messages = Messages(core, self.claims)
            with_states = numbers_with(kv, b"s") | numbers_with(kv, b"x")
            with_readers, with_stages = numbers_with(kv, b"p"), numbers_with(kv, b"e")
            for shelf in core.shelves.values():
                if shelf.number in with_states:
                    core.states.load(shelf)
                if shelf.serial in with_readers:
                    self.claims.load(shelf)
                if shelf.serial in with_stages:
                    self.stages.load(shelf)
        except BaseException:
            await self.close()
            raise
        finally:
            if collects:
                gc.enable()

    async def close(self) -> None:
        try:
            if hasattr(self, "_commit"):
                await self._commit.close()
        finally:
            if hasattr(self, "_kv"):
                self._kv.close()
                del self._kv

    def failure(self) -> Exception | None:
        failed = self._commit.failed
        return failed if isinstance(failed, StoreFailed) else None

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        self._commit.check()
        return {name: shelf.settings for name, shelf in self._core.shelves.items()}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        self._commit.check()
        shelf = self._core.shelves.get(name)
        if shelf is None:
            number = self._core.garbage.next_number()
            shelf = self._core.shelves[name] = Shelf(name, number, number, settings)
        shelf.settings = settings
        self._core.save(shelf)
        await self._commit.commit(sync=True)

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        self._commit.check()
        shelf = self._core.shelves.get(name)
        if (None if shelf is None else shelf.settings) != was:
            return False
        await self.save_queue(name, settings)
        return True

    async def delete_queue(self, name: str, change: Change, records: RecordSet | None = None) -> bool:
        self._commit.check()
        shelf = self._core.shelves.pop(name, None)
        if shelf is None:
            return False
        if records is not None:
            self._core.records.stage_all(records)
        self._commit.batch.ops.append((keys.queue_key(name), None))
        self._core.discard(shelf, shelf.number)
        if shelf.serial != shelf.number:
            self._core.discard(shelf, shelf.serial)
        if change.keep != "off" and shelf.count:
            event = events.purged(name, shelf.count, shelf.size, change.now, "deleted")
            self._commit.batch.events.append(keys.EventRun(event))
        await self._commit.commit(sync=True)
        return True

    async def records(self, kind: str) -> dict[str, bytes]:
        return await self._core.records.all(kind)

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        self._commit.check()
        self._core.records.stage(kind, name, value)
        await self._commit.commit(sync=True)

    async def save_records(self, records: RecordSet) -> None:
        self._commit.check()
        self._core.records.stage_all(records)
        await self._commit.commit(sync=True)

    async def add_record(self, kind: str, name: str, value: bytes) -> bytes:
        self._commit.check()
        standing = self._core.records.find(kind, name)
        if standing is None:
            await self.save_record(kind, name, value)
            return value
        await self._commit.settle()
        return standing

    async def change_record(self, change: RecordChange) -> bool:
        self._commit.check()
        if self._core.records.find(change.kind, change.name) != change.was:
            await self._commit.settle()
            return False
        await self.save_record(change.kind, change.name, change.value)
        return True

    async def last_id(self) -> str:
        return self._core.ledger.last_id

    # Upkeep

    async def tidy(self, now: int, limit: int) -> int:
        self._commit.check()
        core, ops = self._core, self._commit.batch.ops
        before = len(ops)
        if core.garbage.numbers:
            core.garbage.sweep(core.shelves.values(), limit)
        core.dedup.tidy(core.shelves, now, limit)
        self.claims.tidy(now, limit)
        self.stages.tidy(now, limit)
        self.results.tidy(now, limit)
        removed = len(ops) - before
        await self._commit.settle()
        return removed

    # Copying

    async def dump(self) -> AsyncIterator[list[Item]]:
        self._commit.check()
        await self._commit.settle()
        async for portion in portions(with_history(copying.dump(self._core), self.history)):
            yield portion

    async def load(self, items: Sequence[Item], now: int) -> None:
        self._commit.check()
        await transfer.load_settings(self, items)
        for item in items:
            if isinstance(item, transfer.Readers):
                self.claims.restore(self._core.shelves[item.queue], item)
        copying.load(items, self._core, now)
        await self._commit.commit(sync=True)


class EmbeddedStore(KeyValueStore):
    """A store in RocksDB or LevelDB: one folder, one process."""

    _kv: DiskKV

    def __init__(self, engine: str, path: str, *, durable: bool = True, min_free_bytes: int = 0) -> None:
        super().__init__()
        self._folder = Folder(path, engine)
        self._durable = durable
        self._space = Space(self._folder, min_free_bytes, self.failure)

    async def open(self) -> None:
        engine = self._folder.engine
        require_driver(engine)  # before the folder is created
        forks.check(self._folder.path)
        self._folder.open()
        try:
            kv = open_kv(self._folder, self._durable)
            self._space.room = kv.room
        except BaseException:
            self._folder.close()
            raise
        await self._start(
            kv, GroupCommit(kv.write, self._durable, kv.catch_up, self._folder.replaced), self._space.check
        )
        try:
            self._folder.watch()
            await self._renew()
            forks.watch(self)
        except BaseException:
            await self.close()
            raise

    async def _renew(self) -> None:
        """Give a restored store an id of its own, once: the id of the original, and what the restore added."""
        restored = restored_as(self._folder.path)
        id = (await self.records(STORE)).get(STORE_ID)
        if restored is not None and id is not None and not id.endswith(f".{restored}".encode()):
            await self.save_record(STORE, STORE_ID, id.partition(b".")[0] + f".{restored}".encode())

    async def close(self) -> None:
        is_working = hasattr(self, "_commit") and self._commit.failed is None
        replaced = self._check_folder()
        if replaced is not None:
            self._leave_engine()  # to close it writes and deletes files by their path, which may lead to another store
        try:
            await super().close()
        finally:
            self._folder.close()
        if replaced is not None and is_working:
            raise replaced

    def failure(self) -> Exception | None:
        self._check_folder()
        return super().failure()

    def check_space(self, size: int, count: int) -> None:
        self._space.check(size, count)

    def _check_folder(self) -> StoreFailed | None:
        """Fail for good if the folder is no longer the one that was opened."""
        replaced = self._folder.replaced()
        if replaced is not None:
            self._commit.fail(replaced)
            if hasattr(self, "_kv"):
                self._kv.halt()
        return replaced

    @property
    def commits(self) -> tuple[int, int]:
        """The number of batches written, and of those with an fsync."""
        return self._commit.writes, self._commit.syncs

    def abandon(self, refusal: Closed) -> None:
        """See `forks.py`."""
        self._leave_engine()
        self._commit.abandon(refusal)
        self._folder.abandon()

    def _leave_engine(self) -> None:
        """Forget the engine without closing it."""
        if hasattr(self, "_kv"):
            forks.keep_alive(self._kv)
            del self._kv

    async def backup(self, path: str) -> None:
        self._commit.check()
        backup.check_target(path)
        await self._commit.settle()
        await self._commit.beside(partial(backup.write_backup, path, self._folder, self._kv.checkpoint))
