"""Results under ids of one's own, over HTTP: how many per second, and how long callers wait.

    python -m bench.results_of_ones_own [SECONDS]

Prints puts per second for 1, 4 and 16 callers in threads, the time from a put to the reply of the call that waits for
it, and replacements of one record per second, each on the condition that it is what was read. One server with the
default store, on this machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from uuid import uuid4

from miniq import connect
from miniq.client._sync.queue import Queue
from tests.serving import serving

WAKES = 200
PARTS = 300


def puts_per_second(queue: Queue, callers: int, seconds: float) -> float:
    """How many results `callers` threads put together."""
    counts = [0] * callers
    end = time.monotonic() + seconds

    def run(place: int) -> None:
        while time.monotonic() < end:
            queue.put_result(str(uuid4()), {"status": "SUCCESS", "result": 42, "children": []})
            counts[place] += 1

    in_threads(callers, run)
    return sum(counts) / seconds


def wakes(queue: Queue) -> list[float]:
    """Seconds from the start of a put to the end of the wait for it."""
    times = []
    for _ in range(WAKES):
        id, ends = str(uuid4()), [0.0]

        def wait(id: str = id, ends: list[float] = ends) -> None:
            queue.result(id, wait=30, unknown="wait")
            ends[0] = time.monotonic()

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.01)
        began = time.monotonic()
        queue.put_result(id, 1)
        thread.join()
        times.append(ends[0] - began)
    return sorted(times)


def parts_per_second(queue: Queue, callers: int) -> float:
    """How many parts are added to one record, each on the condition that it is what was read."""
    id = str(uuid4())
    queue.put_result(id, [])

    def run(place: int) -> None:
        for number in range(place, PARTS, callers):
            while True:
                was = queue.result(id)
                if queue.put_result(id, [*was.result, f"{number:012}"], replaces=was.finished_at):
                    break

    began = time.monotonic()
    in_threads(callers, run)
    assert len(queue.result(id).result) == PARTS
    return PARTS / (time.monotonic() - began)


def in_threads(count: int, run: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=run, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3.0
    with (
        tempfile.TemporaryDirectory(prefix="miniq-bench-") as folder,
        serving(f"rocksdb:{folder}/data") as server,
        connect(server.url) as mq,
    ):
        queue = mq.queue("results")
        queue.configure(results=600)
        for callers in (1, 4, 16):
            print(f"puts, {callers:2} callers: {puts_per_second(queue, callers, seconds):8.0f} per second")
        times = wakes(queue)
        print(f"put to reply: p50 {1000 * statistics.median(times):.1f} ms, p99 {1000 * times[-3]:.1f} ms")
        for callers in (1, 4):
            print(f"replacements, {callers} callers: {parts_per_second(queue, callers):8.0f} per second")


if __name__ == "__main__":
    main()
