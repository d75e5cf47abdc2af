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
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from miniq.store.embedded import extent, kv
from miniq.store.embedded.kv import LevelKV, Op, RocksKV
from miniq.store.embedded.wal import BLOCK

PAGE = 4096
RECYCLABLE = struct.Struct("<IHBI")
"""Of a record in a log of RocksDB: checksum, length, type, and the number of the log it belongs to."""
_KINDS = range(5, 9)

Engine = RocksKV | LevelKV
Write = Callable[[Sequence[Op], bool], None]
Retryable = Callable[[Engine, Write, Sequence[Op], bool], None]
"""Stands in for `write` of an engine, which is given to it."""


def kill_before(detail: str) -> Retryable:
    numbers = itertools.count(1)

    def trouble(engine: Engine, write: Write, ops: Sequence[Op], sync: bool) -> None:
        if next(numbers) == int(detail):
            os.kill(os.getpid(), signal.SIGKILL)
        write(ops, sync)

    return trouble


def kill_after(detail: str) -> Retryable:
    numbers = itertools.count(1)

    def trouble(engine: Engine, write: Write, ops: Sequence[Op], sync: bool) -> None:
        write(ops, sync)
        if next(numbers) == int(detail):
            os.kill(os.getpid(), signal.SIGKILL)

    return trouble


def fail_write(detail: str, written: bool = False) -> Retryable:
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


def fail_sync(detail: str) -> Retryable:
    return fail_write(detail, written=True)


def note_syncs(detail: str) -> Retryable:
    # Anew at each start: by then the engine has made tables of all logs that it found, and synced them. A line is one
    # write to the operating system, which has it also when this process is killed.
    file = os.open(detail, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    ends: dict[str, int] = {}

    def trouble(engine: Engine, write: Write, ops: Sequence[Op], sync: bool) -> None:
        write(ops, sync)
        if sync:
            logs = sorted(Path(engine._path).glob("*.log"))
            # RocksDB syncs every log that it still needs. LevelDB leaves a log behind without a sync.
            for log in logs if isinstance(engine, RocksKV) else logs[-1:]:
                with contextlib.suppress(FileNotFoundError):  # made into a table meanwhile
                    if isinstance(engine, RocksKV):
                        ends[log.name] = size = live_records(log, ends.get(log.name, 0))[-1]
                    else:
                        size = log.stat().st_size
                    os.write(file, f"{log.name} {size}\n".encode())
            if isinstance(engine, RocksKV):
                os.write(file, f"{extent.NAME} {engine._extent.note.log.written}\n".encode())

    return trouble


def live_records(log: Path, at: int = 0) -> list[int]:
    """Where the records of a log of RocksDB begin, from a known beginning on, and where the last one ends. Behind it
    may be what is left of the log that it is written over."""
    found = []
    with open(log, "rb") as file:
        while True:
            if BLOCK - at % BLOCK < RECYCLABLE.size:
                at += BLOCK - at % BLOCK
            found.append(at)
            file.seek(at)
            raw = file.read(RECYCLABLE.size)
            if len(raw) < RECYCLABLE.size:
                return found
            _, length, kind, number = RECYCLABLE.unpack(raw)
            if kind not in _KINDS or number != int(log.stem):
                return found
            at += RECYCLABLE.size + length


def lose_unsynced(data: Path, notes: Path, chance: random.Random) -> None:
    """Leave of a database, whose process is dead, what is there after a power loss: of each log what was synced, and of
    the rest some pages, which the system may have written or not. Where it had not, there is what was there before.

    Tables and manifests are left alone, because the engines sync them before they count on them. A log of which
    nothing was synced may not even be there. LevelDB does not write over old logs: of its own, all of the rest is gone.
    """
    whole, _, _ = notes.read_text().rpartition("\n")
    synced = {name: int(size) for name, size in (line.split() for line in whole.splitlines())}
    recycles = extent.NAME in synced
    for log in data.glob("*.log"):
        kept = synced.get(log.name, 0)
        size = log.stat().st_size
        assert kept <= size
        if not kept and chance.random() < 0.5:
            log.unlink()
        elif not recycles or chance.random() < 0.3:
            os.truncate(log, kept)
        else:
            raw = bytearray(log.read_bytes())
            for page in range(kept, size, PAGE):
                if chance.random() < 0.5:
                    part = len(raw[page : page + PAGE])
                    raw[page : page + PAGE] = chance.choice([bytes(part), chance.randbytes(part)])
            log.write_bytes(raw)
    # A write that was synced and not noted any more was told to nobody. What the extent says of it is lost too.
    start_anew(data, lambda log: synced.get(extent.NAME if recycles else f"{log:06d}.log", 0))


def start_anew(data: Path, most: Callable[[int], int] = lambda log: 2**62) -> None:
    """Let a database, whose process is dead, be one of a machine that was started anew since, with an extent that says
    no more of a log than that."""
    note = extent.read(str(data))
    if note is not None:
        for reach in (note.log, note.older):
            reach.synced = min(reach.synced, most(reach.number))
        note.boot = bytes(16)
        (data / extent.NAME).write_bytes(extent.encode(note))


TROUBLES: dict[str, Callable[[str], Retryable]] = {
    "kill-before": kill_before,
    "kill-after": kill_after,
    "fail-write": fail_write,
    "fail-sync": fail_sync,
    "note-syncs": note_syncs,
}


def bring(trouble: Retryable) -> None:
    """Put it between every store that is opened from now on and its engine; who patches `write` later is above it."""
    kv.MIB = 2048
    for kind in (RocksKV, LevelKV):
        kind.write = _troubled(kind.write, trouble)  # type: ignore[method-assign]


def _troubled(
    write: Callable[[Engine, Sequence[Op], bool], None], trouble: Retryable
) -> Callable[[Engine, Sequence[Op], bool], None]:
    def troubled(self: Engine, ops: Sequence[Op], sync: bool) -> None:
        trouble(self, lambda ops, sync: write(self, ops, sync), ops, sync)

    return troubled


if __name__ == "__main__":
    name, detail, module = sys.argv[1:4]
    del sys.argv[1:4]
    bring(TROUBLES[name](detail))
    runpy.run_module(module, run_name="__main__", alter_sys=True)
