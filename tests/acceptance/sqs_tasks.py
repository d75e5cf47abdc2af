"""Tasks of Celery on an SQS queue, for workers that are started as processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery

FOLDER = Path(os.environ["MINIQ_TEST_FOLDER"])
app = Celery("tasks", broker=os.environ["MINIQ_TEST_BROKER"])
app.conf.update(
    broker_transport_options={
        "region": "us-east-1",
        "is_secure": False,
        "visibility_timeout": 10,
        "wait_time_seconds": 1,
        "polling_interval": 0.05,
    },
    task_default_queue="celery-tasks",
    worker_enable_remote_control=False,
    broker_connection_retry_on_startup=True,
)


def note(name: str) -> bool:
    """Note that something happened; whether it is the first time."""
    path = FOLDER / name
    is_first = not path.exists()
    path.touch()
    return is_first


@app.task
def work(number: int) -> None:
    note(f"done-{number}")


@app.task(bind=True, max_retries=3)
def flaky(self: Any, number: int) -> None:
    if note(f"tried-{number}"):
        raise self.retry(countdown=1)
    note(f"done-{number}")


@app.task(acks_late=True)
def slow(number: int) -> None:
    if note(f"tried-{number}"):
        time.sleep(300)
    note(f"done-{number}")
