"""`python -m tests.faults [--rounds N] [--only TEXT]`: every fault many times, and the table in docs/reliability.md."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import platform
import sys
import tempfile
import time
from pathlib import Path

from msgspec import Struct

from tests.faults.catalog import FAULTS, Fault

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- table: made by `make faults` -->", "<!-- end of table -->"


class Tally(Struct):
    """What came of the rounds of one fault."""

    fault: Fault
    rounds: int = 0
    sent: int = 0
    leases: int = 0
    acked: int = 0
    unknown: int = 0
    wrong: list[str] = []


def run(fault: Fault, rounds: int) -> Tally:
    tally = Tally(fault, wrong=[])
    for number in range(0 if fault.lacks() else rounds):
        progress(f"{fault.name} on {fault.store}: round {number + 1} of {rounds}, {len(tally.wrong)} broken promises")
        seed = f"{int(time.time())}-{number}"
        with tempfile.TemporaryDirectory(prefix="miniq-faults-", ignore_cleanup_errors=True) as folder:
            try:
                verdict = fault.round(seed, Path(folder))
            except AssertionError as error:
                tally.wrong.append(f"seed {seed}: {error}")
                continue
        tally.rounds += 1
        tally.sent += verdict.sent
        tally.leases += verdict.leases
        tally.acked += verdict.acked
        tally.unknown += verdict.unknown
        tally.wrong += [f"seed {seed}: {violation}" for violation in verdict.violations]
    return tally


def table(tallies: list[Tally]) -> str:
    lines = [
        f"Made on {datetime.date.today().isoformat()}, Python {platform.python_version()}, Linux {platform.release()}.",
        "",
        "| fault | store | must hold | rounds | confirmed sends | leases | unanswered calls | broken promises |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for tally in tallies:
        fault = tally.fault
        if fault.lacks():
            lines.append(f"| {fault.name} | {fault.store} | {fault.invariants} | not run: {fault.lacks()} | | | | |")
            continue
        lines.append(
            f"| {fault.name} | {fault.store} | {fault.invariants} | {tally.rounds} | {tally.sent:,} | {tally.leases:,} "
            f"| {tally.unknown:,} | {len(tally.wrong)} |"
        )
    return "\n".join(lines)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--rounds", type=int, help="rounds for each fault instead of its own number")
    parser.add_argument("--only", default="", help="faults whose name or store contains this; the page is left alone")
    asked = parser.parse_args()
    chosen = [fault for fault in FAULTS if asked.only in f"{fault.name} {fault.store}"]
    tallies = []
    with contextlib.suppress(KeyboardInterrupt):
        for fault in chosen:
            tallies.append(run(fault, asked.rounds or fault.rounds))
            progress("")
            print(table(tallies[-1:]).splitlines()[-1], flush=True)
    for tally in tallies:
        for wrong in tally.wrong:
            print(f"{tally.fault.name} on {tally.fault.store}: {wrong}")
    if len(tallies) == len(FAULTS):
        text = PAGE.read_text()
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{table(tallies)}\n{END}{after}")
        print(f"written to {PAGE.name}")
    return 1 if any(tally.wrong for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
