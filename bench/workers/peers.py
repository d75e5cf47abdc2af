"""How the broker and the workers of each system are started, at their best settings."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from msgspec import Struct

from bench.peers.base import free_port, process

THREADS = 8
BIN = os.path.dirname(sys.executable)


class Peer(Struct, frozen=True):
    name: str
    module: str
    """Its tasks, in `bench.workers.tasks`."""
    command: list[str]
    """One worker process with eight threads."""
    several: list[str] | None = None
    """Two processes by one command; None: the command is started twice."""
    share: float = 1.0
    """The part of the tasks that it gets: slow systems take minutes for all of them, and their rate is the same."""

    def commands(self, processes: int) -> list[list[str]]:
        if processes == 1:
            return [self.command]
        return [self.command] * processes if self.several is None else [self.several]


def _module(name: str, *args: str) -> list[str]:
    return [sys.executable, "-m", name, *args]


_MINIQ = ["worker", "bench.workers.tasks.with_miniq:app", f"--concurrency={THREADS}", "--log-level=warning"]
_DRAMATIQ = ["bench.workers.tasks.with_dramatiq", "--threads", str(THREADS)]
_CELERY = ["-A", "bench.workers.tasks.with_celery:app", "worker", "--pool", "threads", "--concurrency", str(THREADS)]
_CELERY += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
_HUEY = ["bench.workers.tasks.with_huey.huey", "-w", str(THREADS), "-k", "thread", "-q", "-d", "0.001", "-m", "0.01"]

PEERS = [
    Peer("MiniQ", "with_miniq", _module("miniq", *_MINIQ), _module("miniq", *_MINIQ, "--processes=2")),
    Peer(
        "Dramatiq",
        "with_dramatiq",
        _module("dramatiq", *_DRAMATIQ, "--processes", "1"),
        _module("dramatiq", *_DRAMATIQ, "--processes", "2"),
    ),
    Peer("Huey", "with_huey", [os.path.join(BIN, "huey_consumer"), *_HUEY]),
    Peer("Celery", "with_celery", _module("celery", *_CELERY), share=0.25),
    Peer(
        "RQ",
        "with_rq",
        [os.path.join(BIN, "rq"), "worker", "-w", "rq.worker.SimpleWorker", "-q", "bench"],  # it has no threads
        share=0.05,
    ),
]


@contextlib.contextmanager
def broker(peer: Peer, folder: str) -> Iterator[str]:
    """The broker of a system with an empty store, and its URL; each confirmed send is on disk."""
    port = free_port()
    if peer.name == "MiniQ":
        command = _module("miniq", "serve", "--store", f"rocksdb:{folder}/data", "--port", str(port), "--no-zmq")
        with process(command, port):
            yield f"http://127.0.0.1:{port}"
        return
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--appendonly", "yes"]
    command += ["--appendfsync", "always", "--save", "", "--auto-aof-rewrite-percentage", "0"]
    with process(command, port):
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def workers(peer: Peer, processes: int, env: dict[str, str]) -> Iterator[list[int]]:
    """The worker processes, by id; stopped at the end."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(command, env=env, process_group=0, **quiet) for command in peer.commands(processes)]
    try:
        yield [each.pid for each in started]
    finally:
        for each in started:
            each.terminate()
        for each in started:
            try:
                each.wait(20)
            except subprocess.TimeoutExpired:
                each.kill()
                each.wait()
