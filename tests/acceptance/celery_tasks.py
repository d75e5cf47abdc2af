"""The Celery app of the tests: each task writes lines to a file, so that tests see what ran, when and how often."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from celery import Celery

app = Celery("shop", broker=os.environ["BROKER"], set_as_current=True)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options=json.loads(os.environ.get("OPTIONS", "{}")),
    worker_hijack_root_logger=False,
    task_create_missing_queues=True,
)
app.conf.update(json.loads(os.environ.get("CONF", "{}")))


def note(what: str, **more: Any) -> None:
    """A line in the log, written at once and whole."""
    line = json.dumps({"what": what, "at": time.time(), "pid": os.getpid(), **more}) + "\n"
    log = os.open(os.environ["LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(log, line.encode())
    os.close(log)


@app.task
def add(x: Any, y: Any) -> None:
    note("added", of=x + y)


@app.task(bind=True, max_retries=3)
def flaky(self: Any, number: int, fails: int) -> None:
    note("tried", number=number, retries=self.request.retries)
    if self.request.retries < fails:
        raise self.retry(countdown=0.1)
    note("done", number=number)


@app.task(bind=True, acks_late=True)
def late(self: Any, number: int, seconds: float) -> None:
    run = time.monotonic_ns()
    note("began", number=number, run=run, redelivered=self.request.delivery_info["redelivered"])
    time.sleep(seconds)
    note("ended", number=number, run=run)


@app.task(bind=True, acks_late=True, reject_on_worker_lost=True)
def suicide(self: Any) -> None:
    note("suicide", redelivered=self.request.delivery_info["redelivered"])
    if not self.request.delivery_info["redelivered"]:
        os.kill(os.getpid(), 9)


@app.task(bind=True, acks_late=True)
def rejected(self: Any) -> None:
    from celery.exceptions import Reject

    note("rejected")
    raise Reject("not for me", requeue=False)
