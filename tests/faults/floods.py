"""Floods: what a client without a key, or with one of few rights, may try to cost a broker its memory or its time.

`python -m tests.faults floods [NAME…]` prints what each costs; `test_floods.py` holds them against the ceilings.

A real server is flooded, while other connections ask for `/health` every 50 ms. Memory is the growth of the server's
resident set, at its peak. How long `/health` waits is counted in CPU time of the server during that wait: its event
loop is one thread, so a flood makes others wait by having the server work, and a busy machine, which makes all waits
longer, adds little to it. That a server does nothing at all and does not answer either is a failure of its own.

A flood ends by itself, or after `LONGEST`. A server that has grown by `ENOUGH` is killed: the machine is not to suffer.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import zmq
from msgspec import Struct

from miniq.api import arrow
from tests.faults.health import EVERY, TICK, cpu_of, head
from tests.serving import Served, serving

MIB = 1 << 20
ENOUGH, LONGEST = 512 * MIB, 20.0
PIECE = b"x" * 65536
CROWDED = 2.0
"""Seconds for which many connections send as fast as they can."""


class Cost(Struct):
    """What a flood did to the server."""

    grown: int
    """Bytes of memory at the peak, more than before."""
    kept: int
    """Bytes of memory a moment after the flood's connections were closed, more than before."""
    wait: float
    """The most CPU seconds that the server used while `/health` waited for its answer."""
    wall: float
    """The longest such wait."""
    seconds: float
    """How long the flood took."""


class Target:
    """A server with two keys, one for everything and one that may only send to queues that begin with `x`."""

    def __init__(self, served: Served) -> None:
        self.port = served.port
        self.tcp = served.tcp
        self._process = served.process
        self.pid = served.process.pid
        self.all = self._key("ops", ["*"], "")
        self.sender = self._key("sender", ["send:x*"], self.all)
        self.deadline = 0.0
        self._before = 0

    def _key(self, name: str, allow: list[str], secret: str) -> str:
        body = json.dumps({"name": name, "allow": allow}).encode()
        answer = self.ask(b"POST", b"/v1/keys", body, secret)
        return str(json.loads(answer.partition(b"\r\n\r\n")[2])["secret"])

    def ask(self, method: bytes, path: bytes, body: bytes = b"", secret: str = "") -> bytes:
        """An answer, on a connection of its own."""
        with self.connect() as connection:
            connection.sendall(head(method, path, b"connection: close", secret=secret, size=len(body)) + body)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), LONGEST)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """The server does not run: all that arrives meanwhile waits for it."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def memory(self, line: str = "VmRSS") -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(found.split()[1]) for found in status.splitlines() if found.startswith(line)) * 1024

    @property
    def grown(self) -> int:
        return self.memory() - self._before

    @property
    def bears_more(self) -> bool:
        """Whether the flood is to go on."""
        return time.monotonic() < self.deadline and self.grown < ENOUGH

    def measure(self, flood: Callable[[Target, contextlib.ExitStack], None]) -> Cost:
        """Flood the server. Connections that the flood leaves to the stack are closed when it is over."""
        self.ask(b"GET", b"/health")
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")  # forget the peak
        self._before = self.memory()
        began = time.monotonic()
        self.deadline = began + LONGEST
        with _Probe(self) as probe:
            with contextlib.ExitStack() as stack:
                flood(self, stack)
                seconds = time.monotonic() - began
                if self.grown >= ENOUGH:
                    peak = self.memory("VmHWM") - self._before
                    probe.over.set()
                    self._process.kill()
                    return Cost(peak, peak, probe.wait, probe.wall, seconds)
                probe.settle(3)
            probe.settle(LONGEST)
            return Cost(self.memory("VmHWM") - self._before, self.grown, probe.wait, probe.wall, seconds)


class _Probe:
    """Asks for `/health` again and again, in a process of its own (`health.py`): a thread of this one would wait for
    the flood to give up the interpreter while the server works on."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.over = threading.Event()
        self._asked = threading.Semaphore(0)
        self.wait = self.wall = 0.0
        self.failed = ""

    def __enter__(self) -> _Probe:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.health", str(self._target.port), str(self._target.pid)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        self._asked.acquire()  # it has begun
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        self._process.communicate()
        self._thread.join()
        assert not self.failed, self.failed

    def settle(self, seconds: float) -> None:
        """Wait until the server has nothing more to do, which it may have put off, or for some seconds."""
        deadline = time.monotonic() + seconds
        busy = True
        while busy and self._thread.is_alive() and time.monotonic() < deadline:
            cpu = cpu_of(self._target.pid)
            while self._asked.acquire(blocking=False):
                pass
            for _ in range(2):
                while self._thread.is_alive() and not self._asked.acquire(timeout=0.1):
                    pass
            busy = cpu_of(self._target.pid) - cpu > 3 * TICK

    def _read(self) -> None:
        """Read what the process reports: the waits of each round, or what went wrong."""
        for line in self._process.stdout or ():
            report = json.loads(line)
            if "error" in report and not self.over.is_set():
                self.failed = f"/health was not answered: {report['error']}"
            self.wait = max(self.wait, report["wait"])
            self.wall = max(self.wall, report["wall"])
            self._asked.release()
        self._asked.release()


