"""Numbers of queues that were emptied or deleted: what lies under them is removed bit by bit."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.kv import KV


class Garbage:
    """Hands out numbers for queues, and cleans up after those that are no longer used."""

    def __init__(self, kv: KV, commit: GroupCommit, shelves: Iterable[Shelf]) -> None:
        self._kv = kv
        self._commit = commit
        self.numbers = [int.from_bytes(key[1:], "big") for key, _ in kv.scan(b"z", keys.after(b"z"))]
        used = [number for shelf in shelves for number in (shelf.number, shelf.serial)]
        self._last = max([0, *used, *self.numbers])

    def next_number(self) -> int:
        """A number that no queue has or had."""
        self._last += 1
        return self._last

    def discard(self, number: int) -> None:
        """Nothing under this number counts any more."""
        batch = self._commit.batch
        batch.ops.append((keys.garbage_key(number), b""))
        # Not before: what was staged earlier under this number is not on disk yet, and would be missed.
        batch.done.append(partial(self.numbers.append, number))

    def sweep(self, shelves: Iterable[Shelf], limit: int) -> None:
        """Stage the removal of up to `limit` records of a number that is no longer used."""
        number = self.numbers[0]
        ops = self._commit.batch.ops
        kinds = [bytes([kind]) for kind in keys.MESSAGE_KINDS]
        if not any(shelf.serial == number for shelf in shelves):
            kinds += [bytes([kind]) for kind in keys.SERIAL_KINDS]
        left = limit
        for kind in kinds:
            prefix = keys.of_queue(kind, number)
            for key, value in self._kv.scan(prefix, keys.after(prefix)):
                if left <= 0:
                    return
                left -= 1
                ops.append((key, None))
                if kind in (b"b", b"w") and (source := keys.source_of(value)) is not None:
                    ops.append((source, None))
                elif kind == b"e":
                    staged = keys.upload_prefix(keys.decode_part(value).upload)
                    for block, _ in self._kv.scan(staged, keys.after(staged)):
                        ops.append((block, None))
                        left -= 1
        ops.append((keys.count_key(number), None))
        ops.append((keys.garbage_key(number), None))
        self.numbers.remove(number)
