"""The cost of many queues: `python -m bench.queues`. The server runs as a separate process on RocksDB with fsync.

Each of 50,000 queues is created by its first message. Measured are the time and memory to open them, the CPU time of
the idle server (also with an open console), and the latency of sends to random queues; each also with 10 queues.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from typing import Any

import miniq
from bench.console import cpu_seconds, response_times, served, watching
from bench.report import Figure, progress, result_path, save, scratch, show, spread

FEW = 10
SENDERS = 500
SENDS = 2000
IDLE_TARGET, OPEN_TARGET, P99_TARGET = 0.03, 2.0, 1.5
MOST = {"MINIQ_MAX_QUEUES": "1000000"}


def name(number: int) -> str:
    return f"queue.{number:05d}"


async def fill(url: str, queues: int) -> None:
    """Send one message to each of the queues."""
    async with miniq.connect_async(url, max_queues=1_000_000) as mq:
        for start in range(0, queues, SENDERS):
            await asyncio.gather(
                *[mq.queue(name(n)).send("x" * 100) for n in range(start, min(queues, start + SENDERS))]
            )
            if start % 5000 == 0:
                progress(f"created {start:,} of {queues:,} queues")


async def opening(url: str) -> dict[str, float]:
    """Seconds to open the store, and the memory it takes in MB."""
    before = _resident()
    began, used = time.perf_counter(), time.process_time()
    mq = await miniq.connect_async(url, max_queues=1_000_000)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    memory = _resident() - before
    await mq.close()
    return {"open": seconds, "cpu": used, "memory": memory}


def _resident(pid: int | str = "self") -> float:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _child(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.queues", "--child", *arguments]
    return dict(json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout))


def _as_child(part: str, url: str, *rest: str) -> None:
    measured = asyncio.run(opening(url)) if part == "open" else asyncio.run(fill(url, int(rest[0])))
    print(json.dumps(measured or {}))


def share_of_a_core(pid: int, seconds: float) -> float:
    """The share of a core that a process takes, whatever else runs on the machine."""
    before, began = cpu_seconds(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.perf_counter() - began)


def latencies(url: str, queues: int, sends: int) -> list[float]:
    """Seconds of each of some sends, one at a time, to random queues."""
    choose = random.Random(1)
    seconds = []
    with miniq.connect(url) as mq:
        for _ in range(sends):
            queue = mq.queue(name(choose.randrange(queues)))
            began = time.perf_counter()
            queue.send("x" * 100)
            seconds.append(time.perf_counter() - began)
    return sorted(seconds)


def at(latencies: list[float], share: float) -> float:
    return latencies[int(len(latencies) * share)]


def measure(folder: str, queues: int, settle: float, idle: float, rounds: int) -> list[Figure]:
    """All figures for one number of queues."""
    store = f"{folder}/served"
    _child("fill", f"rocksdb:{store}", str(queues))
    label = f"{queues:,} queues: "

    def figure(what: str, values: list[float], unit: str, target: float | None = None) -> Figure:
        return Figure(name=label + what, value=spread(values), unit=unit, target=target, at_most=True)

    opened = [_child("open", f"rocksdb:{store}") for _ in range(3)]
    figures = [
        figure("open", [each["open"] for each in opened], "s", OPEN_TARGET),
        figure("open, CPU time", [each["cpu"] for each in opened], "s", OPEN_TARGET),
        figure("memory", [each["memory"] for each in opened], "MB"),
    ]
    with served(folder) as (url, pid):
        progress(f"{label}settling for {settle:.0f} s")
        starting = share_of_a_core(pid, settle)
        progress(f"{label}idle")
        shares = [share_of_a_core(pid, idle) for _ in range(rounds)]
        progress(f"{label}with an open console")
        with watching(url, 1):
            time.sleep(3)
            watched = [share_of_a_core(pid, idle) for _ in range(rounds)]
        progress(f"{label}sending")
        latencies(url, queues, SENDS // 10)
        sent = [latencies(url, queues, SENDS) for _ in range(rounds)]
        lists = response_times(url, "/v1/queues", 3)
        figures += [
            figure(f"CPU in the first {settle:.0f} s", [starting], "share"),
            figure("CPU idle", shares, "share", IDLE_TARGET),
            figure("CPU with an open console", watched, "share"),
            figure("send, median", [at(each, 0.5) * 1000 for each in sent], "ms"),
            figure("send, p99", [at(each, 0.99) * 1000 for each in sent], "ms"),
            figure("GET /v1/queues", lists, "s"),
            figure("resident", [_resident(pid)], "MB"),
        ]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.queues", description=__doc__.splitlines()[0])
    parser.add_argument("--queues", type=int, default=50_000, help="how many are many (50000)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 2000 queues, a few seconds each")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    parser.add_argument("--out", help="path of the JSON report (bench/results/queues.json)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _as_child(*options.child)
        return
    os.environ.update(MOST)
    many = 2000 if options.quick else options.queues
    settle, idle, rounds = (3.0, 2.0, 1) if options.quick else (20.0, 10.0, 3)
    figures: list[Figure] = []
    for queues in (FEW, many):
        with scratch(options.dir) as folder:
            figures += measure(folder, queues, settle, idle, rounds)
    few, much = [figure.value.median for figure in figures if figure.name.endswith("send, p99")]
    ratio = spread([much / few])
    figures.append(Figure(name="send, p99, many to few", value=ratio, unit="ratio", target=P99_TARGET, at_most=True))
    show("Many queues, one message in each, fsync before each confirmation", figures)
    about: dict[str, Any] = {"bench": "queues", "quick": options.quick, "queues": many, "rounds": rounds}
    save(options.out or result_path("queues", options.quick), about, figures)


if __name__ == "__main__":
    main()
