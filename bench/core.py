"""Speed of the embedded broker through its public client, relative to the raw disk: `python -m bench.core`.

Every confirmation waits for its fsync; bodies have 1 KB. A round measures everything once, alternating every few
milliseconds between some batches of the baseline and as many of MiniQ, so that both see the same state of disk and
memory. One ratio is computed per round; the report shows medians over the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import miniq
from bench.raw import RawLog
from bench.report import Figure, progress, result_path, save, scratch, show, spread

BODY = os.urandom(1024)
SLICES = {
    (1, 1): (8, 25),
    (1, 100): (15, 4),
    (1, 1000): (15, 1),
    (4, 1): (3, 80),
    (4, 100): (3, 20),
    (4, 1000): (3, 8),
}
"""By callers and messages in a batch: slices per round, and batches per slice."""
SIZES = (1, 100, 1000)
CALLERS = (1, 4)
CROWD = 64
CROWD_EACH = 25
TARGETS = {("send", 100): 0.45, ("receive + ack", 100): 0.25, ("send", 1000): 0.25, ("receive + ack", 1000): 0.15}
FSYNC_TARGET = 15.0
HISTORY_TARGET = 0.15
VERBS = ("send", "receive + ack")

Samples = dict[tuple[str, ...], list[float]]
Slice = Callable[[int], float]
"""Runs the given number of batches and returns the seconds they took."""


# Workloads: the callers share the batches; the result is the wall time in seconds.


async def send_async(queue: miniq.AsyncQueue, batch: int, batches: int, callers: int) -> float:
    bodies = [BODY] * batch

    async def send_one() -> None:
        await queue.send(BODY)

    async def send_batch() -> None:
        await queue.send_many(bodies)

    return await _together(send_one if batch == 1 else send_batch, batches, callers)


async def receive_async(queue: miniq.AsyncQueue, batch: int, batches: int, callers: int) -> float:
    async def receive_one() -> None:
        (message,) = await queue.receive()
        assert await message.ack()

    async def receive_batch() -> None:
        messages = await queue.receive(batch)
        assert len(messages) == batch, f"{len(messages)} messages instead of {batch}"
        assert set(await queue.ack(messages)) == {"done"}

    return await _together(receive_one if batch == 1 else receive_batch, batches, callers)


async def _together(call: Callable[[], Awaitable[None]], batches: int, callers: int) -> float:
    async def caller() -> None:
        for _ in range(batches // callers):
            await call()

    started = time.perf_counter()
    if callers == 1:
        await caller()
    else:
        await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - started


def send_sync(queue: miniq.Queue, batch: int, batches: int, callers: int, body: Any = BODY) -> float:
    bodies = [body] * batch

    def send_one() -> None:
        queue.send(body)

    def send_batch() -> None:
        queue.send_many(bodies)

    return _in_threads(send_one if batch == 1 else send_batch, batches, callers)


def receive_sync(queue: miniq.Queue, batch: int, batches: int, callers: int) -> float:
    def receive_one() -> None:
        (message,) = queue.receive()
        assert message.ack()

    def receive_batch() -> None:
        messages = queue.receive(batch)
        assert len(messages) == batch, f"{len(messages)} messages instead of {batch}"
        assert set(queue.ack(messages)) == {"done"}

    return _in_threads(receive_one if batch == 1 else receive_batch, batches, callers)


def _in_threads(call: Callable[[], None], batches: int, callers: int) -> float:
    if callers == 1:  # in this thread: a new thread per slice would have a cold allocator, unlike a real caller
        started = time.perf_counter()
        for _ in range(batches):
            call()
        return time.perf_counter() - started
    errors: list[BaseException] = []

    def caller() -> None:
        try:
            for _ in range(batches // callers):
                call()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=caller) for _ in range(callers)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - started
    if errors:
        raise errors[0]
    return taken


class Core:
    """One run of the benchmark: both clients, each on its own store, and the baseline."""

    def __init__(self, folder: str, store: str) -> None:
        self._folder = folder
        self._store = store
        self.samples: Samples = defaultdict(list)
        """The values of all rounds, by figure."""

    def run(self, rounds: int) -> None:
        self._raw = RawLog(os.path.join(self._folder, "raw.log"))
        url = f"{self._store}:{self._folder}"
        with asyncio.Runner() as loop, miniq.connect(f"{url}/sync") as self._sync:
            self._loop = loop
            self._async = loop.run(_connect(f"{url}/async"))
            try:
                loop.run(self._async.queue("history").configure(history="events"))
                for number in range(rounds + 1):
                    # The first round warms up files, allocator and code, and is not counted.
                    progress(f"round {number} of {rounds}" if number else "warming up")
                    self._round()
                    if not number:
                        self.samples.clear()
            finally:
                loop.run(self._async.close())
        self._raw.close()

    def _round(self) -> None:
        queue, with_history = self._async.queue("plain"), self._async.queue("history")
        blocking = self._sync.queue("plain")
        for callers, size in itertools.product(CALLERS, SIZES):
            raw = [partial(self._raw.seconds, BODY, size)] * 2
            self._compare("async", callers, size, raw, self._on_loop(queue, size, callers))
            works = [partial(workload, blocking, size, callers=callers) for workload in (send_sync, receive_sync)]
            self._compare("sync", callers, size, raw, works)
        for size in SIZES:
            self._compare("history", 1, size, self._on_loop(queue, size, 1), self._on_loop(with_history, size, 1))
        self._crowd()

    def _compare(self, name: str, callers: int, size: int, bases: Sequence[Slice], works: Sequence[Slice]) -> None:
        """Alternate slices of a baseline and a workload, first sends, then receives of the messages sent; record the
        speed of both and their ratio."""
        slices, batches = SLICES[callers, size]
        base_seconds, seconds = [0.0, 0.0], [0.0, 0.0]
        for number in range(slices):
            for verb in range(2):
                # The order alternates, in case going first is an advantage.
                if number % 2:
                    seconds[verb] += works[verb](batches)
                    base_seconds[verb] += bases[verb](batches)
                else:
                    base_seconds[verb] += bases[verb](batches)
                    seconds[verb] += works[verb](batches)
        messages = slices * batches * size
        for verb, text in enumerate(VERBS):
            key = (name, text, str(callers), str(size))
            self.samples["rate", *key].append(messages / seconds[verb])
            self.samples["base", *key].append(messages / base_seconds[verb])
            self.samples["ratio", *key].append(base_seconds[verb] / seconds[verb])

    def _crowd(self) -> None:
        """Many concurrent callers, one message per call: how many messages share an fsync."""
        works = self._on_loop(self._async.queue("plain"), 1, CROWD)
        for verb, work in zip(VERBS, works, strict=True):
            before = _syncs(self._async)
            seconds = work(CROWD * CROWD_EACH)
            self.samples["rate", "crowd", verb].append(CROWD * CROWD_EACH / seconds)
            self.samples["shared", "crowd", verb].append(CROWD * CROWD_EACH / (_syncs(self._async) - before))

    def _on_loop(self, queue: miniq.AsyncQueue, size: int, callers: int) -> list[Slice]:
        """Blocking functions that send to and receive from an async queue."""

        def send(batches: int) -> float:
            return self._loop.run(send_async(queue, size, batches, callers))

        def receive(batches: int) -> float:
            return self._loop.run(receive_async(queue, size, batches, callers))

        return [send, receive]


async def _connect(url: str) -> miniq.AsyncClient:
    return await miniq.connect_async(url)


def _syncs(client: miniq.AsyncClient) -> int:
    """The number of fsyncs made by an embedded client's broker; there is no public call for it."""
    return int(client._transport._broker.store.commits[1])  # type: ignore[attr-defined]


