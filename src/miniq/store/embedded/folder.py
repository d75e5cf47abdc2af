"""The folder of an embedded store: who has it open, what format it is in, and how it is restored.

MINIQ       one line of JSON: format and engine; checked before anything is touched
LOCK        locked by the process that has the folder open, whose number it holds
data/       the database
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil

from miniq.errors import InvalidRequest, NoSpace, StoreError, StoreFormat, StoreLocked, StoreUnavailable
from miniq.store.embedded.keys import FORMAT

CHECK_BYTES = 1024 * 1024

ENGINES = ("rocksdb", "leveldb")
MARKER = "MINIQ"
NEW = ".new"
"""What a marker is called until it is whole."""


class Folder:
    """A store's folder, locked while it is open."""

    def __init__(self, path: str, engine: str) -> None:
        self.path = os.path.abspath(path)
        self.engine = engine
        self.data = os.path.join(self.path, "data")
        self._lock: int | None = None

    def open(self) -> None:
        """Lock the folder, or refuse at once; make it if it is not there. What is not ours stays as it is."""
        self._check_format()
        try:
            _make_folder(self.path)
            lock = os.open(os.path.join(self.path, "LOCK"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"store: cannot use {self.path}: {error.strerror}", field="store") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(lock, 32).decode(errors="replace").strip() or "?"
            os.close(lock)
            raise StoreLocked(
                f"store: {self.path} is open in process {holder}; stop that one, or use another folder",
                field="store",
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock = lock
        try:
            # Again, now that nobody else can be making it.
            if not self._check_format():
                _write_marker(self.path, self.engine)
            _make_folder(self.data)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others have the folder. Harmless to repeat."""
        if self._lock is not None:
            # A forked child has the same lock open: closing alone would leave it locked.
            fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None

    def free_bytes(self) -> int:
        """What an ordinary user may still write to the disk."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def _check_format(self) -> bool:
        """Whether the folder is a store of ours; False if it can become one, else refuse."""
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
        if (engine := read_marker(self.path, "store")) != self.engine:
            raise StoreFormat(
                f"store: {self.path} was made by {engine}; open it as {engine}:{self.path}", field="store"
            )
        return True


def read_marker(folder: str, field: str) -> str:
    """The engine that a folder names, if it is in the format that this version knows."""
    marker = os.path.join(folder, MARKER)
    try:
        with open(marker, encoding="utf-8") as file:
            found = json.load(file)
        version, engine = found["format"], found["engine"]
        if type(version) is not int or engine not in ENGINES:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise StoreFormat(f"{field}: {marker} cannot be read; restore it from a backup", field=field) from None
    if version != FORMAT:
        raise StoreFormat(
            f"{field}: {folder} has format {version}, this version of MiniQ knows {FORMAT}; "
            "use the version that wrote it, or export and import",
            field=field,
        )
    return str(engine)


class Space:
    """Refuses sends while the disk is nearly full, so that receive and ack can go on."""

    def __init__(self, folder: Folder, min_free_bytes: int) -> None:
        self._folder = folder
        self.min_free = min_free_bytes
        self._unchecked = CHECK_BYTES

    def check(self, size: int, count: int) -> None:
        """Look at the disk about once for every MiB that is sent, and always while it is full."""
        self._unchecked += size + 512 * count
        if self._unchecked < CHECK_BYTES:
            return
        try:
            free = self._folder.free_bytes()
        except OSError as error:
            path = self._folder.path
            raise StoreUnavailable(f"store: {path} is not there: {error.strerror}", field="store") from None
        if free < self.min_free:
            raise NoSpace(
                f"store: {free} bytes free on the disk of {self._folder.path}, {self.min_free} are kept for "
                "receive and ack; free some space and send again",
                field="store",
            )
        self._unchecked = 0


def begin_backup(path: str, engine: str) -> str:
    """Make the folder of a backup and say where its database goes. The marker comes last."""
    if os.path.exists(path):
        raise InvalidRequest(f"path: {path} exists; name a folder that does not", field="path")
    try:
        os.makedirs(path)
    except OSError as error:
        raise InvalidRequest(f"path: cannot make {path}: {error.strerror}", field="path") from None
    return os.path.join(path, "data")


def end_backup(path: str, engine: str) -> None:
    """Mark a backup as whole, once all of it is on disk."""
    try:
        _sync_tree(path)
        _write_marker(path, engine)
    except OSError as error:
        raise StoreError(f"path: cannot write {path}: {error.strerror}", field="path") from None


def restore(backup: str, folder: str) -> str:
    """Copy a backup to a new store folder and return the store's URL."""
    data = os.path.join(backup, "data")
    if not os.path.exists(os.path.join(backup, MARKER)) or not os.path.isdir(data):
        raise InvalidRequest(f"backup: {backup} is not a complete MiniQ backup", field="backup")
    engine = read_marker(backup, "backup")
    if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise InvalidRequest(f"folder: {folder} is not empty; name a new one", field="folder")
    try:
        shutil.copytree(data, os.path.join(folder, "data"))
        end_backup(folder, engine)
    except OSError as error:
        raise StoreError(f"folder: cannot restore to {folder}: {error}", field="folder") from None
    return f"{engine}:{folder}"


def _write_marker(folder: str, engine: str) -> None:
    """Written aside and renamed: a start that is cut off leaves no half of it."""
    path = os.path.join(folder, MARKER)
    with open(path + NEW, "w", encoding="utf-8") as file:
        file.write(json.dumps({"format": FORMAT, "engine": engine}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + NEW, path)
    sync_folder(folder)


def _make_folder(path: str) -> None:
    """Make a folder that survives power loss: its name is on disk before anything in it matters."""
    if not os.path.isdir(path):
        _make_folder(os.path.dirname(path))
        os.makedirs(path, exist_ok=True)
        sync_folder(os.path.dirname(path))


def _sync_tree(folder: str) -> None:
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(at)


def sync_folder(path: str) -> None:
    """Bring to disk which files are in a folder, and under which names."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
