"""Batch readers: the current messages of a queue, or a range of the history. Nothing is consumed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition

from miniq.client._sync.client import Client
from miniq.errors import InvalidRequest
from miniq.spark.options import Options
from miniq.spark.schema import fit

PAGE = 50_000
"""Messages or records fetched per request."""
RANGE = 250_000
"""Records that justify a task of their own."""
MAX_RANGES = 64


class MessagesReader(DataSourceReader):
    """The messages of a queue, page by page in a single task: a cursor cannot start in the middle."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        self._options.connect(probe=True).close()
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        with self._options.connect() as client:
            queue = client.queue(self._options.queue or "")
            after: str | None = None
            while True:
                page = queue.peek_table(self._options.status, after, PAGE)
                for batch in page.table.to_batches():
                    yield fit(batch, self._schema)
                after = page.next
                if after is None:
                    return


@dataclass
class Range(InputPartition):
    """The records after offset `after`, up to and including `last`."""

    after: int
    last: int


class HistoryReader(DataSourceReader):
    """A range of the history, by offsets or by time."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[Range]:
        options = self._options
        with options.connect(probe=True) as client:
            first, last = span_of(client)
        start = options.startingOffset if isinstance(options.startingOffset, int) else 0
        if 0 < start < first and options.failOnDataLoss:
            raise InvalidRequest(
                f"startingOffset: record {start} was deleted, the history begins with record {first}; start there, or "
                "set failOnDataLoss to false",
                field="startingOffset",
            )
        end = last if options.endingOffset is None else min(last, options.endingOffset)
        return split(max(start, first, 1) - 1, end, options.partitions)

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        return read_range(self._options, self._schema, partition)


def span_of(client: Client) -> tuple[int, int]:
    """The first and last offset of the history; the last is below the first if it is empty."""
    page = client.history(limit=1)
    return page.first, page.last


def split(after: int, last: int, parts: int | None) -> list[Range]:
    """Split a range into equal parts: `parts` of them, or as many as its size justifies."""
    count = max(0, last - after)
    if parts is None:
        parts = max(1, min(MAX_RANGES, -(-count // RANGE)))
    parts = max(1, min(parts, count))
    return [Range(after + count * part // parts, after + count * (part + 1) // parts) for part in range(parts)]


def read_range(options: Options, schema: pa.Schema, part: Range) -> Iterator[pa.RecordBatch]:
    """The records of a range, filtered by the options `queue`, `startingTime` and `endingTime`."""
    after = part.after
    with options.connect() as client:
        while after < part.last:
            page = client.history_table(after, min(PAGE, part.last - after), options.queue)
            for batch in page.table.to_batches():
                yield _within(fit(batch, schema), part.last, options)
            if page.next <= after:
                return
            after = page.next


def _within(batch: pa.RecordBatch, last: int, options: Options) -> pa.RecordBatch:
    """Drop records outside the range or the time; filtered by queue, a page may reach past the range."""
    inside = pc.less_equal(batch.column("offset"), last)
    at = batch.column("at")
    if options.startingTime is not None:
        inside = pc.and_(inside, pc.greater_equal(at, pa.scalar(options.startingTime, at.type)))
    if options.endingTime is not None:
        inside = pc.and_(inside, pc.less(at, pa.scalar(options.endingTime, at.type)))
    return batch if pc.all(inside).as_py() else batch.filter(inside)
