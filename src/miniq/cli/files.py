"""`miniq import` and `miniq export`: queues from files and files from queues."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

import click
from msgspec.structs import replace

from miniq.cli import formats
from miniq.cli.flags import Target, summary_json, target
from miniq.cli.formats import Format
from miniq.cli.messages import BATCH, batched
from miniq.cli.output import json_line, plural
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.errors import InvalidRequest, MiniQError
from miniq.message import Draft, Status

PATIENCE = 30.0
LEASE = 3600.0
"""Seconds that `export --consume` may take before its messages come back."""

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
    sent = 0
    with at.open(PATIENCE) as client, input_of(file) as source, progress(file, kind) as bar:
        destination = client.queue(queue)
        before = 0

        def drafts() -> Iterator[Draft]:
            nonlocal before
            for number, (one, done) in enumerate(formats.read(source, kind, full), 1):
                if bar is not None and done != before:
                    bar.update(done - before)
                before = done
                yield one if dedup_prefix is None else replace(one, dedup_id=f"{dedup_prefix}{number}")

        try:
            for batch in batched(drafts()):
                destination.send_many(batch)
                sent += len(batch)
        except MiniQError as error:
            raise MiniQError(f"{error.text}; {plural(sent, 'message')} had been sent") from None
    if as_json:
        json_line({"sent": sent})
    else:
        click.echo(f"sent {plural(sent, 'message')} to {queue}")


@click.command()
@click.argument("queue")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@format_option
@click.option("--full", is_flag=True, help="All fields of messages, not only bodies.")
@click.option("--status", type=click.Choice(["ready", "delayed", "leased"]), help="Only messages in this state.")
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
    with at.open(PATIENCE) as client:
        source = client.queue(queue)
        total = source.info().counts.total
        held: list[Message] = []
        with written(file) as target_file, counted(total if most is None else min(total, most)) as bar:
            found = taken(source, most, held) if consume else peeked(source, status, most)
            try:
                count = formats.write(target_file, kind, full, shown(found, bar))
            except BaseException:
                give_back(source, held)
                raise
        for start in range(0, len(held), BATCH):
            source.ack(held[start : start + BATCH])
    if as_json and file != "-":
        json_line({"messages": count})
    elif file != "-":
        click.echo(f"wrote {plural(count, 'message')} to {file}")


def chosen(file: str, format: Format | None) -> Format:
    """The format that was given, or that of the file's suffix."""
    kind = format or formats.format_of(file)
    if kind is None:
        raise click.UsageError(f"The name {file!r} does not tell the format; use --format.")
    return kind


def peeked(source: Queue, status: Status | None, most: int | None) -> Iterator[Message]:
    """Messages, without consuming them."""
    after: str | None = None
    left = sys.maxsize if most is None else most
    while left > 0:
        page = source.peek(status, after, min(left, BATCH))
        yield from page
        left -= len(page)
        after = page.next
        if after is None:
            return


def taken(source: Queue, most: int | None, held: list[Message]) -> Iterator[Message]:
    """Messages that are ready, leased; `held` are those to ack at the end."""
    left = sys.maxsize if most is None else most
    while left > 0 and (some := source.receive(min(left, BATCH), visibility_timeout=LEASE)):
        held += some
        left -= len(some)
        yield from some


def give_back(source: Queue, held: list[Message]) -> None:
    """The file was not written: release the messages."""
    with suppress(MiniQError):
        for start in range(0, len(held), BATCH):
            source.release(held[start : start + BATCH])


@contextmanager
def written(file: str) -> Iterator[BinaryIO]:
    """A file that gets its name only once it is complete and on disk."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = f"{os.path.realpath(file)}.{secrets.token_hex(4)}.part"
    try:
        with open(part, "xb") as made:
            yield made
            made.flush()
            os.fsync(made.fileno())
        os.replace(part, os.path.realpath(file))
    finally:
        with suppress(FileNotFoundError):
            os.unlink(part)


@contextmanager
def input_of(file: str) -> Iterator[BinaryIO]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with open(file, "rb") as source:
        yield source


@contextmanager
def progress(file: str, kind: Format) -> Iterator[Any]:
    """A progress bar over a file, if stderr is a terminal."""
    if file == "-":
        if kind == "parquet":
            raise InvalidRequest("Parquet cannot be read from stdin; name a file", field="file")
        yield None
        return
    with counted(formats.length(file, kind)) as bar:
        yield bar


@contextmanager
def counted(whole: int) -> Iterator[Any]:
    """A progress bar on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with click.progressbar(length=whole, file=sys.stderr) as bar:
        yield bar


def shown(messages: Iterator[Message], bar: Any) -> Iterator[Message]:
    """The same messages, counted on the bar."""
    for message in messages:
        yield message
        if bar is not None:
            cast(Any, bar).update(1)
