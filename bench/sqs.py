"""Speed of the SQS wire: `python -m bench.sqs`. The server runs as a separate process on RocksDB with fsync.

boto3 with 16 threads, one and ten messages per call, alternates between MiniQ and moto's server, which keeps its queues
in memory. Then one connection without an SDK alternates between SQS and the native routes of MiniQ with ten messages
per call: what the wire itself costs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import importlib.metadata
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from bench.core import Samples
from bench.report import Figure, progress, result_path, save, scratch, show, spread

TEXT = "x" * 1024
THREADS = 16
MESSAGES, QUICK = {1: 160, 10: 640}, {1: 32, 10: 160}
"""Messages of a slice by messages per call, a multiple of what the threads send in one turn."""
CALLS = 30
"""Calls of a slice on the connection without an SDK."""
EMPTY = 3
TARGETS = {"SQS send x10": 0.5, "SQS receive + delete x10": 0.5}
MOTO = """
import sys, time
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
"""


@contextlib.contextmanager
def ours(folder: str) -> Iterator[str]:
    """A MiniQ server on a free loopback port; yields its URL."""
    command = [sys.executable, "-m", "miniq", "serve", "--store", f"rocksdb:{folder}/served", "--port", "0", "--no-zmq"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[2]
        finally:
            process.terminate()


@contextlib.contextmanager
def moto() -> Iterator[str]:
    """moto's server as a process of its own, which ends with its standard input; yields its URL."""
    command = [sys.executable, "-c", MOTO]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.stdin.close()
            process.wait(30)


