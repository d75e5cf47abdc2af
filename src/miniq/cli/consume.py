"""`miniq consume`: demo workers that receive, work a while, and ack or fail."""

from __future__ import annotations

import os
import random
import time
from typing import Literal

import click

from miniq.cli.crew import Totals, finish, run_crew, split, write_totals
from miniq.cli.flags import SECONDS, Target, as_json, target
from miniq.cli.output import body_text, json_line, plural
from miniq.cli.processes import Stop, reachable
from miniq.cli.root import say
from miniq.client._sync.client import Client
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.errors import QueueNotFound, StoreUnavailable

PATIENCE = 2.0
PAUSE = 0.5
"""Seconds before the next attempt while the broker is unreachable or the queue does not exist yet."""
WAIT = 1.0
"""Seconds of one long poll; also how long Ctrl-C may take."""
SHOWN = 60
"""Characters of a body that are shown."""


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(0), help="Total number of messages. [default: until Ctrl-C]")
@click.option("--idle", type=SECONDS, help="Exit after this long without a message.")
@click.option("--work", type=SECONDS, default=0.0, help="How long the work on each message takes. [default: 0]")
@click.option("--fail-rate", type=click.FloatRange(0, 1), default=0.0, help="Share of messages that fail. [default: 0]")
@click.option("--batch", type=click.IntRange(1, 1000), default=1, show_default=True, help="Messages per receive.")
@click.option("--visibility-timeout", type=SECONDS, help="Length of a lease. [default: the queue's]")
@click.option("--workers", type=click.IntRange(1, 100), default=1, show_default=True, help="Number of processes.")
@click.option("--quiet", is_flag=True, help="Print the totals only.")
@click.option("--name", hidden=True)
@click.option("--totals", hidden=True)
@as_json
@target
def consume(
    at: Target,
    queue: str,
    count: int | None,
    idle: float | None,
    work: float,
    fail_rate: float,
    batch: int,
    visibility_timeout: float | None,
    workers: int,
    quiet: bool,
    name: str | None,
    totals: str | None,
    as_json: bool,
) -> None:
    """Receive and ack messages, in one process or several.

    Prints what was done, until Ctrl-C, --count or --idle. Each worker is a process. A message that fails is
    released and delivered again.

    \b
    Examples:
      miniq consume work
      miniq consume work --workers 3 --work 200ms --fail-rate 0.1
      miniq consume work --batch 100 --idle 2 --quiet
    """
    if workers == 1:
        worker = Consumer(name or f"consumer-{os.getpid()}", work, fail_rate, quiet, as_json)
        stop = Stop()
        with at.open(PATIENCE) as client:
            worker.run(client, queue, count, idle, batch, visibility_timeout, stop)
        if totals is not None:
            write_totals(totals, worker.totals)
            return
        show(worker.totals, as_json)
        return
    flags = ["--work", str(work), "--fail-rate", str(fail_rate), "--batch", str(batch)]
    flags += [] if idle is None else ["--idle", str(idle)]
    flags += [] if visibility_timeout is None else ["--visibility-timeout", str(visibility_timeout)]
    flags += ["--quiet"] * quiet + ["--json"] * as_json
    commands = [
        ["consume", queue, "--name", f"consumer-{place}", *flags, *([] if part is None else ["--count", str(part)])]
        for place, part in enumerate(split(count, workers), 1)
    ]
    with reachable(at) as broker:
        broker.open(PATIENCE).close()
        together, failures = run_crew(broker, commands)
    show(together, as_json)
    finish(failures)


class Consumer:
    """One worker."""

    def __init__(self, name: str, work: float, fail_rate: float, quiet: bool, as_json: bool) -> None:
        self.totals = Totals()
        self._name = name
        self._work = work
        self._fail_rate = fail_rate
        self._quiet = quiet
        self._as_json = as_json

    def run(
        self,
        client: Client,
        name: str,
        count: int | None,
        idle: float | None,
        batch: int,
        visibility_timeout: float | None,
        stop: Stop,
    ) -> None:
        """Work until the count is reached, the queue was idle for long enough, or the worker is stopped."""
        queue = client.queue(name)
        began = busy = time.monotonic()
        while not stop.is_set() and (count is None or self.totals.acked < count):
            left = batch if count is None else min(batch, count - self.totals.acked)
            wait = WAIT if idle is None else min(WAIT, idle)
            try:
                some = queue.receive(left, wait, visibility_timeout, self._name)
                self._handle(queue, some, stop)
            except (StoreUnavailable, QueueNotFound) as error:
                if not isinstance(error, QueueNotFound):
                    say(f"{self._name}: {error.text}; trying again")
                some = []
                time.sleep(PAUSE)
            if some:
                busy = time.monotonic()
            elif idle is not None and time.monotonic() - busy >= idle:
                break
        self.totals.seconds = busy - began

    def _handle(self, queue: Queue, some: list[Message], stop: Stop) -> None:
        """Work on messages one by one. When the worker is stopped, those not yet begun are released."""
        good: list[Message] = []
        bad: list[Message] = []
        begun = 0
        for message in some:
            if stop.is_set():
                break
            begun += 1
            time.sleep(self._work)
            failed = random.random() < self._fail_rate  # noqa: S311  not a secret
            (bad if failed else good).append(message)
        for message, outcome in zip(good, queue.ack(good), strict=True):
            self._tell("acked" if outcome == "done" else "lost", message)
        for message, outcome in zip(bad, queue.release(bad), strict=True):
            self._tell("failed" if outcome == "done" else "lost", message)
        queue.release(some[begun:])

    def _tell(self, event: Literal["acked", "failed", "lost"], message: Message) -> None:
        setattr(self.totals, event, getattr(self.totals, event) + 1)
        if self._quiet:
            return
        if self._as_json:
            json_line({"worker": self._name, "event": event, "id": message.id, "receives": message.receives})
            return
        text = body_text(message)
        shown = text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"
        again = f"  receive {message.receives}" if message.receives > 1 else ""
        click.echo(f"{self._name}  {event:<6}  {message.id}  {shown}{again}")


def show(totals: Totals, as_json: bool) -> None:
    """The last line."""
    rate = totals.acked / totals.seconds if totals.seconds > 0 else 0.0
    if as_json:
        seconds = round(totals.seconds, 3)
        json_line(
            {
                "acked": totals.acked,
                "failed": totals.failed,
                "lost": totals.lost,
                "seconds": seconds,
                "rate": round(rate, 1),
            }
        )
        return
    failed = f", {totals.failed} failed and were released" if totals.failed else ""
    lost = f", {totals.lost} went to other consumers meanwhile" if totals.lost else ""
    click.echo(
        f"acked {plural(totals.acked, 'message')}{failed}{lost} in {totals.seconds:.1f} s, {rate:.0f} per second"
    )
