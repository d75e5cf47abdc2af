"""The cost of an open console: `python -m bench.console`. The server runs as a separate process on RocksDB with fsync.

Measures response times of the overview with 500 queues and 1 million messages (statistics, last hour, interval of the
event stream), and how much an open console slows down senders and receivers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from urllib.parse import urlsplit

import miniq
from bench.core import Samples, receive_sync, send_sync
from bench.http import TEXT
from bench.report import Figure, progress, result_path, save, scratch, show, spread

QUEUES = 500
MESSAGES = 1_000_000
BATCH = 1000
WATCHERS = 1
REQUESTS = 40
LISTEN = 8.0
"""Seconds to listen: four events."""
SLICE = 6.0
"""Seconds of work with or without a console: three events."""


@contextmanager
def served(folder: str) -> Iterator[tuple[str, int]]:
    """A server on a free loopback port; yields its URL and process id."""
    command = [sys.executable, "-m", "miniq", "serve", "--store", f"rocksdb:{folder}/served", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[2], process.pid
        finally:
            process.terminate()


def fill(url: str, queues: int, messages: int) -> None:
    """Send this many messages, spread evenly over this many queues."""
    per_queue = messages // queues
    with miniq.connect(url) as mq:
        for number in range(queues):
            progress(f"filling: queue {number + 1} of {queues}")
            queue = mq.queue(f"queue.{number:03d}")
            for start in range(0, per_queue, BATCH):
                queue.send_many(["x" * 100] * min(BATCH, per_queue - start))


def response_times(url: str, path: str, times: int) -> list[float]:
    """Seconds from a request to the end of its response, over one connection."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    seconds = []
    for _ in range(times + 1):
        began = time.perf_counter()
        connection.request("GET", path)
        reply = connection.getresponse()
        assert reply.status == 200
        reply.read()
        seconds.append(time.perf_counter() - began)
    connection.close()
    return seconds[1:]


@contextmanager
def watching(url: str, watchers: int) -> Iterator[list[float]]:
    """Listen to the event stream as the console does; yields the pauses between events as they are measured."""
    stop = threading.Event()
    pauses: list[float] = []

    def listen() -> None:
        address = urlsplit(url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        connection.request("GET", "/v1/events?interval=2")
        reply = connection.getresponse()
        last = 0.0
        while not stop.is_set() and (line := reply.readline()):
            if line.startswith(b"data: "):
                json.loads(line[6:])
                now = time.perf_counter()
                if last:
                    pauses.append(now - last)
                last = now
        connection.close()

    threads = [threading.Thread(target=listen, daemon=True) for _ in range(watchers)]
    for thread in threads:
        thread.start()
    response_times(url, "/v1/trends?series=total&points=60", 1)
    try:
        yield pauses
    finally:
        stop.set()


def cpu_seconds(pid: int) -> float:
    """CPU seconds that all threads of a process have used so far."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def share_of_a_core(url: str, pid: int, watchers: int, rounds: int) -> list[float]:
    """The share of a core that watching takes, beyond an idle server's. Unlike throughput, it hardly depends on other
    load on the machine."""
    shares = []
    for number in range(rounds):
        progress(f"share of a core: round {number + 1} of {rounds}")
        began = cpu_seconds(pid)
        time.sleep(LISTEN)
        idle = cpu_seconds(pid) - began
        with watching(url, watchers):
            time.sleep(0.5)  # skip the first event, which lists all queues: a console stays open for long
            began = cpu_seconds(pid)
            time.sleep(LISTEN)
            shares.append((cpu_seconds(pid) - began - idle) / LISTEN)
    return shares


def throughput(url: str, rounds: int, watchers: int) -> Samples:
    """Send, and receive + ack, alternating with and without a console."""
    samples: Samples = defaultdict(list)
    with miniq.connect(url) as mq:
        queue = mq.queue("work")
        _work(queue, 0.5)
        for number in range(rounds):
            progress(f"watching: round {number + 1} of {rounds}")
            rates: dict[bool, float] = {}
            for watched in (False, True) if number % 2 else (True, False):
                with watching(url, watchers) if watched else nullcontext():
                    rates[watched] = _work(queue, SLICE)
            samples["rate"].append(rates[True])
            samples["cost"].append(rates[False] / rates[True] - 1)
    return samples


def _work(queue: miniq.Queue, seconds: float) -> float:
    """Messages per second that one client sends, receives and acks."""
    spent, done = 0.0, 0
    while spent < seconds:
        spent += send_sync(queue, 100, 10, 1, TEXT) + receive_sync(queue, 100, 10, 1)
        done += 1000
    return done / spent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="measured rounds (12)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 50 queues, 50,000 messages, 2 rounds")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    queues, messages, rounds = (50, 50_000, 2) if options.quick else (QUEUES, MESSAGES, options.rounds)
    with scratch(options.dir) as folder, served(folder) as (url, pid):
        fill(url, queues, messages)
        time.sleep(16)  # until /v1/trends has its first row
        responses = {
            "overview: /v1/stats": response_times(url, "/v1/stats", REQUESTS),
            "last hour: /v1/trends": response_times(url, "/v1/trends?series=total&points=60", REQUESTS),
            "/v1/queues": response_times(url, "/v1/queues", REQUESTS),
        }
        with watching(url, WATCHERS) as pauses:
            time.sleep(9)
        share = share_of_a_core(url, pid, WATCHERS, 2 if options.quick else 6)
        samples = throughput(url, rounds, WATCHERS)
    rows = [
        Figure(name=name, value=spread(seconds), unit="s", target=0.2, at_most=True)
        for name, seconds in responses.items()
    ]
    rows.append(Figure(name="between two events (interval 2 s)", value=spread(pauses), unit="s"))
    show(f"{queues} queues with {messages:,} messages: response times", rows)
    cost = [
        Figure(name="share of a core", value=spread(share), unit="share", target=0.03, at_most=True),
        Figure(
            name="send, receive and ack, slower by",
            value=spread(samples["cost"]),
            unit="share",
            rate=spread(samples["rate"]),
            target=0.03,
            at_most=True,
        ),
    ]
    show("Cost of an open console", cost)
    about = {"bench": "console", "rounds": rounds, "quick": options.quick, "queues": queues, "messages": messages}
    save(result_path("console", options.quick), about, [*rows, *cost])


if __name__ == "__main__":
    main()
