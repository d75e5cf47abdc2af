"""`miniq pipeline NAME`: the pipelines of `miniq.spark.pipelines` as commands."""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click
import msgspec

from miniq.cli.flags import SECONDS, Target, summary_json, target
from miniq.cli.output import json_line, plural, size
from miniq.cli.processes import reachable
from miniq.cli.root import say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from miniq.spark.pipelines import Run, Summary
    from miniq.spark.pipelines.runs import Progress

ECHO = 1.0
"""Seconds within which a second signal counts as the first: some programs pass on a signal that all processes got."""

F = TypeVar("F", bound=Callable[..., Any])
Work = Callable[["SparkSession", "Run"], "Summary"]


@click.group(
    epilog="All take --master for where Spark runs: local[*] is this machine, sc://HOST:PORT a Spark Connect server. "
    "Needs pip install 'miniq[spark]', which brings a Java if there is none."
)
def pipeline() -> None:
    """Move queues and history with Apache Spark.

    \b
    Examples:
      miniq pipeline ingest 'orders/*.jsonl' orders
      miniq pipeline drain orders orders-lake
      miniq pipeline archive history-lake
      miniq pipeline report history-lake report
    """


def pairs(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    """`NAME=VALUE`, as often as there are."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", ctx, param)
        found[name.strip()] = value
    return found


def spark_options(command: F) -> F:
    """The options of Spark itself."""
    command = click.option(
        "--conf", multiple=True, callback=pairs, metavar="NAME=VALUE", help="Spark setting; may be repeated."
    )(command)
    return click.option(
        "--master", envvar="MINIQ_SPARK_MASTER", default="local[*]", show_default=True, help="Where Spark runs."
    )(command)


def runs(checkpoint: bool = True, continuous: bool = True, broker: bool = True) -> Callable[[F], F]:
    """How a pipeline runs: the options that most of them share."""

    def decorate(command: F) -> F:
        if continuous:
            command = click.option(
                "--every", type=SECONDS, default=0.0, help="With --continuous, time between two batches."
            )(command)
            command = click.option(
                "--continuous",
                is_flag=True,
                help="Keep running until Ctrl-C; otherwise process what is there now and exit.",
            )(command)
        if checkpoint:
            command = click.option("--checkpoint", metavar="DIR", help="Folder that records its progress.")(command)
        command = summary_json(spark_options(command))
        if not broker:
            return command
        command = click.option(
            "--option", "options", multiple=True, callback=pairs, metavar="NAME=VALUE",
            help="Option of format('miniq'), such as partitions=4; may be repeated.",
        )(command)  # fmt: skip
        return cast(F, target(command))

    return decorate


def perform(at: Target | None, work: Work, *, master: str, conf: dict[str, str], as_json: bool, **how: Any) -> int:
    """Start Spark, run one pipeline, and tell what it did; the exit code. Without a broker, it needs none."""
    from miniq.spark.sessions import check_spark, session

    check_spark()
    from miniq.spark.pipelines.runs import Run, failure

    shown = sys.stderr.isatty()
    with nullcontext() if at is None else reachable(at) as broker:
        if broker is not None:
            with broker.open() as client:
                client.queues()  # whether it is there people want to know before Spark has started
            how |= {"url": broker.url, "api_key": broker.api_key}
        if shown:
            click.echo("starting Spark…", err=True, nl=False)
        spark = session(master, app="miniq pipeline", config=conf)
        with asked_to_stop() as stop, progress_line(shown) as progress:
            run = Run(progress=progress, stop=stop, **how)
            try:
                summary = work(spark, run)
            except Exception as error:
                raise failure(error) from error
        spark.stop()
    tell(summary, as_json)
    if summary.stopped and not run.continuous:
        say("interrupted; run it again to continue")
        return 1
    return 0


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed or SIGTERM came. A second one does not wait for the end of a batch; that ends at
    once, as a crash would, after which the next run goes on just the same."""
    asked: list[float] = []

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(time.monotonic())
        if asked[-1] - asked[0] > ECHO:
            say("interrupted")
            os._exit(1)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def progress_line(shown: bool) -> Iterator[Callable[[Progress], None] | None]:
    """One line on stderr that is written over, if somebody watches."""
    if not shown:
        yield None
        return

    def show(progress: Progress) -> None:
        rate = progress.messages / progress.seconds if progress.seconds else 0
        text = f"{progress.messages:,} in {plural(progress.batches, 'batch')}, {rate:,.0f} per second"
        click.echo(f"\r\x1b[K{text.replace('batchs', 'batches')}", err=True, nl=False)

    try:
        yield show
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


def tell(summary: Summary, as_json: bool) -> None:
    """What a run did, on stdout."""
    if as_json:
        told = msgspec.to_builtins(summary)
        json_line(told | told.pop("details", {}))
        return
    what = {"archive": "record", "report": "record", "reprocess": "dead letter"}.get(summary.pipeline, "message")
    lines = [f"{summary.pipeline}: {plural(summary.messages, what)} in {summary.seconds:.1f} s"]
    for name, value in summary.details.items():
        lines.append(f"  {name.replace('_', ' ')}: {size(value) if name == 'bytes' else value}")
    if summary.checkpoint is not None:
        lines.append(f"  checkpoint: {summary.checkpoint}")
    click.echo("\n".join(lines))


SHARED = ("as_json", "master", "conf", "options", "checkpoint", "continuous", "every")


def command(**how: bool) -> Callable[[Callable[..., Work]], click.Command]:
    """A command whose function says what to do with a session and a run; all the rest is `perform`."""

    def decorate(function: Callable[..., Work]) -> click.Command:
        @functools.wraps(function)
        def called(at: Target | None = None, **given: Any) -> int:
            shared = {name: given.pop(name) for name in SHARED if name in given}
            return perform(at, function(**given), **shared)

        made: click.Command = pipeline.command()(runs(**how)(called))
        return made

    return decorate


@command()
@click.argument("files")
@click.argument("queue")
@click.option("--format", "format", type=click.Choice(["text", "jsonl", "csv", "parquet"]), help="[default: by suffix]")
def ingest(files: str, queue: str, format: str | None) -> Work:
    """Send the rows of files to a queue, each file once.

    FILES is a file, a folder or a quoted pattern. A line of text or JSON Lines is a body; a row of CSV or Parquet
    is an object. When it is run again, only new files are sent.

    \b
    Examples:
      miniq pipeline ingest 'orders/*.jsonl' orders
      miniq pipeline ingest inbox orders --continuous --every 10
    """
    return lambda spark, run: _pipelines().ingest(spark, files, queue, format=format, run=run)


@command()
@click.argument("queue")
@click.argument("out", type=click.Path(file_okay=False))
@click.option(
    "--format", "format", type=click.Choice(["parquet", "json", "text"]), default="parquet", show_default=True
)
@click.option("--group", help="Claim group to read with. [default: one for each OUT]")
def drain(queue: str, out: str, format: str, group: str | None) -> Work:
    """Move the messages of a queue into files, each once.

    OUT is a folder, which also holds the checkpoint. Other consumers may read the queue at the same time.

    \b
    Examples:
      miniq pipeline drain orders orders-lake
      miniq pipeline drain logs logs-text --format text --continuous
    """
    return lambda spark, run: _pipelines().drain(spark, queue, out, format=format, group=group, run=run)


@command(checkpoint=False, continuous=False)
@click.argument("source", metavar="IN", type=click.Path(exists=True, dir_okay=False))
@click.argument("copy", metavar="OUT", type=click.Path(dir_okay=False))
@click.option(
    "--partitions", type=click.IntRange(1, 1000), default=2, show_default=True, help="Number of writing tasks."
)
def copy(source: str, copy: str, partitions: int) -> Work:
    """Copy a file through a queue, line by line; the copy is identical byte for byte.

    The queue is created for the copy and deleted at the end. OUT is created only on success.

    \b
    Examples:
      miniq pipeline copy big.log copy.log --partitions 4
    """
    return lambda spark, run: _pipelines().copy(spark, source, copy, partitions=partitions, run=run)


@command()
@click.argument("lake", type=click.Path(file_okay=False))
@click.option("--queue", help="Only this queue. [default: all]")
def archive(lake: str, queue: str | None) -> Work:
    """Append the history to a lake of Parquet files by date and queue.

    History is recorded for queues whose setting `history` is `events`, or `full` for bodies too.

    \b
    Examples:
      miniq pipeline archive history-lake
      miniq pipeline archive history-lake --queue orders --continuous
    """
    return lambda spark, run: _pipelines().archive(spark, lake, queue=queue, run=run)


@command(checkpoint=False, broker=False)
@click.argument("lake", type=click.Path(exists=True, file_okay=False))
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--where", metavar="SQL", help="Only records that match, such as \"date >= '2026-11-01'\".")
@click.option("--title", default="MiniQ report", show_default=True)
def report(lake: str, out: str, where: str | None, title: str) -> Work:
    """Make tables and a page with plots from a lake: OUT/report.html and OUT/tables.

    \b
    Examples:
      miniq pipeline report history-lake report
      miniq pipeline report history-lake report --where "date >= '2026-11-01'"
    """
    return lambda spark, run: _pipelines().report(spark, lake, out, where=where, title=title, run=run)


