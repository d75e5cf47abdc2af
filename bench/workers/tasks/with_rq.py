"""The tasks for RQ: no results are kept."""

from __future__ import annotations

import os

from redis import Redis
from rq import Queue

from bench.workers import marks

queue = Queue("bench", connection=Redis.from_url(os.environ["BENCH_URL"]))


def work(n: int, seconds: float) -> None:
    marks.work(n, seconds)


def send(n: int, seconds: float) -> None:
    queue.enqueue(work, n, seconds, result_ttl=0)


def send_many(count: int, seconds: float) -> None:
    for start in range(0, count, 1000):
        queue.enqueue_many(
            [Queue.prepare_data(work, (n, seconds), result_ttl=0) for n in range(start, min(count, start + 1000))]
        )
