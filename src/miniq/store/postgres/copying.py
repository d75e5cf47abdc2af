"""Dump and load of the PostgreSQL store: items (`miniq.store.transfer`) as rows and parameters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from typing import Any

from miniq.ids import from_spans, spans
from miniq.message import Event
from miniq.store import transfer
from miniq.store.contract import Store
from miniq.store.names import CALL, is_call
from miniq.store.postgres import rows
from miniq.store.postgres.access import FIRST_ID, Access, Row
from miniq.store.postgres.rows import escape, unescape
from miniq.store.transfer import Item, Saved

Step = tuple[str, dict[str, Any]]
DUMPED = 200
"""Messages read in one statement."""


async def dump(store: Store, db: Access) -> AsyncIterator[Item]:
    """Everything."""
    queues = await store.queues()
    for name, settings in queues.items():
        yield transfer.Queue(name, settings)
        readers = [
            (transfer.Readers(name, unescape(group) or "", epoch, last), last - acked)
            for group, epoch, acked, last in await db.all("dump_readers", {"queue": name})
        ]
        for reader in transfer.at_rest(name, bool(await store.stages.list(name, 0)), readers):
            yield reader
    for kind, name, value in await db.all("all_records", {}):
        if kind != transfer.MARK:
            yield transfer.Record(kind, unescape(name) or "", value)
    yield transfer.LastId(await store.last_id())
    for queue in queues:
        for blocked in (False, True):
            after = FIRST_ID
            while found := await db.all(
                "dump_messages", {"queue": queue, "after": after, "blocked": blocked, "limit": DUMPED}
            ):
                for row in found:
                    for stored in rows.stored(queue, row):
                        yield Saved(stored, row[11] if row[9] is not None else None)
                after = found[-1][0]
        for row in await db.all("dump_dedup", {"queue": queue}):
            yield _dedup(queue, row)
    async for item in transfer.history_of(store.history):
        yield item


def _dedup(queue: str, row: Row) -> transfer.Dedup:
    """A row of `dump_dedup`."""
    call, name, ids, until = row
    name = (CALL if call else "") + (unescape(name) or "")
    return transfer.Dedup(queue, name, spans(rows.unpack_ids(ids)) if is_call(name) else ids, until)


def steps(items: Sequence[Item]) -> Iterator[Step]:
    """The queries, with their parameters, that take up items other than queues and records."""
    messages = [item for item in items if isinstance(item, Saved)]
    for queue, some in groupby(messages, lambda one: one.stored.message.queue):
        found = list(some)
        states = [one.stored for one in found]
        yield (
            "load_messages",
            rows.columns([state.message for state in states])
            | {
                "queue": queue,
                "visible": rows.array([state.visible_at for state in states]),
                "taken": [one.taken_at for one in found],
                "receives": rows.array([state.receives for state in states]),
                "receipts": [escape(state.receipt) for state in states],
                "consumers": [escape(state.consumer) for state in states],
            },
        )
    records = [item for item in items if isinstance(item, transfer.Dedup)]
    for queue, named in groupby(records, lambda one: one.queue):
        yield "load_dedup", {"queue": queue} | _dedup_columns(list(named))
    for item in items:
        if isinstance(item, transfer.Readers):
            asked = {"queue": item.queue, "group": escape(item.group), "epoch": item.epoch, "last": item.last}
            yield "load_readers", asked
        elif isinstance(item, transfer.LastId) and item.id:
            yield "load_last_id", {"id": item.id}
        elif isinstance(item, transfer.HistoryStart):
            yield "begin_history", {"first": item.offset}
        elif isinstance(item, transfer.Events):
            yield from _history(item)


def _dedup_columns(records: list[transfer.Dedup]) -> dict[str, Any]:
    return {
        "calls": [record.name.startswith(CALL) for record in records],
        "names": [escape(record.name.removeprefix(CALL)) for record in records],
        "said": [rows.pack_ids(from_spans(record.said)) if is_call(record.name) else record.said for record in records],
        "untils": rows.array([record.until for record in records]),
    }


def _history(item: transfer.Events) -> Iterator[Step]:
    """A row for neighbours that happened at the same moment; one that stands for many messages has its own."""
    first = item.offset
    for (at, many), some in groupby(item.events, lambda event: (event.at, event.count)):
        together = list(some)
        for events in [together] if many == 1 else [[event] for event in together]:
            yield "load_history", {"first": first, "at": at, "messages": None if many == 1 else many} | _events(events)
            first += len(events)


def _events(events: list[Event]) -> dict[str, Any]:
    return {
        "count": len(events),
        "bytes": sum(64 + len(event.body or b"") for event in events),
        "events": [event.event for event in events],
        "queues": [event.queue for event in events],
        "ids": [event.id for event in events],
        "receives": rows.array([event.receives for event in events]),
        "sizes": rows.array([event.size for event in events]),
        "consumers": [escape(event.consumer) for event in events],
        "waits": [None if event.wait_ms is None else round(event.wait_ms * 1000) for event in events],
        "helds": [None if event.held_ms is None else round(event.held_ms * 1000) for event in events],
        "reasons": [event.reason for event in events],
        "bodies": [event.body for event in events],
        "content_types": [event.content_type for event in events],
    }
