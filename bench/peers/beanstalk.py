"""beanstalkd with its binlog fsynced at every write. Its protocol has no batches: many are sent without waiting in
between, over one connection, which its clients do not offer, so the few lines of protocol stand here."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence

from bench.peers.base import Line, Running, free_port, process


class Beanstalkd:
    name = "beanstalkd"
    needs = ("beanstalkd",)
    modules: tuple[str, ...] = ()
    durability = "binlog with -f0: one fsync per job"

    @contextlib.contextmanager
    def start(self, folder: str) -> Iterator[Running]:
        port = free_port()
        data = os.path.join(folder, "beanstalkd")
        os.makedirs(data)
        command = ["beanstalkd", "-l", "127.0.0.1", "-p", str(port), "-b", data, "-f0"]
        with process(command, port) as started:
            yield Running(port, [started.pid], folder)

    async def connect(self, running: Running) -> Line:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        return _Line(reader, writer)

    async def load_tool(self, running: Running) -> float | None:
        return None


class _Line:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._taken: list[bytes] = []

    async def send(self, bodies: Sequence[bytes]) -> None:
        self._writer.writelines([b"put 0 0 60 %d\r\n%b\r\n" % (len(body), body) for body in bodies])
        for _ in bodies:
            line = await self._reader.readline()
            assert line.startswith(b"INSERTED"), line

    async def receive(self, count: int) -> int:
        self._writer.write(b"reserve-with-timeout 0\r\n" * count)
        self._taken = []
        for _ in range(count):
            word, *rest = (await self._reader.readline()).split()
            if word == b"RESERVED":
                self._taken.append(rest[0])
                await self._reader.readexactly(int(rest[1]) + 2)
        return len(self._taken)

    async def ack(self) -> None:
        self._writer.writelines([b"delete %b\r\n" % id for id in self._taken])
        for _ in self._taken:
            line = await self._reader.readline()
            assert line == b"DELETED\r\n", line

    async def close(self) -> None:
        self._writer.close()
