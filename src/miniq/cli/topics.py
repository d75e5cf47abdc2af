"""`miniq topics`, `publish`: topics, their subscriptions, and messages to them."""

from __future__ import annotations

import sys
from typing import Any, Literal

import click
import msgspec

from miniq.cli.flags import SECONDS, Parsed, Target, Verbs, as_json, note_unreadable, pairs_option, target, yes
from miniq.cli.messages import batches_of, message_options
from miniq.cli.output import exact_duration, json_line, line, plural, table
from miniq.cli.queues import confirm
from miniq.cli.root import ignore_interrupts, say
from miniq.client.interrupts import shield
from miniq.topic import ConfiguredTopic, Subscription, TopicInfo

FILTER = Parsed(
    "json", lambda text: msgspec.json.decode(text, type=dict[str, Any]), 'an object such as {"store": ["berlin"]}'
)
BODY = Parsed("json", lambda text: msgspec.json.decode(text, type=dict[str, Any]), 'an object such as {"total": 7}')


@click.command()
@click.argument("topic")
@message_options
@as_json
@target
def publish(at: Target, topic: str, as_json: bool, **given: Any) -> None:
    """Publish messages to a topic and print their ids.

    Each message is copied to the queues of all subscriptions whose pattern and filter match its key and headers. A
    BODY that is valid JSON is published as that value, anything else as text. Without a BODY, or with `-`, each line
    of stdin is one message. A message that matches no subscription is in no queue; stderr says so.

    \b
    Examples:
      miniq publish orders '{"id": 7}' --key orders.7.created --header country=de
      cat events.txt | miniq publish events
    """
    batches = batches_of(**given)
    unmatched = 0
    with at.open() as client, shield:  # the ids of what was published are printed
        for batch in batches:
            published = client.topic(topic).publish_many(batch)
            for id in published.ids:
                line(as_json, {"id": id, "queues": published.queues}, id)
            sys.stdout.flush()
            unmatched += 0 if published.queues else len(published.ids)
        ignore_interrupts()
        if unmatched:
            say(f"no subscription of topic {topic!r} matched: {plural(unmatched, 'message')} in 0 queues")


@click.group(cls=Verbs, invoke_without_command=True)
@as_json
@target
@click.pass_context
def topics(ctx: click.Context, at: Target, as_json: bool) -> None:
    """List, create, change and delete topics. Subscribe queues to them.

    Without a subcommand, it lists all topics.

    \b
    Examples:
      miniq topics
      miniq topics subscribe orders billing --pattern 'orders.*.created'
      miniq topics try orders --key orders.7.created
    """
    ctx.obj = at
    if ctx.invoked_subcommand is not None:
        return
    with at.open() as client:
        infos = client.topics()
        note_unreadable(client, "topics")
    if as_json:
        for info in infos:
            json_line(info)
        return
    rows = [
        [info.name, len(info.subscriptions), len({one.queue for one in info.subscriptions}), *_rates(info)]
        for info in infos
    ]
    table(["TOPIC", "SUBSCRIPTIONS", "QUEUES", "PUBLISHED/S", "COPIED/S"], rows, numbers=(1, 2, 3, 4))


def _rates(info: TopicInfo) -> list[str]:
    return [f"{info.rates.published:g}", f"{info.rates.copied:g}"]


@topics.command()
@click.argument("topic")
@as_json
@target
def show(at: Target, topic: str, as_json: bool) -> None:
    """Show a topic's settings, subscriptions and rates.

    \b
    Example:
      miniq topics show orders
    """
    with at.open() as client:
        show_topic(client.topic(topic).info(), as_json)


@topics.command("set")
@click.argument("topic")
@click.option("--dedup-window", type=SECONDS, help="How long a dedup id is remembered.")
@click.option("--history", type=click.Choice(["off", "events"]), help="Whether publications are recorded.")
@as_json
@target
def set_(at: Target, topic: str, as_json: bool, **flags: Any) -> None:
    """Create a topic, or change its settings.

    \b
    Example:
      miniq topics set orders --history events
    """
    changes: Any = {name: value for name, value in flags.items() if value is not None}
    with at.open() as client:
        show_topic(client.topic(topic).configure(**changes), as_json)


