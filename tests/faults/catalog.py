"""The faults, one function each: make it happen once under load, and return the verdict of the checker.

`python -m tests.faults` runs each many times and writes the table in docs/reliability.md; `make test` runs each once.
Some need rights or tools that not every machine has. For each of those, but for the full disk, there is one that needs
nothing.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from miniq.store.embedded import extent, segments
from tests.acceptance.client_wires import Cut, Proxy
from tests.conftest import ENGINES
from tests.faults import disk, engine, history
from tests.faults.checker import Verdict
from tests.faults.history import Event
from tests.faults.rig import ROOT, Clients, Server, server

SECONDS = 3.0
"""How long clients work in a round, before they drain."""
IN_PROCESS = 1000
"""Rounds of a fault of an embedded broker, which are short."""
REACH = 250
"""How far into the life of an embedded broker something happens to it: at its first write, its second, and so on."""


class Fault(Struct, frozen=True):
    name: str
    """What happens, in a few words for the table."""
    store: str
    inject: Callable[[str, str, Path], Verdict]
    """Called with the kind of store, a seed and a folder for the round."""
    invariants: str = "I1 I2 I3 I4 I5 I6"
    rounds: int = 20
    lacks: Callable[[], str] = str
    """What it needs and this machine does not have, or nothing."""

    def round(self, seed: str, folder: Path) -> Verdict:
        """Make it happen once. What is not promised under this fault is not held against it."""
        verdict = self.inject(self.store, seed, folder)
        verdict.violations = [
            found for found in verdict.violations if found.invariant in (*self.invariants.split(), "drain")
        ]
        return verdict


def _url(kind: str, folder: Path) -> str:
    return f"{kind}:{folder / 'data'}"


def kill_server(kind: str, seed: str, folder: Path) -> Verdict:
    """kill -9 at a random moment, twice; the clients go on with the server that comes back."""
    chance = random.Random(seed)
    with server(_url(kind, folder)) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            for _ in range(2):
                time.sleep(chance.uniform(0.5, 1.2))
                served.stop(signal.SIGKILL)
                served.start()
            return clients.verdict()
        finally:
            clients.kill()


def kill_server_zeromq(kind: str, seed: str, folder: Path) -> Verdict:
    """The same with clients that come by ZeroMQ."""
    chance = random.Random(seed)
    with server(_url(kind, folder)) as served:
        clients = Clients(served.tcp_url, seed, SECONDS, folder)
        try:
            for _ in range(2):
                time.sleep(chance.uniform(0.5, 1.2))
                served.stop(signal.SIGKILL)
                served.start()
            return clients.verdict()
        finally:
            clients.kill()


def stop_server(kind: str, seed: str, folder: Path) -> Verdict:
    """SIGTERM, as at every upgrade: it ends with code 0, and nobody is told something that is not so."""
    chance = random.Random(seed)
    with server(_url(kind, folder)) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            time.sleep(chance.uniform(0.5, 1.5))
            served.stop(signal.SIGTERM)
            assert served.ended == [0]
            served.start()
            return clients.verdict()
        finally:
            clients.kill()


def pause_server(kind: str, seed: str, folder: Path) -> Verdict:
    """SIGSTOP for longer than most leases, then SIGCONT: all acks that come then are late."""
    with server(_url(kind, folder)) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            time.sleep(1)
            assert served.process is not None
            os.kill(served.process.pid, signal.SIGSTOP)
            time.sleep(1.5)
            os.kill(served.process.pid, signal.SIGCONT)
            return clients.verdict()
        finally:
            clients.kill()


def kill_at_write(kind: str, seed: str, folder: Path, program: Sequence[str] = ()) -> Verdict:
    """kill -9 of an embedded broker before one write of its engine, and of the next one after one, which are others in
    each round; a third one drains what they left."""
    number = _number(seed) + 1
    events: list[Event] = []
    for side in ("before", "after"):
        trouble = ["tests.faults.engine", f"kill-{side}", str(number), *program]
        events += _embedded(kind, f"{seed}-{side}", folder, [sys.executable, "-m", *trouble], -signal.SIGKILL)
    return _drained(kind, seed, folder, events)


def kill_at_apply(kind: str, seed: str, folder: Path) -> Verdict:
    """kill -9 of an embedded broker when its engine is to apply what was confirmed; then of one whose engine lags as
    far as it may. A third one drains what they left."""
    trouble = ["tests.faults.engine", "kill-apply", str(_number(seed) + 1)]
    events = _embedded(kind, f"{seed}-apply", folder, [sys.executable, "-m", *trouble], -signal.SIGKILL)
    trouble = ["tests.faults.engine", "lag", str(2**20), "tests.faults.engine", "kill-after", str(_number(seed) + 4)]
    events += _embedded(kind, f"{seed}-lag", folder, [sys.executable, "-m", *trouble], -signal.SIGKILL)
    return _drained(kind, seed, folder, events)


def kill_at_segment(kind: str, seed: str, folder: Path) -> Verdict:
    """kill -9 of an embedded broker where it begins, syncs, renames or removes a segment of its log, twice; a third one
    drains what they left."""
    events: list[Event] = []
    for turn in range(2):
        trouble = ["tests.faults.engine", "kill-segment", str(_number(seed) + 5 + turn)]
        events += _embedded(kind, f"{seed}-{turn}", folder, [sys.executable, "-m", *trouble], -signal.SIGKILL)
    return _drained(kind, seed, folder, events)


def fail_write(kind: str, seed: str, folder: Path) -> Verdict:
    """The engine says EIO to one synced write that it did not make, and in the next process to one that it made.
    Nothing is confirmed after it; the process ends; the next one goes on."""
    number = _number(seed) + 4
    events: list[Event] = []
    for what in ("write", "sync"):
        trouble = ["tests.faults.engine", f"fail-{what}", str(number)]
        events += _embedded(kind, f"{seed}-{what}", folder, [sys.executable, "-m", *trouble], 4)
    return _drained(kind, seed, folder, events)


def kill_at_system_call(kind: str, seed: str, folder: Path) -> Verdict:
    """kill -9 of an embedded broker at one system call that writes or syncs, another one in each round; the next
    process drains what it left."""
    calls = "write,pwrite64,pwritev,pwritev2,fdatasync,fsync,fallocate,rename,unlink,ftruncate,sync_file_range"
    tracing = _strace(folder, f"inject={calls}:signal=SIGKILL:when={_number(seed) + 23}")
    return _drained(kind, seed, folder, _embedded(kind, seed, folder, tracing, -signal.SIGKILL))


def fail_fsync(kind: str, seed: str, folder: Path) -> Verdict:
    """The disk says EIO to one fsync. Nothing is confirmed after it; the process ends; the next one goes on."""
    tracing = _strace(folder, f"inject=pwritev,pwritev2,fdatasync,fsync:error=EIO:when={_number(seed) + 13}")
    return _drained(kind, seed, folder, _embedded(kind, seed, folder, tracing, 4))


def _number(seed: str) -> int:
    """Which round it is, beginning anew after the last write that is tried."""
    return int(seed.rpartition("-")[2]) % REACH


def _strace(folder: Path, inject: str) -> list[str]:
    """Python under strace, where only what touches the store counts; the history is written to a file elsewhere."""
    command = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "signal=none", "-e", inject]
    return [*command, "-P", str(folder / "data"), *_inside(folder), sys.executable, "-m"]


@cache
def _lacks_strace() -> str:
    if shutil.which("strace") is None:
        return "needs strace"
    tried = subprocess.run(
        ["strace", "-qq", "-o", os.devnull, "-e", "inject=fsync:error=EIO", "true"], capture_output=True, check=False
    )
    return "" if tried.returncode == 0 else "needs a strace that may trace and inject"


def _inside(folder: Path) -> list[str]:
    """Paths of files that the store will have; strace filters by whole paths, so they are named beforehand."""
    store = folder / "data"
    paths = [store / segments.NAME / name for name in ("spare", *map(segments.file_name, range(1, 40)))]
    paths += [store / "data" / name for name in (extent.NAME, *(f"MANIFEST-{number:06d}" for number in range(1, 20)))]
    return [word for path in (store / segments.NAME, *paths) for word in ("-P", str(path))]


def _embedded(kind: str, seed: str, folder: Path, python: Sequence[str], code: int) -> list[Event]:
    """The history of a crew with a broker inside, up to what ends it; `python` runs the module whose name follows."""
    path = folder / f"history-{seed}.jsonl"
    with open(path, "wb") as file:
        process = subprocess.Popen(
            [*python, "tests.faults.clients", _url(kind, folder), seed, "60"],
            stdout=file,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        try:
            ended = process.wait(120)
        finally:
            process.kill()
    assert ended == code, f"it ended with code {ended} and not with {code}"
    return list(history.read(path.read_bytes()))


def _drained(kind: str, seed: str, folder: Path, before: list[Event]) -> Verdict:
    """The verdict once one more crew, on what was left, has worked a little and drained."""
    clients = Clients(_url(kind, folder), f"{seed}+", 0.1, folder)
    try:
        return clients.verdict(before=before)
    finally:
        clients.kill()


def lose_unsynced(kind: str, seed: str, folder: Path, program: Sequence[str] = ("miniq",)) -> Verdict:
    """Power loss, twice, as the logs see it: the server is killed, and what it had not synced is cut off."""
    chance = random.Random(seed)
    notes = folder / "synced"
    cuts = []
    with server(_url(kind, folder), ["tests.faults.engine", "note-syncs", str(notes), *program]) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            for _ in range(2):
                time.sleep(chance.uniform(0.5, 1.2))
                served.stop(signal.SIGKILL)
                engine.lose_unsynced(folder / "data" / segments.NAME, notes, chance)
                cuts.append(time.time_ns() // 1000)
                served.start()
            return clients.verdict(cuts)
        finally:
            clients.kill()


def cut_power(kind: str, seed: str, folder: Path, program: Sequence[str] = ("miniq",)) -> Verdict:
    """Power loss: the file system is shut down under the server, and what was not fsynced is gone."""
    chance = random.Random(seed)
    with disk.disk(folder) as drive, server(f"{kind}:{drive.mount}/data", program) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            time.sleep(chance.uniform(0.5, 2))
            drive.cut_power()
            served.stop()
            cut = time.time_ns() // 1000
            drive.pull_out()
            drive.plug_in()
            served.start()
            return clients.verdict([cut])
        finally:
            clients.kill()
            served.stop()


def fill_disk(kind: str, seed: str, folder: Path) -> Verdict:
    """The disk is full for a while: sends are refused, receive and ack go on, and so does everything afterwards."""
    with disk.disk(folder, megabytes=200) as drive, server(f"{kind}:{drive.mount}/data") as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            time.sleep(0.8)
            filler = drive.mount / "filler"
            free = shutil.disk_usage(drive.mount).free
            with open(filler, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, max(1, free - (4 << 20)))
            time.sleep(1)
            filler.unlink()
            if not served.running:  # it ended for good at a write that failed, which it may
                served.stop()
                served.start()
            return clients.verdict()
        finally:
            clients.kill()
            served.stop()


def shift_clock(kind: str, seed: str, folder: Path) -> Verdict:
    """The wall clock jumps an hour ahead, two hours back, and at last far ahead, so that every lease is over."""
    clock = folder / "clock"
    clock.write_text("0")
    with server(_url(kind, folder), ["tests.faults.shifted", str(clock)]) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            for hours in (1, -1, 3):
                time.sleep(SECONDS / 3)
                clock.write_text(str(hours * 3600))
            return clients.verdict()
        finally:
            clients.kill()


def cut_connections(kind: str, seed: str, folder: Path, program: Sequence[str] = ("miniq",)) -> Verdict:
    """Connections are cut after some bytes of a request or an answer, another number each time, and again and again
    all of them. Now and then, and towards the end, they are left alone: a slow machine gets something through too."""
    chance = random.Random(seed)
    with server(_url(kind, folder), program) as served, Proxy(served.url) as proxy:
        clients = Clients(proxy.url, seed, SECONDS, folder)
        try:
            ends = time.monotonic() + SECONDS * 2 / 3
            while time.monotonic() < ends:
                cut = Cut(request=chance.randrange(600)) if chance.random() < 0.5 else Cut(answer=chance.randrange(600))
                proxy.cuts = [cut]
                time.sleep(0.1 if chance.random() < 0.1 else chance.uniform(0, 0.02))
                proxy.drop_all()
            proxy.cuts = []
            verdict = clients.verdict()
            assert verdict.unknown, "no call was cut"
            return verdict
        finally:
            clients.kill()


def flip_bits(kind: str, seed: str, folder: Path) -> Verdict:
    """A byte of the database is changed while nobody looks. The broker either says so and does not start, or has
    lost nothing: the undamaged copy then stands for what an operator restores."""
    chance = random.Random(seed)
    with server(_url(kind, folder)) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            time.sleep(1.5)
            served.stop(signal.SIGKILL)
            data = folder / "data"
            shutil.copytree(data, folder / "copy")
            files = [path for path in data.rglob("*") if path.is_file() and path.stat().st_size > 100]
            victim = chance.choice(sorted(path for path in files if path.suffix in (segments.SUFFIX, ".sst", ".ldb")))
            raw = bytearray(victim.read_bytes())
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
            victim.write_bytes(raw)
            said = subprocess.run(
                [sys.executable, "-m", "miniq", "queues", "--url", str(data)],
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            assert "Traceback" not in said.stderr, said.stderr
            if said.returncode != 0:
                shutil.rmtree(data)
                shutil.copytree(folder / "copy", data)
            served.start()
            return clients.verdict()
        finally:
            clients.kill()


def two_on_one_folder(kind: str, seed: str, folder: Path) -> Verdict:
    """A second server on the same folder is refused at once, and the first one goes on."""
    url = _url(kind, folder)
    with server(url) as served:
        clients = Clients(served.url, seed, SECONDS, folder)
        try:
            second = Server(url)
            process = subprocess.run(second.command, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
            assert process.returncode == 1
            assert "is open in process" in process.stderr
            return clients.verdict()
        finally:
            clients.kill()


FAULTS = [
    *(Fault("kill -9 of the server", kind, kill_server) for kind in ENGINES),
    Fault("kill -9 of the server, clients by ZeroMQ", "rocksdb", kill_server_zeromq),
    *(Fault("SIGTERM of the server", kind, stop_server) for kind in ENGINES),
    Fault("server paused: late acks", "rocksdb", pause_server),
    *(
        Fault("kill -9 before and after the n-th write of the log", kind, kill_at_write, rounds=IN_PROCESS)
        for kind in ENGINES
    ),
    *(Fault("kill -9 while the engine lags", kind, kill_at_apply, rounds=IN_PROCESS) for kind in ENGINES),
    *(
        Fault("kill -9 while a segment is begun or removed", kind, kill_at_segment, rounds=IN_PROCESS)
        for kind in ENGINES
    ),
    *(
        Fault("kill -9 at the n-th write or fsync", kind, kill_at_system_call, rounds=IN_PROCESS, lacks=_lacks_strace)
        for kind in ENGINES
    ),
    *(Fault("a synced write of the log answers EIO", kind, fail_write, rounds=IN_PROCESS) for kind in ENGINES),
    *(Fault("fsync answers EIO", kind, fail_fsync, rounds=IN_PROCESS, lacks=_lacks_strace) for kind in ENGINES),
    *(Fault("power loss: what the log had not synced", kind, lose_unsynced) for kind in ENGINES),
    *(Fault("power loss: a whole disk", kind, cut_power, lacks=disk.lacks) for kind in ENGINES),
    Fault("disk full, then freed", "rocksdb", fill_disk, lacks=disk.lacks),
    Fault("wall clock an hour ahead and back", "rocksdb", shift_clock, invariants="I1 I3 I6"),
    Fault("connections cut at any byte", "rocksdb", cut_connections),
    *(Fault("a flipped bit on disk", kind, flip_bits) for kind in ENGINES),
    Fault("two servers on one folder", "rocksdb", two_on_one_folder),
]
