"""What the parts of an open embedded store work on: the database, what memory holds of it, and the group commit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from miniq.store.contract import ReadyHint
from miniq.store.embedded import keys, recovery
from miniq.store.embedded.blocks import Emptied, Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.dedup import DedupRecords
from miniq.store.embedded.folder import Space
from miniq.store.embedded.history import HistoryLog
from miniq.store.embedded.kv import KV
from miniq.store.embedded.ledger import Ledger
from miniq.store.embedded.reclaim import Garbage
from miniq.store.embedded.states import States
from miniq.store.embedded.window import Window

T = TypeVar("T")


class Core:
    """All queues of a store by name, and how they change."""

    def __init__(self, kv: KV, commit: GroupCommit, space: Space, hint: ReadyHint) -> None:
        self.kv = kv
        self.commit = commit
        self.space = space
        self.hint = hint
        self.shelves = recovery.load_shelves(kv)
        self.window = Window(kv)
        self.history = HistoryLog(kv, commit)
        self.garbage = Garbage(kv, commit, self.shelves.values())
        self.dedup = DedupRecords(kv, commit)
        self.states = States(self.window, commit, recovery.newest_version(kv))
        self.ledger = Ledger(kv, self.window, self.history, commit, self.states, hint)
        self.ledger.last_id = (kv.get(keys.LAST_ID) or b"").decode()

    def shelf(self, queue: str) -> Shelf:
        """A queue in memory; raises if there is none, or if the store is closed or has failed."""
        if self.commit.refusal is not None:
            raise self.commit.refusal
        return self.shelves[queue]

    async def unless_emptied(self, queue: str, work: Callable[[Shelf], Awaitable[T]]) -> T:
        """Do something with a queue that takes several steps; again, if it is emptied meanwhile."""
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
        """Nothing of a queue under this number counts any more."""
        self.ledger.dirty.discard(shelf)
        self.window.abandon(shelf)
        self.garbage.discard(number)
