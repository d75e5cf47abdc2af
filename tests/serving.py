"""Real servers for tests: started on a free loopback port, stopped by their own pid."""

from __future__ import annotations

import contextlib
import os
import signal
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

    def stop(self, how: int = signal.SIGTERM) -> int:
        """End it, and say with which code it ended."""
        if self.process.poll() is None:
            os.kill(self.process.pid, how)
        try:
            return self.process.wait(30)
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


@contextlib.contextmanager
def serving(store: str, port: int = 0) -> Iterator[Served]:
    """A server on a store, as a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-m", "miniq", "serve", "--store", store, "--port", str(port)],
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
