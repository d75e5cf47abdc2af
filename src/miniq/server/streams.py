"""Replies that may be long, written in pieces so that only a few MiB of them are in memory."""

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


class Streamed(Struct):
    """A reply written in pieces."""

    pieces: AsyncIterator[bytes]
    media: str
    headers: dict[str, str] = {}


async def claim(broker: Broker, call: ops.ReadClaim, format: Format) -> Streamed:
    """The messages of a claim, or of a part of it."""
    part = await broker.claims.find(call.queue, call.group, call.claim, call.part, call.parts)
    return Streamed(_messages(part.each(), len(part), format), codec.MEDIA[format])


async def _messages(batches: AsyncIterator[Sequence[Stored]], count: int, format: Format) -> AsyncIterator[bytes]:
    """`count` messages as `MessagesReply` in JSON or MessagePack."""
    if format == "msgpack":
        # A map of one entry, its name, and an array whose length takes four bytes.
        yield b"\x81\xa8messages\xdd" + count.to_bytes(4, "big")
        async for batch in batches:
            yield b"".join(codec.encode(message, format) for message in claimed_messages(batch, format))
        return
    yield b'{"messages":['
    separator = b""
    async for batch in batches:
        yield separator + codec.encode_json(claimed_messages(batch, format))[1:-1]
        separator = b","
    yield b"]}"


# Arrow


async def arrow_claim(broker: Broker, call: ops.ReadClaim) -> Streamed:
    arrow.arrow()  # if it is not installed, say so before the reply begins
    part = await broker.claims.find(call.queue, call.group, call.claim, call.part, call.parts)
    return Streamed(_arrow_messages(part.read()), arrow.MEDIA)


async def _arrow_messages(batches: AsyncIterator[Sequence[Portion]]) -> AsyncIterator[bytes]:
    encoder = arrow.Encoder(arrow.messages_schema())
    async for batch in batches:
        yield encoder.batch(arrow.portions(batch))
    yield encoder.end()


async def arrow_peek(broker: Broker, call: ops.Peek) -> Streamed:
    page = await dispatch.peek_table(broker, call)
    return _arrow_page(page.table, arrow.messages_schema(), {} if page.next is None else {"miniq-next": page.next})


async def arrow_history(broker: Broker, call: ops.History) -> Streamed:
    page = await dispatch.history_table(broker, call)
    cursors = {f"miniq-{name}": str(getattr(page, name)) for name in ("next", "first", "last")}
    return _arrow_page(page.table, arrow.history_schema(), cursors)


def _arrow_page(table: Any, schema: Any, cursors: dict[str, str]) -> Streamed:
    """A page as an Arrow stream; its cursors are in the HTTP headers and in the schema's metadata."""

    async def whole() -> AsyncIterator[bytes]:
        yield arrow.encode(table.to_batches(), schema, cursors)

    return Streamed(whole(), arrow.MEDIA, cursors)


ARROW: dict[str, Callable[[Broker, Any], Coroutine[Any, Any, Streamed]]] = {
    "peek": arrow_peek,
    "history": arrow_history,
    "read_claim": arrow_claim,
}
"""Calls with a reply in Arrow."""
