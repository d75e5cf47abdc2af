"""An engine behind the commit log: a change is confirmed when the log has it, and applied to the engine afterwards.

The thread that wrote a change applies it, unless the engine would delay that: then another thread does. A read applies
what is pending first. Each change brings its number into the engine. After a crash that number says which changes are
missing: all after the highest one on disk, since engines write their memory tables in order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from miniq.errors import MiniQError, StoreError, StoreFailed
from miniq.store.embedded import extent, segments
from miniq.store.embedded.engine import MIB, Engine, open_engine
from miniq.store.embedded.folder import MARKER, Folder, log_id_of, sync_folder
from miniq.store.embedded.kv import DiskKV, Op, Room, Seek
from miniq.store.embedded.log import LARGEST, CommitLog
from miniq.store.embedded.segments import LogReader, Tail
from miniq.store.embedded.wal import corrupt

log = logging.getLogger("miniq.store")
PENDING = 64 * MIB
"""Bytes that may wait for the engine; then writes wait."""
_decode = msgspec.msgpack.Decoder(list[tuple[bytes, bytes | None]]).decode
_encode = msgspec.msgpack.Encoder().encode


def open_kv(folder: Folder, durable: bool) -> DiskKV:
    """Open or create the database of a folder, with its log. A folder of an earlier version, or a restored one, gets
    its log here, and is not changed otherwise before its marker says so."""
    log_id = log_id_of(folder.path)
    if log_id is not None:
        verify_log(folder.path, log_id)
    else:
        require_no_log(folder.path)
    folder.log_id = log_id or os.urandom(8)
    engine = open_engine(folder.engine, folder.data, log_id is not None)
    return LoggedKV(engine, folder.path, folder.log_id, durable, log_id is None)


def require_no_log(folder: str) -> None:
    """Raise if a folder has a commit log that its marker does not name. One without changes is left by a start that was
    interrupted."""
    if segments.has_changes(os.path.join(folder, segments.NAME)):
        raise corrupt(os.path.join(folder, MARKER), "it does not name the commit log that is there")


def verify_log(folder: str, log_id: bytes) -> None:
    """Raise if the log of a folder is damaged, lacks segments, or is another one, before its engine may write."""
    try:
        note = extent.read(os.path.join(folder, "data"))
        noted = (0, 0, 0) if note is None else (note.oldest, note.newest, note.change)
        segments.verify(os.path.join(folder, segments.NAME), log_id, *noted)
    except OSError as error:
        raise StoreError(f"store: cannot open {error.filename}: {error.strerror}", field="store") from None


def replay(engine: Engine, folder: str, log_id: bytes) -> Tail:
    """Apply to an engine what a log has that it lacks."""
    reader = LogReader(folder, log_id, engine.applied(), engine.extent.note.oldest)
    replayed = 0
    for number, payload in reader:
        engine.apply(_decode(payload), number)
        replayed += len(payload)
    if replayed > MIB:
        log.debug("applied %d MB of the commit log to the database", replayed // MIB)
    return reader.tail


class LoggedKV:
    """See `DiskKV`. `write` is called by one thread at a time, the others by any."""

    def __init__(self, engine: Engine, folder: str, log_id: bytes, durable: bool, is_new: bool) -> None:
        """Apply to the engine what a log has that it lacks; create the log if there is none yet."""
        self._engine = engine
        self._folder = os.path.join(folder, segments.NAME)
        self._pending: deque[tuple[int, Sequence[Op], int]] = deque()
        """Changes that the engine lacks: number, what changes, and bytes in the log."""
        self._logged = self._applied_bytes = 0
        """Bytes of all changes, and of those that were applied."""
        self._applying = threading.Lock()
        self._work = threading.Event()
        self._ended = False
        self._failed: MiniQError | None = None
        """Why nothing more is written."""
        try:
            on_disk = engine.applied()
            tail = self._create(on_disk) if is_new else replay(engine, self._folder, log_id)
            self._applied = max(on_disk, tail.change)
            self._log = CommitLog(self._folder, log_id, tail, on_disk, engine.extent.note_segments, durable)
        except BaseException as error:
            engine.close()
            if isinstance(error, OSError):
                text = f"store: cannot open {error.filename or self._folder}: {error.strerror}"
                raise StoreError(text, field="store") from error
            raise
        self._thread = threading.Thread(target=self._run, name="miniq-index", daemon=True)
        self._thread.start()

    def _create(self, applied: int) -> Tail:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        for number in segments.numbers(self._folder):  # of an interrupted start, without changes
            os.unlink(os.path.join(self._folder, segments.file_name(number)))
        sync_folder(os.path.dirname(self._folder))
        return Tail(applied)

    # Reading

    def get(self, key: bytes) -> bytes | None:
        if self._pending:
            self.catch_up(True)
        return self._engine.get(key)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._pending:
            self.catch_up(True)
        yield from self._engine.scan(start, end)

    @contextlib.contextmanager
    def seeking(self, end: bytes) -> Iterator[Seek]:
        if self._pending:
            self.catch_up(True)
        with self._engine.seeking(end) as seek:
            yield seek

    def last(self, start: bytes, end: bytes) -> bytes | None:
        if self._pending:
            self.catch_up(True)
        return self._engine.last(start, end)

    # Writing

    def write(self, ops: Sequence[Op], sync: bool) -> None:
        if self._failed is not None:
            raise self._failed
        if self._logged - self._applied_bytes > PENDING:
            self.catch_up(True)
        payload = _encode(ops)
        try:
            number = self._log.append(payload, sync)
        except OSError as error:
            self._failed = self._failure(error)
            raise self._failed from error
        self._pending.append((number, ops, len(payload)))
        self._logged += len(payload)
        if self._log.retained >= LARGEST:
            self._work.set()

    def catch_up(self, wait: bool = False) -> None:
        """Apply to the engine what is pending. Unless it may wait, a change that the engine would delay is left to the
        thread."""
        if not self._applying.acquire(blocking=wait):
            return
        try:
            if self._failed is not None:
                raise self._failed
            while self._pending:
                number, ops, size = self._pending[0]
                if not self._engine.apply(ops, number, wait):
                    self._work.set()
                    return
                self._pending.popleft()
                self._applied = number
                self._applied_bytes += size
        finally:
            self._applying.release()

    def _run(self) -> None:
        """Apply what the engine delayed, and remove segments that are no longer needed."""
        while True:
            self._work.wait()
            self._work.clear()
            if self._ended:
                return
            try:
                self.catch_up(True)
                if self._log.retained >= LARGEST:
                    self._flush()
            except MiniQError as error:
                self._failed = error
                return
            except OSError as error:
                self._failed = self._failure(error)
                return

    def _flush(self) -> None:
        """Have the engine write its changes to disk, and remove the segments that hold them."""
        applied = self._applied
        self._engine.flush()
        if not self._ended:
            self._log.release(applied)

    # The folder

    @property
    def room(self) -> Room:
        return self._log.room

    def checkpoint(self, path: str) -> None:
        self.catch_up(True)
        self._engine.checkpoint(path)

    def halt(self) -> None:
        self._ended = True
        self._work.set()
        self._engine.halt()

    def close(self) -> None:
        try:
            self._ended = True
            self._work.set()
            self._thread.join()
            try:
                if self._failed is None:
                    self.catch_up(True)
                    self._engine.flush()
                    self._log.close(self._applied)
            finally:
                self._log.abandon()
        except OSError as error:
            raise self._failure(error) from error
        finally:
            self._engine.close()

    def _failure(self, error: OSError) -> StoreFailed:
        return StoreFailed(f"store: {self._folder}: {error.strerror}", field="store")
