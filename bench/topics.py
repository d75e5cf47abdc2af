"""Speed of publications: `python -m bench.topics`. Batches of 100 bodies of 1 KB, to 1, 10 and 100 queues.

A server on RocksDB with fsync, over HTTP by one Python client: one publication against the same number of sends, one
per queue. Alternating with those of Redis (one XADD per stream and message, pipelined, AOF always, over a plain socket)
and RabbitMQ (a topic exchange with quorum queues, publisher confirms) that are installed (Debian: `redis-server
rabbitmq-server`, and the Python package `aio_pika`). A figure is copies per second.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import miniq
from bench.http import redis, server
from bench.peers.rabbit import SERVER, RabbitMQ
from bench.report import Figure, progress, result_path, save, scratch, show, spread

BATCH = 100
FAN_OUT = (1, 10, 100)
TEXT = "x" * 1022
COPIES = 20_000
"""Copies per round and kind: fewer publications to more queues."""

Way = Callable[[int], None]
"""Delivers one batch to so many queues."""


@contextlib.contextmanager
def ours(folder: str) -> Iterator[dict[str, Way]]:
    with server(folder) as url, miniq.connect(url) as mq:
        for fan_out in FAN_OUT:
            for number in range(fan_out):
                mq.topic(f"t{fan_out}").subscribe(f"q{fan_out}.{number}")
        bodies = [TEXT] * BATCH

        def send(fan_out: int) -> None:
            for number in range(fan_out):
                mq.queue(f"q{fan_out}.{number}").send_many(bodies)

        yield {
            "MiniQ publish": lambda fan_out: _check(mq.topic(f"t{fan_out}").publish_many(bodies).queues, fan_out),
            "MiniQ single sends": send,
        }


def _check(reached: int, fan_out: int) -> None:
    assert reached == fan_out


@contextlib.contextmanager
def redis_streams(folder: str) -> Iterator[dict[str, Way]]:
    with redis(folder) as port, socket.create_connection(("127.0.0.1", port)) as line:
        replies = line.makefile("rb")

        def publish(fan_out: int) -> None:
            parts = []
            for number in range(fan_out):
                name = f"s{fan_out}.{number}"
                command = (
                    f"*5\r\n$4\r\nXADD\r\n${len(name)}\r\n{name}\r\n$1\r\n*\r\n$1\r\nb\r\n${len(TEXT)}\r\n{TEXT}\r\n"
                )
                parts.append(command.encode() * BATCH)
            line.sendall(b"".join(parts))
            for _ in range(fan_out * BATCH):
                reply = replies.readline()
                assert reply.startswith(b"$"), reply
                replies.readline()

        yield {"Redis XADD": publish}


@contextlib.contextmanager
def rabbitmq(folder: str) -> Iterator[dict[str, Way]]:
    import aio_pika

    with RabbitMQ().start(folder) as running:
        loop = asyncio.new_event_loop()

        async def prepare() -> tuple[Any, dict[int, Any]]:
            connection = await aio_pika.connect(f"amqp://guest:guest@127.0.0.1:{running.port}/")
            channel = await connection.channel(publisher_confirms=True)
            exchanges = {}
            for fan_out in FAN_OUT:
                exchange = await channel.declare_exchange(f"t{fan_out}", aio_pika.ExchangeType.TOPIC, durable=True)
                for number in range(fan_out):
                    arguments = {"x-queue-type": "quorum"}
                    queue = await channel.declare_queue(f"q{fan_out}.{number}", durable=True, arguments=arguments)
                    await queue.bind(exchange, "#")
                exchanges[fan_out] = exchange
            return connection, exchanges

        connection, exchanges = loop.run_until_complete(prepare())
        body, persistent = f'"{TEXT}"'.encode(), aio_pika.DeliveryMode.PERSISTENT

        async def publish(fan_out: int) -> None:
            messages = [aio_pika.Message(body, delivery_mode=persistent) for _ in range(BATCH)]
            await asyncio.gather(*[exchanges[fan_out].publish(message, routing_key="x.y") for message in messages])

        try:
            yield {"RabbitMQ topic exchange": lambda fan_out: loop.run_until_complete(publish(fan_out))}
        finally:
            loop.run_until_complete(connection.close())
            loop.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="one short round, to see that it works")
    parser.add_argument("--folder", default=".", help="where the data goes: the disk to measure")
    given = parser.parse_args()
    rounds, copies = (1, 2000) if given.quick else (given.rounds, COPIES)
    rates: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    with scratch(given.folder) as folder, contextlib.ExitStack() as stack:
        ways = dict(stack.enter_context(ours(folder)))
        if shutil.which("redis-server"):
            ways |= stack.enter_context(redis_streams(folder))
        if os.path.exists(SERVER) and importlib.util.find_spec("aio_pika"):
            ways |= stack.enter_context(rabbitmq(folder))
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}" if number else "warming up")
            for fan_out in FAN_OUT:
                batches = max(1, copies // (BATCH * fan_out))
                for name, deliver in ways.items():
                    began = time.perf_counter()
                    for _ in range(batches):
                        deliver(fan_out)
                    seconds = time.perf_counter() - began
                    if number:
                        rates[name, fan_out].append(batches * BATCH * fan_out / seconds)
    figures = []
    for (name, fan_out), values in rates.items():
        ratio = [mine / theirs for mine, theirs in zip(rates["MiniQ publish", fan_out], values, strict=True)]
        figures.append(Figure(name=f"{name}, {fan_out} queues", value=spread(ratio), unit="ratio", rate=spread(values)))
    show("copies per second; the value is MiniQ's publications relative to it", figures)
    save(result_path("topics", given.quick), {"batch": BATCH, "bytes": len(TEXT) + 2}, figures)


if __name__ == "__main__":
    main()
