"""Brokers on PostgreSQL over HTTP against a plain queue table: `python -m bench.postgres`.

The table is what one writes by hand: SKIP LOCKED, a column that says when a job is visible, psycopg, batches of 100,
synchronous commit. Both use the same server, in turn, with the same bodies of 1 KB; MiniQ through its broker and the
Python client. Then one, two and three brokers with clients that are processes of their own.
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
from bench.core import Seen, receive_sync, send_sync
from bench.report import Figure, progress, result_path, save, scratch, show, spread
from tests import postgresql

TEXT = "x" * 1022
"""As JSON it has 1 KB."""
BATCH = 100
SLICES, BATCHES = 6, 8
TARGETS = {"send": 0.7, "receive + ack": 0.9}
CLIENTS = 3


class Plain:
    """A queue table as people write it."""

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
    """A MiniQ server on free loopback ports; its URL."""
    command = [sys.executable, "-m", "miniq", "serve", "--store", store, "--port", "0", "--no-zmq"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


def one_client(uri: str, rounds: int) -> Seen:
    """One client of the table and one of a broker, in turn."""
    seen: Seen = defaultdict(list)
    plain = Plain(uri)
    with broker(f"{uri}?schema=bench") as url, miniq.connect(url) as mq:
        queue = mq.queue("bench")
        for number in range(rounds + 1):
            progress(f"one client: round {number} of {rounds}" if number else "one client: warming up")
            took: dict[tuple[str, str], float] = defaultdict(float)
            for _ in range(SLICES):
                took["send", "theirs"] += plain.send(BATCHES)
                took["send", "ours"] += send_sync(queue, BATCH, BATCHES, 1, TEXT)
                took["receive + ack", "theirs"] += plain.receive(BATCHES)
                took["receive + ack", "ours"] += receive_sync(queue, BATCH, BATCHES, 1)
            for verb in TARGETS:
                messages = SLICES * BATCHES * BATCH
                seen["ours", verb].append(messages / took[verb, "ours"])
                seen["theirs", verb].append(messages / took[verb, "theirs"])
                seen["ratio", verb].append(took[verb, "theirs"] / took[verb, "ours"])
            if not number:
                seen.clear()
    plain.close()
    return seen


def _client(url: str, batches: int, start: Any, took: Any) -> None:
    """A client in a process of its own: its share of the sends, then of the receives and acks."""
    with miniq.connect(url) as mq:
        queue = mq.queue("crowd")
        start.wait()
        sends = send_sync(queue, BATCH, batches, 1, TEXT)
        start.wait()
        took.put((sends, receive_sync(queue, BATCH, batches, 1)))


def several(uri: str, count: int, batches: int) -> tuple[float, float]:
    """Messages a second, sent and received with ack, through so many brokers with some clients spread over them."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(broker(f"{uri}?schema=several")) for _ in range(count)]
        start, took = context.Barrier(CLIENTS), context.Queue()
        clients = [
            context.Process(target=_client, args=(urls[n % count], batches, start, took)) for n in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        answers = [took.get(timeout=300) for _ in clients]
        for client in clients:
            client.join()
    messages = CLIENTS * batches * BATCH
    return messages / max(sends for sends, _ in answers), messages / max(receives for _, receives in answers)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.postgres", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="rounds that count (10)")
    parser.add_argument("--quick", action="store_true", help="2 rounds, to see that it works")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    crowds: dict[int, tuple[float, float]] = {}
    with scratch(options.dir) as folder, postgresql.running("shared_buffers = '256MB'", Path(folder)) as server:
        seen = one_client(server.uri, rounds)
        for count in (1, 2, 3):
            progress(f"{count} brokers")
            crowds[count] = several(server.uri, count, 20 if options.quick else 100)
    rows = [
        Figure(
            name=f"{verb} x{BATCH}",
            value=spread(seen["ratio", verb]),
            unit="ratio",
            rate=spread(seen["ours", verb]),
            target=target,
        )
        for verb, target in TARGETS.items()
    ]
    rows += [
        Figure(name=f"the table: {verb}", value=spread([1.0]), unit="ratio", rate=spread(seen["theirs", verb]))
        for verb in TARGETS
    ]
    show("One Python client over HTTP; value: ratio to a plain SKIP LOCKED table through psycopg", rows)
    base = crowds[1]
    brokers = [
        Figure(
            name=f"{count} broker{'s' if count > 1 else ''}: {verb}",
            value=spread([crowds[count][place] / base[place]]),
            unit="ratio",
            rate=spread([crowds[count][place]]),
        )
        for count in crowds
        for place, verb in enumerate(TARGETS)
    ]
    show(f"Several brokers, {CLIENTS} client processes; value: ratio to one broker", brokers)
    about = {"bench": "postgres", "rounds": rounds, "quick": options.quick, "body_bytes": 1024}
    save(result_path("postgres", options.quick), about, rows + brokers)


if __name__ == "__main__":
    main()
