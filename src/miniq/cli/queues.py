"""`miniq queues`, `purge`, `redrive`: whole queues."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import click

from miniq.api.replies import queue_reply
from miniq.cli.flags import (
    NUMBER,
    RATE,
    RATE_OR_NONE,
    SECONDS,
    SIZE,
    Parsed,
    Target,
    Verbs,
    Whole,
    as_json,
    note_unreadable,
    target,
    yes,
)
from miniq.cli.output import age, exact_duration, json_line, plural, result, size, table
from miniq.cli.root import say
from miniq.client._sync.queue import Queue
from miniq.errors import Forbidden, InvalidRequest, MessageNotFound, QueueNotFound
from miniq.message import ConfiguredQueue, RedriveProgress, Retry

F = TypeVar("F", bound=Callable[..., Any])
DEAD = ".dead"
"""How the name of a dead-letter queue ends by default."""
POLL = 0.2
"""Seconds between two checks of a running redrive."""
DURATIONS = frozenset({"visibility_timeout", "retention", "delay", "dedup_window", "claim_retention", "results"})
LIMITS = frozenset({"max_length", "max_bytes", "max_in_flight", "rate"})
RETRY_DURATIONS = frozenset({"delay", "max"})


@click.group(cls=Verbs, invoke_without_command=True)
@as_json
@target
@click.pass_context
def queues(ctx: click.Context, at: Target, as_json: bool) -> None:
    """List, create, change and delete queues.

    Without a subcommand, it lists all queues with their counts.

    \b
    Examples:
      miniq queues
      miniq queues --json | jq 'select(.counts.ready > 0) | .name'
      miniq queues create emails --visibility-timeout 2m --max-receives 5
      miniq queues set emails --history events
    """
    ctx.obj = at
    if ctx.invoked_subcommand is not None:
        return
    with at.open() as client:
        infos = client.queues()
        note_unreadable(client, "queues")
    if as_json:
        for info in infos:
            json_line(queue_reply(info))
        return
    rows = []
    for info in infos:
        counts = info.counts
        oldest = "-" if counts.oldest is None else age(time.time() - counts.oldest / 1e6)
        rows.append([info.name, counts.ready, counts.delayed, counts.leased, size(counts.bytes), oldest])
    heads = ["QUEUE", "READY", "DELAYED", "LEASED", "BYTES", "OLDEST"]
    if any(info.settings.paused for info in infos):
        heads.append("STATE")
        for row, info in zip(rows, infos, strict=True):
            row.append("paused" if info.settings.paused else "")
    table(heads, rows, numbers=(1, 2, 3, 4, 5))


MAX_RECEIVES = Parsed("count", lambda text: text if text == "unlimited" else int(text), "a whole number or unlimited")


def settings(command: F) -> F:
    """Give a command one flag for each setting of a queue."""
    for add in (
        click.option(
            "--history", type=click.Choice(["off", "events", "full"]), help="What is recorded of each message."
        ),
        click.option(
            "--tag", "tags", multiple=True, metavar="NAME=VALUE", help="A tag; may be repeated. NAME= removes one."
        ),
        click.option("--paused/--no-paused", default=None, help="Accept messages, but hand out none."),
        click.option(
            "--group-batch/--no-group-batch",
            default=None,
            help="Whether one receive may get several messages of a group.",
        ),
        click.option("--rate", type=RATE_OR_NONE, help="Maximum messages handed out per second; 0 is unlimited."),
        click.option("--max-in-flight", type=Whole(0), help="Maximum leased messages; 0 is unlimited."),
        click.option("--results", type=SECONDS, help="How long results are kept; 0 is not at all."),
        click.option("--claim-retention", type=SECONDS, help="How long acked claims can still be read."),
        click.option("--max-bytes", type=SIZE, help="Maximum size of all messages; 0 is unlimited."),
        click.option("--max-length", type=Whole(0), help="Maximum number of messages; 0 is unlimited."),
        click.option("--dedup-window", type=SECONDS, help="How long a dedup id is remembered."),
        click.option("--delay", type=SECONDS, help="Delay of messages that are sent without one."),
        click.option("--retention", type=SECONDS, help="How long messages are kept."),
        click.option("--retry-jitter", type=NUMBER, help="Share by which that time varies at random, 0 to 1."),
        click.option("--retry-max", type=SECONDS, help="Longest time until a failed message is tried again."),
        click.option("--retry-factor", type=NUMBER, help="How many times longer after each further failure."),
        click.option("--retry-delay", type=SECONDS, help="Time until a message that failed first is tried again."),
        click.option(
            "--dead-letter-queue", metavar="QUEUE", help="Where a message goes after that. [default: QUEUE.dead]"
        ),
        click.option("--max-receives", type=MAX_RECEIVES, help="Maximum receives of a message, or `unlimited`."),
        click.option("--visibility-timeout", type=SECONDS, help="Length of a lease."),
    ):
        command = add(command)
    return command


def _tag(text: str) -> tuple[str, str | None]:
    """The name and value of a tag; no value removes it."""
    name, is_given, value = text.partition("=")
    if not name or not is_given:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE, or NAME= to remove a tag.", param_hint="--tag")
    return name, value or None


def given(flags: dict[str, Any]) -> dict[str, Any]:
    """The settings that were given."""
    changes = {name: value for name, value in flags.items() if value is not None}
    if tags := changes.pop("tags", ()):
        changes["tags"] = dict(map(_tag, tags))
    retry = {name: changes.pop(f"retry_{name}") for name in Retry.__struct_fields__ if f"retry_{name}" in changes}
    if retry:
        changes["retry"] = retry
    if changes.get("max_receives") == "unlimited":
        changes["max_receives"] = None
    return changes


@queues.command()
@click.argument("queue")
@as_json
@target
def show(at: Target, queue: str, as_json: bool) -> None:
    """Show a queue's settings and counts.

    \b
    Example:
      miniq queues show emails
    """
    with at.open() as client:
        show_queue(client.queue(queue).info(), as_json)


@queues.command()
@click.argument("queue")
@settings
@as_json
@target
def create(at: Target, queue: str, as_json: bool, **flags: Any) -> None:
    """Create a queue; fails if it exists.

    \b
    Example:
      miniq queues create emails --visibility-timeout 2m --max-receives 5
    """
    with at.open() as client:
        created = client.queue(queue)
        with suppress(QueueNotFound):
            require(created)
            raise click.ClickException(f"queue {queue!r} exists; change it with `miniq queues set`")
        show_queue(created.configure(**given(flags)), as_json)


@queues.command("set")
@click.argument("queue")
@settings
@as_json
@target
def set_(at: Target, queue: str, as_json: bool, **flags: Any) -> None:
    """Change settings of a queue; the others stay.

    \b
    Example:
      miniq queues set emails --max-receives unlimited --retention 30d
    """
    changes = given(flags)
    if not changes:
        raise click.UsageError("Name at least one setting, such as --visibility-timeout 2m.")
    with at.open() as client:
        try:
            require(client.queue(queue))
        except QueueNotFound as error:
            text = f"{error.text}; create it with `miniq queues create {queue}`"
            raise QueueNotFound(text, field=error.field) from None
        show_queue(client.queue(queue).configure(**changes), as_json)


@queues.command()
@click.argument("queue")
@yes
@target
def delete(at: Target, queue: str, yes: bool) -> None:
    """Delete a queue and all its messages.

    \b
    Example:
      miniq queues delete emails --yes
    """
    with at.open() as client:
        doomed = client.queue(queue)
        if not yes:
            confirm(f"Delete queue {queue} with {contents(doomed) or 'all its messages'}?", yes, "removed")
        doomed.delete()
    click.echo(f"deleted {queue}")


@click.command()
@click.argument("queue")
@yes
@as_json
@target
def purge(at: Target, queue: str, yes: bool, as_json: bool) -> None:
    """Remove all messages of a queue.

    Leased messages are removed too, and can no longer be acked.

    \b
    Example:
      miniq purge emails --yes
    """
    with at.open() as client:
        source = client.queue(queue)
        if not yes:
            confirm(f"Remove {contents(source) or 'all messages'} of queue {queue}?", yes, "removed")
        purged = source.purge()
    result(as_json, {"purged": purged}, f"purged {plural(purged, 'message')}")


@click.command()
@click.argument("queue")
@click.option("--to", metavar="QUEUE", help="Queue to move them to. [default: where each came from]")
@click.option("--id", "ids", multiple=True, metavar="ID", help="Only this message; may be repeated.")
@click.option("--rate", type=RATE, help="Messages per second.")
@click.option("--wait/--no-wait", default=True, help="With --rate, whether to wait until it is done. [default: wait]")
@as_json
@target
def redrive(
    at: Target, queue: str, to: str | None, ids: tuple[str, ...], rate: float | None, wait: bool, as_json: bool
) -> None:
    """Move dead letters back where they came from.

    QUEUE is the dead-letter queue.

    \b
    Examples:
      miniq redrive emails.dead
      miniq redrive emails.dead --to emails.again --rate 10
    """
    with at.open() as client:
        source = client.queue(queue)
        is_new = to is not None and is_missing(client.queue(to))
        done = source.redrive(ids or None, to, rate)
        while done.running and (wait or not at.is_remote):
            time.sleep(POLL)
            try:
                done = source.info().redrive or RedriveProgress(done.moved, done.skipped, False)
            except Forbidden as error:
                say(f"the redrive goes on in the broker, and its progress is not shown: {error.text}")
                break
            if sys.stderr.isatty():
                click.echo(f"\rmoved {done.moved}", nl=not done.running, err=True)
    running = ", still running" if done.running else ""
    why = ", ".join(f"{count} {WHY_SKIPPED.get(reason, reason)}" for reason, count in done.reasons.items())
    skipped = f", skipped {done.skipped}: {why}" if done.skipped else ""
    where = f" to {to!r} (created)" if is_new and done.moved else ""  # perhaps it was misspelt
    result(as_json, done, f"moved {plural(done.moved, 'message')}{where}{skipped}{running}")


WHY_SKIPPED = {
    "no_source": "are not dead letters",
    "expired": "past the retention of the target",
    "leased": "that consumers hold",
    "missing": "not in the queue",
    "too_many_queues": "whose origin was deleted and cannot be created again, there are too many queues",
    "queue_not_found": "whose origin was deleted",
    "queue_full": "for which the target has no room",
    "no_space": "for which the disk has no space",
    "forbidden": "to whose origin this key may not send",
}


def require(queue: Queue) -> None:
    """Raise `QueueNotFound` if there is no such queue. Needs only the right to manage it: to be told that a message
    cannot be removed."""
    with suppress(MessageNotFound):
        queue.remove("none")


def is_missing(queue: Queue) -> bool:
    """Whether there is no such queue; False if this key may not know, or there can be none."""
    try:
        queue.info()
    except QueueNotFound:
        return True
    except (Forbidden, InvalidRequest):
        pass
    return False


def contents(queue: Queue) -> str | None:
    """How many messages a queue has, in words; None if this key may not read it."""
    with suppress(Forbidden):
        return plural(queue.info().counts.total, "message")
    return None


def confirm(question: str, yes: bool, change: str = "changed") -> None:
    """Ask for confirmation, unless --yes was given; without a terminal that is not possible. `change` is what happens
    otherwise."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Not a terminal; use --yes.")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # ends the line of the question
        raise
    if not agreed:
        click.echo(f"Cancelled, nothing {change}", err=True)
        click.get_current_context().exit(1)


