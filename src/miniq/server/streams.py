"""Replies that may be long, made piece by piece, so that no more than a few MiB of them are in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from miniq import dispatch
from miniq.api import arrow, codec
from miniq.api import operations as ops
from miniq.api.codec import Format
from miniq.api.messages import claimed_messages
from miniq.broker import Broker
from miniq.message import Portion, Stored

Pieces = AsyncIterator[Sequence[Stored]]


class Streamed(Struct):
    """A reply that is written piece by piece, because it may be long."""

    pieces: AsyncIterator[bytes]
    media: str
    headers: dict[str, str] = {}


async def claim(broker: Broker, call: ops.ReadClaim, format: Format) -> Streamed:
    """The messages of a claim, or of a part of it."""
    part = await broker.claims.find(call.queue, call.group, call.claim, call.part, call.parts)
    return Streamed(messages(part.each(), len(part), format), codec.MEDIA[format])


async def messages(pieces: Pieces, count: int, format: Format) -> AsyncIterator[bytes]:
    """`count` messages of a claim, as `MessagesReply` in JSON or MessagePack."""
    if format == "json":
        yield b'{"messages":['
    else:
        # A map of one, its name, and an array whose length takes four bytes.
        yield b"\x81\xa8messages\xdd" + count.to_bytes(4, "big")
    first = True
    async for some in pieces:
        found = claimed_messages(some, format)
        if format == "json":
            joined = codec.encode_json(found)[1:-1]
            yield joined if first else b"," + joined
        else:
            yield b"".join(codec.encode(message, format) for message in found)
        first = False
    if format == "json":
        yield b"]}"


# Arrow


async def arrow_claim(broker: Broker, call: ops.ReadClaim) -> Streamed:
    part = await broker.claims.find(call.queue, call.group, call.claim, call.part, call.parts)
    return Streamed(arrow_messages(part.read()), arrow.MEDIA)


async def arrow_peek(broker: Broker, call: ops.Peek) -> Streamed:
    page = await dispatch.peek_table(broker, call)
    about = {} if page.next is None else {"miniq-next": page.next}
    return arrow_page(page.table.to_batches(), arrow.messages_schema(), about)


async def arrow_history(broker: Broker, call: ops.History) -> Streamed:
    page = await dispatch.history_table(broker, call)
    about = {f"miniq-{name}": str(getattr(page, name)) for name in ("next", "first", "last")}
    return arrow_page(page.table.to_batches(), arrow.history_schema(), about)


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


ARROW: dict[str, Callable[[Broker, Any], Coroutine[Any, Any, Streamed]]] = {
    "peek": arrow_peek,
    "history": arrow_history,
    "read_claim": arrow_claim,
}
"""Calls that may be answered in Arrow."""
