"""The folder of an embedded store: who has it open, what format it is in, and how it is restored.

MINIQ       one line of JSON: format and engine; checked before anything else is touched
LOCK        locked by the process that has the folder open, whose number it holds
data/       the database
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil

from miniq.errors import InvalidRequest, StoreError, StoreFormat, StoreLocked
from miniq.store.keys import FORMAT

ENGINES = ("rocksdb", "leveldb")


class Folder:
    """A store's folder, locked while it is open."""

    def __init__(self, path: str, engine: str) -> None:
        self.path = os.path.abspath(path)
        self.engine = engine
        self.data = os.path.join(self.path, "data")
        self._lock: int | None = None

    def open(self) -> None:
        """Lock the folder, or refuse at once; make it if it is not there."""
        try:
            os.makedirs(self.path, exist_ok=True)
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
            self._check_format()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let others have the folder. Harmless to repeat."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def free_bytes(self) -> int:
        """What an ordinary user may still write to the disk."""
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize

    def _check_format(self) -> None:
        marker = os.path.join(self.path, "MINIQ")
        if not os.path.exists(marker):
            others = sorted(set(os.listdir(self.path)) - {"LOCK"})
            if others:
                raise StoreFormat(
                    f"store: {self.path} is not a MiniQ folder (it holds {others[0]!r}); use an empty or new one",
                    field="store",
                )
            _write_synced(marker, json.dumps({"format": FORMAT, "engine": self.engine}) + "\n")
            return
        try:
            with open(marker, encoding="utf-8") as file:
                found = json.load(file)
            version, engine = found["format"], found["engine"]
        except (ValueError, KeyError, TypeError):
            raise StoreFormat(f"store: {marker} cannot be read; restore it from a backup", field="store") from None
        if version != FORMAT:
            raise StoreFormat(
                f"store: {self.path} has format {version}, this version of MiniQ knows {FORMAT}; "
                "use the version that wrote it, or export and import",
                field="store",
            )
        if engine != self.engine:
            raise StoreFormat(
                f"store: {self.path} was made by {engine}; open it as {engine}:{self.path}", field="store"
            )


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
    """Mark a backup as whole."""
    _write_synced(os.path.join(path, "MINIQ"), json.dumps({"format": FORMAT, "engine": engine}) + "\n")


def restore(backup: str, folder: str) -> str:
    """Copy a backup to a new store folder and return the store's URL."""
    marker = os.path.join(backup, "MINIQ")
    if not os.path.exists(marker):
        raise InvalidRequest(f"backup: {backup} is not a complete MiniQ backup", field="backup")
    if os.path.exists(folder) and os.listdir(folder):
        raise InvalidRequest(f"folder: {folder} is not empty; name a new one", field="folder")
    with open(marker, encoding="utf-8") as file:
        engine = json.load(file)["engine"]
    shutil.copytree(os.path.join(backup, "data"), os.path.join(folder, "data"))
    shutil.copy(marker, os.path.join(folder, "MINIQ"))
    _sync_tree(folder)
    return f"{engine}:{folder}"


def _write_synced(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(os.path.dirname(path))


def _sync_tree(folder: str) -> None:
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                os.fsync(file.fileno())
        _sync_folder(at)


def _sync_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
