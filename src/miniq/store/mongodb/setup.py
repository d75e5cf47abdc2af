"""Prepares a database: format marker, collections and indexes, and what an earlier version wrote. Idempotent, also when
several brokers start together."""

from __future__ import annotations

from typing import Any

from pymongo.errors import CollectionInvalid, OperationFailure

from miniq.errors import StoreFormat
from miniq.store.mongodb import queries
from miniq.store.mongodb.connection import Database, Link
from miniq.store.mongodb.documents import COLLECTIONS, FORMAT
from miniq.store.mongodb.upgrade import is_old, upgrade

SIGNAL_BYTES = 1024 * 1024
EXISTS = 48


async def prepare(link: Link) -> None:
    """Check the format, or mark an empty database; create what is missing."""
    with link.call() as db:
        there = set(await db.list_collection_names())
        await _check_format(db, there)
        for name in COLLECTIONS:
            if name not in there:
                await _make(db, name)
        for name, indexes in queries.INDEXES.items():
            await db[name].create_indexes(indexes)
        await db.meta.update_one({"_id": "history"}, {"$setOnInsert": {"first": 1, "last": 0, "bytes": 0}}, upsert=True)
        await db.meta.update_one({"_id": "format"}, {"$setOnInsert": {"version": FORMAT}}, upsert=True)
    await upgrade(link)


async def _check_format(db: Database, there: set[str]) -> None:
    found = await _format(db)
    if found is None and await _is_foreign(db, there):
        # Again: another broker may have marked it just now.
        found = await _format(db)
        if found is None:
            raise StoreFormat(
                f"store: database {db.name!r} is not MiniQ's, but has collections of the same names; "
                "name another one at the end of the URL",
                field="store",
            )
    if found not in (None, FORMAT) and not is_old(found):
        raise StoreFormat(
            f"store: database {db.name!r} has format {found!r}, this version of MiniQ knows {FORMAT}; "
            "use the version that wrote it",
            field="store",
        )


async def _format(db: Database) -> Any:
    mark = await db.meta.find_one({"_id": "format"})
    return None if mark is None else mark.get("version")


async def _is_foreign(db: Database, there: set[str]) -> bool:
    """Whether any collection has documents. Ours are empty until the marker is written."""
    for name in sorted(there & {*COLLECTIONS, "messages"}):
        if await db[name].find_one({"_id": {"$ne": "history"}}, {"_id": 1}) is not None:
            return True
    return False


async def _make(db: Database, name: str) -> None:
    capped: dict[str, Any] = {"capped": True, "size": SIGNAL_BYTES} if name == "signals" else {}
    try:
        await db.create_collection(name, **capped)
    except CollectionInvalid:
        pass
    except OperationFailure as error:
        if error.code != EXISTS:  # another broker was faster
            raise
