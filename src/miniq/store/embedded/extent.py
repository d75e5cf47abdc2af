"""What the files of a database must contain, noted in a small file beside them.

Both engines take a log or a manifest that ends too early for one that was cut off by a crash. RocksDB moreover recycles
log files, which makes an fsync much cheaper because the file does not grow; remains of the old log then follow the
last record, so that a damaged record and the end of the log look alike. The file `EXTENT` says how far they go. It is
written after each write, without an fsync of its own, so after a kill it is exact. After a power loss it may be older,
but never says too much: what was written and not synced counts only until the machine is rebooted.
"""

from __future__ import annotations

import os
import time
from zlib import crc32

import msgspec
from msgspec import Struct, field

from miniq.store.embedded.manifest import current, manifest_path

NAME = "EXTENT"
_MAGIC = b"MINIQEX2"
_BOOT = "/proc/sys/kernel/random/boot_id"
HEAD = 512
KEPT = 5.0
"""Seconds after which a synced write syncs this file too; a power loss leaves a version no older than that."""


class Reach(Struct, array_like=True):
    """How far a log must reach: RocksDB by sequence number over all logs, LevelDB by bytes of each."""

    number: int = 0
    synced: int = 0
    written: int = 0
    head: int = 0
    """LevelDB: the number of bytes of the first write to the log, up to `HEAD`, with which it is recognised."""
    checksum: int = 0
    """Of these bytes."""


class Note(Struct, array_like=True):
    boot: bytes
    manifest: int
    length: int
    """Bytes of the manifest; it may have grown since."""
    checksum: int
    """Of these bytes."""
    base: int = 0
    """RocksDB: the sequence number at the last start; what is not above it is in tables."""
    log: Reach = field(default_factory=Reach)
    older: Reach = field(default_factory=Reach)
    """LevelDB: the log before the current one, which may not be in a table yet."""


_decode = msgspec.msgpack.Decoder(Note).decode


def read(data: str) -> Note | None:
    """The note of a database, None if there is none or it is damaged. After a reboot, only what was synced counts as
    written."""
    try:
        with open(os.path.join(data, NAME), "rb") as file:
            raw = file.read(1024)
        end = 14 + int.from_bytes(raw[12:14], "little")
        if raw[:8] == _MAGIC and len(raw) >= end and crc32(raw[12:end]) == int.from_bytes(raw[8:12], "little"):
            note = _decode(raw[14:end])
            if note.boot != boot_id():
                note.log.written, note.older.written = note.log.synced, note.older.synced
            return note
    except (FileNotFoundError, msgspec.DecodeError):
        pass
    return None


def encode(note: Note) -> bytes:
    raw = msgspec.msgpack.encode(note)
    raw = len(raw).to_bytes(2, "little") + raw
    return _MAGIC + crc32(raw).to_bytes(4, "little") + raw


class Extent:
    """Keeps the note of an open database up to date."""

    def __init__(self, data: str, base: int = 0, log: int = 0) -> None:
        number = current(data)
        assert number is not None  # noqa: S101
        self._manifest = os.open(manifest_path(data, number), os.O_RDONLY | os.O_CLOEXEC)
        self._file = os.open(os.path.join(data, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.note = Note(boot_id(), number, 0, 0, base, Reach(log, base, base))
        self._kept = time.monotonic()
        self.write()
        self.keep()

    def wrote(self, reach: int, sync: bool) -> None:
        """Note how far the log goes, on disk if `sync`."""
        log = self.note.log
        log.written = reach
        if sync:
            log.synced = reach
        self.write()
        if sync and time.monotonic() > self._kept + KEPT:
            self.keep()

    def recognise(self, log: int) -> None:
        """Note how the log of LevelDB with this handle begins, after the first write to it."""
        head = os.pread(log, HEAD, 0)
        self.note.log.head, self.note.log.checksum = len(head), crc32(head)

    def begin_log(self, number: int) -> None:
        """LevelDB has begun a new log."""
        self.note.older = self.note.log
        self.note.log = Reach(number)

    def write(self) -> None:
        note = self.note
        if (length := os.lseek(self._manifest, 0, os.SEEK_END)) != note.length:
            os.fdatasync(self._manifest)  # the engine may be about to
            note.checksum = crc32(os.pread(self._manifest, length - note.length, note.length), note.checksum)
            note.length = length
        os.pwrite(self._file, encode(note), 0)

    def keep(self) -> None:
        """Sync the file."""
        os.fdatasync(self._file)
        self._kept = time.monotonic()

    def close(self) -> None:
        """Note what the manifest contains at last; the engine is closed."""
        try:
            self.write()
            self.keep()
        finally:
            os.close(self._file)
            os.close(self._manifest)


def boot_id() -> bytes:
    """An id that changes with every boot; random on systems other than Linux."""
    try:
        with open(_BOOT, "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return os.urandom(16)
