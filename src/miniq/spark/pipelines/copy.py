"""A file through a queue, line by line and in parallel, into a file that is identical to the byte.

A message is a line, or a piece of a long one; its key is the place in the file where it begins. Tasks that read
the stream write each piece to its place, so neither order nor repetition matters. The file is sent block by block
while a stream writes what has arrived.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from miniq.errors import InvalidRequest, MiniQError
from miniq.spark.pipelines.runs import Counts, Run, Summary, read_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK = 4 * 1024 * 1024
"""Bytes of the file that one task sends."""
BLOCKS = 16
"""Blocks that are committed at once."""
PIECE = 512 * 1024
"""Longest body."""
ROWS = 4096


def copy(spark: SparkSession, source: str, out: str, *, partitions: int = 2, run: Run | None = None) -> Summary:
    """Copy a file through a queue that is made for it and deleted at the end. All workers must see both files."""
    run = run or Run()
    began = time.perf_counter()
    source, out = os.path.abspath(source), os.path.realpath(out)
    if not os.path.isfile(source):
        raise InvalidRequest(f"source: {source!r} is not a file", field="source")
    queue = f"copy-{secrets.token_hex(8)}"
    part = f"{out}.{secrets.token_hex(4)}.part"
    checkpoint = run.checkpoint or tempfile.mkdtemp(prefix="miniq-copy-")
    with open(part, "xb"):
        pass
    try:
        with run.connect() as client:
            client.queue(queue).configure(retention=86400.0)
            try:
                pieces = _pass(spark, source, part, queue, checkpoint, partitions, run)
            finally:
                client.queue(queue).delete()
        size, lines = _check(source, part)
        os.replace(part, out)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)
        shutil.rmtree(checkpoint, ignore_errors=True)
    seconds = round(time.perf_counter() - began, 3)
    return Summary("copy", pieces, seconds, details={"bytes": size, "lines": lines, "source": source, "copy": out})


def _pass(spark: SparkSession, source: str, part: str, queue: str, checkpoint: str, parts: int, run: Run) -> int:
    """Send the file and write what arrives, at the same time: how many pieces were written."""
    rows = read_stream(spark, run, queue=queue, group="copy", partitions=parts).load().select("key", "data")
    written = rows.mapInArrow(_Write(part), "pieces bigint")
    query = written.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    counts = Counts(time.perf_counter())
    try:
        whole = os.path.getsize(source)
        step = BLOCK * BLOCKS
        for batch, begin in enumerate(range(0, whole, step)):
            if run.stopped():
                raise KeyboardInterrupt
            blocks = spark.range(begin, min(whole, begin + step), BLOCK, BLOCKS)
            pieces = blocks.mapInArrow(_Read(source), "key string, data binary")
            options = run.source(queue=queue, job=f"{queue}-{batch}")
            pieces.write.format("miniq").mode("append").options(**options).save()
            counts.look(query)
            if run.progress is not None:
                run.progress(counts.progress())
        query.processAllAvailable()
        counts.look(query)
    finally:
        query.stop()
    return counts.progress().messages


class _Read:
    """Reads blocks of a file as pieces. Plain data, so that it travels to executors."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with open(self._source, "rb") as file:
            for batch in batches:
                for begin in batch.column(0).to_pylist():
                    yield from self._block(file, begin)

    def _block(self, file: BinaryIO, begin: int) -> Iterator[pa.RecordBatch]:
        """The lines of one block; one that goes on in the next block is cut there."""
        file.seek(begin)
        place, end = begin, begin + BLOCK
        keys: list[str] = []
        data: list[bytes] = []
        while place < end and (piece := file.readline(min(PIECE, end - place))):
            keys.append(str(place))
            data.append(piece)
            place += len(piece)
            if len(keys) == ROWS:
                yield _batch(keys, data)
                keys, data = [], []
        if keys:
            yield _batch(keys, data)


def _batch(keys: list[str], data: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(keys, pa.string()), pa.array(data, pa.binary())], names=["key", "data"])


class _Write:
    """Writes pieces to their places. Plain data, so that it travels to executors."""

    def __init__(self, part: str) -> None:
        self._part = part

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        many = 0
        file = os.open(self._part, os.O_WRONLY)
        try:
            for batch in batches:
                for key, piece in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                    _write_at(file, piece, int(key))
                many += batch.num_rows
        finally:
            os.close(file)
        yield pa.RecordBatch.from_pydict({"pieces": pa.array([many], pa.int64())})


def _write_at(file: int, piece: bytes, place: int) -> None:
    """All of a piece; the system may take it in parts."""
    while piece:
        written = os.pwrite(file, piece, place)
        piece, place = piece[written:], place + written


def _check(source: str, part: str) -> tuple[int, int]:
    """Compare the copy with its source, byte by byte, and bring it to the disk: bytes and lines."""
    size = lines = 0
    last = b"\n"
    with open(source, "rb") as one, open(part, "rb+") as other:
        while True:
            wanted, found = one.read(BLOCK), other.read(BLOCK)
            if wanted != found:
                raise MiniQError(f"the copy is not what was sent: it differs between bytes {size} and {size + BLOCK}")
            if not wanted:
                break
            size += len(wanted)
            lines += wanted.count(b"\n")
            last = wanted[-1:]
        os.fsync(other.fileno())
    return size, lines + (last != b"\n")
