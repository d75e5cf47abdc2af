"""The embedded store: ordered keys over RocksDB or LevelDB, for one process.

The backlog lives on disk; memory holds what is leased or delayed and a window of what is next. A change is
made in memory at once and staged for the next group commit; the caller goes on when that is written.
Because batches are written in order, nobody is told of a change before everything it rests on is written.
A write that fails is final, so memory never has to be taken back.

`keys.py` is the legend of the keys, `blocks.py` what is in memory, `window.py` how the backlog is read,
`messages.py` the calls about messages, `ledger.py` and `states.py` how their changes are staged, `claims.py` what
readers claim, `stages.py` what is uploaded to be committed, `commit.py` the group commit, `folder.py` the folder with
its lock and format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from miniq.errors import StoreFailed
from miniq.message import (
    Claim,
    ClaimGroup,
    Committed,
    History,
    HistoryPage,
    HistorySpan,
    Message,
    Portion,
    QueueSettings,
    Stage,
    StageName,
)
from miniq.store import events, transfer
from miniq.store.contract import (
    ByName,
    Claimed,
    Fit,
    Reserve,
    Room,
)
from miniq.store.embedded import copying, keys, recovery
from miniq.store.embedded.blocks import Emptied, Shelf
from miniq.store.embedded.claims import Claims
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.dedup import DedupRecords
from miniq.store.embedded.folder import Folder, Space, begin_backup, end_backup
from miniq.store.embedded.history import HistoryLog
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.kv import open_kv
from miniq.store.embedded.ledger import Ledger
from miniq.store.embedded.messages import EmbeddedMessages
from miniq.store.embedded.reclaim import Garbage
from miniq.store.embedded.stages import Stages
from miniq.store.embedded.states import States
from miniq.store.embedded.window import Window, sizes_of
from miniq.store.transfer import Item, one_by_one, portions

GROUPS_IN_MEMORY = 10_000


class EmbeddedStore(EmbeddedMessages):
    """One folder, one process; see `Store` for what each method promises."""

    def __init__(self, engine: str, path: str, *, durable: bool = True, min_free_bytes: int = 0) -> None:
        super().__init__()
        self._folder = Folder(path, engine)
        self._durable = durable
        # LevelDB does not sync the log it leaves behind, so a later fsync would not cover an unsynced lease.
        self._sync_takes = engine == "leveldb"
        self._space = Space(self._folder, min_free_bytes)
        self._shelves: ByName[Shelf] = ByName()
        self._log: HistoryLog
        self._garbage: Garbage
        self._claims: Claims
        self._stages: Stages

    async def open(self) -> None:
        self._folder.open()
        try:
            self._kv = kv = open_kv(self._folder.engine, self._folder.data)
        except BaseException:
            self._folder.close()
            raise
        try:
            self._shelves = recovery.load_shelves(kv)
            self._window = Window(kv)
            self._log = HistoryLog(kv)
            self._commit = GroupCommit(kv.write, self._durable)
            self._garbage = Garbage(kv, self._commit, self._shelves.values())
            self._dedup = DedupRecords(kv, self._commit)
            self._states = States(self._window, self._commit, recovery.newest_version(kv))
            self._ledger = Ledger(kv, self._window, self._log, self._commit, self._states, self.on_ready)
            self._ledger.last_id = (kv.get(keys.LAST_ID) or b"").decode()
            self._claims = Claims(kv, self._window, self._ledger, self._states, self._commit, self.on_ready)
            self._stages = Stages(kv, self._ledger, self._commit, self._dedup)
            for shelf in self._shelves.values():
                recovery.load_states(kv, shelf, self._states)
                self._claims.load(shelf)
                self._stages.load(shelf)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        try:
            if hasattr(self, "_commit"):
                await self._commit.close()
        finally:
            if hasattr(self, "_kv"):
                self._kv.close()
                del self._kv
            self._folder.close()

    def failure(self) -> Exception | None:
        failed = self._commit.failed
        return failed if isinstance(failed, StoreFailed) else None

    @property
    def commits(self) -> tuple[int, int]:
        """How many batches were written, and how many of them with an fsync."""
        return self._commit.writes, self._commit.syncs

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        self._committer()
        return {name: shelf.settings for name, shelf in self._shelves.items()}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        shelf = self._shelves.get(name)
        if shelf is None:
            number = self._garbage.next_number()
            shelf = self._shelves[name] = Shelf(name, number, number, settings)
        shelf.settings = settings
        self._save(shelf)
        await self._committer().commit(sync=True)

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        shelf = self._shelves.get(name)
        if (None if shelf is None else shelf.settings) != was:
            return False
        await self.save_queue(name, settings)
        return True

    async def delete_queue(self, name: str) -> bool:
        shelf = self._shelves.pop(name, None)
        if shelf is None:
            return False
        ops = self._committer().batch.ops
        ops.append((keys.queue_key(name), None))
        self._discard(shelf, shelf.number)
        if shelf.serial != shelf.number:
            self._discard(shelf, shelf.serial)
        await self._committer().commit(sync=True)
        return True

    async def records(self, kind: str) -> dict[str, bytes]:
        prefix = keys.record_prefix(kind)
        return {key[len(prefix) :].decode(): value for key, value in self._kv.scan(prefix, keys.after(prefix))}

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        commit = self._committer()
        commit.batch.ops.append((keys.record_prefix(kind) + name.encode(), value))
        await commit.commit(sync=True)

    async def last_id(self) -> str:
        return self._ledger.last_id

    async def clear(self, queue: str, *, now: int, keep: History) -> int:
        commit, old = self._commit, self._shelf(queue)
        if not old.count and not old.readers:
            return 0
        fresh = Shelf(queue, self._garbage.next_number(), old.serial, old.settings)
        fresh.dedup = old.dedup
        fresh.stages = old.stages
        self._shelves[queue] = fresh
        self._discard(old, old.number)
        self._save(fresh)
        self._claims.carry_over(old, fresh)
        if keep != "off" and old.count:
            commit.batch.events.append(EventRun(events.purged(queue, old.count, old.size, now)))
        await commit.commit(sync=True)
        return old.count

    # Claims

    async def open_claims(self, queue: str, group: str) -> ClaimGroup:
        return await self._claims.open(self._shelf(queue), group)

    async def claim(
        self,
        queue: str,
        group: str,
        *,
        after: int,
        epoch: int | None,
        limit: int,
        max_bytes: int,
        fit: Fit,
        consumer: str | None,
        now: int,
        keep_until: int,
        keep: History,
    ) -> Claimed:
        while True:
            try:
                return await self._claims.claim(
                    self._shelf(queue), group, after, epoch, limit, max_bytes, fit, consumer, now, keep_until, keep
                )
            except Emptied:
                continue

    async def find_claim(self, queue: str, group: str, number: int, *, now: int) -> Claim:
        return self._claims.find(self._shelf(queue), group, number, now)

    async def claimed(
        self, queue: str, group: str, number: int, *, start: int, stop: int, max_bytes: int, now: int
    ) -> list[Portion]:
        return self._claims.read(self._shelf(queue), group, number, start, stop, max_bytes, now)

    async def release_claims(self, queue: str, group: str, *, epoch: int | None, now: int, keep: History) -> int:
        while True:
            try:
                return await self._claims.release(self._shelf(queue), group, epoch, now, keep)
            except Emptied:
                continue

    async def claim_groups(self, queue: str, *, now: int) -> list[ClaimGroup]:
        return self._claims.groups(self._shelf(queue), now)

    # Stages

    async def stage(
        self, queue: str, name: StageName, part: int, messages: Sequence[Message], *, now: int, until: int
    ) -> tuple[int, int]:
        shelf = self._shelf(queue)
        self._space.check(sum(sizes_of(messages)), len(messages))
        return await self._stages.stage(shelf, name, part, messages, now, until)

    async def commit_stages(
        self,
        queue: str,
        job: str,
        batch: str,
        stages: Sequence[tuple[str, str]],
        *,
        now: int,
        until: int,
        reserve: Reserve,
        dedup_until: int,
        room: Room | None,
        keep: History,
    ) -> Committed:
        while True:
            try:
                return await self._stages.commit(
                    self._shelf(queue), job, batch, stages, now, until, reserve, dedup_until, room, keep
                )
            except Emptied:
                continue

    async def discard_stages(self, queue: str, job: str, batch: str) -> int:
        while True:
            try:
                return await self._stages.discard(self._shelf(queue), job, batch)
            except Emptied:
                continue

    async def stages(self, queue: str, *, now: int) -> list[Stage]:
        return self._stages.list(self._shelf(queue), now)

    # History and upkeep

    async def history(self, *, after: int, limit: int, queue: str | None) -> HistoryPage:
        self._committer()
        return self._log.read(after, limit, queue)

    async def history_span(self) -> HistorySpan:
        self._committer()
        return self._log.span()

    async def trim_history(self, upto: int) -> None:
        commit = self._committer()
        await commit.settle()
        self._log.trim(upto, commit.batch.ops)
        await commit.settle()

    async def tidy(self, *, now: int, limit: int) -> int:
        commit = self._committer()
        ops = commit.batch.ops
        before = len(ops)
        if self._garbage.numbers:
            self._garbage.sweep(self._shelves.values(), limit)
        self._dedup.tidy(self._shelves.values(), now, limit)
        self._claims.tidy(self._shelves.values(), now, limit)
        self._stages.tidy(self._shelves.values(), now, limit)
        removed = len(ops) - before
        await commit.settle()
        return removed

    async def backup(self, path: str) -> None:
        engine = self._folder.engine
        commit = self._committer()
        data = begin_backup(path, engine)
        await commit.settle()

        def write() -> None:
            self._kv.checkpoint(data)
            end_backup(path, engine)

        await commit.beside(write)

    # Copying

    async def dump(self) -> AsyncIterator[list[Item]]:
        await self._committer().settle()
        items = copying.dump(self._kv, self._shelves, self._log, self._ledger.last_id)
        async for portion in portions(one_by_one(items)):
            yield portion

    async def load(self, items: Sequence[Item], *, now: int) -> None:
        commit = self._committer()
        for item in items:
            if isinstance(item, transfer.Queue):
                await self.save_queue(item.name, item.settings)
            elif isinstance(item, transfer.Readers):
                self._claims.restore(self._shelves[item.queue], item.group, item.epoch, item.last)
        copying.load(items, self._shelves, self._ledger, self._log, commit, now)
        await commit.commit(sync=True)

    # Inside

    def _committer(self) -> GroupCommit:
        """The group commit; raises if the store is closed or has failed."""
        if self._commit.refusal is not None:
            raise self._commit.refusal
        return self._commit

    def _save(self, shelf: Shelf) -> None:
        record = keys.QueueRecord(shelf.number, shelf.serial, shelf.settings)
        self._committer().batch.ops.append((keys.queue_key(shelf.name), keys.encode(record)))

    def _discard(self, shelf: Shelf, number: int) -> None:
        """Nothing of a shelf counts any more."""
        self._ledger.dirty.discard(shelf)
        self._window.abandon(shelf)
        self._garbage.discard(number)
