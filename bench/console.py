"""What watching costs: `python -m bench.console`. The server is a process of its own, on RocksDB with fsync.

How long the overview takes to answer with 500 queues and 1 million messages (its numbers, the last hour, and the lag of
the stream of events), and how much slower senders and receivers are while a console looks at them.
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
from bench.core import Seen, receive_sync, send_sync
from bench.http import TEXT
from bench.report import Figure, progress, result_path, save, scratch, show, spread

QUEUES = 500
MESSAGES = 1_000_000
BATCH = 1000
WATCHERS = 1
ASKS = 40
LISTEN = 8.0
"""Seconds: four events."""
SLICE = 6.0
"""Seconds of work between two changes: three events."""


@contextmanager
def served(folder: str) -> Iterator[tuple[str, int]]:
    """A server on a free loopback port; its URL and the number of its process."""
    command = [sys.executable, "-m", "miniq", "serve", "--store", f"rocksdb:{folder}/served", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[2], process.pid
        finally:
            process.terminate()


def fill(url: str, queues: int, messages: int) -> None:
    """So many messages, in so many queues."""
    share = messages // queues
    with miniq.connect(url) as mq:
        for number in range(queues):
            progress(f"filling: queue {number + 1} of {queues}")
            queue = mq.queue(f"queue.{number:03d}")
            for start in range(0, share, BATCH):
                queue.send_many(["x" * 100] * min(BATCH, share - start))


def ask(url: str, path: str, times: int) -> list[float]:
    """Seconds from a request to the end of its answer, over one connection."""
    at = urlsplit(url)
    connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
    seen = []
    for _ in range(times + 1):
        began = time.perf_counter()
        connection.request("GET", path)
        reply = connection.getresponse()
        assert reply.status == 200
        reply.read()
        seen.append(time.perf_counter() - began)
    connection.close()
    return seen[1:]


@contextmanager
def watching(url: str, watchers: int) -> Iterator[list[float]]:
    """Consoles that listen as the page does; the pauses between events are noted."""
    stop = threading.Event()
    pauses: list[float] = []

    def listen() -> None:
        at = urlsplit(url)
        connection = http.client.HTTPConnection(at.hostname or "", at.port, timeout=60)
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
    ask(url, "/v1/trends?series=total&points=60", 1)
    try:
        yield pauses
    finally:
        stop.set()


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far, all its threads."""
    total = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def share_of_a_core(url: str, pid: int, watchers: int, rounds: int) -> list[float]:
    """How much of a core watching takes, beyond what an idle server takes. Another load on the machine hardly
    changes this, unlike the throughput."""
    found = []
    for number in range(rounds):
        progress(f"share of a core: round {number + 1} of {rounds}")
        began = cpu_seconds(pid)
        time.sleep(LISTEN)
        idle = cpu_seconds(pid) - began
        with watching(url, watchers):
            time.sleep(0.5)  # the first event has all queues; people leave the page open
            began = cpu_seconds(pid)
            time.sleep(LISTEN)
            found.append((cpu_seconds(pid) - began - idle) / LISTEN)
    return found


def throughput(url: str, rounds: int, watchers: int) -> Seen:
    """Send, and receive + ack, with and without somebody who watches, in turn."""
    seen: Seen = defaultdict(list)
    with miniq.connect(url) as mq:
        queue = mq.queue("work")
        _work(queue, 0.5)
        for number in range(rounds):
            progress(f"watching: round {number + 1} of {rounds}")
            rates: dict[bool, float] = {}
            for watched in (False, True) if number % 2 else (True, False):
                with watching(url, watchers) if watched else nullcontext():
                    rates[watched] = _work(queue, SLICE)
            seen["rate"].append(rates[True])
            seen["cost"].append(rates[False] / rates[True] - 1)
    return seen


def _work(queue: miniq.Queue, seconds: float) -> float:
    """Messages a second that one client sends, receives and acks."""
    spent, done = 0.0, 0
    while spent < seconds:
        spent += send_sync(queue, 100, 10, 1, TEXT) + receive_sync(queue, 100, 10, 1)
        done += 1000
    return done / spent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.console", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="rounds that count (12)")
    parser.add_argument(
        "--quick", action="store_true", help="50 queues, 50,000 messages, 2 rounds: to see that it works"
    )
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    queues, messages, rounds = (50, 50_000, 2) if options.quick else (QUEUES, MESSAGES, options.rounds)
    with scratch(options.dir) as folder, served(folder) as (url, pid):
        fill(url, queues, messages)
        time.sleep(16)  # until the last hour has its first row
        answers = {
            "overview: /v1/stats": ask(url, "/v1/stats", ASKS),
            "last hour: /v1/trends": ask(url, "/v1/trends?series=total&points=60", ASKS),
            "/v1/queues": ask(url, "/v1/queues", ASKS),
        }
        with watching(url, WATCHERS) as pauses:
            time.sleep(9)
        share = share_of_a_core(url, pid, WATCHERS, 2 if options.quick else 6)
        seen = throughput(url, rounds, WATCHERS)
    rows = [
        Figure(name=name, value=spread(seconds), unit="s", target=0.2, at_most=True)
        for name, seconds in answers.items()
    ]
    rows.append(Figure(name="between two events (2 s asked)", value=spread(pauses), unit="s"))
    show(f"{queues} queues with {messages:,} messages: seconds to an answer", rows)
    cost = [
        Figure(name="share of a core", value=spread(share), unit="share", target=0.03, at_most=True),
        Figure(
            name="send, receive and ack, slower by",
            value=spread(seen["cost"]),
            unit="share",
            rate=spread(seen["rate"]),
            target=0.03,
            at_most=True,
        ),
    ]
    show("What a console that watches costs", cost)
    about = {"bench": "console", "rounds": rounds, "quick": options.quick, "queues": queues, "messages": messages}
    save(result_path("console", options.quick), about, [*rows, *cost])


if __name__ == "__main__":
    main()
