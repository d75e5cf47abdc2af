"""The list of tables that RocksDB and LevelDB keep in the files CURRENT and MANIFEST.

A manifest is a log of edits; both engines use the same tags. At each start an engine writes a new one and points
CURRENT to it, then removes every table that it does not name: a list that ends too early costs whatever it lacks. So it
is read here before the engine may write.
"""

from __future__ import annotations

import os
import re

from msgspec import Struct

from miniq.store.embedded.wal import corrupt, records

TABLES = (".sst", ".ldb")
_NAME = re.compile(rb"MANIFEST-(\d+)\n")
_NUMBERS = (2, 3, 4, 9, 10, 200, 203)
"""Tags followed by a number: log, next file, last sequence, previous log, lowest log, column family, highest one."""
_LOG, _CURSOR, _DELETED, _NEW, _NEW_ROCKSDB, _COMPARATOR = 2, 5, 6, 7, 103, 1
_SKIPPABLE = 1 << 13
"""RocksDB: this tag and all above it are followed by their length."""
_TERMINATE = 1


class Version(Struct):
    """What a manifest says."""

    log: int = 0
    """Logs with a lower number are no longer needed."""
    flushed: int = 0
    """RocksDB: the highest sequence number that was written to a table."""
    tables: dict[int, int] = {}
    """The size of each table, by its number."""
    unknown: int | None = None
    """A tag that is not known here, after which nothing was read."""


def current(data: str) -> int | None:
    """The number of the current manifest; None if there is no database yet."""
    path = os.path.join(data, "CURRENT")
    try:
        with open(path, "rb") as file:
            name = _NAME.fullmatch(file.read(64))
    except FileNotFoundError:
        if any(_is_data(os.path.join(data, name)) for name in os.listdir(data)):
            raise corrupt(path, "it is missing") from None
        return None
    if name is None:
        raise corrupt(path, "it names no manifest")
    if not os.path.exists(manifest_path(data, int(name[1]))):
        raise corrupt(manifest_path(data, int(name[1])), "it is missing")
    return int(name[1])


def _is_data(path: str) -> bool:
    """Whether a file holds data: a table, or a log in which something was written."""
    return path.endswith(TABLES) or (path.endswith(".log") and os.stat(path).st_size > 0)


def manifest_path(data: str, number: int) -> str:
    return os.path.join(data, f"MANIFEST-{number:06d}")


def logs_of(data: str, lowest: int = 0) -> dict[int, str]:
    """The paths of logs by number, in order, from a number on."""
    numbers = sorted(int(name[:-4]) for name in os.listdir(data) if name.endswith(".log"))
    return {number: os.path.join(data, f"{number:06d}.log") for number in numbers if number >= lowest}


def read(path: str, raw: bytes, verified: int) -> Version:
    """Read a manifest, whose first bytes have been verified."""
    version = Version(tables={})
    for record in records(path, raw, verified):
        if version.unknown is None:
            try:
                _apply(version, record)
            except IndexError:
                raise corrupt(path, "a record ends too early") from None
    return version


def _apply(version: Version, record: bytes) -> None:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = record[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def skip_text() -> None:
        nonlocal at
        size = number()  # moves `at`
        at += size

    while at < len(record):
        tag = number()
        if tag in _NUMBERS:
            value = number()
            if tag == _LOG:
                version.log = value
        elif tag == _COMPARATOR or tag > _SKIPPABLE:
            skip_text()
        elif tag == _CURSOR:
            number()
            skip_text()
        elif tag == _DELETED:
            number()
            version.tables.pop(number(), None)
        elif tag in (_NEW, _NEW_ROCKSDB):
            number()
            table = number()
            version.tables[table] = number()
            skip_text()
            skip_text()
            if tag == _NEW_ROCKSDB:
                number()
                version.flushed = max(version.flushed, number())
                while number() != _TERMINATE:
                    skip_text()
        else:
            version.unknown = tag
            return
