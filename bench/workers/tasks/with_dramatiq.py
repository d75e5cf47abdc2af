"""The tasks for Dramatiq: without middleware, and many fetched ahead (`dramatiq_queue_prefetch`)."""

from __future__ import annotations

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.workers import marks

broker = RedisBroker(url=os.environ["BENCH_URL"], middleware=[])
dramatiq.set_broker(broker)


@dramatiq.actor
def work(n: int, seconds: float) -> None:
    marks.work(n, seconds)


send = work.send


def send_many(count: int, seconds: float) -> None:
    for n in range(count):
        work.send(n, seconds)
