"""Batch readers: the current messages of a queue, or a range of the history. Nothing is consumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from miniq.client._sync.client import Client
from miniq.errors import InvalidRequest
from miniq.spark.conditions import Conditions, FilteredReader
from miniq.spark.options import Options
from miniq.spark.schema import Layout

PAGES = (2_000, 10_000, 50_000)
"""Messages or records of the first requests, the last for all further ones: a query that shows some rows ends soon."""
RANGE = 250_000
"""Records that justify a task of their own."""
MAX_RANGES = 64
SLACK = timedelta(minutes=1)
"""How far the times of neighbouring records may be out of order: brokers on one database have a clock each."""


class MessagesReader(FilteredReader):
    """The messages of a queue, page by page in a single task: a cursor cannot start in the middle."""

    def __init__(self, options: Options, layout: Layout) -> None:
        super().__init__(options)
        self._layout = layout

    def partitions(self) -> Sequence[InputPartition]:
        self._options.connect(probe=True).close()
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _fitted(self._pages(), self._conditions, self._layout, self._options.limit)

    def _pages(self) -> Iterator[pa.RecordBatch]:
        with self._options.connect() as client:
            queue = client.queue(self._options.queue or "")
            status = self._conditions.only("status")
            after: str | None = None
            for size in _sizes():
                page = queue.peek_table(status, after, size)
                yield from page.table.to_batches()
                after = page.next
                if after is None:
                    return


@dataclass
class Range(InputPartition):
    """The records after offset `after`, up to and including `last`."""

    after: int
    last: int
    number: int = 0


class HistoryReader(FilteredReader):
    """A range of the history, by offsets or by time."""

    def __init__(self, options: Options, layout: Layout) -> None:
        super().__init__(options)
        self._layout = layout

    def partitions(self) -> Sequence[Range]:
        options, conditions = self._options, self._conditions
        with options.connect(probe=True) as client:
            first, last = span_of(client)
            start = options.startingOffset if isinstance(options.startingOffset, int) else 0
            if 0 < start < first and options.failOnDataLoss:
                raise InvalidRequest(
                    f"startingOffset: record {start} was deleted, the history begins with record {first}; start there, "
                    "or set failOnDataLoss to false",
                    field="startingOffset",
                )
            begin = max(conditions.first, first, 1)
            end = last if conditions.last is None else min(last, conditions.last)
            if conditions.since is not None:
                begin = max(begin, offset_at(client, conditions.since - SLACK, last))
            if conditions.until is not None:
                end = min(end, offset_at(client, conditions.until + SLACK, last) - 1)
        return split(begin - 1, end, options.partitions if options.limit is None else 1)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._layout, partition, self._conditions)


def span_of(client: Client) -> tuple[int, int]:
    """The first and last offset of the history; the last is below the first if it is empty."""
    page = client.history(limit=1)
    return page.first, page.last


def offset_at(client: Client, at: datetime, last: int) -> int:
    """The offset of the first record at or after a time, which the broker finds by bisection; `last` + 1 if there is
    none. For a key that cannot read it, an earlier one."""
    page = client.history(limit=1, since=at)
    if page.records:
        return page.records[0].offset
    return min(page.next, last) + 1


def split(after: int, last: int, parts: int | None) -> list[Range]:
    """Split a range into equal parts: `parts` of them, or as many as its size justifies."""
    count = max(0, last - after)
    if parts is None:
        parts = max(1, min(MAX_RANGES, -(-count // RANGE)))
    parts = max(1, min(parts, count))
    return [Range(after + count * part // parts, after + count * (part + 1) // parts, part) for part in range(parts)]


def read_range(options: Options, layout: Layout, part: Range, conditions: Conditions) -> Iterator[pa.RecordBatch]:
    """The records of a range that match the conditions."""
    return _fitted(_pages(options, part, conditions), conditions.to_offset(part.last), layout, options.limit)


def _pages(options: Options, part: Range, conditions: Conditions) -> Iterator[pa.RecordBatch]:
    queue, event = conditions.only("queue"), conditions.only("event")
    after = part.after
    if after >= part.last:
        return
    with options.connect(turn=part.number) as client:
        for size in _sizes():
            page = client.history_table(after, min(size, part.last - after), queue, event=event, before=part.last + 1)
            yield from page.table.to_batches()
            if page.next <= after or page.next >= part.last:
                return
            after = page.next


def _sizes() -> Iterator[int]:
    yield from PAGES
    while True:
        yield PAGES[-1]


def _fitted(
    batches: Iterator[pa.RecordBatch], conditions: Conditions, layout: Layout, limit: int | None
) -> Iterator[pa.RecordBatch]:
    """Rows that match, as Spark expects them, up to the limit."""
    left = limit
    for batch in batches:
        rows = layout.fit(conditions.select(batch))
        if left is not None:
            rows = rows.slice(0, left)
            left -= rows.num_rows
        yield rows
        if left == 0:
            return
