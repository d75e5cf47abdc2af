"""How far a log goes that does not say so itself.

RocksDB writes over old logs instead of beginning new ones: that spares the file system the growing of a file, which
is a good part of an fsync. What is left of the old log then stands behind the last record, so that a damaged record
and the end of the log look alike. This file beside the log says how many changes must be found in it: all that were
synced, and, unless the machine was started anew since, all that were written.
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
"""Seconds after which a synced write brings it to disk too. What a power loss leaves of it is no older than that."""


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
        """How many changes the log must hold at least."""
        return self._written

    def wrote(self, changes: int, sync: bool) -> None:
        """So many changes are in the log by now, and on disk if `sync`."""
        self._written = changes
        if sync:
            self._synced = changes
        raw = _shape.pack(_MAGIC, self._synced, changes, self._boot)
        os.pwrite(self._file, raw + _checked.pack(crc32(raw)), 0)
        if sync and time.monotonic() > self._kept + KEPT:
            self.keep()

    def keep(self) -> None:
        """Bring to disk what it says."""
        os.fdatasync(self._file)
        self._kept = time.monotonic()

    def close(self) -> None:
        os.close(self._file)


def _boot() -> bytes:
    """What is the same until the machine is started anew; other systems than Linux do not say."""
    try:
        with open(_BOOT, "rb") as file:
            return bytes.fromhex(file.read().decode().strip().replace("-", ""))
    except (OSError, ValueError):
        return os.urandom(16)
