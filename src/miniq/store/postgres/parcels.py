"""Parcels: messages that were sent together and are alike share a row, as long as they share their state.

A lease or an ack of all of them then changes one row. Their ids follow each other in a run (`miniq.ids`), so ids are
asked for by stretches, and the start of the run is where a row that holds an id is looked for. A query that needs only
some messages of a parcel does nothing; `Cut` says so, the parcel is split into several rows, and the query comes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from miniq.ids import RUN, ids_from, run_of
from miniq.message import JSON, Message, PlainBatch
from miniq.store.arguments import Fence
from miniq.store.postgres import rows
from miniq.store.postgres.rows import Blobs, escape

MOST = 25
"""Messages in a row. With more nothing gets faster, and those who take a few at a time split more."""
LEAST = 4
"""Fewer have a row each: whoever takes them one by one would split them."""
BYTES = 256 * 1024
"""Bodies in a row. Large ones gain nothing, and splitting copies them."""

_FOLLOWING = {f"{place:02x}": f"{place + 1:02x}" for place in range(2 * RUN) if (place + 1) % RUN}
"""The ends of ids that follow each other in a run."""


class Cut(Exception):
    """Nothing was changed: these parcels have to be split first, or, if there are none, another call was faster."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = ids


def columns(parcel: PlainBatch) -> dict[str, Any]:
    """The rows of messages that are alike, and all of them one by one for the history."""
    ids, bodies = parcel.ids, parcel.bodies
    sizes = [len(body) for body in bodies]
    cut = list(_rows(ids, sizes))
    return {
        "firsts": rows.array([ids[some.start] for some in cut]),
        "lasts": rows.array([ids[some.stop - 1] if len(some) > 1 else "NULL" for some in cut]),
        "starts": rows.array([some.start + 1 for some in cut]),
        "counts": rows.array([len(some) for some in cut]),
        "bodies": Blobs([b"".join(bodies[some.start : some.stop]) for some in cut]),
        "ids": rows.array(ids),
        "sizes": rows.array(sizes),
        "about": None if parcel.content_type == JSON else rows.about(parcel[0]),
    }


def _rows(ids: Sequence[str], sizes: Sequence[int]) -> Iterator[range]:
    """The places of messages that share a row."""
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


def asked(fences: Sequence[Fence]) -> dict[str, Any]:
    """Fences as stretches: neighbours whose ids follow each other and whose receipts are the same."""
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
    """The lowest id that the row of a message can have."""
    return run_of(id)[0]


def floors(ids: Sequence[str]) -> str:
    """The same of many, as an array."""
    return rows.array([run_of(id)[0] for id in ids])


def parcel_of(messages: Sequence[Message]) -> PlainBatch | None:
    """Messages as a parcel, None if they are not alike or ask for something special."""
    first = messages[0]
    plain = Message(first.id, first.queue, first.sent_at, first.due_at, first.body, first.content_type, first.priority)
    for message in messages:
        if msgspec.structs.replace(message, id=plain.id, body=plain.body) != plain:
            return None
    return PlainBatch(
        [message.id for message in messages],
        first.queue,
        first.sent_at,
        first.due_at,
        [message.body for message in messages],
        first.content_type,
        first.priority,
    )
