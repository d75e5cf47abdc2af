"""The commit log: what was confirmed, in the order of the changes, until the engine has it on disk.

A change is one write to a segment that was filled with zeros before, so that neither its size nor its blocks change;
with `O_DSYNC` it is on disk when the write returns. A change that need not be on disk is written without, and once more
with the next one that must be. `segments.py` describes the files, and reads them.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from zlib import crc32

from miniq.store.embedded import segments
from miniq.store.embedded.kv import Room
from miniq.store.embedded.segments import (
    ALIGNMENT,
    CHANGE,
    END,
    HEADER,
    MAGIC,
    RECORD,
    SEAL,
    START,
    ZEROS,
    Opening,
    Read,
    Tail,
)

KIB, MIB = 1024, 1024 * 1024
SMALLEST = 256 * KIB
LARGEST = 32 * MIB
"""Below the size of the engine's memory table, so that a segment is removed after one flush."""
GROWTH = 4
"""How much larger each segment is than the one before, up to the largest."""
UNSYNCED = 1 * MIB
"""Bytes that are rather synced on their own than written again."""
RETRY = 1.0
"""Seconds until the next segment is tried again on a full disk."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SEAL = segments.padded(0)
"""Bytes that are kept for the seal of a segment."""
_ENDS = [END + bytes(size - 1) for size in range(1, ALIGNMENT + 1)]
"""By the number of bytes after a payload."""
_ENDS.insert(0, b"")
_SPARE = "spare"
_CHUNK = bytes(1 * MIB)


class CommitLog:
    """Appends changes. Used by one thread at a time, except for `release`."""

    def __init__(
        self,
        folder: str,
        log_id: bytes,
        tail: Tail,
        applied: int,
        note: Callable[[int, int, int], None],
        durable: bool = True,
    ) -> None:
        """Continue a log that was read to its end, or begin one. `applied` is the last change that the engine has on
        disk. `note` is called with the numbers of the oldest and the newest segment, once a new one is on disk and
        before old ones are removed, and with a change that is on disk."""
        self._folder = folder
        self._id = log_id
        self._durable = durable
        self._note = note
        self.last = tail.change
        """The number of the newest change."""
        self._on_disk = tail.change
        self._chain = tail.chain
        self._unsynced = bytearray()
        """Bytes before `_at` that may not be on disk."""
        self._sync = self._lazy = -1
        self._spare: threading.Thread | None = None
        self._seed = 0
        self.room = Room(self._retry)
        self._spare_error: OSError | None = None
        """Why the last attempt to make the next segment failed."""
        self._tried = 0.0
        self._sparing = threading.Lock()
        """Held while the spare file becomes a segment, and while a thread that fills it is started."""
        self._lock = threading.Lock()
        self._full = tail.segments[:-1]
        """Segments that are no longer written to."""
        self.retained = sum(segment.size for segment in self._full)
        """Bytes of these."""
        self.number, self._size = 0, 0
        """Of the segment that is written to."""
        self._at = tail.at
        """Where its next record goes."""
        self._handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._remove(_SPARE)
            self._resume(tail, applied)
        except BaseException:
            self._close_files()
            raise

    def _resume(self, tail: Tail, applied: int) -> None:
        if not tail.segments:
            self._begin_segment(SMALLEST)
            return
        self.number, self._size = tail.segments[-1].number, tail.segments[-1].size
        for number in segments.numbers(self._folder):
            if number < tail.segments[0].number:  # its removal was interrupted
                self._remove(segments.file_name(number))
        self._open()
        os.fdatasync(self._lazy)  # what was read was perhaps only in the page cache
        if applied > tail.change:  # after a power loss, of changes that were not synced
            self.last = self._on_disk = applied
            self._begin_segment(SMALLEST, seals=False)
        elif not tail.is_clean:
            self._begin_segment(SMALLEST)
        self.release(applied)

    def append(self, payload: bytes, sync: bool) -> int:
        """Write a change, to disk if `sync`; return its number."""
        if self._spare_error is not None and self._spare_error.errno not in _FULL:
            raise self._spare_error
        is_masked = ZEROS in payload
        if is_masked:
            payload = segments.masked(payload)
        length = len(payload)
        size = (HEADER + length + ALIGNMENT) // ALIGNMENT * ALIGNMENT
        if self._at + size + _SEAL > self._size:
            self._begin_segment(size)
        change = self.last + 1
        chain = crc32(payload, self._chain)
        header = RECORD.pack(MAGIC, CHANGE, is_masked, length, change, self._on_disk, chain)
        parts = [header, crc32(header, self._seed).to_bytes(4, "little"), payload, _ENDS[size - HEADER - length]]
        if sync and self._durable:
            before = len(self._unsynced)
            if before:
                parts.insert(0, bytes(self._unsynced))
            if (written := os.pwritev(self._sync, parts, self._at - before)) < before + size:
                _write_rest(self._sync, parts, self._at - before, written)
            self._unsynced.clear()
            self._on_disk = change
        else:
            if (written := os.pwritev(self._lazy, parts, self._at)) < size:
                _write_rest(self._lazy, parts, self._at, written)
            if self._durable:
                self._unsynced += b"".join(parts)
                if len(self._unsynced) > UNSYNCED:
                    self._sync_rest()
        self._at += size
        self.room.left = self._size - self._at
        self.last, self._chain = change, chain
        if self._spare is None and self._at > self._size // 2:
            self._make_spare()
        return change

    def release(self, applied: int) -> None:
        """Remove the segments of which the engine has all on disk. For one other thread."""
        with self._lock:
            gone = [segment for segment in self._full if segment.last <= applied]
            self._full = [segment for segment in self._full if segment.last > applied]
            self._note_segments()
        for segment in gone:  # from the oldest, so that what remains begins where the engine ends, or before
            self._remove(segments.file_name(segment.number))
        if gone:
            os.fsync(self._handle)

    def close(self, applied: int) -> None:
        """Close the log. If the engine has all of it on disk, a small segment without changes remains."""
        try:
            with self._sparing:
                self._wait_for_spare()
                self._remove(_SPARE)
            self._sync_rest()
            if applied == self.last and self._at > START:
                try:
                    self._begin_segment(SMALLEST, smallest=True)
                except OSError as error:
                    if error.errno not in _FULL:
                        raise
                    self._remove(_SPARE)
            self.release(applied)
        finally:
            self._close_files()

    def abandon(self) -> None:
        """Close the log as it is, unless it is closed."""
        with self._sparing:
            self._wait_for_spare()
        self._close_files()

    # Segments

    def _begin_segment(self, needed: int, smallest: bool = False, seals: bool = True) -> None:
        """Continue in a new segment. The old one is on disk before the new one exists, and sealed after."""
        size = SMALLEST if smallest or not self.number else min(max(self._size * GROWTH, SMALLEST), LARGEST)
        size = max(size, START + needed + _SEAL)
        if self.number:
            self._sync_rest()
        with self._sparing:
            self._wait_for_spare()
            if self._spare_error is not None and self._spare_error.errno not in _FULL:
                raise self._spare_error
            if self._spare_error is not None or self._spare_size() < size or smallest:
                self._remove(_SPARE)
                self._fill(size)
                self._spare_error = None
                self.room.is_short = False
            size = self._spare_size()
            file = os.open(_SPARE, os.O_WRONLY | os.O_DSYNC | os.O_CLOEXEC, dir_fd=self._handle)
            try:
                opening = Opening(self._id, self.number + 1, self.last + 1, size, self._chain)
                os.pwrite(file, segments.encode_opening(opening), 0)
            finally:
                os.close(file)
            os.rename(_SPARE, segments.file_name(self.number + 1), src_dir_fd=self._handle, dst_dir_fd=self._handle)
            os.fsync(self._handle)
        if self.number and seals:
            seal = RECORD.pack(MAGIC, SEAL, False, 0, self.last, self.last, self._chain)
            os.pwrite(self._sync, seal + crc32(seal, self._seed).to_bytes(4, "little") + END, self._at)
        with self._lock:  # at once, so that `release` never takes the old one for the newest
            if self.number:
                self._full.append(Read(self.number, self._size, self.last))
            self.number += 1
            self._note_segments()
        self._at, self._size = START, size
        self._open()

    def _note_segments(self) -> None:
        self.retained = sum(segment.size for segment in self._full)
        self._note(self._full[0].number if self._full else self.number, self.number, self._on_disk)

    def _open(self) -> None:
        for file in (self._sync, self._lazy):
            if file >= 0:
                os.close(file)
        self._seed = segments.seed(self._id, self.number)
        name, flags = segments.file_name(self.number), os.O_WRONLY | os.O_CLOEXEC
        self._sync = os.open(name, flags | os.O_DSYNC, dir_fd=self._handle)
        self._lazy = os.open(name, flags, dir_fd=self._handle)
        self.room.left = self._size - self._at

    def _sync_rest(self) -> None:
        os.fdatasync(self._lazy)
        self._unsynced.clear()
        self._on_disk = self.last

    def _retry(self) -> None:
        """Try to make the next segment again, after a while."""
        if monotonic() > self._tried + RETRY:
            self._make_spare()

    def _make_spare(self) -> None:
        """Make the next segment in the background."""
        size = min(self._size * GROWTH, LARGEST)

        def make() -> None:
            try:
                self._fill(size)
                self._spare_error = None
                self.room.is_short = False
            except OSError as error:
                self._spare_error = error
                self.room.is_short = error.errno in _FULL
                self._remove(_SPARE)  # what there is of it may be all that is left for others

        if self._sparing.acquire(blocking=False):  # otherwise a segment is being begun
            try:
                if self._spare is None or not self._spare.is_alive():
                    self._tried = monotonic()
                    self._spare = threading.Thread(target=make, name="miniq-segment", daemon=True)
                    self._spare.start()
            finally:
                self._sparing.release()

    def _wait_for_spare(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            spare.join()

    def _fill(self, size: int) -> None:
        """Make the spare, a file of zeros on disk, a part at a time, so that no long write delays those of the log."""
        file = os.open(_SPARE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=self._handle)
        try:
            at = 0
            while at < size:
                at += os.pwrite(file, memoryview(_CHUNK)[: min(len(_CHUNK), size - at)], at)
                os.fdatasync(file)
            os.fsync(file)
        finally:
            os.close(file)

    def _spare_size(self) -> int:
        try:
            return os.stat(_SPARE, dir_fd=self._handle).st_size
        except FileNotFoundError:
            return 0

    def _remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._handle)

    def _close_files(self) -> None:
        for file in (self._sync, self._lazy, self._handle):
            if file >= 0:
                os.close(file)
        self._sync = self._lazy = self._handle = -1


def _write_rest(file: int, parts: list[bytes], at: int, written: int) -> None:
    """Write what the system left when it wrote less than it was given."""
    rest = memoryview(b"".join(parts))
    while written < len(rest):
        written += os.pwrite(file, rest[written:], at + written)
