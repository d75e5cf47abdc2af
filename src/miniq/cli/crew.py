"""Several workers, each a process: `--workers N` starts the same command N times and adds up what they did."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Sequence

import click
from msgspec import DecodeError, Struct, json

from miniq.cli.flags import Target
from miniq.cli.processes import Stop, end, start

LOOK = 0.1


class Totals(Struct):
    """What one worker did, or all of them."""

    sent: int = 0
    acked: int = 0
    failed: int = 0
    lost: int = 0
    seconds: float = 0.0

    def add(self, other: Totals) -> None:
        self.sent += other.sent
        self.acked += other.acked
        self.failed += other.failed
        self.lost += other.lost
        self.seconds = max(self.seconds, other.seconds)


def run_crew(broker: Target, commands: Sequence[Sequence[str]]) -> tuple[Totals, int]:
    """Run workers until all have ended, and pass on Ctrl-C: their totals, and how many failed."""
    stop = Stop()
    totals = Totals()
    with tempfile.TemporaryDirectory(prefix="miniq-") as folder:
        files = [os.path.join(folder, f"{place}.json") for place in range(len(commands))]
        crew = [
            start([*command, "--totals", file], broker.environment(), out=None)
            for command, file in zip(commands, files, strict=True)
        ]
        try:
            while not stop.is_set() and any(worker.poll() is None for worker in crew):
                time.sleep(LOOK)
        finally:
            end(crew, signal.SIGINT)
        for file in files:
            totals.add(read_totals(file))
    return totals, sum(worker.returncode != 0 for worker in crew)


def read_totals(path: str) -> Totals:
    """What a worker wrote at its end; nothing if it did not get that far."""
    try:
        with open(path, "rb") as file:
            return json.decode(file.read(), type=Totals)
    except (OSError, DecodeError):
        return Totals()


def write_totals(path: str, totals: Totals) -> None:
    """What this worker did, for the process that started it."""
    with open(path, "wb") as file:
        file.write(json.encode(totals))


def split(count: int | None, workers: int) -> list[int | None]:
    """A count in as many nearly equal parts; None is unlimited."""
    if count is None:
        return [None] * workers
    return [count // workers + (place < count % workers) for place in range(workers)]


def finish(failures: int) -> None:
    """The end of a command whose workers may have failed."""
    if failures:
        raise click.ClickException(f"{failures} of the workers failed")
