"""The records of the embedded store: the meaning of each key, and the encoding of its value.

    f                              format version (also in the file MINIQ beside the database)
    l                              the highest message id so far
    o                              history: first offset, bytes
    k KIND NAME                    a small record of the broker, such as an API key
    q NAME                         queue: number, serial, settings
    c NUMBER                       queue: counters, and where reading of each lane starts
    z NUMBER                       an obsolete number, whose records are being removed
    b NUMBER OWNER PRIORITY BLOCK  messages that can be taken, one block of up to 128
    w NUMBER GROUP BLOCK           a message waiting behind the head of its group
    g NUMBER GROUP                 group: number of messages, and a lower bound of the waiting ids
    i NUMBER ID                    the key of a block that cannot be derived from the id
    s NUMBER BLOCK VERSION         state of some messages of a block: lease or delay
    x NUMBER BLOCK                 which messages of a block were removed
    d SERIAL DEDUP_ID              dedup: message id and expiry
    p SERIAL READERS               claim group: epoch, last acked, last made
    n NUMBER READERS CLAIM         claim: messages and bytes, when it was made and acked
    v NUMBER READERS CLAIM PLACE   messages of an acked claim, starting at a place in it
    e SERIAL STAGE PART            a part of a stage: its upload, and how it is cut into blocks
    t UPLOAD PLACE                 a block of a stage, or of messages committed from one
    h OFFSET                       history: runs of events, the last of which has OFFSET

NUMBER and SERIAL are 4 bytes; a purged queue gets a new number and keeps its serial. OWNER, GROUP and READERS are a
2-byte length and UTF-8 text; OWNER is the recipient, empty for all consumers. PRIORITY is a digit, 9 minus the
priority. CLAIM, VERSION and OFFSET are 8 bytes, PLACE 4. All numbers are big-endian, so that keys sort by them.

STAGE is four texts: job, batch, partition, attempt. UPLOAD is 8 bytes, PART 4. A staged block has no ids, and its
times are relative to the commit. A commit writes the block's key, first id and commit time into the lane (`b`, `w`),
so it writes little, however much it commits.

The messages of an unacked claim have a state (`s`) like any lease, with the claim's name as receipt.

BLOCK is the first id of the run (see `ids.py`) for messages that were sent together, or the id and an `m` for a message
that stands alone: with a recipient or group, or edited or moved.

Values are MessagePack. To change a record, add a field with a default at the end; for anything else raise `FORMAT` and
convert at start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from miniq.errors import StoreCorrupt
from miniq.ids import ids_from
from miniq.message import Claim, Event, Message, PlainBatch, QueueSettings, StageName
from miniq.store.decisions import committed, plain_batch

FORMAT = 1

_u32 = struct.Struct(">I").pack
_u64 = struct.Struct(">Q")


class QueueRecord(Struct, frozen=True, array_like=True):
    number: int
    serial: int
    settings: QueueSettings


class PlainBlock(Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Messages that differ only in their bodies; the common fields are stored once."""

    first: str
    queue: str
    sent_at: int
    due_at: int
    content_type: str
    priority: int
    bodies: list[bytes]


