"""Actors of Dramatiq on MiniQ, for workers that are started as processes of their own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import dramatiq
from dramatiq.results import Results

from miniq.dramatiq import MiniQBroker, MiniQResultBackend

FOLDER = Path(os.environ["MINIQ_TEST_FOLDER"])
URL = os.environ["MINIQ_TEST_BROKER"]
broker = MiniQBroker(URL)
broker.add_middleware(Results(backend=MiniQResultBackend(URL)))
dramatiq.set_broker(broker)


def note(name: str) -> int:
    """Note that something happened; how often it has."""
    with (FOLDER / name).open("a") as file:
        file.write(f"{os.getpid()}\n")
    return len((FOLDER / name).read_text().splitlines())


@dramatiq.actor(min_backoff=100, max_backoff=200, store_results=True)
def work(number: int) -> int:
    tries = note(f"work-{number}")
    if number % 10 == 9 and tries == 1:
        raise ValueError("once more")
    return 2 * number


@dramatiq.actor(queue_name="slow", max_retries=0)
def slow(name: str) -> None:
    """Works until the test says that it is over."""
    if note(f"slow-{name}") > 1:
        return
    deadline = time.monotonic() + 300
    while not (FOLDER / f"over-{name}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    note(f"done-{name}")
