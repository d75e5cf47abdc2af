"""`python -m tests.faults [--rounds N] [--only TEXT] [--jobs N] [--page]`: every fault many times, and the table in
docs/reliability.md. `python -m tests.faults damage`, `differential`, `drill`, `floods`, `interruptions`, `soak`,
`topics` and `workers`: see the modules of these names."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import platform
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from tests.faults import catalog, damage, databases, differential, drill, floods, interruptions, soak, topics, workers
from tests.faults.catalog import Fault
from tests.faults.checker import Verdict
from tests.faults.rig import progress

FAULTS = [*catalog.FAULTS, *databases.FAULTS]

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


def run(fault: Fault, rounds: int, jobs: int) -> Tally:
    tally = Tally(fault, wrong=[])
    if fault.lacks():
        return tally
    with ThreadPoolExecutor(jobs) as pool:
        for number, (seed, verdict) in enumerate(pool.map(lambda number: once(fault, number), range(rounds))):
            progress(
                f"{fault.name} on {fault.store}: {number + 1} of {rounds} rounds, {len(tally.wrong)} promises broken"
            )
            if isinstance(verdict, AssertionError):
                tally.wrong.append(f"seed {seed}: {verdict}")
                continue
            tally.rounds += 1
            tally.sent += verdict.sent
            tally.leases += verdict.leases
            tally.acked += verdict.acked
            tally.unknown += verdict.unknown
            tally.wrong += [f"seed {seed}: {violation}" for violation in verdict.violations]
    return tally


def once(fault: Fault, number: int) -> tuple[str, Verdict | AssertionError]:
    """One round, with its seed."""
    seed = f"{int(time.time())}-{number}"
    with tempfile.TemporaryDirectory(prefix="miniq-faults-", ignore_cleanup_errors=True) as folder:
        try:
            return seed, fault.round(seed, Path(folder))
        except AssertionError as error:
            return seed, error


def row(tally: Tally) -> str:
    """The line of the table for a fault."""
    fault = tally.fault
    beginning = f"{_begins(fault)} {fault.invariants} |"
    if fault.lacks():
        return f"{beginning} not run: {fault.lacks()} | | | | | |"
    day = datetime.date.today().isoformat()
    return (
        f"{beginning} {tally.rounds:,} | {tally.sent:,} | {tally.leases:,} | {tally.unknown:,} "
        f"| {len(tally.wrong)} | {day} |"
    )


def _begins(fault: Fault) -> str:
    return f"| {fault.name} | {fault.store} |"


def write(tallies: list[Tally]) -> None:
    """Renew the lines of these faults in the table, and leave those of the others."""
    before, rest = PAGE.read_text().split(BEGIN)
    found, after = rest.split(END)
    made = {_begins(tally.fault): row(tally) for tally in tallies}
    for line in found.splitlines():
        made.setdefault(" | ".join(line.split(" | ")[:2]) + " |", line)
    linux = platform.release().partition("-")[0]
    lines = [
        f"Python {platform.python_version()}, Linux {linux}.",
        "",
        "| fault | store | must hold | rounds | confirmed sends | leases | unanswered calls | broken promises | made |",
        "|---|---|---|---|---|---|---|---|---|",
        *(made[_begins(fault)] for fault in FAULTS if _begins(fault) in made),
    ]
    PAGE.write_text("\n".join([before + BEGIN, *lines, END + after]))
    print(f"written to {PAGE.name}")


def main() -> int:
    others = {"damage": damage.main, "differential": differential.main, "drill": drill.main, "floods": floods.main}
    others |= {"interruptions": interruptions.main, "soak": soak.main, "topics": topics.main}
    others["workers"] = workers.main
    if sys.argv[1:] and sys.argv[1] in others:
        return others[sys.argv[1]](sys.argv[2:])
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--rounds", type=int, help="rounds for each fault instead of its own number")
    parser.add_argument("--only", default="", help="faults whose name and store contain this")
    parser.add_argument("--page", action="store_true", help="write their lines of the page also when they are not all")
    parser.add_argument("--jobs", type=int, default=2, help="rounds of a fault at the same time (2)")
    asked = parser.parse_args()
    chosen = [fault for fault in FAULTS if asked.only in f"{fault.name} {fault.store}"]
    tallies = []
    with contextlib.suppress(KeyboardInterrupt):
        for fault in chosen:
            tallies.append(run(fault, asked.rounds or fault.rounds, asked.jobs))
            progress("")
            print(row(tallies[-1]), flush=True)
    for tally in tallies:
        for wrong in tally.wrong:
            print(f"{tally.fault.name} on {tally.fault.store}: {wrong}")
    if asked.page or len(tallies) == len(FAULTS):
        write(tallies)
    return 1 if any(tally.wrong for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
