"""Blocks that several queues refer to: how many still do.

The number is written in the same batch as the change that adds or removes a reference, so after a crash both are there
or neither is. The last reference takes the block with it.
"""

from __future__ import annotations

from functools import partial

from miniq.errors import StoreCorrupt
from miniq.store.embedded import keys
from miniq.store.embedded.commit import Batch, GroupCommit
from miniq.store.embedded.kv import KV


class SharedBlocks:
    """Counts the references to shared blocks."""

    def __init__(self, kv: KV, commit: GroupCommit) -> None:
        self._kv = kv
        self._commit = commit
        last = kv.last(keys.SHARED, keys.after(keys.SHARED))
        self._publication = 0 if last is None else int.from_bytes(last[1:9], "big")
        self._unwritten: dict[bytes, tuple[int, Batch]] = {}
        """Numbers that are not written yet, with the batch that writes them."""

    def next_publication(self) -> int:
        """A number that no publication on disk has."""
        self._publication += 1
        return self._publication

    def add(self, key: bytes, value: bytes, references: int) -> None:
        """Stage a block to which so many queues refer."""
        self._commit.batch.ops.append((key, value))
        self._set(key, references)

    def release(self, key: bytes) -> None:
        """Stage that one reference fewer is there."""
        self._set(key, self._count(key) - 1)

    def _count(self, key: bytes) -> int:
        unwritten = self._unwritten.get(key)
        if unwritten is not None:
            return unwritten[0]
        value = self._kv.get(keys.sharers_key(key))
        if value is None:
            raise StoreCorrupt("store: the number of references to a shared block is missing", field="store")
        return keys.decode_sharers(value)

    def _set(self, key: bytes, count: int) -> None:
        batch = self._commit.batch
        batch.ops.append((keys.sharers_key(key), keys.encode(count) if count else None))
        if not count:
            batch.ops.append((key, None))
        if key not in self._unwritten or self._unwritten[key][1] is not batch:
            batch.done.append(partial(self._written, key, batch))
        self._unwritten[key] = (count, batch)

    def _written(self, key: bytes, batch: Batch) -> None:
        if self._unwritten[key][1] is batch:
            del self._unwritten[key]
