"""`miniq produce`: demo workers that send."""

from __future__ import annotations

import os
import secrets
import time
from itertools import count as numbers

import click

from miniq.cli.crew import Totals, finish, run_crew, split, write_totals
from miniq.cli.flags import RATE, SIZE, Target, as_json, target
from miniq.cli.output import json_line, plural
from miniq.cli.processes import Stop, reachable
from miniq.cli.root import say
from miniq.client._sync.client import Client
from miniq.client.bodies import draft
from miniq.errors import QueueFull, StoreUnavailable

PATIENCE = 2.0
PAUSE = 0.5
"""Seconds before the next attempt while the broker is unreachable or the queue is full."""


@click.command()
@click.argument("queue")
@click.option("--count", type=click.IntRange(0), help="Total number of messages. [default: until Ctrl-C]")
@click.option("--rate", type=RATE, help="Messages per second and worker. [default: 1; unlimited with --count]")
@click.option("--size", type=SIZE, default=100, show_default=True, help="Approximate size of a body.")
@click.option("--batch", type=click.IntRange(1, 1000), default=1, show_default=True, help="Messages per send.")
@click.option("--workers", type=click.IntRange(1, 100), default=1, show_default=True, help="Number of processes.")
@click.option("--quiet", is_flag=True, help="Print the totals only.")
@click.option("--name", hidden=True)
@click.option("--totals", hidden=True)
@as_json
@target
def produce(
    at: Target,
    queue: str,
    count: int | None,
    rate: float | None,
    size: int,
    batch: int,
    workers: int,
    quiet: bool,
    name: str | None,
    totals: str | None,
    as_json: bool,
) -> None:
    """Send demo messages, in one process or several.

    Prints what was sent, until Ctrl-C or --count. Each worker is a process. If it is unclear whether a message
    arrived, it is sent again with the same dedup id, so that it is stored once.

    \b
    Examples:
      miniq produce work --rate 5
      miniq produce work --workers 3 --count 10000 --batch 100 --quiet
    """
    if rate is None and count is None:
        rate = 1.0
    if workers == 1:
        run = Producer(queue, name or f"producer-{os.getpid()}", size, quiet, as_json)
        stop = Stop()
        with at.open(PATIENCE) as client:
            run.work(client, count, rate, batch, stop)
        if totals is not None:
            write_totals(totals, run.totals)
            return
        show(run.totals, as_json)
        return
    flags = ["--size", str(size), "--batch", str(batch), *(["--rate", str(rate)] if rate else [])]
    flags += ["--quiet"] * quiet + ["--json"] * as_json
    commands = [
        ["produce", queue, "--name", f"producer-{place}", *flags, *([] if part is None else ["--count", str(part)])]
        for place, part in enumerate(split(count, workers), 1)
    ]
    with reachable(at) as broker:
        broker.open(PATIENCE).close()
        together, failures = run_crew(broker, commands)
    show(together, as_json)
    finish(failures)


class Producer:
    """One worker."""

    def __init__(self, queue: str, name: str, size: int, quiet: bool, as_json: bool) -> None:
        self.totals = Totals()
        self._queue = queue
        self._name = name
        self._size = size
        self._quiet = quiet
        self._as_json = as_json
        self._run = secrets.token_hex(4)
        """Tells this run from others in dedup ids."""

    def work(self, client: Client, count: int | None, rate: float | None, batch: int, stop: Stop) -> None:
        """Send until the count is reached or the worker is stopped."""
        queue = client.queue(self._queue)
        began = time.monotonic()
        try:
            for first in numbers(0, batch):
                if count is not None and first >= count:
                    return
                if rate is not None and not _sleep_until(began + first / rate, stop):
                    return
                last = first + batch if count is None else min(first + batch, count)
                bodies = [self._body(number) for number in range(first, last)]
                drafts = [
                    draft(body, dedup_id=f"{self._name}-{self._run}-{number}")
                    for number, body in enumerate(bodies, first)
                ]
                while not stop.is_set():
                    try:
                        ids = queue.send_many(drafts)
                    except (StoreUnavailable, QueueFull) as error:
                        say(f"{self._name}: {error.text}; trying again")
                        time.sleep(PAUSE)
                        continue
                    self._tell(ids, bodies)
                    break
                if stop.is_set():
                    return
        finally:
            self.totals.seconds = time.monotonic() - began

    def _body(self, number: int) -> dict[str, object]:
        body: dict[str, object] = {"n": number + 1, "from": self._name}
        missing = self._size - len(f'{{"n":{number + 1},"from":"{self._name}","text":""}}')
        if missing > 0:
            body["text"] = "x" * missing
        return body

    def _tell(self, ids: list[str], bodies: list[dict[str, object]]) -> None:
        self.totals.sent += len(ids)
        if self._quiet:
            return
        for id, body in zip(ids, bodies, strict=True):
            if self._as_json:
                json_line({"worker": self._name, "event": "sent", "id": id, "n": body["n"]})
            else:
                click.echo(f"{self._name}  sent    {id}  n={body['n']}")


def _sleep_until(moment: float, stop: Stop) -> bool:
    """Wait until a moment; False if the worker is stopped meanwhile."""
    while (left := moment - time.monotonic()) > 0:
        if stop.is_set():
            return False
        time.sleep(min(left, 0.1))
    return not stop.is_set()


def show(totals: Totals, as_json: bool) -> None:
    """The last line."""
    rate = totals.sent / totals.seconds if totals.seconds > 0 else 0.0
    if as_json:
        json_line({"sent": totals.sent, "seconds": round(totals.seconds, 3), "rate": round(rate, 1)})
    else:
        click.echo(f"sent {plural(totals.sent, 'message')} in {totals.seconds:.1f} s, {rate:.0f} per second")
