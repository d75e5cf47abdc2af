"""A server, clients that live through faults, and the verdict on what they were told.

The server is a process of its own; it may be killed and started again on the same port while the clients go on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.faults import history
from tests.faults.checker import Verdict, check
from tests.serving import free_ports

ROOT = Path(__file__).parents[2]
DRAIN = 60


class Server:
    """A MiniQ server that comes back on the same port. `program` stands for `-m miniq`, with something wrong."""

    def __init__(self, store: str, program: Sequence[str] = ("miniq",)) -> None:
        self.port, self._command_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.tcp_url = f"tcp://127.0.0.1:{self._command_port}"
        self.command = [sys.executable, "-m", *program, "serve", "--store", store, "--port", str(self.port)]
        self.command += [f"--command-port={self._command_port}", "--producer-port=0", "--consumer-port=0"]
        self.process: subprocess.Popen[str] | None = None
        self.ended: list[int] = []

    def start(self) -> None:
        for _ in range(100):
            process = subprocess.Popen(
                self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
            )
            assert process.stdout is not None
            line = process.stdout.readline()
            if line.startswith("miniq ready"):
                self.process = process
                return
            process.wait(30)
            process.stdout.close()
            time.sleep(0.05)
        raise AssertionError("the server does not start any more")

    def stop(self, how: int = signal.SIGKILL) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, how)
        self.ended.append(process.wait(60))
        assert process.stdout is not None
        process.stdout.close()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


@contextlib.contextmanager
def server(store: str, program: Sequence[str] = ("miniq",)) -> Iterator[Server]:
    made = Server(store, program)
    made.start()
    try:
        yield made
    finally:
        made.stop()


class Clients:
    """The crew of `clients.py` as a process; `verdict` waits until it has drained the queue."""

    def __init__(self, url: str, seed: str, seconds: float, folder: Path, queue: str = "work") -> None:
        self._path = folder / f"history-{seed}.jsonl"
        with open(self._path, "wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.clients", url, seed, str(seconds), queue],
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
        self._seconds = seconds
        # What is done to a server is done to one that is at work, also where a process takes its time to begin.
        deadline = time.monotonic() + 60
        while self._process.poll() is None and not self._path.stat().st_size and time.monotonic() < deadline:
            time.sleep(0.01)

    def finish(self) -> tuple[bytes, bool]:
        """Its history, and whether nothing was left."""
        try:
            _, said = self._process.communicate(timeout=self._seconds + DRAIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
        assert "Traceback" not in said, said
        return self._path.read_bytes(), self._process.returncode == 0

    def verdict(self, power_cuts: Sequence[int] = ()) -> Verdict:
        text, _ = self.finish()
        return check(history.read(text), power_cuts)

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
