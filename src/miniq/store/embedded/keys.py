"""The records of the embedded store: the meaning of each key, and the encoding of its value. Those of messages are in
`block_records.py`.

    a                              the newest change of the commit log that was applied
    l                              the highest message id so far
    o                              history: first offset, bytes
    k KIND NAME                    a small record of the broker, such as an API key
    q NAME                         queue: number, serial, settings
    c NUMBER                       queue: counters, and where reading of each lane starts
    z NUMBER                       an obsolete number, whose records are being removed
    b NUMBER OWNER PRIORITY BLOCK  messages that can be taken, one block of up to 128
    w NUMBER GROUP BLOCK           a message waiting behind the head of its group, or taken together with it
    g NUMBER GROUP                 group: number of messages, and a lower bound of the waiting ids
    i NUMBER ID                    the key of a block that cannot be derived from the id
    s NUMBER BLOCK VERSION         state of some messages of a block: lease or delay
    r NUMBER ID                    the last error of a message that failed
    x NUMBER BLOCK                 which messages of a block were removed
    d SERIAL DEDUP_ID              dedup: message id and expiry
    f SERIAL ID                    how a message was finished: its result or error, and until when that is kept
    y UNTIL SERIAL ID              the same by the end of that time, without a value
    p SERIAL READERS               claim group: epoch, last acked, last made
    n NUMBER READERS CLAIM         claim: messages and bytes, when it was made and acked
    v NUMBER READERS CLAIM PLACE   messages of an acked claim, starting at a place in it
    e SERIAL STAGE PART            a part of a stage: its upload, and how it is cut into blocks
    t UPLOAD PLACE                 a block of a stage, or of messages committed from one
    j PUBLICATION PLACE            a block of messages that were published to several queues
    j PUBLICATION PLACE n          how many queues still refer to it
    h OFFSET                       history: runs of events, the last of which has OFFSET

NUMBER and SERIAL are 4 bytes; a purged queue gets a new number and keeps its serial. OWNER, GROUP and READERS are a
2-byte length and UTF-8 text; OWNER is the recipient, empty for all consumers. PRIORITY is a digit, 9 minus the
priority. CLAIM, VERSION, UNTIL and OFFSET are 8 bytes, PLACE 4. All numbers are big-endian, so that keys sort by them.

STAGE is four texts: job, batch, partition, attempt. UPLOAD is 8 bytes, PART 4. A staged block has no ids, and its
times are relative to the commit. A commit writes the block's key, first id and commit time into the lane (`b`, `w`),
so it writes little, however much it commits.

PUBLICATION is 8 bytes. A published block names no queue; each queue has a record in its lane that refers to it. The
number of these changes with them, in the same batch, and the block is removed with the last.

The messages of an unacked claim have a state (`s`) like any lease, with the claim's name as receipt.

BLOCK is the first id of the run (see `ids.py`) for messages that were sent together, or the id and an `m` for a message
that stands alone: with a recipient or group, or edited or moved.

Values are MessagePack. To change a record, add a field with a default at the end; for anything else raise `FORMAT` and
convert at start. The format is in the file MINIQ beside the database. A folder of an earlier format gets the new one
when it is opened, so that earlier versions refuse it.

    2   history has the event `failed`; nothing to convert
    3   a block may be packed, or shared by several queues; history has the event `published`; there are
        results; nothing to convert
    4   changes are in the commit log (`log.py`) before they are in the database, which has none of its own; the first
        start creates it
"""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

from miniq.batch import Claim, StageName
from miniq.message import Event, QueueSettings
from miniq.result import Finished

FORMAT = 4

_u32 = struct.Struct(">I").pack
_u64 = struct.Struct(">Q")


class QueueRecord(Struct, frozen=True, array_like=True):
    number: int
    serial: int
    settings: QueueSettings


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
    error: int = 0
    """Whether they failed, and how: see `failures.py`."""
    returned: bool = False
    """Whether they were taken, though they have no receives: all were taken back."""


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


class ResultRecord(Struct, frozen=True, array_like=True, gc=False):
    finished: Finished
    until: int


class ReadersRecord(Struct, frozen=True, array_like=True):
    epoch: int
    acked: int
    last: int
    id: str = ""


