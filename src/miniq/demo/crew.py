"""The processes of the demo: a broker that can be killed, a producer, and workers that sometimes fail.

The producer and the workers record every confirmation they get, in files that are written unbuffered so that they
survive a kill. At the end these notes are checked against the broker's guarantees.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from typing import IO, Any

import msgspec
from msgspec import Struct

import miniq

MESSAGES = 3000
PACE = 0.002
"""Seconds between two sends."""
WORK = 0.004
"""Average seconds that a worker takes for a message."""
LEASE = 2.0
QUEUE = "orders"
DEAD = f"{QUEUE}.dead"
RECEIVES = 3
"""Receives after which an order becomes a dead letter."""
BAD = 100
"""One in this many orders cannot be processed until it is fixed: its amount is a word."""
FAILURE_RATE = 0.05
"""Share of orders that a worker fails to process for no reason."""
PATIENCE = 30.0


class Note(Struct):
    """A confirmed event: a message was sent, received (with a lease until a moment) or acked; or the worker is about to
    report that it failed."""

    event: str
    id: str
    receives: int = 0
    until: float = 0.0
    at: float = 0.0


def write_note(file: IO[bytes], note: Note) -> None:
    file.write(msgspec.json.encode(note) + b"\n")


def read_notes(path: str) -> list[Note]:
    """The notes written to a file so far."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return [msgspec.json.decode(line, type=Note) for line in file.read().split(b"\n")[:-1]]
    return []


def order(number: int) -> dict[str, Any]:
    """One order; some have an amount that no worker can parse."""
    return {"order": number, "amount": "twelve" if number % BAD == BAD - 1 else number % 50 + 1}


def produce(url: str, path: str) -> None:
    """Send all orders, one by one."""
    with open(path, "ab", buffering=0) as notes, miniq.connect(url, retry=PATIENCE) as client:
        for number in range(MESSAGES):
            id = client.queue(QUEUE).send(order(number))
            write_note(notes, Note("sent", id, at=time.time()))
            time.sleep(PACE)


def work(url: str, path: str, name: str) -> None:
    """Receive and process orders until the parent process ends; report those that fail."""
    parent = os.getppid()
    chance = random.Random(name)  # noqa: S311  no secret
    with open(path, "ab", buffering=0) as notes, miniq.connect(url, retry=PATIENCE) as client:
        queue = client.queue(QUEUE)
        while os.getppid() == parent:
            for message in queue.receive(10, wait=1, visibility_timeout=LEASE, consumer=name):
                deadline = message.lease_until
                write_note(
                    notes, Note("received", message.id, message.receives, deadline.timestamp() if deadline else 0.0)
                )
                time.sleep(chance.expovariate(1 / WORK))
                with suppress(miniq.StaleReceipt):
                    if isinstance(message.body["amount"], str) or chance.random() < FAILURE_RATE:
                        write_note(notes, Note("failing", message.id, message.receives, at=time.time()))
                        message.fail("the amount is not a number, or bad luck", delay=0)
                    else:
                        message.ack()
                        write_note(notes, Note("acked", message.id, message.receives, at=time.time()))


def start(*args: str, out: int | None = None) -> subprocess.Popen[str]:
    """Start `python -m` with these arguments."""
    return subprocess.Popen([sys.executable, "-m", *args], stdout=out, text=True)  # noqa: S603


class Server:
    """The broker process, which can be killed and restarted at the same address."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._port = "0"
        self.start()

    def start(self) -> None:
        ports = ["--port", self._port, *(f"--{name}-port=0" for name in ("command", "producer", "consumer"))]
        self._process = start("miniq", "serve", "--store", f"rocksdb:{self._folder}", *ports, out=subprocess.PIPE)
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            raise SystemExit("the broker did not start")
        self.url = line.removeprefix("miniq ready: ").split()[0]
        self._port = self.url.rpartition(":")[2]

    def stop(self, number: int = signal.SIGTERM) -> None:
        self._process.send_signal(number)
        self._process.communicate()


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        produce(*sys.argv[2:])
    else:
        work(*sys.argv[2:])
