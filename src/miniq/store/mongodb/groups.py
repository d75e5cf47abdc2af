"""Group heads. Each message of a group has a block of its own, and the document of the group names its head.

Sends and acks of a group meet in no transaction, so none of them waits for another:

1. A send first notes in the document of the group up to which id members may come (`last`). Then its transaction adds
   the blocks, and makes a message the head only if there is none. Then it looks once more: if the head has left
   meanwhile, it lets a new one be chosen.
2. The block of a head that left stays, marked `todo`, until a new head was chosen. The broker that wrote it chooses; if
   it has not after `GRACE`, it was probably killed, and the upkeep of any broker chooses.

So a head is chosen even if a broker dies between two steps. The search for the next member starts at `floor`: index
keys of members that left are not walked over. All groups of a call are searched in one command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from miniq.message import SECOND, Message
from miniq.store.mongodb import fronts, queries, writes
from miniq.store.mongodb.blocks import Block, block_of
from miniq.store.mongodb.connection import DUPLICATE, Database, Link, Session
from miniq.store.mongodb.documents import group_key

Joined = dict[str, str]
"""Groups that had a head when messages joined them, and the lowest of their ids."""

AT_ONCE = 1000
ATTEMPTS = 50
GRACE = 2 * SECOND
"""The time that a broker has to choose a new head. Upkeep that chose before would only compete with it: both write the
same groups and blocks. Yet if the broker was killed, the group goes on after this time."""
PATIENCE = 15 * SECOND
"""After this time no sender still adds what it noted in a group without a head: that is removed, unless a member is
found."""


async def expect(
    db: Database, number: ObjectId, messages: Sequence[Message], now: int, session: Session | None = None
) -> None:
    """Note that messages of groups may come."""
    ids: dict[str, list[str]] = {}
    for message in messages:
        if message.group is not None:
            ids.setdefault(group_key(number, message.group), []).append(message.id)
    if ids:
        fresh = {"number": number, "head": None}
        changes = [
            UpdateOne(
                {"_id": key},
                {"$max": {"last": max(some), "at": now}, "$min": {"floor": min(some)}, "$setOnInsert": fresh},
                upsert=True,
            )
            for key, some in ids.items()
        ]
        await _upsert(db, changes, session)


async def _upsert(db: Database, changes: Sequence[UpdateOne], session: Session | None = None) -> None:
    while True:
        try:
            await db.groups.bulk_write(changes, ordered=False, session=session)
            return
        except BulkWriteError as error:
            # Another send has just created the document of a group.
            if session is not None or any(one["code"] != DUPLICATE for one in error.details["writeErrors"]):
                raise


async def join(db: Database, session: Session, number: ObjectId, blocks: Sequence[Block]) -> Joined:
    """Mark the new blocks that wait behind a head, and make others heads: the groups that had a head."""
    grouped = [block for block in blocks if block.group is not None]
    had: Joined = {}
    if not grouped:
        return had
    keys = list(dict.fromkeys(group_key(number, block.group or "") for block in grouped))
    found = await db.groups.find({"_id": {"$in": keys}}, session=session).batch_size(len(keys) + 1).to_list()
    heads = {one["_id"]: one["head"] for one in found}
    before = {key for key in keys if heads.get(key) is not None}
    changes: list[Any] = []
    for block in grouped:
        key = group_key(number, block.group or "")
        if key in before:
            had[key] = min(block.ids[0], had.get(key, block.ids[0]))
        if heads.get(key) is not None:
            block.waits = True
        else:
            block.waits = False
            heads[key] = block.ids[0]
            fresh = {"number": number, "last": block.ids[0], "floor": block.ids[0]}
            changes.append(
                UpdateOne({"_id": key}, {"$set": {"head": block.ids[0]}, "$setOnInsert": fresh}, upsert=True)
            )
    if changes:
        await db.groups.bulk_write(changes, session=session)
    return had


async def joined(link: Link, number: ObjectId, had: Joined, now: int) -> list[str | None]:
    """After a send to groups that had a head: choose a new one where that has left. Returns the recipients of heads."""
    if not had:
        return []
    keys = list(had)
    with link.call() as db:
        # A call that is choosing one now, and has not found the new members, notices this and looks again.
        # If this broker was suspended for long, the group may have been removed as empty.
        sent = [
            UpdateOne(
                {"_id": key},
                {
                    "$inc": {"sends": 1},
                    "$min": {"floor": id},
                    "$setOnInsert": {"number": number, "head": None, "last": id, "at": now},
                },
                upsert=True,
            )
            for key, id in had.items()
        ]
        await link.patiently(lambda: _upsert(db, sent))
        cursor = db.groups.find({"_id": {"$in": keys}}, {"head": 1}).batch_size(len(keys) + 1)
        there = {one["_id"]: one["head"] for one in await cursor.to_list()}
    return await choose(link, number, [key for key in keys if there.get(key) is None], now)


async def choose(link: Link, number: ObjectId, keys: Sequence[str], now: int) -> list[str | None]:
    """Choose new heads of groups whose head has left; the recipients of the new heads."""
    ready, _ = await _choose(link, number, keys, now)
    return ready


async def _choose(link: Link, number: ObjectId, keys: Sequence[str], now: int) -> tuple[list[str | None], set[str]]:
    """The same; also the groups that others changed again and again, so that it was given up."""
    ready: list[str | None] = []
    given_up: set[str] = set()
    for start in range(0, len(keys), AT_ONCE):
        pending = list(keys[start : start + AT_ONCE])
        for _ in range(ATTEMPTS):
            if not pending:
                break
            pending = await _choose_some(link, number, pending, now, ready)
        given_up.update(pending)
    return ready, given_up


async def _choose_some(link: Link, number: ObjectId, keys: list[str], now: int, ready: list[str | None]) -> list[str]:
    """One attempt; returns the groups that changed meanwhile."""
    with link.call() as db:
        async with await db.groups.aggregate(queries.heads(number, keys), batchSize=len(keys) + 1) as cursor:
            found = await cursor.to_list()
        changed: list[str] = []
        if several := [one for one in found if "front" in one]:
            rest, changed = await fronts.settle(link, number, several, now, ready)
            changed += rest  # what was read of them may be outdated
            found = [one for one in found if "front" not in one]
            keys = [one["_id"] for one in found]
        heads = {one["_id"]: block_of(block) for one in found for block in one["heads"] if block["count"]}
        changes: list[Any] = []
        for one in found:
            if one["_id"] in heads:
                continue
            same = {name: one.get(name) for name in ("_id", "head", "last", "floor", "sends")}
            block = next(map(block_of, one["next"]), None)
            if block is None:
                # Not `at` of a group that was empty before: it would never be removed.
                emptied = {} if one["head"] is None else {"$max": {"at": now}}
                changes.append(UpdateOne(same, {"$set": {"head": None}} | emptied))
            else:
                changes.append(UpdateOne(same, {"$set": {"head": block.ids[0], "floor": block.ids[0]}}))
                heads[one["_id"]] = block
        if changes:
            result = await link.patiently(lambda: db.groups.bulk_write(changes, ordered=False))
            if result.matched_count < len(changes):
                return [*keys, *changed]
    waiting = {key: block for key, block in heads.items() if block.waits}
    for block in waiting.values():
        block.waits = False
    saved = await writes.save(link, [writes.Written(block, now) for block in waiting.values()])
    ready += [block.lane or None for block in waiting.values() if block.id in saved]
    return [*changed, *(key for key, block in waiting.items() if block.id not in saved)]


async def finish(link: Link, blocks: Sequence[tuple[str, ObjectId, str]], now: int) -> list[str | None]:
    """Choose new heads after heads have left their blocks, or messages of fronts were settled. The blocks are given by
    `_id`, number and group; those of groups that got none stay marked, for upkeep."""
    ready: list[str | None] = []
    done: list[str] = []
    for number in dict.fromkeys(number for _, number, _ in blocks):
        keys = {id: group_key(number, group) for id, of, group in blocks if of == number}
        chosen_for, given_up = await _choose(link, number, list(dict.fromkeys(keys.values())), now)
        ready += chosen_for
        done += [id for id, key in keys.items() if key not in given_up]
    if done:
        chosen = {"_id": {"$in": done}} | queries.HEAD_LEFT
        with link.call() as db:
            await link.patiently(lambda: db.blocks.update_many(chosen, queries.HEAD_CHOSEN))
    return ready


async def left_behind(db: Database, now: int) -> Literal["now", "later"] | None:
    """Whether there is something for `tidy`, or probably will be if its broker has died."""
    if await db.groups.find_one(queries.headless(now - PATIENCE), {"_id": 1}) is not None:
        return "now"
    if await db.blocks.find_one(queries.head_left(now - GRACE), {"_id": 1}, hint="todo") is not None:
        return "now"
    return "later" if await db.blocks.find_one(queries.HEAD_LEFT, {"_id": 1}, hint="todo") is not None else None


async def tidy(link: Link, now: int, limit: int) -> tuple[int, list[tuple[ObjectId, str | None]]]:
    """Complete what brokers that died have left, and remove groups that have long been empty: up to `limit` of each.
    How many were looked at, and the numbers and recipients of new heads."""
    ready: list[tuple[ObjectId, str | None]] = []
    with link.call() as db:
        query = queries.head_left(now - GRACE)
        left = await db.blocks.find(query, {"number": 1, "group": 1}, hint="todo").limit(limit).to_list()
    for number in dict.fromkeys(one["number"] for one in left):
        some = [(one["_id"], number, one["group"]) for one in left if one["number"] == number]
        ready += [(number, lane) for lane in await finish(link, some, now)]
    with link.call() as db:
        old = queries.headless(now - PATIENCE)
        headless = await db.groups.find(old, {"number": 1}).limit(limit).to_list()
    for number in dict.fromkeys(one["number"] for one in headless):
        keys = [one["_id"] for one in headless if one["number"] == number]
        with link.call() as db:
            await db.groups.update_many({"_id": {"$in": keys}} | old, {"$set": {"floor": ""}})
        ready += [(number, lane) for lane in await choose(link, number, keys, now)]
        with link.call() as db:
            await db.groups.delete_many({"_id": {"$in": keys}} | old)
    return max(len(left), len(headless)), ready
