"""Celery on MiniQ beside Celery on Redis (AOF always) and on RabbitMQ (publisher confirms), those that are installed.

    python -m bench.celery [--tasks 5000] [--rounds 3] [--quick]

All are asked for the same: tasks sent per second by one program, each confirmed; no-op tasks per second of a prefork
worker with two processes; and the time from `delay` to the start of the task when nothing else is going on. They take
turns. Writes `bench/results/celery.json`; a quick run writes a file that git ignores.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import shutil
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from bench.peers.rabbit import SERVER, RabbitMQ
from bench.report import Figure, progress, result_path, save, scratch, show, spread
from tests.acceptance.celery_kit import call, environment, notes, until, working
from tests.serving import free_ports, serving

SINGLE = 200
QUICK_TASKS = 100
UNITS = {"sent": "per s", "tasks": "per s", "p50": "ms", "p99": "ms"}


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


@contextlib.contextmanager
def rabbit_broker(folder: Path) -> Iterator[str]:
    with RabbitMQ().start(str(folder)) as running:
        yield f"amqp://guest:guest@127.0.0.1:{running.port}//"


class System(NamedTuple):
    """Where Celery's messages go."""

    name: str
    start: Callable[[Path], contextlib.AbstractContextManager[str]]
    program: str | None = None
    """What must be installed."""
    options: Mapping[str, Any] = MappingProxyType({})
    """`broker_transport_options`."""
    settings: Mapping[str, Any] = MappingProxyType({})
    """Celery's."""


MINIQ = System("MiniQ", miniq_broker)
CONFIRMS = MappingProxyType({"confirm_publish": True})
QUORUM = MappingProxyType({"task_default_queue_type": "quorum"})
PEERS = (
    System("Redis", redis_broker, "redis-server"),
    System("RabbitMQ classic", rabbit_broker, SERVER, CONFIRMS),
    System("RabbitMQ quorum", rabbit_broker, SERVER, CONFIRMS, QUORUM),
)


def added(env: dict[str, str]) -> int:
    """How many tasks are done, found at little cost."""
    path = Path(env["LOG"])
    return path.read_bytes().count(b'"added"') if path.exists() else 0


def measure(system: System, folder: Path, tasks: int) -> dict[str, float]:
    """The figures of one round on one system."""
    with system.start(folder) as url:
        env = environment(url, folder / "notes", dict(system.options), **system.settings)
        sent = call(
            env,
            "add.delay(0, 0)\nbegan = time.perf_counter()\n"
            f"for n in range({tasks}): add.delay(n, 0)\n"
            f"print({tasks} / (time.perf_counter() - began))",
        )
        with working(env, "-c", "2", "--without-gossip", "--without-mingle"):
            until(lambda: added(env) > tasks, seconds=600)
            times = [note["at"] for note in notes(env, "added")]
            code = f"for n in range({SINGLE}):\n    print(time.time())\n    add.delay(n, 0)\n    time.sleep(0.02)\n"
            starts = [float(line) for line in call(env, code).split()]
            until(lambda: added(env) == tasks + 1 + SINGLE)
            ends = [note["at"] for note in notes(env, "added")][-SINGLE:]
    delays = sorted((end - start) * 1000 for start, end in zip(starts, sorted(ends), strict=True))
    return {
        "sent": float(sent),
        "tasks": tasks / (max(times) - min(times)),
        "p50": statistics.median(delays),
        "p99": delays[int(len(delays) * 0.99)],
    }


def figures(rounds: dict[str, list[dict[str, float]]]) -> list[Figure]:
    """The figures of each system, and how MiniQ compares with each peer round by round."""
    absolute = [
        Figure(name=f"{name} {what}", value=spread([each[what] for each in found]), unit=unit)
        for name, found in rounds.items()
        for what, unit in UNITS.items()
    ]
    ratios = [
        Figure(
            name=f"{what}, MiniQ to {peer}",
            value=spread([ours[what] / theirs[what] for ours, theirs in zip(rounds[MINIQ.name], found, strict=True)]),
            unit="ratio",
            target=1.0,
            at_most=unit == "ms",
        )
        for peer, found in rounds.items()
        if peer != MINIQ.name
        for what, unit in UNITS.items()
    ]
    return absolute + ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=".", help="a folder on the disk that is measured")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="peers to compare with (default: all)")
    parser.add_argument("--quick", action="store_true", help=f"one round of {QUICK_TASKS} tasks: whether it runs")
    given = parser.parse_args()
    tasks, rounds = (QUICK_TASKS, 1) if given.quick else (given.tasks, given.rounds)
    peers = [peer for peer in PEERS if given.only is None or peer.name in given.only]
    systems = [MINIQ, *(peer for peer in peers if shutil.which(peer.program or "") is not None)]
    for absent in (peer for peer in peers if peer not in systems):
        print(f"{absent.name} takes no part: {absent.program} is not installed")
    found: dict[str, list[dict[str, float]]] = {system.name: [] for system in systems}
    for number in range(rounds):
        for system in systems:
            progress(f"round {number + 1} of {rounds}: {system.name}")
            with scratch(given.folder) as folder:
                found[system.name].append(measure(system, Path(folder), tasks))
    shown = figures(found)
    show("Celery, prefork with 2 processes", shown)
    about = {"bench": "celery", "rounds": rounds, "tasks": tasks, "quick": given.quick}
    versions = {package: importlib.metadata.version(package) for package in ("celery", "kombu")}
    save(result_path("celery", given.quick), about | versions, shown)


if __name__ == "__main__":
    main()
