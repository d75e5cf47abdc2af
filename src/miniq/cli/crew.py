"""The worker processes of `miniq produce` and `consume`, and their common flags.

With `--workers N` the command starts itself N times, passes Ctrl-C on, and adds up what the workers did.
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import click
from msgspec import DecodeError, Struct, field, json

from miniq.cli.flags import Target, Whole, as_json, target
from miniq.cli.output import line, plural, result
from miniq.cli.processes import Stop, end, reachable, start
from miniq.cli.root import say
from miniq.client._sync.queue import Queue
from miniq.client.interrupts import SIGNALS
from miniq.errors import MiniQError

PATIENCE = 2.0
PAUSE = 0.5
"""Seconds before the next attempt after a failed call."""
POLL = 0.1
"""Seconds between two checks whether all workers have ended."""
OWN = {"count", "workers", *Target.__struct_fields__}
"""Flags that workers do not inherit: they get a share of the count, and the broker from the environment."""

count_option = click.option("--count", type=Whole(0), help="Total number of messages. [default: until interrupted]")


class Totals(Struct):
    """How often each event happened to one worker, or to all, and how long it took."""

    events: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: float = 0.0


class Worker:
    """One worker: it prints what happens to messages, and counts it."""

    def __init__(self, name: str, quiet: bool, as_json: bool) -> None:
        self.name = name
        self.quiet = quiet
        self.totals = Totals()
        self.stop = Stop()
        self._as_json = as_json

    def show(self, event: str, id: str, text: str, **details: object) -> None:
        """Print an event: with the text for people, or with the details in JSON."""
        values = {"worker": self.name, "event": event, "id": id, **details}
        line(self._as_json, values, f"{self.name}  {event:<6}  {id}  {text}")

    def retry_later(self, error: MiniQError) -> None:
        """Report a failed call, and wait before the next attempt."""
        say(f"{self.name}: {error.text}; trying again")
        time.sleep(PAUSE)


class Crew(Struct):
    """How many workers run, and how they report."""

    at: Target
    count: int | None
    workers: int
    quiet: bool
    as_json: bool
    name: str | None
    """The name of this worker, if it is one of several."""
    totals: str | None
    """The file in which one of several workers leaves its totals."""

    def run(self, role: str, queue: str, work: Callable[[Queue, Worker], None], events: Sequence[str]) -> None:
        """Run the workers, then print how often each of the events happened."""
        failed = 0
        if self.workers > 1:
            stop = Stop()
            with reachable(self.at) as broker:
                broker.open(PATIENCE).close()
                totals, failed = self._run_processes(broker, role, stop)
        else:
            worker = Worker(self.name or f"{role}-{os.getpid()}", self.quiet, self.as_json)
            with self.at.open(PATIENCE) as client:
                work(client.queue(queue), worker)
            totals = worker.totals
        if self.totals is not None:
            with open(self.totals, "wb") as file:
                file.write(json.encode(totals))
            return
        show_totals(totals, events, self.as_json)
        if failed:
            raise click.ClickException(f"{failed} of the workers failed")

    def _run_processes(self, broker: Target, role: str, stop: Stop) -> tuple[Totals, int]:
        """Run workers until all have ended, or Ctrl-C: their totals, and how many failed."""
        command = repeat_command()
        with tempfile.TemporaryDirectory(prefix="miniq-") as folder:
            files = [os.path.join(folder, f"{number}.json") for number in range(self.workers)]
            processes = []
            # A worker inherits that signals are blocked, and unblocks them when it can handle them (`Stop`).
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            try:
                for number, file in enumerate(files):
                    own = ["--name", f"{role}-{number + 1}", "--totals", file]
                    if self.count is not None:
                        share = self.count // self.workers + (number < self.count % self.workers)
                        own += ["--count", str(share)]
                    processes.append(start([*command, *own], broker.environment(), out=None))
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            try:
                while not stop.is_set() and any(process.poll() is None for process in processes):
                    time.sleep(POLL)
            finally:
                end(processes, signal.SIGINT)
            totals = add_up(files)
        return totals, sum(process.returncode != 0 for process in processes)


def crew_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of workers, and pass it a `Crew`."""

    @functools.wraps(command)
    def with_crew(at: Target, **flags: Any) -> None:
        crew = Crew(at, **{name: flags.pop(name) for name in Crew.__struct_fields__ if name != "at"})
        command(crew, **flags)

    options = (
        as_json,
        click.option("--totals", hidden=True),
        click.option("--name", hidden=True),
        click.option("--quiet", is_flag=True, help="Print the totals only."),
        click.option("--workers", type=Whole(1, 100), default=1, show_default=True, help="Number of processes."),
    )
    return functools.reduce(lambda function, option: option(function), options, target(with_crew))


def repeat_command() -> list[str]:
    """The command line of the running command again, for a worker."""
    ctx = click.get_current_context()
    arguments = [ctx.info_name or ""]
    for param in ctx.command.params:
        name = param.name or ""
        if name not in OWN and ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            value = ctx.params[name]
            arguments += [param.opts[0]] if isinstance(param, click.Option) else []
            arguments += [] if value is True else [str(value)]
    return arguments


def add_up(files: Sequence[str]) -> Totals:
    """The totals of all workers; one that was killed has left none."""
    totals = Totals()
    for path in files:
        try:
            with open(path, "rb") as file:
                part = json.decode(file.read(), type=Totals)
        except (OSError, DecodeError):
            continue
        for event, count in part.events.items():
            totals.events[event] += count
        totals.seconds = max(totals.seconds, part.seconds)
    return totals


def show_totals(totals: Totals, events: Sequence[str], as_json: bool) -> None:
    """Print the last line: the counts of the events, and the rate of the first of them."""
    counts = {event: totals.events[event] for event in events}
    done = counts[events[0]]
    rate = done / totals.seconds if totals.seconds > 0 else 0.0
    summary = f"{events[0]} {plural(done, 'message')}"
    if failed := totals.events["failed"]:
        summary += f", {failed} failed and were released"
    if lost := totals.events["lost"]:
        summary += f", {lost} went to other consumers meanwhile"
    values = counts | {"seconds": round(totals.seconds, 3), "rate": round(rate, 1)}
    result(as_json, values, f"{summary} in {totals.seconds:.1f} s, {rate:.0f} per second")
