"""Short ways to say what tests say often."""

from __future__ import annotations

import asyncio
import json
import reprlib
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from miniq.broker import Broker
from miniq.broker.waiters import Sleeper
from miniq.message import Draft, Lease, Stored

T = TypeVar("T")


def draft(body: Any = "x", **fields: Any) -> Draft:
    return Draft(json.dumps(body).encode(), **fields)


def bodies(messages: Sequence[Stored]) -> list[Any]:
    return [json.loads(stored.message.body) for stored in messages]


def ids(messages: Sequence[Stored]) -> list[str]:
    return [stored.message.id for stored in messages]


def leases(messages: Sequence[Stored]) -> list[Lease]:
    return [Lease(stored.message.id, stored.receipt or "") for stored in messages]


async def send(broker: Broker, queue: str, *values: Any, **fields: Any) -> list[str]:
    return await broker.send(queue, [draft(value, **fields) for value in values])


async def drain(broker: Broker, queue: str, **asked: Any) -> list[Any]:
    """Receive and ack until there is nothing more, one at a time, and return the bodies in order."""
    found: list[Any] = []
    while got := await broker.receive(queue, max=1, **asked):
        found += bodies(got)
        assert await broker.ack(queue, leases(got)) == ["done"]
    return found


async def states(broker: Broker, queue: str) -> tuple[int, int, int]:
    """Ready, delayed, leased."""
    counts = (await broker.queue(queue)).counts
    return counts.ready, counts.delayed, counts.leased


async def waiting(broker: Broker, call: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a call that waits for messages and let it come to rest."""
    before = len(sleepers(broker))
    task = asyncio.create_task(call)
    while len(sleepers(broker)) == before:
        assert not task.done()
        await asyncio.sleep(0.001)
    await settle(broker)
    return task


def sleepers(broker: Broker) -> list[bool]:
    """For each call that waits, whether it sleeps; if not it is looking again, which a database may take a while."""
    waiting: list[Sleeper] = [waiter for queue in broker.waiters._queues.values() for waiter in queue]
    waiting += [one for queue in broker.results._waiting.values() for each in queue.values() for one in each]
    return [waiter._future is not None and not waiter._future.done() for waiter in waiting]


async def settle(broker: Broker) -> None:
    """Let all that was woken look, and sleep again if it found nothing."""
    await asyncio.sleep(0)
    while not all(sleepers(broker)):  # noqa: ASYNC110  nobody tells when a waiter sleeps
        await asyncio.sleep(0.001)


@contextmanager
def case(*values: object) -> Iterator[None]:
    """One of many cases in one test, where a broker for each would cost more than the cases do; a failure names it."""
    try:
        yield
    except BaseException as error:  # pytest's own failures are no Exception
        error.add_note(f"case: {', '.join(reprlib.repr(value) for value in values)}")
        raise


def wait_for(true: Callable[[], object], seconds: float = 20) -> None:
    """Wait until something is so, though nobody tells when."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
