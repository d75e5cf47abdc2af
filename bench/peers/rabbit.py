"""RabbitMQ: a quorum queue on one node, publisher confirms, manual acks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from typing import Any

from bench.peers.base import Line, Running, free_port, process

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class RabbitMQ:
    name = "RabbitMQ quorum"
    needs = (SERVER,)
    modules = ("aio_pika",)
    durability = "quorum queue: its log is fsynced before the confirm, shared by those who wait; acks are not confirmed"

    @contextlib.contextmanager
    def start(self, folder: str) -> Iterator[Running]:
        port, dist, epmd = free_port(), free_port(), free_port()
        data = os.path.join(folder, "rabbit")
        os.makedirs(data)
        as_other: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(data, "rabbitmq")
            os.chmod(folder, 0o711)  # noqa: S103
            as_other = ["setpriv", "--reuid=rabbitmq", "--regid=rabbitmq", "--init-groups"]
        env = {
            "HOME": data,
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_MNESIA_BASE": data,
            "RABBITMQ_LOG_BASE": data,
            "RABBITMQ_ENABLED_PLUGINS_FILE": os.path.join(data, "plugins"),
            "RABBITMQ_PID_FILE": os.path.join(data, "pid"),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }
        try:
            with process([*as_other, SERVER], port, env) as started:
                yield Running(port, [started.pid], folder)
        finally:
            # The name server of Erlang stays behind; this one is ours alone, by its port.
            subprocess.run(["epmd", "-port", str(epmd), "-kill"], check=False, stdout=subprocess.DEVNULL)

    async def connect(self, running: Running) -> Line:
        import aio_pika

        connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{running.port}/")
        channel = await connection.channel(publisher_confirms=True)
        queue = await channel.declare_queue("bench", durable=True, arguments={"x-queue-type": "quorum"})
        return _Line(connection, channel, queue)

    async def load_tool(self, running: Running) -> float | None:
        return None


class _Line:
    def __init__(self, connection: Any, channel: Any, queue: Any) -> None:
        self._connection = connection
        self._channel = channel
        self._queue = queue
        self._arrived: asyncio.Queue[Any] = asyncio.Queue()
        self._tag: str | None = None
        self._count = 0
        self._taken: list[Any] = []

    async def send(self, bodies: Sequence[bytes]) -> None:
        import aio_pika

        publish = self._channel.default_exchange.publish
        persistent = aio_pika.DeliveryMode.PERSISTENT
        await asyncio.gather(
            *[publish(aio_pika.Message(body, delivery_mode=persistent), routing_key="bench") for body in bodies]
        )

    async def receive(self, count: int) -> int:
        if count != self._count:
            # How much it may push ahead counts for those who begin to consume afterwards.
            if self._tag is not None:
                await self._queue.cancel(self._tag)
            await self._channel.set_qos(prefetch_count=2 * count)
            self._tag, self._count = await self._queue.consume(self._arrived.put), count
        self._taken = []
        with contextlib.suppress(TimeoutError):
            while len(self._taken) < count:
                self._taken.append(await asyncio.wait_for(self._arrived.get(), 1))
        return len(self._taken)

    async def ack(self) -> None:
        await self._taken[-1].ack(multiple=True)

    async def close(self) -> None:
        await self._connection.close()
