"""The embedded store: ordered keys over RocksDB or LevelDB, for one process.

The backlog lives on disk; memory holds what is leased or delayed and a window of what is next. A change is
made in memory at once and staged for the next group commit; the caller goes on when that is written.
Because batches are written in order, nobody is told of a change before everything it rests on is written.
A write that fails is final, so memory never has to be taken back.

`keys.py` is the legend of the keys, `blocks.py` what is in memory, `window.py` how the backlog is read,
`ledger.py` how it changes, `claims.py` what readers claim, `stages.py` what is uploaded to be committed, `commit.py`
the group commit, `folder.py` the folder with its lock and format.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from itertools import repeat

from miniq.errors import Closed, StoreFailed
from miniq.ids import sent_ms
from miniq.message import (
    NEVER,
    Claim,
    ClaimGroup,
    Committed,
    Counts,
    EventName,
    History,
    HistoryPage,
    HistorySpan,
    Message,
    Outcome,
    Page,
    PlainBatch,
    Portion,
    QueueSettings,
    Stage,
    StageName,
    Status,
    Stored,
)
from miniq.store import events, transfer
from miniq.store.contract import (
    ANY,
    FREE,
    ByName,
    Claimed,
    Edit,
    Fence,
    Fit,
    Once,
    Reserve,
    Room,
    SingleProcessStore,
    check_room,
)
from miniq.store.embedded import copying, keys, recovery
from miniq.store.embedded.blocks import Block, Emptied, Run, Shelf
from miniq.store.embedded.browse import browse, browse_held
from miniq.store.embedded.claims import Claims
from miniq.store.embedded.commit import Batch, GroupCommit
from miniq.store.embedded.dedup import DedupRecords
from miniq.store.embedded.folder import Folder, Space, begin_backup, end_backup
from miniq.store.embedded.history import HistoryLog, event_run, tell_left, tell_taken
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.kv import KV, open_kv
from miniq.store.embedded.ledger import Ledger
from miniq.store.embedded.reclaim import Garbage
from miniq.store.embedded.stages import Stages
from miniq.store.embedded.window import Window
from miniq.store.transfer import Item, one_by_one, portions

GROUPS_IN_MEMORY = 10_000


class EmbeddedStore(SingleProcessStore):
    """One folder, one process; see `Store` for what each method promises."""

    def __init__(self, engine: str, path: str, *, durable: bool = True, min_free_bytes: int = 0) -> None:
        super().__init__()
        self._folder = Folder(path, engine)
        self._durable = durable
        # LevelDB does not sync the log it leaves behind, so a later fsync would not cover an unsynced lease.
        self._sync_takes = engine == "leveldb"
        self._space = Space(self._folder, min_free_bytes)
        self._shelves: ByName[Shelf] = ByName()
        self._kv: KV
        self._commit: GroupCommit | None = None
        self._failure: StoreFailed | None = None
        self._ledger: Ledger
        self._window: Window
        self._log: HistoryLog
        self._dedup: DedupRecords
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
            version = recovery.newest_version(kv)
            self._commit = GroupCommit(kv.write, self._complete, self._durable)
            self._garbage = Garbage(kv, self._commit, self._shelves.values())
            self._dedup = DedupRecords(kv, self._commit)
            self._ledger = Ledger(kv, self._window, self._commit, self._ready, version)
            self._ledger.last_id = (kv.get(keys.LAST_ID) or b"").decode()
            self._claims = Claims(kv, self._window, self._ledger, self._commit, self._ready)
            self._stages = Stages(kv, self._ledger, self._commit, self._dedup)
            for shelf in self._shelves.values():
                recovery.load_states(kv, shelf, self._ledger)
                self._claims.load(shelf)
                self._stages.load(shelf)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        commit, self._commit = self._commit, None
        try:
            if commit is not None:
                await commit.close()
        finally:
            if commit is not None and isinstance(commit.failed, StoreFailed):
                self._failure = commit.failed
            if hasattr(self, "_kv"):
                self._kv.close()
                del self._kv
            self._folder.close()

    def failure(self) -> Exception | None:
        return self._failure if self._commit is None else self._commit.failed

    @property
    def commits(self) -> tuple[int, int]:
        """How many batches were written, and how many of them with an fsync."""
        commit = self._committer()
        return commit.writes, commit.syncs

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

    # Messages

    async def put(
        self,
        messages: Sequence[Message],
        *,
        now: int,
        dedup_until: int,
        room: Room | None,
        keep: History,
        call: Once | None = None,
    ) -> list[str]:
        commit = self._committer()
        plain = isinstance(messages, PlainBatch)
        shelf = self._shelves[messages.queue if isinstance(messages, PlainBatch) else messages[0].queue]
        self._space.check(messages)
        ids = messages.ids if isinstance(messages, PlainBatch) else [message.id for message in messages]
        fresh = messages
        dedup: dict[str, str] = {}
        if call is not None:
            given = self._dedup.ids_of_call(shelf, call.name, now)
            if given is not None:
                await commit.settle()
                return given
        if not plain and any(message.dedup_id for message in messages):
            fresh, dedup = self._dedup.sift(shelf, messages, ids, now)
        if room is not None:
            check_room(room, shelf.count, shelf.size, fresh)
        if not fresh:
            await commit.settle()
            return ids
        if call is not None:
            self._dedup.remember_call(shelf, call.name, ids, call.until)
        if dedup:
            self._dedup.remember(shelf, dedup, dedup_until)
        self._arrive(shelf, fresh, now, keep)
        await commit.commit(sync=True)
        return ids

    async def put_each(
        self, parcel: PlainBatch, calls: Sequence[str | None], *, now: int, until: int, keep: History
    ) -> list[list[str]]:
        commit = self._committer()
        shelf = self._shelves[parcel.queue]
        self._space.check(parcel)
        fresh, answers = self._dedup.sift_calls(shelf, parcel, calls, now, until)
        if not fresh:
            await commit.settle()
            return answers
        self._arrive(shelf, fresh, now, keep)
        await commit.commit(sync=True)
        return answers

    async def take(
        self,
        queue: str,
        *,
        limit: int,
        max_bytes: int,
        now: int,
        until: int,
        token: str,
        consumer: str | None,
        keep: History,
    ) -> list[Stored]:
        commit = self._committer()
        shelf = self._shelves[queue]
        self._ledger.wake(shelf, now)
        taken: list[Stored] = []
        left_bytes = max_bytes
        for lanes in self._window.lanes(shelf, consumer):
            while len(taken) < limit and left_bytes >= 0:
                picked = self._window.pick(
                    shelf, lanes, limit - len(taken), left_bytes if taken else max_bytes, not taken
                )
                if picked is None:
                    break
                block, places, old = picked
                if not places:
                    left_bytes = -1
                    break
                receives = 1 if old is None else old.receives + 1
                self._ledger.set_state(shelf, block, places, until, receives, token, consumer, now)
                messages = self._window.load(block)[places.start : places.stop]
                sizes = self._window.sizes(block)[places.start : places.stop]
                left_bytes -= sum(sizes)
                if block.next >= block.count and not any(run is None or run.due for run in block.runs):
                    self._window.forget(block)
                taken += map(Stored, messages, repeat(until), repeat(receives), repeat(token), repeat(consumer))
                if keep != "off":
                    tell_taken(commit.batch, messages[0], sizes, old, receives, consumer, now)
        if taken:
            await commit.commit(sync=self._sync_takes)
        return taken

    async def drop(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
    ) -> list[Outcome]:
        commit = self._committer()
        shelf = self._shelves[queue]
        outcomes: list[Outcome] = []
        touched: dict[Block, None] = {}
        for run in _whole_runs(shelf, fences):
            if keep != "off":
                sizes = self._window.sizes(run.block)[run.places.start : run.places.stop]
                tell_left(commit.batch, self._window, event, shelf, run.block, run.places.start, now, reason, sizes)
            self._ledger.remove_run(shelf, run)
            touched[run.block] = None
            outcomes += ["done"] * len(run.places)
        for id, receipt in fences[len(outcomes) :]:
            found = self._window.locate(shelf, id)
            outcome = _check(found, receipt, now)
            outcomes.append(outcome)
            if found is not None and outcome == "done":
                block, place = found
                if keep != "off":
                    tell_left(commit.batch, self._window, event, shelf, block, place, now, reason)
                self._ledger.remove(shelf, block, place)
                shelf.blocks[block.name] = block
                touched[block] = None
        await self._changed(shelf, touched, commit)
        return outcomes

    async def reschedule(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        visible_at: int,
        release: bool,
        event: EventName | None,
        keep: History,
    ) -> list[Outcome]:
        commit = self._committer()
        shelf = self._shelves[queue]
        outcomes: list[Outcome] = []
        changed = False
        stretch: tuple[Block, int, int, Run | None] | None = None
        for id, receipt in fences:
            found = self._window.locate(shelf, id)
            outcome = _check(found, receipt, now)
            if found is not None and outcome == "done":
                block, place = found
                # From here on it is this one, also for the fences that follow.
                shelf.blocks[block.name] = block
                run = block.runs[place]
                if stretch is not None and stretch[0] is block and stretch[2] == place and stretch[3] is run:
                    stretch = (block, stretch[1], place + 1, run)
                else:
                    if stretch is not None:
                        self._set_time(shelf, stretch, visible_at, release)
                        run = block.runs[place]
                        outcome = _check(found, receipt, now)
                    stretch = (block, place, place + 1, run) if outcome == "done" else None
                if outcome == "done":
                    changed = True
                    if event is not None and keep != "off":
                        tell_left(commit.batch, self._window, event, shelf, block, place, now, None)
            outcomes.append(outcome)
        if stretch is not None:
            self._set_time(shelf, stretch, visible_at, release)
        if changed:
            await commit.commit(sync=True)
        else:
            await commit.settle()
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, *, now: int, keep: History) -> Outcome:
        commit = self._committer()
        shelf = self._shelves[queue]
        found = self._window.locate(shelf, fence[0])
        outcome = _check(found, fence[1], now)
        if found is None or outcome != "done":
            return outcome
        block, place = found
        run = block.runs[place]
        message = edit.apply(self._window.load(block)[place])
        if block.alone:
            new = self._ledger.replace(shelf, block, message)
        else:
            new = self._ledger.detach(shelf, block, place, message)
        receives = 0 if run is None else run.receives
        if edit.visible_at is not None:
            if edit.visible_at > now or receives:
                self._ledger.set_state(shelf, new, range(1), edit.visible_at, receives, None, None, 0)
        elif run is not None:
            self._ledger.set_state(
                shelf, new, range(1), run.visible_at, receives, run.receipt, run.consumer, run.taken_at
            )
        elif message.due_at > now:
            self._ledger.set_state(shelf, new, range(1), message.due_at, 0, None, None, 0)
        self._ledger.announce(shelf, new)
        if keep != "off":
            commit.batch.events.append(EventRun(events.edited(message, now, receives, keep)))
        await commit.commit(sync=True)
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
        keep_to: History,
    ) -> list[Outcome]:
        commit = self._committer()
        shelf = self._shelves[queue]
        targets = [self._shelves[message.queue] for _, message in moves]  # all there, or nothing is changed
        outcomes: list[Outcome] = []
        touched: dict[Block, None] = {}
        for ((id, receipt), message), target in zip(moves, targets, strict=True):
            found = self._window.locate(shelf, id)
            outcome = _check(found, receipt, now)
            outcomes.append(outcome)
            if found is None or outcome != "done":
                continue
            block, place = found
            if keep != "off":
                tell_left(commit.batch, self._window, event, shelf, block, place, now, reason)
            self._ledger.remove(shelf, block, place)
            shelf.blocks[block.name] = block
            touched[block] = None
            self._ledger.arrive_moved(target, message, now)
            if keep_to != "off":
                commit.batch.events.append(EventRun(events.sent(message, now, event, keep_to)))
        await self._changed(shelf, touched, commit)
        return outcomes

    async def clear(self, queue: str, *, now: int, keep: History) -> int:
        commit = self._committer()
        old = self._shelves[queue]
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

    async def find(self, queue: str, id: str) -> Stored | None:
        while True:
            commit = self._committer()
            found = self._window.locate(self._shelves[queue], id)
            if found is None:
                return None
            block, place = found
            if block.arrives is None:
                break
            await commit.settle()
        return block.stored(place, self._window.load(block)[place])

    async def scan(
        self, queue: str, *, status: Status | None, after: str | None, limit: int, max_bytes: int, now: int
    ) -> Page:
        self._committer()
        shelf = self._shelves[queue]
        if status in ("leased", "delayed"):
            return browse_held(self._window, shelf, status, after, limit, max_bytes, now)
        return browse(self._kv, shelf, status, after, limit, max_bytes, now)

    async def held(self, token: str) -> list[Stored]:
        self._committer()
        found = [
            run.block.stored(place, self._window.load(run.block)[place])
            for shelf in self._shelves.values()
            for run in shelf.tokens.get(token, ())
            for place in run.held_places()
        ]
        return sorted(found, key=lambda stored: stored.message.id)

    async def counts(self, queue: str, *, now: int) -> Counts:
        self._committer()
        shelf = self._shelves[queue]
        self._ledger.wake(shelf, now)
        heads = [self._window.head(shelf, lane) for lane in shelf.tracks[""].lanes]
        oldest = min((head for head in heads if head is not None), default=None)
        return Counts(
            shelf.count - shelf.leased - shelf.delayed,
            shelf.delayed,
            shelf.leased,
            shelf.size,
            None if oldest is None else sent_ms(oldest) * 1000,
        )

    async def next_visible(self, queue: str, *, now: int) -> int | None:
        self._committer()
        shelf = self._shelves[queue]
        self._ledger.wake(shelf, now)
        return self._ledger.next_due(shelf)

    # Claims

    async def open_claims(self, queue: str, group: str) -> ClaimGroup:
        self._committer()
        return await self._claims.open(self._shelves[queue], group)

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
            self._committer()
            try:
                return await self._claims.claim(
                    self._shelves[queue], group, after, epoch, limit, max_bytes, fit, consumer, now, keep_until, keep
                )
            except Emptied:
                continue

    async def find_claim(self, queue: str, group: str, number: int, *, now: int) -> Claim:
        self._committer()
        return self._claims.find(self._shelves[queue], group, number, now)

    async def claimed(
        self, queue: str, group: str, number: int, *, start: int, stop: int, max_bytes: int, now: int
    ) -> list[Portion]:
        self._committer()
        return self._claims.read(self._shelves[queue], group, number, start, stop, max_bytes, now)

    async def release_claims(self, queue: str, group: str, *, epoch: int | None, now: int, keep: History) -> int:
        while True:
            self._committer()
            try:
                return await self._claims.release(self._shelves[queue], group, epoch, now, keep)
            except Emptied:
                continue

    async def claim_groups(self, queue: str, *, now: int) -> list[ClaimGroup]:
        self._committer()
        return self._claims.groups(self._shelves[queue], now)

    # Stages

    async def stage(
        self, queue: str, name: StageName, part: int, messages: Sequence[Message], *, now: int, until: int
    ) -> tuple[int, int]:
        self._committer()
        self._space.check(messages)
        return await self._stages.stage(self._shelves[queue], name, part, messages, now, until)

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
            self._committer()
            try:
                return await self._stages.commit(
                    self._shelves[queue], job, batch, stages, now, until, reserve, dedup_until, room, keep
                )
            except Emptied:
                continue

    async def discard_stages(self, queue: str, job: str, batch: str) -> int:
        while True:
            self._committer()
            try:
                return await self._stages.discard(self._shelves[queue], job, batch)
            except Emptied:
                continue

    async def stages(self, queue: str, *, now: int) -> list[Stage]:
        self._committer()
        return self._stages.list(self._shelves[queue], now)

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
        if self._commit is None:
            raise Closed("the store is closed")
        if self._commit.failed is not None:
            raise self._commit.failed
        return self._commit

    def _complete(self, batch: Batch) -> None:
        """What every batch carries besides its changes: counters, the highest id, the history."""
        ledger = self._ledger
        for shelf in ledger.dirty:
            if self._shelves.get(shelf.name) is shelf:
                record = keys.CountRecord(shelf.count, shelf.size, shelf.lows())
                batch.ops.append((keys.count_key(shelf.number), keys.encode(record)))
                if len(shelf.groups) > GROUPS_IN_MEMORY:
                    batch.done.append(lambda shelf=shelf: self._forget_groups(shelf))  # type: ignore[misc]
        if ledger.dirty:
            batch.ops.append((keys.LAST_ID, ledger.last_id.encode()))
            ledger.dirty.clear()
        if batch.events:
            self._log.append(batch.events, batch.ops)

    def _forget_groups(self, shelf: Shelf) -> None:
        if self._commit is not None and not self._commit.batch.ops:
            shelf.groups.clear()

    def _ready(self, queue: str, recipient: str | None, count: int) -> None:
        self.on_ready(queue, recipient, count)

    def _set_time(
        self, shelf: Shelf, stretch: tuple[Block, int, int, Run | None], visible_at: int, release: bool
    ) -> None:
        block, start, stop, run = stretch
        receives = 0 if run is None else run.receives
        if release or run is None or run.receipt is None:
            self._ledger.set_state(shelf, block, range(start, stop), visible_at, receives, None, None, 0)
        else:
            self._ledger.set_state(
                shelf,
                block,
                range(start, stop),
                visible_at,
                receives,
                run.receipt,
                run.consumer,
                run.taken_at,
            )
        self.on_ready(shelf.name, block.owner or None, stop - start)

    async def _changed(self, shelf: Shelf, touched: dict[Block, None], commit: GroupCommit) -> None:
        """Finish removals; even if there were none, wait for those that others made."""
        if touched:
            self._ledger.mend(shelf, touched)
            await commit.commit(sync=True)
        else:
            await commit.settle()

    def _arrive(self, shelf: Shelf, fresh: Sequence[Message], now: int, keep: History) -> None:
        """Stage new messages, and what is told of them."""
        batch = self._committer().batch
        blocks = self._ledger.arrive(shelf, fresh, now)
        if keep == "full":
            batch.events += [EventRun(events.sent(message, now, None, keep)) for message in fresh]
        elif keep == "events":
            place = 0
            for block in blocks:
                batch.events.append(event_run(events.sent(fresh[place], now, None, keep), block.sizes))
                place += block.count

    def _save(self, shelf: Shelf) -> None:
        record = keys.QueueRecord(shelf.number, shelf.serial, shelf.settings)
        self._committer().batch.ops.append((keys.queue_key(shelf.name), keys.encode(record)))

    def _discard(self, shelf: Shelf, number: int) -> None:
        """Nothing of a shelf counts any more."""
        self._ledger.dirty.discard(shelf)
        self._window.abandon(shelf)
        self._garbage.discard(number)


def _check(found: tuple[Block, int] | None, receipt: str, now: int) -> Outcome:
    """Whether a fence holds."""
    if found is None:
        return "missing"
    run = found[0].runs[found[1]]
    if run is not None and run.visible_at == NEVER:
        return "leased"
    if receipt == FREE:
        leased = run is not None and run.receipt is not None and run.visible_at > now
        return "leased" if leased else "done"
    if receipt == ANY or (run is not None and run.receipt == receipt):
        return "done"
    return "stale"


def _whole_runs(shelf: Shelf, fences: Sequence[Fence]) -> list[Run]:
    """The runs that the first fences name one after the other, each whole and in order: what a consumer
    sends who acks all he received. The rest of the fences is not looked at."""
    found: list[Run] = []
    start = 0
    for run in shelf.tokens.get(fences[0][1], ()) if fences else ():
        stop = start + len(run.places)
        receipt = run.receipt
        if (
            run.visible_at == NEVER
            or run.live != len(run.places)
            or list(fences[start:stop]) != [(id, receipt) for id in run.block.ids_at(run.places)]
        ):
            break
        found.append(run)
        start = stop
    return found
