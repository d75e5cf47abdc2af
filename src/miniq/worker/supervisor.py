"""`miniq worker --processes N` and `--reload`: processes that are started, watched, replaced and ended.

Each process reports its numbers on a pipe once per second. One that is silent for long hangs as a whole, in code that
never lets another thread run or in a coroutine that blocks the event loop, and is killed; one that ended on its own is
replaced. A process ends when its supervisor does: its stdin is closed.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import msgspec

from miniq.worker.metrics import MetricsServer, Numbers
from miniq.worker.process import ENDED_AT_ONCE, LATE, RETIRED, SIGNALS, Settings

log = logging.getLogger("miniq.worker")

REPORT = 1.0
"""Seconds between two reports of a process."""
SILENT = 30.0
"""Seconds without a report after which a process is killed."""
LOOK = 0.5
"""Seconds between two looks at the files of `--reload`."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a process that ended soon after its start is started again."""
USAGE = 2
"""The exit code of a process that cannot work: the app is missing or wrong."""


class Child:
    """One process."""

    def __init__(self, settings: Settings, number: int) -> None:
        self.number = number
        self.numbers = Numbers()
        self.began = self.heard = time.monotonic()
        self.told: float | None = None
        """When it was told to end."""
        out, into = os.pipe()
        try:
            self.process = subprocess.Popen(  # noqa: S603  our own module
                [sys.executable, "-m", "miniq.worker.child", str(into), str(number), msgspec.json.encode(settings)],
                stdin=subprocess.PIPE,  # never written to: its end is the supervisor's
                pass_fds=[into],
                start_new_session=True,  # Ctrl-C reaches only the supervisor
            )
        except OSError:
            os.close(out)
            raise
        finally:
            os.close(into)
        os.set_blocking(out, False)  # a process that a handler has forked may keep the other end open
        self.pipe = out
        self._rest = b""

    def read(self) -> bool:
        """Take a report; False if there is none."""
        try:
            data = os.read(self.pipe, 65536)
        except BlockingIOError:
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            self.heard = time.monotonic()
            self.numbers = msgspec.json.decode(lines[-1], type=Numbers)
        return bool(data)

    def tell(self, now: float) -> None:
        """Tell it to end."""
        if self.told is None:
            self.told = now
            self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        os.close(self.pipe)
        if self.process.stdin is not None:
            self.process.stdin.close()


