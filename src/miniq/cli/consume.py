"""`miniq consume`: demo workers that receive, work for a while, and ack or fail."""

from __future__ import annotations

import random
import time

import click

from miniq.cli.crew import PAUSE, Crew, Worker, count_option, crew_flags
from miniq.cli.flags import SECONDS, Whole
from miniq.cli.output import body_text, cut
from miniq.cli.processes import sleep_until
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.errors import QueueNotFound, StoreUnavailable

WAIT = 1.0
"""Seconds of one long poll; also how long Ctrl-C may take."""
SHOWN = 60
"""Characters of a body that are shown."""


@click.command()
@click.argument("queue")
@count_option
@click.option("--idle", type=SECONDS, help="Exit after this long without a message.")
@click.option("--work", type=SECONDS, default=0.0, help="How long the work on each message takes. [default: 0]")
@click.option("--fail-rate", type=click.FloatRange(0, 1), default=0.0, help="Share of messages that fail. [default: 0]")
@click.option("--batch", type=Whole(1, 1000), default=1, show_default=True, help="Messages per receive.")
@click.option("--visibility-timeout", type=SECONDS, help="Length of a lease. [default: the queue's]")
@crew_flags
def consume(
    crew: Crew,
    queue: str,
    idle: float | None,
    work: float,
    fail_rate: float,
    batch: int,
    visibility_timeout: float | None,
) -> None:
    """Receive and ack messages, in one process or several.

    Prints what happens to each message, until Ctrl-C, SIGTERM, --count or --idle. Each worker is a process. A
    message that fails is delivered again after the time that the queue's retry policy sets.

    \b
    Examples:
      miniq consume work
      miniq consume work --workers 3 --work 200ms --fail-rate 0.1
      miniq consume work --batch 100 --idle 2 --quiet
    """

    def receive(queue: Queue, worker: Worker) -> None:
        """Until the count is reached, the queue was idle for long enough, or the worker is stopped."""
        began = busy = time.monotonic()
        wait = WAIT if idle is None else min(WAIT, idle)
        while not worker.stop.is_set():
            left = batch if crew.count is None else crew.count - worker.totals.events["acked"]
            if left <= 0:
                break
            messages: list[Message] = []
            try:
                messages = queue.receive(min(batch, left), wait, visibility_timeout, worker.name)
                handle(queue, worker, messages, work, fail_rate)
            except QueueNotFound:
                time.sleep(PAUSE)
            except StoreUnavailable as error:
                messages = []
                worker.retry_later(error)
            if messages:
                busy = time.monotonic()
            elif idle is not None and time.monotonic() - busy >= idle:
                break
        worker.totals.seconds = busy - began

    crew.run("consumer", queue, receive, ("acked", "failed", "lost"))


def handle(queue: Queue, worker: Worker, messages: list[Message], work: float, fail_rate: float) -> None:
    """Work on messages one by one. When the worker is stopped, those not yet done are released."""
    good: list[Message] = []
    bad: list[Message] = []
    for message in messages:
        sleep_until(time.monotonic() + work, worker.stop)
        if worker.stop.is_set():
            break
        failed = random.random() < fail_rate  # noqa: S311  not a secret
        (bad if failed else good).append(message)
    for message, outcome in zip(good, queue.ack(good), strict=True):
        report(worker, "acked" if outcome == "done" else "lost", message)
    for message, done in zip(bad, queue.fail(bad, "chosen by --fail-rate"), strict=True):
        report(worker, "failed" if done.outcome in ("retried", "dead") else "lost", message)
    queue.release(messages[len(good) + len(bad) :])


def report(worker: Worker, event: str, message: Message) -> None:
    """Count an event, and print it unless --quiet is given."""
    worker.totals.events[event] += 1
    if not worker.quiet:
        again = f"  receive {message.receives}" if message.receives > 1 else ""
        text = cut(body_text(message), SHOWN) + again
        worker.show(event, message.id, text, receives=message.receives)
