"""The records of the embedded store: what each key means, and how its value is written.

    f                              format version (also in the file MINIQ beside the database)
    l                              the highest message id so far
    o                              history: first offset, bytes
    k KIND NAME                    a small record of the broker, such as an API key
    q NAME                         queue: number, serial, settings
    c NUMBER                       queue: counters, and from where each lane has to be read
    z NUMBER                       a number whose records are to be removed
    b NUMBER OWNER PRIORITY BLOCK  messages that can be taken, one block of up to 128
    w NUMBER GROUP BLOCK           a message that waits behind the head of its group
    g NUMBER GROUP                 group: how many messages, and a lower bound of the waiting ids
    i NUMBER ID                    the key of a block that cannot be found from the id alone
    s NUMBER BLOCK VERSION         state of some messages of a block: lease or delay
    x NUMBER BLOCK                 which messages of a block are gone
    d SERIAL DEDUP_ID              dedup: message id, until when it counts
    p SERIAL READERS               claims of a group of readers: epoch, last acked, last made
    n NUMBER READERS CLAIM         a claim: how much is in it, when it was made and acked
    v NUMBER READERS CLAIM PLACE   messages of an acked claim, from a place in it on
    e SERIAL STAGE PART            a part of a stage: what was uploaded, and how it is cut into blocks
    t UPLOAD PLACE                 a block of a stage, or of a message that was committed from one
    h OFFSET                       history: runs of events, the last of which has OFFSET

NUMBER and SERIAL are 4 bytes; a queue that is emptied gets a new number and keeps its serial. OWNER and
GROUP are a 2-byte length and UTF-8 text; OWNER is the recipient, empty for anybody. PRIORITY is a digit,
9 minus the priority. READERS is text of the same kind. CLAIM, VERSION and OFFSET are 8 bytes, PLACE 4. All numbers
are big-endian, so keys sort as read.

STAGE is four texts: job, batch, partition, attempt. UPLOAD is 8 bytes, PART 4. A staged block has no ids, and its
moments count from the commit. To commit it is to write where it lies, its first id and that moment into the lane
(`b`, `w`); so a commit writes little, however much it commits.

The messages of a claim that is not acked have a state (`s`) as any lease has, with the claim's name as receipt.

BLOCK is the first id of the run (see `ids.py`) for messages that were sent together, or the id and
an `m` for one that stands alone: one with a recipient or group, and one that was edited or moved.

Values are MessagePack. To change a record, add a field at the end with a default; for anything else raise
`FORMAT` and convert at start.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from miniq.errors import StoreCorrupt
from miniq.ids import ids_from
from miniq.message import Claim, Event, Message, PlainBatch, QueueSettings, StageName, is_plain
from miniq.store.decisions import committed

FORMAT = 1

_u32 = struct.Struct(">I").pack
_u64 = struct.Struct(">Q")


class QueueRecord(Struct, frozen=True, array_like=True):
    number: int
    serial: int
    settings: QueueSettings


class PlainBlock(Struct, frozen=True, array_like=True, tag=0, gc=False):
    """Messages that differ in their bodies only: what is common stands once."""

    first: str
    queue: str
    sent_at: int
    due_at: int
    content_type: str
    priority: int
    bodies: list[bytes]


class MixedBlock(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Messages that have more of their own."""

    messages: list[Message]


