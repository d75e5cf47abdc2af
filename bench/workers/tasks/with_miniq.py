"""The tasks for MiniQ."""

from __future__ import annotations

import os

import miniq
from bench.workers import marks

app = miniq.App(os.environ["BENCH_URL"])


@app.task(queue="bench")
def work(n: int, seconds: float) -> None:
    marks.work(n, seconds)


send = work.send


def send_many(count: int, seconds: float) -> None:
    for start in range(0, count, 1000):
        app.queue("bench").send_many([work.draft(n, seconds) for n in range(start, min(count, start + 1000))])
