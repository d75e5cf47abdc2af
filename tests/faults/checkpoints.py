"""Spark with checkpoints that change between kills: `python -m tests.faults.checkpoints`.

In each round a pipeline (`drain` into files, or `transform` into another queue) runs until it is killed with its Java.
Then its checkpoint is changed: an older copy takes its place, or it is deleted, or cut back by some batches, or
replaced by that of another pipeline; or nothing happens. The next run goes on with what it finds, or is refused. After
a refusal the checkpoint of the last run that was not refused is put back. At the end every message
whose send was confirmed is in the sink or in the queue, and none is there twice.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, get_args

from msgspec import Struct, field
from pyspark.errors import PySparkException

import miniq
from miniq.errors import MiniQError
from miniq.spark.pipelines import Run, drain, transform
from miniq.spark.pipelines.runs import failure
from tests.faults.spark import PATIENCE, SQL, Pipeline, tokens_in_files, tokens_in_queue
from tests.serving import serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUE, TARGET, OTHER, GROUP = "work", "results", "other", "drill"
OPTIONS = {"pollTimeout": "0.2", "maxMessagesPerBatch": "50"}
PER_ROUND = 300
SLOWEST = 2.0
"""Seconds after a batch was begun within which the driver is killed."""
COPIES = 5
REFUSALS = (
    "is written by another checkpoint",
    "was written with an earlier checkpoint",
    "holds files of an earlier run",
    "messages that another checkpoint has read",
    "the checkpoint is of queue",
    "can no longer be read",
    "the sink has not read a batch",
    "was committed to queue 'results' before, with other rows",
    "should be empty on batch 0",  # Spark's own, of a checkpoint whose offsets were all cut off
)
"""What a run may say that does not go on."""
CRASHED = "Python worker failed to connect back"
"""What Spark says when the machine is too busy for it; a crash like any other."""


class Task(Struct):
    """What a driver runs."""

    url: str
    pipeline: Pipeline
    folder: Path
    queue: str = QUEUE
    checkpoint: str = "checkpoint"
    out: str = "out"
    options: dict[str, str] = field(default_factory=OPTIONS.copy)


class Driver(Protocol):
    """Runs pipelines."""

    def until(self, task: Task, is_over: Callable[[], bool]) -> str:
        """Run for ever, and be killed when `is_over`: "", or why it ended before."""

    def to_the_end(self, task: Task) -> str:
        """Process what is there: "", or why that failed."""


class ProcessDriver:
    """A process of its own for each run, which is killed with its Java; Python workers may outlive it."""

    def until(self, task: Task, is_over: Callable[[], bool]) -> str:
        with open(task.folder / "driver.log", "wb") as log:
            command = [*self._command(task), "--continuous"]
            driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            while driver.poll() is None:
                if is_over():
                    return ""
                time.sleep(0.02)
            return (task.folder / "driver.log").read_text() or "it ended"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def to_the_end(self, task: Task) -> str:
        ended = subprocess.run(self._command(task), capture_output=True, text=True, timeout=10 * PATIENCE)
        return "" if ended.returncode == 0 else ended.stderr or "it ended"

    def _command(self, task: Task) -> list[str]:
        command = [sys.executable, "-m", "miniq", "pipeline", task.pipeline, task.queue]
        command += [str(task.folder / task.out)] if task.pipeline == "drain" else [TARGET, "--sql", SQL]
        command += ["--checkpoint", str(task.folder / task.checkpoint), "--group", GROUP, "--url", task.url]
        for name, value in task.options.items():
            command += ["--option", f"{name}={value}"]
        return [*command, "--master", "local[2]", "--json"]


class SessionDriver:
    """Queries of one session, which are interrupted wherever they are. It spares the start of Spark in each round."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def until(self, task: Task, is_over: Callable[[], bool]) -> str:
        def stop() -> bool:
            if is_over():
                raise InterruptedError
            return False

        self._spark.sparkContext.setLogLevel("OFF")  # it logs what it interrupts
        try:
            return self._run(task, stop) or "it ended"
        except InterruptedError:
            return ""
        finally:
            self._spark.sparkContext.setLogLevel("ERROR")

    def to_the_end(self, task: Task) -> str:
        return self._run(task, None)

    def _run(self, task: Task, stop: Callable[[], bool] | None) -> str:
        run = Run(
            url=task.url,
            options=task.options,
            checkpoint=str(task.folder / task.checkpoint),
            continuous=stop is not None,
            stop=stop,
        )
        try:
            if task.pipeline == "drain":
                drain(self._spark, task.queue, str(task.folder / task.out), group=GROUP, run=run)
            else:
                transform(self._spark, task.queue, TARGET, SQL, group=GROUP, run=run)
        except (MiniQError, PySparkException) as error:
            return str(failure(error))
        return ""


