"""Converts databases of earlier formats: format 1 had one document per message, and up to format 2 the records of named
sends were in `dedup`.

The first broker of this version that opens such a database converts it, and others that start meanwhile wait. Each step
is one transaction that adds documents and removes what they replace. So if the broker dies, the next one goes on where
it was; should two of them work at once, nothing is converted twice. Brokers of earlier versions must have been stopped:
they refuse the database from the first step on.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import Any

from bson import Int64, ObjectId
from msgspec import Struct
from pymongo.errors import OperationFailure

from miniq.message import SECOND, DeadLetter, Message
from miniq.store import events
from miniq.store.mongodb import calls, groups, writes
from miniq.store.mongodb.blocks import State, blocks_for, own_name, shared_name
from miniq.store.mongodb.connection import Database, Link, Session
from miniq.store.mongodb.documents import FORMAT, Document

log = logging.getLogger("miniq.mongodb")

OLD = (1, 2)
AT_ONCE = 500
BYTES_AT_ONCE = 4 * 1024 * 1024
TURN = 10
"""Seconds without a step after which another broker goes on."""
_FIELDS = [name for name in Message.__struct_fields__ if name != "id"]


class _Home(Struct, frozen=True):
    """Where the messages with an old number belong: a queue, and a claim if they were acked in it."""

    queue: str
    number: ObjectId
    claim: str | None = None
    told: tuple[int, Any] | None = None
    """Time and history setting of a commit whose messages were not shown yet."""


async def upgrade(link: Link) -> None:
    """Convert a database that is of an earlier format, or wait until another broker has."""
    me = secrets.token_hex(8)
    with link.call() as db:
        while (mark := await db.meta.find_one({"_id": "format"})) is not None and _unfinished(mark):
            if await _lock(db, me):
                old = int(mark.get("upgrading", mark["version"]))
                await db.meta.update_one({"_id": "format"}, {"$set": {"version": FORMAT, "upgrading": old}})
                if old > 1 or await _convert_messages(link, db, me):
                    await _convert_calls(link, db)
                    await db.meta.update_one({"_id": "format"}, {"$unset": {"upgrading": ""}})
                    await db.meta.delete_one({"_id": "upgrade"})
            else:
                await asyncio.sleep(0.2)


def is_old(version: Any) -> bool:
    """Whether a database of this format can be converted."""
    return version in OLD


def _unfinished(mark: Document) -> bool:
    return is_old(mark.get("version")) or "upgrading" in mark


async def _lock(db: Database, me: str) -> bool:
    """Whether it is this broker's turn to convert, for some seconds; by the clock of the server."""
    turn = {"by": me, "until": {"$dateAdd": {"startDate": "$$NOW", "unit": "second", "amount": TURN}}}
    free = {"$expr": {"$or": [{"$eq": ["$by", me]}, {"$lt": ["$until", "$$NOW"]}]}}
    await db.meta.update_one({"_id": "upgrade"}, {"$setOnInsert": {"by": me}}, upsert=True)
    return bool((await db.meta.update_one({"_id": "upgrade"} | free, [{"$set": turn}])).matched_count)


async def _convert_messages(link: Link, db: Database, me: str) -> bool:
    """Convert messages to blocks; whether this broker has completed it."""
    many = await db.messages.estimated_document_count()
    log.warning("store: database %r is of an earlier version; converting %d messages to blocks", db.name, many)
    homes = await _homes(db)
    # What is due by the clock of the server is in line at once, the rest when a take finds it due.
    now = round((await db.command("hello"))["localTime"].timestamp() * SECOND)
    await db.publishes.delete_many({})  # what was written for commits that were not made
    done, after = 0, ""
    while await _lock(db, me):
        batch: list[dict[str, Any]] = []
        size = 0
        async for one in db.messages.find({"_id": {"$gt": after}}).sort("_id").batch_size(100):
            batch.append(one)
            size += int(one["size"])
            if len(batch) == AT_ONCE or size > BYTES_AT_ONCE:
                break
        if not batch:
            break
        await link.transact(partial(_convert_some, db, homes, batch, now))
        after = batch[-1]["_id"]
        done += len(batch)
        if done % 100_000 < len(batch):
            log.warning("store: converted %d of %d messages", done, many)
    else:
        return False  # another broker goes on
    await db.queues.update_many({}, {"$unset": {"showing": "", "slots": "", "turn": ""}})
    for name in ("messages", "tallies"):
        await db.drop_collection(name)
    log.warning("store: database %r was converted: %d messages", db.name, done)
    return True


