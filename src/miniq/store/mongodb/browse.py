"""Reading through a queue without changing anything.

Pages are in queue order; those of only leased or only delayed messages by expiry. A cursor is the sort value of the
last message and its id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from bson import ObjectId

from miniq.errors import InvalidRequest
from miniq.message import Page, Status, Stored
from miniq.store.arguments import Scan
from miniq.store.decisions import Budget
from miniq.store.mongodb import queries
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import Document, stored_of

DUE_LOOKED_AT = 1000
LEASED: dict[str, Any] = {"$gt": ""}


async def browse(db: Database, number: ObjectId, scan: Scan) -> Page:
    """A page of a queue."""
    timed = scan.status in ("leased", "delayed")
    start = _open_cursor(scan.after)
    found: list[Stored] = []
    budget = Budget(scan.limit, scan.max_bytes)
    async for one in (_timed if timed else _in_line)(db, number, scan.status, start, scan.now):
        if not budget.admits(one["size"]):
            last = found[-1]
            return Page(found, f"{last.visible_at if timed else last.message.priority}.{last.message.id}")
        found.append(stored_of(one))
    return Page(found, None)


async def oldest(db: Database, session: Session, number: ObjectId, now: int) -> int | None:
    """When the oldest message that any consumer may take was sent, to the millisecond. Examines only the first of the
    due messages that are not lined up yet."""
    line = db.messages.find(queries.oldest(number, now), {"sent_at": 1}, session=session).sort("_id").limit(1)
    due = db.messages.find(queries.due(number, now) | {"lane": "", "waits": None}, {"sent_at": 1}, session=session)
    found = [*await line.to_list(), *await due.sort("visible_at").limit(DUE_LOOKED_AT).to_list()]
    return min((one["sent_at"] // 1000 * 1000 for one in found), default=None)


async def _in_line(
    db: Database, number: ObjectId, status: Status | None, start: tuple[int, str] | None, now: int
) -> AsyncIterator[Document]:
    wanted = {} if status is None else {"visible_at": {"$lte": now}}
    rest = [queries.of_number(number)]
    if start is not None:
        rest = [queries.rest_of_priority(number, *start), queries.below_priority(number, start[0])]
    for query in rest:
        async for one in db.messages.find(query | wanted, sort=queries.IN_LINE, hint="queue"):
            yield one


async def _timed(
    db: Database, number: ObjectId, status: Status | None, start: tuple[int, str] | None, now: int
) -> AsyncIterator[Document]:
    wanted = {"receipt": LEASED if status == "leased" else None}
    rest = [queries.ahead(number, now if start is None else max(now, start[0]))]
    if start is not None and start[0] > now:
        rest.insert(0, queries.rest_of_moment(number, *start))
    for query in rest:
        async for one in db.messages.find(query | wanted, sort=queries.BY_MOMENT, hint="timed"):
            yield one


def _open_cursor(text: str | None) -> tuple[int, str] | None:
    if text is None:
        return None
    place, dot, id = text.partition(".")
    if not dot or not place.isdecimal() or len(place) > 20:
        raise InvalidRequest(f"after: {text[:80]!r} is not a cursor given as `next`", field="after")
    return int(place), id
