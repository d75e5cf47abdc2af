"""A program whose commit log is in trouble: `python -m tests.faults.engine TROUBLE DETAIL MODULE …`.

    kill-before N    the process is killed (-9) when it asks for its N-th write
    kill-after N     likewise once that write is made, and before anybody is told
    kill-apply N     likewise when the engine is to apply the N-th change, which was confirmed
    kill-segment N   likewise at the N-th call that begins, syncs, renames or removes a segment: before it or after it
    fail-write N     the N-th write that is to be synced answers EIO, and nothing of it is written
    fail-sync N      likewise, but it is written; only its fsync failed
    lag N            the engine applies nothing before N bytes wait for it, or until it is read
    note-syncs FILE  after each synced write the file says what of the log is on disk now, for `lose_unsynced`

All of it happens at the seam between the store and its log or engine, so it needs no rights and no tools. That a write
with `O_DSYNC` is on disk when it returns is believed here; the faults under strace and on a disk of its own do not.

Tables and segments are small, so that within seconds many of them begin, are written and go.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from miniq.store.embedded import engine as engines
from miniq.store.embedded import log as commit_log
from miniq.store.embedded import logged
from miniq.store.embedded.log import CommitLog
from miniq.store.embedded.logged import LoggedKV
from miniq.store.embedded.segments import SECTOR, START

Write = Callable[[bytes, bool], int]
Retryable = Callable[[CommitLog, Write, bytes, bool], int]
"""Stands in for `append` of a log, which is given to it."""


def kill_before(detail: str) -> Retryable:
    numbers = itertools.count(1)

    def trouble(log: CommitLog, write: Write, payload: bytes, sync: bool) -> int:
        if next(numbers) == int(detail):
            os.kill(os.getpid(), signal.SIGKILL)
        return write(payload, sync)

    return trouble


def kill_after(detail: str) -> Retryable:
    numbers = itertools.count(1)

    def trouble(log: CommitLog, write: Write, payload: bytes, sync: bool) -> int:
        change = write(payload, sync)
        if next(numbers) == int(detail):
            os.kill(os.getpid(), signal.SIGKILL)
        return change

    return trouble


def kill_apply(detail: str) -> Retryable:
    numbers = itertools.count(1)
    catch_up = LoggedKV.catch_up

    def killed(self: LoggedKV, wait: bool = False) -> None:
        if self._pending and next(numbers) == int(detail):
            os.kill(os.getpid(), signal.SIGKILL)
        catch_up(self, wait)

    LoggedKV.catch_up = killed  # type: ignore[method-assign]
    return lambda log, write, payload, sync: write(payload, sync)


def kill_segment(detail: str) -> Retryable:
    numbers = itertools.count(1)

    def killing(call: Callable[..., Any]) -> Callable[..., Any]:
        def killed(*args: Any, **options: Any) -> Any:
            number = next(numbers)
            if number == int(detail) and number % 2:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return call(*args, **options)
            finally:
                if number == int(detail):
                    os.kill(os.getpid(), signal.SIGKILL)

        return killed

    for name in ("rename", "unlink", "fsync", "fdatasync"):
        setattr(os, name, killing(getattr(os, name)))
    return lambda log, write, payload, sync: write(payload, sync)


def lag(detail: str) -> Retryable:
    catch_up = LoggedKV.catch_up

    def lagging(self: LoggedKV, wait: bool = False) -> None:
        if wait:
            catch_up(self, wait)

    LoggedKV.catch_up = lagging  # type: ignore[method-assign]
    logged.PENDING = int(detail)
    return lambda log, write, payload, sync: write(payload, sync)


def fail_write(detail: str, written: bool = False) -> Retryable:
    numbers = itertools.count(1)

    def trouble(log: CommitLog, write: Write, payload: bytes, sync: bool) -> int:
        if not sync or next(numbers) != int(detail):
            return write(payload, sync)
        if written:
            write(payload, False)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    return trouble


def fail_sync(detail: str) -> Retryable:
    return fail_write(detail, written=True)


def note_syncs(detail: str) -> Retryable:
    # Anew at each start, which syncs what it found. A line is one write to the operating system, which has it also when
    # this process is killed.
    file = os.open(detail, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)

    def trouble(log: CommitLog, write: Write, payload: bytes, sync: bool) -> int:
        change = write(payload, sync)
        if sync:
            os.write(file, f"{log.number} {log._at}\n".encode())
        return change

    return trouble


def lose_unsynced(folder: Path, notes: Path, chance: random.Random) -> None:
    """Leave of the log of a dead process what is there after a power loss: what was synced, and of the rest some
    sectors, which the system may have written or not. Where it had not, there are zeros.

    Tables and manifests are left alone, because the engines sync them before they count on them; so are all segments
    but the last, which are synced before the next one begins.
    """
    whole, _, _ = notes.read_text().rpartition("\n")
    synced = {int(number): int(at) for number, at in (line.split() for line in whole.splitlines())}
    segment = max(folder.glob("*.segment"))
    kept = synced.get(int(segment.stem), START)
    raw = bytearray(segment.read_bytes())
    if chance.random() < 0.3:
        raw[kept:] = bytes(len(raw) - kept)
    else:
        for sector in range(-(-kept // SECTOR) * SECTOR, len(raw), SECTOR):
            if chance.random() < 0.5:
                raw[sector : sector + SECTOR] = bytes(SECTOR)
    segment.write_bytes(raw)


TROUBLES: dict[str, Callable[[str], Retryable]] = {
    "kill-before": kill_before,
    "kill-after": kill_after,
    "kill-apply": kill_apply,
    "kill-segment": kill_segment,
    "fail-write": fail_write,
    "fail-sync": fail_sync,
    "lag": lag,
    "note-syncs": note_syncs,
}


def bring(trouble: Retryable) -> None:
    """Put it between every store that is opened from now on and its log; who patches `write` later is above it."""
    engines.MIB = 2048
    commit_log.SMALLEST, commit_log.LARGEST, logged.LARGEST = 4096, 64 * 1024, 64 * 1024
    append = CommitLog.append

    def troubled(self: CommitLog, payload: bytes, sync: bool) -> int:
        return trouble(self, lambda payload, sync: append(self, payload, sync), payload, sync)

    CommitLog.append = troubled  # type: ignore[method-assign]


if __name__ == "__main__":
    name, detail, module = sys.argv[1:4]
    del sys.argv[1:4]
    bring(TROUBLES[name](detail))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
