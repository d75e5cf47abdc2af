"""Fast decoding of sends that have nothing but bodies: JSON, or bytes in MessagePack, without a record per message.

Sends that have more, or are invalid, are left to the general reader, which also reports errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Annotated, NamedTuple, cast

import msgspec
from msgspec import Meta, Raw, Struct

from miniq.api import bounds
from miniq.api.bounds import check_text
from miniq.api.codec import OCTETS, Format, Reader
from miniq.api.shapes import SendBody
from miniq.message import JSON, PlainDrafts

FEW = 10 * bounds.VALUES
"""A request of this size has fewer plain messages than `VALUES`, because each takes more than ten bytes."""
UNREADABLE = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""Raised for bytes that are not a plain send."""


class SendReader(Reader):
    """Decodes sends, plain or not."""

    def __init__(self) -> None:
        super().__init__(SendBody)

    def read(self, raw: bytes, format: Format) -> SendBody | PlainDrafts:
        lone = LONE[format]
        body = lone.read(raw)
        return self.read_other(raw, format) if body is None else PlainDrafts([body], lone.content_type)

    def read_other(self, raw: bytes, format: Format) -> SendBody | PlainDrafts:
        """Decodes a request that is not a single plain message."""
        if format == "json":
            if raw.startswith(b'{"messages":'):
                if len(raw) > FEW:
                    bounds.check_values(raw, format, True)
                with contextlib.suppress(*UNREADABLE):
                    check_text(raw)
                    return PlainDrafts([bytes(message.body) for message in _plain_many(raw).messages])
        elif raw.startswith(_MESSAGES):
            with contextlib.suppress(*UNREADABLE):
                return PlainDrafts([message.data for message in _data_many(raw).messages], OCTETS)
        bounds.check_values(raw, format, True)
        return cast(SendBody, self.decode(raw, format))


def _lone_json(raw: bytes) -> bytes | None:
    if raw.startswith(b'{"body":'):
        try:
            if not raw.isascii():
                check_text(raw)
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
    """How a request that sends one plain message is decoded: the content type of its body, and a function that returns
    the body, or None if the request has anything else."""

    content_type: str
    read: Callable[[bytes], bytes | None]


LONE: dict[Format, Lone] = {"json": Lone(JSON, _lone_json), "msgpack": Lone(OCTETS, _lone_bytes)}


class PlainOne(Struct, forbid_unknown_fields=True, gc=False):
    body: Raw


class DataOne(Struct, forbid_unknown_fields=True, gc=False):
    data: bytes


class _PlainMany(Struct, forbid_unknown_fields=True):
    messages: list[PlainOne]


class _DataMany(Struct, forbid_unknown_fields=True):
    messages: Annotated[list[DataOne], Meta(max_length=bounds.VALUES)]


_DATA, _MESSAGES = b"\x81\xa4data", b"\x81\xa8messages"
"""The first bytes of a MessagePack map with one key."""
_plain_one = msgspec.json.Decoder(PlainOne).decode
_plain_many = msgspec.json.Decoder(_PlainMany).decode
_data_one = msgspec.msgpack.Decoder(DataOne).decode
_data_many = msgspec.msgpack.Decoder(_DataMany).decode
