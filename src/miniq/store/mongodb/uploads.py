"""Uploads to a stage, as MessagePack in a few large documents."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec
from msgspec import Struct

from miniq.ids import RUN
from miniq.message import Message, PlainBatch
from miniq.store.decisions import stretches
from miniq.store.mongodb import queries
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import Document

CHUNK_BYTES = 1024 * 1024
"""The size at which a chunk ends; also the amount a commit writes at once."""
CHUNK_MESSAGES = 5000


class _Run(Struct, array_like=True, gc=False):
    """Neighbours in an upload. With `bodies`, the one message has their common fields."""

    at: int
    """The position of the first message in the ids of the part: see `stretches`."""
    messages: list[Message]
    bodies: list[bytes] | None = None

    def each(self) -> Iterator[tuple[int, Message]]:
        """Every message with its place."""
        if self.bodies is None:
            return enumerate(self.messages, self.at)
        [like] = self.messages
        alike = PlainBatch(
            [""] * len(self.bodies), like.queue, 0, like.due_at, self.bodies, like.content_type, like.priority
        )
        return enumerate(alike, self.at)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Run]).decode


def chunks(messages: Sequence[Message]) -> list[bytes]:
    """Messages in chunks that each fit into a document."""
    return [_encode(chunk) for chunk in _chunks(messages)]


async def read(
    db: Database, session: Session | None, parts: Sequence[Document]
) -> AsyncIterator[tuple[int, list[tuple[int, Message]]]]:
    """The messages of parts, chunk by chunk: the position of the part, and messages with their places in it."""
    at = 0
    for part in parts:
        async for chunk in db.uploads.find(queries.chunks(part["_id"]), session=session).sort("place").batch_size(4):
            yield at, [one for run in _decode(chunk["runs"]) for one in run.each()]
        at += RUN * int(part["runs"])


def _chunks(messages: Sequence[Message]) -> Iterator[list[_Run]]:
    chunk: list[_Run] = []
    size = count = 0
    for place, stretch in enumerate(stretches(messages)):
        start = stretch.start
        for here in stretch:
            size += 200 + messages[here].size
            count += 1
            if size >= CHUNK_BYTES or count >= CHUNK_MESSAGES:
                chunk.append(_run(place * RUN + start - stretch.start, messages[start : here + 1]))
                yield chunk
                chunk, size, count, start = [], 0, 0, here + 1
        if start < stretch.stop:
            chunk.append(_run(place * RUN + start - stretch.start, messages[start : stretch.stop]))
    if chunk:
        yield chunk


def _run(at: int, some: Sequence[Message]) -> _Run:
    if isinstance(some, PlainBatch):
        like = Message("", some.queue, 0, some.due_at, b"", some.content_type, some.priority)
        return _Run(at, [like], list(some.bodies))
    return _Run(at, list(some))
