"""`miniq schedules`: messages that are sent when their time comes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from miniq.api.schedules import wire_schedule
from miniq.cli.flags import MOMENT, SECONDS, Target, Verbs, Whole, as_json, note_unreadable, pairs_option, target
from miniq.cli.messages import draft_of
from miniq.cli.output import bytes_text, duration, exact_duration, first_line, json_line, plural, table
from miniq.cli.root import say
from miniq.message import JSON, Draft
from miniq.schedule import COUNTED, Firing, Schedule


@click.group(cls=Verbs, invoke_without_command=True, aliases={"rm": "delete"})
@as_json
@target
@click.pass_context
def schedules(ctx: click.Context, at: Target, as_json: bool) -> None:
    """List, set, run, pause and delete schedules.

    Without a subcommand, it lists all schedules with their next moments, in the time zone of this terminal.

    \b
    Examples:
      miniq schedules
      miniq schedules set nightly --queue reports --cron "0 3 * * *" --timezone Europe/Berlin '{"report": "sales"}'
      miniq schedules run nightly
      miniq schedules pause nightly
    """
    ctx.obj = at
    if ctx.invoked_subcommand is not None:
        return
    with at.open() as client:
        found = client.schedules()
        note_unreadable(client, "schedules")
    if as_json:
        for schedule in found:
            json_line(wire_schedule(schedule, "json"))
        return
    rows = [
        [
            schedule.name,
            schedule.queue or f"topic {schedule.topic}",
            timing(schedule),
            "paused" if schedule.paused else local(schedule.next[0]) if schedule.next else "-",
            last(schedule.results[0]) if schedule.results else "-",
        ]
        for schedule in found
    ]
    table(["SCHEDULE", "TARGET", "WHEN", "NEXT", "LAST"], rows)


@schedules.command("set")
@click.argument("name")
@click.argument("body", required=False)
@click.option("--queue", help="Queue to send to.")
@click.option("--topic", help="Topic to publish to, instead of a queue.")
@click.option("--cron", metavar="EXPRESSION", help="Minute, hour, day of month, month, day of week.")
@click.option("--every", type=SECONDS, help="Time between two messages, instead of --cron.")
@click.option("--at", "moment", type=MOMENT, help="The only moment, with an offset from UTC, instead of --cron.")
@click.option("--timezone", default="UTC", show_default=True, help="Time zone of --cron, such as Europe/Berlin.")
@click.option(
    "--catch-up",
    type=click.Choice(["skip", "last", "all"]),
    default="last",
    show_default=True,
    help="Which moments are sent later if no broker runs: none, the last or all.",
)
@click.option("--paused/--no-paused", default=None, help="Send nothing. [default: as it is]")
@click.option("--text", is_flag=True, help="Send the body as text even if it is JSON.")
@click.option("--content-type", metavar="TYPE", help="Media type of the body, such as text/plain.")
@pairs_option("--header", "headers", help="A header; may be repeated.")
@click.option("--priority", type=Whole(0, 9), default=0, help="Higher priorities are received first.")
@click.option("--delay", type=SECONDS, help="Time until a message can be received.")
@click.option("--ttl", type=SECONDS, help="Discard a message that is not received within this time.")
@click.option("--key", help="Business key, free text.")
@click.option("--recipient", help="Only the consumer of this name receives it.")
@click.option("--group", help="Messages of one group are received in order, one at a time.")
@as_json
@target
def set_(
    at: Target, name: str, body: str | None, moment: datetime | None, text: bool, as_json: bool, **flags: Any
) -> None:
    """Create a schedule, or replace its definition.

    A BODY that is valid JSON is sent as that value, anything else as text; without one, null is sent.

    \b
    Examples:
      miniq schedules set nightly --queue reports --cron "0 3 * * *" --timezone Europe/Berlin '{"report": "sales"}'
      miniq schedules set poll --queue crawl --every 5m https://example.com
      miniq schedules set launch --queue emails --at 2030-01-01T00:00:00Z '{"template": "launch"}'
    """
    when = {field: flags.pop(field) for field in ("queue", "topic", "cron", "every", "timezone", "catch_up", "paused")}
    flags["headers"] = flags["headers"] or None
    draft = draft_of(b"null" if body is None else body.encode("utf-8", "surrogateescape"), text, flags)
    options = flags | {"content_type": draft.content_type}
    with at.open() as client:
        made = client.schedule(name, body=draft.body, at=moment, **when, **options)
    show_schedule(made, as_json)
    if body is None:
        say("without a BODY, each message is null")


@schedules.command()
@click.argument("name")
@as_json
@target
def show(at: Target, name: str, as_json: bool) -> None:
    """Show a schedule. Prints its message, its next moments in the time zone of this terminal, and its last results.

    \b
    Example:
      miniq schedules show nightly
    """
    with at.open() as client:
        show_schedule(client.get_schedule(name), as_json)


@schedules.command()
@click.argument("name")
@as_json
@target
def run(at: Target, name: str, as_json: bool) -> None:
    """Send the message of a schedule now; its next moment stays.

    \b
    Example:
      miniq schedules run nightly
    """
    with at.open() as client:
        schedule = client.run_schedule(name)
    if as_json:
        json_line(wire_schedule(schedule, "json"))
    else:
        click.echo(schedule.results[0].id or "sent")
        if schedule.results[0].queues == 0:
            say(f"no subscription of topic {schedule.topic!r} matched: in 0 queues")


@schedules.command()
@click.argument("name")
@as_json
@target
def pause(at: Target, name: str, as_json: bool) -> None:
    """Send nothing until the schedule is resumed.

    Moments that pass meanwhile are not sent later.

    \b
    Example:
      miniq schedules pause nightly
    """
    with at.open() as client:
        show_schedule(client.pause_schedule(name), as_json)


@schedules.command()
@click.argument("name")
@as_json
@target
def resume(at: Target, name: str, as_json: bool) -> None:
    """Go on with a paused schedule, from its next moment.

    \b
    Example:
      miniq schedules resume nightly
    """
    with at.open() as client:
        show_schedule(client.resume_schedule(name), as_json)


@schedules.command()
@click.argument("name")
@target
def delete(at: Target, name: str) -> None:
    """Delete a schedule; what it has sent stays.

    \b
    Example:
      miniq schedules delete nightly
    """
    with at.open() as client:
        client.delete_schedule(name)
    click.echo(f"deleted {name}")


def show_schedule(schedule: Schedule, as_json: bool) -> None:
    """A schedule with its next moments and last results."""
    if as_json:
        json_line(wire_schedule(schedule, "json"))
        return
    lines = {
        "schedule": schedule.name,
        "queue" if schedule.topic is None else "topic": schedule.queue or schedule.topic,
        "when": timing(schedule),
        "catch_up": schedule.catch_up,
        "state": "paused" if schedule.paused else "active" if schedule.next else "finished",
        **({} if schedule.draft is None else message_lines(schedule.draft)),
    }
    for head, text in lines.items():
        click.echo(f"{head:<12} {text}")
    for position, moment in enumerate(schedule.next):
        click.echo(f"{'next' if position == 0 else '':<12} {local(moment)}")
    for position, firing in enumerate(schedule.results):
        click.echo(f"{'last' if position == 0 else '':<12} {last(firing)}")


def message_lines(draft: Draft) -> dict[str, str]:
    """The message of a schedule for people: its body, and the fields that it has."""
    lines = {"body": bytes_text(draft.body, draft.content_type)}
    if draft.content_type != JSON:
        lines["content_type"] = draft.content_type
    if draft.headers:
        lines["headers"] = ", ".join(f"{name}={value}" for name, value in draft.headers.items())
    if draft.priority:
        lines["priority"] = str(draft.priority)
    for name, seconds in (("delay", draft.delay), ("ttl", draft.ttl)):
        if seconds is not None:
            lines[name] = exact_duration(seconds)
    names = {"key": draft.key, "recipient": draft.recipient, "group": draft.group}
    return lines | {name: text for name, text in names.items() if text is not None}


def timing(schedule: Schedule) -> str:
    """When a schedule is due, in words."""
    if schedule.cron is not None:
        return f"{schedule.cron} {schedule.timezone}"
    if schedule.every is not None:
        return f"every {duration(schedule.every)}"
    return "-" if schedule.at is None else f"at {local(schedule.at)}"


def local(moment: datetime) -> str:
    """A moment in the time zone of this terminal."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def last(firing: Firing) -> str:
    """What happened at a moment, in words."""
    outcome = "run" if firing.on_request else firing.outcome
    detail = f": {first_line(firing.error)}" if firing.error else f" {firing.id}" if firing.id else ""
    if firing.queues is not None:
        detail += f" in {plural(firing.queues, 'queue')}"
    count = f" ({firing.count} moments)" if firing.count > 1 else ""
    if firing.until is not None:
        count = f" ({many(firing.count)} moments up to {local(firing.until)})"
    return f"{local(firing.moment)} {outcome}{count}{detail}"


def many(count: int) -> str:
    """How many moments were skipped."""
    return f"{count} or more" if count == COUNTED else str(count)
