"""`miniq import` and `miniq export`: queues from files and files from queues."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import BinaryIO

import click
from msgspec.structs import replace

from miniq.cli import formats
from miniq.cli.flags import Target, status, summary_json, target
from miniq.cli.formats import Format
from miniq.cli.messages import BATCH, batched, pages
from miniq.cli.output import part_of, plural, progress_bar, result
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.errors import InvalidRequest, MiniQError
from miniq.message import Draft, Status

PATIENCE = 30.0
LEASE = 3600.0
"""Seconds that `export --consume` may take before its leases expire."""

format_option = click.option(
    "--format", "format", type=click.Choice(["jsonl", "csv", "parquet"]), help="[default: by the suffix of FILE]"
)


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.argument("queue")
@format_option
@click.option("--full", is_flag=True, help="Rows hold all fields of messages, as `export --full` writes them.")
@click.option(
    "--dedup-prefix",
    metavar="TEXT",
    help="Message N gets the dedup id TEXT plus N: a second import within the dedup window adds nothing.",
)
@summary_json
@target
def import_(
    at: Target, file: str, queue: str, format: Format | None, full: bool, dedup_prefix: str | None, as_json: bool
) -> None:
    """Send the rows of a file: JSON Lines, CSV or Parquet.

    A line of JSON Lines is a body. A row of CSV or Parquet is an object with its columns (CSV has only text).
    FILE may be - for stdin. Messages sent before an error stay sent; --dedup-prefix makes it safe to repeat.

    \b
    Examples:
      miniq import orders.jsonl orders
      miniq import users.csv signups --dedup-prefix monday-
      miniq import saved.parquet orders --full
    """
    kind = chosen(file, format)
    if file == "-" and kind == "parquet":
        raise InvalidRequest("Parquet cannot be read from stdin; name a file", field="file")
    length = 0 if file == "-" else formats.length(file, kind)
    sent = 0
    with (
        at.open(PATIENCE) as client,
        nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source,
        progress_bar(visible=length > 0) as progress,
    ):
        drafts = formats.read(source, kind, full)
        if dedup_prefix is not None:
            drafts = with_dedup_ids(drafts, dedup_prefix)
        try:
            for batch in batched(drafts):
                client.queue(queue).send_many(batch)
                sent += len(batch)
                if length:
                    progress(sent if kind == "parquet" else source.tell(), length)
        except MiniQError as error:
            raise MiniQError(f"{error.text}; {plural(sent, 'message')} had been sent") from None
    result(as_json, {"sent": sent}, f"sent {plural(sent, 'message')} to {queue}")


@click.command()
@click.argument("queue")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@format_option
@click.option("--full", is_flag=True, help="All fields of messages, not only bodies.")
@status
@click.option("--max", "most", type=click.IntRange(1), help="Maximum number of messages. [default: all]")
@click.option("--consume", is_flag=True, help="Remove the messages from the queue once the file is written.")
@summary_json
@target
def export(
    at: Target,
    queue: str,
    file: str,
    format: Format | None,
    full: bool,
    status: Status | None,
    most: int | None,
    consume: bool,
    as_json: bool,
) -> None:
    """Write a queue to a file: JSON Lines, CSV or Parquet.

    The messages stay in the queue unless --consume is given. FILE is created only on success; - is stdout.

    \b
    Examples:
      miniq export orders orders.jsonl
      miniq export orders.dead dead.csv --full
      miniq export orders orders.parquet --consume
    """
    if consume and status is not None:
        raise click.UsageError("--consume takes ready messages; it cannot be combined with --status.")
    kind = chosen(file, format)
    count = 0
    leased: list[list[Message]] = []
    with at.open(PATIENCE) as client:
        source = client.queue(queue)
        total = source.info().counts.total
        if most is not None:
            total = min(total, most)
        batches = receive(source, most) if consume else pages(source, status, None, most)
        with written(file) as output, progress_bar() as progress:

            def messages() -> Iterator[Message]:
                nonlocal count
                for batch in batches:
                    if consume:
                        leased.append(batch)
                    yield from batch
                    count += len(batch)
                    progress(count, total)

            try:
                formats.write(output, kind, full, messages())
            except BaseException:
                with suppress(MiniQError):
                    for batch in leased:
                        source.release(batch)
                raise
        for batch in leased:
            source.ack(batch)
    if file != "-":
        result(as_json, {"messages": count}, f"wrote {plural(count, 'message')} to {file}")


def chosen(file: str, format: Format | None) -> Format:
    """The format that was given, or else that of the file's suffix."""
    kind = format or formats.format_of(file)
    if kind is None:
        raise click.UsageError(f"The name {file!r} does not tell the format; use --format.")
    return kind


def with_dedup_ids(drafts: Iterator[Draft], prefix: str) -> Iterator[Draft]:
    for number, draft in enumerate(drafts, 1):
        yield replace(draft, dedup_id=f"{prefix}{number}")


def receive(source: Queue, most: int | None) -> Iterator[list[Message]]:
    """Leases the messages that are ready, in batches."""
    left = sys.maxsize if most is None else most
    while left > 0 and (batch := source.receive(min(left, BATCH), visibility_timeout=LEASE)):
        yield batch
        left -= len(batch)


@contextmanager
def written(file: str) -> Iterator[BinaryIO]:
    """A file that gets its name only once it is complete and on disk, or stdout."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with part_of(file) as part, open(part, "wb") as output:
        yield output
        output.flush()
        if os.path.isfile(part):
            os.fsync(output.fileno())
