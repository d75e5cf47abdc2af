"""A program on a terminal of its own, and what is on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte

from tests.acceptance.shell import MINIQ, environment

PATIENCE = 20
SYNCHRONIZED = 2026 << 5
"""The mode of a terminal whose program is drawing a frame, as pyte keeps private modes."""


class Terminal:
    """A program on a terminal of its own, and what is on the screen."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, rows: int, columns: int) -> None:
        self.process = process
        self._master = master
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)
        for row in range(rows):  # as one does that wraps its lines anew
            self.screen.cursor_position(row + 1, 1)
            self.screen.draw("#" * (columns - 1))
        self.process.send_signal(signal.SIGWINCH)

    def wait(self, seen: Callable[[list[str]], object]) -> list[str]:
        """Read until the screen is as wanted, and not half drawn."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            lines = [line.rstrip() for line in self.screen.display]
            if SYNCHRONIZED not in self.screen.mode and seen(lines):
                return lines
            self.read(0.1)
        raise AssertionError("\n".join(self.screen.display))

    def read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            try:
                data = os.read(self._master, 500)  # so little that a frame arrives in pieces
            except OSError:  # the other end is gone
                return
            self.raw += data
            self._stream.feed(data)

    def end(self) -> int:
        code = self.process.wait(PATIENCE)
        self.read(0.2)
        return code


@contextmanager
def terminal(
    url: str,
    *args: str,
    rows: int = 24,
    columns: int = 100,
    term: str = "xterm-256color",
    command: str = "top",
    folder: Path | None = None,
) -> Iterator[Terminal]:
    """A command of ours on a terminal, `miniq top` if no other is named."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    before = termios.tcgetattr(slave)
    env = environment(MINIQ_URL=url, TERM=term)
    for name in ("COLUMNS", "LINES"):  # of the terminal of this test run
        env.pop(name, None)
    process = subprocess.Popen(
        [*MINIQ, command, *args],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        cwd=folder,
        start_new_session=True,
    )
    try:
        yield Terminal(process, master, rows, columns)
        assert termios.tcgetattr(slave) == before, "the terminal is not as it was"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(slave)
        os.close(master)
