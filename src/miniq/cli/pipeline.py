"""`miniq pipeline NAME`: the pipelines of `miniq.spark.pipelines` as commands.

The function of a command has its flags and help, and returns the arguments for the pipeline of the same name.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib import import_module
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import msgspec
from msgspec.structs import replace

from miniq.cli.flags import SECONDS, Target, Whole, pairs_option, summary_json, target
from miniq.cli.output import json_line, plural, size
from miniq.cli.processes import reachable
from miniq.cli.root import say
from miniq.errors import StoreUnavailable, install

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from miniq.spark.lag import Lag
    from miniq.spark.pipelines import Summary
    from miniq.spark.pipelines.runs import Progress

ECHO = 1.0
"""Seconds within which a second signal counts as the first: some programs forward a signal that all processes got."""

SHARED = ("options", "checkpoint", "continuous", "every")
"""Flags that are fields of `Run`."""

Arguments = dict[str, Any]

spark_options = (
    summary_json,
    click.option(
        "--master", envvar="MINIQ_SPARK_MASTER", default="local[*]", show_default=True, help="Where Spark runs."
    ),
    pairs_option("--conf", "conf", help="Spark setting; may be repeated."),
)
checkpoint_option = click.option("--checkpoint", metavar="DIR", help="Folder that records its progress.")
continuous_options = (
    click.option(
        "--continuous", is_flag=True, help="Keep running until Ctrl-C; otherwise process what is there now and exit."
    ),
    click.option("--every", type=SECONDS, default=0.0, help="With --continuous, time between two batches."),
)
broker_option = pairs_option(
    "--option", "options", help="Option of format('miniq'), such as partitions=4; may be repeated."
)


@click.group(
    epilog="All take --master for where Spark runs: local[*] is this machine, sc://HOST:PORT a Spark Connect server. "
    f"Needs the extra `spark`, which installs Java too if there is none: {install('spark')}."
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


def command(
    checkpoint: bool = True, continuous: bool = True, broker: bool = True
) -> Callable[[Callable[..., Arguments]], click.Command]:
    """Make a function the command of a pipeline, with the flags that most pipelines share."""

    def decorate(function: Callable[..., Arguments]) -> click.Command:
        @functools.wraps(function)
        def called(at: Target | None = None, *, master: str, conf: dict[str, str], as_json: bool, **flags: Any) -> int:
            how = {name: flags.pop(name) for name in SHARED if name in flags}
            summary = perform(function.__name__, function(**flags), at, master, conf, how)
            show_summary(summary, as_json)
            if summary.stopped and not how.get("continuous"):
                say("interrupted; run it again to continue")
                return 1
            return 0

        shared = [*spark_options, *[checkpoint_option] * checkpoint, *(continuous_options if continuous else ())]
        with_options: Callable[..., int] = called
        for option in reversed([broker_option, *shared] if broker else shared):
            with_options = option(with_options)
        return pipeline.command()(target(with_options) if broker else with_options)

    return decorate


def perform(
    name: str, arguments: Arguments, at: Target | None, master: str, conf: dict[str, str], how: dict[str, Any]
) -> Summary:
    """Start Spark and run one pipeline. Without a broker, `at` is None."""
    from miniq.spark.sessions import check_spark, is_first_start, session

    check_spark()
    from miniq.spark import pipelines
    from miniq.spark.pipelines.runs import check_options, failure

    check_options(name, how.get("options", {}))
    silence_errors()
    visible = sys.stderr.isatty()
    with nullcontext() if at is None else reachable(at) as broker:
        if broker is not None:
            check_reachable(broker)
            how |= {"url": broker.url, "api_key": broker.api_key}
            os.environ.update(broker.environment())  # where the Spark source finds the certificates
        with stop_requested() as stop, progress_line(visible) as progress:
            starting = "connecting to Spark" if master.startswith("sc://") else "starting Spark"
            with own_signals(), waiting_line(starting, visible) as say_more:
                if visible and is_first_start(master):
                    say_more(" for the first time, which takes longer")
                spark = session(master, app="miniq pipeline", config=conf)
            stop.first = partial(silence, spark)
            run = pipelines.Run(progress=progress, stop=stop, **how)
            if stop():
                summary = pipelines.Summary(name, 0, 0.0, stopped=True)
            else:
                try:
                    summary = getattr(pipelines, name)(spark, **arguments, run=run)
                except KeyboardInterrupt:
                    summary = pipelines.Summary(name, 0, 0.0, stopped=True)
                except Exception as error:
                    raise failure(error) from error
            spark.stop()
    return summary


def check_reachable(broker: Target) -> None:
    """Report an unreachable broker before Spark starts, which takes seconds. Of several, one must answer."""
    for url in broker.url.split(",")[:-1]:
        with suppress(StoreUnavailable), replace(broker, url=url.strip()).open() as client:
            client.queues()
            return
    with replace(broker, url=broker.url.rpartition(",")[2].strip()).open() as client:
        client.queues()


class Stop:
    """Tells whether Ctrl-C or SIGTERM was received. The run then ends after its batch; a second signal ends it at once,
    like a crash, after which the next run continues just the same."""

    def __init__(self) -> None:
        self._signals: list[float] = []
        self._process = os.getpid()
        self.first: Callable[[], None] | None = None
        """Called once, when the run learns of the signal."""

    def listen(self) -> dict[int, Any]:
        """Handle the signals; returns the handlers that were there."""
        return {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}

    def __call__(self) -> bool:
        if self._signals and self.first is not None:
            self.first()
            self.first = None
        return bool(self._signals)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # in a child that has not begun its program yet, such as Java
        self._signals.append(time.monotonic())
        if len(self._signals) == 1 and number == signal.SIGINT:
            when = "" if self.first is None else " after this batch"
            clear = "\r\x1b[K" if sys.stderr.isatty() else ""
            # Unlike `say`, this can be called while the same thread is writing.
            os.write(2, f"{clear}miniq: stopping{when}; Ctrl-C again ends at once\n".encode())
        if self._signals[-1] - self._signals[0] > ECHO:
            say("interrupted")
            kill_java()
            os._exit(1)


@contextmanager
def stop_requested() -> Iterator[Stop]:
    """Handle signals until the run has ended."""
    stop = Stop()
    before = stop.listen()
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep Spark from handling Ctrl-C itself while it starts: seconds before it is ready, it would begin to answer one
    with stack traces."""
    context: Any = import_module("pyspark.core.context")
    context.signal = SimpleNamespace(SIGINT=signal.SIGINT, signal=lambda number, handler: None)
    try:
        yield
    finally:
        context.signal = signal


