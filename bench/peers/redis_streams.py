"""Redis Streams with a consumer group, AOF fsynced before each answer."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence

from bench.peers.base import Line, Running, free_port, process


class RedisStreams:
    name = "Redis Streams"
    needs = ("redis-server", "redis-benchmark")
    modules = ("redis",)
    durability = "AOF always: one fsync per turn of its loop, before the answers"

    @contextlib.contextmanager
    def start(self, folder: str) -> Iterator[Running]:
        port = free_port()
        data = os.path.join(folder, "redis")
        os.makedirs(data)
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", data, "--appendonly", "yes"]
        command += ["--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0"]
        with process(command, port) as started:
            yield Running(port, [started.pid], folder)

    async def connect(self, running: Running) -> Line:
        import redis.asyncio as aioredis

        client = aioredis.Redis(port=running.port)
        with contextlib.suppress(aioredis.ResponseError):
            await client.xgroup_create("bench", "workers", id="0", mkstream=True)
        return _Line(client)

    async def load_tool(self, running: Running) -> float | None:
        command = ["redis-benchmark", "-p", str(running.port), "-c", "64", "-n", "100000", "-q"]
        said = subprocess.run(
            [*command, "XADD", "crowd", "*", "body", "x" * 1024], capture_output=True, text=True, check=True
        ).stdout
        return float(re.findall(r"([\d.]+) requests per second", said)[-1])


class _Line:
    def __init__(self, client: object) -> None:
        self._client = client
        self._taken: list[bytes] = []

    async def send(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) == 1:
            await self._client.xadd("bench", {"body": bodies[0]})  # type: ignore[attr-defined]
            return
        pipe = self._client.pipeline(transaction=False)  # type: ignore[attr-defined]
        for body in bodies:
            pipe.xadd("bench", {"body": body})
        await pipe.execute()

    async def receive(self, count: int) -> int:
        found = await self._client.xreadgroup("workers", "w", {"bench": ">"}, count=count)  # type: ignore[attr-defined]
        self._taken = [id for _, entries in found for id, _ in entries]
        return len(self._taken)

    async def ack(self) -> None:
        # A queue forgets what is done with; a stream has to be told.
        pipe = self._client.pipeline(transaction=False)  # type: ignore[attr-defined]
        pipe.xack("bench", "workers", *self._taken)
        pipe.xdel("bench", *self._taken)
        await pipe.execute()

    async def close(self) -> None:
        await self._client.aclose()  # type: ignore[attr-defined]
