"""Celery's workers, the processes of their pools and the broker are killed at random under load (`make faults-celery`).

Every task acks late, and some run longer than a lease. At the end each has run, and no two runs of one were at the same
time.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import signal
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

import miniq
from tests.acceptance.celery_kit import Worker, call, environment, notes, until, working
from tests.serving import free_ports, serving

LEASE = 8.0
LONG, EVERY = 12.0, 125
"""One task in so many runs so many seconds: longer than a lease that is not extended."""
WORKERS = 3


def run(tasks: int, kills: int, seed: int) -> None:
    """Send the tasks, kill, and print the balance; `AssertionError` if something was lost or ran twice at once."""
    dice = random.Random(seed)
    killed = {"worker": 0, "process": 0, "broker": 0}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        path = Path(folder)
        store, [port] = f"rocksdb:{path / 'data'}", free_ports(1)
        env = environment(
            f"miniq://127.0.0.1:{port}",
            path / "notes",
            {"lease": LEASE},
            worker_prefetch_multiplier=2,
            task_reject_on_worker_lost=True,
        )
        broker = stack.enter_context(serving(store, port))
        workers = [stack.enter_context(working(env, "-c", "2", name=f"w{n}")) for n in range(WORKERS)]
        call(env, f"for n in range({tasks}): late.delay(n, 0.02 if n % {EVERY} else {LONG})")
        for _ in range(kills):
            time.sleep(dice.uniform(0.5, 2))
            victim = dice.choice(list(killed))
            killed[victim] += 1
            if victim == "broker":
                broker.stop(signal.SIGKILL)
                broker = stack.enter_context(serving(store, port))
            elif victim == "worker":
                number = dice.randrange(WORKERS)
                workers[number].process.kill()
                workers[number].process.wait()
                workers[number] = stack.enter_context(working(env, "-c", "2", name=f"w{number}"))
            else:
                _kill_a_process(dice.choice(workers))
        with miniq.connect(broker.url) as mq:
            until(lambda: mq.queue("celery").info().counts.total == 0, lambda: mq.queue("celery").info().counts, 600)
        for worker in workers:
            worker.stop()
        _balance(env, tasks, killed)


def _kill_a_process(worker: Worker) -> None:
    with contextlib.suppress(psutil.Error, IndexError):
        psutil.Process(worker.process.pid).children()[0].kill()


def _balance(env: dict[str, str], tasks: int, killed: dict[str, int]) -> None:
    runs = defaultdict(list)
    ends = {(note["number"], note["pid"], note["run"]): note["at"] for note in notes(env, "ended")}
    for note in notes(env, "began"):
        runs[note["number"]].append((note["at"], ends.get((note["number"], note["pid"], note["run"]))))
    finished = {number for number, _, _ in ends}
    lost = set(range(tasks)) - finished
    at_once = [
        number
        for number, spans in runs.items()
        for (_, end), (start, _) in zip(sorted(spans, key=_start), sorted(spans, key=_start)[1:], strict=False)
        if end is not None and end > start
    ]
    again = sum(len(spans) > 1 for spans in runs.values())
    long = sum(end is not None and end - start > LEASE for spans in runs.values() for start, end in spans)
    print(
        f"killed: {killed}; tasks {tasks}, lost {len(lost)}, run again {again}, at the same time {len(at_once)}; "
        f"runs that took longer than their lease of {LEASE:g} s: {long}"
    )
    assert long, "no lease had to be extended"
    assert not lost, sorted(lost)[:10]
    assert not at_once, at_once[:10]


def _start(span: tuple[float, float | None]) -> float:
    return span[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    run(given.tasks, given.kills, given.seed)
