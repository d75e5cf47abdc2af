"""Results of the embedded store. They are on disk only: most are never read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from miniq.message import Outcome
from miniq.result import Finished
from miniq.store.arguments import PutResult, Remember
from miniq.store.contract import ResultStore
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.commit import Batch, GroupCommit
from miniq.store.embedded.kv import KV


class Results(ResultStore):
    """See `ResultStore`."""

    def __init__(self, kv: KV, commit: GroupCommit, shelf: Callable[[str], Shelf]) -> None:
        self._kv = kv
        self._commit = commit
        self._shelf = shelf
        self._tidy_from = keys.RESULTS_DUE
        """No result is due before this key. Those that were removed are not scanned again."""
        self._unwritten: dict[bytes, Batch] = {}
        """The keys of results that are not written yet, and with which batch they will be."""

    def keep(self, shelf: Shelf, ids: Sequence[str], outcomes: Sequence[Outcome], remember: Remember) -> None:
        """Stage the results of the messages that a change removes."""
        batch = self._commit.batch
        kept = [
            self.stage(shelf, id, finished, remember.until)
            for id, outcome, finished in zip(ids, outcomes, remember.each, strict=True)
            if outcome == "done"
        ]
        self._unwritten.update(dict.fromkeys(kept, batch))
        batch.done.append(partial(self._written, kept, batch))

    def stage(self, shelf: Shelf, id: str, finished: Finished, until: int) -> bytes:
        """Stage one result; its key."""
        key = keys.result_key(shelf.serial, id)
        due = keys.result_due(until, key)
        self._tidy_from = min(self._tidy_from, due)
        self._commit.batch.ops += [(key, keys.encode(keys.ResultRecord(finished, until))), (due, b"")]
        return key

    def _written(self, kept: Sequence[bytes], batch: Batch) -> None:
        for key in kept:
            if self._unwritten.get(key) is batch:
                del self._unwritten[key]

    async def find(self, queue: str, ids: Sequence[str], now: int) -> dict[str, Finished]:
        await self._commit.settle()  # messages that have left may have results that are not written yet
        serial = self._shelf(queue).serial
        found: dict[str, Finished] = {}
        for id in ids:
            value = self._kv.get(keys.result_key(serial, id))
            if value is not None and (record := keys.decode_result(value)).until > now:
                found[id] = record.finished
        return found

    async def put(self, queue: str, id: str, put: PutResult) -> bool:
        if put.expected is not None:
            await self._commit.settle()
            while keys.result_key(self._shelf(queue).serial, id) in self._unwritten:
                await self._commit.settle()
        shelf = self._shelf(queue)
        key = keys.result_key(shelf.serial, id)
        if put.expected is not None:
            value = self._kv.get(key)
            record = None if value is None else keys.decode_result(value)
            if not put.matches(None if record is None or record.until <= put.now else record.finished):
                return False
        self._commit.check()
        batch = self._commit.batch
        if put.finished is None:
            batch.ops.append((key, None))
        else:
            self.stage(shelf, id, put.finished, put.until)
        self._unwritten[key] = batch
        batch.done.append(partial(self._written, [key], batch))
        await self._commit.commit(True)
        return True

    def tidy(self, now: int, limit: int) -> None:
        """Stage the removal of up to `limit` results whose time is over."""
        ops = self._commit.batch.ops
        end = keys.results_due(now + 1)
        for examined, (due, _) in enumerate(self._kv.scan(self._tidy_from, end)):
            if examined == limit:
                self._tidy_from = due
                return
            until, key = keys.read_result_due(due)
            value = self._kv.get(key)
            # A message that was redriven has another result, which may not be written yet.
            if value is not None and keys.decode_result(value).until == until and key not in self._unwritten:
                ops.append((key, None))
            ops.append((due, None))
        self._tidy_from = max(self._tidy_from, end)
