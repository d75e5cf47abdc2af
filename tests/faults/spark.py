"""Spark beside ordinary workers, with `kill -9` of its driver or of the broker: `python -m tests.faults.spark`.

Producers write, workers receive and ack, and a pipeline takes what it can get: `drain` into Parquet files, or
`transform` into another queue. In each round the driver or the broker is killed at a random moment and started
again. At the end the sink is read without Spark, and the checker compares it with what clients were told (I6).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal, get_args

import miniq
from miniq.errors import MiniQError
from tests.faults.checker import Verdict, check
from tests.faults.history import Event, Recorder, read
from tests.serving import Served, free_ports, serving

Pipeline = Literal["drain", "transform"]
Victim = Literal["driver", "broker"]

QUEUE, TARGET = "work", "results"
PATIENCE = 180.0
SLOWEST = 3.0
"""Seconds after a batch was begun within which the victim is killed."""
PACE = 0.05
AHEAD = 2000
LEASE = 2
SQL = "select body from messages"


class Rig:
    """A broker, producers, workers and a pipeline, of which some are killed."""

    def __init__(self, folder: Path, pipeline: Pipeline, seed: int) -> None:
        self._folder = folder
        self._pipeline = pipeline
        self._chance = random.Random(seed)
        self._seed = seed
        self._port = free_ports(1)[0]
        self._url = f"http://127.0.0.1:{self._port}"
        self._store = f"rocksdb:{folder / 'data'}"
        self._checkpoint = folder / "checkpoint"
        self._out = folder / "out"
        self._stop = threading.Event()
        self._broker: Served | None = None
        self._stack = ExitStack()

    # What is done

    def run(self, victim: Victim, rounds: int) -> Verdict:
        """Kill so many times, let all come to rest, and judge."""
        self._start_broker()
        with miniq.connect(self._url, retry=PATIENCE) as client:
            client.queue(QUEUE).configure(visibility_timeout=LEASE)
            client.queue(TARGET).configure()
        crew = self._crew()
        try:
            if victim == "driver":
                self._kill_drivers(rounds)
            else:
                self._kill_brokers(rounds)
        finally:
            self._stop.set()
            for thread in crew:
                thread.join()
        try:
            return self._finish()
        finally:
            self._stack.close()

    def _kill_drivers(self, rounds: int) -> None:
        for number in range(rounds):
            with self._driver() as driver:
                if self._chance.random() < 0.2:
                    time.sleep(self._chance.uniform(1, 8))  # before or while it starts
                else:
                    self._next_batch(driver)
                    time.sleep(self._chance.uniform(0, SLOWEST))
            self._tell(f"driver killed {number + 1} times, {self._batches()} batches begun")

    def _kill_brokers(self, rounds: int) -> None:
        with self._driver() as driver:
            for number in range(rounds):
                self._next_batch(driver)
                time.sleep(self._chance.uniform(0, SLOWEST))
                self._stack.close()  # kills it
                time.sleep(self._chance.uniform(0, 0.5))
                self._start_broker()
                self._tell(f"broker killed {number + 1} times, {self._batches()} batches begun")
            self._next_batch(driver)

    def _finish(self) -> Verdict:
        """Let the pipeline come to its end, when the leases that workers forgot have ended, and judge."""
        time.sleep(LEASE + 0.5)
        ended = subprocess.run(self._command(), env=self._env(), capture_output=True, text=True, timeout=PATIENCE)
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr
        with miniq.connect(self._url, retry=10) as client:
            waiting = client.queue(QUEUE).info().counts
            left = client.queue(QUEUE).receive(max=1000, wait=LEASE + 1)
            assert not left, f"{len(left)} messages came back after the end: {waiting}"
            found = tokens_in_files(self._out) if self._pipeline == "drain" else tokens_in_queue(client, TARGET)
        recorder = Recorder(self._history("sink"))
        recorder.invoke("sink", "sink").ok(found)
        events: list[Event] = []
        for path in self._folder.glob("history-*.jsonl"):
            events += read(path.read_bytes())
        return check(events)

    # The processes

    def _start_broker(self) -> None:
        self._broker = self._stack.enter_context(serving(self._store, self._port))
        self._stack.callback(self._broker.process.kill)

    def _command(self) -> list[str]:
        command = [sys.executable, "-m", "miniq", "pipeline", self._pipeline, QUEUE]
        command += [str(self._out)] if self._pipeline == "drain" else [TARGET, "--sql", SQL]
        options = ["--option", "pollTimeout=0.2", "--option", "partitions=2"]
        return [*command, "--checkpoint", str(self._checkpoint), "--master", "local[2]", "--json", *options]

    def _env(self) -> dict[str, str]:
        return dict(os.environ) | {"MINIQ_URL": self._url}

    @contextmanager
    def _driver(self) -> Iterator[subprocess.Popen[bytes]]:
        """A driver that runs for ever, until it is killed with its Java; its Python workers may outlive it."""
        with open(self._folder / "driver.log", "ab") as log:
            driver = subprocess.Popen(
                [*self._command(), "--continuous", "--option", "maxMessagesPerBatch=400"],
                env=self._env(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield driver
            assert driver.poll() is None, (self._folder / "driver.log").read_text()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def _batches(self) -> int:
        """How many batches Spark has begun: the entries of its log."""
        return sum(path.name.isdigit() for path in (self._checkpoint / "offsets").glob("*"))

    def _next_batch(self, driver: subprocess.Popen[bytes]) -> None:
        """Wait until Spark begins another batch."""
        before, until = self._batches(), time.monotonic() + PATIENCE
        while self._batches() == before:
            assert driver.poll() is None, (self._folder / "driver.log").read_text()
            assert time.monotonic() < until, "no batch was begun"
            time.sleep(0.02)

    def _tell(self, text: str) -> None:
        print(f"{self._pipeline}: {text}", file=sys.stderr, flush=True)

    # The load

    def _history(self, name: str) -> int:
        return os.open(self._folder / f"history-{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def _crew(self) -> list[threading.Thread]:
        jobs = [(self._produce, "producer-1"), (self._produce, "producer-2"), (self._work, "worker-1")]
        crew = [threading.Thread(target=job, args=(name,)) for job, name in jobs]
        for thread in crew:
            thread.start()
        return crew

    def _produce(self, name: str) -> None:
        recorder, chance = Recorder(self._history(name)), random.Random(f"{self._seed} {name}")
        number = 0
        with miniq.connect(self._url, retry=PATIENCE) as client:
            while not self._stop.is_set():
                tokens = [f"{name}-{number + place}" for place in range(chance.choice([1, 10, 60]))]
                number += len(tokens)
                asked = recorder.invoke(name, "send", [[token, None] for token in tokens])
                try:
                    asked.ok(client.queue(QUEUE).send_many(tokens))
                except MiniQError:
                    asked.unknown()
                time.sleep(PACE)
                self._wait_for_others(client)

    def _wait_for_others(self, client: miniq.Client) -> None:
        """Let the others catch up: a driver that starts takes longer than it takes to fill a queue."""
        with suppress(MiniQError):
            while client.queue(QUEUE).info().counts.ready > AHEAD and not self._stop.is_set():
                time.sleep(10 * PACE)

    def _work(self, name: str) -> None:
        recorder, chance = Recorder(self._history(name)), random.Random(f"{self._seed} {name}")
        with miniq.connect(self._url, retry=PATIENCE) as client:
            queue = client.queue(QUEUE)
            while not self._stop.is_set():
                asked = recorder.invoke(name, "receive", {"max": 20, "once": False})
                try:
                    got = queue.receive(max=20, wait=0.2, consumer=name)
                except MiniQError:
                    asked.unknown()
                    continue
                asked.ok([_lease(message) for message in got])
                time.sleep(chance.uniform(0, 0.1))
                if not got or chance.random() < 0.1:
                    continue  # it forgets them: they come back when the lease has ended
                asked = recorder.invoke(name, "ack", [[message.id, message.receipt] for message in got])
                try:
                    asked.ok(list(queue.ack(got)))
                except MiniQError:
                    asked.unknown()


def _lease(message: miniq.Message) -> list[object]:
    until = message.lease_until
    assert until is not None
    micros = int(until.timestamp() * 1_000_000)
    return [message.id, message.body, None, message.receives, message.receipt, micros - LEASE * 1_000_000, micros]


def tokens_in_files(out: Path) -> list[str]:
    """What any reader of Parquet finds in the folders of a drain."""
    from pyarrow import parquet

    bodies = [parquet.read_table(path, columns=["body"])["body"] for path in sorted(out.glob("batch=*/*.parquet"))]
    return [json.loads(body) for column in bodies for body in column.to_pylist()]


def tokens_in_queue(client: miniq.Client, name: str) -> list[str]:
    found: list[str] = []
    after: str | None = None
    while True:
        page = client.queue(name).peek(after=after, limit=1000)
        found += [message.body for message in page]
        after = page.next
        if after is None:
            return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.spark", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30, help="kills of each victim under each pipeline (30)")
    parser.add_argument("--pipeline", choices=get_args(Pipeline), help="only this one")
    parser.add_argument("--victim", choices=get_args(Victim), help="only this one")
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    rounds, code = given.rounds, 0
    for pipeline in get_args(Pipeline):
        if given.pipeline not in (None, pipeline):
            continue
        for victim in get_args(Victim):
            if given.victim not in (None, victim):
                continue
            seed = given.seed if given.seed is not None else random.randrange(10**9)
            with tempfile.TemporaryDirectory(prefix="miniq-faults-") as folder:
                verdict = Rig(Path(folder), pipeline, seed).run(victim, rounds)
            held = "held" if verdict.good else "BROKEN"
            print(
                f"{held:<7} {pipeline}, {rounds} kills of the {victim}: {verdict.sent} sent, {verdict.acked} acked by"
            )
            print(f"        workers, the rest in the sink, each once (seed {seed})", flush=True)
            for violation in verdict.violations[:10]:
                print(f"        {violation}")
            code |= not verdict.good
    return code


if __name__ == "__main__":
    sys.exit(main())
