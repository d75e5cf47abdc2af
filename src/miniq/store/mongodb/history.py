"""The history: events are written with their change, into the block that it changes; offsets are assigned afterwards.

Offsets have no gaps, so assigning one requires the last. If each change did that, all changes of all brokers would
contend for one counter. So a change leaves its events in its block. The next reader of the history copies them to
`events`, in the order in which they lie in their blocks, and then assigns offsets in the order of arrival there.
Copying is idempotent, since a record has its `_id` from the start: several brokers may copy at once, and any of them
may die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from bson import ObjectId, Timestamp
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from miniq.message import Event, HistoryPage, HistoryRecord, HistorySpan
from miniq.store.contract import HistoryStore
from miniq.store.mongodb import queries, writes
from miniq.store.mongodb.changes import Changes
from miniq.store.mongodb.connection import DUPLICATE, Database, Link, Session

COPY_AT_ONCE = 200
COPY_BYTES = 8 * 1024 * 1024
NUMBER_AT_ONCE = 1000
TRIM_AT_ONCE = 1000
PAGE_BYTES = 16 * 1024 * 1024

_decode = msgspec.msgpack.Decoder(list[Event]).decode


class HistoryLog(HistoryStore):
    """See `HistoryStore`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbering = asyncio.Lock()

    async def append(self, db: Database, session: Session, events: Sequence[Event]) -> None:
        """Add the events of a change that is made in a transaction and belongs to no block."""
        if events:
            await db.events.insert_many([_pending(one) for one in writes.outbox(events)], session=session)

    async def begin(self, db: Database, session: Session, first: int) -> None:
        """Start an empty history at an offset."""
        span = {"first": first, "last": first - 1, "bytes": 0}
        await db.meta.update_one({"_id": "history"}, {"$set": span}, upsert=True, session=session)

    async def load(self, db: Database, session: Session, first: int, events: Sequence[Event]) -> None:
        """Add events with the next offsets."""
        records = []
        for one in writes.outbox(events):
            record = _pending(one) | {"first": first, "last": first + one["count"] - 1}
            del record["pending"]
            records.append(record)
            first += one["count"]
        await db.events.insert_many(records, session=session)
        grown = {"$set": {"last": first - 1}, "$inc": {"bytes": sum(record["size"] for record in records)}}
        await db.meta.update_one({"_id": "history"}, grown, session=session)

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage:
        await self._number()
        found: list[HistoryRecord] = []
        size = 0
        with self._link.call() as db:
            end = (await _span(db))["last"]
            # The first batch is small: most pages need few records.
            cursor = db.events.find(queries.events_after(after, queue)).sort("last").batch_size(20)
            async with cursor:
                async for record in cursor:
                    for offset, event in enumerate(_decode(record["events"]), int(record["first"])):
                        if offset <= after or (queue is not None and event.queue != queue):
                            continue
                        found.append(HistoryRecord(offset, event))
                        if len(found) == limit:
                            return HistoryPage(found, offset)
                    size += record["size"]
                    if size >= PAGE_BYTES:
                        return HistoryPage(found, int(record["last"]))
                    end = max(end, int(record["last"]))
        return HistoryPage(found, max(after, end))

    async def span(self) -> HistorySpan:
        await self._number()
        with self._link.call() as db:
            span = await _span(db)
            cursor = db.events.find(queries.events_after(0, None), {"at": 1}).sort("last").limit(1)
            first = await cursor.to_list()
        return HistorySpan(span["first"], span["last"], span["bytes"], int(first[0]["at"]) if first else None)

    async def trim(self, upto: int) -> None:
        """Remove whole records up to `upto`, a thousand at a time."""

        async def some(session: Session) -> int:
            db = self._link.database
            cursor = db.events.find(queries.events_upto(upto), {"last": 1, "size": 1}, session=session)
            records = await cursor.sort("last").limit(TRIM_AT_ONCE).to_list()
            if records:
                await db.events.delete_many({"_id": {"$in": [one["_id"] for one in records]}}, session=session)
                change = {
                    "$set": {"first": records[-1]["last"] + 1},
                    "$inc": {"bytes": -sum(one["size"] for one in records)},
                }
                await db.meta.update_one({"_id": "history"}, change, session=session)
            return len(records)

        await self._number()
        while await self._link.transact(some) == TRIM_AT_ONCE:
            pass

    async def copy(self) -> None:
        """Copy the events that lie in blocks."""
        async with self._numbering:
            await self._copy()

    async def _number(self) -> None:
        """Assign offsets to events that have none."""
        async with self._numbering:
            await self._copy()
            with self._link.call() as db:
                if await db.events.find_one(queries.PENDING, {"_id": 1}) is None:
                    return
            while await self._link.transact(self._number_some) == NUMBER_AT_ONCE:
                pass

    async def _copy(self) -> None:
        while await self._copy_some():
            pass

    async def _copy_some(self) -> bool:
        """Copy the events of some blocks; whether there may be more."""
        blocks: dict[str, list[dict[str, Any]]] = {}
        over: list[str] = []
        size = 0
        with self._link.call() as db:
            fields = {"out": 1, "over": 1, "past": 1}
            cursor = db.blocks.find(queries.TOLD, fields, sort=[("told", 1)], hint="told").batch_size(20)
            async with cursor:
                async for one in cursor:
                    blocks[one["_id"]] = one.get("out", [])
                    if "over" in one and writes.certain(one.get("past", ())):
                        over.append(one["_id"])
                    size += sum(len(record["events"]) for record in blocks[one["_id"]])
                    if len(blocks) == COPY_AT_ONCE or size > COPY_BYTES:
                        break
            if not blocks:
                return False
            for start in range(0, len(records := _in_order(blocks.values())), 100):
                await _insert(db, [_pending(record) for record in records[start : start + 100]])
            changes = [_copied(id, [record["t"] for record in out]) for id, out in blocks.items()]
            await self._link.patiently(lambda: db.blocks.bulk_write(changes, ordered=False))
            if over:
                query = {"_id": {"$in": over}} | queries.ENDED
                await self._link.patiently(lambda: db.blocks.delete_many(query))
        return len(blocks) == COPY_AT_ONCE or size > COPY_BYTES

    async def _number_some(self, session: Session) -> int:
        db = self._link.database
        cursor = db.events.find(queries.PENDING, {"count": 1, "size": 1}, session=session)
        records = await cursor.sort("pending").limit(NUMBER_AT_ONCE).to_list()
        if not records:
            return 0
        last = (await _span(db, session))["last"]
        changes: list[UpdateOne] = []
        for record in records:
            offsets = {"first": last + 1, "last": last + record["count"]}
            changes.append(UpdateOne({"_id": record["_id"]}, {"$set": offsets, "$unset": {"pending": ""}}))
            last += record["count"]
        grown = {"$set": {"last": last}, "$inc": {"bytes": sum(record["size"] for record in records)}}
        await db.meta.update_one({"_id": "history"}, grown, session=session)
        await db.events.bulk_write(changes, ordered=False, session=session)
        return len(records)


