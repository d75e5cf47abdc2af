"""`miniq top`: all queues of a broker, live, on a terminal; or as a table or JSON for other programs."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import click

from miniq.api import codec, shapes
from miniq.cli.flags import SECONDS, Target, as_json, target
from miniq.cli.output import duration, json_line, size, table
from miniq.client._sync.client import Client
from miniq.errors import InvalidRequest

COLUMNS = ("queue", "ready", "leased", "delayed", "dead", "bytes", "oldest", "in/s", "out/s")
PATIENCE = 10.0
"""Seconds after which a broker that does not answer is away."""


@click.command()
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--interval", type=SECONDS, default=2.0, show_default="2", help="Between two looks.")
@click.option("--sort", type=click.Choice(COLUMNS), default="queue", show_default=True, help="Column to sort by.")
@click.option("--filter", "wanted", default="", metavar="TEXT", help="Only queues with this in their name.")
@as_json
@target
def top(at: Target, once: bool, interval: float, sort: str, wanted: str, as_json: bool) -> None:
    """Watch all queues, live.

    Keys: < and > choose the column to sort by, r reverses, / filters, arrows scroll, p pauses, q ends. Where the
    output is no terminal, and with --json, a table is printed every interval.

    \b
    Examples:
      miniq top
      miniq top --once --sort oldest
      miniq top --once --json | jq -c '.queues[] | select(.dead > 0)'
    """
    if not at.is_remote:
        text = f"url: {at.url} is not a broker's address; use http://HOST:PORT or tcp://HOST:PORT of a running one"
        raise InvalidRequest(text, field="url")
    if interval < 0.1:
        raise InvalidRequest(f"interval: {interval:g} s is too short; use at least 0.1", field="interval")
    with at.open(timeout=PATIENCE) as client:
        _show(View(at.url, client, sort, wanted), once, interval, as_json)


def _show(view: View, once: bool, interval: float, as_json: bool) -> None:
    if not once and not as_json and sys.stdout.isatty() and sys.stdin.isatty():
        from miniq.cli import screen

        screen.run(view, interval)
        return
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            _print(view, as_json)
            if once:
                return
            time.sleep(interval)


class View:
    """What is looked at, and in which order."""

    def __init__(self, url: str, client: Client, sort: str = "queue", wanted: str = "") -> None:
        self.url = url
        self._client = client
        self.sort = sort
        self.down = sort != "queue"
        self.wanted = wanted

    def fetch(self) -> shapes.Stats:
        """The numbers as they are now."""
        return self._client.stats()

    def chosen(self, found: shapes.Stats) -> list[shapes.QueueStats]:
        """The queues to show, in their order."""
        shown = [entry for entry in found.queues if self.wanted.lower() in entry.name.lower()]
        shown.sort(key=lambda entry: entry.name)
        shown.sort(key=lambda entry: _value(entry, self.sort, found), reverse=self.down)
        return shown

    def turn(self, step: int) -> None:
        """Sort by the column beside."""
        self.sort = COLUMNS[(COLUMNS.index(self.sort) + step) % len(COLUMNS)]
        self.down = self.sort != "queue"


def _value(entry: shapes.QueueStats, column: str, found: shapes.Stats) -> Any:
    if column == "queue":
        return entry.name
    if column == "oldest":
        return 0.0 if entry.oldest is None else (found.at - entry.oldest).total_seconds()
    if column == "in/s":
        return entry.rates.sent
    return entry.rates.acked if column == "out/s" else getattr(entry, column)


def cells(entry: shapes.QueueStats, found: shapes.Stats) -> tuple[str, ...]:
    """A queue as texts, one for each column."""
    oldest = "-" if entry.oldest is None else duration((found.at - entry.oldest).total_seconds())
    counts = [str(getattr(entry, name)) for name in ("ready", "leased", "delayed", "dead")]
    return entry.name, *counts, size(entry.bytes), oldest, f"{entry.rates.sent:.1f}", f"{entry.rates.acked:.1f}"


def _print(view: View, as_json: bool) -> None:
    found = view.fetch()
    if as_json:
        json_line(shapes.Stats(found.at, view.chosen(found)))
    else:
        table([name.upper() for name in COLUMNS], [cells(entry, found) for entry in view.chosen(found)], range(1, 9))
        click.echo(f"{codec.moment(codec.micros(found.at)):%H:%M:%S} UTC, {len(found.queues)} queues\n")
    sys.stdout.flush()
