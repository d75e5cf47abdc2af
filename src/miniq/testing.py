"""Help for tests of programs that use `miniq.App`: run what was sent, in this process.

    app = miniq.App("memory:")
    welcome.send(to="ann@example.com")
    assert miniq.testing.drain(app) == 1

The fixture `miniq_app` of pytest gives an app on a broker in memory.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable
from time import monotonic
from typing import Any

from msgspec import UNSET

from miniq.api.operations import Receive
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.client.delivery import HELD
from miniq.client.failure import Reject
from miniq.errors import QueueNotFound
from miniq.worker.app import App
from miniq.worker.jobs import Failure, Job, Trial
from miniq.worker.sources import Source

__all__ = ["drain"]

BULK = 100
LEASE = 3600.0


def drain(app: App, queues: Iterable[str] | None = None, *, raise_errors: bool = True, max_jobs: int = 10_000) -> int:
    """Run the tasks and handlers of an app, one after the other, until no message is ready in its queues; returns how
    many ran: a batch of a handler counts as one. Messages that they send are handled too; delayed ones are not waited
    for.

    The first exception of a handler is raised again, after its message was settled as a worker would have done; with
    `raise_errors=False` it is not. `Reject` is never raised: look for the dead letter.
    """
    names = app.queues if queues is None else list(queues)
    client = app.client
    for name in names:
        if settings := app.settings.get(name):
            client.queue(name).configure(**settings)
    hooks = app.hooks()
    sources = [app.source(client.queue(name), hooks) for name in names]
    ran = 0
    while jobs := [job for source in sources for job in _receive(source)]:
        for job in jobs:
            if ran >= max_jobs:
                raise RuntimeError(f"{max_jobs} jobs ran, and there are more: does a task send itself?")
            ran += 1
            error = _run(app, job)
            if error is not None and raise_errors and not isinstance(error, Reject):
                raise error
    return ran


def _receive(source: Source[Any]) -> list[Job[Message]]:
    try:
        leased = source.queue._perform(Receive(source.queue.name, max(BULK, source.unit), visibility_timeout=LEASE))
    except QueueNotFound:
        return []
    source.result_bytes = leased.result_bytes
    return source.jobs([Message(source.queue, stored) for stored in leased], monotonic()) + source.rest()


def _run(app: App, job: Job[Message]) -> BaseException | None:
    """Run a job, and settle its messages; returns the exception of the handler."""
    job.begin(monotonic())
    trial = Trial(job, quiet=True)
    if job.handler.is_coroutine:
        _finish(_call_async(app, job, trial))
    else:
        with trial:
            args, kwargs = trial.arguments()
            result = job.handler.function(*args, **kwargs)
            trial.result = _finish(result) if isinstance(result, Coroutine) else result
    queue = job.source.queue
    held = [message for message in trial.messages if message._state is HELD]
    if held and trial.verdict == "ack":
        queue.ack(held, None if trial.encoded is UNSET else [trial.encoded])
    elif held and trial.failure is not None:
        _fail(queue, held, trial.failure)
    elif held:
        queue.release(held)
    for message, failure in trial.apart:
        _fail(queue, [message], failure)
    return trial.fatal or trial.attempt.error


async def _call_async(app: App, job: Job[Message], trial: Trial) -> None:
    try:
        await app.client_async()  # for the messages that it is given
        with trial:
            args, kwargs = trial.arguments()
            trial.result = await job.handler.function(*args, **kwargs)
    finally:
        await app.leave_loop()


def _fail(queue: Queue, messages: list[Message], failure: Failure) -> None:
    queue.fail(messages, failure.error, None if failure.dead else failure.delay, failure.dead)


def _finish(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end, also where an event loop runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((asyncio.run(work), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, name="miniq-drain")
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result
