"""`miniq consumers`: who consumes a queue."""

from __future__ import annotations

import time
from collections.abc import Iterable

import click

from miniq.api import codec, shapes
from miniq.cli.flags import Target, as_json, target
from miniq.cli.output import age, json_line, table
from miniq.consumer import Consumer

HEADS = ("CONSUMER", "IN FLIGHT", "RECEIVED", "ACKED", "FAILED", "LAST SEEN")
UNNAMED = "(unnamed)"
NO_CONSUMER = "no consumer in the last five minutes"


@click.command()
@click.argument("queue")
@as_json
@target
def consumers(at: Target, queue: str, as_json: bool) -> None:
    """Show who consumes a queue.

    These are the consumers that received, or asked for messages, in the last five minutes, and those that hold
    messages. Consumers without a name are shown together. The counts start when a broker first sees a consumer.

    \b
    Examples:
      miniq consumers emails
      miniq consumers emails --json | jq -r 'select(.in_flight > 0) | .name'
    """
    with at.open() as client:
        found = client.queue(queue).consumers()
    if as_json:
        for consumer in found:
            json_line(codec.to_wire(shapes.WireConsumer, consumer))
    elif not found:
        click.echo(NO_CONSUMER)
    else:
        table(HEADS, rows(found), numbers=(1, 2, 3, 4, 5))


def rows(consumers: Iterable[Consumer]) -> list[list[str]]:
    """The cells of a table of consumers."""
    now = time.time()
    return [
        [
            UNNAMED if one.name is None else one.name,
            *map(str, (one.in_flight, one.received, one.acked, one.failed)),
            _ago(now - one.last_seen.timestamp()),
        ]
        for one in consumers
    ]


def _ago(seconds: float) -> str:
    shown = age(seconds)
    return shown if shown == "now" else f"{shown} ago"
