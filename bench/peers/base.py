"""What a peer is: a real server on loopback, started for the run, and its best-known Python client."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol

from msgspec import Struct


class Line(Protocol):
    """One connection. `receive` leases or reserves up to `count` messages; `ack` removes what the last one gave."""

    async def send(self, bodies: Sequence[bytes]) -> None:
        """Returns when the peer has confirmed all of them."""
        ...

    async def receive(self, count: int) -> int: ...

    async def ack(self) -> None: ...

    async def close(self) -> None: ...


class Peer(Protocol):
    """One system under test."""

    name: str
    needs: tuple[str, ...]
    """Programs (Debian) that must be installed."""
    modules: tuple[str, ...]
    """Python modules of its client that must be importable."""
    durability: str
    """What a confirmation of it really means, as configured here."""

    def start(self, folder: str) -> contextlib.AbstractContextManager[Running]:
        """The server, running until the block is left."""
        ...

    async def connect(self, running: Running) -> Line: ...

    async def load_tool(self, running: Running) -> float | None:
        """Messages a second of its own load tool with 64 in flight, None if it has none."""
        ...


class Running(Struct):
    """A server that runs."""

    port: int
    pids: list[int]
    """Its processes, for their CPU time."""
    folder: str
    extra: Any = None


def missing(peer: Peer) -> str | None:
    """Why a peer cannot take part here, None if it can."""
    for program in peer.needs:
        if shutil.which(program) is None and not os.path.exists(program):
            return f"{program} is not installed"
    for module in peer.modules:
        try:
            __import__(module)
        except ImportError:
            return f"Python module {module} is not installed: pip install --group peers"
    return None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def process(command: Sequence[str], port: int, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A server process, once its port answers; stopped by its pid."""
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env={**os.environ, **(env or {})}) as started:
        try:
            wait_for(port, started)
            yield started
        finally:
            started.terminate()
            try:
                started.wait(20)
            except subprocess.TimeoutExpired:
                started.kill()


def wait_for(port: int, started: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if started.poll() is not None:
            raise RuntimeError(f"{started.args!r} ended with code {started.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{started.args!r} does not answer on port {port}")


def children(pids: Sequence[int]) -> set[int]:
    """Processes, and their children that still live."""
    seen: set[int] = set()
    waiting = list(pids)
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file,
            ):
                waiting += map(int, file.read().split())
    return seen


def cpu_seconds(pids: Sequence[int]) -> float:
    """The CPU time of processes and of their children that still live."""
    total = 0.0
    for pid in children(pids):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file,
        ):
            fields = file.read().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


@contextlib.asynccontextmanager
async def lines(peer: Peer, running: Running, count: int) -> AsyncIterator[list[Line]]:
    """Several connections."""
    opened: list[Line] = []
    try:
        while len(opened) < count:
            opened.append(await peer.connect(running))
        yield opened
    finally:
        for line in opened:
            await line.close()