async def _convert_calls(link: Link, db: Database) -> None:
    """Move the records of named sends to documents of their own among the blocks."""

    async def move(ids: list[str], session: Session) -> None:
        found = await db.dedup.find({"_id": {"$in": ids}}, session=session).to_list()
        if found:
            await db.dedup.delete_many({"_id": {"$in": ids}}, session=session)
            stubs = [calls.stubs(one["serial"], {one["name"]: (one["said"], int(one["until"]))}) for one in found]
            await db.blocks.insert_many([stub for [stub] in stubs], session=session)

    named = [one["_id"] async for one in db.dedup.find({}, {"name": 1}) if calls.is_send(one["name"])]
    for start in range(0, len(named), AT_ONCE):
        await link.transact(partial(move, named[start : start + AT_ONCE]))
    with suppress(OperationFailure):
        await db.blocks.drop_index("over")  # "ended" has replaced it


async def _homes(db: Database) -> dict[ObjectId, _Home]:
    """What old numbers stand for. Each queue gets the document of its number."""
    homes: dict[ObjectId, _Home] = {}
    last: dict[ObjectId, str] = defaultdict(str)
    async for tally in db.tallies.find({}):
        last[tally["number"]] = max(last[tally["number"]], tally["last_id"])
    async for queue in db.queues.find({}):
        name, number = queue["_id"], queue["number"]
        homes[number] = _Home(name, number)
        await db.blocks.update_one({"_id": number}, {"$max": {"last_id": last[number]}}, upsert=True)
        for note in queue.get("showing", ()):
            homes[note["number"]] = _Home(name, number, told=(int(note["now"]), note["keep"]))
    async for claim in db.claims.find({}):
        if claim["number"] in homes:
            home = homes[claim["number"]]
            homes[claim["_id"]] = _Home(home.queue, home.number, str(claim["_id"]))
    return homes


async def _convert_some(
    db: Database, homes: dict[ObjectId, _Home], batch: list[dict[str, Any]], now: int, session: Session
) -> None:
    """Put messages into blocks."""
    ids = [one["_id"] for one in batch]
    if (await db.messages.delete_many({"_id": {"$in": ids}}, session=session)).deleted_count != len(ids):
        there = {one["_id"] async for one in db.messages.find({"_id": {"$in": ids}}, {"_id": 1}, session=session)}
        batch = [one for one in batch if one["_id"] in there]
    by_number: dict[ObjectId, list[dict[str, Any]]] = defaultdict(list)
    for one in batch:
        if (home := homes.get(one["number"])) is not None:  # others are of queues that are gone
            by_number[home.number].append(one)
    for number, some in by_number.items():
        await _add(db, session, homes, number, {one["_id"]: one for one in some}, now)


async def _add(
    db: Database,
    session: Session,
    homes: dict[ObjectId, _Home],
    number: ObjectId,
    olds: dict[str, dict[str, Any]],
    now: int,
) -> None:
    """Add the blocks of one queue."""
    messages = [_message(one) for one in olds.values()]
    names = {name(number, id) for id in olds for name in (shared_name, own_name)}
    taken = [one["_id"] async for one in db.blocks.find({"_id": {"$in": list(names)}}, {"_id": 1}, session=session)]
    blocks = blocks_for(messages, number, moved=True, taken=taken)
    told: dict[str, list[Any]] = {}
    for block in blocks:
        for place, id in enumerate(block.ids):
            old = olds[id]
            home = homes[old["number"]]
            block.states[place] = _state(old, home, block.due_at)
            block.waits = bool(old.get("waits", False))
            if home.told is not None and home.told[1] != "off":
                at, keep = home.told
                told[id] = [events.sent(message, at, None, keep) for message in messages if message.id == id]
    living = [one for one in messages if homes[olds[one.id]["number"]].claim is None]
    await groups.expect(db, number, living, now, session)
    fresh = [block for block in blocks if homes[olds[block.ids[0]]["number"]].told is not None]
    await groups.join(db, session, number, fresh)
    await db.blocks.insert_many(writes.insert(blocks, now, told), session=session)


def _message(old: Document) -> Message:
    """The message of a document of format 1."""
    fields = {name: _plain(old[name]) for name in _FIELDS if name in old}
    if "headers" in fields:
        fields["headers"] = dict(fields["headers"])
    if "dead" in fields:
        fields["dead"] = DeadLetter(**{name: _plain(value) for name, value in fields["dead"].items()})
    return Message(old["_id"], **fields)


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, Int64) else value


def _state(old: Document, home: _Home, due_at: int) -> State | None:
    """The state of a message, None if it is as it was sent."""
    receives, visible_at = int(old["receives"]), int(old["visible_at"])
    if home.claim is not None:
        return State(0, receives, claim=home.claim, gone=True)
    taken_at = int(old["taken_at"]) if "taken_at" in old else None
    claim = str(old["claim"]) if "claim" in old else None
    if (receives, visible_at, claim) == (0, due_at, None) and "receipt" not in old:
        return None
    return State(visible_at, receives, old.get("receipt"), old.get("consumer"), taken_at, claim)
