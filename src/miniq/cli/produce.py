"""`miniq produce`: demo workers that send."""

from __future__ import annotations

import secrets
import time
from itertools import count as numbers

import click

from miniq.cli.crew import Crew, Worker, count_option, crew_flags
from miniq.cli.flags import RATE, SIZE, Whole
from miniq.cli.processes import sleep_until
from miniq.client._sync.queue import Queue
from miniq.client.bodies import draft
from miniq.errors import QueueFull, StoreUnavailable


@click.command()
@click.argument("queue")
@count_option
@click.option("--rate", type=RATE, help="Messages per second and worker. [default: 1; unlimited with --count]")
@click.option("--size", type=SIZE, default=100, show_default=True, help="Approximate size of a body.")
@click.option("--batch", type=Whole(1, 1000), default=1, show_default=True, help="Messages per send.")
@crew_flags
def produce(crew: Crew, queue: str, rate: float | None, size: int, batch: int) -> None:
    """Send demo messages, in one process or several.

    Prints what was sent, until Ctrl-C, SIGTERM or --count. Each worker is a process. If it is unclear whether a
    message arrived, it is sent again with the same dedup id, so that it is stored once.

    \b
    Examples:
      miniq produce work --rate 5
      miniq produce work --workers 3 --count 10000 --batch 100 --quiet
    """
    if rate is None and crew.count is None:
        rate = 1.0

    def work(queue: Queue, worker: Worker) -> None:
        began = time.monotonic()
        try:
            send_batches(queue, worker, crew.count, rate, size, batch, began)
        finally:
            worker.totals.seconds = time.monotonic() - began

    crew.run("producer", queue, work, ("sent",))


def send_batches(
    queue: Queue, worker: Worker, count: int | None, rate: float | None, size: int, batch: int, began: float
) -> None:
    """Send until the count is reached or the worker is stopped."""
    run = secrets.token_hex(4)  # distinguishes the dedup ids of this run from those of other runs
    for first in numbers(0, batch):
        if count is not None and first >= count:
            return
        if rate is not None:
            sleep_until(began + first / rate, worker.stop)
        last = first + batch if count is None else min(first + batch, count)
        drafts = [
            draft(body(number, worker.name, size), dedup_id=f"{worker.name}-{run}-{number}")
            for number in range(first, last)
        ]
        ids: list[str] = []
        while not ids:
            if worker.stop.is_set():
                return
            try:
                ids = queue.send_many(drafts)
            except (StoreUnavailable, QueueFull) as error:
                worker.retry_later(error)
        worker.totals.events["sent"] += len(ids)
        if not worker.quiet:
            for number, id in enumerate(ids, first + 1):
                worker.show("sent", id, f"n={number}", n=number)


def body(number: int, sender: str, size: int) -> dict[str, object]:
    """A body of about `size` bytes."""
    fields: dict[str, object] = {"n": number + 1, "from": sender}
    missing = size - len(f'{{"n":{number + 1},"from":"{sender}","text":""}}')
    return fields | {"text": "x" * missing} if missing > 0 else fields