def pour(target: Target, connection: socket.socket, pieces: Iterator[bytes]) -> None:
    """Send until it is answered, refused or enough."""
    for number, piece in enumerate(pieces):
        try:
            connection.sendall(piece)
        except OSError:
            return
        if select.select([connection], [], [], 0)[0] or (number % 16 == 0 and not target.bears_more):
            return


def times(piece: bytes, size: int) -> Iterator[bytes]:
    return itertools.repeat(piece, size // len(piece))


HOT, COLD = b"/v1/queues/x/messages", b"/v1/queues"
CHUNKED = b"transfer-encoding: chunked"
Flood = Callable[[Target, contextlib.ExitStack], None]
FLOODS: dict[str, Flood] = {}


def flood(name: str, *given: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds a function to the table, with what it gets besides the target and its stack."""

    def add(made: Callable[..., None]) -> Callable[..., None]:
        FLOODS[name] = lambda target, stack: made(target, stack, *given)
        return made

    return add


# Heads


@flood("a header of 90 MB", b"POST %b HTTP/1.1\r\nhost: x\r\nx: " % HOT)
@flood("a header of 90 MB, ordinary lane", b"GET %b HTTP/1.1\r\nhost: x\r\nx: " % COLD)
@flood("a URL of 90 MB", b"GET /")
@flood("the name of a header of 90 MB", b"GET /health HTTP/1.1\r\nhost: x\r\nx")
def _endless(target: Target, stack: contextlib.ExitStack, begun: bytes) -> None:
    connection = stack.enter_context(target.connect())
    connection.sendall(begun)
    pour(target, connection, times(PIECE, 90 * MIB))


@flood("100 MB of small headers", b"POST %b HTTP/1.1\r\nhost: x\r\n" % HOT)
@flood("100 MB of small headers, ordinary lane", b"GET %b HTTP/1.1\r\nhost: x\r\n" % COLD)
def _headers(target: Target, stack: contextlib.ExitStack, begun: bytes) -> None:
    connection = stack.enter_context(target.connect())
    connection.sendall(begun)
    pour(target, connection, times(b"a: b\r\n" * 10_000, 100 * MIB))


@flood("60 MB of trailers", HOT)
@flood("60 MB of trailers, ordinary lane", b"/v1/queues/x/stages/a/b/c/d")
def _trailers(target: Target, stack: contextlib.ExitStack, path: bytes) -> None:
    connection = stack.enter_context(target.connect())
    connection.sendall(head(b"POST", path, CHUNKED, secret=target.sender) + b'a\r\n{"body":1}\r\n0\r\n')
    pour(target, connection, times(b"a: b\r\n" * 10_000, 60 * MIB))


@flood("1,100 long hosts", b"POST", HOT)
@flood("1,100 long hosts, ordinary lane", b"GET", COLD)
def _hosts(target: Target, stack: contextlib.ExitStack, method: bytes, path: bytes) -> None:
    """Each is one that a request may have."""
    connection = stack.enter_context(target.connect())
    for number in range(1100):
        connection.sendall(head(method, path, size=0, host=b"%d" % number + b"y" * 60_000))
        if not connection.recv(65536) or not target.bears_more:
            return


@flood("100 hosts of 1 MB")
def _large_hosts(target: Target, stack: contextlib.ExitStack) -> None:
    for number in range(100):
        with target.connect() as connection, contextlib.suppress(OSError):
            connection.sendall(head(b"GET", COLD, host=b"%d" % number + b"y" * MIB))
            connection.recv(65536)
        if not target.bears_more:
            return


# Bodies


@flood("60 bodies of 16 MiB without a key", HOT)
@flood("60 bodies of 16 MiB without a key, ordinary lane", b"/v1/queues/x/redrive")
@flood("60 bodies of 16 MiB that never end", HOT, True)
@flood("60 bodies of 16 MiB that never end, ordinary lane", b"/v1/queues/x/stages/a/b/c/d", True)
def _bodies(target: Target, stack: contextlib.ExitStack, path: bytes, has_key: bool = False) -> None:
    for _ in range(60):
        connection = stack.enter_context(target.connect())
        connection.sendall(head(b"POST", path, size=16 * MIB, secret=target.sender if has_key else ""))
        pour(target, connection, times(PIECE, 16 * MIB - len(PIECE)))
        if not target.bears_more:
            return


@flood("20 bodies of 15 MiB, each cut off")
def _cut_off(target: Target, stack: contextlib.ExitStack) -> None:
    """What one request may take, but never two at a time: what is left of the one before must be gone."""
    for _ in range(20):
        with target.connect() as connection:
            connection.sendall(head(b"POST", HOT, size=15 * MIB, secret=target.sender))
            pour(target, connection, times(PIECE, 14 * MIB))
        target.ask(b"GET", b"/health")  # it is read after what is above
        if not target.bears_more:
            return


@flood("2 million chunks of two bytes", HOT)
@flood("2 million chunks of two bytes, ordinary lane", b"/v1/queues/x/stages/a/b/c/d")
def _chunks(target: Target, stack: contextlib.ExitStack, path: bytes) -> None:
    connection = stack.enter_context(target.connect())
    connection.sendall(head(b"POST", path, CHUNKED, secret=target.sender))
    pour(target, connection, times(b"2\r\nxx\r\n" * 8000, 14 * 1_000_000))


# Answers


@flood("8 MB of pipelined requests", head(b"GET", b"/x"))
@flood("8 MB of pipelined sends without a key", head(b"POST", HOT, size=0))
def _pipeline(target: Target, stack: contextlib.ExitStack, request: bytes) -> None:
    connection = stack.enter_context(target.connect())
    connection.settimeout(1)
    with contextlib.suppress(OSError):
        for _ in range(8):
            connection.sendall(request * (MIB // len(request)))
            if not target.bears_more:
                return


@flood("30 connections that read no answer")
def _unread(target: Target, stack: contextlib.ExitStack) -> None:
    """Without a key there is no answer larger than this."""
    request = head(b"GET", b"/openapi.json")
    for _ in range(30):
        connection = stack.enter_context(target.connect())
        connection.settimeout(0.1)
        with contextlib.suppress(OSError):
            connection.sendall(request * 500)
        if not target.bears_more:
            return


# Crowds


@flood("100 connections with pipelined heads of 60 KB", 100, b"", head(b"GET", b"/health", b"x: " + b"k" * 60_000) * 20)
@flood("300 connections with headers without end", 300, b"GET /health HTTP/1.1\r\nhost: x\r\n", b"x: a\r\n" * 5000)
@flood("100 connections with pipelined long URLs", 100, b"", head(b"GET", b"/" + b"%41" * 2500) * 50)
@flood("100 connections with empty lines", 100, b"", b"\r\n" * 50_000)
@flood("300 connections with pipelined requests", 300, b"", head(b"HEAD", b"/v1/events") * 50)
def _crowd(target: Target, stack: contextlib.ExitStack, count: int, begun: bytes, piece: bytes) -> None:
    """All connect at the same time, send as fast as they can, and read what they are answered."""
    with selectors.DefaultSelector() as selector:
        with target.stopped():
            for _ in range(count):
                connection = stack.enter_context(target.connect())
                connection.sendall(begun)
                connection.setblocking(False)
                left = memoryview(piece)[connection.send(piece) :]
                selector.register(connection, selectors.EVENT_READ | selectors.EVENT_WRITE, [left or memoryview(piece)])
            time.sleep(4 * EVERY)  # until the probe has connected, too
        until = time.monotonic() + CROWDED
        while selector.get_map() and time.monotonic() < until and target.bears_more:
            for key, events in selector.select(0.1):
                sender: Any = key.fileobj
                try:
                    if events & selectors.EVENT_WRITE:
                        key.data[0] = key.data[0][sender.send(key.data[0]) :] or memoryview(piece)
                    if events & selectors.EVENT_READ and not sender.recv(65536):
                        selector.unregister(sender)
                except BlockingIOError:
                    pass
                except OSError:
                    selector.unregister(sender)


# ZeroMQ


_MANY = (15_000_000).to_bytes(4) + b"\x80" * 15_000_000


@flood("text of 15 MiB as the type of a command", b'{"type":"%b"}' % (b"x" * 15 * MIB))
@flood("7 million lists as the type of a command", b'{"type":[%b[]]}' % (b"[]," * (5 * MIB)))
@flood("15 million maps as the type of a command", b"\x81\xa4type\xdd" + _MANY)
@flood("15 million maps as the payload of a command", b"\x82\xa4type\xa4SEND\xa7payload\x81\xa8messages\xdd" + _MANY)
def _command(target: Target, stack: contextlib.ExitStack, request: bytes) -> None:
    """To the command server, and to the endpoint of producers."""
    context = stack.enter_context(zmq.Context())
    with context.socket(zmq.REQ) as asking:
        asking.connect(target.tcp)
        asking.send(json.dumps({"type": "PRODUCE_MSG", "api_key": target.sender}).encode())
        producer = json.loads(asking.recv())["data"]["address"]
    for address in (target.tcp, producer):
        socket = stack.enter_context(context.socket(zmq.DEALER))
        socket.linger = 0
        socket.connect(address)
        for _ in range(3):
            socket.send_multipart([b"", request])
            while target.bears_more and not socket.poll(100):
                pass
            if not target.bears_more:
                return
            socket.recv_multipart()


# Decoding, with a key that may send


@flood("MessagePack with 15 million empty maps")
def _maps(target: Target, stack: contextlib.ExitStack) -> None:
    body = b"\x81\xa8messages\xdd" + (15_000_000).to_bytes(4) + b"\x80" * 15_000_000
    connection = stack.enter_context(target.connect())
    connection.sendall(
        head(b"POST", HOT, b"content-type: application/msgpack", secret=target.sender, size=len(body)) + body
    )
    _answer(target, connection)


@flood("Arrow with 2,000 million rows of nothing")
def _rows(target: Target, stack: contextlib.ExitStack) -> None:
    send_rows(target, stack, 2_000_000_000)


def send_rows(target: Target, stack: contextlib.ExitStack, count: int) -> None:
    """Send an Arrow stream with a column of nulls. The first one makes the server import pyarrow."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"body": pa.nulls(count)})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    body = sink.getvalue().to_pybytes()
    lines = b"content-type: " + arrow.MEDIA.encode()
    connection = stack.enter_context(target.connect())
    connection.sendall(head(b"POST", HOT, lines, secret=target.sender, size=len(body)) + body)
    _answer(target, connection)


def _answer(target: Target, connection: socket.socket) -> None:
    while target.bears_more and not select.select([connection], [], [], 0.1)[0]:
        pass


# Cheap load


@flood("1,000 event streams of 1,000 queues")
def _streams(target: Target, stack: contextlib.ExitStack) -> None:
    _fill(target, 1000)
    for _ in range(1000):
        connection = stack.enter_context(target.connect())
        connection.sendall(head(b"GET", b"/v1/events?interval=0.1", secret=target.all))
        if not target.bears_more:
            return


@flood("6,000 queues and /metrics")
def _queues(target: Target, stack: contextlib.ExitStack) -> None:
    _fill(target, 6000)
    target.ask(b"GET", b"/metrics", secret=target.all)


def _fill(target: Target, queues: int) -> None:
    """Make queues by sending to them."""
    body = b'{"body":1}'
    with target.connect() as connection:
        for number in range(0, queues, 50):
            requests = [
                head(b"POST", b"/v1/queues/x%d/messages" % name, secret=target.sender, size=len(body)) + body
                for name in range(number, number + 50)
            ]
            connection.sendall(b"".join(requests))
            answered = 0
            while answered < 50:
                answered += connection.recv(65536).count(b"HTTP/1.1 ")
            if not target.bears_more:
                return


def main(names: Sequence[str]) -> int:
    """Print what each flood costs, on a server of its own."""
    print(
        "| flood | memory at the peak | kept | `/health` waits, CPU | clock | flood took |\n|---|---|---|---|---|---|"
    )
    for name in names or FLOODS:
        with serving("memory:") as served:
            cost = Target(served).measure(FLOODS[name])
        print(
            f"| {name} | {cost.grown / MIB:.0f} MiB | {cost.kept / MIB:.0f} MiB | {cost.wait:.2f} s "
            f"| {cost.wall:.2f} s | {cost.seconds:.1f} s |",
            flush=True,
        )
    return 0
