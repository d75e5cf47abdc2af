"""MiniQ on RocksDB with fsync, over HTTP and over ZeroMQ."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

import miniq
from bench.peers.base import Line, Running, free_port

QUEUE = "bench"
LUA = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"body":"' .. string.rep("x", 1022) .. '"}'
"""


class MiniQ:
    needs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    durability = "fsync before each answer, shared by those who wait"

    def __init__(self, name: str, wire: str) -> None:
        self.name = name
        self._wire = wire

    @contextlib.contextmanager
    def start(self, folder: str) -> Iterator[Running]:
        ports = {"http": free_port(), "tcp": free_port()}
        command = [sys.executable, "-m", "miniq", "serve", "--store", f"rocksdb:{folder}/miniq-{self._wire}"]
        command += ["--port", str(ports["http"]), "--command-port", str(ports["tcp"])]
        command += ["--producer-port", str(free_port()), "--consumer-port", str(free_port())]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            try:
                yield Running(ports[self._wire], [process.pid], folder)
            finally:
                process.terminate()

    async def connect(self, running: Running) -> Line:
        return _Line(await miniq.connect_async(f"{self._wire}://127.0.0.1:{running.port}"))

    async def load_tool(self, running: Running) -> float | None:
        if self._wire != "http" or shutil.which("wrk") is None:
            return None
        script = os.path.join(running.folder, "send.lua")
        with open(script, "w", encoding="utf-8") as file:
            file.write(LUA)
        url = f"http://127.0.0.1:{running.port}/v1/queues/crowd/messages"
        said = subprocess.run(
            ["wrk", "-t1", "-c64", "-d4s", "-s", script, url], capture_output=True, text=True, check=True
        ).stdout
        assert "Non-2xx" not in said, said
        return float(re.findall(r"Requests/sec:\s+([\d.]+)", said)[0])


class _Line:
    def __init__(self, client: miniq.AsyncClient) -> None:
        self._client = client
        self._queue = client.queue(QUEUE)
        self._taken: list[miniq.AsyncMessage] = []

    async def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            await self._queue.send(bodies[0])
        else:
            await self._queue.send_many(bodies)

    async def receive(self, count: int) -> int:
        self._taken = await self._queue.receive(max=count)
        return len(self._taken)

    async def ack(self) -> None:
        await self._queue.ack(self._taken)

    async def close(self) -> None:
        await self._client.close()
