"""Speed over HTTP: `python -m bench.http`. The server runs as a separate process on RocksDB with fsync.

One Python client alternates with a raw append-and-fdatasync loop with the same batches. If wrk and redis-server are
installed, 64 connections with one message per request alternate with Redis Streams that fsync every write, driven by
redis-benchmark with 64 clients and the same bodies.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

import miniq
from bench.core import Samples, receive_sync, send_sync
from bench.raw import RawLog
from bench.report import Figure, progress, result_path, save, scratch, show, spread

TEXT = "x" * 1022
"""1 KB as JSON."""
SLICES = {1: (6, 25), 100: (12, 4), 1000: (12, 1)}
WARM_UP = 100
"""Batches of 1000 before measuring: beyond 100 MB RocksDB reuses its old logs, as in a long-running server."""
TARGETS = {("send", 100): 0.3, ("receive + ack", 100): 0.2, ("send", 1000): 0.13, ("receive + ack", 1000): 0.09}
CONNECTIONS = 64
SECONDS, REQUESTS = 2, 50_000
"""Seconds that wrk runs per round, and requests that redis-benchmark makes, which takes about as long."""
PEER_ROUNDS = 15

LUA = """
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
wrk.body = '{"body":"' .. string.rep("x", 1022) .. '"}'
"""


@contextlib.contextmanager
def server(folder: str) -> Iterator[str]:
    """A MiniQ server on a free loopback port; yields its URL."""
    command = [sys.executable, "-m", "miniq", "serve", "--store", f"rocksdb:{folder}/served", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[2]
        finally:
            process.terminate()


def one_client(url: str, folder: str, rounds: int) -> Samples:
    """A Python client and the raw disk, alternating."""
    samples: Samples = defaultdict(list)
    raw = RawLog(os.path.join(folder, "raw.log"))
    data = TEXT.encode() + b"xx"
    with miniq.connect(url) as mq:
        queue = mq.queue("bench")
        progress("warming up")
        send_sync(queue, 1000, WARM_UP, 1, TEXT)
        receive_sync(queue, 1000, WARM_UP, 1)
        for number in range(rounds + 1):
            progress(f"one client: round {number} of {rounds}" if number else "one client: warming up")
            for size, (slices, batches) in SLICES.items():
                base, sends, receives = 0.0, 0.0, 0.0
                for _ in range(slices):
                    base += raw.seconds(data, size, batches)
                    sends += send_sync(queue, size, batches, 1, TEXT)
                    receives += receive_sync(queue, size, batches, 1)
                messages = slices * batches * size
                for verb, seconds in (("send", sends), ("receive + ack", receives)):
                    samples["rate", verb, str(size)].append(messages / seconds)
                    samples["ratio", verb, str(size)].append(base / seconds)
            if not number:
                samples.clear()
    raw.close()
    return samples


@contextlib.contextmanager
def redis(folder: str) -> Iterator[int]:
    """A Redis server that fsyncs every write, on a free loopback port; yields the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    os.makedirs(os.path.join(folder, "redis"))
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", os.path.join(folder, "redis")]
    command += ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(200):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.02)
            yield port
        finally:
            process.terminate()


def crowd(url: str, folder: str, rounds: int) -> Samples:
    """64 connections, one message per request, MiniQ and Redis alternating."""
    samples: Samples = defaultdict(list)
    script = os.path.join(folder, "send.lua")
    with open(script, "w", encoding="utf-8") as file:
        file.write(LUA)
    wrk = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}s", "-s", script, f"{url}/v1/queues/crowd/messages"]
    with redis(folder) as port:
        bench = ["redis-benchmark", "-p", str(port), "-c", str(CONNECTIONS), "-n", str(REQUESTS), "-q"]
        bench += ["XADD", "stream", "*", "body", TEXT]
        for number in range(rounds):
            progress(f"64 connections: round {number + 1} of {rounds}")
            output = subprocess.run(wrk, capture_output=True, text=True, check=True).stdout
            assert "Non-2xx" not in output, output
            ours = float(re.findall(r"Requests/sec:\s+([\d.]+)", output)[0])
            output = subprocess.run(bench, capture_output=True, text=True, check=True).stdout
            theirs = float(re.findall(r"([\d.]+) requests per second", output)[-1])
            samples["rate", "ours"].append(ours)
            samples["rate", "theirs"].append(theirs)
            samples["ratio", "crowd"].append(ours / theirs)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.http", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="measured rounds (12)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 2 rounds")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    with scratch(options.dir) as folder, server(folder) as url:
        samples = one_client(url, folder, rounds)
        peers = None
        if shutil.which("wrk") and shutil.which("redis-server"):
            peers = crowd(url, folder, 1 if options.quick else PEER_ROUNDS)
    rows = [
        Figure(
            name=f"{verb} x{size}",
            value=spread(samples["ratio", verb, str(size)]),
            unit="ratio",
            rate=spread(samples["rate", verb, str(size)]),
            target=TARGETS.get((verb, size)),
        )
        for size in SLICES
        for verb in ("send", "receive + ack")
    ]
    show("One Python client over HTTP; value: ratio to the raw loop with the same batches", rows)
    if peers is None:
        print("\n64 connections: skipped, needs wrk and redis-server (Debian: apt install wrk redis-server)")
    else:
        theirs = Figure(name="Redis XADD", value=spread([1.0]), unit="ratio", rate=spread(peers["rate", "theirs"]))
        ours = Figure(
            name="MiniQ send",
            value=spread(peers["ratio", "crowd"]),
            unit="ratio",
            rate=spread(peers["rate", "ours"]),
            target=1.0,
        )
        show("64 connections, one message per request; value: ratio to Redis Streams, AOF always", [theirs, ours])
        rows += [theirs, ours]
    about = {"bench": "http", "rounds": rounds, "quick": options.quick, "body_bytes": 1024}
    save(result_path("http", options.quick), about, rows)


if __name__ == "__main__":
    main()