class MixedBlock(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Messages that differ in more than their bodies."""

    messages: list[Message]


class StagedBlock(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Messages committed from a stage: the key of the staged block, their first id, and the commit time."""

    at: bytes
    first: str
    sent_at: int


class CountRecord(Struct, frozen=True, array_like=True):
    count: int
    size: int
    lows: dict[int, str]
    """For each priority, a block name below which the common lane has nothing to read."""


class GroupRecord(Struct, array_like=True):
    count: int
    low: str


class StateRecord(Struct, frozen=True, array_like=True, gc=False):
    """A lease or delay shared by neighbouring messages of a block."""

    owner: str
    priority: int
    count: int
    start: int
    stop: int
    visible_at: int
    receives: int
    receipt: str | None
    consumer: str | None
    taken_at: int
    group: str | None = None
    waiting: bool = False


class GoneRecord(Struct, frozen=True, array_like=True, gc=False):
    owner: str
    priority: int
    count: int
    gone: bytes
    """A bitmap, as a little-endian number."""


class DedupRecord(Struct, frozen=True, array_like=True, gc=False):
    id: str
    """The message id, or for a call all its ids (see `ids.spans`), or for a commit its number of messages."""
    until: int


class ReadersRecord(Struct, frozen=True, array_like=True):
    epoch: int
    acked: int
    last: int


class ClaimRecord(Struct, frozen=True, array_like=True):
    claim: Claim
    until: int = 0
    """Until when it is readable, once it is acked."""


class KeptRecord(Struct, frozen=True, array_like=True, gc=False):
    """Neighbours in a block that were in a claim, and the record of that block."""

    start: int
    stop: int
    receives: int
    block: bytes


class StretchRecord(Struct, frozen=True, array_like=True, gc=False):
    """What a commit needs to know of a staged block."""

    priority: int
    due_at: int
    sizes: list[int]
    alone: bool = False


class PartRecord(Struct, frozen=True, array_like=True, gc=False):
    upload: int
    messages: int
    bytes: int
    alone: int
    made_at: int
    until: int
    stretches: list[StretchRecord]


class EventRun(Struct, frozen=True, array_like=True, gc=False):
    """The same event for messages with consecutive ids of one run."""

    first: Event
    sizes: list[int] | None = None
    """The sizes of all messages, None if there is only the first."""


class HistoryHead(Struct, frozen=True, array_like=True):
    first: int
    bytes: int


Get = Callable[[bytes], bytes | None]

encode = msgspec.msgpack.Encoder().encode
_decode_block = msgspec.msgpack.Decoder(PlainBlock | MixedBlock | StagedBlock).decode
decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode
decode_count = msgspec.msgpack.Decoder(CountRecord).decode
decode_group = msgspec.msgpack.Decoder(GroupRecord).decode
decode_state = msgspec.msgpack.Decoder(StateRecord).decode
decode_gone = msgspec.msgpack.Decoder(GoneRecord).decode
decode_dedup = msgspec.msgpack.Decoder(DedupRecord).decode
decode_readers = msgspec.msgpack.Decoder(ReadersRecord).decode
decode_claim = msgspec.msgpack.Decoder(ClaimRecord).decode
decode_kept = msgspec.msgpack.Decoder(KeptRecord).decode
decode_part = msgspec.msgpack.Decoder(PartRecord).decode
decode_head = msgspec.msgpack.Decoder(HistoryHead).decode
decode_events = msgspec.msgpack.Decoder(list[EventRun]).decode


def encode_block(messages: Sequence[Message]) -> bytes:
    """Encode messages with consecutive ids as a block."""
    batch = messages if isinstance(messages, PlainBatch) else plain_batch(messages)
    if batch is None:
        return encode(MixedBlock(list(messages)))
    times = (batch.sent_at, batch.due_at)
    return encode(PlainBlock(batch.ids[0], batch.queue, *times, batch.content_type, batch.priority, batch.bodies))


def decode_block(value: bytes, get: Get) -> Sequence[Message]:
    """The messages of a block; `get` reads staged ones."""
    block = _decode_block(value)
    if isinstance(block, MixedBlock):
        return block.messages
    if isinstance(block, PlainBlock):
        return _plain_batch(block, block.first, block.sent_at, block.due_at)
    record = get(block.at)
    staged = None if record is None else _decode_block(record)
    if isinstance(staged, PlainBlock):
        return _plain_batch(staged, block.first, block.sent_at, block.sent_at + staged.due_at)
    if isinstance(staged, MixedBlock):
        ids = ids_from(block.first, len(staged.messages))
        return [committed(message, id, block.sent_at) for id, message in zip(ids, staged.messages, strict=True)]
    raise StoreCorrupt(f"store: the record of message {block.first} is missing", field="store")


def _plain_batch(block: PlainBlock, first: str, sent_at: int, due_at: int) -> PlainBatch:
    ids = ids_from(first, len(block.bodies))
    return PlainBatch(ids, block.queue, sent_at, due_at, block.bodies, block.content_type, block.priority)


def source_of(value: bytes) -> bytes | None:
    """The key of the staged block that a block refers to, None if it has its own messages."""
    if value[1:2] != b"\x02":  # the tag comes first
        return None
    block = _decode_block(value)
    return block.at if isinstance(block, StagedBlock) else None


LAST_ID = b"l"
HISTORY_HEAD = b"o"
MESSAGE_KINDS = b"bwgisxnv"
SERIAL_KINDS = b"dpe"


def _text(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(2, "big") + raw


def record_prefix(kind: str) -> bytes:
    return b"k" + _text(kind)


def read_record_key(key: bytes) -> tuple[str, str]:
    """The kind and name in the key of a small record."""
    end = 3 + int.from_bytes(key[1:3], "big")
    return key[3:end].decode(), key[end:].decode()


def queue_key(name: str) -> bytes:
    return b"q" + name.encode()


def count_key(number: int) -> bytes:
    return b"c" + _u32(number)


def garbage_key(number: int) -> bytes:
    return b"z" + _u32(number)


def of_queue(kind: bytes, number: int) -> bytes:
    """The common prefix of all keys of a kind and queue."""
    return kind + _u32(number)


def lane_prefix(number: int, owner: str, priority: int) -> bytes:
    return b"b" + _u32(number) + _text(owner) + b"%d" % (9 - priority)


def group_prefix(number: int, group: str) -> bytes:
    return b"w" + _u32(number) + _text(group)


def group_key(number: int, group: str) -> bytes:
    return b"g" + _u32(number) + group.encode()


def index_key(number: int, id: str) -> bytes:
    return b"i" + _u32(number) + id.encode()


def gone_key(number: int, block: str) -> bytes:
    return b"x" + _u32(number) + block.encode()


def dedup_key(serial: int, dedup_id: str) -> bytes:
    return b"d" + _u32(serial) + dedup_id.encode()


def readers_key(serial: int, readers: str) -> bytes:
    return b"p" + _u32(serial) + readers.encode()


def claim_key(number: int, readers: str, claim: int) -> bytes:
    return b"n" + _u32(number) + _text(readers) + _u64.pack(claim)


def read_claim_key(key: bytes) -> tuple[str, int]:
    """The group and number in the key of a claim."""
    return key[7:-8].decode(), int(_u64.unpack(key[-8:])[0])


def kept_prefix(number: int, readers: str, claim: int) -> bytes:
    return b"v" + _u32(number) + _text(readers) + _u64.pack(claim)


def kept_key(number: int, readers: str, claim: int, place: int) -> bytes:
    return kept_prefix(number, readers, claim) + _u32(place)


def stage_prefix(serial: int, *names: str) -> bytes:
    """The common prefix of all keys of a stage, or of the stages of a batch."""
    return b"e" + _u32(serial) + b"".join(map(_text, names))


def part_key(serial: int, name: StageName, part: int) -> bytes:
    return stage_prefix(serial, name.job, name.batch, name.partition, name.attempt) + _u32(part)


def read_part_key(key: bytes) -> tuple[StageName, int]:
    """The stage and part number in the key of a part."""
    names: list[str] = []
    at = 5
    for _ in range(4):
        size = int.from_bytes(key[at : at + 2], "big")
        names.append(key[at + 2 : at + 2 + size].decode())
        at += 2 + size
    return StageName(*names), int.from_bytes(key[at:], "big")


def upload_prefix(upload: int) -> bytes:
    return b"t" + _u64.pack(upload)


def staged_key(upload: int, place: int) -> bytes:
    return upload_prefix(upload) + _u32(place)


def history_key(offset: int) -> bytes:
    return b"h" + _u64.pack(offset)


def offset_of(key: bytes) -> int:
    return int(_u64.unpack(key[1:9])[0])


def after(prefix: bytes) -> bytes:
    """The first key after all keys with `prefix`."""
    raw = prefix.rstrip(b"\xff")
    return raw[:-1] + bytes([raw[-1] + 1])
