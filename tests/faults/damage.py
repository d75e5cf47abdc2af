"""`python -m tests.faults damage [--only TEXT] [--every N] [--jobs N] [--page]`: damage to the files of a store that
nobody has open, and the table of it in docs/reliability.md.

The folders hold messages of every kind, bodies that several queues share, results, schedules, topics, dedup ids, leases
and history. Every file is removed. Small files are cut at every byte, and every bit of them is flipped (in the newest
of RocksDB's OPTIONS, which nothing reads, one bit of every byte); logs and tables are cut and flipped at random places.
Each is refused, or costs nothing.

Refused means an error of the store: when it is opened, when a backup is restored, or for a table at the latest when it
is read. What is refused is left as it is: no file of the database is gone after it.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import hashlib
import logging
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from unittest.mock import patch

import msgspec
from msgspec import Raw, Struct

from miniq.broker import Broker
from miniq.errors import MiniQError
from miniq.message import AckedLease, Draft
from miniq.options import Options
from miniq.schedule import Definition
from miniq.store import open_store, transfer
from miniq.store.embedded import engine as engines
from miniq.store.embedded import log as commit_log
from miniq.store.embedded.backup import restore
from miniq.store.embedded.segments import SUFFIX
from miniq.store.names import STORE
from tests.clock import FrozenClock
from tests.conftest import ENGINES
from tests.faults.rig import progress
from tests.kit import leases
from tests.store.parts import copy_as_after_kill

RANDOM = 1000
"""Flips and cuts in all logs and tables of a folder, half of each."""
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN, END = "<!-- table: made by `make faults-damage` -->", "<!-- end of damage -->"
STATES = ("closed", "killed", "backup")
RESULT = Raw(b'{"total": 5}')
STEP = 1000
"""Progress is shown so often."""
_LARGE = (SUFFIX, ".sst", ".ldb")
_SECONDS = 600
"""An engine that does not come back from a damaged file is killed, and the sweep ends."""


class Damage(Struct, frozen=True):
    """Something that happens to one file."""

    file: str
    how: str
    """flip, cut or missing"""
    at: int = 0
    """The number of the bit, or how many bytes are left."""

    @property
    def kind(self) -> str:
        """The file without its number."""
        name = os.path.basename(self.file)
        return f"*{Path(name).suffix}" if name.endswith(_LARGE) else name.partition("-0")[0]

    def apply(self, folder: Path) -> None:
        path = folder / self.file
        if self.how == "missing":
            path.unlink()
            return
        raw = bytearray(path.read_bytes())
        if self.how == "flip":
            raw[self.at // 8] ^= 1 << self.at % 8
        else:
            del raw[self.at :]
        path.unlink()  # it may be linked
        path.write_bytes(raw)


class Subject(Struct, frozen=True):
    """A folder that is damaged again and again, each time as a copy."""

    folder: Path
    engine: str
    state: str
    contents: str
    """The digest of everything in it."""

    def damages(self, chance: random.Random, large: int = RANDOM, every: int = 1) -> Iterator[Damage]:
        """What can happen to its files; of the small ones `every` n-th place."""
        files = {str(path.relative_to(self.folder)): path.stat().st_size for path in database(self.folder)}
        newest = max((file for file in files if "OPTIONS" in file), default="")
        for file, size in files.items():
            yield Damage(file, "missing")
            if not file.endswith(_LARGE) and ("OPTIONS" not in file or file == newest):
                bits = [chance.randrange(8)] if "OPTIONS" in file else range(8)
                for place in range(chance.randrange(every), size, every):
                    yield Damage(file, "cut", place)
                    yield from (Damage(file, "flip", place * 8 + bit) for bit in bits)
        kinds = [[file for file in files if file.endswith(ends) and files[file]] for ends in (_LARGE[:1], _LARGE[1:])]
        kinds = [names for names in kinds if names]
        for number in range(large):
            # Logs and tables in turn, and in each the places of all files alike.
            names = kinds[number % len(kinds)]
            (file,) = chance.choices(names, [files[name] for name in names])
            how, unit = ("flip", 8) if number % 4 < 2 else ("cut", 1)
            yield Damage(file, how, chance.randrange(files[file] * unit))


def database(folder: Path) -> list[Path]:
    """The files that a folder consists of, without those that are made anew at each start, and logs of the engine."""
    names = ("LOCK", "LOG", "spare")
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log")
    return sorted(path for path in files if not path.name.startswith(names))


async def make(engine: str, folder: Path) -> list[Subject]:
    """A folder in each state, with several tables and a log, and something of everything."""
    clock = FrozenClock()
    chance = random.Random(17)
    closed, killed, backup = (folder / state for state in STATES)
    for number, rounds in enumerate((30, 6)):
        async with _broker(f"{engine}:{closed}", clock) as broker:
            await broker.configure("jobs", {"history": "events", "dedup_window": 600, "results": 3600.0})
            for queue in ("jobs", "copies", "more"):
                await broker.topics.subscribe("news", queue, filter={"kind": ["a", {"prefix": "b"}]})
            later = Definition(
                Draft(b"6", headers={"kind": "a"}), topic="news", cron="0 3 * * *", timezone="Europe/Berlin"
            )
            await broker.schedules.put(f"nightly{number}", later)
            await broker.schedules.put("every", Definition(Draft(b"7", priority=9), queue="other", every=60.0))
            await broker.schedules.run("every")
            for size in (3000, 10, 40):
                for _ in range(rounds):
                    bodies = [chance.randbytes(size) for _ in range(10)]
                    await broker.send("jobs", [Draft(body, "application/x-noise") for body in bodies])
                shared = [Draft(chance.randbytes(size), "application/x-noise", {"kind": "bc"}) for _ in range(10)]
                await broker.publish("news", shared)
            await broker.send("jobs", [Draft(b"1", group="g"), Draft(b"2", group="g"), Draft(b"3", recipient="ann")])
            await broker.send("other", [Draft(b"4", dedup_id=f"d{number}"), Draft(b"5", delay=900.0)])
            held = await broker.receive("jobs", max=15, visibility_timeout=3600)
            await broker.ack("jobs", [AckedLease(lease.id, lease.receipt, RESULT) for lease in leases(held[:6])])
            if number:
                await broker.backup(str(backup))
                for _ in range(4):
                    await broker.send("jobs", [Draft(chance.randbytes(1000), "application/x-noise") for _ in range(10)])
                copy_as_after_kill(closed, killed)
    subjects = []
    for state in STATES:
        copy = folder / "copy"
        if state == "backup":
            restore(str(folder / state), str(copy))
        else:
            shutil.copytree(folder / state, copy)
        subjects.append(Subject(folder / state, engine, state, await contents(f"{engine}:{copy}")))
        shutil.rmtree(copy)
    return subjects


def made(engine: str, folder: Path) -> list[Subject]:
    with patch.object(engines, "MIB", 1024), patch.object(commit_log, "SMALLEST", 16 * 1024):
        return asyncio.run(make(engine, folder))


def _broker(url: str, clock: FrozenClock) -> Broker:
    options = Options(upkeep_interval=0)
    return Broker(open_store(url, options), options, clock)


async def contents(url: str) -> str:
    """A digest of everything that is in a store."""
    store = open_store(url)
    await store.open()
    digest = hashlib.sha256()
    try:
        async for items in store.dump():
            for item in items:
                if isinstance(item, transfer.Record) and item.kind == STORE:
                    continue  # a restore changes it
                digest.update(type(item).__name__.encode() + msgspec.msgpack.encode(item))
    finally:
        await store.close()
    return digest.hexdigest()


def outcome(subject: Subject, damage: Damage) -> tuple[Damage, str]:
    """What comes of a damaged copy: refused, complete, or what is wrong with it."""
    with tempfile.TemporaryDirectory(prefix="miniq-damage-", ignore_cleanup_errors=True) as place:
        copy, restored = Path(place) / "copy", Path(place) / "restored"
        # Nothing writes to a table; all else is copied.
        shutil.copytree(subject.folder, copy, copy_function=_link_tables)
        damage.apply(copy)
        before = {path.name for path in database(copy)}
        try:
            if subject.state == "backup":
                restore(str(copy), str(restored))
            found = asyncio.run(contents(f"{subject.engine}:{restored if subject.state == 'backup' else copy}"))
        except MiniQError as error:
            gone = before - {path.name for path in database(copy)}
            opened = "MANIFEST" not in damage.file and damage.file.endswith((".sst", ".ldb"))
            return damage, f"{sorted(gone)} gone after {error}" if gone and not opened else "refused"
        except Exception as error:
            return damage, f"{type(error).__name__}: {error}"
        return damage, "complete" if found == subject.contents else "opened with something missing"


def _outcome_in_time(subject: Subject, damage: Damage) -> tuple[Damage, str]:
    signal.alarm(_SECONDS)
    try:
        return outcome(subject, damage)
    finally:
        signal.alarm(0)


def _link_tables(source: str, target: str) -> None:
    (os.link if source.endswith((".sst", ".ldb")) else shutil.copyfile)(source, target)


class Row(Struct):
    """What came of all damage to one kind of file."""

    engine: str
    state: str
    file: str
    hows: Counter[str]
    outcomes: Counter[str]
    wrong: list[str]

    def __str__(self) -> str:
        counts = [self.hows["flip"], self.hows["cut"], self.hows["missing"]]
        counts += [self.outcomes["refused"], self.outcomes["complete"], len(self.wrong)]
        cells = [self.engine, self.state, self.file.replace("*", "\\*"), *(f"{count:,}" for count in counts)]
        return f"| {' | '.join([*cells, datetime.date.today().isoformat()])} |"


def sweep(subject: Subject, damages: list[Damage], pool: ProcessPoolExecutor) -> list[Row]:
    """Do all that to copies of a folder."""
    rows: dict[str, Row] = {}
    outcomes = pool.map(partial(_outcome_in_time, subject), damages, chunksize=8)
    for number, (damage, came) in enumerate(outcomes):
        if number % STEP == 0:
            progress(f"{subject.engine}, {subject.state}: {number:,} of {len(damages):,}")
        row = rows.setdefault(damage.kind, Row(subject.engine, subject.state, damage.kind, Counter(), Counter(), []))
        row.hows[damage.how] += 1
        row.outcomes[came] += 1
        if came not in ("refused", "complete"):
            row.wrong.append(f"{subject.engine}, {subject.state}, {damage.how} {damage.file} {damage.at}: {came}")
    return list(rows.values())


def pool(jobs: int) -> ProcessPoolExecutor:
    """Processes that live on. Those of RocksDB must not be forked from one that had it open."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), logging.disable, (logging.WARNING,))


