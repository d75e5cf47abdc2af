"""`miniq import` and `miniq export`: queues from files and files from queues."""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import BinaryIO

import click
from msgspec.structs import replace

from miniq.api import operations as ops
from miniq.cli import formats
from miniq.cli.flags import Target, Whole, status, summary_json, target
from miniq.cli.formats import Format, Row
from miniq.cli.messages import BATCH, already_sent, pages
from miniq.cli.output import part_of, plural, progress_bar, result
from miniq.cli.processes import Stop
from miniq.cli.root import say
from miniq.cli.staged_import import ATOMIC, StagedImport
from miniq.client._sync.client import Client
from miniq.client._sync.message import Message
from miniq.client.delivery import leases
from miniq.client.interrupts import shield
from miniq.errors import InvalidRequest, MiniQError
from miniq.message import Lease, Status

PATIENCE = 30.0
LEASE = 300.0
"""Seconds of the leases of `export --consume`, which are extended while it runs."""

format_option = click.option(
    "--format", "format", type=click.Choice(["jsonl", "csv", "parquet"]), help="[default: by the suffix of FILE]"
)


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.argument("queue", required=False)
@click.option("--topic", metavar="TOPIC", help="Publish the rows to a topic, instead of QUEUE.")
@format_option
@click.option("--full", is_flag=True, help="Rows hold all fields of messages, as `export --full` writes them.")
@click.option("--again", is_flag=True, help="Send the rows again even if this file was imported before.")
@click.option(
    "--run", metavar="NAME", help="Send the rows once under this name, even if this file was imported before."
)
@click.option(
    "--dedup-prefix",
    metavar="TEXT",
    help="Message N gets the dedup id TEXT plus N: a repetition within the queue's dedup window adds nothing.",
)
@summary_json
@target
def import_(
    at: Target,
    file: str,
    queue: str | None,
    topic: str | None,
    format: Format | None,
    full: bool,
    again: bool,
    run: str | None,
    dedup_prefix: str | None,
    as_json: bool,
) -> None:
    """Send the rows of a file: JSON Lines, CSV or Parquet.

    A line of JSON Lines is a body. A row of CSV or Parquet is an object with its columns (CSV has only text).

    An import is exact: all rows are uploaded, then they are committed in steps of 10,000, each once. A bad row, or an
    interruption before that, adds nothing. If it is killed while it commits, run it again, and it sends what is
    missing. For seven days the same file (its path and content) adds nothing a second time to the same queue or topic,
    unless --again, or --run with a new name, is given.

    FILE may be - for stdin, whose rows are sent as they come, each time; there --dedup-prefix makes it safe to repeat.

    \b
    Examples:
      miniq import orders.jsonl orders
      miniq import saved.parquet orders --full
      miniq import orders.jsonl --topic shop
      cat users.csv | miniq import - signups --format csv --dedup-prefix monday-
    """
    if (queue is None) == (topic is None):
        raise click.UsageError("Give a QUEUE or a --topic" + (", not both." if queue is not None else "."))
    kind = chosen(file, format)
    if again + (run is not None) + (dedup_prefix is not None) > 1:
        raise click.UsageError("Only one of --again, --run and --dedup-prefix can be given.")
    if file == "-" and kind == "parquet":
        raise InvalidRequest("Parquet cannot be read from stdin; name a file", field="file")
    if again:
        run = secrets.token_hex(4)
    is_stream = file == "-" or not os.path.isfile(file)
    is_new = is_stream or dedup_prefix is not None
    job = f"import-{secrets.token_hex(20)}" if is_new else job_of(file, kind, full, run)
    length = 0 if file == "-" else formats.length(file, kind)
    with (
        at.open(PATIENCE) as client,
        nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as source,
        progress_bar(visible=length > 0) as progress,
    ):
        rows: Iterator[Row] = formats.read(source, kind, full)
        if dedup_prefix is not None:
            rows = with_dedup_ids(rows, dedup_prefix)
        work = StagedImport(client.queue(queue or "") if topic is None else client.topic(topic), job)
        try:
            if is_stream:
                work.send_stream(rows)
            else:
                work.send_file(rows, lambda sent: progress(sent if kind == "parquet" else source.tell(), length))
        except BaseException as error:
            work.abandon(error)
            if not work.done:
                done = "this run added nothing"
            elif not is_stream:
                done = f"this run added {plural(work.sent, 'message')}: run it again"
                done += f" with --run {run} to send the rest" if run else " to send the rest"
            elif dedup_prefix is None:
                done = already_sent(work.done)
            else:
                done = already_sent(work.done).partition("; ")[0]
                done += "; retry with the same --dedup-prefix, and only the rest is sent"
            if isinstance(error, KeyboardInterrupt):
                raise MiniQError(f"interrupted; {done}") from None
            if isinstance(error, MiniQError):
                raise type(error)(f"{error.text}; {done}", field=error.field) from None
            raise
    text = f"sent {plural(work.sent, 'message')} to {queue}"
    if topic is not None:
        text = f"published {plural(work.sent, 'message')} to {topic}"
    if work.sent_by_job:
        text += f"; {work.sent_by_job} were sent by an earlier import of this file (--again sends them again)"
    if work.deduplicated:
        text += f"; {work.deduplicated} had been sent before with the same dedup ids"
    result(as_json, {"sent": work.sent, "sent_before": work.sent_by_job + work.deduplicated}, text)


