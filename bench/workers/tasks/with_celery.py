"""The tasks for Celery: no results, acknowledged when they are received (its default), and many fetched ahead."""

from __future__ import annotations

import os

from celery import Celery

from bench.workers import marks

app = Celery(broker=os.environ["BENCH_URL"])
app.conf.update(
    task_ignore_result=True, worker_prefetch_multiplier=64, broker_connection_retry_on_startup=True, result_backend=None
)


@app.task(name="work")
def work(n: int, seconds: float) -> None:
    marks.work(n, seconds)


send = work.delay


def send_many(count: int, seconds: float) -> None:
    with app.producer_pool.acquire(block=True) as producer:
        for n in range(count):
            work.apply_async((n, seconds), producer=producer)
