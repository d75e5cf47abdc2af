"""Ordered keys on disk, in RocksDB or LevelDB.

Both are opened so that a damaged log is an error, while a torn write at its end is dropped. Driver errors are
translated here and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from miniq.errors import MissingExtra, StoreCorrupt, StoreError, StoreFailed, StoreLocked
from miniq.store.embedded import wal
from miniq.store.embedded.extent import Extent
from miniq.store.embedded.folder import sync_folder

MIB = 1024 * 1024
RECYCLED = 3
"""How many log files RocksDB keeps for recycling."""
Op = tuple[bytes, bytes | None]
"""A key with its new value, None to delete it."""


class KV(Protocol):
    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with `start <= key < end` in order, as of the start of the scan."""
        ...

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """The highest key with `start <= key < end`."""
        ...

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        """Write atomically, in order; synced to disk if `sync`. Releases the interpreter lock."""
        ...

    def checkpoint(self, path: str) -> None:
        """A consistent copy in the new folder `path`."""
        ...

    def close(self) -> None: ...


def require_driver(engine: str) -> None:
    """Raise `MissingExtra` if the driver of an engine is not installed."""
    if engine == "leveldb":
        try:
            import plyvel  # noqa: F401
        except ImportError:
            raise MissingExtra(
                "store: the LevelDB driver is not installed; pip install 'miniq[leveldb]' (Python 3.11 or 3.12)",
                field="store",
            ) from None


def open_kv(engine: str, path: str) -> KV:
    """Open or create the database of an engine in a folder."""
    return RocksKV(path) if engine == "rocksdb" else LevelKV(path)


class RocksKV:
    def __init__(self, path: str) -> None:
        import rocksdict as rd

        self._rd = rd
        self._path = path
        options = rd.Options(raw_mode=True)
        options.create_if_missing(True)
        # Recycled logs end at the first invalid record; `extent.py` detects a log that ends too early.
        options.set_recycle_log_file_num(RECYCLED)
        options.set_wal_recovery_mode(rd.DBRecoveryMode.point_in_time())
        options.set_paranoid_checks(True)
        options.set_write_buffer_size(64 * MIB)
        options.set_max_write_buffer_number(2)
        options.set_max_background_jobs(2)
        options.set_level_compaction_dynamic_level_bytes(True)
        options.set_compression_per_level([rd.DBCompressionType.none()] * 2 + [rd.DBCompressionType.lz4()] * 5)
        options.add_compact_on_deletion_collector_factory(1024, 512, 0.5)
        options.set_max_open_files(512)
        options.set_keep_log_file_num(3)
        options.set_max_log_file_size(4 * MIB)
        options.set_stats_dump_period_sec(0)
        options.set_stats_persist_period_sec(0)
        table = rd.BlockBasedOptions()
        table.set_block_cache(rd.Cache(32 * MIB))
        table.set_bloom_filter(10, False)
        table.set_cache_index_and_filter_blocks(True)
        options.set_block_based_table_factory(table)
        with _translated(self._path, opening=True):
            self._extent = Extent(path)
        try:
            if self._extent.needed:
                # Read-only: opening for writing would flush the valid part of the log to tables and remove the log.
                self._check(self._open(options, rd.AccessType.read_only()))
            self._db = self._open(options, rd.AccessType.read_write())
        except BaseException:
            self._extent.close()
            raise
        self._sync = rd.WriteOptions()
        self._sync.sync = True
        self._lazy = rd.WriteOptions()

    def _open(self, options: Any, access: Any) -> Any:
        with _translated(self._path, opening=True):
            return self._rd.Rdict(self._path, options, access_type=access)

    def _check(self, db: Any) -> None:
        """Raise if the log ends too early."""
        last = db.latest_sequence_number()
        db.close()
        if last < self._extent.needed:
            text = f"it ends at change {last}, and there were {self._extent.needed}"
            raise _corrupt(_newest_log(self._path) or self._path, text)

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise _translate(error, self._path, False) from error
        return value

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Not `items()`, which ends silently at a damaged table.
        bounds = self._rd.ReadOptions()
        bounds.set_iterate_upper_bound(end)
        try:
            pairs = self._db.iter(bounds)
            pairs.seek(start)
            while pairs.valid():
                yield pairs.key(), pairs.value()
                pairs.next()
            pairs.status()
        except Exception as error:
            raise _translate(error, self._path, False) from error

    def last(self, start: bytes, end: bytes) -> bytes | None:
        bounds = self._rd.ReadOptions()
        bounds.set_iterate_upper_bound(end)
        with _translated(self._path):
            keys = self._db.iter(bounds)
            keys.seek_to_last()
            if keys.valid():
                key: bytes = keys.key()
                return key if key >= start else None
            keys.status()
            return None

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        batch = self._rd.WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in ops:
            if value is None:
                delete(key)
            else:
                put(key, value)
        try:
            self._db.write(batch, self._sync if sync else self._lazy)
            self._extent.wrote(self._db.latest_sequence_number(), sync)
        except Exception as error:
            raise _translate(error, self._path, False) from error

    def checkpoint(self, path: str) -> None:
        with _translated(self._path):
            self._rd.Checkpoint(self._db).create_checkpoint(path)

    def close(self) -> None:
        with _translated(self._path):
            try:
                self._extent.keep()
            finally:
                self._extent.close()
                self._db.close()