def job_of(file: str, kind: Format, full: bool, run: str | None) -> str:
    """The name of an import, which is the same when it is repeated."""
    path = os.path.realpath(file)
    with open(path, "rb") as source:
        content = hashlib.file_digest(source, "sha256").hexdigest()
    parts = [path, content, kind, str(full), str(ATOMIC), run or ""]
    return "import-" + hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:40]


def with_dedup_ids(rows: Iterable[Row], prefix: str) -> Iterator[Row]:
    for number, (place, draft) in enumerate(rows, 1):
        yield place, replace(draft, dedup_id=f"{prefix}{number}")


@click.command()
@click.argument("queue")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@format_option
@click.option("--full", is_flag=True, help="All fields of messages, not only bodies.")
@status
@click.option("--max", "most", type=Whole(1), help="Maximum number of messages. [default: all]")
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

    The messages stay in the queue unless --consume is given, which never overwrites a file. FILE is created only on
    success; - is stdout. If the command is interrupted, no file is left, and all messages are in the queue.

    --full writes what `import --full` needs to send the messages again; `delay` and `ttl` are the seconds that were
    left of them.

    \b
    Examples:
      miniq export orders orders.jsonl
      miniq export orders.dead dead.csv --full
      miniq export orders orders.parquet --consume
    """
    if consume and status is not None:
        raise click.UsageError("--consume takes ready messages; it cannot be combined with --status.")
    kind = chosen(file, format)
    if consume and os.path.isfile(file):
        raise existing(file)
    count = 0
    with at.open(PATIENCE) as client:
        source = client.queue(queue)
        total = source.info().counts.total
        if most is not None:
            total = min(total, most)
        held = Held(client, queue)
        batches = held.receive(most) if consume else pages(source, status, None, most)
        try:
            with written(file, overwrite=not consume) as output, progress_bar() as progress:

                def messages() -> Iterator[Message]:
                    nonlocal count
                    for batch in batches:
                        yield from batch
                        count += len(batch)
                        progress(count, total)

                formats.write(output, kind, full, messages())
                if consume:
                    Stop()  # from here on the first signal only lets the command finish
        except BaseException as error:
            with suppress(MiniQError):
                held.release()
            if consume and isinstance(error, FileExistsError):
                raise existing(file) from None
            raise
        held.ack(file)
    if file != "-":
        result(as_json, {"messages": count}, f"wrote {plural(count, 'message')} to {file}")


class Held:
    """The messages that an export has leased."""

    def __init__(self, client: Client, queue: str) -> None:
        self._client = client
        self._queue = queue
        self._batches: list[list[Lease]] = []
        self._extended = time.monotonic()

    def receive(self, most: int | None) -> Iterator[list[Message]]:
        """Lease the messages that are ready, in batches; extend the leases now and then."""
        left = sys.maxsize if most is None else most
        source = self._client.queue(self._queue)
        while left > 0:
            with shield:
                batch = source.receive(min(left, BATCH), visibility_timeout=LEASE)
                self._batches.append(leases(self._queue, batch))
            if not batch:
                return
            yield batch
            left -= len(batch)
            if time.monotonic() - self._extended > LEASE / 3:
                self._extended = time.monotonic()
                for held in self._batches:
                    self._client.perform(ops.Extend(self._queue, held, LEASE))

    def release(self) -> None:
        for batch in filter(None, self._batches):
            self._client.perform(ops.Release(self._queue, batch))

    def ack(self, file: str) -> None:
        """Remove the messages, now that they are in the file."""
        left = sum(map(len, self._batches))
        stale = 0
        try:
            for batch in filter(None, self._batches):
                stale += self._client.perform(ops.Ack(self._queue, batch)).count("stale")
                left -= len(batch)
        except MiniQError as error:
            text = f"{file} is complete, but {plural(left, 'message')} in it could not be removed from the queue"
            raise MiniQError(f"{text}: {error.text}") from None
        if stale:
            say(f"{plural(stale, 'message')} in {file} had gone to another consumer meanwhile")


def existing(file: str) -> MiniQError:
    return InvalidRequest(
        f"{file} exists, and --consume does not overwrite a file, which may hold the only copy of messages; "
        "name another file, or move this one away",
        field="path",
    )


def chosen(file: str, format: Format | None) -> Format:
    """The format that was given, or else that of the file's suffix."""
    kind = format or formats.format_of(file)
    if kind is None:
        raise click.UsageError(f"The name {file!r} does not tell the format; use --format.")
    return kind


@contextmanager
def written(file: str, overwrite: bool) -> Iterator[BinaryIO]:
    """A file that gets its name only once it is complete and on disk, or stdout."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with part_of(file, overwrite) as part, open(part, "wb") as output:
        yield output
        output.flush()
        if os.path.isfile(part):
            os.fsync(output.fileno())
