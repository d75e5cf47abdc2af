"""Dedup records of the embedded store: which sends were made before.

A record lives on disk; until it is written it is found in memory. The name of a whole call, and of a batch that was
committed, is kept as a record too, under a name that no message has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from miniq.ids import from_spans, spans
from miniq.message import PlainBatch
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.kv import KV
from miniq.store.names import call_record


class DedupRecords:
    def __init__(self, kv: KV, commit: GroupCommit) -> None:
        self._kv = kv
        self._commit = commit
        self._tidy_from = b"d"

    def standing(self, shelf: Shelf, dedup_id: str, now: int) -> str | None:
        """What a record that has not run out says, whether it is written yet or not."""
        record = shelf.dedup.get(dedup_id)
        if record is None:
            value = self._kv.get(keys.dedup_key(shelf.serial, dedup_id))
            record = None if value is None else keys.decode_dedup(value)
        return record.id if record is not None and record.until > now else None

    def ids_of_call(self, shelf: Shelf, name: str, now: int) -> list[str] | None:
        """The ids that a call got the first time it was made."""
        given = self.standing(shelf, call_record(name), now)
        return None if given is None else from_spans(given)

    def remember_call(self, shelf: Shelf, name: str, ids: Sequence[str], until: int) -> None:
        self.remember(shelf, {call_record(name): spans(ids)}, until)

    def sift_calls(
        self, shelf: Shelf, parcel: PlainBatch, calls: Sequence[str | None], now: int, until: int
    ) -> tuple[PlainBatch, list[list[str]]]:
        """The messages of which the call is new, and the answer to each; stages the records of these calls."""
        ids = iter(parcel.ids)  # those that are new get the first ones, without a gap: they can lie in one block
        bodies: list[bytes] = []
        answers: list[list[str]] = []
        brought: dict[str, str] = {}
        for body, name in zip(parcel.bodies, calls, strict=True):
            if name is not None:
                known = call_record(name)
                said = brought.get(known) or self.standing(shelf, known, now)
                if said is not None:
                    answers.append(from_spans(said))
                    continue
            bodies.append(body)
            answers.append([next(ids)])
            if name is not None:
                brought[known] = spans(answers[-1])
        if brought:
            self.remember(shelf, brought, until)
        fresh = parcel[: len(bodies)]
        fresh.bodies = bodies
        return fresh, answers

    def remember(self, shelf: Shelf, dedup: dict[str, str], until: int) -> None:
        """Stage records."""
        batch = self._commit.batch
        for dedup_id, said in dedup.items():
            record = shelf.dedup[dedup_id] = keys.DedupRecord(said, until)
            batch.ops.append((keys.dedup_key(shelf.serial, dedup_id), keys.encode(record)))
        batch.done.append(partial(_written, shelf, dedup))

    def tidy(self, shelves: Iterable[Shelf], now: int, limit: int) -> None:
        """Look at the next `limit` records and stage the removal of those that ran out."""
        renewed = {keys.dedup_key(shelf.serial, dedup_id) for shelf in shelves for dedup_id in shelf.dedup}
        ops = self._commit.batch.ops
        for looked, (key, value) in enumerate(self._kv.scan(self._tidy_from, keys.after(b"d"))):
            if looked == limit:
                self._tidy_from = key
                return
            if keys.decode_dedup(value).until <= now and key not in renewed:
                ops.append((key, None))
        self._tidy_from = b"d"


def _written(shelf: Shelf, dedup: dict[str, str]) -> None:
    for dedup_id, id in dedup.items():
        record = shelf.dedup.get(dedup_id)
        if record is not None and record.id == id:
            del shelf.dedup[dedup_id]
