"""Reading blocks, and writing them back on condition that they have not changed since.

Each write of a block gives it a new version and names the one that was read. So of two writers one wins, and the other
reads again and repeats its change. A write waits only for a transaction that is about to commit: if that
takes long, its broker was probably killed, and the transaction is aborted.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from bson import ObjectId
from msgspec import Struct
from pymongo import UpdateOne
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern

from miniq.message import Event, History, Message
from miniq.store import events
from miniq.store.mongodb import queries
from miniq.store.mongodb.blocks import Block, block_of, is_id, own_name, shared_name
from miniq.store.mongodb.changes import Outdated
from miniq.store.mongodb.connection import Database, Link, Session

LOCAL = ReadConcern("local")
"""What is read is then written on condition, confirmed by a majority: so it was confirmed as well."""
FEW = 4
"""So many blocks are removed one by one; more are first marked as over, and then removed together."""
PAST = 16
"""Versions that a block remembers, by which a write that met with conflicts finds out what it did."""
DOUBT = 30
"""Seconds for which a process may not know whether a write of its was made: calls end long before."""
OUT_BYTES = 4 * 1024 * 1024
"""The size at which a record of events ends."""

_encode = msgspec.msgpack.Encoder().encode


class Written(Struct):
    """A block to write, and the events of its change."""

    block: Block
    now: int
    events: list[Event] = []
    content: bool = False
    """Whether its messages were changed as well."""


async def read(
    db: Database,
    number: ObjectId,
    ids: Iterable[str],
    session: Session | None = None,
    projection: Mapping[str, Any] = queries.WITHOUT_CONTENT,
    queue: str | None = None,
) -> dict[str, Block]:
    """The blocks of messages, by the id of each message that is in one. With `queue`, raises `Outdated` if it no longer
    has this number."""
    blocks = db.get_collection("blocks", read_concern=LOCAL) if session is None else db.blocks
    found: dict[str, Block] = {}
    wanted = {id: shared_name(number, id) for id in ids if is_id(id)}
    names: list[Any] = list(dict.fromkeys(wanted.values()))
    if few := len(wanted) <= FEW:
        names += [own_name(number, id) for id in wanted]
    if queue is not None:
        names.append(number)
    shared: dict[str, Block] = {}
    current = False
    async for one in blocks.find({"_id": {"$in": names}}, projection, session=session).batch_size(len(names) + 1):
        if "v" in one:
            shared[one["_id"]] = block_of(one)
        else:
            current = True
    if queue is not None and not current:
        raise Outdated(queue)
    rest: list[str] = []
    for id, name in wanted.items():
        block = shared.get(name)
        if block is not None and block.place(id) is not None:
            found[id] = block
        elif few and (own := shared.get(own_name(number, id))) is not None:
            if own.place(id) is not None:
                found[id] = own
        elif not few and (block is None or block.mixed):
            rest.append(id)
    if names_of_own := {own_name(number, id): id for id in rest}:
        cursor = blocks.find({"_id": {"$in": list(names_of_own)}}, projection, session=session)
        async for one in cursor.batch_size(len(rest) + 1):
            block = block_of(one)
            id = names_of_own[block.id]
            if block.place(id) is not None:
                found[id] = block
    return found


def arrivals(
    messages: Iterable[Message], now: int, keep: History, reason: str | None = None
) -> dict[str, list[Event]] | None:
    """The events of messages that were sent, by id."""
    if keep == "off":
        return None
    return {message.id: [events.sent(message, now, reason, keep)] for message in messages}


def insert(
    blocks: Iterable[Block], now: int, told: Mapping[str, Sequence[Event]] | None = None
) -> list[dict[str, Any]]:
    """The documents of new blocks, with the events of their messages by id."""
    version = ObjectId()
    documents = []
    for block in blocks:
        document = block.document(now) | {"v": version, "past": [version]}
        if told:
            of_block = [event for id in block.ids for event in told.get(id, ())]
            if of_block:
                document |= {"out": outbox(of_block), "told": version}
        documents.append(document)
    return documents


def outbox(told: Sequence[Event]) -> list[dict[str, Any]]:
    """Events in records that each fit into a document of `events`."""
    records = []
    start = size = 0
    for place, event in enumerate(told):
        if size > OUT_BYTES:
            records.append(_record(told[start:place]))
            start, size = place, 0
        size += 128 + len(event.body or b"") + len(event.error or "")
    return [*records, _record(told[start:])]


def _record(told: Sequence[Event]) -> dict[str, Any]:
    return {
        "t": ObjectId(),
        "at": told[0].at,
        "count": len(told),
        "queues": sorted({event.queue for event in told}),
        "events": _encode(told),
    }


def _update(written: Written, version: ObjectId) -> dict[str, Any]:
    update = written.block.update(written.now)
    update["$set"]["v"] = version
    if written.content and "content" not in update["$unset"]:
        document = written.block.document(written.now)
        update["$set"] |= {
            name: document[name]
            for name in ("content", "sizes", "priority", "due_at", "lane", "first")
            if name in document
        }
    update["$push"] = {"past": {"$each": [version], "$slice": -PAST}}
    if written.events:
        update["$push"]["out"] = {"$each": outbox(written.events)}
        update["$set"]["told"] = version
    return update


async def save_all(db: Database, session: Session, queue: str, writes: Sequence[Written]) -> None:
    """Write blocks in a transaction; raises `Outdated` if one was changed since it was read."""
    if not writes:
        return
    version = ObjectId()
    changes = [UpdateOne({"_id": one.block.id, "v": one.block.version}, _update(one, version)) for one in writes]
    result = await db.blocks.bulk_write(changes, session=session)
    if result.matched_count != len(changes):
        raise Outdated(queue)


async def save(link: Link, writes: Sequence[Written]) -> set[str]:
    """Write blocks, each on its own: the `_id`s of those that had not changed since they were read."""
    if not writes:
        return set()
    deadline = time.monotonic() + link.patience
    summaries = {one.block.id: ends(one) for one in writes}
    ending = [one for one in writes if summaries[one.block.id]]
    if len(ending) <= FEW:
        others = [one for one in writes if not summaries[one.block.id]]
        results = await asyncio.gather(_save(link, others, deadline), *[_remove(link, one, deadline) for one in ending])
        return set().union(*results)
    saved = await _save(link, writes, deadline)
    over = [one.block.id for one in ending if one.block.id in saved]
    with link.call() as db:
        await db.blocks.delete_many({"_id": {"$in": over}} | queries.ENDED)
    return saved


def ends(written: Written) -> bool:
    """Whether a block can be removed: nothing is left in it."""
    block = written.block
    return (
        not written.events
        and not block.told
        and block.group is None
        and block.called_until <= written.now
        and certain(block.past)
        and all(state is not None and state.gone and state.claim is None for state in block.states)
    )


def certain(past: Iterable[ObjectId]) -> bool:
    """Whether every process knows what its writes of a block did: they were made here, or a while ago. The block of
    another one must stay until then, even if its messages have all left: from its `past` that process learns whether
    its write was made, and a send whose answer was lost finds that it need not be repeated."""
    here, before = ObjectId().binary[4:9], time.time() - DOUBT
    return all(one.binary[4:9] == here or int.from_bytes(one.binary[:4]) < before for one in past)


def before_doubt() -> ObjectId:
    """Versions below this one are so old that every process knows what its writes did."""
    return ObjectId(int(time.time() - DOUBT).to_bytes(4) + bytes(8))


async def _save(link: Link, writes: Sequence[Written], deadline: float) -> set[str]:
    if not writes:
        return set()
    version = ObjectId()
    changes = [UpdateOne({"_id": one.block.id, "v": one.block.version}, _update(one, version)) for one in writes]
    names = [one.block.id for one in writes]
    while True:
        with link.call() as db:
            try:
                with link.watching(deadline):
                    if len(changes) == 1:
                        only = changes[0]
                        result: Any = await db.blocks.update_one(only._filter, only._doc)
                    else:
                        result = await db.blocks.bulk_write(changes, ordered=False)
                if result.matched_count == len(changes):
                    return set(names)
            except PyMongoError as error:
                if not error.timeout or time.monotonic() >= deadline:
                    raise
                await link.abort_abandoned()
                done = {
                    one["_id"] async for one in db.blocks.find({"_id": {"$in": names}, "past": version}, {"_id": 1})
                }
                changes = [one for one in changes if one._filter["_id"] not in done]
                if changes:
                    continue
            return await _written(db, names, version)


async def _written(db: Database, names: Sequence[str], version: ObjectId) -> set[str]:
    """Which blocks were written with this version. Others may have changed them again since."""
    return {one["_id"] async for one in db.blocks.find({"_id": {"$in": names}, "past": version}, {"_id": 1})}


async def _remove(link: Link, written: Written, deadline: float) -> set[str]:
    block = written.block
    query = {"_id": block.id, "v": block.version, "told": None}
    late = False
    while True:
        with link.call() as db:
            try:
                with link.watching(deadline):
                    removed = await db.blocks.delete_one(query)
                if removed.deleted_count:
                    return {block.id}
            except PyMongoError as error:
                if not error.timeout or time.monotonic() >= deadline:
                    raise
                late = True
                await link.abort_abandoned()
                continue
            # An attempt that was not answered in time may have removed it.
            if late and await db.blocks.find_one({"_id": block.id}, {"_id": 1}) is None:
                return {block.id}
            return set()