class ClaimRecord(Struct, frozen=True, array_like=True):
    claim: Claim
    until: int = 0
    """Until when it is readable, once it is acked."""
    tells_reader: bool = False
    """False in records of versions that did not note who fetched a claim."""


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
    plain: bool = False
    """Whether its messages differ only in their bodies."""


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


encode = msgspec.msgpack.Encoder().encode
decode_sharers = msgspec.msgpack.Decoder(int).decode
decode_queue = msgspec.msgpack.Decoder(QueueRecord).decode
decode_count = msgspec.msgpack.Decoder(CountRecord).decode
decode_group = msgspec.msgpack.Decoder(GroupRecord).decode
decode_state = msgspec.msgpack.Decoder(StateRecord).decode
decode_error = msgspec.msgpack.Decoder(str).decode
decode_gone = msgspec.msgpack.Decoder(GoneRecord).decode
decode_dedup = msgspec.msgpack.Decoder(DedupRecord).decode
decode_result = msgspec.msgpack.Decoder(ResultRecord).decode
decode_readers = msgspec.msgpack.Decoder(ReadersRecord).decode
decode_claim = msgspec.msgpack.Decoder(ClaimRecord).decode
decode_kept = msgspec.msgpack.Decoder(KeptRecord).decode
decode_part = msgspec.msgpack.Decoder(PartRecord).decode
decode_head = msgspec.msgpack.Decoder(HistoryHead).decode
decode_events = msgspec.msgpack.Decoder(list[EventRun]).decode


APPLIED = b"a"
LAST_ID = b"l"
SHARED = b"j"
HISTORY_HEAD = b"o"
MESSAGE_KINDS = b"bwgisrxnv"
SERIAL_KINDS = b"dfpe"
RESULTS_DUE = b"y"


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


def number_of(key: bytes) -> int:
    """The number of the queue that a key belongs to."""
    return int.from_bytes(key[1:5], "big")


_PRIORITIES = [b"%d" % (9 - priority) for priority in range(10)]


def lane_prefix(number: int, owner: str, priority: int) -> bytes:
    return b"b" + _u32(number) + _text(owner) + _PRIORITIES[priority]


def priority_of(lane: bytes) -> int:
    """The priority in the prefix of a lane."""
    return 9 - int(lane[-1:])


def lane_prefixes(number: int, owner: str) -> list[bytes]:
    """The prefixes of all priorities, from 0 on."""
    common = b"b" + _u32(number) + _text(owner)
    return [common + digit for digit in _PRIORITIES]


def group_prefix(number: int, group: str) -> bytes:
    return b"w" + _u32(number) + _text(group)


def group_key(number: int, group: str) -> bytes:
    return b"g" + _u32(number) + group.encode()


def index_key(number: int, id: str) -> bytes:
    return b"i" + _u32(number) + id.encode()


def error_key(number: int, id: str) -> bytes:
    return b"r" + _u32(number) + id.encode()


def gone_key(number: int, block: str) -> bytes:
    return b"x" + _u32(number) + block.encode()


def dedup_key(serial: int, dedup_id: str) -> bytes:
    return b"d" + _u32(serial) + dedup_id.encode()


def result_key(serial: int, id: str) -> bytes:
    return b"f" + _u32(serial) + id.encode()


def results_due(until: int) -> bytes:
    """The prefix of the results that are kept until a moment."""
    return RESULTS_DUE + _u64.pack(until)


def result_due(until: int, result: bytes) -> bytes:
    """The key by which the result with this key is found when its time is over."""
    return results_due(until) + result[1:]


def read_result_due(key: bytes) -> tuple[int, bytes]:
    """The end of the time of a result, and its key."""
    return int(_u64.unpack(key[1:9])[0]), b"f" + key[9:]


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


def shared_key(publication: int, place: int) -> bytes:
    return SHARED + _u64.pack(publication) + _u32(place)


def sharers_key(shared: bytes) -> bytes:
    """The key of the number of queues that refer to a shared block."""
    return shared + b"n"


def history_key(offset: int) -> bytes:
    return b"h" + _u64.pack(offset)


def offset_of(key: bytes) -> int:
    return int(_u64.unpack(key[1:9])[0])


def after(prefix: bytes) -> bytes:
    """The first key after all keys with `prefix`."""
    raw = prefix.rstrip(b"\xff")
    return raw[:-1] + bytes([raw[-1] + 1])
