"""What Spark can do without a broker, for `bench.spark`: a source and sink of rows in memory and in files, and a sink
that sends its rows to a bare process.

The toy makes rows up and writes them to a file per task with fsync. The relay has the least that a broker has: its
tasks send the same uploads as MiniQ's to another process, which writes them to a file, syncs it and replies. Neither
looks at a row, gives out an id, or could find a message again.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from miniq.spark.ahead import ahead
from miniq.spark.schema import Layout, view_columns

BODY = 200
FILL = BODY - len('{"n":1111111111,"text":""}')
UPLOAD_BYTES = 8 * 1024 * 1024
_SIZE = struct.Struct(">Q")


class Toy(DataSource):
    """A source and sink of the same rows without a broker."""

    @classmethod
    def name(cls) -> str:
        return "toy"

    def schema(self) -> StructType:
        return view_columns("messages")

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        relay = self.options.get("relay")
        return ToyWriter(self.options["folder"]) if relay is None else RelayWriter(int(relay))

    def streamReader(self, schema: StructType) -> ToyStream:
        return ToyStream(int(self.options["rows"]), int(self.options["batch"]), int(self.options["parts"]))


class ToyWriter(DataSourceArrowWriter):
    """The least that a durable sink does: a file per task, with fsync."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        path = os.path.join(self._folder, f"toy-{os.getpid()}-{time.time_ns()}.arrow")
        first = next(iterator)
        with open(path, "wb") as file:
            with pa.ipc.new_stream(file, first.schema) as writer:
                for batch in chain([first], iterator):
                    writer.write_batch(batch)
            os.fsync(file.fileno())
        return WriterCommitMessage()


@dataclass
class ToyRange(InputPartition):
    begin: int
    end: int


class ToyStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Batches of rows with a body and an id each."""

    def __init__(self, rows: int, batch: int, parts: int) -> None:
        self._rows, self._batch, self._parts = rows, batch, parts

    def initialOffset(self) -> dict[str, int]:
        return {"row": 0}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def latestOffset(self, start: dict[str, int], limit: object) -> dict[str, int]:
        return {"row": min(self._rows, start["row"] + self._batch)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[ToyRange]:
        first, count = start["row"], end["row"] - start["row"]
        places = [first + count * part // self._parts for part in range(self._parts + 1)]
        return [ToyRange(begin, end) for begin, end in pairwise(places)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        layout = Layout(view_columns("messages"), "messages", None, None)
        fill = "x" * FILL
        for begin in range(partition.begin, partition.end, 10_000):
            numbers = range(begin, min(begin + 10_000, partition.end))
            rows = {
                "id": [f"01a1ec30-81b2-7bc2-8ee2-{number:012d}" for number in numbers],
                "queue": ["toy"] * len(numbers),
                "body": [f'{{"n":{number:010d},"text":"{fill}"}}' for number in numbers],
                "content_type": ["application/json"] * len(numbers),
                "sent_at": pa.array([0] * len(numbers), pa.timestamp("us", "UTC")),
            }
            yield layout.fit(pa.RecordBatch.from_pydict(rows))


# The relay


class RelayWriter(DataSourceArrowWriter):
    """Sends uploads to the relay, one ahead as MiniQ's sink does."""

    def __init__(self, port: int) -> None:
        self._port = port

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        with socket.create_connection(("127.0.0.1", self._port)) as connection:

            def send(batches: list[pa.RecordBatch]) -> None:
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, batches[0].schema) as writer:
                    for batch in batches:
                        writer.write_batch(batch)
                upload = memoryview(sink.getvalue())
                connection.sendall(_SIZE.pack(len(upload)))
                connection.sendall(upload)
                assert connection.recv(1) == b"."

            def uploads() -> Iterator[Any]:
                pending: list[pa.RecordBatch] = []
                for batch in iterator:
                    pending.append(batch)
                    if sum(batch.nbytes for batch in pending) >= UPLOAD_BYTES:
                        yield lambda batches=pending: send(batches)
                        pending = []
                if pending:
                    yield lambda: send(pending)

            for _ in ahead(uploads()):
                pass
        return WriterCommitMessage()


@contextmanager
def relay(folder: str) -> Iterator[int]:
    """The process behind `RelayWriter`; its port."""
    command = [sys.executable, "-m", "bench.spark_toys", os.path.join(folder, "relay")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def serve(path: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    while True:
        connection, _ = listening.accept()
        threading.Thread(target=keep, args=(connection, file), daemon=True).start()


def keep(connection: socket.socket, file: int) -> None:
    """Write uploads to a file, and confirm each when it is on disk."""
    space = memoryview(bytearray(4 * UPLOAD_BYTES))
    with connection:
        while head := connection.recv(_SIZE.size, socket.MSG_WAITALL):
            (size,) = _SIZE.unpack(head)
            received = 0
            while received < size:
                received += connection.recv_into(space[received:size])
            os.write(file, space[:size])
            os.fdatasync(file)
            connection.sendall(b".")


if __name__ == "__main__":
    serve(sys.argv[1])
