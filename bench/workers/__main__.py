"""`python -m bench.workers [--tasks N] [--rounds N] [--minutes N] [--only NAME,…] [--quick] [--folder DIR]`: tasks per
second, latency, memory.

For each system, in turns: tasks that are queued already, with one worker process of eight threads and with two; single
tasks sent at a steady rate, from send to done; and sends one by one. Slow systems get fewer tasks (`Peer.share`). A
round is begun only if it can end within `--minutes`.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

import psutil

from bench.report import Figure, progress, result_path, save, scratch, show, spread
from bench.workers.marks import Marks
from bench.workers.peers import PEERS, Peer, broker, workers

SHAPES = {"no-op": 0.0, "1 ms": 0.001}
LONGEST = 20.0
"""Seconds after which a slow system's rate is taken from what it has done."""
STARTED = 60.0
"""Seconds within which workers have done their first task."""
SINGLE = 2000
LATENCIES = 300
GOAL = 4.0
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Bench:
    """The measurements of one system."""

    def __init__(self, peer: Peer, folder: str, tasks: int) -> None:
        self._peer = peer
        self._folder = folder
        self._tasks = max(100, int(tasks * peer.share))

    def rate(self, seconds: float, processes: int) -> tuple[float, float]:
        """Tasks per second of a backlog, and the memory of the workers in MB."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, broker(self._peer, folder) as url:
            done = Marks(os.path.join(folder, "done"), self._tasks)
            env = self._environment(url, done)
            self._send(env, "send_many", self._tasks, seconds)
            with workers(self._peer, processes, env) as pids:
                started, moments = time.time(), []
                while len(moments) < self._tasks and (not moments or time.time() - min(moments) < LONGEST):
                    if not moments and time.time() - started > STARTED:
                        raise RuntimeError(f"{self._peer.name}: its workers have done nothing in {STARTED:g} s")
                    time.sleep(0.05)
                    moments = [moment for moment in done.all() if moment]
                memory = sum(_memory(pid) for pid in pids)
            return (len(moments) - 1) / (max(moments) - min(moments)), memory / 1e6

    def latency(self, processes: int, count: int) -> tuple[float, float]:
        """p50 and p99 in ms from send to done, at a steady rate."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, broker(self._peer, folder) as url:
            done = Marks(os.path.join(folder, "done"), count + 50)
            env = self._environment(url, done)
            sent = os.path.join(folder, "sent")
            Marks(sent, count + 50)
            with workers(self._peer, processes, env):
                # The first ones are not counted: they wait for the worker to start.
                self._send(env, "paced", count + 50, 0.0, sent)
                deadline = time.monotonic() + 30
                while not all(done.all()) and time.monotonic() < deadline:
                    time.sleep(0.05)
            took = sorted(
                1000 * (end - start) for start, end in list(zip(Marks(sent).all(), done.all(), strict=True))[50:] if end
            )
            return statistics.median(took), took[int(0.99 * len(took))]

    def sends(self) -> float:
        """Single sends per second of one process."""
        with tempfile.TemporaryDirectory(dir=self._folder) as folder, broker(self._peer, folder) as url:
            done = Marks(os.path.join(folder, "done"), 1)
            return float(self._send(self._environment(url, done), "one_by_one", SINGLE, 0.0))

    def _environment(self, url: str, done: Marks) -> dict[str, str]:
        more = {
            "BENCH_URL": url,
            "RQ_REDIS_URL": url,
            "BENCH_DONE": done.path,
            "PYTHONPATH": ROOT,
            "dramatiq_queue_prefetch": "256",
        }
        return os.environ | more | {"PYTHONWARNINGS": "ignore"}

    def _send(self, env: dict[str, str], how: str, count: int, seconds: float, sent: str = "") -> str:
        command = [sys.executable, "-m", "bench.workers.sender", self._peer.module, how, str(count), str(seconds), sent]
        return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def _memory(pid: int) -> int:
    """The resident memory of a process and its children."""
    process = psutil.Process(pid)
    return sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.workers")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=11.0, help="begin no round that would end later")
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true", help="2,000 tasks, one round; not a result")
    parser.add_argument("--folder", default=".")
    asked = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("There is no redis-server: only MiniQ is measured (Debian: apt-get install redis-server).")
    tasks, rounds = (2000, 1) if asked.quick else (asked.tasks, asked.rounds)
    chosen = [
        peer
        for peer in PEERS
        if (not asked.only or peer.name in asked.only.split(","))
        and (peer.name == "MiniQ" or shutil.which("redis-server"))
    ]
    values: dict[str, list[float]] = {}
    began = time.monotonic()
    with scratch(asked.folder) as folder:
        for turn in range(rounds):
            passed = time.monotonic() - began
            if turn and passed * (turn + 1) / turn > 60 * asked.minutes:
                rounds = turn
                break
            for peer in chosen:
                bench = Bench(peer, folder, tasks)
                progress(f"round {turn + 1} of {rounds}: {peer.name}")
                for shape, seconds in SHAPES.items():
                    for processes in (1, 2):
                        rate, memory = bench.rate(seconds, processes)
                        values.setdefault(f"{peer.name}: {shape}, {processes} x 8", []).append(rate)
                        if not seconds:
                            values.setdefault(f"{peer.name}: memory of {processes} x 8", []).append(memory)
                p50, p99 = bench.latency(1, 100 if asked.quick else LATENCIES)
                values.setdefault(f"{peer.name}: p50 from send to done", []).append(p50)
                values.setdefault(f"{peer.name}: p99 from send to done", []).append(p99)
                values.setdefault(f"{peer.name}: single sends", []).append(bench.sends())
    figures = [Figure(name=name, value=spread(found), unit=_unit(name)) for name, found in values.items()]
    figures += ratios(values, [peer.name for peer in chosen])
    show(f"{tasks:,} tasks, {rounds} rounds in turns", figures)
    counts = {peer.name: int(tasks * peer.share) for peer in chosen}
    print("Tasks: " + ", ".join(f"{name} {count:,}" for name, count in counts.items()))
    save(result_path("workers", asked.quick), {"tasks": counts, "rounds": rounds, "versions": versions()}, figures)
    return 0


def ratios(values: dict[str, list[float]], names: list[str]) -> list[Figure]:
    """MiniQ against the best of the others in the same round."""
    others = [name for name in names if name != "MiniQ"]
    found = []
    if "MiniQ" not in names or not others:
        return found
    for what, target in (("no-op, 1 x 8", GOAL), ("no-op, 2 x 8", None), ("1 ms, 1 x 8", None), ("1 ms, 2 x 8", None)):
        found.append((f"{what}: against the best", what, others, target))
    if "Dramatiq" in others:
        found.append(("single sends: against Dramatiq", "single sends", ["Dramatiq"], 1.0))
    figures = []
    for name, what, rivals, target in found:
        ours = values[f"MiniQ: {what}"]
        rounds = [mine / max(values[f"{rival}: {what}"][turn] for rival in rivals) for turn, mine in enumerate(ours)]
        figures.append(Figure(name=name, value=spread(rounds), unit="ratio", target=target))
    return figures


def _unit(name: str) -> str:
    return "ms" if ": p" in name else "MB" if "memory" in name else "/s"


def versions() -> dict[str, Any]:
    found = {}
    for name in ("celery", "dramatiq", "rq", "huey", "redis"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
