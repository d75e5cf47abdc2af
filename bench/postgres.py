"""Brokers on PostgreSQL over HTTP, compared with a hand-written queue table: `python -m bench.postgres`.

The table is the usual hand-written queue: SKIP LOCKED, a visibility timestamp, psycopg, batches of 100, synchronous
commit. Both alternate on the same PostgreSQL server with the same bodies of 1 KB; MiniQ through its broker and the
Python client. Then one, two and three brokers, with clients in separate processes.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

import miniq
from bench.core import Samples, receive_sync, send_sync
from bench.report import Figure, progress, result_path, save, scratch, show, spread
from tests import postgresql

TEXT = "x" * 1022
"""1 KB as JSON."""
BATCH = 100
SLICES, BATCHES = 6, 8
TARGETS = {"send": 0.7, "receive + ack": 0.9}
CLIENTS = 3


class QueueTable:
    """A hand-written queue table."""

    def __init__(self, uri: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(uri, autocommit=True)
        self._connection.execute(
            """
            CREATE TABLE IF NOT EXISTS jobs (
                id bigserial PRIMARY KEY, body bytea NOT NULL, visible_at timestamptz NOT NULL DEFAULT now(),
                receives int NOT NULL DEFAULT 0)
            """
        )
        self._connection.execute("CREATE INDEX IF NOT EXISTS jobs_visible ON jobs (visible_at)")
        self._body = f'"{TEXT}"'.encode()

    def send(self, batches: int) -> float:
        started = time.perf_counter()
        for _ in range(batches):
            with self._connection.transaction(), self._connection.cursor() as cursor:
                cursor.executemany("INSERT INTO jobs (body) VALUES (%s)", [(self._body,)] * BATCH)
        return time.perf_counter() - started

    def receive(self, batches: int) -> float:
        started = time.perf_counter()
        for _ in range(batches):
            jobs = self._connection.execute(
                """
                UPDATE jobs SET visible_at = now() + interval '30 s', receives = receives + 1
                WHERE id IN (
                    SELECT id FROM jobs WHERE visible_at <= now() ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED)
                RETURNING id, body, receives
                """,
                (BATCH,),
                binary=True,
            ).fetchall()
            assert len(jobs) == BATCH, len(jobs)
            self._connection.execute("DELETE FROM jobs WHERE id = ANY(%s)", ([job[0] for job in jobs],))
        return time.perf_counter() - started

    def close(self) -> None:
        self._connection.close()


@contextlib.contextmanager
def broker(store: str) -> Iterator[str]:
    """A MiniQ server on a free loopback port; yields its URL."""
    command = [sys.executable, "-m", "miniq", "serve", "--store", store, "--port", "0", "--no-zmq"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


def one_client(uri: str, rounds: int) -> Samples:
    """One client of the table and one of a broker, alternating."""
    samples: Samples = defaultdict(list)
    table = QueueTable(uri)
    with broker(f"{uri}?schema=bench") as url, miniq.connect(url) as mq:
        queue = mq.queue("bench")
        for number in range(rounds + 1):
            progress(f"one client: round {number} of {rounds}" if number else "one client: warming up")
            seconds: dict[tuple[str, str], float] = defaultdict(float)
            for _ in range(SLICES):
                seconds["send", "theirs"] += table.send(BATCHES)
                seconds["send", "ours"] += send_sync(queue, BATCH, BATCHES, 1, TEXT)
                seconds["receive + ack", "theirs"] += table.receive(BATCHES)
                seconds["receive + ack", "ours"] += receive_sync(queue, BATCH, BATCHES, 1)
            for verb in TARGETS:
                messages = SLICES * BATCHES * BATCH
                samples["ours", verb].append(messages / seconds[verb, "ours"])
                samples["theirs", verb].append(messages / seconds[verb, "theirs"])
                samples["ratio", verb].append(seconds[verb, "theirs"] / seconds[verb, "ours"])
            if not number:
                samples.clear()
    table.close()
    return samples


def _client(url: str, batches: int, start: Any, results: Any) -> None:
    """A client process: send its share of the batches, then receive and ack as many."""
    with miniq.connect(url) as mq:
        queue = mq.queue("crowd")
        start.wait()
        sends = send_sync(queue, BATCH, batches, 1, TEXT)
        start.wait()
        results.put((sends, receive_sync(queue, BATCH, batches, 1)))


def several(uri: str, count: int, batches: int) -> tuple[float, float]:
    """Messages per second sent, and received and acked, with `CLIENTS` clients spread over this many brokers."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(broker(f"{uri}?schema=several")) for _ in range(count)]
        start, results = context.Barrier(CLIENTS), context.Queue()
        clients = [
            context.Process(target=_client, args=(urls[n % count], batches, start, results)) for n in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        seconds = [results.get(timeout=300) for _ in clients]
        for client in clients:
            client.join()
    messages = CLIENTS * batches * BATCH
    return messages / max(sends for sends, _ in seconds), messages / max(receives for _, receives in seconds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="measured rounds (10)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 2 rounds")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    crowds: dict[int, tuple[float, float]] = {}
    with scratch(options.dir) as folder, postgresql.running("shared_buffers = '256MB'", Path(folder)) as server:
        samples = one_client(server.uri, rounds)
        for count in (1, 2, 3):
            progress(f"{count} brokers")
            crowds[count] = several(server.uri, count, 20 if options.quick else 100)
    rows = [
        Figure(
            name=f"{verb} x{BATCH}",
            value=spread(samples["ratio", verb]),
            unit="ratio",
            rate=spread(samples["ours", verb]),
            target=target,
        )
        for verb, target in TARGETS.items()
    ]
    rows += [
        Figure(name=f"the table: {verb}", value=spread([1.0]), unit="ratio", rate=spread(samples["theirs", verb]))
        for verb in TARGETS
    ]
    show("One Python client over HTTP; value: ratio to a plain SKIP LOCKED table through psycopg", rows)
    base = crowds[1]
    brokers = [
        Figure(
            name=f"{count} broker{'s' if count > 1 else ''}: {verb}",
            value=spread([crowds[count][index] / base[index]]),
            unit="ratio",
            rate=spread([crowds[count][index]]),
        )
        for count in crowds
        for index, verb in enumerate(TARGETS)
    ]
    show(f"Several brokers, {CLIENTS} client processes; value: ratio to one broker", brokers)
    about = {"bench": "postgres", "rounds": rounds, "quick": options.quick, "body_bytes": 1024}
    save(result_path("postgres", options.quick), about, rows + brokers)


if __name__ == "__main__":
    main()