class Boto:
    """boto3 with several threads on a queue of a server."""

    def __init__(self, url: str, threads: ThreadPoolExecutor, faulty: bool = False) -> None:
        """`faulty`: a receive that the server answers with 500, as moto's does now and then, counts as empty."""
        self._faulty = faulty
        self._sqs: Any = boto3.client(
            "sqs",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="thing",  # noqa: S106
            config=Config(max_pool_connections=THREADS, retries={"total_max_attempts": 1}),
        )
        self._url = self._sqs.create_queue(QueueName="bench", Attributes={"VisibilityTimeout": "600"})["QueueUrl"]
        self._threads = threads

    def send(self, size: int, messages: int) -> float:
        """Messages per second, of this many."""
        entries = [{"Id": str(number), "MessageBody": TEXT} for number in range(size)]

        def work(calls: int) -> None:
            for _ in range(calls):
                if size == 1:
                    self._sqs.send_message(QueueUrl=self._url, MessageBody=TEXT)
                else:
                    reply = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
                    assert len(reply["Successful"]) == size, reply

        return messages / self._timed(work, messages // size // THREADS)

    def receive(self, size: int, messages: int) -> float:
        """Messages per second that are received and deleted, of this many. Not every server gives all of them to
        concurrent consumers: a thread stops after some empty replies."""
        counts: list[int] = []

        def work(count: int) -> None:
            empty = 0
            while count > 0 and empty < EMPTY:
                received = self._received(min(size, count))
                count -= len(received)
                counts.append(len(received))
                empty = 0 if received else empty + 1
                handles = [message["ReceiptHandle"] for message in received]
                if size == 1:
                    for handle in handles:
                        self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=handle)
                elif handles:
                    entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
                    self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)

        seconds = self._timed(work, messages // THREADS)
        return sum(counts) / seconds

    def _received(self, most: int) -> list[dict[str, Any]]:
        try:
            reply = self._sqs.receive_message(QueueUrl=self._url, MaxNumberOfMessages=most)
        except ClientError as error:
            if self._faulty and error.response["ResponseMetadata"]["HTTPStatusCode"] == 500:
                return []
            raise
        found: list[dict[str, Any]] = reply.get("Messages", [])
        return found

    def _timed(self, work: Callable[[int], None], share: int) -> float:
        started = time.perf_counter()
        for done in [self._threads.submit(work, share) for _ in range(THREADS)]:
            done.result()
        return time.perf_counter() - started


class Plain:
    """One connection without an SDK, to the SQS wire or to the native routes."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)
        self._sqs("CreateQueue", {"QueueName": "plain", "Attributes": {"VisibilityTimeout": "600"}})

    def ways(self) -> dict[str, Callable[[int], float]]:
        """What is measured, each as a function of the number of calls, in an order that leaves the queue empty."""
        return {
            "SQS send x10": lambda calls: self._timed(self._sqs_send, calls),
            "SQS receive + delete x10": lambda calls: self._timed(self._sqs_receive, calls),
            "native send x10": lambda calls: self._timed(self._native_send, calls),
            "native receive + ack x10": lambda calls: self._timed(self._native_receive, calls),
        }

    def _timed(self, call: Callable[[], None], calls: int) -> float:
        started = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - started

    def _ask(self, path: str, body: Any, headers: dict[str, str]) -> Any:
        self._connection.request("POST", path, json.dumps(body).encode(), headers)
        reply = self._connection.getresponse()
        raw = reply.read()
        assert reply.status < 300, raw
        return json.loads(raw)

    def _sqs(self, action: str, body: dict[str, Any]) -> Any:
        headers = {"X-Amz-Target": f"AmazonSQS.{action}", "Content-Type": "application/x-amz-json-1.0"}
        return self._ask("/", body, headers)

    def _sqs_send(self) -> None:
        entries = [{"Id": str(number), "MessageBody": TEXT} for number in range(10)]
        self._sqs("SendMessageBatch", {"QueueUrl": "plain", "Entries": entries})

    def _sqs_receive(self) -> None:
        received = self._sqs("ReceiveMessage", {"QueueUrl": "plain", "MaxNumberOfMessages": 10})["Messages"]
        assert len(received) == 10
        entries = [{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(received)]
        self._sqs("DeleteMessageBatch", {"QueueUrl": "plain", "Entries": entries})

    def _native(self, call: str, body: dict[str, Any]) -> Any:
        return self._ask(f"/v1/queues/plain/{call}", body, {"Content-Type": "application/json"})

    def _native_send(self) -> None:
        self._native("messages", {"messages": [{"body": TEXT} for _ in range(10)]})

    def _native_receive(self) -> None:
        received = self._native("receive", {"max": 10})["messages"]
        assert len(received) == 10
        self._native("ack", {"leases": [{"id": one["id"], "receipt": one["receipt"]} for one in received]})

    def close(self) -> None:
        self._connection.close()


def measure(folder: str, rounds: int, slices: dict[int, int]) -> Samples:
    """Measure everything once per round, in turns."""
    samples: Samples = defaultdict(list)
    with ours(folder) as url, moto() as other, ThreadPoolExecutor(THREADS) as threads:
        servers = {"MiniQ": Boto(url, threads), "moto": Boto(other, threads, faulty=True)}
        plain = Plain(url)
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}" if number else "warming up")
            order = list(servers) if number % 2 else list(servers)[::-1]
            for size, messages in slices.items():
                rates: dict[tuple[str, str], float] = {}
                for name in order:
                    rates[name, "send"] = servers[name].send(size, messages)
                    rates[name, "receive + delete"] = servers[name].receive(size, messages)
                for verb in ("send", "receive + delete"):
                    for name in servers:
                        samples["rate", name, f"{verb} x{size}"].append(rates[name, verb])
                    ratio = rates["MiniQ", verb] / rates["moto", verb]
                    samples["ratio", "MiniQ", f"{verb} x{size}"].append(ratio)
            totals = {name: way(CALLS) for name, way in plain.ways().items()}
            for name, total in totals.items():
                base = totals["native send x10" if "send" in name else "native receive + ack x10"]
                samples["plain rate", name].append(10 * CALLS / total)
                samples["plain ratio", name].append(base / total)
            if not number:
                samples.clear()
        plain.close()
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sqs", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12, help="measured rounds (12)")
    parser.add_argument("--quick", action="store_true", help="smoke test: 2 rounds")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    with scratch(options.dir) as folder:
        samples = measure(folder, rounds, QUICK if options.quick else MESSAGES)
    against = [
        Figure(
            name=f"MiniQ {what}",
            value=spread(samples["ratio", "MiniQ", what]),
            unit="ratio",
            rate=spread(samples["rate", "MiniQ", what]),
            target=1.0,
        )
        for what in [key[2] for key in samples if key[0] == "ratio"]
    ]
    peers = [
        Figure(name=f"moto {what}", value=spread(samples[kind, name, what]), unit="messages/s")
        for kind, name, what in [key for key in samples if key[:2] == ("rate", "moto")]
    ]
    show(f"boto3, {THREADS} threads; value: ratio to moto's server", against)
    show("moto's server; value: messages per second", peers)
    wire = [
        Figure(
            name=name,
            value=spread(samples["plain ratio", name]),
            unit="ratio",
            rate=spread(samples["plain rate", name]),
            target=TARGETS.get(name),
        )
        for name in [key[1] for key in samples if key[0] == "plain ratio"]
    ]
    show("One connection without an SDK; value: ratio to the native routes", wire)
    versions = {name: importlib.metadata.version(name) for name in ("boto3", "moto")}
    about = {"bench": "sqs", "rounds": rounds, "quick": options.quick, "body_bytes": len(TEXT), "threads": THREADS}
    save(result_path("sqs", options.quick), about | versions, [*against, *peers, *wire])


if __name__ == "__main__":
    main()