class Tools(NamedTuple):
    """What all parts of the store share."""

    link: Link
    changes: Changes
    log: HistoryLog
    ready: Callable[[str, Iterable[str | None]], None]
    """Wakes long polls, here and at other brokers, for messages with these recipients."""


def _in_order(outs: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The records of all blocks by time, those of each block in their order."""
    keyed: list[tuple[tuple[int, ObjectId], dict[str, Any]]] = []
    for out in outs:
        key = (0, ObjectId(b"\0" * 12))
        for record in out:
            key = max(key, (int(record["at"]), record["t"]))
            keyed.append((key, record))
    return [record for _, record in sorted(keyed, key=lambda one: one[0])]


def _pending(record: dict[str, Any]) -> dict[str, Any]:
    return {
        "_id": record["t"],
        "pending": Timestamp(0, 0),  # replaced by the server
        "queues": record["queues"],
        "at": record["at"],
        "count": record["count"],
        "size": len(record["events"]),
        "events": record["events"],
    }


async def _insert(db: Database, records: list[dict[str, Any]]) -> None:
    """Insert records, except those that another broker has inserted."""
    try:
        await db.events.insert_many(records, ordered=False)
    except BulkWriteError as error:
        if any(one["code"] != DUPLICATE for one in error.details["writeErrors"]):
            raise


def _copied(id: str, records: list[ObjectId]) -> UpdateOne:
    """The update that removes copied records from a block."""
    rest = {"$filter": {"input": {"$ifNull": ["$out", []]}, "cond": {"$not": [{"$in": ["$$this.t", records]}]}}}
    left = {"$cond": [{"$eq": ["$out", []]}, "$$REMOVE", "$told"]}
    return UpdateOne({"_id": id}, [{"$set": {"out": rest}}, {"$set": {"told": left}}])


async def _span(db: Database, session: Session | None = None) -> dict[str, int]:
    found = await db.meta.find_one({"_id": "history"}, session=session) or {"first": 1, "last": 0, "bytes": 0}
    return {name: int(found[name]) for name in ("first", "last", "bytes")}
