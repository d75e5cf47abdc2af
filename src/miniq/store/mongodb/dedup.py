"""Dedup records. Named calls and commits have records too, under names that no dedup id can have."""

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
    """The answers in the unexpired records for a send, by name."""
    names = {message.dedup_id for message in messages if message.dedup_id is not None}
    if call is not None:
        names.add(call_record(call.name))
    return await find(db, session, serial, names, now)


async def find(db: Database, session: Session, serial: ObjectId, names: Iterable[str], now: int) -> dict[str, str]:
    """The answers in unexpired records, by name."""
    query = {"_id": {"$in": [f"{serial}:{name}" for name in names]}}
    found = await db.dedup.find(query, session=session).to_list()
    return {one["name"]: one["said"] for one in found if one["until"] > now}


async def remember(db: Database, session: Session, serial: ObjectId, records: Mapping[str, tuple[str, int]]) -> None:
    """Write records with their answers and expiry."""
    changes = []
    for name, (said, until) in records.items():
        key = {"_id": f"{serial}:{name}"}
        record = key | {"serial": serial, "name": name, "said": said, "until": until}
        changes.append(ReplaceOne(key, record, upsert=True))
    if changes:
        await db.dedup.bulk_write(changes, ordered=False, session=session)
