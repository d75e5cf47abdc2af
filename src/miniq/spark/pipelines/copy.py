"""`copy`: a file through a queue, line by line and in parallel, into a byte-identical file.

A message is a line, or a piece of a long line; its key is its offset in the file. The tasks that read the stream write
each piece at its offset, so neither order nor repetition matters. The file is sent block by block while a stream writes
the pieces that have arrived.

The destination needs no marker of its owner, unlike those of `drain` and `archive`: it is a new file that appears when
it is complete, and no other run goes on with it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from miniq.errors import InvalidRequest, MiniQError
from miniq.files import name_new
from miniq.spark.pipelines.runs import Counts, Run, Summary, read_stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BLOCK = 4 * 1024 * 1024
"""Bytes of the file that one task sends."""
BLOCKS = 16
"""Blocks per commit."""
PIECE = 512 * 1024
"""Maximum bytes of a piece."""
ROWS = 4096


def copy(spark: SparkSession, source: str, out: str, *, partitions: int = 2, run: Run | None = None) -> Summary:
    """Copy a file through a temporary queue. Both files must be accessible to all executors. `out` must not exist."""
    run = run or Run()
    began = time.perf_counter()
    source, out = os.path.abspath(source), os.path.realpath(out)
    if not os.path.isfile(source):
        raise InvalidRequest(f"source: {source!r} is not a file", field="source")
    if os.path.lexists(out):
        raise InvalidRequest(f"out: {out!r} exists; name a new file, or remove that one", field="out")
    if run.checkpoint is not None:
        raise InvalidRequest(
            "checkpoint: a copy has none, because it is not continued; leave it out", field="checkpoint"
        )
    queue = f"copy-{secrets.token_hex(8)}"
    part = f"{out}.{secrets.token_hex(4)}.part"
    checkpoint = tempfile.mkdtemp(prefix="miniq-copy-")
    with open(part, "xb"):
        pass
    try:
        with run.broker().connect(probe=True) as client:
            client.queue(queue).configure(retention=86400.0)
            try:
                pieces = _transfer(spark, source, part, queue, checkpoint, partitions, run)
            finally:
                client.queue(queue).delete()
        size, lines = _verify(source, part)
        _publish(part, out)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)
        shutil.rmtree(checkpoint, ignore_errors=True)
    seconds = round(time.perf_counter() - began, 3)
    return Summary("copy", pieces, seconds, details={"bytes": size, "lines": lines, "source": source, "copy": out})


def _transfer(spark: SparkSession, source: str, part: str, queue: str, checkpoint: str, parts: int, run: Run) -> int:
    """Send the file, and write the pieces that arrive at the same time; return their number."""
    rows = read_stream(spark, run, queue=queue, group="copy", partitions=parts).select("key", "data")
    written = rows.mapInArrow(partial(_write, part), "pieces bigint")
    query = written.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    counts = Counts(time.perf_counter())
    try:
        size = os.path.getsize(source)
        step = BLOCK * BLOCKS
        for batch, begin in enumerate(range(0, size, step)):
            if run.stopped():
                raise KeyboardInterrupt
            blocks = spark.range(begin, min(size, begin + step), BLOCK, BLOCKS)
            pieces = blocks.mapInArrow(partial(_read, source), "key string, data binary")
            options = run.source(queue=queue, job=f"{queue}-{batch}")
            pieces.write.format("miniq").mode("append").options(**options).save()
            counts.update(query)
            if run.progress is not None:
                run.progress(counts.progress())
        query.processAllAvailable()
        counts.update(query)
    finally:
        query.stop()
    return counts.progress().messages


def _read(source: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The pieces of the blocks that begin at the offsets in `batches`."""
    with open(source, "rb") as file:
        for begin in (begin for batch in batches for begin in batch.column(0).to_pylist()):
            pieces = _pieces(file, begin)
            while rows := list(islice(pieces, ROWS)):
                keys, data = zip(*rows, strict=True)
                yield pa.RecordBatch.from_pydict({"key": keys, "data": data})


def _pieces(file: BinaryIO, begin: int) -> Iterator[tuple[str, bytes]]:
    """The lines of one block with their offsets; a line that continues in the next block is cut at the boundary."""
    file.seek(begin)
    offset, end = begin, begin + BLOCK
    while offset < end and (piece := file.readline(min(PIECE, end - offset))):
        yield str(offset), piece
        offset += len(piece)


def _write(part: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write pieces at their offsets; return their number."""
    count = 0
    file = os.open(part, os.O_WRONLY)
    try:
        for batch in batches:
            for key, piece in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                _write_at(file, piece, int(key))
            count += batch.num_rows
    finally:
        os.close(file)
    yield pa.RecordBatch.from_pydict({"pieces": [count]})


def _write_at(file: int, piece: bytes, offset: int) -> None:
    """Write a whole piece; a single `pwrite` may write less."""
    while piece:
        written = os.pwrite(file, piece, offset)
        piece, offset = piece[written:], offset + written


def _publish(part: str, out: str) -> None:
    """Give the copy its name, unless there is such a file by now."""
    try:
        name_new(part, out)
    except FileExistsError:
        raise InvalidRequest(f"out: {out!r} exists by now; name a new file", field="out") from None


def _verify(source: str, part: str) -> tuple[int, int]:
    """Compare the copy with its source and fsync it; return the number of bytes and lines."""
    size = lines = 0
    last = b"\n"
    with open(source, "rb") as original, open(part, "rb+") as copied:
        while True:
            expected, actual = original.read(BLOCK), copied.read(BLOCK)
            if expected != actual:
                raise MiniQError(f"the copy differs from the source between bytes {size} and {size + BLOCK}")
            if not expected:
                break
            size += len(expected)
            lines += expected.count(b"\n")
            last = expected[-1:]
        os.fsync(copied.fileno())
    return size, lines + (last != b"\n")
