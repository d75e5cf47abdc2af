"""The shared state of the parts of an open embedded store: the database, its queues in memory, and the group commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from miniq.store.contract import ByName, ReadyHint
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Emptied, Shelf, new_lanes
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.dedup import DedupRecords
from miniq.store.embedded.history import HistoryLog
from miniq.store.embedded.kv import KV
from miniq.store.embedded.ledger import Ledger
from miniq.store.embedded.reclaim import Garbage
from miniq.store.embedded.states import States
from miniq.store.embedded.window import Window

T = TypeVar("T")
CheckSpace = Callable[[int, int], None]
"""Called with the bytes and the number of messages to add; raises `NoSpace` if the disk is nearly full."""


class Core:
    """All queues of a store by name, and how they change. Reads queues, leases and delays at start, not the backlog."""

    def __init__(self, kv: KV, commit: GroupCommit, check_space: CheckSpace, hint: ReadyHint) -> None:
        self.kv = kv
        self.commit = commit
        self.check_space = check_space
        self.hint = hint
        self.shelves = _load_shelves(kv)
        self.window = Window(kv)
        self.history = HistoryLog(kv, commit)
        self.garbage = Garbage(kv, commit, self.shelves.values())
        self.dedup = DedupRecords(kv, commit)
        self.states = States(kv, self.window, commit)
        self.ledger = Ledger(kv, self.window, self.history, commit, self.states, hint)
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


def _load_shelves(kv: KV) -> ByName[Shelf]:
    """All queues with their counters."""
    shelves: ByName[Shelf] = ByName()
    for key, value in kv.scan(b"q", keys.after(b"q")):
        record = keys.decode_queue(value)
        name = key[1:].decode()
        shelf = shelves[name] = Shelf(name, record.number, record.serial, record.settings)
        counted = kv.get(keys.count_key(record.number))
        if counted is None:
            continue
        counts = keys.decode_count(counted)
        shelf.count, shelf.size = counts.count, counts.size
        if shelf.count:
            lanes = shelf.tracks[""] = new_lanes(record.number, "", more=True)
            for priority, low in counts.lows.items():
                lanes[priority].seen = low[:-1]
    return shelves
