"""Backups: a copy of a store's folder whose marker lists all files with sizes and checksums.

A backup and a restored folder are made under another name and renamed when they are complete, so an interrupted one is
neither taken for a backup nor in the way of the next attempt.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from miniq.errors import InvalidRequest, MiniQError, NoSpace, StoreCorrupt, StoreError
from miniq.store.embedded.folder import (
    MARKER,
    Files,
    locked_for_reading,
    read_marker,
    sync_folder,
    tighten,
    write_marker,
)
from miniq.store.embedded.verify import verify

log = logging.getLogger("miniq.store")


def check_target(path: str) -> None:
    """Refuse a path at which something exists."""
    if os.path.lexists(path):
        raise InvalidRequest(f"path: {path} exists; name a folder that does not", field="path")


def write_backup(path: str, engine: str, checkpoint: Callable[[str], None]) -> None:
    """Write a backup; `checkpoint` writes the database to a new folder."""
    with _new_folder(path, "path") as part:
        checkpoint(os.path.join(part, "data"))
        _sync_tree(part)
        write_marker(part, engine, _list(part))


def restore(backup: str, folder: str) -> str:
    """Copy a backup, or the folder of a store that no process has open, to a new folder; return the URL of the store.
    Both are verified."""
    data = os.path.join(backup, "data")
    if not os.path.exists(os.path.join(backup, MARKER)) or not os.path.isdir(data):
        raise InvalidRequest(f"backup: {backup} is not a complete MiniQ backup", field="backup")
    engine, files = read_marker(backup, "backup")
    if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise InvalidRequest(f"folder: {folder} is not empty; name a new one", field="folder")
    with locked_for_reading(backup, "backup"):
        verify_files(backup, files)
        if files is None:
            log.warning("%s has no list of files, as a backup of an older version; verified only in part", backup)
            verify(data)
        with _new_folder(folder, "folder") as part:
            shutil.copytree(data, os.path.join(part, "data"))
            _sync_tree(part)
            verify_files(part, files)
            write_marker(part, engine)
    return f"{engine}:{folder}"


def verify_files(folder: str, files: Files | None, told: Callable[[int], None] = lambda size: None) -> None:
    """Raise unless the files of a backup are those of its list. `told` is called with the number of bytes read."""
    for name, (size, digest) in (files or {}).items():
        path = os.path.join(folder, name)
        try:
            found = os.stat(path).st_size
            wrong = f"it has {found} bytes, and there were {size}" if found != size else ""
            if not wrong and _digest(path) != digest:
                wrong = "its checksum is wrong"
        except FileNotFoundError:
            wrong = "it is missing"
        if wrong:
            raise StoreCorrupt(
                f"backup: {path} is damaged ({wrong}). Nothing was changed. Use another backup, or put back the "
                "undamaged file",
                field="backup",
            )
        told(size)


@contextmanager
def _new_folder(path: str, field: str) -> Iterator[str]:
    """The path of a folder that is renamed to `path` on success, and removed otherwise."""
    part = f"{os.path.abspath(path)}.{secrets.token_hex(4)}.part"
    try:
        if not path:
            raise ValueError("it is empty")
        os.makedirs(part, 0o700)
    except (OSError, ValueError) as error:  # a NUL, or half of a surrogate pair
        reason = error.strerror if isinstance(error, OSError) else error
        text = f"{field}: cannot make {path[:200]!r}: {reason}; name a new folder"
        raise InvalidRequest(text, field=field) from None
    try:
        yield part
        tighten(part)
        os.rename(part, path)
        sync_folder(os.path.dirname(part))
    except (OSError, shutil.Error, StoreError) as error:
        raise _unwritable(path, field, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _unwritable(path: str, field: str, error: Exception) -> MiniQError:
    text = error.text if isinstance(error, MiniQError) else str(error)
    if "no space left" in text.lower():
        return NoSpace(
            f"{field}: no space left on the disk of {path}; free some, or name a folder on another disk", field=field
        )
    return (
        error if isinstance(error, StoreCorrupt) else StoreError(f"{field}: cannot write {path}: {text}", field=field)
    )


def _list(folder: str) -> Files:
    files: Files = {}
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            files[os.path.relpath(path, folder)] = (os.stat(path).st_size, _digest(path))
    return files


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_tree(folder: str) -> None:
    for at, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(at, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(at)
