"""The tasks for Huey: no results."""

from __future__ import annotations

import os

from huey import RedisHuey

from bench.workers import marks

huey = RedisHuey("bench", url=os.environ["BENCH_URL"], results=False)


@huey.task()
def work(n: int, seconds: float) -> None:
    marks.work(n, seconds)


send = work


def send_many(count: int, seconds: float) -> None:
    for n in range(count):
        work(n, seconds)
