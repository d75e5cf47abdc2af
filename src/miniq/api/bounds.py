"""Bounds on the values in a request, checked before a Python object is built for each of them.

One byte of MessagePack, or three of JSON, become about a hundred bytes of memory: a request of 16 MiB would take more
than a GiB. Small requests need no check. Bodies in JSON are not decoded and do not count.
"""

from __future__ import annotations

import contextlib
import re
import threading
from codecs import utf_8_decode
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from miniq.errors import TooLarge

Format = Literal["json", "msgpack"]

SMALL = 256 * 1024
"""Requests up to this size are not checked."""
VALUES = 400_000
"""Maximum number of values in a request, bodies not included. In JSON commas are counted, also those in strings."""
BODY_VALUES = 600_000
"""Maximum number of values in a body in MessagePack; as JSON, as many take more than a MiB."""
_PIECE = 64 * 1024


def check_values(raw: bytes, format: Format, has_bodies: bool) -> None:
    """Refuse a large request with too many values. One that `has_bodies` may have any number in JSON bodies."""
    if len(raw) <= SMALL:
        return
    if has_bodies:
        is_over = _has_many_messages(raw, format)
    else:
        is_over = raw.count(b",") >= VALUES if format == "json" else _exceeds(raw, VALUES)
    if is_over:
        raise TooLarge(f"request: more than {VALUES} values; split it", field="request")


def check_body(raw: bytes, field: str) -> None:
    """Refuse a MessagePack body with too many values."""
    if _exceeds(raw, BODY_VALUES):
        raise TooLarge(f"{field}: more than {BODY_VALUES} values", field=field)


def check_text(raw: bytes) -> None:
    """Raise `UnicodeDecodeError` for invalid UTF-8: bodies are passed on unread, so consumers would get it. In pieces,
    because a single emoji makes text four times as large in memory."""
    if len(raw) <= _PIECE:
        str(raw, "utf-8")
        return
    view, at = memoryview(raw), 0
    while at < len(raw):
        try:
            at += utf_8_decode(view[at : at + _PIECE], "strict", at + _PIECE >= len(raw))[1]
        except UnicodeDecodeError as error:
            error.start += at
            raise


# Counting


class _Left(threading.local):
    """How many more values the request that is being checked may have."""

    values = 0

    def take(self) -> None:
        self.values -= 1
        if self.values < 0:
            raise ValueError  # ends the decoding


_left = _Left()


class _Name:
    """The name of any header."""


_A_NAME = _Name()


def _name(kind: type, value: object) -> _Name:
    """Decodes the name of a header."""
    _left.take()
    return _A_NAME


class _Counted(Struct, gc=False):
    """A message of which only the headers are counted."""

    headers: dict[_Name, Raw] | None = None

    def __post_init__(self) -> None:
        _left.take()


class _Batch(_Counted):
    messages: list[_Counted] = []


_DECODERS: dict[Format, Any] = {
    "json": msgspec.json.Decoder(_Batch, dec_hook=_name),
    "msgpack": msgspec.msgpack.Decoder(_Batch, dec_hook=_name),
}


def _has_many_messages(raw: bytes, format: Format) -> bool:
    """Whether there are too many messages and headers. If the request cannot be decoded, its reader will tell."""
    _left.values = VALUES
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        _DECODERS[format].decode(raw)
    return _left.values < 0


_SHORT = re.compile(rb"[\x00-\xa0\xc0-\xc3\xe0-\xff]+")
"""Values of one byte in MessagePack; an array or map is one value, and its content more."""
_SIZES = {0xA0 + length: 1 + length for length in range(1, 32)}
_SIZES |= {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
_SIZES |= {0xD4: 3, 0xD5: 4, 0xD6: 6, 0xD7: 10, 0xD8: 18, 0xDC: 3, 0xDD: 5, 0xDE: 3, 0xDF: 5}
"""Sizes of other values by their first byte."""
_LENGTHS = {0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0), 0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1)}
_LENGTHS |= {0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0)}
"""For values that contain their length: its bytes, and the bytes between it and the content."""


def _exceeds(raw: bytes, most: int) -> bool:
    """Whether a text in MessagePack has more than `most` values."""
    if len(raw) <= most:
        return False
    count = at = 0
    while at < len(raw) and count <= most:
        first = raw[at]
        if first in _SIZES:
            at += _SIZES[first]
            count += 1
        elif first in _LENGTHS:
            width, more = _LENGTHS[first]
            at += 1 + width + more + int.from_bytes(raw[at + 1 : at + 1 + width], "big")
            count += 1
        else:
            start, at = at, _SHORT.match(raw, at).end()  # type: ignore[union-attr]
            count += at - start
    return count > most
