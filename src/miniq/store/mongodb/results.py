"""Results in MongoDB. Blocks are changed one by one, but a result must be there exactly if its message has left: so the
blocks and the results of a change are written in one transaction, which is over in a few milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bson import ObjectId
from pymongo import ReplaceOne

from miniq.result import Finished
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

    def __init__(self, tools: Tools) -> None:
        self._link, self._changes, _, _ = tools

    async def find(self, queue: str, ids: Sequence[str], now: int) -> dict[str, Finished]:
        with self._link.call() as db:
            serial = (await self._changes.ask(db, queue)).serial
            found = await db.results.find({"_id": {"$in": [f"{serial}:{id}" for id in ids]}}).to_list()
        return {one["id"]: finished(one) for one in found if one["until"] > now}


def finished(found: Document) -> Finished:
    return Finished(found["status"], int(found["finished_at"]), found["result"], found["error"])


async def keep(db: Database, session: Session, serial: ObjectId, results: Sequence[Kept]) -> None:
    """Write results of a queue; a message that was redriven may have had another."""
    changes: list[ReplaceOne[dict[str, Any]]] = []
    for id, one, until in results:
        key = {"_id": f"{serial}:{id}"}
        of = {"serial": serial, "id": id, "until": until}
        how = {"status": one.status, "finished_at": one.finished_at, "result": one.result, "error": one.error}
        changes.append(ReplaceOne(key, key | of | how, upsert=True))
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
