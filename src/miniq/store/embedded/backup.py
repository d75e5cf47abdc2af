"""Backups: a copy of a store's folder whose marker lists all files with sizes and checksums.

A backup and a restored folder are made under another name and renamed when they are complete, so an interrupted one is
neither taken for a backup nor in the way of the next attempt. The next attempt removes what a killed one left: the
folder of a running one is locked.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from miniq.errors import InvalidRequest, MiniQError, NoSpace, StoreCorrupt, StoreError
from miniq.store.embedded.folder import (
    MARKER,
    Files,
    Folder,
    Marker,
    locked_for_reading,
    log_id_of,
    read_marker,
    sync_folder,
    tighten,
    write_marker,
)
from miniq.store.embedded.keys import FORMAT
from miniq.store.embedded.logged import require_no_log, verify_log
from miniq.store.embedded.segments import NAME as LOG
from miniq.store.embedded.verify import verify
from miniq.store.embedded.wal import corrupt
from miniq.store_urls import is_url, without_password

log = logging.getLogger("miniq.store")


def check_target(path: str) -> None:
    """Refuse a path at which something exists, or in a folder that does not: it is misspelt, or on a disk that is not
    mounted. A URL is none."""
    if is_url(path):
        text = f"path: {without_password(path)[:200]!r} is a URL; a backup is a folder: name its path"
        raise InvalidRequest(text, field="path")
    if os.path.lexists(path):
        raise InvalidRequest(f"path: {path} exists; name a folder that does not", field="path")
    if not os.path.isdir(parent := os.path.dirname(os.path.abspath(path))):
        raise InvalidRequest(f"path: {path[:200]!r}: there is no folder {parent[:200]!r}; create it", field="path")


def write_backup(path: str, store: Folder, checkpoint: Callable[[str], None]) -> None:
    """Write a backup of a store; `checkpoint` writes the database to a new folder."""
    with _new_folder(path, "path", store.path) as part:
        checkpoint(os.path.join(part, "data"))
        _sync_tree(part)
        write_marker(part, Marker(FORMAT, store.engine, _list(part)))


def restore(backup: str, folder: str, engine: str | None = None) -> str:
    """Copy a backup, or the folder of a store that no process has open, to a new folder; return the URL of the store.
    Both are verified. `engine` is the one that the caller expects."""
    data = os.path.join(backup, "data")
    if not os.path.exists(os.path.join(backup, MARKER)) or not os.path.isdir(data):
        raise InvalidRequest(f"backup: {backup} is not a complete MiniQ backup", field="backup")
    made_by, files = read_marker(backup, "backup")
    if engine not in (None, made_by):
        text = f"engine: {backup} was made by {made_by}, not by {engine}; use {made_by}:{folder}"
        raise InvalidRequest(text, field="engine")
    if os.path.lexists(folder) and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise InvalidRequest(f"folder: {folder} is not empty; name a new one", field="folder")
    with locked_for_reading(backup, "backup"):
        verify_files(backup, files)
        if files is None:
            log.warning(
                "%s is the folder of a store, or a backup that an older version made: it has no list of its files, so "
                "they were verified only in part",
                backup,
            )
            verify(data)
        log_id = log_id_of(backup) if files is None else None
        if log_id is not None:
            verify_log(backup, log_id)
        elif files is None:
            require_no_log(backup)
        with _new_folder(folder, "folder", backup) as part:
            shutil.copytree(data, os.path.join(part, "data"))
            if log_id is not None:
                shutil.copytree(os.path.join(backup, LOG), os.path.join(part, LOG))
            _sync_tree(part)
            verify_files(part, files)
            write_marker(
                part,
                Marker(FORMAT, made_by, None, secrets.token_hex(4), True, None if log_id is None else log_id.hex()),
            )
    return f"{made_by}:{folder}"


def verify_files(folder: str, files: Files | None) -> None:
    """Raise unless the files of a backup are those of its list, except for files that nothing reads."""
    for path, text in damaged_files(folder, files):
        if is_needed(path):
            raise corrupt(path, text, "backup")
        log.warning("%s is damaged (%s), but nothing reads it", path, text)


def is_needed(path: str) -> bool:
    """Whether a file of a database is ever read: not the log for people, nor the copy of the options."""
    return not os.path.basename(path).startswith(("LOG", "OPTIONS-"))


def damaged_files(
    folder: str, files: Files | None, progress: Callable[[int], None] = lambda size: None
) -> Iterator[tuple[str, str]]:
    """The files of a backup that are not as in its list, and what is wrong with each. `progress` is called with the
    number of bytes read."""
    for name, (size, digest) in (files or {}).items():
        path = os.path.join(folder, name)
        try:
            found = os.stat(path).st_size
            if found != size:
                yield path, f"its size is {found} B, and was {size} B"
            elif _digest(path) != digest:
                yield path, "its checksum is wrong"
        except FileNotFoundError:
            yield path, "it is missing"
        progress(size)


@contextmanager
def _new_folder(path: str, field: str, source: str) -> Iterator[str]:
    """The path of a folder outside of `source` that is renamed to `path` on success, and removed otherwise."""
    try:
        if not path:
            raise ValueError("it is empty")
        if os.path.commonpath([os.path.realpath(path), outer := os.path.realpath(source)]) == outer:
            raise ValueError(f"it is inside {source}")
        _remove_stale(os.path.abspath(path))
        part, lock = _make_part(os.path.abspath(path))
    except (OSError, ValueError) as error:  # a NUL, or half of a surrogate pair
        reason = error.strerror if isinstance(error, OSError) else error
        text = f"{field}: cannot make {path[:200]!r}: {reason}; name a new folder"
        raise InvalidRequest(text, field=field) from None
    try:
        yield part
        tighten(part)
        _rename(part, path, field)
        sync_folder(os.path.dirname(part))
    except (OSError, shutil.Error, StoreError) as error:
        raise _unwritable(path, field, error) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
        os.close(lock)


def _make_part(path: str) -> tuple[str, int]:
    """A new folder beside `path`, and its lock, which ends with the process."""
    while True:
        part = f"{path}.{secrets.token_hex(4)}.part"
        os.makedirs(part, 0o700)
        # `_remove_stale` of another process may lock and remove it before it is locked here.
        with suppress(FileNotFoundError):
            lock = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # a file system without locks: nothing can be removed there either
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.isdir(part):
                return part, lock
            os.close(lock)


def _remove_stale(path: str) -> None:
    """Remove what killed attempts at the same path have left; leave what a process is writing."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(name) + r"\.[0-9a-f]{8}\.part")
    for stale in os.listdir(folder) if os.path.isdir(folder) else []:
        if pattern.fullmatch(stale) is None:
            continue
        with suppress(OSError):
            part = os.path.join(folder, stale)
            lock = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(part)
                log.warning("removed %s, which an interrupted backup or restore left", part)
            finally:
                os.close(lock)


def _rename(part: str, path: str, field: str) -> None:
    """Give a complete folder its name, unless another took it meanwhile."""
    try:
        os.rename(part, path)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        raise InvalidRequest(f"{field}: {path} exists; name a folder that does not", field=field) from None


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
