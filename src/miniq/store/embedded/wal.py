"""Log damage that the drivers mistake for the end of the log.

RocksDB and LevelDB write the same log format: blocks of 32 KiB with records of checksum, length, type and payload. Both
verify checksums, but trust length and type. A record in the last block that extends past the end of the file is taken
for a torn write, and to RocksDB an unknown type is the remains of an older log (some even cause an endless loop). So
one flipped bit could hide every record after it. Only these headers are checked here; the drivers do the rest.
"""

from __future__ import annotations

import mmap
import os
import struct

BLOCK = 32768
_header = struct.Struct("<IHB")
_TYPES = range(1, 5)
"""Full, first, middle, last."""


def damage(folder: str) -> tuple[str, str] | None:
    """The first log of a database with invalid headers, and what is wrong with it."""
    try:
        logs = sorted(name for name in os.listdir(folder) if name.endswith(".log"))
    except FileNotFoundError:
        return None
    for name in logs:
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size:
                with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as raw:
                    wrong = _check(raw, size)
                if wrong is not None:
                    return path, wrong
    return None


def _check(raw: mmap.mmap, size: int) -> str | None:
    at = 0
    unpack, header = _header.unpack_from, _header.size
    while True:
        left = BLOCK - at % BLOCK
        if left < header:
            at += left
            left = BLOCK
        if at + header > size:
            return None
        checksum, length, kind = unpack(raw, at)
        end = at + header + length
        if kind not in _TYPES:
            # Preallocated space is zero up to the end of the file.
            if not any(raw[at : min(size, at + BLOCK)]) and raw[at:].count(0) == size - at:
                return None
            return f"no record begins at byte {at}"
        if end > at + left:
            return f"the record at byte {at} has a wrong length"
        if end > size:
            if _whole(raw[at + header - 1 : size], checksum):
                return f"the record at byte {at} has a wrong length"
            return None
        at = end


def _whole(record: bytes, checksum: int) -> bool:
    """Whether a record, given from its type to the end of the file, is complete under some length: then it is not torn,
    but its length is damaged."""
    turned = (checksum - 0xA282EAD8) & 0xFFFFFFFF
    wanted = (turned >> 17 | turned << 15) & 0xFFFFFFFF ^ 0xFFFFFFFF
    crc = 0xFFFFFFFF
    table = _table()
    for place, byte in enumerate(record[:BLOCK]):
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        if crc == wanted and place:
            return True
    return False


def _table() -> list[int]:
    """The table of CRC-32C."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table
