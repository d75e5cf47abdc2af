"""Wake-ups between brokers: `python -m bench.wakeups --store mongodb|postgresql`. Two brokers on one database.

Measured is the time from the start of a send until the message is in the hands of a client that waits for it by a long
poll: at the other broker, and at the same one, over HTTP. The database is a temporary one, with its data in memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import miniq
from bench.report import Figure, progress, result_path, save, show, spread
from tests import mongod, postgresql
from tests.serving import serving

SENDS = 40
WARM_UP = 5
PAUSE = 0.4
"""Seconds between two sends: the client waits again by then."""
PRESENCE = 3.0
"""Seconds until brokers have heard of one another."""


@contextlib.contextmanager
def database(kind: str) -> Iterator[str]:
    if kind == "postgresql":
        with postgresql.running() as server:
            yield server.url()
    else:
        with tempfile.TemporaryDirectory() as owner:
            try:
                yield mongod.databases().url(Path(owner))
            finally:
                mongod.stop()


def measure(sends_to: str, waits_at: str, name: str) -> list[float]:
    """Milliseconds of each send."""
    arrived: queue.Queue[float] = queue.Queue()
    total = SENDS + WARM_UP + 1

    def receive() -> None:
        with miniq.connect(waits_at) as mq:
            received = 0
            while received < total:
                for message in mq.queue(name).receive(wait=20):
                    arrived.put(time.perf_counter())
                    received += 1
                    message.ack()

    waiting = threading.Thread(target=receive, daemon=True)
    times = []
    with miniq.connect(sends_to) as mq:
        mq.queue(name).send(0)
        waiting.start()
        arrived.get(timeout=60)
        time.sleep(PRESENCE)
        for number in range(1, total):
            time.sleep(PAUSE)
            began = time.perf_counter()
            mq.queue(name).send(number)
            times.append((arrived.get(timeout=60) - began) * 1000)
    waiting.join(60)
    return times[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.wakeups", description=__doc__.splitlines()[0])
    parser.add_argument("--store", choices=("mongodb", "postgresql"), default="mongodb")
    options = parser.parse_args()
    figures = []
    with database(options.store) as url, serving(url) as one, serving(url) as other:
        for name, waits_at in (("other", other.url), ("same", one.url)):
            progress(f"{options.store}: waiting at the {name} broker")
            times = measure(one.url, waits_at, name)
            figures.append(Figure(name=f"{options.store}, at the {name} broker", value=spread(times), unit="ms"))
    load = os.getloadavg()[0]
    show(f"Send to a waiting client, {SENDS} times each; load average {load:.1f}", figures)
    save(result_path(f"wakeups-{options.store}", quick=True), {"sends": SENDS, "load": load}, figures)


if __name__ == "__main__":
    main()
