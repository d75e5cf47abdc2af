"""`miniq history`, `backup`, `restore`: the broker as a whole."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import click

from miniq.api import codec
from miniq.api.replies import wire_event
from miniq.cli.flags import Target, Whole, as_json, require_store, store, target, without_broker
from miniq.cli.output import first_line, json_line
from miniq.client.connection import connect
from miniq.client.url import folder_of
from miniq.errors import InvalidRequest
from miniq.message import HistoryRecord
from miniq.store_urls import is_url, without_password

BATCH = 1000
POLL = 0.5
"""Seconds between two requests while following."""


@click.command()
@click.option("--queue", metavar="QUEUE", help="Only events of this queue.")
@click.option("--after", type=Whole(0), default=0, show_default=True, help="Offset to start after.")
@click.option("--max", "most", type=Whole(1), default=100, show_default=True, help="Maximum number of events.")
@click.option("--follow", is_flag=True, help="Keep printing new events until Ctrl-C.")
@as_json
@target
def history(at: Target, queue: str | None, after: int, most: int, follow: bool, as_json: bool) -> None:
    """Show what happened to messages, oldest first.

    A queue records history only if it is configured to: `miniq queues set QUEUE --history events`.

    \b
    Examples:
      miniq history --queue emails
      miniq history --follow --json
    """
    left = most
    regular_end = (KeyboardInterrupt,) if follow else ()
    with at.open() as client, suppress(*regular_end):
        while left > 0 or follow:
            page = client.history(after, BATCH if follow else min(left, BATCH), queue)
            for record in page.records:
                show_event(record, as_json)
            left -= len(page.records)
            if page.next == after:
                if not follow:
                    break
                time.sleep(POLL)
            after = page.next


def show_event(record: HistoryRecord, as_json: bool) -> None:
    """Print one line of history."""
    if as_json:
        json_line(wire_event(record, "json"))
        return
    event = record.event
    at = codec.moment(event.at).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    details = {
        "receives": event.receives or None,
        "consumer": event.consumer,
        "reason": event.reason,
        "error": None if event.error is None else first_line(event.error),
        "wait": None if event.wait_ms is None else f"{event.wait_ms:.0f}ms",
        "held": None if event.held_ms is None else f"{event.held_ms:.0f}ms",
        "count": event.count if event.count != 1 else None,
    }
    shown = [f"{name}={value}" for name, value in details.items() if value is not None]
    click.echo("  ".join([str(record.offset), at, f"{event.event:<8}", event.queue, event.id or "-", *shown]))


@click.command()
@click.argument("path")
@store
@target
def backup(at: Target, path: str, store: str | None) -> None:
    """Copy everything to a new folder.

    The broker keeps running; the copy is a snapshot. The folder is created on the machine of the broker. With
    --store the copy is made without a broker.

    \b
    Examples:
      miniq backup /var/backups/miniq-monday
      miniq backup ./copy --store rocksdb:./miniq-data
    """
    if is_url(path):
        raise click.UsageError(f"PATH {without_password(path)!r} is a URL; a backup is a folder: name its path.")
    if store is None and at.is_remote:
        if not os.path.isabs(path):
            raise click.UsageError(f"PATH {path!r} is on the machine of the broker: use an absolute path.")
    else:
        path = os.path.abspath(path)
    if store is not None:
        require_store(store, "store")
    with connect(store) if store is not None else at.open() as client:
        client.backup(path)
    click.echo(f"backup in {path}")


@click.command()
@click.argument("backup", type=click.Path(exists=True, file_okay=False))
@click.argument("folder")
def restore(backup: str, folder: str) -> None:
    """Create a store from a backup.

    FOLDER must be new or empty; it may be a URL such as rocksdb:./miniq-data. For a database, create a store in a
    folder and use `miniq migrate`. Prints the URL of the store.

    \b
    Example:
      miniq restore /var/backups/miniq-monday ./miniq-data
      miniq serve --store rocksdb:./miniq-data
    """
    from miniq.store.embedded.backup import restore as restore_folder

    engine = None
    if is_url(folder):
        shown, path = without_password(folder), None
        with suppress(InvalidRequest):
            path = folder_of(folder, "folder")
        if path is None:
            raise click.UsageError(
                f"FOLDER {shown!r} is not a folder: restore creates one. Use `miniq migrate` for a database."
            )
        engine, folder = folder.partition(":")[0], path
    with without_broker("stop that one, or make a backup with `miniq backup`"):
        click.echo(restore_folder(backup, folder, engine))
