"""NATS JetStream, a work-queue stream in files, with a pull consumer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from bench.peers.base import Line, Running, free_port, process


def _version() -> tuple[int, int]:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(["nats-server", "--version"], capture_output=True, text=True, check=True).stdout
        found = re.search(r"v(\d+)\.(\d+)", said)
        if found:
            return int(found[1]), int(found[2])
    return 0, 0


class JetStream:
    name = "NATS JetStream"
    needs = ("nats-server",)
    modules = ("nats",)

    @property
    def durability(self) -> str:
        if _version() >= (2, 10):
            return "sync_interval: always: fsync before each answer"
        return "none comparable: this version syncs in the background, every 2 minutes"

    @contextlib.contextmanager
    def start(self, folder: str) -> Iterator[Running]:
        port = free_port()
        data = os.path.join(folder, "nats")
        os.makedirs(data)
        config = os.path.join(data, "nats.conf")
        sync = "sync_interval: always" if _version() >= (2, 10) else ""
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{data}"\n {sync} }}\n')
        with process(["nats-server", "-c", config], port) as started:
            yield Running(port, [started.pid], folder)

    async def connect(self, running: Running) -> Line:
        import nats
        from nats.js.api import RetentionPolicy, StorageType, StreamConfig

        client = await nats.connect(f"nats://127.0.0.1:{running.port}")
        stream = client.jetstream(timeout=30)
        await stream.add_stream(
            StreamConfig(
                name="bench", subjects=["bench"], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE
            )
        )
        return _Line(client, stream, await stream.pull_subscribe("bench", "workers"))

    async def load_tool(self, running: Running) -> float | None:
        return None


class _Line:
    def __init__(self, client: Any, stream: Any, pull: Any) -> None:
        self._client = client
        self._stream = stream
        self._pull = pull
        self._taken: list[Any] = []

    async def send(self, bodies: Sequence[bytes]) -> None:
        await asyncio.gather(*[self._stream.publish("bench", body) for body in bodies])

    async def receive(self, count: int) -> int:
        import nats.errors

        self._taken = []
        while len(self._taken) < count:
            try:
                self._taken += await self._pull.fetch(count - len(self._taken), timeout=1)
            except nats.errors.TimeoutError:
                break
        return len(self._taken)

    async def ack(self) -> None:
        await asyncio.gather(*[message.ack_sync() for message in self._taken])

    async def close(self) -> None:
        await self._client.close()
