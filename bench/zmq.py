"""Speed over ZeroMQ: `python -m bench.zmq`. The server runs as a separate process on RocksDB with fsync.

The same server over HTTP and ZeroMQ, alternating: a plain REQ socket and MiniQ's ZeroMQ client compared with its HTTP
client, with one and with a hundred messages per call; and a DEALER socket with 64 requests in flight, for the number of
messages per fsync.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator

import zmq

import miniq
from bench.core import Samples, receive_sync, send_sync
from bench.report import Figure, progress, result_path, save, scratch, show, spread

TEXT = "x" * 1022
"""1 KB as JSON."""
SLICES = {1: (8, 50), 100: (12, 4)}
"""By messages per call: slices per round, and calls per slice."""
IN_FLIGHT = 64
PIPELINED_CALLS = 3000
"""Calls per round on the DEALER socket."""
TARGETS = {("REQ send", 1): 1.0, ("client send", 100): 0.8, ("client receive + ack", 100): 0.8}
FSYNC_TARGET = 15.0


class Server:
    """A MiniQ server on free loopback ports."""

    def __init__(self, line: str) -> None:
        self.http, self.tcp = line.split()[2:4]

    def syncs(self) -> int:
        """The number of fsyncs so far."""
        with urllib.request.urlopen(f"{self.http}/metrics", timeout=10) as response:  # noqa: S310
            counter = re.search(rb"^miniq_store_syncs_total ([\d.e+]+)$", response.read(), re.MULTILINE)
        assert counter is not None
        return int(float(counter[1]))


@contextlib.contextmanager
def serving(folder: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "miniq", "serve", "--store", f"rocksdb:{folder}/served", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Server(process.stdout.readline())
        finally:
            process.terminate()


class Plain:
    """A client of plain pyzmq, as in docs/protocol.md."""

    def __init__(self, address: str) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._req = self._socket(zmq.REQ, address)
        self._dealer = self._socket(zmq.DEALER, address)
        payload = {"queue": "bench", "body": TEXT}
        self._send = json.dumps({"type": "SEND", "payload": payload}).encode()

    def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        socket.rcvtimeo = 30_000
        socket.connect(address)
        return socket

    def send(self, calls: int) -> float:
        """Seconds for this many sequential sends."""
        started = time.perf_counter()
        for _ in range(calls):
            self._req.send(self._send)
            assert b'"ok":true' in self._req.recv()
        return time.perf_counter() - started

    def send_pipelined(self, calls: int) -> float:
        """Seconds for this many sends with up to 64 in flight."""
        dealer, sent = self._dealer, 0
        started = time.perf_counter()
        for done in range(calls):
            while sent < min(done + IN_FLIGHT, calls):
                dealer.send_multipart([b"", b"%d" % sent, self._send])
                sent += 1
            assert b'"ok":true' in dealer.recv_multipart()[2]
        return time.perf_counter() - started

    def close(self) -> None:
        self._context.destroy(0)


def measure(server: Server, rounds: int) -> Samples:
    """Measure everything once per round, alternating between HTTP and ZeroMQ."""
    samples: Samples = defaultdict(list)
    plain = Plain(server.tcp)
    with miniq.connect(server.http) as by_http, miniq.connect(server.tcp) as by_zmq:
        http, ours = by_http.queue("bench"), by_zmq.queue("bench")
        http.configure()

        def sends(queue: miniq.Queue, size: int) -> Callable[[int], float]:
            return lambda calls: send_sync(queue, size, calls, 1, TEXT)

        def receives(queue: miniq.Queue, size: int) -> Callable[[int], float]:
            return lambda calls: receive_sync(queue, size, calls, 1)

        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}" if number else "warming up")
            for size, (slices, calls) in SLICES.items():
                ways = {
                    "HTTP send": sends(http, size),
                    "HTTP receive + ack": receives(http, size),
                    "client send": sends(ours, size),
                    "client receive + ack": receives(ours, size),
                }
                if size == 1:
                    ways["REQ send"] = plain.send
                totals = dict.fromkeys(ways, 0.0)
                for _ in range(slices):
                    for name, way in ways.items():
                        totals[name] += way(calls)
                for name, seconds in totals.items():
                    base = totals["HTTP receive + ack" if name.endswith("ack") else "HTTP send"]
                    samples["rate", name, str(size)].append(slices * calls * size / seconds)
                    samples["ratio", name, str(size)].append(base / seconds)
            before = server.syncs()
            seconds = plain.send_pipelined(PIPELINED_CALLS)
            samples["rate", "pipelined"].append(PIPELINED_CALLS / seconds)
            samples["shared", "pipelined"].append(PIPELINED_CALLS / max(1, server.syncs() - before))
            http.purge()
            if not number:
                samples.clear()
    plain.close()
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.zmq", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="measured rounds (12)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 2 rounds")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    with scratch(options.dir) as folder, serving(folder) as server:
        samples = measure(server, rounds)
    rows = [
        Figure(
            name=f"{name} x{size}",
            value=spread(samples["ratio", name, size]),
            unit="ratio",
            rate=spread(samples["rate", name, size]),
            target=TARGETS.get((name, int(size))),
        )
        for kind, name, size in [key for key in samples if key[0] == "ratio"]
    ]
    show("One client, sequential calls; value: ratio to the HTTP client", rows)
    pipelined = Figure(
        name=f"DEALER send x1, {IN_FLIGHT} in flight",
        value=spread(samples["shared", "pipelined"]),
        unit="messages/fsync",
        rate=spread(samples["rate", "pipelined"]),
        target=FSYNC_TARGET,
    )
    show(f"One DEALER client with {IN_FLIGHT} requests in flight", [pipelined])
    about = {"bench": "zmq", "rounds": rounds, "quick": options.quick, "body_bytes": 1024, "pyzmq": zmq.__version__}
    save(result_path("zmq", options.quick), about, [*rows, pipelined])


if __name__ == "__main__":
    main()
