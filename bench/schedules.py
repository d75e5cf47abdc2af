"""Lateness of schedules: `python -m bench.schedules`. 100 schedules, each with a moment of its own within 20 s.

The server runs as a separate process on RocksDB with fsync, and one client waits for the messages over HTTP. A schedule
is late by the time from its moment until its message has its `sent_at`, and until the client has received it.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from datetime import UTC, datetime, timedelta

import miniq
from bench.http import server
from bench.report import Figure, progress, result_path, save, scratch, show, spread
from miniq.schedule import MOMENT_HEADER

SCHEDULES = 100
SECONDS = 20.0
MOST = 200.0
"""Milliseconds by which none may be late on an idle machine."""
QUEUE = "fired"


def measure(url: str, schedules: int, seconds: float) -> tuple[list[float], list[float]]:
    """Milliseconds from each moment until the message was sent, and until it was received."""
    sent: list[float] = []
    received: list[float] = []
    with miniq.connect(url) as mq:
        began = datetime.now(UTC) + timedelta(seconds=2)
        for number in range(schedules):
            at = began + timedelta(seconds=random.uniform(0, seconds))
            mq.schedule(f"s{number}", queue=QUEUE, at=at, body=number)
        ends = time.monotonic() + seconds + 30
        while len(received) < schedules:
            assert time.monotonic() < ends, f"{schedules - len(received)} schedules have not fired"
            for message in mq.queue(QUEUE).receive(max=100, wait=5):
                now = datetime.now(UTC)
                moment = datetime.fromisoformat(message.headers[MOMENT_HEADER])
                sent.append((message.sent_at - moment) / timedelta(milliseconds=1))
                received.append((now - moment) / timedelta(milliseconds=1))
                message.ack()
        for number in range(schedules):
            mq.delete_schedule(f"s{number}")
    return sent, received


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.schedules", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="smoke test: one round of 3 s")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    rounds, seconds = (1, 3.0) if options.quick else (options.rounds, SECONDS)
    sent: list[float] = []
    received: list[float] = []
    with scratch(options.dir) as folder, server(folder) as url:
        for number in range(1, rounds + 1):
            progress(f"round {number} of {rounds}")
            for values, more in zip((sent, received), measure(url, SCHEDULES, seconds), strict=True):
                values += more
    load = os.getloadavg()[0]
    figures = [
        Figure(name="sent", value=spread(sent), unit="ms"),
        Figure(name="received", value=spread(received), unit="ms"),
        Figure(name="received, the latest", value=spread([max(received)]), unit="ms", target=MOST, at_most=True),
    ]
    show(f"Lateness of {len(received)} moments of {SCHEDULES} schedules; load average {load:.1f}", figures)
    save(result_path("schedules", options.quick), {"schedules": SCHEDULES, "seconds": seconds, "load": load}, figures)


if __name__ == "__main__":
    main()
