"""Ordered keys on disk, in RocksDB or LevelDB.

Both are opened so that a damaged log is an error, while a torn write at its end is dropped. Driver errors are
translated here and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from miniq.errors import MissingExtra, StoreError, StoreFailed, StoreLocked, install
from miniq.store.embedded.extent import Extent
from miniq.store.embedded.folder import sync_folder
from miniq.store.embedded.manifest import logs_of
from miniq.store.embedded.verify import Found, set_aside, verify, verify_level_logs
from miniq.store.embedded.wal import corrupt, first_sequence

MIB = 1024 * 1024
RECYCLED = 3
"""How many log files RocksDB keeps for recycling."""
Op = tuple[bytes, bytes | None]
"""A key with its new value, None to delete it."""


Seek = Callable[[bytes], bytes | None]


class KV(Protocol):
    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with `start <= key < end` in order, as of the start of the scan."""
        ...

    def seeking(self, end: bytes) -> contextlib.AbstractContextManager[Seek]:
        """A function for many looks, one after the other: the lowest key from a given one on that is below `end`."""
        ...

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """The highest key with `start <= key < end`."""
        ...

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        """Write atomically, in order; synced to disk if `sync`. Releases the interpreter lock."""
        ...

    def close(self) -> None: ...


class DiskKV(KV, Protocol):
    def checkpoint(self, path: str) -> None:
        """A consistent copy in the new folder `path`."""
        ...

    def halt(self) -> None:
        """End the engine's own work on its files, as far as it can be ended. Nothing is written after this."""
        ...


def require_driver(engine: str) -> None:
    """Raise `MissingExtra` if the driver of an engine is not installed."""
    if engine == "leveldb":
        try:
            import plyvel  # noqa: F401
        except ImportError:
            raise MissingExtra(
                f"store: the LevelDB driver is not installed; {install('leveldb')} (Python 3.11 or 3.12)",
                field="store",
            ) from None


def open_kv(engine: str, path: str, read_only: bool = False) -> DiskKV:
    """Open or create the database of an engine in a folder. Raises before anything is changed if it is damaged. LevelDB
    writes to the folder also if it is opened only to read."""
    return RocksKV(path, read_only) if engine == "rocksdb" else LevelKV(path)


class RocksKV:
    def __init__(self, path: str, read_only: bool = False) -> None:
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
        with _translated(path, opening=True):
            if (found := verify(path)) is not None:
                # Read-only: opening for writing would flush the valid part of the log to tables and remove the log.
                self._db = self._open(options, rd.AccessType.read_only())
                try:
                    self._check(found)
                finally:
                    if not read_only:
                        self._db.close()
            if not read_only:
                if found is not None:
                    set_aside(found)
                self._db = self._open(options, rd.AccessType.read_write())
                try:
                    self._extent = Extent(path, self._db.latest_sequence_number())
                except BaseException:
                    self._db.close()
                    raise
        self._sync = rd.WriteOptions()
        self._sync.sync = True
        self._lazy = rd.WriteOptions()

    def _open(self, options: Any, access: Any) -> Any:
        # Otherwise it loads them from the file OPTIONS, and a damaged one ends the process.
        columns = {"default": options}
        return self._rd.Rdict(self._path, options, columns, access)

    def _check(self, found: Found) -> None:
        """Raise if the logs do not follow the tables, or end too early."""
        last = self._db.latest_sequence_number()
        if found.note is None:
            return
        if found.is_noted:
            # The manifest has the last sequence number of all, also of changes that are only in the logs. So count.
            flushed = max(found.note.base, found.version.flushed)
            logs = logs_of(self._path, found.version.log)
            starts = ((path, start) for path in logs.values() if (start := first_sequence(path)) is not None)
            path, start = next(starts, ("", flushed + 1))
            if start > flushed + 1:
                raise corrupt(
                    path, f"the log before it is missing: it begins at change {start}, and {flushed} was the last"
                )
            counts = ("rocksdb.num-entries-active-mem-table", "rocksdb.num-entries-imm-mem-tables")
            last = start - 1 + sum(self._db.property_int_value(name) for name in counts)
        if last < found.note.log.written:
            text = f"it or the log after it ends at change {last}, and there were {found.note.log.written}"
            raise corrupt(_newest_log(self._path) or self._path, text)

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
        finally:
            pairs = None  # the traceback of an error would keep it, and an iterator keeps the database open

    @contextlib.contextmanager
    def seeking(self, end: bytes) -> Iterator[Seek]:
        bounds = self._rd.ReadOptions()
        bounds.set_iterate_upper_bound(end)
        keys: Any = None

        def seek(start: bytes) -> bytes | None:
            keys.seek(start)
            if keys.valid():
                key: bytes = keys.key()
                return key
            keys.status()
            return None

        try:
            with _translated(self._path):
                keys = self._db.iter(bounds)
                yield seek
        finally:
            keys = None  # as in `scan`

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
            last = self._db.latest_sequence_number()
            self._rd.Checkpoint(self._db).create_checkpoint(path)
            note = Extent(path, self._extent.note.base)
            note.wrote(last, True)
            note.close()

    def halt(self) -> None:
        self._db.cancel_all_background(False)

    def close(self) -> None:
        with _translated(self._path):
            try:
                self._db.close()  # writes what is in memory to tables
            finally:
                if hasattr(self, "_extent"):  # not if it is read-only
                    self._extent.close()