@topics.command()
@click.argument("topic")
@yes
@target
def delete(at: Target, topic: str, yes: bool) -> None:
    """Delete a topic with its subscriptions; the queues stay.

    \b
    Example:
      miniq topics delete orders --yes
    """
    with at.open() as client:
        doomed = client.topic(topic)
        if not yes:
            count = len(doomed.info().subscriptions)
            confirm(f"Delete topic {topic} with {plural(count, 'subscription')}?", yes, "removed")
        doomed.delete()
    click.echo(f"deleted {topic}")


@topics.command()
@click.argument("topic")
@click.argument("name")
@click.option("--queue", metavar="QUEUE", help="The queue that gets copies. [default: NAME]")
@click.option("--pattern", help="Keys to match: words separated by dots, * is one word, # any number.")
@click.option("--filter", type=FILTER, help="Headers to match, in JSON: Amazon SNS's filter policy grammar.")
@click.option("--filter-on", type=click.Choice(["headers", "body"]), default="headers", help="What --filter matches.")
@click.option("--envelope", is_flag=True, help="Wrap copies in the JSON notification of Amazon SNS.")
@as_json
@target
def subscribe(
    at: Target,
    topic: str,
    name: str,
    queue: str | None,
    pattern: str | None,
    filter: Any,
    filter_on: Literal["headers", "body"],
    envelope: bool,
    as_json: bool,
) -> None:
    """Subscribe a queue to a topic. An earlier subscription NAME is replaced.

    \b
    Examples:
      miniq topics subscribe orders billing --pattern 'orders.*.created'
      miniq topics subscribe orders large --queue review --filter '{"total": [{"numeric": [">", 1000]}]}'
    """
    with at.open() as client:
        added: dict[str, str] | None = {} if envelope else None
        made = client.topic(topic).subscribe(
            name, queue, pattern=pattern, filter=filter, filter_on=filter_on, envelope=added
        )
    line(as_json, made, f"queue {made.queue} is subscribed to {topic} as {made.name}")


@topics.command()
@click.argument("topic")
@click.argument("name")
@target
def unsubscribe(at: Target, topic: str, name: str) -> None:
    """Remove a subscription; its queue stays.

    \b
    Example:
      miniq topics unsubscribe orders billing
    """
    with at.open() as client:
        client.topic(topic).unsubscribe(name)
    click.echo(f"unsubscribed {name}")


@topics.command("try")
@click.argument("topic")
@click.option("--key", help="The key of the message.")
@pairs_option("--header", "headers", help="A header; may be repeated.")
@click.option("--body", type=BODY, help="The body, in JSON.")
@as_json
@target
def try_(at: Target, topic: str, key: str | None, headers: dict[str, str], body: Any, as_json: bool) -> None:
    """Show which subscriptions a message would match. Nothing is sent.

    \b
    Example:
      miniq topics try orders --key orders.7.created --header country=de
    """
    with at.open() as client:
        matches = client.topic(topic).match(key, headers or None, body)
    if as_json:
        for match in matches:
            json_line(match)
        return
    rows = [[match.name, match.queue, "yes" if match.matches else "no", match.reason or ""] for match in matches]
    table(["SUBSCRIPTION", "QUEUE", "MATCHES", "WHY NOT"], rows)


def show_topic(info: ConfiguredTopic, as_json: bool) -> None:
    """A topic with its settings and subscriptions."""
    if as_json:
        json_line(info)
        return
    click.echo(f"topic         {info.name}")
    for name in info.settings.__struct_fields__:
        value = getattr(info.settings, name)
        if value == {}:
            continue
        click.echo(f"{name:<13} {exact_duration(value) if name == 'dedup_window' else value}")
    if info.rates is not None:
        click.echo(f"rates         {info.rates.published:g}/s published, {info.rates.copied:g}/s copied")
    if info.subscriptions:
        click.echo()
        table(["SUBSCRIPTION", "QUEUE", "PATTERN", "FILTER"], [_row(one) for one in info.subscriptions])


def _row(subscription: Subscription) -> list[str]:
    found = "" if subscription.filter is None else msgspec.json.encode(subscription.filter).decode()
    return [subscription.name, subscription.queue, subscription.pattern or "", found]
