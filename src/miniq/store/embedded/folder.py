"""The folder of an embedded store: its lock and its format.

MINIQ       one line of JSON: format and engine; checked before anything is changed. In a backup also all files
LOCK        locked by the process that has the folder open; holds its process id
data/       the database
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from miniq.errors import NoSpace, StoreError, StoreFormat, StoreLocked, StoreUnavailable
from miniq.store.embedded.keys import FORMAT

log = logging.getLogger("miniq.store")
CHECK_BYTES = 1024 * 1024
ENGINES = ("rocksdb", "leveldb")
MARKER = "MINIQ"
NEW = ".new"
"""Suffix of a marker that is being written."""
Files = dict[str, tuple[int, str]]
"""The size and SHA-256 of each file of a backup, by its path in the folder."""


class Marker(Struct, omit_defaults=True):
    format: int
    engine: str
    files: Files | None = None


class Folder:
    """A store's folder, locked while it is open."""

    def __init__(self, path: str, engine: str) -> None:
        self.path = os.path.abspath(path)
        self.engine = engine
        self.data = os.path.join(self.path, "data")
        self._lock: int | None = None

    def open(self) -> None:
        """Create the folder if needed and lock it, or fail at once. Never changes a folder that is not a store."""
        self._check_format()
        try:
            _make_folder(self.path)
            lock = os.open(os.path.join(self.path, "LOCK"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"store: cannot use {self.path}: {error.strerror}", field="store") from None
        _flock(lock, fcntl.LOCK_EX, self.path, "store")
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock
        try:
            # Again under the lock: another process may have created it.
            if not self._check_format() or read_marker(self.path, "store")[1] is not None:
                write_marker(self.path, self.engine)  # a backup that is opened is no longer one
            _make_folder(self.data)
            tighten(self.path)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Unlock the folder. Idempotent."""
        if self._lock is not None:
            tighten(self.path)
            # A forked child shares the open file: closing alone would leave the folder locked.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def abandon(self) -> None:
        """In a forked child: drop the lock, which belongs to the parent, so that it ends with the parent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_format(self) -> bool:
        """True if the folder is a store, False if it can become one; raises otherwise."""
        if not os.path.isdir(self.path):
            return False
        if not os.path.lexists(os.path.join(self.path, MARKER)):
            others = sorted(set(os.listdir(self.path)) - {"LOCK", MARKER + NEW})
            if others:
                raise StoreFormat(
                    f"store: {self.path} is not a MiniQ folder (it holds {others[0]!r}); use an empty or new one",
                    field="store",
                )
            return False
        if (engine := read_marker(self.path, "store")[0]) != self.engine:
            raise StoreFormat(
                f"store: {self.path} was made by {engine}; open it as {engine}:{self.path}", field="store"
            )
        return True


@contextmanager
def locked_for_reading(folder: str, field: str) -> Iterator[None]:
    """Refuse a folder that a process has open, and keep others from opening it meanwhile. Changes nothing."""
    try:
        lock = os.open(os.path.join(folder, "LOCK"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # a backup that was never opened
        return
    _flock(lock, fcntl.LOCK_SH, folder, field)
    try:
        yield
    finally:
        os.close(lock)


def _flock(lock: int, how: int, folder: str, field: str) -> None:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 32).decode(errors="replace").strip() or "?"
        os.close(lock)
        raise StoreLocked(
            f"{field}: {folder} is open in process {holder}; stop that one, or use another folder", field=field
        ) from None


def read_marker(folder: str, field: str) -> tuple[str, Files | None]:
    """The engine in the marker of a folder, and the files if it is a backup; raises if this version does not know the
    format."""
    path = os.path.join(folder, MARKER)
    try:
        with open(path, "rb") as file:
            marker = msgspec.json.decode(file.read(), type=Marker)
        if marker.engine not in ENGINES:
            raise ValueError
    except (OSError, ValueError, msgspec.MsgspecError):
        raise StoreFormat(f"{field}: {path} cannot be read; restore it from a backup", field=field) from None
    if marker.format != FORMAT:
        raise StoreFormat(
            f"{field}: {folder} has format {marker.format}, this version of MiniQ knows {FORMAT}; "
            "use the version that wrote it, or export and import",
            field=field,
        )
    return marker.engine, marker.files


class Space:
    """Rejects sends while the disk is nearly full, so that receive and ack can go on."""

    def __init__(self, folder: Folder, min_free_bytes: int) -> None:
        self._folder = folder
        self.min_free = min_free_bytes
        self._unchecked = CHECK_BYTES

    def check(self, size: int, count: int) -> None:
        """Check the free space about once per MiB sent, and every time while the disk is full."""
        self._unchecked += size + 512 * count
        if self._unchecked < CHECK_BYTES:
            return
        try:
            disk = os.statvfs(self._folder.path)
        except OSError as error:
            path = self._folder.path
            raise StoreUnavailable(f"store: {path} is unreachable: {error.strerror}", field="store") from None
        free = disk.f_bavail * disk.f_frsize
        if free < self.min_free:
            raise NoSpace(
                f"store: {free} bytes free on the disk of {self._folder.path}, {self.min_free} are kept for "
                "receive and ack; free some space and send again",
                field="store",
            )
        self._unchecked = 0


def write_marker(folder: str, engine: str, files: Files | None = None) -> None:
    """Write the marker to a temporary file and rename it, so that it is complete or absent."""
    path = os.path.join(folder, MARKER)
    with open(path + NEW, "wb") as file:
        file.write(msgspec.json.encode(Marker(FORMAT, engine, files)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + NEW, path)
    sync_folder(folder)


def tighten(folder: str) -> None:
    """Let only the owner into a store's folder, whatever the umask: it holds messages and hashes of keys. Files that
    the engine creates later follow the umask, in a folder that is closed to others; a server sets its umask."""
    for at, _, names in os.walk(folder):
        for path, mode in [(at, 0o700), *((os.path.join(at, name), 0o600) for name in names)]:
            try:
                if not os.path.islink(path) and os.stat(path).st_mode & 0o077:
                    os.chmod(path, mode)
            except OSError as error:
                log.warning("%s can be read by other users: %s", path, error.strerror)
                return


def _make_folder(path: str) -> None:
    """Create a folder so that it survives power loss: its entry is synced before anything is written into it."""
    if not os.path.isdir(path):
        _make_folder(os.path.dirname(path))
        os.makedirs(path, exist_ok=True)
        sync_folder(os.path.dirname(path))


def sync_folder(path: str) -> None:
    """Sync the directory entries of a folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
