"""Speed, memory and start-up with a long backlog: `python -m bench.backlog`.

A queue is filled with 2 million messages of 200 B. Then send and receive + ack x100 are measured on it and on an empty
queue of the same store, alternating every few milliseconds, with one ratio per round. Memory and start-up are measured
in new processes that open the folder after its files were evicted from the page cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

import miniq
from bench.report import Figure, progress, result_path, save, scratch, show, spread

BODY = os.urandom(200)
FILL = 1000
SIZE = 100
SLICES, BATCHES = 12, 5
"""Slices per round, and batches per slice."""
WORK = 1000
"""Batches sent, received and acked by the process whose memory is measured."""
SPEED_TARGET, MEMORY_TARGET, OPEN_TARGET = 0.85, 250.0, 2.0


async def send(queue: miniq.AsyncQueue, batches: int) -> float:
    """Seconds to send this many batches."""
    bodies = [BODY] * SIZE
    started = time.perf_counter()
    for _ in range(batches):
        await queue.send_many(bodies)
    return time.perf_counter() - started


async def receive(queue: miniq.AsyncQueue, batches: int) -> float:
    """Seconds to receive and ack this many batches."""
    started = time.perf_counter()
    for _ in range(batches):
        messages = await queue.receive(SIZE)
        assert len(messages) == SIZE, f"{len(messages)} messages instead of {SIZE}"
        assert set(await queue.ack(messages)) == {"done"}
    return time.perf_counter() - started


# Run in child processes. Each prints one line of JSON.


async def fill(url: str, messages: int) -> dict[str, Any]:
    """Send the backlog."""
    bodies = [BODY] * FILL
    started = time.perf_counter()
    async with miniq.connect_async(url) as mq:
        queue = mq.queue("deep")
        for number in range(messages // FILL):
            await queue.send_many(bodies)
            if number % 100 == 0:
                progress(f"queued {number * FILL:,} of {messages:,}")
    return {"seconds": time.perf_counter() - started}


async def speed(url: str, rounds: int) -> dict[str, Any]:
    """Per round: the ratio of the deep queue to the empty one, and the rate of the deep queue."""
    samples: dict[str, list[float]] = {name: [] for name in ("send", "receive", "send_rate", "receive_rate")}
    async with miniq.connect_async(url) as mq:
        deep, empty = mq.queue("deep"), mq.queue("empty")
        depth = (await deep.info()).counts.total
        for number in range(rounds + 1):
            progress(f"speed: round {number} of {rounds}" if number else "speed: warming up")
            seconds = dict.fromkeys(("send deep", "send empty", "receive deep", "receive empty"), 0.0)
            for turn in range(SLICES):
                order = [("deep", deep), ("empty", empty)]
                if turn % 2:
                    order.reverse()
                for name, queue in order:
                    seconds[f"send {name}"] += await send(queue, BATCHES)
                for name, queue in order:
                    seconds[f"receive {name}"] += await receive(queue, BATCHES)
            if number:
                for verb in ("send", "receive"):
                    samples[verb].append(seconds[f"{verb} empty"] / seconds[f"{verb} deep"])
                    samples[f"{verb}_rate"].append(SLICES * BATCHES * SIZE / seconds[f"{verb} deep"])
        counts = (await deep.info()).counts
        assert counts.total == counts.ready == depth, counts
        assert (await empty.info()).counts.total == 0
    return samples


async def start(url: str, crash: bool) -> dict[str, Any]:
    """Open, receive one message, then work for a while; return seconds and memory. With `crash`, end by SIGKILL."""
    started = time.perf_counter()
    mq = await miniq.connect_async(url)
    opened = time.perf_counter()
    queue = mq.queue("deep")
    (message,) = await queue.receive(1, visibility_timeout=0)
    first = time.perf_counter()
    assert len(message.data) == len(BODY)
    idle = _memory("VmRSS")
    progress(f"memory: sending, receiving and acking {WORK * SIZE:,} messages")
    for _ in range(WORK // 100):
        await send(queue, 100)
        await receive(queue, 100)
    measured = {
        "open": opened - started,
        "first": first - started,
        "idle": idle,
        "resident": _memory("VmRSS"),
        "peak": _memory("VmHWM"),
    }
    if crash:
        print(json.dumps(measured), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    await mq.close()
    return measured


def _memory(field: str) -> float:
    """A field of /proc/self/status, in MB."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024 / 1e6
    raise LookupError(field)


