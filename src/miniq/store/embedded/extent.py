"""The number of changes that RocksDB's log must contain.

RocksDB recycles log files, which makes an fsync much cheaper because the file does not grow. Remains of the old log
then follow the last record, so that a damaged record and the end of the log look alike. This file beside the log holds
how many changes the log must contain: all synced ones and, unless the machine was rebooted, all written ones.
"""

from __future__ import annotations

import os
import struct
import time
from zlib import crc32

NAME = "EXTENT"
_shape = struct.Struct("<8sQQ16s")
_checked = struct.Struct("<I")
_MAGIC = b"MINIQLOG"
_BOOT = "/proc/sys/kernel/random/boot_id"
KEPT = 5.0
"""Seconds after which a synced write syncs this file too; a power loss leaves a version no older than that."""


class Extent:
    def __init__(self, folder: str) -> None:
        self._boot = _boot()
        self._synced = self._written = 0
        self._kept = time.monotonic()
        self._file = os.open(os.path.join(folder, NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        raw = os.pread(self._file, _shape.size + _checked.size, 0)
        if len(raw) == _shape.size + _checked.size and _checked.unpack_from(raw, _shape.size)[0] == crc32(
            raw[: _shape.size]
        ):
            magic, synced, written, boot = _shape.unpack_from(raw)
            if magic == _MAGIC:
                self._synced = synced
                self._written = written if boot == self._boot else synced

    @property
    def needed(self) -> int:
        """How many changes the log must contain at least."""
        return self._written

    def wrote(self, changes: int, sync: bool) -> None:
        """Record the number of changes in the log, on disk if `sync`."""
        self._written = changes
        if sync:
            self._synced = changes
        raw = _shape.pack(_MAGIC, self._synced, changes, self._boot)
        os.pwrite(self._file, raw + _checked.pack(crc32(raw)), 0)
        if sync and time.monotonic() > self._kept + KEPT:
            self.keep()

    def keep(self) -> None:
        """Sync the file."""
        os.fdatasync(self._file)
        self._kept = time.monotonic()

    def close(self) -> None:
        os.close(self._file)


def _boot() -> bytes:
    """An id that changes with every boot; random on systems other than Linux."""
    try:
        with open(_BOOT, "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return os.urandom(16)
