"""The history: events are written with their change, offsets are assigned afterwards.

Offsets have no gaps, so assigning one requires the last. If each change did that, all changes of all brokers would
contend for one counter. So a change only adds its events, in one record that the server timestamps (timestamps rise,
also between dependent changes). The next reader of the history assigns offsets in the order of the timestamps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from bson import Timestamp
from pymongo import UpdateOne

from miniq.message import Event, HistoryPage, HistoryRecord, HistorySpan
from miniq.store.contract import HistoryStore
from miniq.store.mongodb import queries
from miniq.store.mongodb.changes import Changes
from miniq.store.mongodb.connection import Database, Link, Session

RECORD_BYTES = 4 * 1024 * 1024
"""The size at which a record of events ends; the limit of a document is 16 MiB."""
NUMBER_AT_ONCE = 1000
TRIM_AT_ONCE = 1000
PAGE_BYTES = 16 * 1024 * 1024

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Event]).decode


class HistoryLog(HistoryStore):
    """See `HistoryStore`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._numbering = asyncio.Lock()

    async def append(self, db: Database, session: Session, events: Sequence[Event]) -> None:
        """Add the events of a change."""
        if events:
            await db.events.insert_many([_record(some) for some in _portions(events)], session=session)

    async def begin(self, db: Database, session: Session, first: int) -> None:
        """Start an empty history at an offset."""
        span = {"first": first, "last": first - 1, "bytes": 0}
        await db.meta.update_one({"_id": "history"}, {"$set": span}, upsert=True, session=session)

    async def load(self, db: Database, session: Session, first: int, events: Sequence[Event]) -> None:
        """Add events with the next offsets."""
        records = []
        for some in _portions(events):
            record = _record(some) | {"first": first, "last": first + len(some) - 1}
            del record["pending"]
            records.append(record)
            first += len(some)
        await db.events.insert_many(records, session=session)
        grown = {"$set": {"last": first - 1}, "$inc": {"bytes": sum(record["size"] for record in records)}}
        await db.meta.update_one({"_id": "history"}, grown, session=session)

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage:
        await self._number()
        found: list[HistoryRecord] = []
        size = 0
        with self._link.call() as db:
            end = (await _span(db))["last"]
            async for record in db.events.find(queries.events_after(after, queue)).sort("last"):
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
            first = await db.events.find(queries.events_after(0, None)).sort("last").limit(1).to_list()
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

    async def _number(self) -> None:
        """Assign offsets to events that have none."""
        async with self._numbering:
            with self._link.call() as db:
                if await db.events.find_one(queries.PENDING, {"_id": 1}) is None:
                    return
            while await self._link.transact(self._number_some) == NUMBER_AT_ONCE:
                pass

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


def _portions(events: Sequence[Event]) -> list[Sequence[Event]]:
    """Events in portions that fit into one record each."""
    start = size = 0
    found: list[Sequence[Event]] = []
    for place, event in enumerate(events):
        if size > RECORD_BYTES:
            found.append(events[start:place])
            start, size = place, 0
        size += 128 + len(event.body or b"")
    return [*found, events[start:]]


def _record(events: Sequence[Event]) -> dict[str, Any]:
    encoded = _encode(events)
    return {
        "pending": Timestamp(0, 0),  # replaced by the server
        "queues": sorted({event.queue for event in events}),
        "at": events[0].at,
        "count": len(events),
        "size": len(encoded),
        "events": encoded,
    }


async def _span(db: Database, session: Session | None = None) -> dict[str, int]:
    found = await db.meta.find_one({"_id": "history"}, session=session) or {"first": 1, "last": 0, "bytes": 0}
    return {name: int(found[name]) for name in ("first", "last", "bytes")}
