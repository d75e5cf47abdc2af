"""The collections, and how settings become documents.

meta       `format`: the version below. `history`: first and last offset, bytes. `last_id`: of queues that are gone.
           `revision`: rises with every change of queues or records. `upgrade`: who converts an older format.
           `turn:WORK`: which broker does this work of the upkeep, and `until` when.
queues     _id is the name. `number` names its blocks and changes when it is emptied; `serial` names its dedup records,
           results, readers and stages, and stays. `showing` has the numbers of blocks that are committed and still have
           to get this one. Whatever has a number that no queue or commit has is garbage. `tokens`, `drawn_at` and
           `drawn` are the bucket of a queue whose rate is limited.
blocks     For each queue one document whose _id is its number: there while the queue has it, so that a change of blocks
           learns in the same command whether it still has. `last_id` is the highest id put under this number. `turn`
           rises with each send to a queue that has a limit, so that these come one after the other.
           All others have up to 128 messages with their states. _id is NUMBER:ID with the first id of their run of ids
           (`miniq.ids`), or NUMBER:ID. with the message's own id if it shares no block: so a message is found by its
           id alone.
           v             another one with every change; a change is made on condition that it is the one that was read
           past          the last 16 of them, by which a write finds out whether it was made; the first four bytes are
                         a time and the next five name the process that wrote it
           call          the call that added it, if it had a name: `name` is SERIAL:NAME, `said` the answer, and `until`
                         when it is forgotten (`calls.py`)
           first         the lowest id; `ids` has all of them, as `spans`
           priority, lane, sent_at, due_at
                         of all messages; `lane` is the recipient, "" for all consumers
           group         of its only message
           content       the messages, as MessagePack
           sizes         what each counts for
           states        of the messages that are not as they were sent, as MessagePack: `blocks.State`
           Of the messages that have not left:
           count, bytes  how many, and what they count for
           line          the number, if some could be taken when it was written
           timed         the number, if some were leased or delayed when it was written: `leased` and `delayed` many,
                         the first until `wake` and the last `until` then; `open` if any consumer may take them
           tokens        the receipts, and the `_id`s of claims
           group_key     NUMBER:GROUP; `waits` while its message is not the head: then it has no `line`
           front         the group_key, if it waits and its message was taken together with others of the group
           mixed         others of its run may have blocks of their own
           out           events that are still to be copied to `events`: `t` is their `_id` there. `told` while there
                         are any
           over          all have left; the document stays for its events, until its group has a new head (`todo`),
                         until its `call` is forgotten, and while other processes that wrote it must know what their
                         writes did (`writes.certain`). It has a `number` only while `todo`
           todo          when its message left, or was settled and is of the front: its group may need a new head
groups     _id is a group_key: `head` the id of its head, None while that is being chosen; `last` the highest id that
           was sent to it, `floor` an id that no member is below, `at` when it was last sent to or emptied; `sends`
           rises with each send that is complete, and `front` with each take that gets several of its messages, until
           that is over (`fronts.py`). There while the group has messages, and for some seconds more.
readers    _id is SERIAL:GROUP: epoch, acked and last of a group of readers (`claims.py`), and the queue's `number` they
           hold for: with another number all claims are gone. `growing` while claim `last` is being made.
claims     `number`, `group` and `claim` say whose it is. Its messages have its _id in their state, also once it is
           acked and they have left the queue.
           ends          `acked` or `released`, while messages still have to leave it
           until         until when it can be read, once it is acked
stages     the parts of stages that are not committed: name, how many messages and bytes, how many `runs` of ids.
uploads    what was uploaded as the part `of`, in chunks, as MessagePack.
publishes  _id is the number of blocks that were written for a commit which is still to be made.
dedup      _id is SERIAL:DEDUP_ID: the id that stands, and until when. Also what commits and publications answered.
results    _id is SERIAL:ID: how a message was finished, and `until` when that is kept.
records    _id is KIND:NAME.
events     some events of one block, as MessagePack. `pending` orders those without offsets; the next reader of the
           history assigns their offsets `first` and `last`.
signals    capped: wake-up hints to other brokers.

Format 1 had one document per message, in `messages`, and counters in `tallies`; up to format 2, the calls of sends were
in `dedup`. `upgrade.py` converts them. To change the format, raise `FORMAT` and convert older databases there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from bson import ObjectId

from miniq.message import QueueSettings

FORMAT = 3
COLLECTIONS = (
    "meta",
    "queues",
    "blocks",
    "groups",
    "readers",
    "claims",
    "stages",
    "uploads",
    "publishes",
    "dedup",
    "results",
    "records",
    "events",
    "signals",
)

Document = Mapping[str, Any]


def group_key(number: ObjectId, group: str) -> str:
    return f"{number}:{group}"


def encode_settings(settings: QueueSettings) -> dict[str, Any]:
    return msgspec.to_builtins(settings)  # type: ignore[no-any-return]


def decode_settings(found: Document) -> QueueSettings:
    """Ignores settings added by a later version."""
    return msgspec.convert(dict(found), QueueSettings)
