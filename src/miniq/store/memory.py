"""The memory store: the embedded store over keys in memory. Nothing survives the process."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter

from miniq.errors import InvalidRequest
from miniq.store.embedded.commit import Batch, GroupCommit
from miniq.store.embedded.kv import Op, Seek
from miniq.store.embedded.store import KeyValueStore

PART = 1024
"""Keys per list: adding a key moves those that follow it in the list."""
PAGE = 32
"""Keys that a scan reads at a time."""
_first = itemgetter(0)


class MemoryStore(KeyValueStore):
    """See `Store`."""

    def __init__(self) -> None:
        super().__init__()
        self._keys = MemoryKV()

    async def open(self) -> None:
        await self._start(self._keys, ImmediateCommit(self._keys.write, durable=False), lambda size, count: None)

    async def backup(self, path: str) -> None:
        raise InvalidRequest("store: a memory store has nothing on disk to back up", field="store")


class ImmediateCommit(GroupCommit):
    """Writes every change at once: there is no fsync that several could share."""

    async def commit(self, sync: bool) -> None:
        if self.failed is not None:
            raise self.failed
        batch, self.batch = self.batch, Batch()
        self.complete(batch)
        self._finish(batch, self._attempt(batch, False))
        if self.failed is not None:
            raise self.failed


class MemoryKV:
    """Ordered keys in memory; see `KV`. A scan sees what is written while it runs."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._parts: list[list[bytes]] = []
        """All keys in order, in lists that are not empty."""

    def get(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        while page := self._page(start, end):
            yield from [(key, self._values[key]) for key in page]
            start = page[-1] + b"\0"

    @contextmanager
    def seeking(self, end: bytes) -> Iterator[Seek]:
        yield lambda start: next(iter(self._page(start, end)), None)

    def last(self, start: bytes, end: bytes) -> bytes | None:
        at = bisect_left(self._parts, end, key=_first) - 1
        if at < 0:
            return None
        part = self._parts[at]
        key = part[bisect_left(part, end) - 1]
        return key if key >= start else None

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        values = self._values
        for key, value in ops:
            if value is not None:
                if key not in values:
                    self._add(key)
                values[key] = value
            elif values.pop(key, None) is not None:
                self._remove(key)

    def catch_up(self) -> None:
        """Nothing is left to be done."""

    def close(self) -> None:
        pass

    def _page(self, start: bytes, end: bytes) -> list[bytes]:
        """The next keys from `start` on, none at the end."""
        at = self._part_of(start)
        for part in self._parts[at : at + 2]:
            place = bisect_left(part, start)
            if place < len(part):
                return part[place : bisect_left(part, end, place, min(len(part), place + PAGE))]
        return []

    def _part_of(self, key: bytes) -> int:
        """Which list a key belongs to."""
        return max(0, bisect_right(self._parts, key, key=_first) - 1)

    def _add(self, key: bytes) -> None:
        if not self._parts:
            self._parts.append([key])
            return
        at = self._part_of(key)
        part = self._parts[at]
        insort(part, key)
        if len(part) > PART:
            self._parts.insert(at + 1, part[PART // 2 :])
            del part[PART // 2 :]

    def _remove(self, key: bytes) -> None:
        at = self._part_of(key)
        part = self._parts[at]
        del part[bisect_left(part, key)]
        if not part:
            del self._parts[at]
