"""Named calls: a send that has a name leaves its record in the block it adds, so both are one write.

`call.name` is unique, so a second block with the same name is refused, whichever broker sends it. The record stays as
long as its block; if that ends before the record expires, the document stays without its messages until upkeep removes
it. A send that adds no block leaves such a document at once. Records of commits and publications are in `dedup`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bson import ObjectId

from miniq.store.arguments import Once
from miniq.store.decisions import call_answer
from miniq.store.mongodb.connection import Database, Session
from miniq.store.names import CALL, COMMITTED, TOPIC, call_record


def record(serial: ObjectId, call: Once, ids: Sequence[str]) -> dict[str, Any]:
    """The record of a call, for the document of a block."""
    return {"name": _name(serial, call_record(call.name)), "said": call_answer(ids, call), "until": call.until}


def stubs(serial: ObjectId, records: Mapping[str, tuple[str, int]]) -> list[dict[str, Any]]:
    """Documents that have nothing but the record of a call, given by name with its answer and expiry."""
    version = ObjectId()
    return [
        {"_id": f"{serial}:{ObjectId()}", "v": version, "past": [version], "over": True}
        | {"call": {"name": _name(serial, name), "said": said, "until": until}}
        for name, (said, until) in records.items()
    ]


async def find(db: Database, session: Session | None, serial: ObjectId, call: Once, now: int) -> str | None:
    """The answer to an earlier call of this name. A record that has expired is removed."""
    name = {"call.name": _name(serial, call_record(call.name))}
    found = await db.blocks.find_one(name, {"call": 1}, session=session)
    if found is None:
        return None
    if found["call"]["until"] > now:
        return str(found["call"]["said"])
    await db.blocks.update_one({"_id": found["_id"]} | name, {"$unset": {"call": ""}}, session=session)
    return None


def is_send(record: str) -> bool:
    """Whether a record is that of a send: all others are in `dedup`."""
    return record.startswith(CALL) and not record.startswith((CALL + COMMITTED, CALL + TOPIC))


def _name(serial: ObjectId, record: str) -> str:
    return f"{serial}:{record}"


def parts(name: str) -> tuple[ObjectId, str]:
    """The serial and the name of a record."""
    serial, _, record = name.partition(":")
    return ObjectId(serial), record