class StagedBlock(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """Messages that were committed from a stage: where they lie, their first id and the moment of the commit."""

    at: bytes
    first: str
    sent_at: int


class CountRecord(Struct, frozen=True, array_like=True):
    count: int
    size: int
    lows: dict[int, str]
    """For each priority a block name below which the lane for anybody holds nothing unread."""


class GroupRecord(Struct, array_like=True):
    count: int
    low: str


class StateRecord(Struct, frozen=True, array_like=True, gc=False):
    """A lease or a delay that some messages of one block share."""

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
    """A bitmap as a little-endian number."""


class DedupRecord(Struct, frozen=True, array_like=True, gc=False):
    id: str
    """The id that stands, or for a call all its ids (see `ids.spans`)."""
    until: int


class ReadersRecord(Struct, frozen=True, array_like=True):
    epoch: int
    acked: int
    last: int


class ClaimRecord(Struct, frozen=True, array_like=True):
    claim: Claim
    until: int = 0
    """Once it is acked: how long it can be read."""


class KeptRecord(Struct, frozen=True, array_like=True, gc=False):
    """Neighbours in one block that were in a claim, and the record of that block as it was."""

    start: int
    stop: int
    receives: int
    block: bytes


class StretchRecord(Struct, frozen=True, array_like=True, gc=False):
    """A block of a stage: what has to be known of it to commit it."""

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
    """An event that happened in the same way to messages whose ids follow each other in one run."""

    first: Event
    sizes: list[int] | None = None
    """The sizes of all of them, None if there is only the first."""


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
    """The record of a block; its ids follow each other."""
    if isinstance(messages, PlainBatch):
        return encode(
            PlainBlock(
                messages.ids[0],
                messages.queue,
                messages.sent_at,
                messages.due_at,
                messages.content_type,
                messages.priority,
                messages.bodies,
            )
        )
    first = messages[0]
    kind, sent_at = first.content_type, first.sent_at
    for message in messages:
        if message.content_type != kind or message.sent_at != sent_at or not is_plain(message):
            return encode(MixedBlock(list(messages)))
    bodies = [message.body for message in messages]
    return encode(PlainBlock(first.id, first.queue, sent_at, first.due_at, kind, first.priority, bodies))


def decode_block(value: bytes, get: Get) -> Sequence[Message]:
    """The messages of a block; `get` finds those that lie in a stage."""
    block = _decode_block(value)
    if isinstance(block, MixedBlock):
        return block.messages
    if isinstance(block, StagedBlock):
        return _committed(block, get(block.at))
    return PlainBatch(
        ids_from(block.first, len(block.bodies)),
        block.queue,
        block.sent_at,
        block.due_at,
        block.bodies,
        block.content_type,
        block.priority,
    )


def _committed(block: StagedBlock, value: bytes | None) -> Sequence[Message]:
    """The messages of a staged block, with the ids and moments that their commit gave them."""
    staged = None if value is None else _decode_block(value)
    if isinstance(staged, PlainBlock):
        ids = ids_from(block.first, len(staged.bodies))
        due_at = block.sent_at + staged.due_at
        return PlainBatch(ids, staged.queue, block.sent_at, due_at, staged.bodies, staged.content_type, staged.priority)
    if isinstance(staged, MixedBlock):
        ids = ids_from(block.first, len(staged.messages))
        return [committed(message, id, block.sent_at) for id, message in zip(ids, staged.messages, strict=True)]
    raise StoreCorrupt(f"store: the record of message {block.first} is missing", field="store")


def source_of(value: bytes) -> bytes | None:
    """The key at which the messages of a block lie, if they were committed from a stage."""
    if value[1:2] != b"\x02":  # the tag stands first
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
    """The kind and the name in the key of a small record."""
    end = 3 + int.from_bytes(key[1:3], "big")
    return key[3:end].decode(), key[end:].decode()


def queue_key(name: str) -> bytes:
    return b"q" + name.encode()


def count_key(number: int) -> bytes:
    return b"c" + _u32(number)


def garbage_key(number: int) -> bytes:
    return b"z" + _u32(number)


def of_queue(kind: bytes, number: int) -> bytes:
    """What all keys of a kind and queue begin with."""
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
    """The readers and the number in the key of a claim."""
    return key[7:-8].decode(), int(_u64.unpack(key[-8:])[0])


def kept_prefix(number: int, readers: str, claim: int) -> bytes:
    return b"v" + _u32(number) + _text(readers) + _u64.pack(claim)


def kept_key(number: int, readers: str, claim: int, place: int) -> bytes:
    return kept_prefix(number, readers, claim) + _u32(place)


def stage_prefix(serial: int, *names: str) -> bytes:
    """What the keys of all parts of a stage, or of the stages of a batch, begin with."""
    return b"e" + _u32(serial) + b"".join(map(_text, names))


def part_key(serial: int, name: StageName, part: int) -> bytes:
    return stage_prefix(serial, name.job, name.batch, name.partition, name.attempt) + _u32(part)


def read_part_key(key: bytes) -> tuple[StageName, int]:
    """The stage and the number in the key of a part."""
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
    """The first key that no longer begins with `prefix`."""
    raw = prefix.rstrip(b"\xff")
    return raw[:-1] + bytes([raw[-1] + 1])
