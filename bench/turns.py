"""Compares two versions of the server: `python -m bench.turns REVISION`, the working tree against that revision.

Both run at the same time, each on its own RocksDB folder; the same slice of requests goes to each of them, in random
order. The client is a plain socket, so that only the servers differ. The values are the rate of the new server, its CPU
time per call, the 99th percentile of its latency with many connections, and what it wrote to the disk in all, as ratios
to the old one's.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import random
import re
import select
import socket
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

from bench.report import Figure, progress, result_path, save, scratch, show, spread

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXT = "x" * 198
CONNECTIONS = 64
SLICES = {1: 150, 10: 80, 100: 25, 1000: 8}
"""Calls in one slice, by messages per call."""
SLICES_PER_ROUND = 6
CROWD = 3200
"""Requests of a slice with many connections."""
WARM_UP = 60

Reply = tuple[int, bytes]


class Connection:
    """A keep-alive connection that sends requests and reads whole replies."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def read(self) -> Reply:
        data = self._rest
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._more()
        length = re.search(rb"content-length: (\d+)", data[:end], re.IGNORECASE)
        assert length is not None, data[:end]
        total = end + 4 + int(length[1])
        while len(data) < total:
            data += self._more()
        self._rest = data[total:]
        status = int(data[9:12])
        assert status < 300, data[:500]
        return status, data[end + 4 : total]

    def call(self, request: bytes) -> bytes:
        self.send(request)
        return self.read()[1]

    def close(self) -> None:
        self._socket.close()

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 18)
        assert data, "the server closed the connection"
        return data


def post(path: str, body: object) -> bytes:
    """A request as bytes."""
    raw = json.dumps(body, separators=(",", ":")).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(raw) + raw


def send_request(queue: str, size: int, **options: object) -> bytes:
    if size == 1:
        return post(f"/v1/queues/{queue}/messages", {"body": TEXT, **options})
    return post(f"/v1/queues/{queue}/messages", {"messages": [{"body": TEXT, **options}] * size})


class Served:
    """A running server: its process and connections to it."""

    def __init__(self, name: str, source: str, folder: str) -> None:
        command = [sys.executable, "-m", "miniq", "serve", "--store", f"rocksdb:{folder}/{name}", "--port", "0"]
        environment = os.environ | {"PYTHONPATH": source}
        self.process = subprocess.Popen(
            [*command, "--no-zmq"], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
        )
        assert self.process.stdout is not None
        address = None
        while address is None:
            output = self.process.stdout.readline()
            assert output, f"the {name} server did not start"
            address = re.search(r"http://127\.0\.0\.1:(\d+)", output)
        self.port = int(address[1])
        self.written = 0
        """Bytes that the disk wrote during its slices, also in the background for the other server."""
        self.delays: list[float] = []
        """Seconds of each request with many connections since they were last read."""
        self.connection = Connection(self.port)
        self.crowd = [Connection(self.port) for _ in range(CONNECTIONS)]

    def cpu(self) -> float:
        """Seconds of CPU time that all threads of the server have used, by the scheduler's own count."""
        total = 0
        for path in glob.glob(f"/proc/{self.process.pid}/task/*/schedstat"):
            with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def stop(self) -> None:
        for connection in (self.connection, *self.crowd):
            connection.close()
        self.process.terminate()
        self.process.wait(20)


Work = Callable[[Served], int]
"""A workload; returns the number of calls it made."""


def sending(queue: str, size: int, **options: object) -> Work:
    request = send_request(queue, size, **options)

    def work(server: Served) -> int:
        for _ in range(SLICES[size]):
            server.connection.call(request)
        return SLICES[size]

    return work


def receiving(queue: str, size: int) -> Work:
    receive = post(f"/v1/queues/{queue}/receive", {"max": size})

    def work(server: Served) -> int:
        for _ in range(SLICES[size]):
            messages = json.loads(server.connection.call(receive))["messages"]
            assert len(messages) == size, len(messages)
            leases = [{"id": message["id"], "receipt": message["receipt"]} for message in messages]
            server.connection.call(post(f"/v1/queues/{queue}/ack", {"leases": leases}))
        return SLICES[size]

    return work


def crowding(queue: str) -> Work:
    request = send_request(queue, 1)

    def work(server: Served) -> int:
        sent = 0
        began: dict[Connection, float] = {}
        for connection in server.crowd:
            began[connection] = time.perf_counter()
            connection.send(request)
            sent += 1
        done = 0
        while done < CROWD:
            for connection in select.select(server.crowd, [], [])[0]:
                connection.read()
                server.delays.append(time.perf_counter() - began[connection])
                done += 1
                if sent < CROWD:
                    began[connection] = time.perf_counter()
                    connection.send(request)
                    sent += 1
        return CROWD

    return work


