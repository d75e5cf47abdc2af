"""Speed of the embedded broker through its public client, against the raw disk: `python -m bench.core`.

Every confirmation waits for its fsync, bodies have 1 KB. A round measures everything once, in slices of a few
milliseconds: some batches of the baseline, as many of MiniQ, and so on in turn, so that both see the same
disk and the same memory. The ratio is taken per round; medians over the rounds are shown.
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

Seen = dict[tuple[str, ...], list[float]]
Slice = Callable[[int], float]
"""Does so many batches and says how many seconds they took."""


# The callers: each does its share of the batches. What is returned are the seconds that all together took.


async def send_async(queue: miniq.AsyncQueue, batch: int, batches: int, callers: int) -> float:
    bodies = [BODY] * batch

    async def one() -> None:
        await queue.send(BODY)

    async def many() -> None:
        await queue.send_many(bodies)

    return await _together(one if batch == 1 else many, batches, callers)


async def receive_async(queue: miniq.AsyncQueue, batch: int, batches: int, callers: int) -> float:
    async def one() -> None:
        (message,) = await queue.receive()
        assert await message.ack()

    async def many() -> None:
        messages = await queue.receive(batch)
        assert len(messages) == batch, f"{len(messages)} messages instead of {batch}"
        assert set(await queue.ack(messages)) == {"done"}

    return await _together(one if batch == 1 else many, batches, callers)


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

    def one() -> None:
        queue.send(body)

    def many() -> None:
        queue.send_many(bodies)

    return _in_threads(one if batch == 1 else many, batches, callers)


def receive_sync(queue: miniq.Queue, batch: int, batches: int, callers: int) -> float:
    def one() -> None:
        (message,) = queue.receive()
        assert message.ack()

    def many() -> None:
        messages = queue.receive(batch)
        assert len(messages) == batch, f"{len(messages)} messages instead of {batch}"
        assert set(queue.ack(messages)) == {"done"}

    return _in_threads(one if batch == 1 else many, batches, callers)


def _in_threads(call: Callable[[], None], batches: int, callers: int) -> float:
    if callers == 1:  # a thread of its own for every turn, with memory of its own, is not what one caller has
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
    """One run of the benchmark: both clients on stores of their own, and the baseline beside them."""

    def __init__(self, folder: str, store: str) -> None:
        self._folder = folder
        self._store = store
        self.seen: Seen = defaultdict(list)
        """What each round measured, by what was measured."""

    def run(self, rounds: int) -> None:
        self._raw = RawLog(os.path.join(self._folder, "raw.log"))
        url = f"{self._store}:{self._folder}"
        with asyncio.Runner() as loop, miniq.connect(f"{url}/sync") as self._sync:
            self._loop = loop
            self._async = loop.run(_connect(f"{url}/async"))
            try:
                loop.run(self._async.queue("told").configure(history="events"))
                for number in range(rounds + 1):
                    # The first round warms up: files, allocator, code. It is not counted.
                    progress(f"round {number} of {rounds}" if number else "warming up")
                    self._round()
                    if not number:
                        self.seen.clear()
            finally:
                loop.run(self._async.close())
        self._raw.close()

    def _round(self) -> None:
        queue, told, blocking = self._async.queue("plain"), self._async.queue("told"), self._sync.queue("plain")
        for callers, size in itertools.product(CALLERS, SIZES):
            raw = [partial(self._raw.seconds, BODY, size)] * 2
            self._compare("async", callers, size, raw, self._on_loop(queue, size, callers))
            works = [partial(act, blocking, size, callers=callers) for act in (send_sync, receive_sync)]
            self._compare("sync", callers, size, raw, works)
        for size in SIZES:
            self._compare("history", 1, size, self._on_loop(queue, size, 1), self._on_loop(told, size, 1))
        self._crowd()

    def _compare(self, name: str, callers: int, size: int, bases: Sequence[Slice], works: Sequence[Slice]) -> None:
        """Run slices of two things in turn, first sends, then receives of what was sent, and again; note the
        speed of both and their ratio."""
        slices, batches = SLICES[callers, size]
        base_seconds, seconds = [0.0, 0.0], [0.0, 0.0]
        for number in range(slices):
            for verb in range(2):
                # Who comes first changes, in case that is an advantage.
                if number % 2:
                    seconds[verb] += works[verb](batches)
                    base_seconds[verb] += bases[verb](batches)
                else:
                    base_seconds[verb] += bases[verb](batches)
                    seconds[verb] += works[verb](batches)
        messages = slices * batches * size
        for verb, text in enumerate(VERBS):
            key = (name, text, str(callers), str(size))
            self.seen["rate", *key].append(messages / seconds[verb])
            self.seen["base", *key].append(messages / base_seconds[verb])
            self.seen["ratio", *key].append(base_seconds[verb] / seconds[verb])

    def _crowd(self) -> None:
        """Many callers, one message each: how many share an fsync."""
        works = self._on_loop(self._async.queue("plain"), 1, CROWD)
        for verb, work in zip(VERBS, works, strict=True):
            before = _syncs(self._async)
            seconds = work(CROWD * CROWD_EACH)
            self.seen["rate", "crowd", verb].append(CROWD * CROWD_EACH / seconds)
            self.seen["shared", "crowd", verb].append(CROWD * CROWD_EACH / (_syncs(self._async) - before))

    def _on_loop(self, queue: miniq.AsyncQueue, size: int, callers: int) -> list[Slice]:
        """Sends and receives of an async queue, as plain functions."""

        def send(batches: int) -> float:
            return self._loop.run(send_async(queue, size, batches, callers))

        def receive(batches: int) -> float:
            return self._loop.run(receive_async(queue, size, batches, callers))

        return [send, receive]


async def _connect(url: str) -> miniq.AsyncClient:
    return await miniq.connect_async(url)


def _syncs(client: miniq.AsyncClient) -> int:
    """How many fsyncs the broker behind a client has made; no public call tells."""
    return int(client._transport._broker.store.commits[1])  # type: ignore[attr-defined]


def figures(seen: Seen) -> list[tuple[str, list[Figure]]]:
    """The tables: a title and its figures."""
    tables: list[tuple[str, list[Figure]]] = []
    raw = [
        Figure(
            name=f"append + fdatasync x{size}",
            value=spread([1.0]),
            unit="ratio",
            rate=spread([rate for key in seen if _is_raw(key, size) for rate in seen[key]]),
        )
        for size in SIZES
    ]
    tables.append(("Baseline: a raw loop on one growing file", raw))
    for client in ("async", "sync"):
        rows = [
            Figure(
                name=f"{client} {verb} x{size}, {callers} caller{'s' * (callers > 1)}",
                value=spread(seen["ratio", client, verb, str(callers), str(size)]),
                unit="ratio",
                rate=spread(seen["rate", client, verb, str(callers), str(size)]),
                target=TARGETS.get((verb, size)) if client == "async" else None,
            )
            for callers, size, verb in itertools.product(CALLERS, SIZES, VERBS)
        ]
        tables.append((f"MiniQ, {client} client; value: ratio to the baseline of the same batch", rows))
    crowd = [
        Figure(
            name=f"{verb} x1, {CROWD} callers",
            value=spread(seen["shared", "crowd", verb]),
            unit="messages/fsync",
            rate=spread(seen["rate", "crowd", verb]),
            target=FSYNC_TARGET,
        )
        for verb in VERBS
    ]
    tables.append((f"Group commit: {CROWD} callers at once, one message each", crowd))
    history = [
        Figure(
            name=f"{verb} x{size}",
            value=spread([1 - ratio for ratio in seen["ratio", "history", verb, "1", str(size)]]),
            unit="share",
            rate=spread(seen["rate", "history", verb, "1", str(size)]),
            target=HISTORY_TARGET,
            at_most=True,
        )
        for size, verb in itertools.product(SIZES, VERBS)
    ]
    tables.append(("History `events`; value: what it costs against `off`", history))
    return tables


def _is_raw(key: tuple[str, ...], size: int) -> bool:
    return key[0] == "base" and key[1] in ("async", "sync") and key[4] == str(size)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.core", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25, help="rounds that count (25)")
    parser.add_argument("--quick", action="store_true", help="2 rounds, to see that it works")
    parser.add_argument("--store", choices=("rocksdb", "leveldb"), default="rocksdb")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    parser.add_argument("--out", help="where the JSON goes (bench/results/core.json)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    if rounds < 1:
        parser.error("--rounds: at least 1")
    started = time.perf_counter()
    with scratch(options.dir) as folder:
        core = Core(folder, options.store)
        core.run(rounds)
    tables = figures(core.seen)
    print(
        f"Embedded broker on {options.store}, fsync before each confirmation, 1 KB bodies, {rounds} rounds.\n"
        "Baseline and MiniQ take turns every few milliseconds, with the same batches on the same disk; the\n"
        "baseline appends to one growing file, as any log does. Values are medians of the ratios of the rounds."
    )
    for title, rows in tables:
        show(title, rows)
    print(f"\n{time.perf_counter() - started:.0f} s")
    about = {"bench": "core", "store": options.store, "rounds": rounds, "quick": options.quick, "body_bytes": len(BODY)}
    name = "core" if options.store == "rocksdb" else f"core-{options.store}"
    save(options.out or result_path(name, options.quick), about, [row for _, rows in tables for row in rows])


if __name__ == "__main__":
    main()
