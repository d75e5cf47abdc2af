"""`python -m tests.faults drill [--store KIND] [--only TEXT] [--scale X] [--page] [--keep FOLDER]`: three brokers on
one database, with eight consumers and four producers; brokers and the database are killed, connections are cut, and
queues get every shape that once was slow.

Each row of the table has the slowest call while the database was up, the longest time without a delivery while there
was something to deliver, the statements that the database's own log calls slow, and what the checker found. The
database's data lies in memory where that is possible, so that a slow disk of the machine is not taken for a slow
statement.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import platform
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.faults.drill_stage import Drill, Result, Shape, begins
from tests.faults.rig import ROOT, progress
from tests.faults.shapes import SHAPES

STORES = ("postgresql", "mongodb")
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- table: made by `make faults-databases` -->", "<!-- end of table of `make faults-databases` -->"


def write(results: list[Result]) -> None:
    """Renew these rows in the table, and leave the others."""
    before, rest = PAGE.read_text().split(BEGIN)
    found, after = rest.split(END)
    made = {begins(result.name, result.store): str(result) for result in results}
    for line in found.splitlines():
        made.setdefault(" | ".join(line.split(" | ")[:2]) + " |", line)
    linux = platform.release().partition("-")[0]
    lines = [
        f"Python {platform.python_version()}, Linux {linux}, {os.cpu_count()} cores, which brokers, clients and "
        "database share.",
        "",
        "| drill | store | size | calls | slowest call | longest gap | slow statements | broken promises | made |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            made[row]
            for shape in SHAPES
            for store in STORES
            if (row := begins(shape.name, store)) in made
        ),
    ]  # fmt: skip
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]))
    print(f"written to {PAGE.name}")


async def drill(
    kind: str,
    shapes: Sequence[Shape],
    scale: float,
    program: Sequence[str] = ("miniq",),
    keep: Path | None = None,
    results: list[Result] | None = None,
) -> list[Result]:
    """The rows of some shapes on one database, added to `results` one by one."""
    results = [] if results is None else results
    with tempfile.TemporaryDirectory(prefix="miniq-drill-") as folder:
        async with Drill(kind, Path(folder), program, keep).running() as stage:
            for shape in shapes:
                results.append(await stage.run(shape, scale))
                progress("")
                print(results[-1], flush=True)
                for wrong in results[-1].wrong[:20] + results[-1].late():
                    print(f"  {wrong}", flush=True)
    return results


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults drill")
    parser.add_argument("--store", choices=STORES, help="only on this database")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--scale", type=float, default=1.0, help="how large the shapes are (1)")
    parser.add_argument("--page", action="store_true", help="write these rows to the page also when they are not all")
    parser.add_argument("--keep", type=Path, help="a folder for what the clients of a row were told if it is wrong")
    asked = parser.parse_args(arguments)
    shapes = [shape for shape in SHAPES if asked.only in shape.name]
    if not shapes:
        parser.error(f"--only: no row contains {asked.only!r}; there are {', '.join(shape.name for shape in SHAPES)}")
    results: list[Result] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # servers are stopped then too
    with contextlib.suppress(KeyboardInterrupt):
        for kind in [asked.store] if asked.store else STORES:
            asyncio.run(drill(kind, shapes, asked.scale, keep=asked.keep, results=results))
    if asked.page or (len(results) == len(SHAPES) * len(STORES) and asked.scale == 1):
        write(results)
    return 1 if any(result.wrong or result.late() for result in results) else 0