def show_queue(info: ConfiguredQueue, as_json: bool) -> None:
    """A queue with its settings."""
    if as_json:
        json_line(queue_reply(info))
        return
    click.echo(f"queue               {info.name}")
    for name in info.settings.__struct_fields__:
        value = getattr(info.settings, name)
        text = setting_text(name, value)
        if name == "dead_letter_queue" and value is None and not info.name.endswith(DEAD):
            text = f"{info.name}{DEAD} (default)"
        click.echo(f"{name:<19} {text}")
    counts = info.counts
    if counts is not None:
        click.echo(f"messages            {counts.ready} ready, {counts.delayed} delayed, {counts.leased} leased")
    if info.redrive is not None and info.redrive.running:
        say(f"a redrive is running: {info.redrive.moved} moved")


def setting_text(name: str, value: Any) -> str:
    """A setting of a queue for people."""
    if name in LIMITS and value == 0:
        return "no limit"
    match value:
        case Retry():
            fields = {field: getattr(value, field) for field in value.__struct_fields__}
            texts = {name: exact_duration(n) if name in RETRY_DURATIONS else f"{n:g}" for name, n in fields.items()}
            return ", ".join(f"{field} {text}" for field, text in texts.items())
        case dict():
            return ", ".join(f"{field}={text}" for field, text in value.items()) or "-"
        case bool():
            return "yes" if value else "no"
        case None:
            return "unlimited" if name == "max_receives" else "-"
        case float():
            return exact_duration(value) if name in DURATIONS else f"{value:g}"
        case _:
            return str(value)
