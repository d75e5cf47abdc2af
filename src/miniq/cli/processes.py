"""Processes that commands start, and how they end: on Ctrl-C, on SIGTERM, and when one of them fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO

from miniq.cli.flags import Target
from miniq.errors import MiniQError

PARENT = "_MINIQ_PARENT"
"""The variable with the id of the process that started this one, which may have ended by the time it is read."""
GRACE = 10.0
"""Seconds that a process has to end by itself before it is killed."""


def start(
    args: Sequence[str], env: dict[str, str], *, out: int | None = subprocess.PIPE, err: int | None = None
) -> subprocess.Popen[str]:
    """A `miniq` process in a session of its own: Ctrl-C reaches only this process, which then ends the others."""
    return subprocess.Popen(  # noqa: S603  our own command
        [sys.executable, "-m", "miniq", *args],
        env=env | {"PYTHONUNBUFFERED": "1", PARENT: str(os.getpid())},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        text=True,
        start_new_session=True,
    )


def end(processes: Iterable[subprocess.Popen[str]], number: int = signal.SIGTERM) -> None:
    """Send processes a signal, wait for them, and kill those that do not end."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(number)
    for process in running:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def reachable(at: Target) -> Iterator[Target]:
    """A broker that several processes can use. For the folder of a store one is started, because only one process at
    a time can open a folder."""
    if at.is_remote:
        yield at
        return
    store = at.url if ":" in at.url else f"rocksdb:{at.url}"
    process = start(
        ["serve", "--store", store, "--host", "127.0.0.1", "--port", "0"], at.environment(), err=subprocess.PIPE
    )
    try:
        line = reader(process.stdout).readline()
        if not line:
            said = reader(process.stderr).read().strip().removeprefix("miniq: ")
            raise MiniQError(said or f"the broker for {at.url} did not start")
        yield Target(line.removeprefix("miniq ready: ").split()[0], at.api_key)
    finally:
        end([process])
        reader(process.stdout).close()
        reader(process.stderr).close()


def reader(pipe: IO[str] | None) -> IO[str]:
    """A pipe, which every process that `start` made has."""
    if pipe is None:
        raise MiniQError("a process was started without a pipe")
    return pipe


def interrupt_on_sigterm() -> None:
    """Handle SIGTERM as Ctrl-C, so that both clean up alike."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def ignore_interrupts() -> None:
    """Clean-up has begun, and no signal may interrupt it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def parent() -> int:
    """The process that started this one."""
    found = os.environ.get(PARENT, "")
    return int(found) if found.isdigit() else os.getppid()


class Stop:
    """Whether a worker must end: it was interrupted, or the process that started it has ended. The worker finishes what
    it is doing; a second Ctrl-C does not wait for that."""

    def __init__(self) -> None:
        self._asked = False
        self._parent = parent()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def is_set(self) -> bool:
        return self._asked or os.getppid() != self._parent

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
