"""Celery on MiniQ beside Celery on Redis (AOF always), if `redis-server` is installed: `make bench-celery`.

Both are asked for the same: tasks sent per second by one program, no-op tasks per second of a prefork worker with two
processes, and the time from `delay` to the start of the task when nothing else is going on.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.acceptance.celery_kit import call, environment, notes, until, working
from tests.serving import free_ports, serving

SINGLE = 200


@contextlib.contextmanager
def miniq_broker(folder: Path) -> Iterator[str]:
    with serving(f"rocksdb:{folder / 'data'}") as served:
        yield f"miniq://127.0.0.1:{served.port}"


@contextlib.contextmanager
def redis_broker(folder: Path) -> Iterator[str]:
    [port] = free_ports(1)
    flags = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes"]
    process = subprocess.Popen(["redis-server", *flags, "--appendfsync", "always"], stdout=subprocess.DEVNULL)
    try:
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait(30)


def measure(url: str, folder: Path, tasks: int) -> dict[str, float]:
    """The figures of one broker."""
    env = environment(url, folder / "notes")
    sent = call(
        env,
        "add.delay(0, 0)\nbegan = time.perf_counter()\n"
        f"for n in range({tasks}): add.delay(n, 0)\n"
        f"print({tasks} / (time.perf_counter() - began))",
    )
    with working(env, "-c", "2", "--without-gossip", "--without-mingle"):
        until(lambda: len(notes(env, "added")) > tasks, seconds=600)
        times = [note["at"] for note in notes(env, "added")]
        code = f"for n in range({SINGLE}):\n    print(time.time())\n    add.delay(n, 0)\n    time.sleep(0.02)\n"
        starts = [float(line) for line in call(env, code).split()]
        until(lambda: len(notes(env, "added")) == tasks + 1 + SINGLE)
        ends = [note["at"] for note in notes(env, "added")][-SINGLE:]
    delays = sorted((end - start) * 1000 for start, end in zip(starts, sorted(ends), strict=True))
    return {
        "sent/s": float(sent),
        "tasks/s": tasks / (max(times) - min(times)),
        "p50 ms": statistics.median(delays),
        "p99 ms": delays[int(len(delays) * 0.99)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    brokers = {"MiniQ": miniq_broker}
    if shutil.which("redis-server"):
        brokers["Redis, AOF always"] = redis_broker
    figures: dict[str, list[dict[str, float]]] = {name: [] for name in brokers}
    for _ in range(given.rounds):  # in turns, so that both have the same machine
        for name, broker in brokers.items():
            with tempfile.TemporaryDirectory() as folder, broker(Path(folder)) as url:
                figures[name].append(measure(url, Path(folder), given.tasks))
    for name, rounds in figures.items():
        medians = {what: statistics.median(each[what] for each in rounds) for what in rounds[0]}
        print(f"{name:20}" + "".join(f"{what:>10} {value:8.1f}" for what, value in medians.items()))


if __name__ == "__main__":
    main()