def figures(samples: Samples) -> list[tuple[str, list[Figure]]]:
    """The title and figures of each table."""
    tables: list[tuple[str, list[Figure]]] = []
    raw = [
        Figure(
            name=f"append + fdatasync x{size}",
            value=spread([1.0]),
            unit="ratio",
            rate=spread([rate for key in samples if _is_raw(key, size) for rate in samples[key]]),
        )
        for size in SIZES
    ]
    tables.append(("Baseline: a raw loop on one growing file", raw))
    for client in ("async", "sync"):
        rows = [
            Figure(
                name=f"{client} {verb} x{size}, {callers} caller{'s' * (callers > 1)}",
                value=spread(samples["ratio", client, verb, str(callers), str(size)]),
                unit="ratio",
                rate=spread(samples["rate", client, verb, str(callers), str(size)]),
                target=TARGETS.get((verb, size)) if client == "async" else None,
            )
            for callers, size, verb in itertools.product(CALLERS, SIZES, VERBS)
        ]
        tables.append((f"MiniQ, {client} client; value: ratio to the baseline of the same batch", rows))
    crowd = [
        Figure(
            name=f"{verb} x1, {CROWD} callers",
            value=spread(samples["shared", "crowd", verb]),
            unit="messages/fsync",
            rate=spread(samples["rate", "crowd", verb]),
            target=FSYNC_TARGET,
        )
        for verb in VERBS
    ]
    tables.append((f"Group commit: {CROWD} concurrent callers, one message per call", crowd))
    history = [
        Figure(
            name=f"{verb} x{size}",
            value=spread([1 - ratio for ratio in samples["ratio", "history", verb, "1", str(size)]]),
            unit="share",
            rate=spread(samples["rate", "history", verb, "1", str(size)]),
            target=HISTORY_TARGET,
            at_most=True,
        )
        for size, verb in itertools.product(SIZES, VERBS)
    ]
    tables.append(("History `events`; value: slowdown relative to `off`", history))
    return tables


def _is_raw(key: tuple[str, ...], size: int) -> bool:
    return key[0] == "base" and key[1] in ("async", "sync") and key[4] == str(size)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.core", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25, help="measured rounds (25)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 2 rounds")
    parser.add_argument("--store", choices=("rocksdb", "leveldb"), default="rocksdb")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    parser.add_argument("--out", help="path of the JSON report (bench/results/core.json)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    if rounds < 1:
        parser.error("--rounds: at least 1")
    started = time.perf_counter()
    with scratch(options.dir) as folder:
        core = Core(folder, options.store)
        core.run(rounds)
    tables = figures(core.samples)
    print(
        f"Embedded broker on {options.store}, fsync before each confirmation, 1 KB bodies, {rounds} rounds.\n"
        "Baseline and MiniQ alternate every few milliseconds, with the same batches on the same disk; the\n"
        "baseline appends to one growing file, as any log does. Values are medians of the ratios per round."
    )
    for title, rows in tables:
        show(title, rows)
    print(f"\n{time.perf_counter() - started:.0f} s")
    about = {"bench": "core", "store": options.store, "rounds": rounds, "quick": options.quick, "body_bytes": len(BODY)}
    name = "core" if options.store == "rocksdb" else f"core-{options.store}"
    save(options.out or result_path(name, options.quick), about, [row for _, rows in tables for row in rows])


if __name__ == "__main__":
    main()
