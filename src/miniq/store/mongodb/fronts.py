"""Fronts of groups: the messages of a group that were taken and have not left, where several were taken together.

All blocks of such a front wait (`waits`), except for the one that can be taken, or was taken alone; those that wait
have the key of their group in `front`. The document of the group counts in `front` how often several of its messages
were taken together, and has none where that is over.

1. A take first leases the head alone, so that no other take can get messages of the group. Then one transaction leases
   the messages that follow, as far as they have not changed meanwhile.
2. A message of the front that was settled is marked `todo`, as a head that left is (`groups.py`). Then `settle` makes
   the first message of the front the head, unless one of the front is leased.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from itertools import takewhile
from typing import Any, Literal

from bson import ObjectId
from msgspec import Struct
from pymongo import UpdateOne

from miniq.message import Event
from miniq.store.arguments import Take
from miniq.store.decisions import Budget
from miniq.store.mongodb import queries, writes
from miniq.store.mongodb.blocks import Block, block_of, own_name
from miniq.store.mongodb.connection import Database, Link, Session
from miniq.store.mongodb.documents import Document, group_key
from miniq.store.mongodb.writes import Written

PAGE = 16
"""Messages of a group that are read at once."""
Member = tuple[str, int, Block]
"""An id, its place, and its block."""


class Batch(Struct, eq=False):
    """Messages of a group that a take gets: the head, and the blocks of those that follow it."""

    take: Take
    head: Block
    following: list[Block] = []


# Reading what follows


class Followers:
    """The messages of a group behind its head, in order, read page by page."""

    def __init__(self, db: Database, group: Document, session: Session | None) -> None:
        self._pages = self._read(db, group, session)
        self._first: list[Block] | None = None

    async def prefetch(self) -> None:
        """Read the first page."""
        self._first = await anext(self._pages, [])

    async def __aiter__(self) -> AsyncIterator[Block]:
        for block in self._first or ():
            yield block
        async for page in self._pages:
            for block in page:
                yield block

    async def _read(self, db: Database, group: Document, session: Session | None) -> AsyncGenerator[list[Block]]:
        key = group["_id"]
        parts = [(queries.front(key), "front")] if "front" in group else []
        if not group["head"] == group["last"] == group["floor"]:
            parts.append((queries.waiting(key, group["floor"]), "group"))
        blocks = db.blocks if session is not None else db.get_collection("blocks", read_concern=writes.LOCAL)
        for query, hint in parts:
            while True:
                cursor = blocks.find(query, queries.WHOLE, sort=[("first", 1)], hint=hint, session=session)
                page = await cursor.limit(PAGE).batch_size(PAGE + 1).to_list()
                if page:
                    yield [block_of(one) for one in page]
                if len(page) < PAGE:
                    break
                query = query | {"first": {"$gt": page[-1]["first"]}}


async def behind(db: Database, heads: Sequence[Block], session: Session | None = None) -> dict[str, Followers]:
    """What follows heads of groups, by the `_id` of the head's block."""
    names = {group_key(block.number, block.group): block for block in heads if block.group is not None}
    if not names:
        return {}
    cursor = db.groups.find({"_id": {"$in": list(names)}}, session=session).batch_size(len(names) + 1)
    found = {
        names[one["_id"]].id: Followers(db, one, session)
        for one in await cursor.to_list()
        if one["head"] == names[one["_id"]].ids[0]
    }
    if session is None:
        await asyncio.gather(*[followers.prefetch() for followers in found.values()])
    return found


async def chunks(members: AsyncIterator[Member]) -> AsyncGenerator[list[Member]]:
    """Members in growing chunks: one or few groups are often enough."""
    size, chunk = 1, []
    async for member in members:
        chunk.append(member)
        if len(chunk) == size:
            yield chunk
            size, chunk = min(size * 4, 64), []
    if chunk:
        yield chunk


# Taking


async def follow(batch: Batch, followers: Followers, budget: Budget) -> bool:
    """Choose the messages that may be taken together with a head; whether nothing else fits into the take."""
    take = batch.take
    if budget.count == budget.limit:
        return True
    async for block in followers:
        if block.state(0).visible_at > take.now or block.lane not in ("", take.consumer):
            return False
        if not budget.admits(block.sizes[0]):
            return True
        batch.following.append(block)
        if budget.count == budget.limit:
            return True
    return False


async def lease(
    db: Database, session: Session, queue: str, batches: Sequence[Batch]
) -> tuple[dict[str, list[Block]], int]:
    """In a transaction: lease the messages that follow heads which were leased just now. Those that were leased, by the
    `_id` of the head's block, and how many leases had expired."""
    names = [block.id for batch in batches for block in (batch.head, *batch.following)]
    cursor = db.blocks.find({"_id": {"$in": names}}, queries.WITHOUT_CONTENT, session=session)
    found = {one["_id"]: one for one in await cursor.batch_size(len(names) + 1).to_list()}
    leased: dict[str, list[Block]] = {}
    changed: list[Written] = []
    expired = 0
    for batch in batches:
        head = block_of(found[batch.head.id]) if batch.head.id in found else None
        if head is None or not head.ids or head.state(0).receipt != batch.take.token:
            continue
        current = takewhile(lambda block: found.get(block.id, {}).get("v") == block.version, batch.following)
        following = [block_again(block) for block in current]
        if following:
            head.waits = True
            changed.append(Written(head, batch.take.now))
            for block in following:
                expired += len(block.expired(0, queue, batch.take.now))
                changed.append(hand_out(block, queue, batch.take))
            leased[batch.head.id] = following
    if leased:
        await writes.save_all(db, session, queue, changed)
        await note(db, session, [one.block for one in changed if one.block.id in leased])
    return leased, expired