class Supervisor:
    """Keeps processes running until a signal."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._children: dict[int, Child] = {}
        self._past = Numbers()
        """The numbers of processes that have ended."""
        self._lock = threading.Lock()
        """Guards the numbers, which the metrics server reads."""
        self._selector = selectors.DefaultSelector()
        self._is_told = False
        self._failed: int | None = None
        self._pauses: dict[int, float] = {}
        self._due: dict[int, float] = {}
        """When a process that ended is started again, by number."""

    def run(self) -> int:
        """Work until a signal; returns the exit code."""
        settings = self._settings
        wakeup, waker = os.pipe()
        os.set_blocking(waker, False)
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(waker)
        for signum in SIGNALS:
            signal.signal(signum, self._stop)
        self._selector.register(wakeup, selectors.EVENT_READ)
        server = None
        if settings.metrics_port is not None:
            server = MetricsServer(settings.metrics_host, settings.metrics_port, self.numbers)
            log.info("metrics on http://%s:%d/metrics", settings.metrics_host, server.port)
        files = Files(Path.cwd()) if settings.reload else None
        try:
            for number in range(settings.processes or 1):
                self._start(number)
            while self._children or (not self._is_told and (self._due or settings.reload)):
                self._look(wakeup)
                if files is not None and not self._is_told and (changed := files.changed()):
                    self._reload(changed)
        finally:
            for child in self._children.values():
                child.process.kill()
            if server is not None:
                server.close()
        return self._failed or 0

    def numbers(self) -> Numbers:
        """The sum over all processes, also those that have ended."""
        with self._lock:
            total = Numbers(replaced=self._past.replaced)
            for numbers in (self._past, *(child.numbers for child in self._children.values())):
                total.add(numbers)
        return total

    def _start(self, number: int) -> None:
        try:
            child = Child(self._settings, number)
        except OSError as error:  # no memory, or too many processes
            log.error("cannot start process %d, next attempt in %g s: %s", number, LONGEST_PAUSE, error)
            self._due[number] = time.monotonic() + LONGEST_PAUSE
            return
        self._children[number] = child
        self._selector.register(child.pipe, selectors.EVENT_READ, child)
        log.info("process %d is %d", number, child.process.pid)

    def _look(self, wakeup: int) -> None:
        """Wait for reports and signals, and see to processes that ended or hang."""
        for key, _ in self._selector.select(LOOK):
            if key.fd == wakeup:
                os.read(wakeup, 4096)
            elif not self._hear(key.data):
                self._selector.unregister(key.fd)
        now = time.monotonic()
        for child in list(self._children.values()):
            if child.process.poll() is not None:
                self._bury(child, now)
            elif child.told is None and now - child.heard > SILENT:
                log.error("process %d has been silent for %g s, killed", child.process.pid, SILENT)
                child.process.kill()
                child.heard = now
            elif child.told is not None and now - child.told > self._settings.grace + LATE:
                child.process.kill()
        for number, moment in list(self._due.items()):
            if now >= moment and not self._is_told:
                del self._due[number]
                self._start(number)

    def _hear(self, child: Child) -> bool:
        with self._lock:
            return child.read()

    def _bury(self, child: Child, now: float) -> None:
        """See to a process that has ended."""
        code = child.process.wait()
        if child.pipe in self._selector.get_map():
            while self._hear(child):
                pass
            self._selector.unregister(child.pipe)
        child.close()
        with self._lock:
            child.numbers.running = child.numbers.waiting = child.numbers.concurrency = 0
            self._past.add(child.numbers)
            del self._children[child.number]
        if self._is_told:
            # SIGTERM ends it before it has begun; one that was to be replaced has ended by itself.
            if code not in (0, RETIRED, -signal.SIGTERM):
                self._failed = self._failed or 1
            return
        if code == USAGE and not self._settings.reload:
            self._failed = USAGE
            self._stop(signal.SIGTERM, None)
            return
        with self._lock:
            self._past.replaced += 1
        lived = now - child.began
        pause = 0.0
        if child.told is None and lived < LONGEST_PAUSE and code not in (0, RETIRED):
            pause = self._pauses.get(child.number, FIRST_PAUSE)
        self._pauses[child.number] = min(2 * pause or FIRST_PAUSE, LONGEST_PAUSE)
        if child.told is None and code == RETIRED:
            log.warning("process %d was replaced because a task hung", child.process.pid)
        if code == USAGE and child.told is None:  # only a change of its files can help
            log.error("process %d could not start; waiting for a Python file to change", child.process.pid)
            return
        if child.told is None and code != RETIRED:
            log.warning("process %d %s; restarting in %g s", child.process.pid, ended(code), pause)
        self._due[child.number] = now + pause

    def _reload(self, changed: Path) -> None:
        log.info("%s has changed: the processes are replaced", changed)
        now = time.monotonic()
        for child in self._children.values():
            child.tell(now)
        for number in range(self._settings.processes or 1):
            if number not in self._children:
                self._due[number] = now

    def _stop(self, signum: int, frame: FrameType | None) -> None:
        if self._is_told and frame is not None:
            for child in self._children.values():
                child.process.kill()
            os._exit(ENDED_AT_ONCE)
        self._is_told = True
        now = time.monotonic()
        for child in list(self._children.values()):
            child.tell(now)


def ended(code: int) -> str:
    """How a process ended, in words."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


class Files:
    """The Python files of a folder, and whether one has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._times()

    def changed(self) -> Path | None:
        """A file that was written, added or removed since the last call."""
        times = self._times()
        before, self._seen = self._seen, times
        for path in before.keys() | times.keys():
            if before.get(path) != times.get(path):
                return path
        return None

    def _times(self) -> dict[Path, int]:
        times = {}
        for folder, folders, names in os.walk(self._folder):
            folders[:] = [name for name in folders if name[0] != "." and name not in ("__pycache__", "node_modules")
                          and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))]  # fmt: skip
            for name in names:
                if name.endswith(".py"):
                    path = Path(folder, name)
                    try:
                        times[path] = path.stat().st_mtime_ns
                    except OSError:
                        continue
        return times
