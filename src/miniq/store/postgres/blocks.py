"""Blocks: messages that were sent together and differ only in id and body share a row while they share their state.

A lease or ack of all of them then changes one row. Their ids are consecutive in a run (`miniq.ids`), so queries name
ranges of ids, and find the row of an id from the start of its run. A query that needs only some messages of a block
changes nothing and raises `Cut`; the block is then split into several rows and the query repeated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from miniq.ids import RUN, ids_from, run_of
from miniq.message import JSON, PlainBatch
from miniq.store.arguments import Fence
from miniq.store.postgres import rows
from miniq.store.postgres.rows import Blobs, escape

MOST = 25
"""Messages per row. More is not faster, and causes more splits when few are taken at a time."""
LEAST = 4
"""Fewer messages get a row each, since taking them one by one would split the block."""
BYTES = 256 * 1024
"""Bytes per row. Large bodies gain nothing, and splitting copies them."""

_FOLLOWING = {f"{place:02x}": f"{place + 1:02x}" for place in range(2 * RUN) if (place + 1) % RUN}
"""The last two digits of the id that follows in a run."""


class Cut(Exception):
    """Nothing was changed: these blocks must be split first; without any, another call was faster."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = ids


def columns(block: PlainBatch) -> dict[str, Any]:
    """Parameters of a block: its rows, and each message for the history."""
    ids, bodies = block.ids, block.bodies
    sizes = [len(body) for body in bodies]
    parts = list(cut(ids, sizes))
    return {
        "firsts": rows.array([ids[some.start] for some in parts]),
        "lasts": rows.array([ids[some.stop - 1] if len(some) > 1 else "NULL" for some in parts]),
        "starts": rows.array([some.start + 1 for some in parts]),
        "counts": rows.array([len(some) for some in parts]),
        "bodies": Blobs([b"".join(bodies[some.start : some.stop]) for some in parts]),
        "ids": rows.array(ids),
        "sizes": rows.array(sizes),
        "about": None if block.content_type == JSON and block.topic is None else rows.about(block[0]),
    }


def cut(ids: Sequence[str], sizes: Sequence[int]) -> Iterator[range]:
    """The positions of messages that share a row."""
    start = 0
    while start < len(ids):
        most = min(MOST, len(ids) - start, RUN - run_of(ids[start])[1])
        following = ids_from(ids[start], most)
        count, size = 1, sizes[start]
        while count < most and ids[start + count] == following[count] and size + sizes[start + count] <= BYTES:
            size += sizes[start + count]
            count += 1
        if count < LEAST:
            yield from (range(place, place + 1) for place in range(start, start + count))
        else:
            yield range(start, start + count)
        start += count


def ranges(fences: Sequence[Fence]) -> dict[str, Any]:
    """Parameters of fences: as ranges of consecutive ids with the same receipt."""
    firsts: list[str] = []
    lasts: list[str] = []
    receipts: list[str | None] = []
    before, head, tail = None, "", None
    for id, receipt in fences:
        if tail == id[34:] and head == id[:34] and before == receipt:
            lasts[-1] = id
        else:
            firsts.append(id)
            lasts.append(id)
            receipts.append(escape(receipt))
            before, head = receipt, id[:34]
        tail = _FOLLOWING.get(id[34:])
    return {
        "floors": floors(firsts),
        "firsts": rows.array(firsts),
        "lasts": rows.array(lasts),
        "receipts": receipts,
        "count": len(fences),
    }


def floor(id: str) -> str:
    """The lowest possible id of the row that holds a message."""
    return run_of(id)[0]


def floors(ids: Sequence[str]) -> str:
    """The floors of many ids, as an array."""
    return rows.array([run_of(id)[0] for id in ids])
