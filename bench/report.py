"""Shared by all benchmarks: a scratch folder on the measured disk, figures with targets, and their report."""

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
    """Median, quartiles and extremes over several rounds."""

    median: float
    low: float
    high: float
    min: float
    max: float
    rounds: int


def spread(values: Sequence[float]) -> Spread:
    """Summarise the values of several rounds."""
    if len(values) > 1:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    else:
        low = high = values[0]
    numbers = (statistics.median(values), low, high, min(values), max(values))
    return Spread(*(float(f"{number:.6g}") for number in numbers), rounds=len(values))


class Figure(Struct, frozen=True, kw_only=True):
    """One measured figure; `target` is None if it is only informative."""

    name: str
    value: Spread
    unit: str
    """`ratio`, `share`, `messages/fsync`, `MB`, `s`, `s per M` (CPU seconds per million messages)."""
    rate: Spread | None = None
    """Messages per second, where the value is a ratio of rates."""
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
    """Print a table to stdout."""
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
    """Write the figures as JSON, with the versions and settings needed to interpret them later."""
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
    """The path of a report. A quick run is not a result: git ignores its file."""
    return os.path.join(RESULTS, f"{name}.local.json" if quick else f"{name}.json")


@contextlib.contextmanager
def scratch(folder: str) -> Iterator[str]:
    """The absolute path of a new folder inside `folder`; removed afterwards, also after Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="miniq-bench-", dir=os.path.abspath(folder)) as path:
        yield path


def progress(text: str) -> None:
    """Show a progress line on stderr; the next one overwrites it."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{text:<78}", end=end, file=sys.stderr, flush=True)


def _number(value: float, unit: str) -> str:
    if unit == "share":
        return f"{value * 100:.1f} %"
    return f"{value:.0f}" if unit == "MB" else f"{value:.1f}" if unit == "messages/fsync" else f"{value:.2f}"
