"""The format of logs and manifests, which RocksDB and LevelDB share: blocks of 32 KiB with records of checksum, length,
type and payload.

Both engines verify checksums, but trust length and type. A record in the last block that extends past the end of the
file is taken for a torn write, and to RocksDB an unknown type is the remains of an older log (some even cause an
endless loop). So one flipped bit could hide every record after it.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from functools import cache

from miniq.errors import StoreCorrupt

BLOCK = 32768
_header = struct.Struct("<IHB")
_recyclable = struct.Struct("<IHBIQ")
"""The start of a record in a recycled log of RocksDB: its header, with the number of the log, and the first sequence
number of its batch."""
_TYPES = _FULL, _FIRST, _MIDDLE, _LAST = range(1, 5)


def corrupt(path: str, text: str, field: str = "store") -> StoreCorrupt:
    """The error for a damaged file."""
    advice = "Use another backup" if field == "backup" else "Restore the folder from a backup (miniq restore)"
    return StoreCorrupt(
        f"{field}: {path} is damaged ({text}). Nothing was changed. {advice}, or put back the undamaged file",
        field=field,
    )


def check_log(path: str, needed: int) -> None:
    """Raise unless the headers of a log are valid, up to `needed` bytes at least. A torn write after that is fine. The
    checksums are left to the engine."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < needed:
            raise corrupt(path, f"its size is {size} B, and was {needed} B")
        if size:
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as raw:
                for _ in _fragments(path, raw, size, needed):
                    pass


def records(path: str, raw: bytes, verified: int) -> Iterator[bytes]:
    """The records of a manifest. Checksums are verified from byte `verified` on."""
    parts: list[bytes] = []
    for kind, start, end in _fragments(path, raw, len(raw), 0):
        payload = raw[start:end]
        if end > verified and _crc32c(raw[start - 1 : end]) != _unmasked(raw, start):
            raise corrupt(path, f"the record at byte {start - _header.size} has a wrong checksum")
        if (kind in (_FULL, _FIRST)) == bool(parts):
            raise corrupt(path, f"the record at byte {start - _header.size} does not continue the one before it")
        parts.append(payload)
        if kind in (_FULL, _LAST):
            yield b"".join(parts)
            parts = []


def first_sequence(path: str) -> int | None:
    """The first sequence number in one of RocksDB's recycled logs; None if nothing was written to it yet."""
    with open(path, "rb") as file:
        raw = file.read(_recyclable.size)
    if len(raw) < _recyclable.size:
        return None
    _, _, _, number, sequence = _recyclable.unpack(raw)
    return sequence if number == int(os.path.basename(path).partition(".")[0]) & 0xFFFFFFFF else None


def _fragments(path: str, raw: bytes | mmap.mmap, size: int, needed: int) -> Iterator[tuple[int, int, int]]:
    """Type, start and end of each physical record; raises if one before `needed` is torn, or any is damaged."""
    at = 0
    unpack, header = _header.unpack_from, _header.size
    while True:
        left = BLOCK - at % BLOCK
        if left < header:
            at += left
            left = BLOCK
        if at + header > size:
            if at < needed:
                raise corrupt(path, f"the record at byte {at} is cut off")
            return
        _, length, kind = unpack(raw, at)
        end = at + header + length
        if kind not in _TYPES:
            # Preallocated space is zero up to the end of the file.
            if at >= needed and not any(raw[at : min(size, at + BLOCK)]) and raw[at:].count(0) == size - at:
                return
            raise corrupt(path, f"no record begins at byte {at}")
        if end > at + left or (end > size and (at < needed or _is_whole(raw, at + header, size))):
            raise corrupt(path, f"the record at byte {at} has a wrong length")
        if end > size:
            return
        yield kind, at + header, end
        at = end


def _is_whole(raw: bytes | mmap.mmap, start: int, size: int) -> bool:
    """Whether the record whose payload starts here, and extends past the end of the file, is complete under some other
    length: then it is not torn, but its length is damaged."""
    wanted = _unmasked(raw, start)
    crc = 0xFFFFFFFF
    table = _table()
    for place, byte in enumerate(raw[start - 1 : min(size, start + BLOCK)]):
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
        if crc ^ 0xFFFFFFFF == wanted and place:
            return True
    return False


def _unmasked(raw: bytes | mmap.mmap, start: int) -> int:
    """The checksum of the record whose payload starts here, which is stored rotated and with a constant added."""
    turned = (_header.unpack_from(raw, start - _header.size)[0] - 0xA282EAD8) & 0xFFFFFFFF
    return int((turned >> 17 | turned << 15) & 0xFFFFFFFF)


def _crc32c(raw: bytes) -> int:
    crc = 0xFFFFFFFF
    table = _table()
    for byte in raw:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


@cache
def _table() -> list[int]:
    """The table of CRC-32C."""
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table
