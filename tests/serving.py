"""Real servers for tests: started on a free loopback port, stopped by their own pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        self.process = process
        self.line = line
        self.url = line.split()[2]
        self.port = int(self.url.rpartition(":")[2])
        self.tcp = line.split()[3]
        """The ZeroMQ command server."""

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it, and say with which code it ended."""
        if self.process.poll() is None:
            os.kill(self.process.pid, how)
        try:
            return self.process.wait(30)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(one.getsockname()[1]) for one in sockets]


@contextlib.contextmanager
def serving(store: str, port: int = 0, *flags: str) -> Iterator[Served]:
    """A server on a store, as a process of its own. One that is started again where it was gets its ports by flags;
    those of ZeroMQ are free ones otherwise."""
    ports = [f"--{name}-port=0" for name in ("command", "producer", "consumer")]
    process = subprocess.Popen(
        [sys.executable, "-m", "miniq", "serve", "--store", store, "--port", str(port), *ports, *flags],
        env={name: value for name, value in os.environ.items() if not name.startswith("MINIQ_")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("miniq ready:"):
        process.kill()
        process.wait()
        process.stdout.close()
        pytest.fail(f"the server did not start: {line!r}")
    served = Served(process, line)
    try:
        yield served
    finally:
        served.stop()