CROWD_NAME = "send x1, 64 connections"
WORKS: dict[str, Work] = {
    "send x1": sending("one", 1),
    "receive + ack x1": receiving("one", 1),
    "send x1 with priority": sending("priority", 1, priority=5),
    "send x10": sending("ten", 10),
    "receive + ack x10": receiving("ten", 10),
    "send x100": sending("hundred", 100),
    "receive + ack x100": receiving("hundred", 100),
    "send x1000": sending("thousand", 1000),
    "receive + ack x1000": receiving("thousand", 1000),
    CROWD_NAME: crowding("crowd"),
}


@contextlib.contextmanager
def checked_out(revision: str, folder: str) -> Iterator[str]:
    """A revision checked out to a temporary worktree; yields the path of its `src`."""
    worktree = os.path.join(folder, "old-source")
    subprocess.run(["git", "-C", ROOT, "worktree", "add", "--quiet", "--detach", worktree, revision], check=True)
    try:
        yield os.path.join(worktree, "src")
    finally:
        subprocess.run(["git", "-C", ROOT, "worktree", "remove", "--force", worktree], check=True)


def disk_writes(folder: str) -> int:
    """Bytes that anything wrote to the disk of a folder since the machine was started. What the kernel counts for a
    process is too much where a file is cached in large pages."""
    device = os.stat(folder).st_dev
    with open(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat", encoding="ascii") as file:
        return int(file.read().split()[6]) * 512


def measure(old: Served, new: Served, rounds: int, folder: str) -> dict[tuple[str, str], list[float]]:
    samples: dict[tuple[str, str], list[float]] = defaultdict(list)
    for server in (old, new):
        for _ in range(WARM_UP):
            server.connection.call(send_request("warm", 1000))
    for number in range(rounds + 1):
        progress(f"round {number} of {rounds}" if number else "warming up")
        for name, work in WORKS.items():
            seconds = dict.fromkeys((old, new), 0.0)
            cpu = dict.fromkeys((old, new), 0.0)
            calls = 0
            for _ in range(SLICES_PER_ROUND):
                for server in random.sample([old, new], 2):
                    wrote, used, began = disk_writes(folder), server.cpu(), time.perf_counter()
                    calls = work(server)
                    seconds[server] += time.perf_counter() - began
                    cpu[server] += server.cpu() - used
                    server.written += disk_writes(folder) - wrote
            if number:
                samples["speed", name].append(seconds[old] / seconds[new])
                samples["rate", name].append(SLICES_PER_ROUND * calls / seconds[new])
                samples["cpu", name].append(cpu[new] / cpu[old])
            old_p99, new_p99 = (_p99(server.delays) for server in (old, new))
            if number and old_p99:
                samples["p99", name].append(new_p99 / old_p99)
                samples["p99 ms", name].append(new_p99 * 1000)
    samples["written", "all"].append(new.written / old.written)
    return samples


def _p99(delays: list[float]) -> float:
    """The 99th percentile of the latencies, which are forgotten; 0 if there are none."""
    ordered = sorted(delays)
    delays.clear()
    return ordered[int(len(ordered) * 0.99)] if ordered else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description=__doc__.splitlines()[0])
    parser.add_argument("revision", help="the git revision to compare with")
    parser.add_argument("--rounds", type=int, default=12, help="measured rounds (12)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 2 rounds")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    with scratch(options.dir) as folder, checked_out(options.revision, folder) as source:
        old = Served("old", source, folder)
        try:
            new = Served("new", os.path.join(ROOT, "src"), folder)
            try:
                samples = measure(old, new, rounds, folder)
            finally:
                new.stop()
        finally:
            old.stop()
    rows = [
        Figure(
            name=name,
            value=spread(samples["speed", name]),
            unit="ratio",
            rate=spread(samples["rate", name]),
            target=1.0,
        )
        for name in WORKS
    ]
    cpu = [
        Figure(name=f"{name}: CPU", value=spread(samples["cpu", name]), unit="ratio", target=1.0, at_most=True)
        for name in WORKS
    ]
    others = [
        Figure(
            name=f"{CROWD_NAME}: p99",
            value=spread(samples["p99", CROWD_NAME]),
            unit="ratio",
            rate=spread(samples["p99 ms", CROWD_NAME]),
            target=1.0,
            at_most=True,
        ),
        Figure(name="bytes written to the disk", value=spread(samples["written", "all"]), unit="ratio", at_most=True),
    ]
    show(f"Rate of the new server as a ratio to {options.revision}; rate: calls per second", rows)
    show("CPU time of the new server per call as a ratio to the old one", cpu)
    show("Latency, new to old (rate: milliseconds of the new one), and bytes written", others)
    about = {"bench": "turns", "old": options.revision, "rounds": rounds, "quick": options.quick, "body_bytes": 200}
    save(result_path("turns", options.quick), about, rows + cpu + others)


if __name__ == "__main__":
    main()
