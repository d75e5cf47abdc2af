"""`python -m tests.faults topics [--only TEXT] [--scale X] [--page]`: `kill -9` during publications, and of brokers
that fire schedules, and the table of both in docs/reliability.md. `publications.py` and `firing.py` say what must hold.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from msgspec import Struct

from tests import mongod
from tests.conftest import ENGINES, store_url
from tests.faults import firing
from tests.faults.rig import ROOT

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table: made by `make faults-topics` -->", "<!-- end of table of `make faults-topics` -->"
PUBLICATIONS, FIRINGS = "a publication is in all of its queues or in none", "a moment of a schedule is sent once"
ROUNDS = {
    PUBLICATIONS: {"rocksdb": 1000, "leveldb": 100, "postgresql": 20, "mongodb": 20},
    FIRINGS: {"rocksdb": 1000, "leveldb": 100, "postgresql": 20, "mongodb": 20},
}
DONE = re.compile(r"(\d+) killed, (\d+) messages confirmed")
HOUR = 3600.0


class Result(Struct):
    """What came of the rounds of one promise on one store."""

    name: str
    store: str
    rounds: int
    killed: int = 0
    messages: int = 0
    wrong: str = ""

    def __str__(self) -> str:
        day = datetime.date.today().isoformat()
        figures = f"{self.rounds:,} | {self.killed:,} | {self.messages:,} | {int(bool(self.wrong))}"
        return f"{begins(self.name, self.store)} {figures} | {day} |"


def begins(name: str, store: str) -> str:
    """The beginning of a row."""
    return f"| {name} | {store} |"


def run(name: str, kind: str, rounds: int, folder: Path) -> Result:
    """Kill and look, many times over."""
    own = folder / f"{kind}{list(ROUNDS).index(name)}"
    own.mkdir()
    url, result = store_url(kind, own), Result(name, kind, rounds)
    try:
        if name == FIRINGS:
            result.killed = firing.kill(url, rounds, HOUR)
            result.messages = asyncio.run(firing.look(url, rounds))
        else:
            store = url if "://" in url else kind
            command = [sys.executable, "-m", "tests.faults.publications", "--rounds", str(rounds), "--store", store]
            ended = subprocess.run(command, capture_output=True, text=True, timeout=HOUR, cwd=ROOT)
            done = DONE.search(ended.stdout)
            assert ended.returncode == 0, ended.stderr + ended.stdout
            assert done is not None, ended.stdout
            result.killed, result.messages = map(int, done.groups())
    except AssertionError as error:
        result.wrong = str(error)
    return result


def write(results: list[Result]) -> None:
    """Renew these rows in the table, and leave the others."""
    before, rest = PAGE.read_text().split(BEGIN)
    found, after = rest.split(END)
    made = {begins(result.name, result.store): str(result) for result in results}
    for line in found.splitlines():
        made.setdefault(" | ".join(line.split(" | ")[:2]) + " |", line)
    linux = platform.release().partition("-")[0]
    lines = [
        f"Python {platform.python_version()}, Linux {linux}.",
        "",
        "| promise | store | rounds | processes killed | messages | broken promises | made |",
        "|---|---|---|---|---|---|---|",
        *(made[row] for name in ROUNDS for kind in ROUNDS[name] if (row := begins(name, kind)) in made),
    ]
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]))
    print(f"written to {PAGE.name}")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults topics")
    parser.add_argument("--only", default="", help="rows whose promise and store contain this")
    parser.add_argument("--scale", type=float, default=1.0, help="how many of the rounds (1)")
    parser.add_argument("--page", action="store_true", help="write these rows to the page also when they are not all")
    asked = parser.parse_args(arguments)
    results: list[Result] = []
    rows = [(name, kind) for name in ROUNDS for kind in ROUNDS[name]]
    chosen = [(name, kind) for name, kind in rows if asked.only in f"{name} {kind}"]
    try:
        with tempfile.TemporaryDirectory(prefix="miniq-topics-") as folder:
            for name, kind in chosen:
                if kind == "leveldb" and kind not in ENGINES:
                    continue
                try:
                    results.append(run(name, kind, max(1, int(ROUNDS[name][kind] * asked.scale)), Path(folder)))
                except pytest.skip.Exception as reason:
                    print(f"{begins(name, kind)} not run: {reason}", flush=True)
                    continue
                print(results[-1], flush=True)
                if results[-1].wrong:
                    print(f"  {results[-1].wrong}", flush=True)
    finally:
        mongod.stop()
    if asked.page or (len(results) == len(rows) and asked.scale == 1):
        write(results)
    return 1 if any(result.wrong for result in results) else 0
