"""Replies that may be long, made piece by piece, so that no more than a few MiB of them are in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from miniq.message import Stored
from miniq.wire import codec
from miniq.wire.codec import Format

Pieces = AsyncIterator[Sequence[Stored]]


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
