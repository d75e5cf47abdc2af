"""`miniq ack`, `release`, `extend`: what becomes of a message that was received, by its receipt."""

from __future__ import annotations

import click

from miniq.api.operations import Ack, Extend, Release
from miniq.cli.flags import SECONDS, Target, as_json, target
from miniq.cli.output import json_line
from miniq.client.delivery import check_held, moment
from miniq.message import Lease


@click.command()
@click.argument("queue")
@click.argument("id")
@click.argument("receipt")
@as_json
@target
def ack(at: Target, queue: str, id: str, receipt: str, as_json: bool) -> None:
    """Remove a message that was processed.

    Says `missing` if it is gone already, which is no error; fails if somebody else has it by now.

    \b
    Example:
      miniq receive emails            # prints id, receipt and body
      miniq ack emails ID RECEIPT
    """
    with at.open() as client:
        outcome = client.perform(Ack(queue, [Lease(id, receipt)]))[0]
    if outcome != "missing":
        check_held(outcome, queue, id)
    told = "acked" if outcome == "done" else "missing"
    json_line({"id": id, "outcome": told}) if as_json else click.echo(told)


@click.command()
@click.argument("queue")
@click.argument("id")
@click.argument("receipt")
@click.option("--delay", type=SECONDS, default=0.0, help="Ready again after so long. [default: at once]")
@as_json
@target
def release(at: Target, queue: str, id: str, receipt: str, delay: float, as_json: bool) -> None:
    """Give a message back, so that another consumer gets it.

    \b
    Example:
      miniq release emails ID RECEIPT --delay 1m
    """
    with at.open() as client:
        outcome = client.perform(Release(queue, [Lease(id, receipt)], delay))[0]
    check_held(outcome, queue, id)
    json_line({"id": id, "outcome": "released"}) if as_json else click.echo("released")


@click.command()
@click.argument("queue")
@click.argument("id")
@click.argument("receipt")
@click.option("--visibility-timeout", type=SECONDS, help="From now on. [default: the queue's]")
@as_json
@target
def extend(at: Target, queue: str, id: str, receipt: str, visibility_timeout: float | None, as_json: bool) -> None:
    """Let a lease run longer, and print when it ends.

    \b
    Example:
      miniq extend emails ID RECEIPT --visibility-timeout 10m
    """
    with at.open() as client:
        reply = client.perform(Extend(queue, [Lease(id, receipt)], visibility_timeout))
    check_held(reply.outcomes[0], queue, id)
    until = moment(reply.until).isoformat().replace("+00:00", "Z")
    json_line({"id": id, "outcome": "extended", "lease_until": until}) if as_json else click.echo(until)