@command()
@click.argument("lake", type=click.Path(exists=True, file_okay=False))
@click.argument("queue")
@click.option("--where", metavar="SQL", help="Only messages that match, such as \"queue = 'orders'\".")
def replay(lake: str, queue: str, where: str | None) -> Work:
    """Send archived messages to a queue again, each once.

    The lake holds bodies for queues whose setting `history` is `full`.

    \b
    Examples:
      miniq pipeline replay history-lake orders-again --where "queue = 'orders'"
    """
    return lambda spark, run: _pipelines().replay(spark, lake, queue, where=where, run=run)


@command(checkpoint=False)
@click.argument("queue")
@click.option("--where", metavar="SQL", help="Only dead letters that match, such as \"body like '%amount%'\".")
@click.option("--fix", metavar="SQL|MODULE:FUNCTION", help="Expression or function that gives the new body.")
@click.option("--to", metavar="QUEUE", help="Queue to send them to. [default: where they came from]")
def reprocess(queue: str, where: str | None, fix: str | None, to: str | None) -> Work:
    """Select, fix and send back the dead letters in QUEUE, each once.

    \b
    Examples:
      miniq pipeline reprocess orders.dead
      miniq pipeline reprocess orders.dead --where "body like '%twelve%'" --fix "replace(body, 'twelve', '12')"
      miniq pipeline reprocess orders.dead --fix fixes:amount
    """
    _import_from_here()
    return lambda spark, run: _pipelines().reprocess(spark, queue, where=where, fix=fix, to=to, run=run)


@command()
@click.argument("source")
@click.argument("target")
@click.option("--sql", metavar="SQL", help="A query over the table `messages`.")
@click.option("--function", metavar="MODULE:FUNCTION", help="A function that takes a DataFrame and returns another.")
@click.option("--group", help="Claim group to read with. [default: one for each query or function]")
def transform(source: str, target: str, sql: str | None, function: str | None, group: str | None) -> Work:
    """Transform the messages of SOURCE with SQL or a function, and send the result to TARGET, each once.

    \b
    Example:
      miniq pipeline transform orders big --sql "select body from messages where body like '%\"big\": true%'"
    """
    if (sql is None) == (function is None):
        raise click.UsageError("Give either --sql or --function.")
    _import_from_here()
    change = sql or function or ""
    return lambda spark, run: _pipelines().transform(spark, source, target, change, group=group, run=run)


def _pipelines() -> Any:
    from miniq.spark import pipelines

    return pipelines


def _import_from_here() -> None:
    """A function may be in a file of the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
