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
from tests.faults.checker import Verdict, Violation, check
from tests.faults.history import Event
from tests.serving import free_ports

ROOT = Path(__file__).parents[2]
DRAIN = 60


def progress(text: str) -> None:
    """How far a long run is: one line that is written over on a terminal, a line each elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


class Server:
    """A MiniQ server that comes back on the same port. `program` stands for `-m miniq`, with something wrong; `log` is
    a file for its log, which is not kept otherwise."""

    def __init__(self, store: str, program: Sequence[str] = ("miniq",), log: Path = Path(os.devnull)) -> None:
        self.port, self._command_port = free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.tcp_url = f"tcp://127.0.0.1:{self._command_port}"
        self.command = [sys.executable, "-m", *program, "serve", "--store", store, "--port", str(self.port)]
        self.command += [f"--command-port={self._command_port}", "--producer-port=0", "--consumer-port=0"]
        self.process: subprocess.Popen[str] | None = None
        self._log = log
        self.ended: list[int] = []

    def start(self) -> None:
        for _ in range(100):
            with open(self._log, "ab") as log:
                process = subprocess.Popen(
                    self.command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT, start_new_session=True
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

    def finish(self) -> tuple[list[Event], list[Violation]]:
        """Its history, and a violation if it could not drain the queue: what it has not seen may still be there."""
        try:
            _, said = self._process.communicate(timeout=self._seconds + DRAIN)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, said = self._process.communicate()
            said += "the clients hung"
        assert "Traceback" not in said, said
        left = [] if self._process.returncode == 0 else [Violation("drain", said.strip())]
        return list(history.read(self._path.read_bytes())), left

    def verdict(self, power_cuts: Sequence[int] = (), before: Sequence[Event] = ()) -> Verdict:
        """On its history, and on that of others `before` it."""
        events, left = self.finish()
        verdict = check([*before, *events], power_cuts)
        verdict.violations[:0] = left
        return verdict

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()
