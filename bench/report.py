"""What both benchmarks share: a folder on the disk that is measured, figures with their targets, the report."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct, to_builtins

RESULTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "results")


class Spread(Struct, frozen=True):
    """The median of some rounds, the middle half of them, and the extremes."""

    median: float
    low: float
    high: float
    min: float
    max: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """How the values of several rounds lie."""
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    else:
        low = high = values[0]
    numbers = (statistics.median(values), low, high, min(values), max(values))
    return Spread(*(float(f"{number:.6g}") for number in numbers), rounds=len(values))


class Figure(Struct, frozen=True, kw_only=True):
    """One measured figure; `target` is what the project wants of it, None where it is only shown."""

    name: str
    value: Spread
    unit: str
    """`ratio`, `share`, `messages/fsync`, `MB`, `s`."""
    rate: Spread | None = None
    """Messages a second, where the value is a ratio of rates."""
    target: float | None = None
    at_most: bool = False
    """The target is a ceiling, not a floor."""

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        value = self.value.median
        return "ok" if (value <= self.target if self.at_most else value >= self.target) else "missed"


def show(title: str, figures: Sequence[Figure]) -> None:
    """A table on stdout."""
    print(f"\n{title}")
    print(f"  {'':<36}{'messages/s':>12}{'value':>21}{'middle half':>18}{'target':>12}")
    for figure in figures:
        value, unit = figure.value, "" if figure.unit in ("ratio", "share") else f" {figure.unit}"
        rate = "" if figure.rate is None else f"{figure.rate.median:,.0f}"
        middle = f"{_number(value.low, figure.unit)} - {_number(value.high, figure.unit)}" if value.rounds > 1 else ""
        target = ""
        if figure.target is not None:
            target = f"{'<=' if figure.at_most else '>='} {_number(figure.target, figure.unit)}"
        line = f"  {figure.name:<36}{rate:>12}{_number(value.median, figure.unit) + unit:>21}{middle:>18}{target:>12}"
        print(f"{line}  {figure.verdict}".rstrip())


def save(path: str, about: dict[str, Any], figures: Sequence[Figure]) -> None:
    """The same as JSON, with what is needed to make sense of it later."""
    report = about | {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": sys.version,
        "rocksdict": importlib.metadata.version("rocksdict"),
        "miniq": importlib.metadata.version("miniq"),
        "cpus": os.cpu_count(),
        "figures": [to_builtins(figure) | {"verdict": figure.verdict} for figure in figures],
    }
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(json.dumps(report, indent=1) + "\n")
    print(f"\nwritten to {os.path.relpath(path)}")


def result_path(name: str, quick: bool) -> str:
    """Where a report goes. A quick run is no result: its file is not kept in the repository."""
    return os.path.join(RESULTS, f"{name}.local.json" if quick else f"{name}.json")


@contextlib.contextmanager
def scratch(folder: str) -> Iterator[str]:
    """A new folder inside `folder`, by its whole path, removed afterwards, also after Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="miniq-bench-", dir=os.path.abspath(folder)) as path:
        yield path


def progress(text: str) -> None:
    """One line on stderr that is written over."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{text:<78}", end=end, file=sys.stderr, flush=True)


def _number(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value * 100:.1f} %"
    return f"{value:.0f}" if unit == "MB" else f"{value:.1f}" if unit == "messages/fsync" else f"{value:.2f}"
