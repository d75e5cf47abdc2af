"""Group heads, updated in the transaction that adds or removes messages.

Every change that adds a message to a group or removes its head writes the group's document. So concurrent changes
conflict, and no message waits behind a head that has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bson import ObjectId
from pymongo import DeleteMany, InsertOne, UpdateMany, UpdateOne

from miniq.message import Message
from miniq.store.mongodb import queries
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import Document, group_key


async def join(db: Database, session: Session, number: ObjectId, messages: Sequence[Message]) -> set[str]:
    """Add messages to their groups: the ids of those that wait behind a head."""
    grouped = [(group_key(number, message.group), message.id) for message in messages if message.group is not None]
    if not grouped:
        return set()
    keys = list(dict.fromkeys(key for key, _ in grouped))
    heads = {one["_id"]: one["head"] for one in await db.groups.find({"_id": {"$in": keys}}, session=session).to_list()}
    changes: list[Any] = []
    if heads:
        changes.append(UpdateMany({"_id": {"$in": list(heads)}}, {"$inc": {"turn": 1}}))
    waiting: set[str] = set()
    for key, id in grouped:
        if key in heads:
            waiting.add(id)
        else:
            heads[key] = id
            changes.append(InsertOne({"_id": key, "number": number, "head": id, "turn": 0}))
    await db.groups.bulk_write(changes, session=session)
    return waiting


async def leave(db: Database, session: Session, number: ObjectId, gone: Iterable[Document]) -> list[str | None]:
    """Choose new heads after heads have left: the recipients of the new ones."""
    keys = list(dict.fromkeys(one["group_key"] for one in gone if "group_key" in one and not one.get("waits")))
    if not keys:
        return []
    empty: list[str] = []
    in_line: list[str] = []
    timed: list[str] = []
    ready: list[str | None] = []
    changes: list[Any] = []
    async for group in await db.groups.aggregate(queries.next_of_groups(keys), session=session):
        if not group["next"]:
            empty.append(group["_id"])
            continue
        [head] = group["next"]
        changes.append(UpdateOne({"_id": group["_id"]}, {"$set": {"head": head["_id"]}}))
        (timed if "timed" in head else in_line).append(head["_id"])
        ready.append(head["lane"] or None)
    if empty:
        changes.append(DeleteMany({"_id": {"$in": empty}}))
    await db.groups.bulk_write(changes, session=session)
    if in_line:
        stand = {"$set": {"line": number}, "$unset": {"waits": ""}}
        await db.messages.update_many({"_id": {"$in": in_line}}, stand, session=session)
    if timed:
        await db.messages.update_many({"_id": {"$in": timed}}, {"$unset": {"waits": ""}}, session=session)
    return ready
