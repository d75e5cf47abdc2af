"""Dump and load of the PostgreSQL store: see `miniq.store.transfer`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from miniq.ids import from_spans, spans
from miniq.message import Event
from miniq.store import transfer
from miniq.store.contract import Store
from miniq.store.names import CALL, is_call
from miniq.store.postgres import results, rows
from miniq.store.postgres.access import FIRST_ID, Access
from miniq.store.postgres.rows import escape, unescape
from miniq.store.transfer import Item, Saved

Step = tuple[str, dict[str, Any]]
DUMPED = 200
"""Messages read per statement."""


async def dump(store: Store, db: Access) -> AsyncIterator[Item]:
    """Everything in the store."""
    queues = await store.queues()
    for name, settings in queues.items():
        yield transfer.Queue(name, settings)
        readers = [
            (transfer.Readers(name, unescape(group) or "", epoch, last, uid), last - acked)
            for group, epoch, acked, last, uid in await db.all("dump_readers", {"queue": name})
        ]
        for reader in transfer.at_rest(name, bool(await store.stages.list(name, 0)), readers):
            yield reader
    for kind, name, value in await db.all("all_records", {}):
        if kind != transfer.MARK:
            yield transfer.Record(kind, unescape(name) or "", value)
    yield transfer.LastId(await store.last_id())
    for queue in queues:
        for waiting in (False, True):
            after = FIRST_ID
            while page := await db.all(
                "dump_messages", {"queue": queue, "after": after, "waiting": waiting, "limit": DUMPED}
            ):
                for row in page:
                    for stored in rows.stored(queue, row):
                        taken_at = row[12] if row[9] is not None else None
                        yield Saved(stored, taken_at, row[4] == rows.TAKEN_BACK)
                after = page[-1][0]
        call, key = False, ""
        while page := await db.all(
            "dump_dedup", {"queue": queue, "call": call, "after": key, "limit": transfer.PORTION}
        ):
            for call, key, answer, until in page:
                name = (CALL if call else "") + (unescape(key) or "")
                yield transfer.Dedup(queue, name, _normal(answer) if is_call(name) else answer, until)
        after = FIRST_ID
        while page := await db.all("dump_results", {"queue": queue, "after": after, "limit": DUMPED}):
            for row in page:
                yield transfer.Kept(queue, row[0], results.finished(row), row[5])
            after = page[-1][0]
    async for item in transfer.history_of(store.history):
        yield item


def steps(items: Sequence[Item]) -> Iterator[Step]:
    """The queries, with their parameters, that load items other than queues and records."""
    messages = [item for item in items if isinstance(item, Saved)]
    for queue, group in groupby(messages, lambda item: item.stored.message.queue):
        saved = list(group)
        states = [item.stored for item in saved]
        yield (
            "load_messages",
            rows.columns([state.message for state in states])
            | {
                "queue": queue,
                "visible": rows.array([state.visible_at for state in states]),
                "taken": [item.taken_at for item in saved],
                "receives": rows.array([rows.TAKEN_BACK if item.returned else item.stored.receives for item in saved]),
                "receipts": [escape(state.receipt) for state in states],
                "consumers": [escape(state.consumer) for state in states],
                "errors": [escape(state.error) for state in states],
            },
        )
        taken = [item.stored.message.group for item in saved if item.was_taken]
        groups = {group for group in taken if group is not None}
        if groups:
            yield "load_fronts", {"queue": queue, "groups": [escape(group) for group in sorted(groups)]}
    records = [item for item in items if isinstance(item, transfer.Dedup)]
    for queue, named in groupby(records, lambda item: item.queue):
        yield "load_dedup", {"queue": queue} | _dedup_columns(list(named))
    kept = [item for item in items if isinstance(item, transfer.Kept)]
    for queue, some in groupby(kept, lambda item: item.queue):
        of_queue = list(some)
        columns = results.columns([item.id for item in of_queue], [item.finished for item in of_queue])
        untils = rows.array([item.until for item in of_queue])
        yield "load_results", {"queue": queue, "kept_untils": untils} | columns
    for item in items:
        if isinstance(item, transfer.Readers):
            yield "load_readers", msgspec.structs.asdict(item) | {"group": escape(item.group)}
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
        "said": [record.answer for record in records],
        "untils": rows.array([record.until for record in records]),
    }


def _history(item: transfer.Events) -> Iterator[Step]:
    """One row for neighbouring events of the same time; an event with a `count` or `queues` gets its own."""
    first = item.offset
    for (at, many, alone), group in groupby(
        item.events, lambda event: (event.at, event.count, event.queues is not None)
    ):
        together = list(group)
        for events in [[event] for event in together] if many > 1 or alone else [together]:
            common = {"first": first, "at": at, "messages": None if many == 1 else many, "targets": events[0].queues}
            yield "load_history", common | _events(events)
            first += len(events)


def _normal(answer: str) -> str:
    """The answer of a call as other stores keep it: here the ids of some are listed one by one."""
    ids, mark, content = answer.partition("#")
    return f"{spans(from_spans(ids))}{mark}{content}"


def _events(events: list[Event]) -> dict[str, Any]:
    return {
        "count": len(events),
        "bytes": sum(64 + len(event.body or b"") + len(event.error or "") for event in events),
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
        "errors": [escape(event.error) for event in events],
    }