class LevelKV:
    def __init__(self, path: str) -> None:
        import plyvel

        self._plyvel = plyvel
        self._path = path
        damaged = wal.damage(path)
        if damaged is not None:
            raise _corrupt(*damaged)
        with _translated(self._path, opening=True):
            self._db: Any = self._open(path)
            # LevelDB renames files without syncing the folder: a power loss soon after could leave it without a
            # manifest.
            sync_folder(path)

    def _open(self, path: str) -> Any:
        return self._plyvel.DB(
            path,
            create_if_missing=True,
            paranoid_checks=True,
            write_buffer_size=32 * MIB,
            lru_cache_size=32 * MIB,
            bloom_filter_bits=10,
            max_open_files=512,
        )

    def get(self, key: bytes) -> bytes | None:
        with _translated(self._path):
            value: bytes | None = self._db.get(key, verify_checksums=True)
            return value

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        # Table checksums are verified only on request, each time.
        with _translated(self._path), self._db.iterator(start=start, stop=end, verify_checksums=True) as pairs:
            yield from pairs

    def last(self, start: bytes, end: bytes) -> bytes | None:
        with (
            _translated(self._path),
            self._db.iterator(start=start, stop=end, reverse=True, include_value=False, verify_checksums=True) as keys,
        ):
            key: bytes | None = next(keys, None)
            return key

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        with _translated(self._path):
            _write_level(self._db, ops, sync)

    def checkpoint(self, path: str) -> None:
        """LevelDB has no checkpoints: copy a snapshot, a few thousand keys at a time."""
        with _translated(self._path):
            copy = self._open(path)
            try:
                with self._db.snapshot() as snapshot, snapshot.iterator(verify_checksums=True) as pairs:
                    ops: list[Op] = []
                    size = 0
                    for key, value in pairs:
                        ops.append((key, value))
                        size += len(value)
                        if len(ops) >= 5000 or size > 8 * MIB:
                            _write_level(copy, ops, False)
                            ops, size = [], 0
                _write_level(copy, ops, True)
            finally:
                copy.close()

    def close(self) -> None:
        with _translated(self._path):
            self._db.close()


@contextlib.contextmanager
def _translated(path: str, opening: bool = False) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _translate(error, path, opening) from error


def _write_level(db: Any, ops: Sequence[Op], sync: bool) -> None:
    batch = db.write_batch(sync=sync)
    for key, value in ops:
        if value is None:
            batch.delete(key)
        else:
            batch.put(key, value)
    batch.write()


def _translate(error: Exception, path: str, opening: bool) -> StoreError:
    """Our error for a driver error; both drivers put the kind at the start of the text."""
    if isinstance(error, StoreError):
        return error
    text = str(error.args[0].decode(errors="replace") if error.args and isinstance(error.args[0], bytes) else error)
    low = text.lower()
    if "lock" in low and ("already held" in low or "temporarily unavailable" in low or "no locks" in low):
        return StoreLocked(f"store: {path} is open in another process", field="store")
    if "corrupt" in low or "checksum" in low or "bad record" in low or "missing" in low:
        named = next((word.strip("'\",;:()") for word in text.split() if word.strip("'\",;:()").startswith(path)), None)
        # LevelDB does not name the file. While opening, it reads the log.
        named = named or (_newest_log(path) if opening else None) or path
        return _corrupt(named, text)
    if opening:
        return StoreError(f"store: cannot open {path}: {text}", field="store")
    return StoreFailed(f"store: {path}: {text}", field="store")


def _corrupt(path: str, text: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"store: {path} is damaged ({text}). Nothing was changed. Restore the folder from a backup "
        "(miniq restore), or put back the undamaged file",
        field="store",
    )


def _newest_log(path: str) -> str | None:
    try:
        logs = sorted(name for name in os.listdir(path) if name.endswith(".log"))
    except OSError:
        return None
    return os.path.join(path, logs[-1]) if logs else None
