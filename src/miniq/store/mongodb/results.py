"""Results in MongoDB. Blocks are changed one by one, but a result must be there exactly if its message has left: so the
blocks and the results of a change are written in one transaction, which is over in a few milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bson import ObjectId
from pymongo import ReplaceOne
from pymongo.errors import DuplicateKeyError

from miniq.result import Finished
from miniq.store.arguments import PutResult
from miniq.store.contract import ResultStore
from miniq.store.mongodb import queries, writes
from miniq.store.mongodb.changes import Outdated
from miniq.store.mongodb.connection import Database, Link, Session
from miniq.store.mongodb.documents import Document
from miniq.store.mongodb.history import Tools
from miniq.store.mongodb.writes import Written

Kept = tuple[str, Finished, int]
"""The id of a message, its result, and until when that is kept."""


class Results(ResultStore):
    """See `ResultStore`."""

    def __init__(self, tools: Tools, finished: Callable[[str], None]) -> None:
        self._link, self._changes, _, _ = tools
        self._finished = finished
        """Announces results of a queue to other brokers."""

    async def find(self, queue: str, ids: Sequence[str], now: int) -> dict[str, Finished]:
        with self._link.call() as db:
            serial = (await self._changes.ask(db, queue)).serial
            found = await db.results.find({"_id": {"$in": [f"{serial}:{id}" for id in ids]}}).to_list()
        return {one["id"]: finished(one) for one in found if one["until"] > now}

    async def put(self, queue: str, id: str, put: PutResult) -> bool:
        with self._link.call() as db:
            serial = (await self._changes.ask(db, queue)).serial
            key = {"_id": f"{serial}:{id}"}
            query: dict[str, Any] = dict(key)
            if put.expected:
                query |= {"finished_at": put.expected, "until": {"$gt": put.now}}
            elif put.expected == 0:
                query |= {"until": {"$lte": put.now}}  # if another one is kept, the insert finds its key taken
            if (one := put.finished) is None:
                gone = await self._link.patiently(lambda: db.results.delete_one(query))
                return bool(gone.deleted_count) or not put.expected
            new = _document(key, serial, id, one, put.until)
            try:
                done = await self._link.patiently(lambda: db.results.replace_one(query, new, upsert=not put.expected))
            except DuplicateKeyError:
                if put.expected is None:  # two calls added it at the same time
                    done = await self._link.patiently(lambda: db.results.replace_one(query, new, upsert=True))
                else:
                    return False
        if done.matched_count or done.upserted_id is not None:
            self._finished(queue)
            return True
        return False


def _document(key: dict[str, Any], serial: ObjectId, id: str, one: Finished, until: int) -> dict[str, Any]:
    of = {"serial": serial, "id": id, "until": until}
    how = {"status": one.status, "finished_at": one.finished_at, "result": one.result, "error": one.error}
    return key | of | how


def finished(found: Document) -> Finished:
    return Finished(found["status"], int(found["finished_at"]), found["result"], found["error"])


async def keep(db: Database, session: Session, serial: ObjectId, results: Sequence[Kept]) -> None:
    """Write results of a queue; a message that was redriven may have had another."""
    changes: list[ReplaceOne[dict[str, Any]]] = []
    for id, one, until in results:
        key = {"_id": f"{serial}:{id}"}
        changes.append(ReplaceOne(key, _document(key, serial, id, one, until), upsert=True))
    if changes:
        await db.results.bulk_write(changes, ordered=False, session=session)


async def save(
    link: Link, queue: str, serial: ObjectId, written: Sequence[Written], results: Sequence[Kept]
) -> set[str]:
    """Write blocks together with the results of messages that leave them: the `_id`s of all blocks, or none if one was
    changed since it was read."""

    async def work(session: Session) -> None:
        await writes.save_all(link.database, session, queue, written)
        await keep(link.database, session, serial, results)

    try:
        await link.transact(work)
    except Outdated:
        return set()
    over = [one.block.id for one in written if writes.ends(one)]
    if over:
        with link.call() as db:
            query = {"_id": {"$in": over}} | queries.ENDED
            await link.patiently(lambda: db.blocks.delete_many(query))
    return {one.block.id for one in written}
