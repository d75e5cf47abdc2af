"""The files of the commit log: their format, and how they are read after a crash.

A segment is a file that was written with zeros before its use; segments are numbered. It begins with a header, then has
records, each aligned to 32 bytes: a header with a checksum of its own, the payload, and a byte that is not zero. The
checksum of a payload is chained over the record before, also from segment to segment. The last record of a segment that
is followed by another one seals it.

A disk writes sectors of 512 bytes as a whole, in any order, and at a crash some of the last write may be missing. A
missing sector is all zeros. That is how a torn write differs from damage:

- No sector of a record is all zeros: a payload with that many zeros is written masked. A header never crosses sectors.
- Where a record should begin and all is zeros, the log ends. A header that does not verify is torn if all after it is
  zeros, and damage otherwise.
- A payload that does not verify is torn if a sector of it is all zeros, or if it lacks its last byte, as after a write
  that the system cut short; it is damage otherwise.
- Each header says up to which change the log was on disk when it was written. So a log that ends before a change that
  was on disk, as a later record says, is damaged.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from zlib import crc32

from msgspec import Struct
from msgspec.structs import astuple

from miniq.store.embedded.wal import corrupt

NAME = "log"
"""The folder of the segments, beside the database."""
SUFFIX = ".segment"
SECTOR = 512
ALIGNMENT = 32
"""Divides `SECTOR`, and is not less than `HEADER`, so that no header crosses sectors."""
_FILE = re.compile(rf"(\d{{6,}}){re.escape(SUFFIX)}")
START = 64
"""Where the first record of a segment begins."""
RECORD = struct.Struct("<2sBBIQQI")
"""Magic, kind, whether it is masked, length of the payload, change, change up to which the log is on disk, checksum of
the payload. The checksum of these follows."""
HEADER = 32
"""Bytes of both."""
MAGIC = b"MQ"
CHANGE, SEAL = 1, 2
END = b"\xe5"
MASK = 16
_OPENING = struct.Struct("<8s8sQQQII")
"""Magic, id of the log, number of the segment, its first change, size of the file, checksum of the record before,
checksum of this header."""
_OPENING_MAGIC = b"MINIQLG1"
ZEROS = bytes(SECTOR)


class Opening(Struct, frozen=True):
    """What the header of a segment says."""

    log_id: bytes
    number: int
    first: int
    size: int
    chain: int


def file_name(number: int) -> str:
    return f"{number:06d}{SUFFIX}"


def numbers(folder: str) -> list[int]:
    """The numbers of the segments in a folder, in order."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = {name: int(match[1]) for name in names if (match := _FILE.fullmatch(name)) is not None}
    return sorted(number for name, number in found.items() if name == file_name(number))


def has_changes(folder: str) -> bool:
    """Whether there is a log in a folder to which something was written."""
    found = numbers(folder)
    if len(found) > 1:
        return True
    for number in found:
        with open(os.path.join(folder, file_name(number)), "rb") as file:
            return any(file.read(START + HEADER)[START:])
    return False


def seed(log_id: bytes, number: int) -> int:
    """What the checksums of headers in a segment begin with, so that no body can hold a record that seems to be one of
    this segment."""
    return crc32(log_id + number.to_bytes(8))


def encode_opening(opening: Opening) -> bytes:
    raw = _OPENING.pack(_OPENING_MAGIC, *astuple(opening), 0)[:-4]
    return raw + crc32(raw).to_bytes(4, "little")


def masked(payload: bytes) -> bytes:
    """A payload with `ZEROS`, without. The mask is random, so that no body can be made that is all zeros under it."""
    mask = os.urandom(MASK)
    return mask + _apply(mask, payload)


def unmasked(is_masked: int, payload: bytes) -> bytes:
    return _apply(payload[:MASK], payload[MASK:]) if is_masked else payload


