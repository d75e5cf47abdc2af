"""`miniq result`: what became of a message."""

from __future__ import annotations

import sys
from time import monotonic

import click
import msgspec

from miniq.cli import output
from miniq.cli.flags import SECONDS, Target, as_json, target

LONGEST_POLL = 20.0
"""Seconds that one call waits."""


@click.command()
@click.argument("queue")
@click.argument("id")
@click.option("--wait", type=SECONDS, default=0.0, help="How long to wait until it is finished. [default: not at all]")
@as_json
@target
def result(at: Target, queue: str, id: str, wait: float, as_json: bool) -> None:
    """Print what became of a message, and its result.

    The first line is `waiting`, `running`, `done`, `dead` or `unknown`; the result or the error follows. Ends with 1 if
    the message is dead or unknown, or is not finished after --wait. Needs a queue that keeps results
    (`miniq queues set QUEUE --results 1h`).

    \b
    Example:
      miniq result sums "$(miniq send sums '[1, 2]')" --wait 30s
    """
    deadline = monotonic() + wait
    with at.open() as client:
        while True:
            left = min(max(0.0, deadline - monotonic()), LONGEST_POLL)
            found = client.queue(queue).result(id, wait=round(left, 3))
            if found.status not in ("waiting", "running") or monotonic() >= deadline:
                break
    record = {name: value for name, value in found._asdict().items() if value is not None or name == "result"}
    if found.status != "done":
        del record["result"]
    if found.finished_at is not None:
        record["finished_at"] = found.finished_at.isoformat().replace("+00:00", "Z")
    lines: list[str] = [found.status]
    if found.status == "done":
        lines.append(msgspec.json.encode(found.result).decode())
    elif found.error is not None:
        lines.append(found.error)
    output.result(as_json, record, "\n".join(lines))
    if found.status != "done":
        sys.exit(1)
