"""Writing to a queue: every task stages its rows, and the driver commits all of them in one change, once.

A task may be tried again, run twice at a time, or be the ghost of a driver that died. So each try has a stage of
its own, named by a random number, and nothing can be seen before `commit`. What is committed is named by the job
and the batch: of a stream, the id of the query, which its checkpoint keeps, and the number of the batch. A batch
that Spark runs again after a crash adds nothing.
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from miniq.errors import InvalidRequest, MiniQError
from miniq.spark.options import Options
from miniq.spark.schema import messages_of

UPLOAD_MESSAGES = 50_000
UPLOAD_BYTES = 8 * 1024 * 1024
"""About what one upload carries; the broker's own limit on a request is higher."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task has staged."""

    job: str
    batch: int
    partition: int
    attempt: int
    messages: int


def stage(options: Options, job: str, batch: int, partition: int, rows: Iterator[pa.RecordBatch]) -> Staged:
    """Upload the rows of one task under a name that no other try has."""
    attempt = secrets.randbits(53)
    total = part = 0
    with options.connect() as client:
        place = client.queue(options.queue or "").stage(job, batch, partition, attempt)
        for upload in _uploads(messages_of(some, options.contentType) for some in rows):
            place.upload(upload, part=part)
            total += upload.num_rows
            part += 1
    return Staged(job, batch, partition, attempt, total)


def _uploads(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Rows in portions that are worth a request."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _pieces(batch):
            held.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
            if rows >= UPLOAD_MESSAGES or size >= UPLOAD_BYTES:
                yield pa.Table.from_batches(held)
                held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in pieces of about the size of an upload; one row is never cut."""
    if not batch.num_rows:
        return
    many = max(1, min(batch.num_rows, -(-batch.nbytes // UPLOAD_BYTES)))
    for piece in range(many):
        begin, end = (batch.num_rows * place // many for place in (piece, piece + 1))
        yield batch.slice(begin, end - begin)


def commit(options: Options, job: str, batch: int, staged: Sequence[Staged]) -> None:
    """Make messages of all stages, unless that was done before."""
    wanted = [(one.partition, one.attempt) for one in staged if one.messages]
    if wanted:
        with options.connect() as client:
            client.queue(options.queue or "").commit_stages(job, batch, wanted)


def discard(options: Options, job: str, batch: int) -> None:
    """Forget what was staged; if that cannot be done, the broker does it after a while."""
    try:
        with options.connect() as client:
            client.queue(options.queue or "").discard_stages(job, batch)
    except MiniQError:
        pass


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


class BatchWriter(DataSourceArrowWriter):
    """A batch write. Its job is named by the user, or new for each write."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._job = options.job or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return stage(self._options, self._job, 0, _task().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, self._job, 0, _done(messages))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard(self._options, self._job, 0)


class StreamWriter(DataSourceStreamArrowWriter):
    """A stream's writes. `commit` runs in a process that knows nothing of the query, so the messages tell."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        task = _task()
        query, batch = (task.getLocalProperty(name) for name in ("sql.streaming.queryId", "streaming.sql.batchId"))
        if query is None or batch is None:
            raise InvalidRequest("query: Spark did not tell which query and batch this is", field="query")
        return stage(self._options, query, int(batch), task.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _done(messages)
        if staged:
            commit(self._options, staged[0].job, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _done(messages)
        if staged:
            discard(self._options, staged[0].job, batchId)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InvalidRequest("task: rows are written in tasks of Spark only", field="task")
    return task
