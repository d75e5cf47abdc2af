"""Tasks of Celery with results in MiniQ, for workers that are started as processes of their own."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task

FOLDER = Path(os.environ["MINIQ_TEST_FOLDER"])
app = Celery("tasks")
app.conf.update(
    broker_url=os.environ["MINIQ_TEST_BACKEND"],
    result_backend=os.environ["MINIQ_TEST_BACKEND"],
    result_expires=3600,
    task_track_started=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    with (FOLDER / "bodies").open("a") as file:
        file.write("x\n")
    return sum(numbers)


@app.task
def fail(text: str) -> None:
    raise ValueError(text)


@app.task
def big(size: int) -> str:
    return "x" * size


@app.task(bind=True)
def steps(self: Task, name: str) -> str:
    """Reports its progress, and goes on when the test has seen it."""
    self.update_state(state="PROGRESS", meta={"step": 1})
    wait_for(FOLDER / name)
    return "over"


@app.task
def held(name: str) -> str:
    """Returns when the test says so."""
    (FOLDER / f"{name}-began").touch()
    wait_for(FOLDER / name)
    return name


@app.task(bind=True, max_retries=1)
def again(self: Task, name: str) -> Any:
    if self.request.retries:
        wait_for(FOLDER / name)
        return "at last"
    raise self.retry(exc=ValueError("once more"), countdown=0)


@app.task(bind=True)
def grow(self: Task) -> int:
    """Adds a part to the chord that it belongs to."""
    self.add_to_chord(add.s(20, 22))
    return 1


@app.task(acks_late=True, reject_on_worker_lost=True)
def die_once(name: str) -> int:
    """Its process is lost the first time."""
    if not (FOLDER / name).exists():
        (FOLDER / name).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 5


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(path.name)
        time.sleep(0.02)
