"""A program on an engine that is in trouble: `python -m tests.faults.engine TROUBLE DETAIL MODULE …`.

    kill-before N    the process is killed (-9) when it asks for its N-th write
    kill-after N     likewise once that write is made, and before anybody is told
    fail-write N     the N-th write that is to be synced answers EIO, and nothing of it is written
    fail-sync N      likewise, but it is written; only its fsync failed
    note-syncs FILE  after each synced write the file says what of the logs is on disk now, for `lose_unsynced`

All of it happens at the seam between the store and RocksDB or LevelDB, so it needs no rights and no tools. That the
engines sync when they are told to is believed here; the faults under strace and on a disk of its own do not.

Tables are small, so that within seconds many logs begin, are made into tables and go.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import runpy
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from miniq.store import kv
from miniq.store.kv import LevelKV, Op, RocksKV

Engine = RocksKV | LevelKV
Write = Callable[[Sequence[Op], bool], None]
Trouble = Callable[[Engine, Write, Sequence[Op], bool], None]
"""Stands in for `write` of an engine, which is given to it."""


def kill_before(detail: str) -> Trouble:
    numbers = itertools.count(1)

    def trouble(engine: Engine, write: Write, ops: Sequence[Op], sync: bool) -> None:
        if next(numbers) == int(detail):
            os.kill(os.getpid(), signal.SIGKILL)
        write(ops, sync)

    return trouble


def kill_after(detail: str) -> Trouble:
    numbers = itertools.count(1)

    def trouble(engine: Engine, write: Write, ops: Sequence[Op], sync: bool) -> None:
        write(ops, sync)
        if next(numbers) == int(detail):
            os.kill(os.getpid(), signal.SIGKILL)

    return trouble


def fail_write(detail: str, written: bool = False) -> Trouble:
    numbers = itertools.count(1)

    def trouble(engine: Engine, write: Write, ops: Sequence[Op], sync: bool) -> None:
        if not sync or next(numbers) != int(detail):
            write(ops, sync)
            return
        if written:
            write(ops, False)
        with engine._translated():
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    return trouble


def fail_sync(detail: str) -> Trouble:
    return fail_write(detail, written=True)


def note_syncs(detail: str) -> Trouble:
    # Anew at each start: by then the engine has made tables of all logs that it found, and synced them. A line is one
    # write to the operating system, which has it also when this process is killed.
    file = os.open(detail, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)

    def trouble(engine: Engine, write: Write, ops: Sequence[Op], sync: bool) -> None:
        write(ops, sync)
        if sync:
            logs = sorted(Path(engine._path).glob("*.log"))
            # RocksDB syncs every log that it still needs. LevelDB leaves a log behind without a sync.
            for log in logs if isinstance(engine, RocksKV) else logs[-1:]:
                with contextlib.suppress(FileNotFoundError):  # made into a table meanwhile
                    os.write(file, f"{log.name} {log.stat().st_size}\n".encode())

    return trouble


def lose_unsynced(data: Path, notes: Path, chance: random.Random) -> None:
    """Leave of a database, whose process is dead, what is there after a power loss: of each log as much as was synced.

    Tables and manifests are left alone, because the engines sync them before they count on them. A log of which
    nothing was synced may be there and be empty, or not be there, as the file system likes.
    """
    whole, _, _ = notes.read_text().rpartition("\n")
    synced = {name: int(size) for name, size in (line.split() for line in whole.splitlines())}
    for log in data.glob("*.log"):
        kept = synced.get(log.name, 0)
        assert kept <= log.stat().st_size
        if kept or chance.random() < 0.5:
            os.truncate(log, kept)
        else:
            log.unlink()


TROUBLES: dict[str, Callable[[str], Trouble]] = {
    "kill-before": kill_before,
    "kill-after": kill_after,
    "fail-write": fail_write,
    "fail-sync": fail_sync,
    "note-syncs": note_syncs,
}


def bring(trouble: Trouble) -> None:
    """Put it between every store that is opened from now on and its engine; who patches `write` later is above it."""
    kv.MIB = 2048
    for kind in (RocksKV, LevelKV):
        kind.write = _troubled(kind.write, trouble)  # type: ignore[method-assign]


def _troubled(
    write: Callable[[Engine, Sequence[Op], bool], None], trouble: Trouble
) -> Callable[[Engine, Sequence[Op], bool], None]:
    def troubled(self: Engine, ops: Sequence[Op], sync: bool) -> None:
        trouble(self, lambda ops, sync: write(self, ops, sync), ops, sync)

    return troubled


if __name__ == "__main__":
    name, detail, module = sys.argv[1:4]
    del sys.argv[1:4]
    bring(TROUBLES[name](detail))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
