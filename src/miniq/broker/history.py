"""Pages of the history, limited by the size of their bodies."""

from __future__ import annotations

from miniq.message import HistoryPage, HistoryRecord
from miniq.store.contract import HistoryStore

FIRST_STEP = 16


async def read_page(history: HistoryStore, after: int, limit: int, queue: str | None, max_bytes: int) -> HistoryPage:
    """Up to `limit` events. The page ends once its bodies and errors have `max_bytes`, so it is read in growing steps:
    no more than a few times as much as it returns."""
    span = await history.span()
    records: list[HistoryRecord] = []
    size, step = 0, FIRST_STEP
    while True:
        left = limit - len(records)
        count = min(step, left)
        page = await history.read(after, count, queue)
        for record in page.records:
            records.append(record)
            size += len(record.event.body or b"") + len(record.event.error or "")
            if size >= max_bytes:
                return HistoryPage(records, record.offset, span.first, span.last)
        if count == left or page.next == after:
            return HistoryPage(records, page.next, span.first, span.last)
        after = page.next
        step *= 4