def _apply(mask: bytes, payload: bytes) -> bytes:
    size = len(payload)
    pattern = int.from_bytes((mask * (size // MASK + 1))[:size])
    return (int.from_bytes(payload) ^ pattern).to_bytes(size)


def padded(length: int) -> int:
    """How much space a record takes."""
    return (HEADER + length + len(END) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


class Read(Struct):
    """A segment that was read."""

    number: int
    size: int
    last: int
    """Its last change, or the one before it if it has none."""


class Tail(Struct):
    """Where a log ends."""

    change: int
    """The last change, or the one before the first segment if there is none."""
    chain: int = 0
    """The checksum of its record."""
    at: int = 0
    """Where the next record goes in the last segment."""
    is_clean: bool = True
    """Whether nothing follows."""
    segments: list[Read] = []


class LogReader:
    """Reads a log in order. `tail` says afterwards where it ends. Raises `StoreCorrupt` if it is damaged, or does not
    continue at the change after `applied`, which is the last that the engine has on disk."""

    def __init__(self, folder: str, log_id: bytes, applied: int | None, oldest: int = 0) -> None:
        """Without `applied`, all that can be verified without it is verified. Segments before the oldest were to be
        removed."""
        self._folder = folder
        self._oldest = oldest
        self._seed = 0
        self._applied = applied
        self._log_id = log_id
        self._sealed = False
        self.tail = Tail(applied or 0, segments=[])

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """The changes after `applied`, with their payloads."""
        found = [number for number in numbers(self._folder) if number >= self._oldest]
        if not found:
            raise corrupt(self._folder, "it has no segment")
        for number in found:
            path = os.path.join(self._folder, file_name(number))
            with open(path, "rb") as file:
                raw = file.read()  # not mapped: an error of the disk would end the process
            if len(raw) < START:
                raise corrupt(path, f"its size is {len(raw)} B")
            yield from self._read(path, number, raw, is_last=number == found[-1])

    def _read(self, path: str, number: int, raw: bytes, is_last: bool) -> Iterator[tuple[int, bytes]]:
        opening = _decode_opening(path, raw)
        self._follow(path, number, opening)
        if len(raw) != opening.size:
            raise corrupt(path, f"its size is {len(raw)} B, and was {opening.size} B")
        tail = self.tail
        tail.at, tail.is_clean = START, True
        self._seed = seed(opening.log_id, number)
        self._sealed = sealed = False
        while not sealed:
            header = self._header(path, raw)
            payload = None if header is None else self._payload(path, raw, header)
            if header is None or payload is None:
                break
            kind, _, length, change, _, checksum = header
            tail.at += padded(length)
            if kind == SEAL:
                self._sealed = sealed = True
                continue
            tail.change, tail.chain = change, checksum
            if change > (self._applied or 0):
                yield change, payload
        if is_last:
            if sealed:
                raise corrupt(self._folder, f"the segment after {path} is missing")
            tail.is_clean = _is_zero(raw, tail.at)
        if not sealed and not (is_last and tail.is_clean):
            self._require_torn(path, raw)
        tail.segments.append(Read(number, opening.size, tail.change))

    def _follow(self, path: str, number: int, opening: Opening) -> None:
        """Raise unless a segment continues the one before it, or the engine has what is missing between them."""
        if number != opening.number:
            raise corrupt(path, f"it is segment {opening.number}")
        if opening.log_id != self._log_id:
            raise corrupt(path, "it belongs to the log of another store")
        tail = self.tail
        before = tail.segments[-1] if tail.segments else None
        is_applied = not self._sealed if self._applied is None else opening.first - 1 <= self._applied
        if is_applied:
            tail.change, tail.chain = opening.first - 1, opening.chain
        elif before is None:
            raise corrupt(path, f"the segment before it is missing: change {self._applied} was the last")
        elif (number, opening.first, opening.chain) != (before.number + 1, tail.change + 1, tail.chain):
            raise corrupt(path, f"it does not continue the segment before it, which ends with change {tail.change}")

    def _payload(self, path: str, raw: bytes, header: tuple[int, int, int, int, int, int]) -> bytes | None:
        """The payload of the record at the end of what was read; None if it is torn."""
        kind, is_masked, length, change, _, checksum = header
        at = self.tail.at
        if change != self.tail.change + (kind == CHANGE):
            raise corrupt(path, f"the record at byte {at} has change {change}, and {self.tail.change} was the last")
        start = at + HEADER
        end = start + length
        if end >= len(raw):
            raise corrupt(path, f"the record at byte {at} is longer than the file")
        payload = raw[start:end]
        if crc32(payload, self.tail.chain) == checksum:
            return unmasked(is_masked, payload)
        if raw[end] and not _lacks_sector(raw, at, end + len(END)):
            raise corrupt(path, f"the record at byte {at}, change {change}, has a wrong checksum")
        return None

    def _header(self, path: str, raw: bytes) -> tuple[int, int, int, int, int, int] | None:
        """Kind, masked or not, length, change, durable and checksum of the record at the end of what was read; None if
        there is none."""
        at = self.tail.at
        header = _decode_header(raw, at, self._seed)
        if header is None and any(raw[at : at + HEADER]) and not _is_zero(raw, at + HEADER):
            raise corrupt(path, f"the header at byte {at} has a wrong checksum")
        return header

    def _require_torn(self, path: str, raw: bytes) -> None:
        """Raise if a record after the end says that the log had gone on there, on disk."""
        at = self.tail.at
        while (at := raw.find(MAGIC, at)) >= 0:
            header = None if at % ALIGNMENT else _decode_header(raw, at, self._seed)
            if header is not None and header[4] > self.tail.change:
                raise corrupt(
                    path,
                    f"the record at byte {self.tail.at} is missing: change {self.tail.change + 1} was on disk, "
                    f"as the record at byte {at} says",
                )
            at += 1


def verify(folder: str, log_id: bytes, oldest: int, newest: int, change: int) -> None:
    """Raise if a log is damaged, or lacks one of the segments, or ends before a change, that it had for certain."""
    found = [number for number in numbers(folder) if number >= oldest]
    for number in {oldest, newest, *range(found[0], found[-1])} - {0} if found else ():
        if number not in found:
            raise corrupt(os.path.join(folder, file_name(number)), "it is missing")
    reader = LogReader(folder, log_id, None, oldest)
    for _ in reader:
        pass
    if reader.tail.change < change:
        path = os.path.join(folder, file_name(found[-1]))
        raise corrupt(path, f"it ends with change {reader.tail.change}, and there was change {change}")


def _decode_opening(path: str, raw: bytes) -> Opening:
    magic, log_id, number, first, size, chain, checksum = _OPENING.unpack_from(raw, 0)
    if magic != _OPENING_MAGIC or crc32(raw[: _OPENING.size - 4]) != checksum:
        raise corrupt(path, "its header has a wrong checksum")
    return Opening(log_id, number, first, size, chain)


def _decode_header(raw: bytes, at: int, seed: int) -> tuple[int, int, int, int, int, int] | None:
    """Kind, masked or not, length, change, durable and checksum of a record; None if none begins there."""
    header = raw[at : at + HEADER]
    if len(header) < HEADER or header[:2] != MAGIC or crc32(header[:-4], seed) != int.from_bytes(header[-4:], "little"):
        return None
    _, kind, is_masked, length, change, durable, checksum = RECORD.unpack_from(header)
    return kind, is_masked, length, change, durable, checksum


def _lacks_sector(raw: bytes, start: int, end: int) -> bool:
    """Whether a sector between two places is all zeros."""
    at = start
    while at < end:
        next_sector = min(at // SECTOR * SECTOR + SECTOR, end)
        if not any(raw[at:next_sector]):
            return True
        at = next_sector
    return False


def _is_zero(raw: bytes, at: int) -> bool:
    """Whether all is zeros from a place on."""
    while at < len(raw):
        part = raw[at : at + 1024 * 1024]
        if part.count(0) != len(part):
            return False
        at += len(part)
    return True
