"""`miniq send`, `receive`, `peek`: messages in and out of a queue."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import click
import msgspec

from miniq.cli.flags import SECONDS, Target, as_json, target
from miniq.cli.output import body_bytes, body_text, duration, json_line, message_record, raw, table
from miniq.cli.root import say
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.client.bodies import draft
from miniq.errors import MiniQError
from miniq.message import JSON, Draft, Status

BATCH = 1000
BATCH_BYTES = 4 * 1024 * 1024
CHUNK = 1 << 16
LONGEST_WAIT = 20.0
"""Seconds of one long poll while following."""


def headers_of(ctx: click.Context, param: click.Parameter, given: Iterable[str]) -> dict[str, str] | None:
    """Headers from NAME=VALUE."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx, param)
        found[name] = value
    return found or None


@click.command()
@click.argument("queue")
@click.argument("bodies", nargs=-1, metavar="[BODY]...")
@click.option("--file", type=click.Path(exists=True, dir_okay=False), help="Send the bytes of a file as one body.")
@click.option("--text", is_flag=True, help="Send bodies as text even if they are JSON.")
@click.option("--content-type", metavar="TYPE", help="Media type of the bodies, such as text/plain.")
@click.option(
    "--header", "headers", multiple=True, callback=headers_of, metavar="NAME=VALUE", help="A header; may be repeated."
)
@click.option(
    "--priority", type=click.IntRange(0, 9), default=0, show_default=True, help="Higher priorities are received first."
)
@click.option("--delay", type=SECONDS, help="Time until it can be received.")
@click.option("--ttl", type=SECONDS, help="Discard it if it is not acked within this time.")
@click.option("--key", help="Business key, free text.")
@click.option("--recipient", help="Only the consumer of this name receives it.")
@click.option("--group", help="Messages of one group are received in order, one at a time.")
@click.option("--dedup-id", metavar="ID", help="A second send with the same id adds nothing; for a single body only.")
@as_json
@target
def send(
    at: Target, queue: str, bodies: tuple[str, ...], file: str | None, text: bool, as_json: bool, **fields: Any
) -> None:
    """Send messages and print their ids.

    A BODY that is valid JSON is sent as that value, anything else as text. Without a BODY, or with `-`, each line
    of stdin is one message.

    \b
    Examples:
      miniq send emails '{"to": "a@b.c"}' --priority 5
      miniq send emails hello --delay 5m --header lang=en
      cat urls.txt | miniq send crawl
      miniq send images --file cat.png --content-type image/png
    """
    content_type = fields.pop("content_type")
    if file is not None and bodies:
        raise click.UsageError("--file and BODY cannot both be given.")
    if fields["dedup_id"] is not None and len(bodies) != 1 and file is None:
        raise click.UsageError("--dedup-id is for a single message; give one BODY.")
    if fields["dedup_id"] is not None and bodies == ("-",):
        raise click.UsageError("--dedup-id is for a single message, and stdin may hold many.")

    def made(body: bytes) -> Draft:
        return draft_of(body, text, content_type, fields)

    if file is not None:
        with open(file, "rb") as source:
            batches: Iterable[list[Draft]] = iter([[draft(source.read(), content_type=content_type, **fields)]])
    elif bodies and bodies != ("-",):
        batches = batched(made(body.encode("utf-8", "surrogateescape")) for body in bodies)
    else:
        batches = from_stdin(made)
    with at.open() as client:
        for batch in batches:
            for id in client.queue(queue).send_many(batch):
                json_line({"id": id}) if as_json else click.echo(id)
            sys.stdout.flush()


def draft_of(body: bytes, text: bool, content_type: str | None, fields: dict[str, Any]) -> Draft:
    """The message for one body on the command line or one line of stdin. JSON is sent exactly as it was written."""
    try:
        found = body.decode()
    except UnicodeDecodeError:
        raise click.ClickException(f"{body[:40]!r} is not UTF-8; send bytes with --file") from None
    if content_type is None and not text:
        with suppress(msgspec.DecodeError, RecursionError):
            msgspec.json.decode(body)
            return draft(body, content_type=JSON, **fields)
    return draft(found, content_type=content_type, **fields)


