"""What the list of tables of a database must contain, noted in the small file `EXTENT` beside it.

Both engines take a manifest that ends too early for one that was cut off by a crash, and remove the tables that it does
not name. The note is written whenever the manifest has grown. Earlier versions, whose engines had logs of their own,
noted also how far these went, after each write and without an fsync: that is read once, when such a folder is
converted.
"""

from __future__ import annotations

import os
import threading
from zlib import crc32

import msgspec
from msgspec import Struct, field

from miniq.store.embedded.manifest import current, manifest_path

NAME = "EXTENT"
_MAGIC = b"MINIQEX2"
_BOOT = "/proc/sys/kernel/random/boot_id"


class Reach(Struct, array_like=True):
    """How far a log of an earlier version must reach: RocksDB by sequence number over all logs, LevelDB by bytes of
    each."""

    number: int = 0
    synced: int = 0
    written: int = 0
    head: int = 0
    """LevelDB: the number of bytes of the first write to the log, with which it is recognised."""
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
    oldest: int = 0
    """The oldest segment of the commit log that is needed."""
    newest: int = 0
    """The newest one."""
    change: int = 0
    """A change that the commit log has on disk, or the tables."""


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

    def __init__(self, data: str, logged: bool = False) -> None:
        number = current(data)
        assert number is not None  # noqa: S101
        self.manifest = os.open(manifest_path(data, number), os.O_RDONLY | os.O_CLOEXEC)
        self._file = os.open(os.path.join(data, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.note = Note(boot_id(), number, 0, 0)
        if logged and (before := read(data)) is not None:  # what it says of the commit log still holds
            self.note.oldest, self.note.newest, self.note.change = before.oldest, before.newest, before.change
        self._following = threading.Lock()
        self.follow()

    def follow(self) -> None:
        """Note how long the manifest is. Callers look first whether `manifest` is longer than noted."""
        with self._following:
            note, length = self.note, os.lseek(self.manifest, 0, os.SEEK_END)
            os.fdatasync(self.manifest)  # the engine may be about to
            note.checksum = crc32(os.pread(self.manifest, length - note.length, note.length), note.checksum)
            note.length = length
            os.pwrite(self._file, encode(note), 0)
            os.fdatasync(self._file)

    def note_segments(self, oldest: int, newest: int, change: int) -> None:
        """Note which segments of the commit log there are, before the oldest is removed and once the newest is on disk,
        and a change that is on disk."""
        with self._following:
            removes = oldest != self.note.oldest
            self.note.oldest, self.note.newest, self.note.change = oldest, newest, change
            os.pwrite(self._file, encode(self.note), 0)
            if removes:
                os.fdatasync(self._file)

    def close(self) -> None:
        """Note what the manifest contains at last; the engine is closed."""
        try:
            self.follow()
        finally:
            os.close(self._file)
            os.close(self.manifest)


def boot_id() -> bytes:
    """An id that changes with every boot; random on systems other than Linux."""
    try:
        with open(_BOOT, "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return os.urandom(16)