def kill_java() -> None:
    """End Spark's Java, if there is one, before it can report that its driver is gone."""
    with suppress(Exception):
        from pyspark import SparkContext

        SparkContext._gateway.proc.kill()  # type: ignore[union-attr]


def silence_errors() -> None:
    """Keep PySpark from logging errors in a user's SQL with a Java stack trace: the command reports them itself."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def silence(spark: SparkSession) -> None:
    """Let Spark log nothing more: it reports all that it interrupts when it ends. Spark Connect logs elsewhere."""
    with suppress(Exception):
        spark.sparkContext.setLogLevel("OFF")


@contextmanager
def waiting_line(text: str, visible: bool) -> Iterator[Callable[[str], None]]:
    """Show what is happening, and for how long it has been, on one line of stderr. The function that it gives adds to
    the text."""
    began, texts, done = time.monotonic(), [text], threading.Event()

    def show() -> None:
        while not done.is_set():
            seconds = int(time.monotonic() - began)
            click.echo(f"\r\x1b[K{''.join(texts)}… {f'{seconds} s' if seconds else ''}", err=True, nl=False)
            done.wait(1)

    line = threading.Thread(target=show, daemon=True)
    if visible:
        line.start()
    try:
        yield texts.append
    finally:
        done.set()
        if visible:
            line.join()
            click.echo("\r\x1b[K", err=True, nl=False)


@contextmanager
def progress_line(visible: bool) -> Iterator[Callable[[Progress], None] | None]:
    """A function that shows the progress on one line of stderr, if that is visible."""
    if not visible:
        yield None
        return

    def show(progress: Progress) -> None:
        if not progress.batches:
            click.echo(f"\r\x1b[Kreading… {progress.seconds:.0f} s", err=True, nl=False)
            return
        rate = progress.messages / progress.seconds if progress.seconds else 0
        batches = "1 batch" if progress.batches == 1 else f"{progress.batches} batches"
        line = f"{progress.messages:,} in {batches}, {rate:,.0f} per second{behind(progress.lag)}"
        click.echo(f"\r\x1b[K{line}", err=True, nl=False)

    click.echo("reading…", err=True, nl=False)
    try:
        yield show
    finally:
        click.echo("\r\x1b[K", err=True, nl=False)


def behind(lag: Lag | None) -> str:
    """What a stream has yet to read, for people."""
    if lag is None:
        return ""
    oldest = "" if lag.oldest_seconds is None else f", the oldest for {lag.oldest_seconds:,} s"
    return f"; {lag.waiting:,} waiting{oldest}"


def show_summary(summary: Summary, as_json: bool) -> None:
    """Print what a run did."""
    if as_json:
        fields = msgspec.to_builtins(summary)
        more = fields.pop("lag", {}) | fields.pop("details", {})
        json_line(fields | more)
        return
    item = {"archive": "record", "report": "record", "reprocess": "dead letter"}.get(summary.pipeline, "message")
    lines = [f"{summary.pipeline}: {plural(summary.messages, item)} in {summary.seconds:.1f} s{behind(summary.lag)}"]
    for name, value in summary.details.items():
        lines.append(f"  {name.replace('_', ' ')}: {size(value) if name == 'bytes' else value}")
    if summary.checkpoint is not None:
        lines.append(f"  checkpoint: {summary.checkpoint}")
    click.echo("\n".join(lines))


@command()
@click.argument("files")
@click.argument("queue")
@click.option("--format", "format", type=click.Choice(["text", "jsonl", "csv", "parquet"]), help="[default: by suffix]")
def ingest(**arguments: Any) -> Arguments:
    """Send the rows of files to a queue, each file once.

    FILES is a file, a folder or a quoted pattern. A line of text or JSON Lines is a body; a row of CSV or Parquet
    is an object. When it is run again, only new files are sent.

    \b
    Examples:
      miniq pipeline ingest 'orders/*.jsonl' orders
      miniq pipeline ingest inbox orders --continuous --every 10
    """
    return arguments


@command()
@click.argument("queue")
@click.argument("out", type=click.Path(file_okay=False))
@click.option(
    "--format", "format", type=click.Choice(["parquet", "json", "text"]), default="parquet", show_default=True
)
@click.option("--group", help="Claim group to read with. [default: one for each OUT]")
def drain(**arguments: Any) -> Arguments:
    """Move the messages of a queue into files, each once.

    OUT is a folder, which also holds the checkpoint. Other consumers may read the queue at the same time.

    \b
    Examples:
      miniq pipeline drain orders orders-lake
      miniq pipeline drain logs logs-text --format text --continuous
    """
    return arguments


@command(checkpoint=False, continuous=False)
@click.argument("source", metavar="IN", type=click.Path(exists=True, dir_okay=False))
@click.argument("out", metavar="OUT", type=click.Path(dir_okay=False))
@click.option("--partitions", type=Whole(1, 1000), default=2, show_default=True, help="Number of writing tasks.")
def copy(**arguments: Any) -> Arguments:
    """Copy a file through a queue, line by line. The copy is identical byte for byte.

    The queue is created for the copy and deleted at the end. OUT is created only on success.

    \b
    Examples:
      miniq pipeline copy big.log copy.log --partitions 4
    """
    return arguments


@command()
@click.argument("lake", type=click.Path(file_okay=False))
@click.option("--queue", help="Only this queue. [default: all]")
def archive(**arguments: Any) -> Arguments:
    """Append the history to a lake. It is Parquet files by date and queue.

    History is recorded for queues whose setting `history` is `events`, or `full` for bodies too.

    \b
    Examples:
      miniq pipeline archive history-lake
      miniq pipeline archive history-lake --queue orders --continuous
    """
    return arguments


@command(checkpoint=False, broker=False)
@click.argument("lake", type=click.Path(exists=True, file_okay=False))
@click.argument("out", type=click.Path(file_okay=False))
@click.option("--where", metavar="SQL", help="Only records that match, such as \"date >= '2026-11-01'\".")
@click.option("--title", default="MiniQ report", show_default=True)
def report(**arguments: Any) -> Arguments:
    """Make tables and a page with charts from a lake. They are OUT/report.html and OUT/tables.

    \b
    Examples:
      miniq pipeline report history-lake report
      miniq pipeline report history-lake report --where "date >= '2026-11-01'"
    """
    return arguments


@command()
@click.argument("lake", type=click.Path(exists=True, file_okay=False))
@click.argument("queue")
@click.option("--where", metavar="SQL", help="Only messages that match, such as \"queue = 'orders'\".")
def replay(**arguments: Any) -> Arguments:
    """Send archived messages to a queue again, each once.

    The lake holds bodies for queues whose setting `history` is `full`.

    \b
    Examples:
      miniq pipeline replay history-lake orders-again --where "queue = 'orders'"
    """
    return arguments


@command(checkpoint=False)
@click.argument("queue")
@click.option("--where", metavar="SQL", help="Only dead letters that match, such as \"body like '%amount%'\".")
@click.option("--fix", metavar="SQL|MODULE:FUNCTION", help="Expression or function that gives the new body.")
@click.option("--to", metavar="QUEUE", help="Queue to send them to. [default: where they came from]")
def reprocess(**arguments: Any) -> Arguments:
    """Select, fix and send back the dead letters in QUEUE, each once.

    \b
    Examples:
      miniq pipeline reprocess orders.dead
      miniq pipeline reprocess orders.dead --where "body like '%twelve%'" --fix "replace(body, 'twelve', '12')"
      miniq pipeline reprocess orders.dead --fix fixes:amount
    """
    import_from_here()
    return arguments


@command()
@click.argument("source")
@click.argument("target")
@click.option("--sql", metavar="SQL", help="A query over the table `messages`.")
@click.option("--function", metavar="MODULE:FUNCTION", help="A function that takes a DataFrame and returns another.")
@click.option("--group", help="Claim group to read with. [default: one for each query or function]")
def transform(sql: str | None, function: str | None, **arguments: Any) -> Arguments:
    """Transform messages with SQL or a function. Those of SOURCE are sent to TARGET, each once.

    \b
    Example:
      miniq pipeline transform orders big --sql "select body from messages where body like '%\"big\": true%'"
    """
    if (sql is None) == (function is None):
        raise click.UsageError("Give either --sql or --function.")
    import_from_here()
    return arguments | {"change": sql or function}


def import_from_here() -> None:
    """Find functions in files of the current folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
