"""`python -m bench.workers.sender MODULE HOW COUNT SECONDS [SENT]`: sends tasks in a process of its own."""

from __future__ import annotations

import importlib
import sys
import time

from bench.workers.marks import Marks

PACE = 100.0
"""Tasks per second of `paced`."""


def main() -> None:
    module, how, count, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
    tasks = importlib.import_module(f"bench.workers.tasks.{module}")
    if how == "send_many":
        tasks.send_many(count, seconds)
    elif how == "one_by_one":
        tasks.send(0, seconds)
        began = time.perf_counter()
        for n in range(count):
            tasks.send(n, seconds)
        print(count / (time.perf_counter() - began))
    else:
        sent = Marks(sys.argv[5])
        began = time.perf_counter()
        for n in range(count):
            time.sleep(max(0.0, began + n / PACE - time.perf_counter()))
            sent.mark(n)
            tasks.send(n, seconds)
            if n == 49:  # the worker is up by now
                time.sleep(3)
                began = time.perf_counter() - n / PACE


if __name__ == "__main__":
    main()
