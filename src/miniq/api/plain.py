"""Sends that say nothing but their bodies: JSON, or bytes in MessagePack. Most are so, and need no record per message.

What says more, or is wrong, is left to the ordinary readers, which also say what is wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import NamedTuple, cast

import msgspec
from msgspec import Raw, Struct

from miniq.api.codec import OCTETS, Format, Reader
from miniq.api.shapes import SendBody
from miniq.message import JSON, PlainDrafts

UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What is raised by bytes that are not a plain send."""


class SendReader(Reader):
    """Reads what is sent, plain or not."""

    def __init__(self) -> None:
        super().__init__(SendBody)

    def read(self, raw: bytes, format: Format) -> SendBody | PlainDrafts:
        lone = LONE[format]
        body = lone.read(raw)
        return self.read_other(raw, format) if body is None else PlainDrafts([body], lone.content_type)

    def read_other(self, raw: bytes, format: Format) -> SendBody | PlainDrafts:
        """The same for what is not a lone plain message."""
        if format == "json":
            if raw.startswith(b'{"messages":'):
                with contextlib.suppress(*UNREADABLE):
                    check_text(raw)
                    return PlainDrafts([bytes(one.body) for one in _plain_many(raw).messages])
        elif raw.startswith(_MESSAGES):
            with contextlib.suppress(*UNREADABLE):
                return PlainDrafts([one.data for one in _data_many(raw).messages], OCTETS)
        return cast(SendBody, super().read(raw, format))


def _lone_json(raw: bytes) -> bytes | None:
    if raw.startswith(b'{"body":'):
        try:
            if not raw.isascii():
                str(raw, "utf-8")  # see `check_text`
            return bytes(_plain_one(raw).body)
        except UNREADABLE:
            pass
    return None


def _lone_bytes(raw: bytes) -> bytes | None:
    if raw.startswith(_DATA):
        with contextlib.suppress(*UNREADABLE):
            return _data_one(raw).data
    return None


class Lone(NamedTuple):
    """How a request that sends one plain message is read."""

    content_type: str
    """Of the body."""
    read: Callable[[bytes], bytes | None]
    """Gives the body, None if the request says anything else."""


LONE: dict[Format, Lone] = {"json": Lone(JSON, _lone_json), "msgpack": Lone(OCTETS, _lone_bytes)}


def check_text(raw: bytes) -> None:
    """A body is handed on unread, so what is not UTF-8 would come out again; raises `UnicodeDecodeError`."""
    if not raw.isascii():
        str(raw, "utf-8")


class PlainOne(Struct, forbid_unknown_fields=True, gc=False):
    body: Raw


class DataOne(Struct, forbid_unknown_fields=True, gc=False):
    data: bytes


class _PlainMany(Struct, forbid_unknown_fields=True):
    messages: list[PlainOne]


class _DataMany(Struct, forbid_unknown_fields=True):
    messages: list[DataOne]


_DATA, _MESSAGES = b"\x81\xa4data", b"\x81\xa8messages"
"""How a map in MessagePack begins that has one name."""
_plain_one = msgspec.json.Decoder(PlainOne).decode
_plain_many = msgspec.json.Decoder(_PlainMany).decode
_data_one = msgspec.msgpack.Decoder(DataOne).decode
_data_many = msgspec.msgpack.Decoder(_DataMany).decode
