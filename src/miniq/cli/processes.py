"""Processes that commands start, and how they end: on Ctrl-C, on SIGTERM, and when one of them fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import IO

from miniq.cli.flags import Target
from miniq.client.interrupts import SIGNALS, interruptible
from miniq.client.url import store_of
from miniq.errors import MiniQError

PARENT = "_MINIQ_PARENT"
"""The variable with the id of the parent process, which may have ended before `os.getppid` is called."""
LOOK = 0.5
"""Seconds between two checks whether the parent process is still there."""
GRACE = 10.0
"""Seconds after which a process that was sent a signal is killed."""


def start(
    args: Sequence[str], env: dict[str, str], *, out: int | None = subprocess.PIPE, err: int | None = None
) -> subprocess.Popen[str]:
    """Start a `miniq` process in its own session: Ctrl-C reaches only this process, which then ends the others."""
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
    """Send processes a signal, wait for them, kill those that do not end, and close the pipes."""
    processes = list(processes)
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.send_signal(number)
    for process in running:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for process in processes:
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def reachable(at: Target) -> Iterator[Target]:
    """A broker that several processes can use. For the folder of a store one is started, because only one process at
    a time can open a folder; it ends with this process, however that ends."""
    if at.is_remote:
        yield at
        return
    process = start(
        ["serve", "--store", store_of(at.url, "url"), "--host", "127.0.0.1", "--port", "0"],
        at.environment(),
        err=subprocess.PIPE,
    )
    try:
        line = interruptible(reader(process.stdout).readline)
        if not line:
            raise MiniQError(error_of(process))
        yield Target(line.removeprefix("miniq ready: ").split()[0], at.api_key)
    finally:
        end([process])


def reader(pipe: IO[str] | None) -> IO[str]:
    """The pipe of a process that was started with one."""
    assert pipe is not None  # noqa: S101  for the type checker
    return pipe


def error_of(process: subprocess.Popen[str]) -> str:
    """The error text of a `miniq` process that has failed."""
    text = reader(process.stderr).read().strip().removeprefix("miniq: ")
    return text or f"a process ended with {process.wait()}"


def end_with_parent() -> None:
    """Send this process SIGTERM when the one that started it is gone, if that was a command of ours."""
    if PARENT not in os.environ:
        return
    parent_id = parent()

    def watch() -> None:
        while os.getppid() == parent_id:
            time.sleep(LOOK)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="miniq-parent", daemon=True).start()


def parent() -> int:
    """The process that started this one."""
    return int(os.environ.get(PARENT) or os.getppid())


class Stop:
    """Whether a worker must end because it was interrupted or its parent has ended. The worker first finishes what it
    is doing; a second Ctrl-C ends it at once."""

    def __init__(self) -> None:
        self._requested = False
        self._parent = parent()
        for number in SIGNALS:
            signal.signal(number, self._request)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def is_set(self) -> bool:
        return self._requested or os.getppid() != self._parent

    def _request(self, number: int, frame: FrameType | None) -> None:
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True


def sleep_until(moment: float, stop: Stop) -> None:
    """Wait until a moment, or until the worker is stopped."""
    while (left := moment - time.monotonic()) > 0 and not stop.is_set():
        time.sleep(min(left, 0.1))
