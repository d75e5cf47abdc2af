"""Replies that may be long, written in pieces so that only a few MiB of them are in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from msgspec import Struct

from miniq import dispatch
from miniq.api import arrow, codec, shapes
from miniq.api import operations as ops
from miniq.api.codec import Format
from miniq.api.messages import claimed_messages
from miniq.api.replies import queue_reply
from miniq.batch import Portion
from miniq.broker import Broker
from miniq.dispatch import Caller
from miniq.message import QueueInfo

QUEUES = 200
"""Queues per piece of a reply."""


class Streamed(Struct):
    """A reply written in pieces."""

    pieces: AsyncIterator[bytes | memoryview]
    media: str
    headers: dict[str, str] = {}


async def claim(broker: Broker, call: ops.ReadClaim, format: Format) -> Streamed:
    """The messages of a claim, or of a part of it."""
    part = await broker.claims.fetch(call.queue, call.group, call.claim, call.part, call.parts, call.reader)
    batches = (claimed_messages(batch, format) async for batch in part.each())
    return Streamed(_array("messages", batches, len(part), format), codec.MEDIA[format])


def queues(infos: Sequence[QueueInfo], format: Format) -> Streamed:
    """All queues; other calls run in between."""

    async def batches() -> AsyncIterator[list[shapes.QueueReply]]:
        for start in range(0, len(infos), QUEUES):
            yield [queue_reply(info) for info in infos[start : start + QUEUES]]
            await asyncio.sleep(0)

    return Streamed(_array("queues", batches(), len(infos), format), codec.MEDIA[format])


async def _array(name: str, batches: AsyncIterator[Sequence[Any]], count: int, format: Format) -> AsyncIterator[bytes]:
    """A record in JSON or MessagePack whose only field is an array of `count` elements; no batch is empty."""
    if format == "msgpack":
        # A map of one entry, its name, and an array whose length takes four bytes.
        yield b"\x81" + codec.encode(name, format) + b"\xdd" + count.to_bytes(4, "big")
        async for batch in batches:
            yield b"".join(codec.encode(element, format) for element in batch)
        return
    yield b'{"%b":[' % name.encode()
    separator = b""
    async for batch in batches:
        yield separator + codec.encode_json(batch)[1:-1]
        separator = b","
    yield b"]}"


# Arrow


async def arrow_claim(broker: Broker, call: ops.ReadClaim, caller: Caller) -> Streamed:
    arrow.arrow()  # if it is not installed, say so before the reply begins
    part = await broker.claims.fetch(call.queue, call.group, call.claim, call.part, call.parts, call.reader)
    return Streamed(_arrow_messages(part.read()), arrow.MEDIA)


async def _arrow_messages(batches: AsyncIterator[Sequence[Portion]]) -> AsyncIterator[bytes | memoryview]:
    encoder = arrow.Encoder(arrow.messages_schema())
    async for batch in batches:
        yield encoder.batch(arrow.portions(batch))
    yield encoder.end()


async def arrow_peek(broker: Broker, call: ops.Peek, caller: Caller) -> Streamed:
    page = await dispatch.peek_table(broker, call, caller)
    return _arrow_page(page.table, arrow.messages_schema(), {} if page.next is None else {"miniq-next": page.next})


async def arrow_history(broker: Broker, call: ops.History, caller: Caller) -> Streamed:
    page = await dispatch.history_table(broker, call, caller)
    cursors = {f"miniq-{name}": str(getattr(page, name)) for name in ("next", "first", "last")}
    return _arrow_page(page.table, arrow.history_schema(), cursors)


def _arrow_page(table: Any, schema: Any, cursors: dict[str, str]) -> Streamed:
    """A page as an Arrow stream; its cursors are in the HTTP headers and in the schema's metadata."""

    async def whole() -> AsyncIterator[bytes]:
        yield arrow.encode(table.to_batches(), schema, cursors)

    return Streamed(whole(), arrow.MEDIA, cursors)


ARROW: dict[str, Callable[[Broker, Any, Caller], Coroutine[Any, Any, Streamed]]] = {
    "peek": arrow_peek,
    "history": arrow_history,
    "read_claim": arrow_claim,
}
"""Calls with a reply in Arrow."""