def block_again(block: Block) -> Block:
    """A copy of a block as it was read: a transaction may be repeated."""
    again = Block(block.id, block.number, block.ids, block.sizes)
    for name in ("version", "priority", "lane", "sent_at", "due_at", "group", "waits", "mixed", "told"):
        setattr(again, name, getattr(block, name))
    again.states = list(block.states)
    again.hold(block.messages)
    return again


def hand_out(block: Block, queue: str, take: Take) -> Written:
    """Lease the only message of a block."""
    recorded: list[Event] = []
    if take.keep != "off":
        recorded += block.handed_out(0, queue, take.now, take.consumer, take.fit)
    block.lease(0, take.now, take.until, take.token, take.consumer)
    return Written(block, take.now, recorded)


async def note(db: Database, session: Session, heads: Sequence[Block]) -> None:
    """Note in a transaction that several messages of groups are taken together."""
    keys = [group_key(head.number, head.group or "") for head in heads]
    if keys:
        await db.groups.bulk_write([UpdateOne({"_id": key}, {"$inc": {"front": 1}}) for key in keys], session=session)


# Settling


async def settle(
    link: Link, number: ObjectId, found: Sequence[Document], now: int, ready: list[str | None]
) -> tuple[set[str], list[str]]:
    """Let the first message of each front be taken, unless one of the front is leased; `ready` gets the recipients of
    those that can be taken now. Returns the groups that have no front any more, and those that changed meanwhile."""
    rest: set[str] = set()
    again: list[str] = []
    for group in found:
        outcome = await _settle(link, number, group, now, ready)
        if outcome == "over":
            rest.add(group["_id"])
        elif outcome == "changed":
            again.append(group["_id"])
    return rest, again


async def _settle(
    link: Link, number: ObjectId, group: Document, now: int, ready: list[str | None]
) -> Literal["done", "over", "changed"]:
    key = group["_id"]
    same = {name: group.get(name) for name in ("_id", "head", "front")}
    with link.call() as db:

        async def update(change: dict[str, Any]) -> bool:
            return (await link.patiently(lambda: db.groups.update_one(same, change))).matched_count > 0

        head = await _head(db, number, group)
        if await _is_leased(db, key, now):
            if head is None or head.waits:
                return "done"
            block = head  # an expired lease was extended
        else:
            first = await _first(db, key)
            if first is None:
                return "over" if await update({"$unset": {"front": ""}}) else "changed"
            if head is not None and not head.waits:
                return "done"  # it can be taken, or was taken alone
            block = first
            if not await update({"$set": {"head": block.ids[0]}}):
                return "changed"
    block.waits = not block.waits
    if not await writes.save(link, [Written(block, now)]):
        return "changed"
    if not block.waits:
        ready.append(block.lane or None)
    return "done"


async def hold(link: Link, number: ObjectId, keys: Sequence[str], now: int) -> None:
    """Let the heads of groups with fronts wait: which message is the first is to be found out anew."""
    for key in keys:
        with link.call() as db:
            group = await db.groups.find_one({"_id": key})
            head = None if group is None else await _head(db, number, group)
        if head is not None and not head.waits:
            head.waits = True
            await writes.save(link, [Written(head, now)])


async def first_free(
    db: Database, session: Session, number: ObjectId, keys: Sequence[str], now: int
) -> Sequence[Block]:
    """The messages that `settle` would let be taken, of groups with fronts."""
    found: list[Block] = []
    for key in keys:
        group = await db.groups.find_one({"_id": key}, session=session)
        head = None if group is None else await _head(db, number, group, session)
        if (head is None or head.waits) and not await _is_leased(db, key, now, session):
            first = await _first(db, key, session)
            if first is not None:
                found.append(first)
    return found


async def _head(db: Database, number: ObjectId, group: Document, session: Session | None = None) -> Block | None:
    """The head that a group names, None if it has left."""
    if group["head"] is None:
        return None
    name = own_name(number, group["head"])
    found = await db.blocks.find_one({"_id": name}, queries.WITHOUT_CONTENT, session=session)
    return block_of(found) if found is not None and found["count"] else None


async def _is_leased(db: Database, key: str, now: int, session: Session | None = None) -> bool:
    query = queries.front_leased(key, now)
    return await db.blocks.find_one(query, {"_id": 1}, hint="front_leased", session=session) is not None


async def _first(db: Database, key: str, session: Session | None = None) -> Block | None:
    query = queries.front(key)
    found = await db.blocks.find_one(query, queries.WITHOUT_CONTENT, sort=[("first", 1)], hint="front", session=session)
    return None if found is None else block_of(found)