class LevelKV:
    def __init__(self, path: str) -> None:
        import plyvel

        self._plyvel = plyvel
        self._path = path
        with _translated(path, opening=True):
            if (found := verify(path)) is not None:
                verify_level_logs(found)
                set_aside(found)
            self._db: Any = self._open(path)
            try:
                # LevelDB renames files without syncing the folder: a power loss soon after could leave it without a
                # manifest.
                sync_folder(path)
                number, self._log = self._newest_log()
                self._extent = Extent(path, log=number)
            except BaseException:
                self._db.close()
                raise

    def _newest_log(self) -> tuple[int, int]:
        """The number of the log that is written to, and a handle of it."""
        number, path = list(logs_of(self._path).items())[-1]
        return number, os.open(path, os.O_RDONLY | os.O_CLOEXEC)

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

    @contextlib.contextmanager
    def seeking(self, end: bytes) -> Iterator[Seek]:
        with _translated(self._path), self._db.raw_iterator(verify_checksums=True) as keys:

            def seek(start: bytes) -> bytes | None:
                keys.seek(start)
                key: bytes | None = keys.key() if keys.valid() else None
                return key if key is not None and key < end else None

            yield seek

    def last(self, start: bytes, end: bytes) -> bytes | None:
        with (
            _translated(self._path),
            self._db.iterator(start=start, stop=end, reverse=True, include_value=False, verify_checksums=True) as keys,
        ):
            key: bytes | None = next(keys, None)
            return key

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        with _translated(self._path):
            batch = self._db.write_batch(sync=sync)
            for key, value in ops:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            batch.write()
            length = os.lseek(self._log, 0, os.SEEK_END)
            if length == self._extent.note.log.written:  # every write makes a log longer, so this went to a new one
                os.close(self._log)
                number, self._log = self._newest_log()
                self._extent.begin_log(number)
                length = os.lseek(self._log, 0, os.SEEK_END)
            if not self._extent.note.log.head:
                self._extent.recognise(self._log)
            self._extent.wrote(length, sync)

    def checkpoint(self, path: str) -> None:
        """LevelDB has no checkpoints: copy a snapshot, a few thousand keys at a time."""
        with _translated(self._path):
            copy = LevelKV(path)
            try:
                with self._db.snapshot() as snapshot, snapshot.iterator(verify_checksums=True) as pairs:
                    ops: list[Op] = []
                    size = 0
                    for key, value in pairs:
                        ops.append((key, value))
                        size += len(value)
                        if len(ops) >= 5000 or size > 8 * MIB:
                            copy.write(ops, False)
                            ops, size = [], 0
                copy.write(ops, True)
            finally:
                copy.close()

    def halt(self) -> None:
        """LevelDB cannot be told to leave a compaction."""

    def close(self) -> None:
        with _translated(self._path):
            try:
                self._db.close()
            finally:
                os.close(self._log)
                self._extent.close()


@contextlib.contextmanager
def _translated(path: str, opening: bool = False) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _translate(error, path, opening) from error


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
        return corrupt(named, text)
    if opening:
        return StoreError(f"store: cannot open {path}: {text}", field="store")
    return StoreFailed(f"store: {path}: {text}", field="store")


def _newest_log(path: str) -> str | None:
    try:
        logs = sorted(name for name in os.listdir(path) if name.endswith(".log"))
    except OSError:
        return None
    return os.path.join(path, logs[-1]) if logs else None
