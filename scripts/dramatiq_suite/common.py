"""What Dramatiq's tests import from their `common`, on MiniQ."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from dramatiq import Worker

from miniq.dramatiq import MiniQBroker

URL = os.environ.get("MINIQ_TEST_BROKER", "memory:")
RABBITMQ_CREDENTIALS = None
RABBITMQ_USERNAME = RABBITMQ_PASSWORD = "guest"
skip_unless_rabbit_mq = pytest.mark.skip(reason="connects to RabbitMQ")
skip_in_ci = pytest.mark.skipif(False, reason="runs here as well")
skip_on_windows = skip_on_pypy = skip_in_ci


@contextmanager
def worker(*arguments: Any, **options: Any) -> Iterator[Worker]:
    """A worker that runs for a while."""
    running = Worker(*arguments, **options)
    running.start()
    try:
        yield running
    finally:
        running.stop()


class RedisBroker(MiniQBroker):
    """The broker of the modules that the command `dramatiq` is started with."""

    def __init__(self, **options: Any) -> None:
        super().__init__(URL, **options)