def _child(*arguments: str) -> dict[str, Any]:
    """Run one part of the benchmark in a new process."""
    command = [sys.executable, "-m", "bench.backlog", "--child", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate()
    except BaseException:
        process.kill()
        process.wait()
        raise
    if process.returncode not in (0, -signal.SIGKILL) or not output:
        sys.exit(f"bench.backlog: {arguments[0]} failed")
    return dict(json.loads(output))


def _as_child(arguments: list[str]) -> None:
    part, url, *rest = arguments
    if part == "fill":
        work = fill(url, int(rest[0]))
    elif part == "speed":
        work = speed(url, int(rest[0]))
    else:
        work = start(url, rest == ["crash"])
    print(json.dumps(asyncio.run(work)))


def _drop_cache(folder: str) -> None:
    """Evict the files from the page cache, so that they are read from disk."""
    for directory, _, names in os.walk(folder):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _size(folder: str) -> float:
    """The size of all files in MB."""
    files = [os.path.join(directory, name) for directory, _, names in os.walk(folder) for name in names]
    return sum(os.path.getsize(path) for path in files) / 1e6


def measure(folder: str, store: str, messages: int, rounds: int) -> list[tuple[str, list[Figure]]]:
    """Run all parts; return the title and figures of each table."""
    url = f"{store}:{folder}"
    filled = _child("fill", url, str(messages))
    disk = _size(folder)
    _drop_cache(folder)
    clean = _child("start", url, "crash")
    _drop_cache(folder)
    crashed = _child("start", url)
    samples = _child("speed", url, str(rounds))
    speeds = [
        Figure(
            name=f"{text} x{SIZE}",
            value=spread(samples[verb]),
            unit="ratio",
            rate=spread(samples[f"{verb}_rate"]),
            target=SPEED_TARGET,
        )
        for verb, text in (("send", "send"), ("receive", "receive + ack"))
    ]

    def single(name: str, value: float, unit: str, target: float | None = None) -> Figure:
        return Figure(name=name, value=spread([value]), unit=unit, target=target, at_most=True)

    memory = [
        single("resident after the first receive", max(clean["idle"], crashed["idle"]), "MB", MEMORY_TARGET),
        single("resident after work", max(clean["resident"], crashed["resident"]), "MB", MEMORY_TARGET),
        single("peak", max(clean["peak"], crashed["peak"]), "MB"),
        single("on disk", disk, "MB"),
    ]
    starts = [
        single("after a clean stop: open", clean["open"], "s"),
        single("after a clean stop: first message", clean["first"], "s", OPEN_TARGET),
        single("after kill -9: open", crashed["open"], "s"),
        single("after kill -9: first message", crashed["first"], "s", OPEN_TARGET),
    ]
    rate = Figure(
        name=f"send x{FILL}",
        value=spread([filled["seconds"]]),
        unit="s",
        rate=spread([messages / filled["seconds"]]),
    )
    return [
        (f"Speed with {messages:,} messages queued; value: ratio to an empty queue of the same store", speeds),
        (f"Memory of a process that opens it and works ({WORK * SIZE:,} messages sent, received, acked)", memory),
        ("Start-up: from before open, files not in the page cache", starts),
        ("Filling the queue", [rate]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.backlog", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=2_000_000, help="length of the queue (2000000)")
    parser.add_argument("--rounds", type=int, default=40, help="measured rounds (40)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 100000 messages and 3 rounds")
    parser.add_argument("--store", choices=("rocksdb", "leveldb"), default="rocksdb")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    parser.add_argument("--out", help="path of the JSON report (bench/results/backlog.json)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _as_child(options.child)
        return
    messages, rounds = (100_000, 3) if options.quick else (options.messages, options.rounds)
    if messages < FILL or rounds < 1:
        parser.error(f"--messages: at least {FILL}; --rounds: at least 1")
    messages = messages // FILL * FILL
    started = time.perf_counter()
    with scratch(options.dir) as folder:
        tables = measure(os.path.join(folder, "store"), options.store, messages, rounds)
    print(
        f"Embedded broker on {options.store}, fsync before each confirmation, {len(BODY)} B bodies, {rounds} rounds.\n"
        "The long queue and an empty one of the same store alternate every few milliseconds. Values are\n"
        "medians of the ratios per round."
    )
    for title, rows in tables:
        show(title, rows)
    print(f"\n{time.perf_counter() - started:.0f} s")
    about = {
        "bench": "backlog",
        "store": options.store,
        "rounds": rounds,
        "quick": options.quick,
        "messages": messages,
        "body_bytes": len(BODY),
    }
    name = "backlog" if options.store == "rocksdb" else f"backlog-{options.store}"
    save(options.out or result_path(name, options.quick), about, [row for _, rows in tables for row in rows])


if __name__ == "__main__":
    main()
