"""`miniq ack`, `release`, `fail`, `extend`: a received message, settled by its receipt."""

from __future__ import annotations

from collections.abc import Callable

import click
import msgspec
from msgspec import UNSET, Raw

from miniq.api.operations import Ack, Extend, Fail, Release
from miniq.cli.flags import SECONDS, Target, as_json, target
from miniq.cli.output import result
from miniq.client.delivery import check_held, moment
from miniq.message import AckedLease, Lease


def of_lease(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments QUEUE, ID and RECEIPT, `--json`, and the broker."""
    command = as_json(target(command))
    for name in ("receipt", "id", "queue"):
        command = click.argument(name)(command)
    return command


@click.command()
@click.option("--result", "given", metavar="JSON", help="What the work came to; text that is not JSON is a string.")
@of_lease
def ack(at: Target, queue: str, id: str, receipt: str, given: str | None, as_json: bool) -> None:
    """Remove a message that was processed.

    Prints `missing` if it was already removed, which is not an error; fails if another consumer has received it since.
    A queue whose setting `results` is not 0 keeps the result, for `miniq result`; elsewhere it is dropped.

    \b
    Examples:
      miniq receive emails            # prints id, receipt and body
      miniq ack emails ID RECEIPT
      miniq ack emails ID RECEIPT --result '{"sent": true}'
    """
    with at.open() as client:
        outcome = client.perform(Ack(queue, [AckedLease(id, receipt, UNSET if given is None else _json(given))]))[0]
    if outcome != "missing":
        check_held(outcome, queue, id)
    text = "acked" if outcome == "done" else "missing"
    result(as_json, {"id": id, "outcome": text}, text)


def _json(text: str) -> Raw:
    try:
        msgspec.json.decode(text, type=Raw)
    except (ValueError, RecursionError):
        return Raw(msgspec.json.encode(text))
    return Raw(text.encode())


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
@click.option("--error", default="", metavar="TEXT", help="Why it could not be processed, up to 4 KiB.")
@click.option("--delay", type=SECONDS, help="Time until it is ready again. [default: the queue's retry policy]")
@click.option("--dead", is_flag=True, help="Do not try again: move it to the dead-letter queue.")
@of_lease
def fail(
    at: Target, queue: str, id: str, receipt: str, error: str, delay: float | None, dead: bool, as_json: bool
) -> None:
    """Report that a message could not be processed. Prints what becomes of it.

    It is tried again later, or moved to the dead-letter queue after `max_receives`.

    \b
    Examples:
      miniq fail emails ID RECEIPT --error "SMTP server unreachable"
      miniq fail emails ID RECEIPT --error "no such address" --dead
    """
    with at.open() as client:
        failed = client.perform(Fail(queue, [Lease(id, receipt)], error, delay, dead))[0]
    if failed.outcome == "stale" or failed.outcome == "missing":
        check_held(failed.outcome, queue, id)
    record = {"id": id, "outcome": str(failed.outcome)}
    text = record["outcome"]
    if failed.visible_at is not None:
        record["visible_at"] = moment(failed.visible_at).isoformat().replace("+00:00", "Z")
        text = f"retried at {record['visible_at']}"
    result(as_json, record, text)


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