class Drill:
    """A broker, a pipeline, and its checkpoint in all its states."""

    def __init__(
        self,
        folder: Path,
        pipeline: Pipeline,
        seed: int,
        driver: Driver | None = None,
        per_round: int = PER_ROUND,
        slowest: float = SLOWEST,
    ) -> None:
        self._folder, self._pipeline, self._driver = folder, pipeline, driver or ProcessDriver()
        self._per_round, self._slowest = per_round, slowest
        self._chance = random.Random(seed)
        self._checkpoint, self._out = folder / "checkpoint", folder / "out"
        self._good = folder / "good"
        """The checkpoint after the last run that was not refused."""
        self._copies: list[Path] = []
        self._sent: list[str] = []
        self.rounds = self.kills = self.refused = self.released = 0
        self.changes: Counter[str] = Counter()
        self.wrong: list[str] = []

    @property
    def sent(self) -> int:
        return len(self._sent)

    def run(self, rounds: int, minutes: float = inf) -> None:
        """Run, kill and change so many times or for so long, let it come to its end, and judge."""
        until = time.monotonic() + 60 * minutes
        with serving(f"rocksdb:{self._folder / 'data'}") as server, miniq.connect(server.url) as client:
            self._client = client
            self._task = Task(server.url, self._pipeline, self._folder)
            self._foreign()
            for _ in range(rounds):
                if time.monotonic() > until:
                    break
                self.rounds += 1
                self._send()
                if not self._killed_run():
                    self._put_back()
                self._keep()
                self._change()
            if not self._last_run():
                self._put_back()
                if not self._last_run():
                    self.wrong.append("the last run was refused with its own checkpoint")
            self._judge()

    # Runs

    def _killed_run(self) -> bool:
        """Run until it is killed within a batch, or has nothing more to do; False if it was refused."""
        before, until = self._batches(), time.monotonic() + PATIENCE
        wanted, queue = self._chance.choice([1, 1, 2, 4]), self._client.queue(QUEUE)
        ends_at: list[float] = []

        def is_over() -> bool:
            done = len(self._batches() - before) >= wanted or time.monotonic() > until
            if not ends_at and (done or queue.info().counts.total == 0):
                ends_at.append(time.monotonic() + self._chance.uniform(0, self._slowest))
            return bool(ends_at) and time.monotonic() > ends_at[0]

        said = self._driver.until(self._task, is_over)
        self.kills += not said
        return self._went_well(said)

    def _last_run(self) -> bool:
        """Process what is left; False if it was refused."""
        said = self._driver.to_the_end(self._task)
        while CRASHED in said:
            said = self._driver.to_the_end(self._task)
        return self._went_well(said)

    def _went_well(self, said: str) -> bool:
        """False if a run was refused, as it may be."""
        self._said = said
        if CRASHED in said:
            return True
        if said and not any(text in said for text in REFUSALS):
            self.wrong.append(f"a run ended and said {said[-500:]!r}")
        return not said

    def _batches(self) -> set[str]:
        """The batches that Spark has begun."""
        return {path.name for path in (self._checkpoint / "offsets").glob("*") if path.name.isdigit()}

    # Checkpoints

    def _keep(self) -> None:
        """Keep the checkpoint as it is now, and sometimes a copy for later."""
        if not self._checkpoint.exists():
            return  # it was killed before Spark had begun
        shutil.rmtree(self._good, ignore_errors=True)
        shutil.copytree(self._checkpoint, self._good)
        if self._chance.random() < 0.6:
            self._copies.append(self._folder / f"copy-{len(self._copies)}")
            shutil.copytree(self._checkpoint, self._copies[-1])

    def _put_back(self) -> None:
        """After a refusal: the last run's own checkpoint. If that is refused too, because the other one has fetched
        what it had not, neither has written it: it is released and skipped, as the error says."""
        self.refused += 1
        self._replace(self._good if self._good.exists() else None)
        if self._killed_run():
            return
        self.released += 1
        self._client.queue(QUEUE).claims(GROUP).release()
        self._task.options = OPTIONS | {"failOnDataLoss": "false"}
        if not self._killed_run():
            self.wrong.append(f"refused after a release: {self._said[-500:]!r}")
        self._task.options = OPTIONS

    def _change(self) -> None:
        change = self._chance.choice(["none", "older copy", "deleted", "cut back", "of another pipeline"])
        if change == "older copy" and not self._copies:
            change = "none"
        self.changes[change] += 1
        if change == "older copy":
            self._replace(self._chance.choice(self._copies[-COPIES:]))
        elif change == "deleted":
            self._replace(None)
        elif change == "cut back":
            self._cut(self._chance.randint(1, 3))
        elif change == "of another pipeline":
            self._replace(self._folder / "foreign")

    def _replace(self, checkpoint: Path | None) -> None:
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        if checkpoint is not None:
            shutil.copytree(checkpoint, self._checkpoint)

    def _cut(self, count: int) -> None:
        """Remove the last batches from Spark's logs, as people do by hand."""
        for number in sorted(map(int, self._batches()))[-count:]:
            for log in ("commits", "offsets"):
                for name in (str(number), f".{number}.crc"):
                    (self._checkpoint / log / name).unlink(missing_ok=True)

    def _foreign(self) -> None:
        """A checkpoint of another queue."""
        self._client.queue(OTHER).send_many(range(10))
        task = Task(self._task.url, "drain", self._folder, OTHER, "foreign", "foreign-out")
        while said := self._driver.to_the_end(task):
            assert CRASHED in said, said

    # Messages

    def _send(self) -> None:
        tokens = [f"t-{len(self._sent) + place}" for place in range(self._per_round)]
        self._client.queue(QUEUE).send_many(tokens)
        self._sent += tokens

    def _judge(self) -> None:
        left = tokens_in_queue(self._client, QUEUE)
        drained = self._pipeline == "drain"
        sunk = tokens_in_files(self._out) if drained else tokens_in_queue(self._client, TARGET)
        found = Counter(sunk) + Counter(left)
        lost, doubled = Counter(self._sent) - found, [token for token, count in found.items() if count > 1]
        if lost:
            self.wrong.append(f"{len(lost)} of {len(self._sent)} are lost, such as {sorted(lost)[:3]}")
        if doubled:
            self.wrong.append(f"{len(doubled)} of {len(self._sent)} are there twice, such as {sorted(doubled)[:3]}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.checkpoints", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="rounds of each pipeline (50)")
    parser.add_argument("--minutes", type=float, default=inf, help="at most so many for each pipeline")
    parser.add_argument("--pipeline", choices=get_args(Pipeline), help="only this one")
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    code = 0
    for pipeline in get_args(Pipeline):
        if given.pipeline not in (None, pipeline):
            continue
        seed = given.seed if given.seed is not None else random.randrange(10**9)
        with tempfile.TemporaryDirectory(prefix="miniq-faults-", ignore_cleanup_errors=True) as folder:
            drill = Drill(Path(folder), pipeline, seed)
            drill.run(given.rounds, given.minutes)
        held = "BROKEN" if drill.wrong else "held"
        print(f"{held:<7} {pipeline}, {drill.rounds} rounds, {drill.sent} messages, {drill.kills} kills, ", end="")
        print(f"{drill.refused} refusals, {drill.released} releases;")
        print(f"        checkpoints: {dict(sorted(drill.changes.items()))} (seed {seed})", flush=True)
        for text in drill.wrong[:10]:
            print(f"        {text}")
        code |= bool(drill.wrong)
    return code


if __name__ == "__main__":
    sys.exit(main())