def write(rows: list[Row]) -> None:
    """Renew the lines of these folders in the table, and leave those of the others."""
    before, rest = PAGE.read_text().split(BEGIN)
    found, after = rest.split(END)
    head = ["| engine | folder | file | flips | cuts | removals | refused | complete | lost something | made |"]
    lines = []
    for engine, state in product(ENGINES, STATES):
        made = [str(row) for row in rows if (row.engine, row.state) == (engine, state)]
        lines += made or [line for line in found.splitlines() if line.startswith(f"| {engine} | {state} |")]
    PAGE.write_text("\n".join([before + BEGIN, *head, "|---" * 10 + "|", *lines, END + after]))


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults damage")
    parser.add_argument("--every", type=int, default=1, help="only every n-th byte of small files (1)")
    parser.add_argument("--random", type=int, default=RANDOM, help=f"places in logs and tables ({RANDOM})")
    parser.add_argument("--jobs", type=int, default=2, help="processes (2)")
    parser.add_argument("--only", default="", help="engine and folder contain this")
    parser.add_argument("--page", action="store_true", help="write the table also with fewer places")
    asked = parser.parse_args(given)
    rows: list[Row] = []
    with pool(asked.jobs) as workers:
        for engine in ENGINES:
            with tempfile.TemporaryDirectory(prefix="miniq-damage-") as folder:
                for subject in workers.submit(made, engine, Path(folder)).result():
                    if asked.only not in f"{engine} {subject.state}":
                        continue
                    damages = list(subject.damages(random.Random(7), asked.random, asked.every))
                    rows += sweep(subject, damages, workers)
                    progress("")
                    print(*rows[-len({damage.kind for damage in damages}) :], sep="\n", flush=True)
                    if asked.page or (asked.every, asked.random) == (1, RANDOM):
                        write(rows)
    wrong = [text for row in rows for text in row.wrong]
    print(*wrong, sep="\n")
    return 1 if wrong else 0
