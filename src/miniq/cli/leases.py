"""`miniq ack`, `release`, `extend`: a received message, settled by its receipt."""

from __future__ import annotations

from collections.abc import Callable

import click

from miniq.api.operations import Ack, Extend, Release
from miniq.cli.flags import SECONDS, Target, as_json, target
from miniq.cli.output import result
from miniq.client.delivery import check_held, moment
from miniq.message import Lease


def of_lease(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments QUEUE, ID and RECEIPT, `--json`, and the broker."""
    command = as_json(target(command))
    for name in ("receipt", "id", "queue"):
        command = click.argument(name)(command)
    return command


@click.command()
@of_lease
def ack(at: Target, queue: str, id: str, receipt: str, as_json: bool) -> None:
    """Remove a message that was processed.

    Prints `missing` if it was already removed, which is not an error; fails if another consumer has received it since.

    \b
    Example:
      miniq receive emails            # prints id, receipt and body
      miniq ack emails ID RECEIPT
    """
    with at.open() as client:
        outcome = client.perform(Ack(queue, [Lease(id, receipt)]))[0]
    if outcome != "missing":
        check_held(outcome, queue, id)
    text = "acked" if outcome == "done" else "missing"
    result(as_json, {"id": id, "outcome": text}, text)


@click.command()
@click.option("--delay", type=SECONDS, default=0.0, help="Time until it is ready again. [default: at once]")
@of_lease
def release(at: Target, queue: str, id: str, receipt: str, delay: float, as_json: bool) -> None:
    """Release a message, so that another consumer can receive it.

    \b
    Example:
      miniq release emails ID RECEIPT --delay 1m
    """
    with at.open() as client:
        outcome = client.perform(Release(queue, [Lease(id, receipt)], delay))[0]
    check_held(outcome, queue, id)
    result(as_json, {"id": id, "outcome": "released"}, "released")


@click.command()
@click.option("--visibility-timeout", type=SECONDS, help="New length of the lease, from now. [default: the queue's]")
@of_lease
def extend(at: Target, queue: str, id: str, receipt: str, visibility_timeout: float | None, as_json: bool) -> None:
    """Extend a lease, and print when it ends.

    \b
    Example:
      miniq extend emails ID RECEIPT --visibility-timeout 10m
    """
    with at.open() as client:
        reply = client.perform(Extend(queue, [Lease(id, receipt)], visibility_timeout))
    check_held(reply.outcomes[0], queue, id)
    until = moment(reply.until).isoformat().replace("+00:00", "Z")
    result(as_json, {"id": id, "outcome": "extended", "lease_until": until}, until)
