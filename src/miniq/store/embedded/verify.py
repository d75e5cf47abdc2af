"""The check of a database before its engine may write: the files are those that its note and its manifest name."""

from __future__ import annotations

import logging
import os
from zlib import crc32

from msgspec import Struct

from miniq.store.embedded import extent, manifest
from miniq.store.embedded.extent import Note, Reach
from miniq.store.embedded.manifest import TABLES, Version
from miniq.store.embedded.wal import check_log, corrupt

log = logging.getLogger("miniq.store")


class Found(Struct):
    """A database whose files are as they should be, as far as that can be told."""

    data: str
    manifest: int
    version: Version
    note: Note | None
    """What its files must contain; None if that was never noted."""

    @property
    def is_noted(self) -> bool:
        """Whether the note is about this manifest, and that could be read to its end. An older version of MiniQ made
        none, and an interrupted start leaves the one before."""
        return self.note is not None and self.note.manifest == self.manifest and self.version.unknown is None


def verify(data: str) -> Found | None:
    """Raise `StoreCorrupt` if files of a database are damaged or missing; None if there is no database yet. Reads the
    small files and looks at the sizes of the others; changes nothing."""
    note = extent.read(data)
    number = manifest.current(data) if os.path.isdir(data) else None
    if number is None:
        if note is not None:
            raise corrupt(os.path.join(data, "CURRENT"), "it is missing")
        return None
    if note is not None and number < note.manifest:
        text = f"it names manifest {number}, and there was {note.manifest}"
        raise corrupt(os.path.join(data, "CURRENT"), text)
    path = manifest.manifest_path(data, number)
    with open(path, "rb") as file:
        raw = file.read()
    verified = 0
    if note is not None and number == note.manifest:
        verified = note.length
        if len(raw) < verified:
            raise corrupt(path, f"its size is {len(raw)} B, and was {verified} B")
        if crc32(raw[:verified]) != note.checksum:
            manifest.read(path, raw, 0)  # names the place
            raise corrupt(path, "its checksum is wrong")
    version = manifest.read(path, raw, verified)
    for table, size in version.tables.items():
        _check_table(os.path.join(data, f"{table:06d}"), size)
    return Found(data, number, version, note)


def _check_table(stem: str, size: int) -> None:
    for suffix in TABLES:
        try:
            found = os.stat(stem + suffix).st_size
        except FileNotFoundError:
            continue
        if found != size:
            raise corrupt(stem + suffix, f"its size is {found} B, and was {size} B")
        return
    raise corrupt(f"{stem}{TABLES[0]}", "it is missing")


def verify_level_logs(found: Found) -> None:
    """Raise if a log of LevelDB is damaged, missing, too short or another one."""
    logs = manifest.logs_of(found.data, found.version.log)
    reaches = () if found.note is None else (found.note.older, found.note.log)
    needed = {reach.number: reach for reach in reaches if reach.number >= found.version.log and reach.written}
    for number in sorted({*logs, *needed}):
        if number not in logs:
            raise corrupt(os.path.join(found.data, f"{number:06d}.log"), "it is missing")
        reach = needed.get(number) or Reach()
        check_log(logs[number], reach.written)
        with open(logs[number], "rb") as file:
            if crc32(file.read(reach.head)) != reach.checksum:
                raise corrupt(logs[number], "it is not the log that was written here")


def set_aside(found: Found) -> None:
    """The engine will remove tables that the manifest does not name: leftovers of a crash, if it could be verified. If
    not, move them out of its reach."""
    if found.is_noted:
        return
    log.warning(
        "%s could not be verified: its EXTENT is missing or older than its list of tables. It was written by an older "
        "version, or its last start was interrupted; `miniq check` reads all of it",
        found.data,
    )
    if found.version.unknown is not None:
        return
    aside = os.path.join(os.path.dirname(found.data), "unnamed")
    for name in sorted(os.listdir(found.data)):
        if name.endswith(TABLES) and int(name.partition(".")[0]) not in found.version.tables:
            os.makedirs(aside, mode=0o700, exist_ok=True)
            os.replace(os.path.join(found.data, name), os.path.join(aside, name))
            log.warning("%s is not in the list of tables; moved to %s", name, aside)
