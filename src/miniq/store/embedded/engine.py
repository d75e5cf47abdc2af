"""The engines: ordered keys on disk, in RocksDB or LevelDB, without a log of their own.

Both are opened so that damage is an error. Driver errors are translated here and nowhere else.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from miniq.errors import MissingExtra, StoreError, StoreFailed, StoreLocked, install
from miniq.store.embedded import keys
from miniq.store.embedded.extent import Extent
from miniq.store.embedded.folder import sync_folder
from miniq.store.embedded.kv import Op, Ordered, Seek
from miniq.store.embedded.manifest import logs_of
from miniq.store.embedded.verify import Found, set_aside, verify, verify_level_logs
from miniq.store.embedded.wal import corrupt, first_sequence

MIB = 1024 * 1024
_OPTIONS = """[Version]
  rocksdb_version=9.0.0
  options_file_version=1.1
[DBOptions]
  avoid_flush_during_shutdown=true
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
"""


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


class Engine(Ordered, Protocol):
    extent: Extent

    def applied(self) -> int:
        """The number of the newest change; at the start, of those that are on disk."""
        ...

    def apply(self, ops: Sequence[Op], number: int, wait: bool = True) -> bool:
        """Write a change, with its number, to memory. False if it may not wait and the engine would make it."""
        ...

    def flush(self) -> None:
        """Write what is in memory to disk."""
        ...

    def checkpoint(self, path: str) -> None:
        """A consistent copy, on its own without a log, in the new folder `path`."""
        ...

    def halt(self) -> None:
        """End the engine's own work on its files, as far as it can be ended."""
        ...


def open_engine(engine: str, path: str, logged: bool, read_only: bool = False) -> Engine:
    """Open or create the database of an engine in a folder. Raises before anything is changed if it is damaged. Unless
    it is `logged`, it was written without the commit log: what its own log has is read. LevelDB writes to the folder
    also if it is opened only to read."""
    return RocksEngine(path, logged, read_only) if engine == "rocksdb" else LevelEngine(path, logged)


class RocksEngine:
    def __init__(self, path: str, logged: bool, read_only: bool = False) -> None:
        import rocksdict as rd

        self._rd = rd
        self._path = path
        options = _base_options(rd, path)
        options.create_if_missing(True)
        # Logs of earlier versions were recycled, and end at the first invalid record; `extent.py` detects one that ends
        # too early.
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
            found = verify(path)
            if found is not None and not logged:
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
                    if not logged:
                        self._db.flush(True)
                    self.extent = Extent(path, logged)
                except BaseException:
                    self._db.close()
                    raise
        self._patient, self._impatient = _unlogged(rd, False), _unlogged(rd, True)

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

    def applied(self) -> int:
        return int.from_bytes(self.get(keys.APPLIED) or b"")

    def apply(self, ops: Sequence[Op], number: int, wait: bool = True) -> bool:
        batch = self._rd.WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in ops:
            if value is None:
                delete(key)
            else:
                put(key, value)
        put(keys.APPLIED, number.to_bytes(8))
        try:
            self._db.write(batch, self._patient if wait else self._impatient)
            if os.lseek(self.extent.manifest, 0, os.SEEK_END) != self.extent.note.length:
                self.extent.follow()
        except Exception as error:
            if not wait and "incomplete" in str(error).lower():
                return False
            raise _translate(error, self._path, False) from error
        return True

    def flush(self) -> None:
        with _translated(self._path):
            self._db.flush(True)
            self.extent.follow()

    def checkpoint(self, path: str) -> None:
        with _translated(self._path):
            self._rd.Checkpoint(self._db).create_checkpoint(path)
            Extent(path).close()

    def halt(self) -> None:
        self._db.cancel_all_background(False)

    def close(self) -> None:
        with _translated(self._path):
            try:
                self._db.close()
            finally:
                if hasattr(self, "extent"):  # not if it is read-only
                    self.extent.close()


def _base_options(driver: Any, path: str) -> Any:
    """Options with which the engine writes nothing when it is closed. `flush` comes before that; after a failure, or in
    a folder that was replaced, nothing may be written. The driver reads this option only from a file."""
    with _temporary_folder(path) as folder:
        for name, text in (("CURRENT", "MANIFEST-000001\n"), ("OPTIONS-000001", _OPTIONS)):
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write(text)
        options, _ = driver.Options.load_latest(folder)
    return options


def _temporary_folder(path: str) -> tempfile.TemporaryDirectory[str]:
    """A temporary folder; beside the database if the system has no usable place."""
    try:
        return tempfile.TemporaryDirectory(prefix="miniq-options-")
    except OSError:
        return tempfile.TemporaryDirectory(prefix="miniq-options-", dir=os.path.dirname(path))


def _unlogged(driver: Any, no_slowdown: bool) -> Any:
    """Options for writes to memory alone."""
    options = driver.WriteOptions()
    options.disable_wal, options.no_slowdown = True, no_slowdown
    return options


class LevelEngine:
    def __init__(self, path: str, logged: bool) -> None:
        import plyvel

        self._plyvel = plyvel
        self._path = path
        with _translated(path, opening=True):
            found = verify(path)
            if found is not None:
                if logged:  # the commit log has all that its own log has, and more surely
                    for log in logs_of(path).values():
                        os.unlink(log)
                else:
                    verify_level_logs(found)
                set_aside(found)
            self._db: Any = self._open(path)
            try:
                # LevelDB renames files without syncing the folder: a power loss soon after could leave it without a
                # manifest.
                sync_folder(path)
                if not logged:
                    self._write_memory()
                self.extent = Extent(path, logged)
            except BaseException:
                self._db.close()
                raise

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

    def applied(self) -> int:
        return int.from_bytes(self.get(keys.APPLIED) or b"")

    def apply(self, ops: Sequence[Op], number: int, wait: bool = True) -> bool:
        with _translated(self._path):
            batch = self._db.write_batch()
            for key, value in ops:
                if value is None:
                    batch.delete(key)
                else:
                    batch.put(key, value)
            batch.put(keys.APPLIED, number.to_bytes(8))
            batch.write()
            if os.lseek(self.extent.manifest, 0, os.SEEK_END) != self.extent.note.length:
                self.extent.follow()
        return True

    def flush(self) -> None:
        with _translated(self._path):
            self._write_memory()
            self.extent.follow()

    def _write_memory(self) -> None:
        """Write the memory table to disk, by asking for a compaction of keys that do not exist. That does not say
        whether it failed; the next write does."""
        self._db.compact_range(start=b"\xff\xff", stop=b"\xff\xff\xff")
        self._db.write_batch().write()

    def checkpoint(self, path: str) -> None:
        """LevelDB has no checkpoints: copy a snapshot, a few thousand keys at a time."""
        with _translated(self._path):
            copy = LevelEngine(path, logged=False)
            try:
                with self._db.snapshot() as snapshot, snapshot.iterator(verify_checksums=True) as pairs:
                    ops: list[Op] = []
                    size = 0
                    for key, value in pairs:
                        ops.append((key, value))
                        size += len(value)
                        if len(ops) >= 5000 or size > 8 * MIB:
                            copy._put(ops)
                            ops, size = [], 0
                copy._put(ops)
                copy.flush()
            finally:
                copy.close()

    def _put(self, ops: Sequence[Op]) -> None:
        batch = self._db.write_batch()
        for key, value in ops:
            batch.put(key, value)
        batch.write()

    def halt(self) -> None:
        """LevelDB cannot be told to leave a compaction."""

    def close(self) -> None:
        with _translated(self._path):
            try:
                self._db.close()
            finally:
                self.extent.close()


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
