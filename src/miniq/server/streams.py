"""Replies that may be long, made piece by piece, so that no more than a few MiB of them are in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Struct

from miniq.api import arrow, codec
from miniq.api.codec import Format
from miniq.message import Portion, Stored

Pieces = AsyncIterator[Sequence[Stored]]


class Streamed(Struct):
    """A reply that is written piece by piece, because it may be long."""

    pieces: AsyncIterator[bytes]
    media: str
    headers: dict[str, str] = {}


async def messages(pieces: Pieces, count: int, format: Format) -> AsyncIterator[bytes]:
    """`count` messages of a claim, as `MessagesReply` in JSON or MessagePack."""
    if format == "json":
        yield b'{"messages":['
    else:
        # A map of one, its name, and an array whose length takes four bytes.
        yield b"\x81\xa8messages\xdd" + count.to_bytes(4, "big")
    first = True
    async for some in pieces:
        found = codec.claimed_messages(some, format)
        if format == "json":
            joined = codec.encode_json(found)[1:-1]
            yield joined if first else b"," + joined
        else:
            yield b"".join(codec.encode(message, format) for message in found)
        first = False
    if format == "json":
        yield b"]}"


async def arrow_messages(pieces: AsyncIterator[Sequence[Portion]]) -> AsyncIterator[bytes]:
    """Messages of a claim as an Arrow stream."""
    encoder = arrow.Encoder(arrow.messages_schema())
    async for some in pieces:
        yield encoder.batch(arrow.portions(some))
    yield encoder.end()


def arrow_page(batches: Sequence[Any], schema: Any, about: dict[str, str]) -> Streamed:
    """A page of messages or history as an Arrow stream; where it goes on is in the headers, and with the schema."""

    async def whole() -> AsyncIterator[bytes]:
        yield arrow.encode(batches, schema, about)

    return Streamed(whole(), arrow.MEDIA, about)
