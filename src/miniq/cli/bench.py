"""`miniq bench`: a short measurement of the speed of a broker."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import click

from miniq.api.codec import OCTETS
from miniq.cli.flags import SECONDS, SIZE, Target, as_json, target
from miniq.cli.output import json_line, table
from miniq.cli.root import say
from miniq.client._sync.queue import Queue
from miniq.errors import MiniQError
from miniq.message import Draft

BATCHES = (1, 100, 1000)


Result = dict[str, Any]
"""One line of the table."""


@click.command()
@click.option(
    "--seconds", type=SECONDS, default=1.0, help="Approximate duration of each of the six measurements. [default: 1]"
)
@click.option("--size", type=SIZE, default=1024, show_default=True, help="Size of a body.")
@as_json
@target
def bench(at: Target, seconds: float, size: int, as_json: bool) -> None:
    """Measure the speed of the broker from this machine.

    Sends, and receives and acks, 1, 100 and 1000 messages at a time. One client makes one call at a time, in a queue
    of its own that is deleted at the end. P50 and P99 are the times of a call; for `receive+ack`, of both calls.

    \b
    Examples:
      miniq bench
      miniq bench --url ./miniq-data --size 64k --json
    """
    name = f"bench-{secrets.token_hex(8)}"
    results: list[Result] = []
    with at.open(patience=5.0) as client:
        queue = client.queue(name)
        queue.configure(visibility_timeout=600.0)
        try:
            for batch in BATCHES:
                if batch * size > 8 * 1024 * 1024:
                    say(f"skipped batches of {batch}: too large for one call")
                    continue
                results += measure(queue, batch, size, seconds)
        finally:
            with suppress(MiniQError):
                queue.delete()
    if as_json:
        for result in results:
            json_line(result)
        return
    table(
        ("OPERATION", "BATCH", "MESSAGES/S", "P50 MS", "P99 MS"),
        [
            (r["operation"], r["batch"], f"{r['rate']:,.0f}", f"{r['p50_ms']:.2f}", f"{r['p99_ms']:.2f}")
            for r in results
        ],
        numbers=(1, 2, 3, 4),
    )


def measure(queue: Queue, batch: int, size: int, seconds: float) -> list[Result]:
    """Send for a while, then receive and ack the messages."""
    drafts = [Draft(secrets.token_bytes(size), OCTETS)] * batch

    def receive() -> int:
        return len(queue.ack(queue.receive(batch)))

    sent = clocked("send", batch, lambda: len(queue.send_many(drafts)), seconds)
    received = clocked("receive+ack", batch, receive, seconds)
    queue.purge()
    return [sent, received]


def clocked(operation: str, batch: int, call: Callable[[], int], seconds: float) -> Result:
    """Call until the time is over or no message is left; the first call is a warm-up."""
    call()
    times: list[float] = []
    messages = 0
    began = now = time.perf_counter()
    while now - began < seconds:
        count = call()
        after = time.perf_counter()
        if not count:
            break
        messages += count
        times.append(after - now)
        now = after
    times.sort()
    spent = now - began
    return {
        "operation": operation,
        "batch": batch,
        "messages": messages,
        "seconds": round(spent, 3),
        "rate": round(messages / spent, 1) if spent else 0.0,
        "p50_ms": round(1000 * quantile(times, 0.5), 3),
        "p99_ms": round(1000 * quantile(times, 0.99), 3),
    }


def quantile(ordered: list[float], share: float) -> float:
    """The value below which a share of the values lies."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0
