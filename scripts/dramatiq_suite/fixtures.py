"""The fixtures of Dramatiq's tests, on MiniQ."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import dramatiq
import pytest
from dramatiq.broker import MessageProxy
from dramatiq.middleware import Middleware

from miniq.dramatiq import MiniQBroker, MiniQRateLimiterBackend, MiniQResultBackend

from .common import URL


class MiniQAsStub(MiniQBroker):
    """A broker with what only the stub broker has: it fails where messages fail."""

    def __init__(self, middleware: list[Middleware] | None = None, *, fail_fast_default: bool = True) -> None:
        super().__init__(URL, namespace=f"t{uuid4().hex[:12]}", middleware=middleware)
        self.dead_letters_by_queue: dict[str, list[MessageProxy]] = defaultdict(list)
        self.errors: dict[str, list[tuple[type[BaseException], Any]]] = defaultdict(list)
        self.fail_fast_default = fail_fast_default

    def emit_before(self, signal: str, *arguments: Any, **options: Any) -> None:
        if signal == "nack":
            message: Any = arguments[0]
            self.dead_letters_by_queue[message.queue_name].append(message)
            error = message._exception or Exception("Message failed with unknown error")
            self.errors[message.queue_name].append((type(error), error.args))  # it may be freed
        super().emit_before(signal, *arguments, **options)

    @property
    def dead_letters(self) -> list[MessageProxy]:
        return [message for messages in self.dead_letters_by_queue.values() for message in messages]

    def flush_all(self) -> None:
        super().flush_all()
        self.dead_letters_by_queue.clear()
        self.errors.clear()

    def join(self, queue_name: str, *, timeout: int | None = None, fail_fast: bool | None = None, **_: Any) -> None:
        super().join(queue_name, interval=10, timeout=timeout)
        if self.fail_fast_default if fail_fast is None else fail_fast:
            for kind, arguments in self.errors[queue_name]:
                raise kind(*arguments) from None


class MiniQAsRabbitMQ(MiniQBroker):
    """A broker whose `join` takes the options of RabbitMQ's, which has to look several times."""

    def join(self, queue_name: str, *, timeout: int | None = None, **_: Any) -> None:
        super().join(queue_name, timeout=timeout)


def _broker(kind: type[MiniQBroker], *arguments: Any, **options: Any) -> Iterator[MiniQBroker]:
    broker = kind(*arguments, **options)
    broker.emit_after("process_boot")
    dramatiq.set_broker(broker)
    yield broker
    broker.flush_all()
    broker.close()


def _worker(broker: MiniQBroker) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=32)
    worker.start()
    yield worker
    worker.stop()


@pytest.fixture
def stub_broker() -> Iterator[MiniQBroker]:
    yield from _broker(MiniQAsStub)


@pytest.fixture
def redis_broker() -> Iterator[MiniQBroker]:
    yield from _broker(MiniQBroker, URL, namespace=f"t{uuid4().hex[:12]}")


@pytest.fixture
def rabbitmq_broker() -> Iterator[MiniQBroker]:
    yield from _broker(MiniQAsRabbitMQ, URL, namespace=f"t{uuid4().hex[:12]}")


@pytest.fixture
def stub_worker(stub_broker: MiniQBroker) -> Iterator[dramatiq.Worker]:
    yield from _worker(stub_broker)


@pytest.fixture
def redis_worker(redis_broker: MiniQBroker) -> Iterator[dramatiq.Worker]:
    yield from _worker(redis_broker)


@pytest.fixture
def rabbitmq_worker(rabbitmq_broker: MiniQBroker) -> Iterator[dramatiq.Worker]:
    yield from _worker(rabbitmq_broker)


@pytest.fixture
def result_backend() -> MiniQResultBackend:
    return MiniQResultBackend(URL, queue=f"t{uuid4().hex[:12]}")


@pytest.fixture
def redis_result_backend() -> MiniQResultBackend:
    return MiniQResultBackend(URL, queue=f"t{uuid4().hex[:12]}")


@pytest.fixture
def rate_limiter_backend() -> MiniQRateLimiterBackend:
    return MiniQRateLimiterBackend(URL, queue=f"t{uuid4().hex[:12]}")


@pytest.fixture
def start_cli() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(module: str, *, extra_args: list[str] | None = None, **options: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dramatiq", module, *(extra_args or [])]
        started.append(subprocess.Popen(command, **options))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait()
