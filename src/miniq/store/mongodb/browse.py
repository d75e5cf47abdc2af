"""Reading through a queue without changing anything.

Pages are in the order of blocks; those of only leased or only delayed messages by the time at which something in their
block is due. A cursor names the block to go on with, and a place in it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from bson import ObjectId
from msgspec import Struct

from miniq.errors import InvalidRequest
from miniq.message import Page, Stored
from miniq.store.arguments import Scan
from miniq.store.decisions import Budget
from miniq.store.mongodb import queries
from miniq.store.mongodb.blocks import Block, block_of
from miniq.store.mongodb.connection import Database

EXAMINED = 1000
"""Blocks that one page examines for messages of one status, at most."""


class _Cursor(Struct):
    """Where a page begins: priority and first id of a block, or moment and `_id`; and the place in it."""

    rank: int
    name: str
    place: int

    def __str__(self) -> str:
        return f"{self.rank}.{self.place}.{self.name}"


async def browse(db: Database, number: ObjectId, scan: Scan) -> Page:
    """A page of a queue."""
    timed = scan.status in ("leased", "delayed")
    start = _open_cursor(scan.after)
    found: list[Stored] = []
    budget = Budget(scan.limit, scan.max_bytes)
    examined = 0
    async for rank, block in (_timed if timed else _in_line)(db, number, start, min(scan.limit, 100)):
        name = block.id.partition(":")[2] if timed else block.ids[0]
        here = 0
        if start is not None and (rank, name) == (start.rank, start.name):
            here = start.place
        examined += 1
        if examined > EXAMINED and scan.status is not None:
            return Page(found, str(_Cursor(rank, name, here)))
        for place in block.present():
            if place < here:
                continue
            stored = block.stored(place)
            if scan.status is not None and stored.status(scan.now) != scan.status:
                continue
            if not budget.admits(block.sizes[place]):
                return Page(found, str(_Cursor(rank, name, place)))
            found.append(stored)
    return Page(found, None)


async def _in_line(
    db: Database, number: ObjectId, start: _Cursor | None, batch: int
) -> AsyncIterator[tuple[int, Block]]:
    rest: list[dict[str, Any]] = [queries.of_number(number)]
    if start is not None:
        rest = [
            queries.rest_of_priority(number, start.rank, start.name),
            queries.below_priority(number, start.rank),
        ]
    for query in rest:
        query |= {"count": {"$gt": 0}}
        cursor = db.blocks.find(query, queries.WHOLE, sort=queries.IN_LINE, hint="queue").batch_size(max(2, batch))
        async with cursor:
            async for one in cursor:
                block = block_of(one)
                yield block.priority, block


async def _timed(db: Database, number: ObjectId, start: _Cursor | None, batch: int) -> AsyncIterator[tuple[int, Block]]:
    rest = [queries.after_moment(number, -1 if start is None else start.rank)]
    if start is not None:
        rest.insert(0, queries.rest_of_moment(number, start.rank, f"{number}:{start.name}"))
    for query in rest:
        cursor = db.blocks.find(query, queries.WHOLE, sort=queries.BY_MOMENT, hint="timed").batch_size(max(2, batch))
        async with cursor:
            async for one in cursor:
                yield int(one["wake"]), block_of(one)


def _open_cursor(text: str | None) -> _Cursor | None:
    if text is None:
        return None
    rank, dot, rest = text.partition(".")
    place, dot, name = rest.partition(".")
    if not dot or not (rank.isdecimal() and place.isdecimal()) or len(rank) > 20 or len(place) > 3:
        raise InvalidRequest(f"after: {text[:80]!r} is not a cursor given as `next`", field="after")
    return _Cursor(int(rank), name, int(place))
