"""The small records of the embedded store. Those that are not written yet are found in memory."""

from __future__ import annotations

from functools import partial

from miniq.store.arguments import RecordChange, RecordSet
from miniq.store.contract import RecordChanged
from miniq.store.embedded import keys
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.kv import KV


class Records:
    def __init__(self, kv: KV, commit: GroupCommit) -> None:
        self._kv = kv
        self._commit = commit
        self._unwritten: dict[bytes, tuple[int, bytes | None]] = {}
        """What is staged, by key, with a number that tells the last change from earlier ones."""
        self._changes = 0

    def find(self, kind: str, name: str) -> bytes | None:
        """A record, written or not."""
        key = keys.record_prefix(kind) + name.encode()
        if key in self._unwritten:
            return self._unwritten[key][1]
        return self._kv.get(key)

    async def all(self, kind: str) -> dict[str, bytes]:
        """The written records of a kind. Those that are staged are waited for: a caller that was refused because of one
        would otherwise read the old one again, without end and without a turn for the commit."""
        prefix = keys.record_prefix(kind)
        if any(key.startswith(prefix) for key in self._unwritten):
            await self._commit.settle()
        return {key[len(prefix) :].decode(): value for key, value in self._kv.scan(prefix, keys.after(prefix))}

    def check(self, change: RecordChange) -> None:
        """Raise unless a record is what it was."""
        if self.find(change.kind, change.name) != change.was:
            raise RecordChanged(change)

    def stage(self, kind: str, name: str, value: bytes | None) -> None:
        """Write or remove a record with the next batch."""
        key = keys.record_prefix(kind) + name.encode()
        self._changes += 1
        self._unwritten[key] = self._changes, value
        batch = self._commit.batch
        batch.ops.append((key, value))
        batch.done.append(partial(self._written, key, self._changes))

    def stage_all(self, records: RecordSet) -> None:
        """Write and remove records with the next batch."""
        for (kind, name), value in records.values.items():
            self.stage(kind, name, value)

    def _written(self, key: bytes, change: int) -> None:
        if self._unwritten[key][0] == change:
            del self._unwritten[key]
