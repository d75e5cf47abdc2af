"""`miniq top`: all queues of a broker, or the consumers of one, live on a terminal; or as a table or JSON."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from miniq.api import codec, shapes
from miniq.cli.consumers import HEADS, NO_CONSUMER, rows
from miniq.cli.flags import SECONDS, Target, as_json, note_unreadable, target
from miniq.cli.output import age, brief, cut, json_line, plural, size, table
from miniq.cli.problems import troubles, words
from miniq.client._sync.client import Client
from miniq.consumer import Consumer, Percentiles
from miniq.errors import InvalidRequest

COLUMNS = (
    "queue", "ready", "leased", "delayed", "dead", "consumers", "wait", "processing", "bytes", "oldest", "sent/s",
    "acked/s",
)  # fmt: skip
LEAST_IMPORTANT = (
    "wait",
    "processing",
    "consumers",
    "bytes",
    "delayed",
    "oldest",
    "acked/s",
    "sent/s",
    "dead",
    "leased",
    "ready",
)
"""The columns that are left out on a narrow terminal, in this order."""
SHORTEST_NAME = 16
"""Columns are left out before names are cut to fewer characters than this."""
GAP = "  "
PATIENCE = 10.0
"""Seconds after which a broker that does not respond counts as unreachable."""


@click.command()
@click.argument("queue", required=False)
@click.option("--once", is_flag=True, help="Print one table and exit.")
@click.option("--interval", type=SECONDS, default=2.0, help="Time between two updates. [default: 2]")
@click.option("--sort", type=click.Choice(COLUMNS), default="queue", show_default=True, help="Column to sort by.")
@click.option("--filter", "wanted", default="", metavar="TEXT", help="Only queues with this in their name.")
@as_json
@target
def top(at: Target, queue: str | None, once: bool, interval: float, sort: str, wanted: str, as_json: bool) -> None:
    """Watch all queues, or the consumers of one, live.

    What is wrong with queues (no consumer, failing, a stuck claim, full) is said in words next to the table.
    WAIT is how long messages were ready before they were received, PROCESSING how long consumers then took: p50/p99 of
    the last five minutes. CONSUMERS received, or asked for messages, in that time; `miniq top QUEUE` shows them.

    Keys: < and > choose the column to sort by, r reverses, / filters, arrows scroll, p pauses, q quits. A narrow
    terminal shows the most important columns. If the output is not a terminal, and with --json, a table or one JSON
    object is printed at every interval.

    \b
    Examples:
      miniq top
      miniq top emails
      miniq top --once --sort oldest
      miniq top --once --json | jq -c '.queues[] | select(.dead > 0)'
    """
    if not at.is_remote:
        text = f"url: {at.url} is not a broker's address; use http://HOST:PORT or tcp://HOST:PORT of a running one"
        raise InvalidRequest(text, field="url")
    given = click.get_current_context().get_parameter_source("sort")
    if queue is not None and given is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("--sort is for the list of all queues, and QUEUE shows the consumers of one.")
    if queue is not None and wanted:
        raise click.UsageError("--filter is for the list of all queues, and QUEUE shows the consumers of one.")
    if interval < 0.1:
        raise InvalidRequest(f"interval: {interval:g} s is too short; use at least 0.1", field="interval")
    with at.open(timeout=PATIENCE) as client:
        if queue is None:
            note_unreadable(client, "queues")
        _show(View(at.url, client, sort, wanted, queue), once, interval, as_json)


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
    """Which queues are shown, and in which order."""

    def __init__(
        self, url: str, client: Client, sort: str = "queue", wanted: str = "", queue: str | None = None
    ) -> None:
        self.url = url
        self.client = client
        self.sort = sort
        self.down = sort != "queue"
        self.wanted = wanted
        self.queue = queue
        """The one whose consumers are shown."""

    def fetch(self) -> tuple[shapes.Stats, list[Consumer]]:
        """The current numbers, and the consumers if one queue is shown."""
        stats = self.client.stats(self.queue)
        return stats, [] if self.queue is None else self.client.queue(self.queue).consumers()

    def chosen(self, stats: shapes.Stats) -> list[shapes.QueueStats]:
        """The queues to show, sorted."""
        shown = [entry for entry in stats.queues if self.wanted.lower() in entry.name.lower()]
        shown.sort(key=lambda entry: entry.name)
        shown.sort(key=lambda entry: _value(entry, self.sort, stats), reverse=self.down)
        return shown

    def turn(self, step: int) -> None:
        """Sort by a neighbouring column."""
        self.sort = COLUMNS[(COLUMNS.index(self.sort) + step) % len(COLUMNS)]
        self.down = self.sort != "queue"


def _value(entry: shapes.QueueStats, column: str, stats: shapes.Stats) -> Any:
    if column == "queue":
        return entry.name
    if column == "oldest":
        return 0.0 if entry.oldest is None else (stats.at - entry.oldest).total_seconds()
    if column in ("wait", "processing"):
        times = getattr(entry, column)
        return 0.0 if times is None else times.p99
    if column == "sent/s":
        return entry.rates.sent
    if column == "consumers":
        return present(entry)
    return entry.rates.acked if column == "acked/s" else getattr(entry, column)


def present(entry: shapes.QueueStats) -> int:
    """How many consumers a queue has: those seen in the last five minutes, unless it has been without one since."""
    return entry.consumers if entry.unattended_since is None else 0


def cells(entry: shapes.QueueStats, stats: shapes.Stats) -> tuple[str, ...]:
    """The text of each column for a queue."""
    oldest = "-" if entry.oldest is None else age((stats.at - entry.oldest).total_seconds())
    counts = [str(entry.ready), str(entry.leased), str(entry.delayed), "-" if entry.dead is None else str(entry.dead)]
    work = [str(present(entry)), _times(entry.wait), _times(entry.processing)]
    rates = f"{entry.rates.sent:.1f}", f"{entry.rates.acked:.1f}"
    return entry.name, *counts, *work, size(entry.bytes), oldest, *rates


def _times(times: Percentiles | None) -> str:
    """p50/p99."""
    return "-" if times is None else f"{brief(times.p50)}/{brief(times.p99)}"


def totals(queues: Sequence[shapes.QueueStats]) -> str:
    """One line about all queues. Dead letters are counted as such, and in no other number."""
    dead = {entry.dead_letter_queue: entry.dead or 0 for entry in queues if entry.dead_letter_queue}
    shown = [entry for entry in queues if entry.name not in dead]
    ready, leased = sum(entry.ready for entry in shown), sum(entry.leased for entry in shown)
    sent, acked = sum(entry.rates.sent for entry in shown), sum(entry.rates.acked for entry in shown)
    return f"{ready} ready, {leased} leased, {sum(dead.values())} dead   {sent:.1f} sent/s, {acked:.1f} acked/s"


def summary(entry: shapes.QueueStats) -> list[str]:
    """Two lines about one queue."""
    times = [
        f"{name} {'-' if found is None else f'p50 {brief(found.p50)}, p99 {brief(found.p99)}'}"
        for name, found in (("wait", entry.wait), ("processing", entry.processing))
    ]
    dead = "" if entry.dead is None else f", {entry.dead} dead"
    counts = f"{entry.ready} ready, {entry.leased} in flight, {entry.delayed} delayed{dead}"
    return [f"{counts}   {entry.rates.sent:.1f} sent/s, {entry.rates.acked:.1f} acked/s", "   ".join(times)]


def layout(
    heads: Sequence[str], rows: Sequence[Sequence[str]], sort: str, width: int, ellipsis: str = "…"
) -> list[str]:
    """The lines of a table of at most `width` characters. Columns that do not fit are left out, except the sort column,
    and names are cut."""
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    kept = list(range(len(heads)))

    def spare() -> int:
        """The width that is left for names."""
        return width - sum(widths[column] + len(GAP) for column in kept[1:])

    for name in LEAST_IMPORTANT:
        if spare() < min(widths[0], SHORTEST_NAME) and name != sort:
            kept.remove(COLUMNS.index(name))
    longest = max(min(widths[0], spare()), 1)
    lines = []
    for row in (heads, *rows):
        numbers = [row[column].rjust(widths[column]) for column in kept[1:]]
        lines.append(GAP.join([cut(row[0], longest, ellipsis).ljust(longest), *numbers])[:width])
    return lines


def _print(view: View, as_json: bool) -> None:
    stats, consumers = view.fetch()
    if as_json and view.queue is not None:
        shown = [codec.to_wire(shapes.WireConsumer, consumer) for consumer in consumers]
        json_line({"at": stats.at, "queue": stats.queues[0], "consumers": shown})
    elif as_json:
        json_line(shapes.Stats(stats.at, view.chosen(stats)))
    elif view.queue is not None:
        click.echo("\n".join([view.queue, *summary(stats.queues[0]), *words(stats.queues[0], stats.at), ""]))
        if consumers:
            table(HEADS, rows(consumers), numbers=(1, 2, 3, 4, 5))
        click.echo("" if consumers else f"{NO_CONSUMER}\n")
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
        chosen = view.chosen(stats)
        lines = layout([name.upper() for name in COLUMNS], [cells(entry, stats) for entry in chosen], view.sort, width)
        time_shown = f"{codec.moment(codec.micros(stats.at)):%H:%M:%S} UTC"
        wrong = [cut(line, width) for line in troubles(chosen, stats.at)]
        click.echo("\n".join([*lines, f"{time_shown}, {plural(len(stats.queues), 'queue')}", *wrong, ""]))
    sys.stdout.flush()
