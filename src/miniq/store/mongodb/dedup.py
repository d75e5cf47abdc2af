"""Which sends were made before. The name of a whole call is kept as a record too, under a name no message can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bson import ObjectId
from pymongo import ReplaceOne

from miniq.message import Message
from miniq.store.arguments import Once
from miniq.store.mongodb.connection import Database, Session
from miniq.store.names import call_record


async def standing(
    db: Database, session: Session, serial: ObjectId, messages: Sequence[Message], call: Once | None, now: int
) -> dict[str, str]:
    """What the records that concern a send say, as far as they have not run out."""
    names = {message.dedup_id for message in messages if message.dedup_id is not None}
    if call is not None:
        names.add(call_record(call.name))
    return await find(db, session, serial, names, now)


async def find(db: Database, session: Session, serial: ObjectId, names: Iterable[str], now: int) -> dict[str, str]:
    """What records of these names say, as far as they have not run out."""
    query = {"_id": {"$in": [f"{serial}:{name}" for name in names]}}
    found = await db.dedup.find(query, session=session).to_list()
    return {one["name"]: one["said"] for one in found if one["until"] > now}


async def remember(db: Database, session: Session, serial: ObjectId, records: Mapping[str, tuple[str, int]]) -> None:
    """Write records: what each says, and until when."""
    changes = []
    for name, (said, until) in records.items():
        key = {"_id": f"{serial}:{name}"}
        record = key | {"serial": serial, "name": name, "said": said, "until": until}
        changes.append(ReplaceOne(key, record, upsert=True))
    if changes:
        await db.dedup.bulk_write(changes, ordered=False, session=session)
