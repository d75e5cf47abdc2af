"""The collections, and how messages become documents.

meta       `format`: the version below. `history`: first and last offset, bytes. `last_id`: of queues that are gone.
           `revision`: rises with every change of queues or records.
queues     _id is the name. `number` names its messages and changes when it is emptied; `serial` names its dedup
           records, readers and stages, and stays. `showing` has the numbers
           of messages that are committed and still have to get this one. Whatever has a number that no queue, claim
           or commit has is garbage.
messages   _id is the message's id; the fields of `Message` under their own names, None left out, and its state.
           number        the queue's
           lane          the recipient, "" for all consumers
           group_key     number and group, where it has one: see `groups`
           size          what it counts for
           visible_at, receives, receipt, consumer, taken_at
           line          the number, while it can be taken once `visible_at` has come
           timed         the number, until `visible_at` has passed and the message was lined up
           claim         the _id of the claim it is in
           waits         true if it is in a group and not its head: then it has no `line`
groups     _id is a group_key, `head` the id of its head; there while the group has messages.
readers    _id is SERIAL:GROUP: epoch, acked and last of a group of readers (`claims.py`), and the queue's `number` they
           hold for: with another number all claims are gone. `growing` while claim `last` is being made.
claims     `number`, `group` and `claim` say whose it is. What it holds has its _id as `claim`; once it is acked, as
           `number`, so that it is in no queue, and garbage when the claim is gone.
           ends          `acked` or `released`, while messages still have to leave it
           until         until when it can be read, once it is acked
stages     the parts of stages that are not committed: name, how many messages and bytes, how many `runs` of ids.
uploads    what was uploaded as the part `of`, in chunks, as MessagePack.
publishes  _id is the number of messages that were written for a commit which is still to be made.
tallies     _id is NUMBER.SLOT: messages, bytes and highest id that changes through this slot added to the queue.
           The sum over a number's slots is the queue's count. Each change writes one, so that emptying or
           deleting the queue, which removes them, conflicts with every change under way.
dedup      _id is SERIAL:DEDUP_ID: the id that stands, and until when.
records    _id is KIND:NAME.
events     the events of one change, as MessagePack. `pending` orders those without offsets; the next reader of the
           history assigns their offsets `first` and `last`.
signals    capped: wake-up hints to other brokers.

To change the format, raise `FORMAT` and let `MongoStore.open` convert older databases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from bson import Int64, ObjectId

from miniq.message import DeadLetter, Message, QueueSettings, Stored

FORMAT = 1
COLLECTIONS = (
    "meta",
    "queues",
    "messages",
    "groups",
    "readers",
    "claims",
    "tallies",
    "dedup",
    "records",
    "events",
    "signals",
)

LEASE = ("receipt", "consumer", "taken_at")
"""The fields that a lease sets and a release removes."""

Document = Mapping[str, Any]
_FIELDS = [name for name in Message.__struct_fields__ if name != "id"]


def message_document(message: Message, number: ObjectId, now: int, waits: bool) -> dict[str, Any]:
    """The document of a new message: ready at its `due_at`, never received."""
    fields = ((name, getattr(message, name)) for name in Message.__struct_fields__)
    found: dict[str, Any] = {name: value for name, value in fields if value is not None}
    found["_id"] = found.pop("id")
    found |= {"number": number, "lane": message.recipient or "", "size": message.size}
    found |= {"visible_at": message.due_at, "receives": 0}
    if message.headers is not None:
        # Pairs, not a document: a name may hold what a field of a document may not.
        found["headers"] = [[name, value] for name, value in message.headers.items()]
    if message.group is not None:
        found["group_key"] = group_key(number, message.group)
    if message.dead is not None:
        found["dead"] = msgspec.structs.asdict(message.dead)
    if waits:
        found["waits"] = True
    place = place_of(message.due_at, now, waits)
    if place is not None:
        found[place] = number
    return found


def message_of(found: Document) -> Message:
    """The message that a document holds. Moments are of a type of the driver's, which others cannot write."""
    fields = {name: _plain(found[name]) for name in _FIELDS if name in found}
    if "headers" in fields:
        fields["headers"] = dict(fields["headers"])
    if "dead" in fields:
        fields["dead"] = DeadLetter(**{name: _plain(value) for name, value in fields["dead"].items()})
    return Message(found["_id"], **fields)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, Int64) else value


def stored_of(found: Document) -> Stored:
    """The message with its state."""
    return Stored(
        message_of(found), int(found["visible_at"]), found["receives"], found.get("receipt"), found.get("consumer")
    )


def place_of(visible_at: int, now: int, waits: bool) -> str | None:
    """The field that indexes a message: `timed`, `line`, or none."""
    if visible_at > now:
        return "timed"
    return None if waits else "line"


def group_key(number: ObjectId, group: str) -> str:
    return f"{number}:{group}"


def encode_settings(settings: QueueSettings) -> dict[str, Any]:
    return msgspec.structs.asdict(settings)


def decode_settings(found: Document) -> QueueSettings:
    """Ignores settings added by a later version."""
    return msgspec.convert(dict(found), QueueSettings)
