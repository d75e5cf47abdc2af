"""The shared state of the parts of an open embedded store: the database, its queues in memory, and the group commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from miniq.store import events
from miniq.store.arguments import Change
from miniq.store.contract import ByName, LeaseCount, ReadyHint
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Emptied, Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.dedup import DedupRecords
from miniq.store.embedded.history import HistoryLog
from miniq.store.embedded.kv import KV
from miniq.store.embedded.ledger import Ledger
from miniq.store.embedded.reclaim import Garbage
from miniq.store.embedded.records import Records
from miniq.store.embedded.results import Results
from miniq.store.embedded.sharing import SharedBlocks
from miniq.store.embedded.states import Run, States
from miniq.store.embedded.window import Window

T = TypeVar("T")
CheckSpace = Callable[[int, int], None]
"""Called with the bytes and the number of messages to add; raises `NoSpace` if the disk is nearly full."""


class Core:
    """All queues of a store by name, and how they change. Reads queues, leases and delays at start, not the backlog."""

    def __init__(
        self, kv: KV, commit: GroupCommit, check_space: CheckSpace, hint: ReadyHint, lease_expired: LeaseCount
    ) -> None:
        self.kv = kv
        self.commit = commit
        self.check_space = check_space
        self.hint = hint
        self.lease_expired = lease_expired
        self.shelves = _load_shelves(kv)
        self.window = Window(kv)
        self.history = HistoryLog(kv, commit)
        self.shared = SharedBlocks(kv, commit)
        self.garbage = Garbage(kv, commit, self.shelves.values(), lambda source: self.ledger.release(source))
        self.dedup = DedupRecords(kv, commit)
        self.records = Records(kv, commit)
        self.results = Results(kv, commit, self.shelf)
        self.states = States(kv, self.window, commit)
        self.ledger = Ledger(kv, self.window, self.history, commit, self.states, self.shared, hint)
        self.ledger.last_id = (kv.get(keys.LAST_ID) or b"").decode()

    def shelf(self, queue: str) -> Shelf:
        """A queue in memory; raises if there is none, or if the store is closed or has failed."""
        if self.commit.refusal is not None:
            raise self.commit.refusal
        return self.shelves[queue]

    async def unless_emptied(self, queue: str, work: Callable[[Shelf], Awaitable[T]]) -> T:
        """Run a call of several steps; start again if the queue is purged meanwhile."""
        while True:
            try:
                return await work(self.shelf(queue))
            except Emptied:
                continue

    def save(self, shelf: Shelf) -> None:
        """Stage the record of a queue."""
        record = keys.QueueRecord(shelf.number, shelf.serial, shelf.settings)
        self.commit.batch.ops.append((keys.queue_key(shelf.name), keys.encode(record)))

    def discard(self, shelf: Shelf, number: int) -> None:
        """Discard everything of a queue under this number."""
        self.ledger.dirty.discard(shelf)
        self.window.abandon(shelf)
        self.garbage.discard(number)


class Part:
    """A part of the store, with what all parts share."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kv = core.kv
        self._commit = core.commit
        self._window = core.window
        self._states = core.states
        self._ledger = core.ledger
        self._dedup = core.dedup

    def _lease_expired(self, shelf: Shelf, id: str, size: int, lease: Run, change: Change) -> None:
        """Report, once it is written, and record that a change found the lease of a message expired."""
        batch = self._commit.batch
        batch.done.append(partial(self._core.lease_expired, shelf.name, 1))
        if change.keep != "off":
            held = lease.visible_at - lease.taken_at
            state = (change.now, lease.receives, lease.consumer, held, "lease")
            batch.events.append(keys.EventRun(events.left("expired", shelf.name, id, size, *state)))


def _load_shelves(kv: KV) -> ByName[Shelf]:
    """All queues with their counters."""
    shelves: ByName[Shelf] = ByName()
    counted = dict(kv.scan(b"c", keys.after(b"c")))
    for key, value in kv.scan(b"q", keys.after(b"q")):
        record = keys.decode_queue(value)
        name = key[1:].decode()
        shelf = shelves[name] = Shelf(name, record.number, record.serial, record.settings)
        count_record = counted.get(shelf.count_key)
        if count_record is None:
            continue
        counts = keys.decode_count(count_record)
        shelf.count, shelf.size = counts.count, counts.size
        if shelf.count:
            shelf.starts = {priority: low[:-1] for priority, low in counts.lows.items()}
    return shelves


def numbers_with(kv: KV, kind: bytes) -> set[int]:
    """The numbers of the queues that have records of a kind: a look for each of them, not one for every queue."""
    numbers: set[int] = set()
    with kv.seeking(keys.after(kind)) as seek:
        key = seek(kind)
        while key is not None:
            number = keys.number_of(key)
            numbers.add(number)
            key = seek(keys.after(keys.of_queue(kind, number)))
    return numbers
