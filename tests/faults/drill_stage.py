"""The stage of a drill: a database with three brokers on it, clients whose answers are judged, what was observed."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

import miniq
from miniq.errors import MiniQError
from tests import mongod, postgresql
from tests.faults import history, watch
from tests.faults.checker import check
from tests.faults.databases import url_of
from tests.faults.drill_crew import DrillCrew
from tests.faults.rig import Server, progress
from tests.faults.soak_crew import Door
from tests.faults.watch import SlowLog, Span, Statement, Watch

BROKERS = 3
CALL = 3.0
"""Seconds that no call may take while the database is up."""
GAP = 5.0
"""Seconds that may pass without a delivery, also after a broker was killed and after the database's return."""


class Shape(Struct, frozen=True):
    """A row of the drill."""

    name: str
    run: Callable[[Stage, int], Awaitable[None]]
    """Called with the stage and the size."""
    count: int
    """The size at scale 1."""
    unit: str = "messages"
    least: int = 200
    minutes: float = 10

    def amount(self, scale: float) -> int:
        return max(self.least, round(self.count * scale))


class Result(Struct):
    """A row of the table."""

    name: str
    store: str
    count: int
    unit: str
    calls: int
    slowest: tuple[float, str]
    gap: float
    statements: list[Statement]
    wrong: list[str]
    """Promises that were broken, and counts that were wrong."""
    seconds: float

    def late(self) -> list[str]:
        """What took longer than it may. MongoDB's statements are only shown."""
        found = []
        if self.slowest[0] > CALL:
            found.append(f"a call ({self.slowest[1]}) took {self.slowest[0]:.1f} s")
        if self.gap > GAP:
            found.append(f"nothing was delivered for {self.gap:.1f} s")
        if self.statements and self.store == "postgresql":
            found.append(f"slow statements: {watch.summary(self.statements)}")
        return found

    def __str__(self) -> str:
        slowest = f"{self.slowest[0]:.2f} s ({self.slowest[1]})"
        slow = watch.summary(self.statements) or "none"
        return (
            f"{begins(self.name, self.store)} {self.count:,} {self.unit} | {self.calls:,} | {slowest} "
            f"| {self.gap:.2f} s | {slow} | {len(self.wrong)} | {datetime.date.today().isoformat()} |"
        )


def begins(name: str, store: str) -> str:
    return f"| {name} | {store} |"


class Stage:
    """What a shape has to work with: the database, the brokers, and clients whose answers are judged at the end."""

    def __init__(self, drill: Drill, name: str) -> None:
        self.drill = drill
        self.name = name
        self.watch = Watch()
        self.wrong: list[str] = []
        self.unpromised = ""
        """Invariants that do not hold for this shape, by their names."""
        self._histories: list[Path] = []
        self._files: list[int] = []

    def crew(self, queue: str = "", doors: Sequence[Door] = ()) -> DrillCrew:
        """Clients of a queue of this shape."""
        path = self.drill.folder / f"history-{len(list(self.drill.folder.iterdir()))}.jsonl"
        self._histories.append(path)
        self._files.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        name = re.sub("[^a-z0-9]+", "-", self.name.lower()) + ("." if queue else "") + queue
        return DrillCrew(doors or self.drill.doors, str(time.time_ns()), name, self.watch, self._files[-1])

    def equal(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.wrong.append(f"{what}: {found!r} instead of {expected!r}")

    def say(self, text: str) -> None:
        progress(f"{self.name} on {self.drill.kind}: {text}")

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """The database is down meanwhile."""
        span = Span(time.monotonic(), float("inf"))
        self.watch.down.append(span)
        yield
        span.ends = time.monotonic()

    def judge(self) -> None:
        """Add what the checker finds."""
        for file, path in zip(self._files, self._histories, strict=True):
            os.close(file)
            verdict = check(history.read(path.read_bytes()))
            found = [str(found) for found in verdict.violations if found.invariant not in self.unpromised]
            if found and self.drill.keep is not None:
                kept = self.drill.keep / f"{time.time_ns()}-{path.name}"
                shutil.copyfile(path, kept)
                found.append(f"what the clients were told is in {kept}")
            path.unlink()
            self.wrong += found


class Drill:
    """A database with brokers on it, through which one shape after the other goes."""

    def __init__(self, kind: str, folder: Path, program: Sequence[str] = ("miniq",), keep: Path | None = None) -> None:
        self.kind = kind
        self.folder = folder
        self.keep = keep
        """A folder for the histories in which something is wrong."""
        self._program = program
        self.database: postgresql.Server | mongod.Mongod
        self.url = ""
        self.brokers: list[Server] = []
        self.doors: list[Door] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Drill]:
        async with contextlib.AsyncExitStack() as stack:
            if self.kind == "postgresql":
                settings = f"max_wal_size = 2GB\n{watch.POSTGRESQL}"
                self.database = stack.enter_context(postgresql.running(settings))
            else:
                self.database = mongod.Mongod()
                stack.callback(self.database.remove)
            self.url = url_of(self.database, "drill")
            self.brokers, self.doors = await self.serve(stack, self.url)
            yield self

    async def serve(self, stack: contextlib.AsyncExitStack, url: str) -> tuple[list[Server], list[Door]]:
        """Brokers on a store, and access to them."""
        brokers = [Server(url, self._program) for _ in range(BROKERS)]
        for broker in brokers:
            stack.callback(broker.stop)
        with ThreadPoolExecutor(BROKERS) as pool:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*[loop.run_in_executor(pool, broker.start) for broker in brokers])
        doors: list[Door] = [
            await stack.enter_async_context(miniq.connect_async(broker.url, retry=0)) for broker in brokers
        ]
        return brokers, doors

    async def run(self, shape: Shape, scale: float) -> Result:
        """One row."""
        count = shape.amount(scale)
        stage = Stage(self, shape.name)
        slow = SlowLog(self.database.log, watch.of_postgresql if self.kind == "postgresql" else watch.of_mongodb)
        began = time.monotonic()
        try:
            async with asyncio.timeout(shape.minutes * 60):
                await shape.run(stage, count)
        except TimeoutError:
            stage.wrong.append(f"it did not end within {shape.minutes} minutes")
        except (MiniQError, AssertionError) as error:
            stage.wrong.append(f"it ended early: {error}")
        seconds = time.monotonic() - began
        statements = slow.statements()
        stage.say("the checker looks at what the clients were told")
        await asyncio.to_thread(stage.judge)
        observed = stage.watch
        return Result(
            shape.name, self.kind, count, shape.unit, observed.calls, observed.slowest(), observed.gap(), statements,
            stage.wrong, seconds,
        )  # fmt: skip
