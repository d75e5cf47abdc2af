"""The records of messages in the embedded store: a block has its own messages, or refers to those of a staged or shared
block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from miniq.errors import StoreCorrupt
from miniq.ids import RunIds, ids_from
from miniq.message import Message, PlainBatch
from miniq.packed import Packed
from miniq.store.decisions import committed, plain_batch
from miniq.store.embedded.keys import SHARED, decode_sharers, encode

Get = Callable[[bytes], bytes | None]


class PlainBlock(Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Messages that differ only in their bodies; the common fields are stored once."""

    first: str
    queue: str
    sent_at: int
    due_at: int
    content_type: str
    priority: int
    bodies: Sequence[bytes]
    topic: str | None = None


class MixedBlock(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Messages that differ in more than their bodies."""

    messages: list[Message]


class StagedBlock(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Messages committed from a stage: the key of the staged block, their first id, and the commit time."""

    at: bytes
    first: str
    sent_at: int
    count: int = 0
    """How many there are if they differ only in their bodies; else unknown, like their size."""
    size: int = 0


class PackedBlock(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A `PlainBlock` whose bodies are in one piece: see `packed.py`."""

    first: str
    queue: str
    sent_at: int
    due_at: int
    content_type: str
    priority: int
    lengths: memoryview
    bodies: memoryview
    topic: str | None = None


class SharedBlock(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The copies that a queue has of published messages: the key of the shared block, the queue, and when they are
    due."""

    at: bytes
    queue: str
    due_at: int


_decode_block = msgspec.msgpack.Decoder(PlainBlock | MixedBlock | StagedBlock | PackedBlock | SharedBlock).decode


def encode_block(messages: Sequence[Message]) -> bytes:
    """Encode messages with consecutive ids as a block."""
    batch = messages if isinstance(messages, PlainBatch) else plain_batch(messages)
    if batch is None:
        return encode(MixedBlock(list(messages)))
    common = (batch.ids[0], batch.queue, batch.sent_at, batch.due_at, batch.content_type, batch.priority)
    bodies = batch.bodies
    if isinstance(bodies, Packed):
        return encode(PackedBlock(*common, bodies.lengths, bodies.blob, batch.topic))
    return encode(PlainBlock(*common, bodies, batch.topic))


def decode_block(value: bytes, get: Get) -> Sequence[Message]:
    """The messages of a block; `get` reads staged and shared ones."""
    block = _decode_block(value)
    if isinstance(block, MixedBlock):
        return block.messages
    if isinstance(block, PlainBlock | PackedBlock):
        return _plain_batch(block, block.first, block.queue, block.sent_at, block.due_at)
    record = get(block.at)
    source = None if record is None else _decode_block(record)
    if isinstance(block, SharedBlock):
        if isinstance(source, PlainBlock | PackedBlock):
            return _plain_batch(source, source.first, block.queue, source.sent_at, block.due_at)
        if isinstance(source, MixedBlock):
            return [replace(message, queue=block.queue, due_at=block.due_at) for message in source.messages]
        raise StoreCorrupt(f"store: a record of messages of queue {block.queue!r} is missing", field="store")
    if isinstance(source, PlainBlock | PackedBlock):
        return _plain_batch(source, block.first, source.queue, block.sent_at, block.sent_at + source.due_at)
    if isinstance(source, MixedBlock):
        ids = ids_from(block.first, len(source.messages))
        return [committed(message, id, block.sent_at) for id, message in zip(ids, source.messages, strict=True)]
    raise StoreCorrupt(f"store: the record of message {block.first} is missing", field="store")


def _plain_batch(block: PlainBlock | PackedBlock, first: str, queue: str, sent_at: int, due_at: int) -> PlainBatch:
    ids: Sequence[str]
    bodies: Sequence[bytes]
    if isinstance(block, PackedBlock):
        bodies = Packed(block.bodies, block.lengths)
        ids = RunIds(first, len(bodies)) if first else [""] * len(bodies)
    else:
        bodies = block.bodies
        ids = ids_from(first, len(bodies)) if first else [""] * len(bodies)  # staged messages have none
    return PlainBatch(ids, queue, sent_at, due_at, bodies, block.content_type, block.priority, block.topic)


def encode_reference(source: bytes, message: Message) -> bytes:
    """The record of a block whose only message is elsewhere, under the key `source`."""
    if source[:1] == SHARED:
        return encode(SharedBlock(source, message.queue, message.due_at))
    return encode(StagedBlock(source, message.id, message.sent_at))


def staged_in(value: bytes) -> StagedBlock | None:
    """The block of a record if it refers to a staged one, else None."""
    if value[1:2] != b"\x02":  # the tag comes first
        return None
    block = _decode_block(value)
    return block if isinstance(block, StagedBlock) else None


def source_of(value: bytes) -> bytes | None:
    """The key of the staged or shared block that a block refers to, None if it has its own messages."""
    if value[1:2] not in (b"\x02", b"\x04"):
        return None
    block = _decode_block(value)
    return block.at if isinstance(block, StagedBlock | SharedBlock) else None


def decode_shared(key: bytes, value: bytes) -> object:
    """A shared block, or the number of queues that refer to one."""
    return decode_sharers(value) if key[-1:] == b"n" and len(key) == 14 else _decode_block(value)
