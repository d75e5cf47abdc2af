"""Dedup records. Commits and publications have records too, under names that no dedup id can have; those of named sends
are in `calls.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bson import ObjectId
from pymongo import ReplaceOne

from miniq.store.mongodb.connection import Database, Session
from miniq.store.names import CALL

FIRST = chr(ord(CALL) + 1)
"""Sorts after the names of calls and commits, and not after any dedup id."""


async def find(db: Database, session: Session, serial: ObjectId, names: Iterable[str], now: int) -> dict[str, str]:
    """The answers in unexpired records, by name."""
    keys = [f"{serial}:{name}" for name in names]
    found = await db.dedup.find({"_id": {"$in": keys}}, session=session).batch_size(len(keys) + 1).to_list()
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


async def forget(db: Database, session: Session, serial: ObjectId) -> None:
    """Remove the records of all dedup ids of a queue; those of calls and commits stay."""
    ids = {"$gte": f"{serial}:{FIRST}", "$lt": f"{serial};"}  # ";" follows ":"
    await db.dedup.delete_many({"_id": ids}, session=session)


def fresh(serial: ObjectId, ids: Mapping[str, str], until: int) -> list[dict[str, Any]]:
    """Records of dedup ids of which none is on record."""
    return [
        {"_id": f"{serial}:{name}", "serial": serial, "name": name, "said": id, "until": until}
        for name, id in ids.items()
    ]