def batched(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    """Batches that fit in one call."""
    batch: list[Draft] = []
    size = 0
    for one in drafts:
        if batch and (len(batch) >= BATCH or size + len(one.body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += len(one.body)
    if batch:
        yield batch


def from_stdin(made: Callable[[bytes], Draft]) -> Iterator[list[Draft]]:
    """The lines of stdin, in batches of what has been read so far: a slow pipe does not wait for a full batch."""
    if sys.stdin.isatty():
        say("reading one message per line; end with Ctrl-D")
    rest = b""
    while chunk := os.read(sys.stdin.fileno(), CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from batched(made(line.removesuffix(b"\r")) for line in lines)
    if rest:
        yield [made(rest)]


@click.command()
@click.argument("queue")
@click.option("--max", "most", type=click.IntRange(1), default=1, show_default=True, help="Maximum number of messages.")
@click.option("--wait", type=SECONDS, default=0.0, help="How long to wait for the first message. [default: 0]")
@click.option("--visibility-timeout", type=SECONDS, help="Length of the lease. [default: the queue's]")
@click.option("--consumer", help="Name of this consumer; it also receives messages addressed to that recipient.")
@click.option("--ack/--no-ack", default=False, help="Ack after printing. [default: no; prints id and receipt]")
@click.option("--at-most-once", is_flag=True, help="Remove messages before they are handed out; no ack is needed.")
@click.option("--follow", is_flag=True, help="Keep receiving until Ctrl-C.")
@click.option("--body", "only_body", is_flag=True, help="Print bodies only, one per line.")
@as_json
@target
def receive(
    at: Target,
    queue: str,
    most: int,
    wait: float,
    visibility_timeout: float | None,
    consumer: str | None,
    ack: bool,
    at_most_once: bool,
    follow: bool,
    only_body: bool,
    as_json: bool,
) -> None:
    """Lease messages and print them.

    Prints id, receipt and body, separated by tabs. A message that is not acked becomes ready again when its
    lease expires. With --ack it is removed once it has been printed.

    \b
    Examples:
      miniq receive emails --wait 5
      miniq receive emails --max 10 --ack --json | jq .body
      miniq receive emails --follow --ack --body
    """
    mode: Any = "at-most-once" if at_most_once else None
    with at.open() as client:
        source = client.queue(queue)
        left = most
        try:
            while left > 0 or follow:
                some = source.receive(
                    min(left if not follow else most, BATCH),
                    wait=wait or LONGEST_WAIT if follow else wait,
                    visibility_timeout=visibility_timeout,
                    consumer=consumer,
                    mode=mode,
                )
                show_received(source, some, ack and not at_most_once, only_body, as_json)
                left -= len(some)
                wait = wait if follow else 0.0  # only for the first one
                if not some and not follow:
                    break
        except KeyboardInterrupt:
            if not follow:
                raise


def show_received(source: Queue, some: list[Message], ack: bool, only_body: bool, as_json: bool) -> None:
    """Print the messages, then ack them if asked to; messages that could not be printed are released."""
    try:
        for message in some:
            if as_json:
                json_line(message_record(message))
            elif only_body:
                raw(body_bytes(message) + b"\n")
            else:
                click.echo("\t".join([message.id, *([] if ack else [message.receipt or "-"]), body_text(message)]))
        sys.stdout.flush()
    except (OSError, KeyboardInterrupt):
        if ack:
            with suppress(MiniQError):
                source.release(some)
        raise
    if ack and some:
        for message, outcome in zip(some, source.ack(some), strict=True):
            if outcome == "stale":
                say(f"message {message.id} was not acked: its lease had expired and another consumer has it")


@click.command()
@click.argument("queue")
@click.option("--status", type=click.Choice(["ready", "delayed", "leased"]), help="Only messages in this state.")
@click.option(
    "--max", "most", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of messages."
)
@click.option("--after", metavar="CURSOR", help="Continue where an earlier peek ended.")
@click.option("--id", "one", metavar="ID", help="Only this message.")
@click.option("--body", "only_body", is_flag=True, help="Print bodies only, one per line.")
@as_json
@target
def peek(
    at: Target,
    queue: str,
    status: Status | None,
    most: int,
    after: str | None,
    one: str | None,
    only_body: bool,
    as_json: bool,
) -> None:
    """Look at messages without consuming them.

    Messages are shown in the order in which they would be received.

    \b
    Examples:
      miniq peek emails
      miniq peek emails.dead --json | jq .dead
      miniq peek emails --status leased --max 1000
    """
    with at.open() as client:
        source = client.queue(queue)
        if one is not None:
            found, following = [source.get(one)], None
        else:
            found, following = [], after
            while len(found) < most:
                page = source.peek(status, following, min(most - len(found), BATCH))
                found += page
                following = page.next
                if following is None:
                    break
    if as_json:
        for message in found:
            json_line(message_record(message))
    elif only_body:
        for message in found:
            raw(body_bytes(message) + b"\n")
    elif found:
        show_peeked(found)
    if following is not None:
        say(f"there may be more; continue with --after {following}")


def show_peeked(found: list[Message]) -> None:
    """A table of messages."""
    from datetime import UTC, datetime

    now = datetime.now(UTC)
    table(
        ("ID", "STATUS", "PRIORITY", "RECEIVES", "AGE", "BODY"),
        [
            (m.id, m.status, m.priority, m.receives, duration((now - m.sent_at).total_seconds()), body_text(m))
            for m in found
        ],
        numbers=(2, 3, 4),
    )
