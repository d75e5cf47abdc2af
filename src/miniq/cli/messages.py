"""`miniq send`, `receive`, `peek`: messages in and out of a queue."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from select import select
from typing import Any, TypeVar

import click
import msgspec

from miniq.celery.summary import task_of
from miniq.cli.flags import MOMENT, SECONDS, Target, Whole, as_json, pairs_option, status, target
from miniq.cli.output import (
    age,
    body_bytes,
    body_text,
    first_line,
    json_line,
    line,
    message_record,
    plural,
    raw,
    table,
)
from miniq.cli.root import ignore_interrupts, say
from miniq.client._sync.message import Message
from miniq.client._sync.queue import Queue
from miniq.client.bodies import draft
from miniq.client.delivery import MessagePage
from miniq.client.interrupts import interruptible, shield, uninterrupted
from miniq.errors import Forbidden, InvalidRequest, MiniQError, QueueNotFound
from miniq.message import JSON, Draft, Status

F = TypeVar("F", bound=Callable[..., Any])
BATCH = 1000
BATCH_BYTES = 4 * 1024 * 1024
CHUNK = 1 << 16
LONGEST_WAIT = 20.0
"""Seconds of one long poll while following."""
UNINTERRUPTED_WAIT = 1.0
"""Seconds of one long poll that removes what it receives, which is therefore not interrupted."""


class NotUtf8(InvalidRequest):
    """A body on the command line or stdin is not text."""


def message_options(command: F) -> F:
    """Give a command the bodies and fields of messages to send."""
    for add in (
        click.option(
            "--dedup-id", metavar="ID", help="A second send with the same id adds nothing; for a single body only."
        ),
        click.option("--group", help="Messages of one group are received in order, one at a time."),
        click.option("--recipient", help="Only the consumer of this name receives it."),
        click.option("--key", help="Business key, free text; topics route by it."),
        click.option("--ttl", type=SECONDS, help="Discard it if it is not received within this time."),
        click.option(
            "--deliver-at", type=MOMENT, help="When it can be received, with an offset from UTC; at most 14 days ahead."
        ),
        click.option("--delay", type=SECONDS, help="Time until it can be received."),
        click.option(
            "--priority",
            type=Whole(0, 9),
            default=0,
            show_default=True,
            help="Higher priorities are received first.",
        ),
        pairs_option("--header", "headers", help="A header; may be repeated."),
        click.option("--content-type", metavar="TYPE", help="Media type of the bodies, such as text/plain."),
        click.option("--text", is_flag=True, help="Send bodies as text even if they are JSON."),
        click.option(
            "--file", type=click.Path(exists=True, dir_okay=False), help="Send the bytes of a file as one body."
        ),
        click.argument("bodies", nargs=-1, metavar="[BODY]..."),
    ):
        command = add(command)
    return command


@click.command()
@click.argument("queue")
@message_options
@as_json
@target
def send(at: Target, queue: str, as_json: bool, **given: Any) -> None:
    """Send messages and print their ids.

    A BODY that is valid JSON is sent as that value, anything else as text. Without a BODY, or with `-`, each line
    of stdin is one message.

    \b
    Examples:
      miniq send emails '{"to": "a@b.c"}' --priority 5
      miniq send emails hello --delay 5m --header lang=en
      miniq send emails hello --deliver-at "$(date -u -d '+1 hour' +%Y-%m-%dT%H:%M:%SZ)"
      cat urls.txt | miniq send crawl
      miniq send images --file cat.png --content-type image/png
    """
    batches = batches_of(**given)
    with at.open() as client, shield:  # the ids of what was sent are printed
        for batch in batches:
            for id in client.queue(queue).send_many(batch):
                line(as_json, {"id": id}, id)
            sys.stdout.flush()
        ignore_interrupts()


def batches_of(bodies: tuple[str, ...], file: str | None, text: bool, **fields: Any) -> Iterable[list[Draft]]:
    """The messages of a command that has `message_options`, in batches that fit in one call."""
    if file is not None and bodies:
        raise click.UsageError("--file and BODY cannot both be given.")
    if fields["dedup_id"] is not None and len(bodies) != 1 and file is None:
        raise click.UsageError("--dedup-id is for a single message; give one BODY.")
    if fields["dedup_id"] is not None and bodies == ("-",):
        raise click.UsageError("--dedup-id is for a single message, and stdin may hold many.")
    fields["headers"] = fields["headers"] or None
    if file is not None:
        with open(file, "rb") as source:
            return [[draft(source.read(), **fields)]]
    if bodies and bodies != ("-",):
        return batched(draft_of(body.encode("utf-8", "surrogateescape"), text, fields) for body in bodies)
    return from_stdin(text, fields)


def draft_of(body: bytes, text: bool, fields: dict[str, Any]) -> Draft:
    """The message for a BODY or a line of stdin. JSON is sent exactly as it was written."""
    try:
        decoded = body.decode()
    except UnicodeDecodeError:
        raise NotUtf8(f"{body[:40]!r} is not UTF-8; send bytes with --file") from None
    if fields["content_type"] is None and not text:
        with suppress(msgspec.DecodeError, RecursionError):
            msgspec.json.decode(body)
            return draft(body, **fields | {"content_type": JSON})
    return draft(decoded, **fields)


def batched(drafts: Iterable[Draft]) -> Iterator[list[Draft]]:
    """Batches that fit in one call."""
    batch: list[Draft] = []
    size = 0
    for message in drafts:
        if batch and (len(batch) >= BATCH or size + len(message.body) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message.body)
    if batch:
        yield batch


def from_stdin(text: bool, fields: dict[str, Any]) -> Iterator[list[Draft]]:
    """The lines of stdin, in batches of what has been read so far: a slow pipe does not wait for a full batch."""
    if sys.stdin.isatty():
        say("reading one message per line; end with Ctrl-D")
    rest = b""
    number = sent = 0

    def drafts(bodies: Iterable[bytes]) -> Iterator[Draft]:
        nonlocal number
        for body in bodies:
            number += 1
            try:
                yield draft_of(body, text, fields)
            except NotUtf8 as error:
                raise InvalidRequest(f"line {number}: {error.text}; {already_sent(sent)}") from None

    while chunk := interruptible(os.read, sys.stdin.fileno(), CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for batch in batched(drafts(body.removesuffix(b"\r") for body in lines)):
            yield batch
            sent += len(batch)
    if rest:
        yield list(drafts([rest]))


def already_sent(count: int) -> str:
    """What to do about the messages of a stream that were sent before an error."""
    if not count:
        return "nothing was sent"
    were, them = ("was", "it") if count == 1 else ("were", "them")
    return f"{plural(count, 'message')} {were} already sent; omit {them} if you retry"


@click.command()
@click.argument("queue")
@click.option("--max", "most", type=Whole(1), default=1, show_default=True, help="Maximum number of messages.")
@click.option("--wait", type=SECONDS, default=0.0, help="How long to wait for the first message. [default: 0]")
@click.option("--visibility-timeout", type=SECONDS, help="Length of the lease. [default: the queue's]")
@click.option("--consumer", help="Name of this consumer; it also receives messages addressed to that recipient.")
@click.option("--ack/--no-ack", default=False, help="Ack after printing. [default: no; prints id and receipt]")
@click.option("--at-most-once", is_flag=True, help="Remove messages before they are handed out; no ack is needed.")
@click.option("--follow", is_flag=True, help="Keep receiving until Ctrl-C or SIGTERM.")
@click.option("--body", "only_body", is_flag=True, help="Print bodies only, one per line.")
@as_json
@target
def receive(
    at: Target, queue: str, most: int, wait: float, ack: bool, follow: bool, only_body: bool, as_json: bool, **how: Any
) -> None:
    """Lease messages and print them.

    Prints id, receipt and body, separated by tabs. A message that is not acked becomes ready again when its
    lease expires. With --ack it is removed once it has been printed. On Ctrl-C or SIGTERM, messages that were
    received and not printed are released; with --at-most-once they are printed first.

    A queue that does not exist is an error; with --wait or --follow the command says so and waits for it.

    \b
    Examples:
      miniq receive emails --wait 5
      miniq receive emails --max 10 --ack --json | jq .body
      miniq receive emails --follow --ack --body
    """
    if removed := how.pop("at_most_once"):
        how["mode"], ack = "at-most-once", False
    if follow:
        wait = wait or LONGEST_WAIT
    regular_end = (KeyboardInterrupt,) if follow else ()
    with suppress(*regular_end), at.open() as client, shield:
        source = client.queue(queue)
        if wait:
            try:
                note_paused(source)  # before a wait that would be in vain
            except QueueNotFound:
                say(f"queue {queue!r} does not exist yet; waiting for its first message")
        waits, left = bool(wait), most
        while left > 0:
            interruptible(time.sleep, 0)  # a signal that came while messages were printed
            step = min(wait, UNINTERRUPTED_WAIT) if removed else wait
            which = min(left, BATCH), step
            messages = uninterrupted(source.receive, *which, **how) if removed else source.receive(*which, **how)
            show_received(source, messages, removed, ack, only_body, as_json)
            if not follow:
                wait = 0.0 if messages else wait - step  # only the first message is waited for
                if not messages and wait <= 0:
                    if left == most and not waits:
                        note_paused(source)
                    break
                left -= len(messages)
        ignore_interrupts()


def note_paused(source: Queue) -> None:
    """Tell people that a queue hands out nothing; raises `QueueNotFound`. With a key that may not read the queue's
    settings, neither is known."""
    with suppress(Forbidden):
        if source.info().settings.paused:
            say(f"queue {source.name!r} is paused; resume it with `miniq queues set {source.name} --no-paused`")


def show_received(
    source: Queue, messages: list[Message], removed: bool, ack: bool, only_body: bool, as_json: bool
) -> None:
    """Print messages, then ack them if asked to; messages that could not be printed are released.

    A signal is handled between two lines, so that each message has been printed or not, and if messages were `removed`
    by receiving them, after all lines. A second signal may cut a line: its message stays leased, or with `ack` is
    released.
    """

    def show(message: Message) -> None:
        if as_json or only_body:
            show_messages([message], as_json)
        else:
            receipt = [] if ack else [message.receipt or "-"]
            click.echo("\t".join([message.id, *receipt, body_text(message)]))
        sys.stdout.flush()

    begun = shown = 0
    try:
        for message in messages:
            if not removed:
                interruptible(select, [], [sys.stdout.fileno()], [])  # its reader may be slow
            begun += 1
            show(message)
            shown += 1
    except (OSError, KeyboardInterrupt) as error:
        broken = isinstance(error, OSError)
        if removed:
            say(f"{plural(len(messages) - shown, 'message')} had been removed from the queue and could not be printed")
            raise
        done = shown if ack and not broken else 0  # how much the reader of a broken pipe has read is unknown
        with suppress(MiniQError):
            source.ack(messages[:done])
            source.release(messages[done if ack else shown if broken else begun :])
        raise
    if ack and messages:
        for message, outcome in zip(messages, uninterrupted(source.ack, messages), strict=True):
            if outcome == "stale":
                say(f"message {message.id} was not acked: its lease had expired and another consumer has it")


def show_messages(messages: Iterable[Message], as_json: bool) -> None:
    """Print messages as JSON, or only their bodies."""
    for message in messages:
        json_line(message_record(message)) if as_json else raw(body_bytes(message) + b"\n")


def pages(source: Queue, status: Status | None, after: str | None, most: int | None) -> Iterator[MessagePage[Message]]:
    """Messages in pages, without consuming them."""
    left = sys.maxsize if most is None else most
    while left > 0:
        page = source.peek(status, after, min(left, BATCH))
        yield page
        left -= len(page)
        after = page.next
        if after is None:
            return


def receives(message: Message) -> int:
    """How often a message was received; of a dead letter, before it died."""
    return message.dead.receives if message.dead else message.receives


def show_tasks(messages: list[Message], as_json: bool) -> None:
    """Messages of Celery as tasks; others have no task."""
    tasks = [(message, task_of(message.id, message.headers, message.data)) for message in messages]
    if as_json:
        for message, task in tasks:
            about = None if task is None else task._asdict()
            json_line({"id": message.id, "status": message.status, "receives": message.receives, "task": about})
    elif messages:
        rows = [
            (m.id, m.status, receives(m), task.name, task.args, task.eta or "-", task.retries)
            if task is not None
            else (m.id, m.status, receives(m), "-", "-", "-", "-")
            for m, task in tasks
        ]
        table(("ID", "STATUS", "RECEIVES", "TASK", "ARGS", "ETA", "RETRIES"), rows, numbers=(2, 6))


@click.command()
@click.argument("queue")
@status
@click.option("--max", "most", type=Whole(1), default=20, show_default=True, help="Maximum number of messages.")
@click.option("--after", metavar="CURSOR", help="Continue where an earlier peek ended.")
@click.option("--id", metavar="ID", help="Only this message.")
@click.option("--body", "only_body", is_flag=True, help="Print bodies only, one per line.")
@click.option("--celery", "as_tasks", is_flag=True, help="Show tasks of Celery: name, arguments, eta and retries.")
@as_json
@target
def peek(at: Target, queue: str, id: str | None, only_body: bool, as_tasks: bool, as_json: bool, **which: Any) -> None:
    """Look at messages without consuming them.

    Messages are shown in the order in which they would be received. RECEIVES of a dead letter is how often it was
    received before it died; with --json, that is in `dead`.

    \b
    Examples:
      miniq peek emails
      miniq peek emails.dead --json | jq .dead
      miniq peek emails --status leased --max 1000
      miniq peek celery --celery
    """
    if only_body and as_tasks:
        raise click.UsageError("--body and --celery exclude each other; use one of them.")
    messages: list[Message] = []
    following = None
    with at.open() as client:
        source = client.queue(queue)
        if id is not None:
            messages.append(source.get(id))
        else:
            for page in pages(source, **which):
                messages += page
                following = page.next
    if as_tasks:
        show_tasks(messages, as_json)
    elif as_json or only_body:
        show_messages(messages, as_json)
    elif messages:
        now = datetime.now(UTC)
        heads = ["ID", "STATUS", "PRIORITY", "RECEIVES", "AGE"]
        rows = [[m.id, m.status, m.priority, receives(m), age((now - m.sent_at).total_seconds())] for m in messages]
        errors = [m.error or (m.dead.error if m.dead else None) for m in messages]
        if any(errors):
            heads.append("ERROR")
            for row, error in zip(rows, errors, strict=True):
                row.append(first_line(error or "-"))
        for row, message in zip(rows, messages, strict=True):
            row.append(body_text(message))
        table((*heads, "BODY"), rows, numbers=(2, 3, 4))
    if following is not None:
        say(f"there may be more; continue with --after {following}")
