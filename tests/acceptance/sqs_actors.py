"""Actors of Dramatiq on SQS queues, for a worker that is started as a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import dramatiq
from dramatiq_sqs import SQSBroker

FOLDER = Path(os.environ["MINIQ_TEST_FOLDER"])
broker = SQSBroker(
    namespace="dramatiq",
    dead_letter=True,
    endpoint_url=os.environ["MINIQ_TEST_BROKER"],
    region_name="us-east-1",
    aws_access_key_id="any",
    aws_secret_access_key="thing",
)
dramatiq.set_broker(broker)


@dramatiq.actor(min_backoff=2500, max_backoff=5000)
def work(number: int) -> None:
    tried = FOLDER / f"tried-{number}"
    if number % 10 == 0 and not tried.exists():
        tried.touch()
        raise ValueError("once more")
    (FOLDER / f"done-{number}").touch()
