"""Writers to a queue or a topic: every task uploads its rows to a stage, and the driver commits all stages, atomically
and once.

A task may be retried, run twice at the same time, or outlive its driver. So each attempt has its own stage, named by a
random number, and no message is visible before `commit`. A commit is identified by job and batch: for a stream, the
query id, which its checkpoint keeps, and the batch number. A batch that Spark runs again after a crash adds nothing. It
must have the same rows, in any order and in any partitions, so a commit also says how many there are, with a checksum.
"""

from __future__ import annotations

import secrets
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import cast

import pyarrow as pa
from msgspec import structs
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from miniq.client._sync.client import Client
from miniq.client._sync.queue import Queue
from miniq.client._sync.topic import Topic
from miniq.errors import BatchMismatch, InvalidRequest, MiniQError
from miniq.spark.ahead import ahead
from miniq.spark.options import Options
from miniq.spark.schema import messages_of

MODULUS = 2**64
NULL = b"\xff\x00"
"""Stands for a missing value in a checksum; no text is like it."""
UPLOAD_MESSAGES = 50_000
UPLOAD_BYTES = 8 * 1024 * 1024
"""Approximate size of one upload; the broker's limit on a request is higher."""


@dataclass
class Staged(WriterCommitMessage):
    """The stage that a task has uploaded."""

    job: str
    partition: int
    attempt: int
    messages: int
    checksum: int
    """Of all rows, independent of their order."""


def target(options: Options, client: Client) -> Queue | Topic:
    """Where the rows go."""
    return client.queue(options.queue or "") if options.topic is None else client.topic(options.topic)


def stage(options: Options, job: str, batch: int, partition: int, rows: Iterator[pa.RecordBatch]) -> Staged:
    """Upload the rows of one task to a stage that no other attempt uses."""
    attempt = secrets.randbits(53)
    sums: list[int] = []

    def uploads() -> Iterator[Callable[[], int]]:
        messages = (messages_of(record_batch, options.contentType) for record_batch in rows)
        for part, upload in enumerate(_uploads(messages)):
            if options.failOnMismatch:
                sums.append(checksum(upload))
            yield partial(staging.upload, upload, part)

    with options.connect(turn=partition) as client:
        staging = target(options, client).stage(job, batch, partition, attempt)
        total = sum(ahead(uploads()))
    return Staged(job, partition, attempt, total, sum(sums) % MODULUS)


def checksum(rows: pa.Table) -> int:
    """The sum of a checksum of each row: of its columns one after the other, so that a value cannot change rows."""
    sums: Iterable[int] = repeat(0, rows.num_rows)
    for name in sorted(rows.column_names):
        column = rows[name]
        if column.null_count == rows.num_rows:
            continue  # as if there were no such column
        if pa.types.is_map(column.type):
            texts = [None if pairs is None else repr(sorted(pairs)).encode() for pairs in column.to_pylist()]
            column = pa.chunked_array([pa.array(texts, pa.binary())])
        elif not pa.types.is_binary(column.type):
            column = column.cast(pa.string()).cast(pa.binary())
        sums = map(zlib.crc32, column.fill_null(NULL).to_pylist(), sums)
    return sum(sums)


def _uploads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Regroup record batches into tables of about the size of an upload."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _pieces(batch):
            pending.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= UPLOAD_MESSAGES or size >= UPLOAD_BYTES:
                yield pa.Table.from_batches(pending)
                pending, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(pending)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split a batch into pieces of about the size of an upload, at row boundaries."""
    if not batch.num_rows:
        return
    count = max(1, min(batch.num_rows, -(-batch.nbytes // UPLOAD_BYTES)))
    for piece in range(count):
        begin, end = (batch.num_rows * number // count for number in (piece, piece + 1))
        yield batch.slice(begin, end - begin)


def commit(options: Options, batch: int, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Commit all non-empty stages; does nothing if the batch was committed before. Raises `BatchMismatch` if it had
    other rows then."""
    staged = [message for message in messages if isinstance(message, Staged)]
    if not staged:
        return
    stages = [(task.partition, task.attempt) for task in staged if task.messages]
    sums = sum(task.checksum for task in staged) % MODULUS
    content = f"{sum(task.messages for task in staged)}-{sums:016x}" if options.failOnMismatch else None
    with options.connect() as client:
        try:
            target(options, client).commit_stages(staged[0].job, batch, stages, content)
        except BatchMismatch as error:
            kind, name = ("queue", options.queue) if options.topic is None else ("topic", options.topic)
            raise BatchMismatch(
                f"{kind}: batch {batch} of query {staged[0].job} was committed to {kind} {name!r} before, with "
                f"other rows ({error.text}). The checkpoint was changed, or the query does not always give the same "
                "rows. To leave it as it is and go on with the next batch: .option('failOnMismatch', 'false')",
                field=kind,
            ) from None


def discard(options: Options, job: str, batch: int) -> None:
    """Delete the stages of a batch. Errors are ignored: the broker deletes abandoned stages after `stage_ttl`."""
    with suppress(MiniQError), options.connect() as client:
        target(options, client).discard_stages(job, batch)


class BatchWriter(DataSourceArrowWriter):
    """A batch write. The user names its job; otherwise each write is a new job."""

    def __init__(self, options: Options) -> None:
        # A job without a name is not run again, so there is nothing to compare its rows with.
        self._options = options if options.job else structs.replace(options, failOnMismatch=False)
        self._job = options.job or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self._options, self._job, 0, cast(TaskContext, TaskContext.get()).partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, 0, messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard(self._options, self._job, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """The writes of a stream. `commit` runs in a process without access to the query's id, so it takes the id from the
    tasks' commit messages."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        task = cast(TaskContext, TaskContext.get())
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or batch is None:
            raise InvalidRequest("query: Spark did not set the id of the query and the batch", field="query")
        if batch == "0":
            self._options.connect(probe=True).close()  # a wrong address fails soon
        return stage(self._options, query, int(batch), task.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        commit(self._options, batchId, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        for job in {message.job for message in messages if isinstance(message, Staged)}:
            discard(self._options, job, batchId)
