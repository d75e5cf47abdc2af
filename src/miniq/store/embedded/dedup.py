"""Dedup records of the embedded store: which sends were made before.

Records are on disk; until they are written they are found in memory. Named calls and commits have records too, under
names that no dedup id can have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from miniq.errors import IdempotencyMismatch
from miniq.message import PlainBatch
from miniq.store.arguments import Once
from miniq.store.decisions import call_answer, repeated_call
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.kv import KV
from miniq.store.names import CALL, call_record


class DedupRecords:
    def __init__(self, kv: KV, commit: GroupCommit) -> None:
        self._kv = kv
        self._commit = commit
        self._tidy_from = b"d"
        self._unwritten: set[str] = set()
        """Queues that may have records that are not written yet."""

    def standing(self, shelf: Shelf, name: str, now: int) -> str | None:
        """The answer in a record that has not expired, written or not."""
        record = shelf.dedup.get(name)
        if record is None:
            value = self._kv.get(keys.dedup_key(shelf.serial, name))
            record = None if value is None else keys.decode_dedup(value)
        return record.id if record is not None and record.until > now else None

    def sift_calls(
        self, shelf: Shelf, batch: PlainBatch, calls: Sequence[Once | None], now: int
    ) -> tuple[PlainBatch, list[list[str] | IdempotencyMismatch]]:
        """The messages of new calls, and the answer to each call; stages the records of the new calls."""
        ids = iter(batch.ids)  # new messages get the first ids, without gaps, so that they can share a block
        bodies: list[bytes] = []
        answers: list[list[str] | IdempotencyMismatch] = []
        brought: dict[str, str] = {}
        until = 0
        for body, call in zip(batch.bodies, calls, strict=True):
            if call is not None:
                name = call_record(call.name)
                answer = brought.get(name) or self.standing(shelf, name, now)
                if answer is not None:
                    try:
                        answers.append(repeated_call(answer, call))
                    except IdempotencyMismatch as error:
                        answers.append(error)
                    continue
            bodies.append(body)
            given = [next(ids)]
            answers.append(given)
            if call is not None:
                brought[name] = call_answer(given, call)
                until = call.until
        if brought:
            self.remember(shelf, brought, until)
        fresh = batch[: len(bodies)]
        fresh.bodies = bodies
        return fresh, answers

    def remember(self, shelf: Shelf, answers: dict[str, str], until: int) -> None:
        """Stage records by name."""
        batch = self._commit.batch
        self._unwritten.add(shelf.name)
        for name, answer in answers.items():
            record = shelf.dedup[name] = keys.DedupRecord(answer, until)
            batch.ops.append((keys.dedup_key(shelf.serial, name), keys.encode(record)))
        batch.done.append(partial(_written, shelf, answers))

    def forget(self, shelf: Shelf) -> None:
        """Stage the removal of the records of all dedup ids of a queue; those of calls and commits stay."""
        ops = self._commit.batch.ops
        start = keys.dedup_key(shelf.serial, "")
        for key, _ in self._kv.scan(start, keys.after(start)):
            if not key.startswith(CALL.encode(), len(start)):
                ops.append((key, None))
        for name in [name for name in shelf.dedup if not name.startswith(CALL)]:  # not written yet
            ops.append((keys.dedup_key(shelf.serial, name), None))
            del shelf.dedup[name]

    def tidy(self, shelves: Mapping[str, Shelf], now: int, limit: int) -> None:
        """Examine the next `limit` records and stage the removal of expired ones."""
        unwritten = [shelf for name in self._unwritten if (shelf := shelves.get(name)) is not None and shelf.dedup]
        self._unwritten = {shelf.name for shelf in unwritten}
        renewed = {keys.dedup_key(shelf.serial, name) for shelf in unwritten for name in shelf.dedup}
        ops = self._commit.batch.ops
        for examined, (key, value) in enumerate(self._kv.scan(self._tidy_from, keys.after(b"d"))):
            if examined == limit:
                self._tidy_from = key
                return
            if keys.decode_dedup(value).until <= now and key not in renewed:
                ops.append((key, None))
        self._tidy_from = b"d"


def _written(shelf: Shelf, answers: dict[str, str]) -> None:
    for name, answer in answers.items():
        record = shelf.dedup.get(name)
        if record is not None and record.id == answer:
            del shelf.dedup[name]
