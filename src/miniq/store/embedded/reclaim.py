"""Gradual removal of the records of queues that were purged or deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from miniq.store.embedded import block_records, keys
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.kv import KV


class Garbage:
    """Assigns numbers to queues and removes the records under obsolete numbers."""

    def __init__(self, kv: KV, commit: GroupCommit, shelves: Iterable[Shelf], release: Callable[[bytes], None]) -> None:
        self._kv = kv
        self._commit = commit
        self._release = release
        """Ends a reference to a staged or shared block."""
        self.numbers = [int.from_bytes(key[1:], "big") for key, _ in kv.scan(b"z", keys.after(b"z"))]
        used = [number for shelf in shelves for number in (shelf.number, shelf.serial)]
        self._last = max([0, *used, *self.numbers])

    def next_number(self) -> int:
        """A number that no queue has or had before."""
        self._last += 1
        return self._last

    def discard(self, number: int) -> None:
        """Make a number obsolete, with all records under it."""
        batch = self._commit.batch
        batch.ops.append((keys.garbage_key(number), b""))
        # After the batch: records staged earlier under this number are not on disk yet and would be missed.
        batch.done.append(partial(self.numbers.append, number))

    def sweep(self, shelves: Iterable[Shelf], limit: int) -> None:
        """Stage the removal of up to `limit` records of an obsolete number."""
        number = self.numbers[0]
        ops = self._commit.batch.ops
        kinds = keys.MESSAGE_KINDS
        if not any(shelf.serial == number for shelf in shelves):
            kinds += keys.SERIAL_KINDS
        left = limit
        for kind in kinds:
            prefix = keys.of_queue(bytes([kind]), number)
            for key, value in self._kv.scan(prefix, keys.after(prefix)):
                if left <= 0:
                    return
                left -= 1
                ops.append((key, None))
                if kind in b"bw" and (source := block_records.source_of(value)) is not None:
                    self._release(source)
                elif kind in b"v" and (staged := block_records.staged_in(keys.decode_kept(value).block)) is not None:
                    ops.append((staged.at, None))
                elif kind in b"f":
                    ops.append((keys.result_due(keys.decode_result(value).until, key), None))
                elif kind in b"e":
                    upload = keys.upload_prefix(keys.decode_part(value).upload)
                    for block, _ in self._kv.scan(upload, keys.after(upload)):
                        ops.append((block, None))
                        left -= 1
        ops.append((keys.count_key(number), None))
        ops.append((keys.garbage_key(number), None))
        self.numbers.remove(number)
