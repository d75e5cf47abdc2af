"""The folder of an embedded store: its lock and its format.

MINIQ       one line of JSON: format and engine; checked before anything is changed. In a backup also all files
LOCK        locked by the process that has the folder open; holds its process id
data/       the database
log/        the commit log: what the database may lack. A backup has none
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from miniq.errors import NoSpace, StoreError, StoreFailed, StoreFormat, StoreLocked, StoreUnavailable
from miniq.store.embedded import extent
from miniq.store.embedded.keys import FORMAT
from miniq.store.embedded.kv import Room
from miniq.store.embedded.wal import corrupt

log = logging.getLogger("miniq.store")
CHECK_BYTES = 1024 * 1024
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
"""Errors which say that there is no such file; others may pass."""
ENGINES = ("rocksdb", "leveldb")
LOCK = "LOCK"
MARKER = "MINIQ"
NEW = ".new"
"""Suffix of a marker that is being written."""
Files = dict[str, tuple[int, str]]
"""The size and SHA-256 of each file of a backup, by its path in the folder."""


class Marker(Struct, omit_defaults=True):
    format: int
    engine: str
    files: Files | None = None
    restored: str | None = None
    """Made by a restore: the store may be older than what its readers have seen."""
    used: bool = False
    """Whether there has been a database in it."""
    log: str | None = None
    """The id of its commit log, None if there is none yet."""


class _StrictMarker(Marker, forbid_unknown_fields=True):
    """Without fields of later versions: what is not known is damaged."""


class Folder:
    """A store's folder, locked while it is open."""

    def __init__(self, path: str, engine: str) -> None:
        self.path = os.path.abspath(path)
        self.engine = engine
        self.data = os.path.join(self.path, "data")
        self.log_id = b""
        """Of the commit log, once it is open."""
        self._lock: int | None = None
        self._files: dict[str, os.stat_result] = {}
        """Files that stay open, and so keep their inode, as they were found in the folder."""

    def open(self) -> None:
        """Create the folder if needed and lock it, or fail at once. Never changes a folder that is not a store."""
        self._check_format()
        try:
            _make_folder(self.path)
            lock = os.open(os.path.join(self.path, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise StoreError(
                f"store: {self.path} is not a folder; name the folder of a store, or a new one", field="store"
            ) from None
        except OSError as error:
            raise StoreError(f"store: cannot use {self.path}: {error.strerror}", field="store") from None
        _flock(lock, fcntl.LOCK_EX, self.path, "store")
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock
        try:
            # Again under the lock: another process may have created it.
            if not self._check_format():
                write_marker(self.path, Marker(FORMAT, self.engine))
            marker = _marker(self.path)
            current = os.path.join(self.data, "CURRENT")
            if isinstance(marker, Marker) and marker.used and not os.path.lexists(current):
                raise corrupt(current, "it is missing")
            _make_folder(self.data)
            tighten(self.path)
        except BaseException:
            self.close()
            raise

    def watch(self) -> None:
        """Once its database is open: note that there is one, in the current format, and remember the files of the
        folder for `replaced`."""
        marker = _marker(self.path)
        if isinstance(marker, Marker) and not (marker.used and marker.log and marker.format == FORMAT):
            write_marker(self.path, replace(marker, format=FORMAT, used=True, log=self.log_id.hex()))
        paths = os.path.join(self.path, LOCK), os.path.join(self.data, extent.NAME)
        self._files = {path: os.stat(path) for path in paths}

    def replaced(self) -> StoreFailed | None:
        """An error if the folder was removed, renamed or replaced while it was open, and None otherwise."""
        for path, opened in self._files.items():
            try:
                if os.path.samestat(os.stat(path), opened):
                    continue
                happened = "was replaced"
            except OSError as error:
                if error.errno not in GONE:
                    continue
                happened = "is gone"
            return StoreFailed(
                f"store: {path} {happened}: the folder was removed, renamed or replaced while this process had it "
                "open. What was confirmed just before may be lost with the removed files. Put the folder back or "
                "restore a backup, then start again; next time, stop the process first",
                field="store",
            )
        return None

    def close(self) -> None:
        """Unlock the folder. Idempotent."""
        if self._lock is not None:
            if self.replaced() is None:
                tighten(self.path)
            self._files = {}
            # A forked child shares the open file: closing alone would leave the folder locked.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def abandon(self) -> None:
        """In a forked child: drop the lock, which belongs to the parent, so that it ends with the parent."""
        self._files = {}
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _check_format(self) -> bool:
        """True if the folder is a store, False if it can become one; raises otherwise."""
        if not os.path.isdir(self.path):
            return False
        if not holds(self.path, MARKER, "store"):
            try:
                others = sorted(set(os.listdir(self.path)) - {LOCK, MARKER + NEW})
            except PermissionError:
                raise _denied(self.path, "store") from None
            if others:
                raise StoreFormat(
                    f"store: {self.path} is not a MiniQ folder (it holds {others[0]!r}); use an empty or new one",
                    field="store",
                )
            return False
        engine, files = read_marker(self.path, "store")
        if files is not None:
            raise StoreFormat(
                f"store: {self.path} is a backup; create a store from it with `miniq restore {self.path} NEWFOLDER`",
                field="store",
            )
        if engine != self.engine:
            raise StoreFormat(
                f"store: {self.path} was made by {engine}; open it as {engine}:{self.path}", field="store"
            )
        return True


@contextmanager
def locked_for_reading(folder: str, field: str) -> Iterator[None]:
    """Refuse a folder that a process has open, and keep others from opening it meanwhile. Changes nothing."""
    try:
        lock = os.open(os.path.join(folder, LOCK), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield  # a backup that was never opened
        return
    except PermissionError:
        raise _denied(folder, field) from None
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
    marker = _marker(folder, field)
    if isinstance(marker, str):
        raise StoreFormat(corrupt(os.path.join(folder, MARKER), marker, field).text, field=field)
    if not 1 <= marker.format <= FORMAT:
        raise StoreFormat(
            f"{field}: {folder} has format {marker.format}, this version of MiniQ knows 1 to {FORMAT}; "
            "use the version that wrote it, or export and import",
            field=field,
        )
    return marker.engine, marker.files


def log_id_of(folder: str) -> bytes | None:
    """The id of the commit log of a folder; None if it has none. It is created with the database, or when a restored
    folder or one of an earlier version is first opened."""
    marker = _marker(folder)
    if isinstance(marker, str) or marker.log is None:
        return None
    try:
        return bytes.fromhex(marker.log)
    except ValueError:
        raise corrupt(os.path.join(folder, MARKER), "it cannot be read") from None


def restored_as(folder: str) -> str | None:
    """What the marker of a restored folder says; None if the store was made in it."""
    marker = _marker(folder)
    return None if isinstance(marker, str) else marker.restored


def is_used(folder: str) -> bool:
    """Whether there has been a database in a folder."""
    marker = _marker(folder)
    return isinstance(marker, Marker) and marker.used


def damaged_marker(folder: str) -> str | None:
    """What is wrong with the marker of a folder, None if it can be read."""
    marker = _marker(folder, "folder")
    return f"{os.path.join(folder, MARKER)} is damaged ({marker})" if isinstance(marker, str) else None


def holds(folder: str, name: str, field: str) -> bool:
    """Whether there is such a file in a folder; raises if this user may not know."""
    try:
        os.lstat(os.path.join(folder, name))
    except PermissionError:
        raise _denied(folder, field) from None
    except (OSError, ValueError):
        return False
    return True


def _denied(folder: str, field: str) -> StoreError:
    return StoreError(f"{field}: permission denied: {folder}; run this as the user who owns the folder", field=field)


def _marker(folder: str, field: str = "store") -> Marker | str:
    """The marker of a folder, or why there is none."""
    try:
        with open(os.path.join(folder, MARKER), "rb") as file:
            raw = file.read()
        marker = msgspec.json.decode(raw, type=Marker)
        if marker.format <= FORMAT:
            msgspec.json.decode(raw, type=_StrictMarker)
    except FileNotFoundError:
        return "it is missing"
    except PermissionError:
        raise _denied(folder, field) from None
    except (OSError, ValueError, msgspec.MsgspecError):
        return "it cannot be read"
    return marker if marker.engine in ENGINES else "it names no engine"


class Space:
    """Rejects sends while the disk is nearly full, so that receive and ack can go on."""

    def __init__(self, folder: Folder, min_free_bytes: int, failure: Callable[[], Exception | None]) -> None:
        self._folder = folder
        self._failure = failure
        """Why the store has failed, None if it has not."""
        self.room = Room(lambda: None)
        """Of the commit log."""
        self.min_free = min_free_bytes
        self._unchecked = CHECK_BYTES

    def check(self, size: int, count: int) -> None:
        """Check the free space about once per MiB sent, and every time while the disk is full."""
        needed = size + 512 * count
        self._unchecked += needed
        if self._unchecked < CHECK_BYTES and needed < self.room.left and not self.room.is_short:
            return
        try:
            disk = os.statvfs(self._folder.path)
        except OSError as error:
            unreachable = f"store: {self._folder.path} is unreachable: {error.strerror}"
            raise self._failure() or StoreUnavailable(unreachable, field="store") from None
        free = disk.f_bavail * disk.f_frsize
        if self.room.is_short or free < 2 * needed:
            self.room.retry()
            raise NoSpace(
                f"store: {free} bytes free on the disk of {self._folder.path}, too few for the commit log; free some "
                "space and send again",
                field="store",
            )
        if free < self.min_free:
            raise NoSpace(
                f"store: {free} bytes free on the disk of {self._folder.path}, {self.min_free} are kept for "
                "receive and ack; free some space and send again",
                field="store",
            )
        self._unchecked = 0


def write_marker(folder: str, marker: Marker) -> None:
    """Write the marker to a temporary file and rename it, so that it is complete or absent."""
    path = os.path.join(folder, MARKER)
    with open(path + NEW, "wb") as file:
        file.write(msgspec.json.encode(marker) + b"\n")
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
