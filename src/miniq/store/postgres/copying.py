"""Dump and load of the PostgreSQL store: items (`miniq.store.transfer`) as rows and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from miniq.ids import from_spans, spans
from miniq.message import Event
from miniq.store import transfer
from miniq.store.names import CALL, is_call
from miniq.store.postgres import rows
from miniq.store.postgres.rows import escape, unescape
from miniq.store.transfer import Item, Saved

Step = tuple[str, dict[str, Any]]


def saved(queue: str, row: Sequence[Any]) -> list[Saved]:
    """The messages in a row of `dump_messages`."""
    return [Saved(stored, row[11] if row[9] is not None else None) for stored in rows.stored(queue, row)]


def dedup(queue: str, row: Sequence[Any]) -> transfer.Dedup:
    """A row of `dump_dedup`."""
    call, name, ids, until = row
    name = (CALL if call else "") + (unescape(name) or "")
    return transfer.Dedup(queue, name, spans(rows.unpack_ids(ids)) if is_call(name) else ids, until)


def steps(items: Sequence[Item], columns: Any) -> Iterator[Step]:
    """The queries, with their parameters, that take up items other than queues and records. `columns` are those of
    messages."""
    messages = [item for item in items if isinstance(item, Saved)]
    for queue, some in groupby(messages, lambda one: one.stored.message.queue):
        found = list(some)
        states = [one.stored for one in found]
        yield (
            "load_messages",
            columns([state.message for state in states])
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
