"""`make demo`: a broker, a producer and two workers as processes, a crash in the middle, and what came of it.

The producer and the workers write down what was confirmed to them. At the end their notes are compared with what the
broker promises.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import IO

import msgspec
from msgspec import Struct

import miniq

MESSAGES = 600
PACE = 0.002
"""Seconds between two sends."""
WORK = 0.01
"""Seconds that a worker takes for a message: too long to keep up, so that much is under way when the broker dies."""
LEASE = 2.0
QUEUE = "demo"
CRASH_AT = 200
"""Confirmed sends after which the broker is killed."""
PATIENCE = 30.0
SLACK = 1e-4
"""Seconds by which moments that went through a float may differ."""


class Note(Struct):
    """What was confirmed: a message was sent, handed out (until a moment), or acked."""

    event: str
    id: str
    receives: int = 0
    until: float = 0.0
    at: float = 0.0


class Notebook:
    """A file of notes, written line by line so that they outlive their writer."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  open as long as its process

    def write(self, note: Note) -> None:
        self._file.write(msgspec.json.encode(note) + b"\n")


def read_notes(path: str) -> list[Note]:
    """The notes in a file by now."""
    with suppress(FileNotFoundError), open(path, "rb") as file:
        return [msgspec.json.decode(line, type=Note) for line in file.read().split(b"\n")[:-1]]
    return []


# The three processes


def produce(url: str, path: str) -> None:
    """Send, one by one."""
    notes = Notebook(path)
    with miniq.connect(url, retry=PATIENCE) as client:
        for number in range(MESSAGES):
            id = client.queue(QUEUE).send({"n": number})
            notes.write(Note("sent", id, at=time.time()))
            time.sleep(PACE)


def work(url: str, path: str, name: str) -> None:
    """Receive and ack until nobody needs us any more."""
    notes = Notebook(path)
    parent = os.getppid()
    with miniq.connect(url, retry=PATIENCE) as client:
        queue = client.queue(QUEUE)
        while os.getppid() == parent:
            for message in queue.receive(10, wait=1, visibility_timeout=LEASE, consumer=name):
                until = message.lease_until
                notes.write(Note("received", message.id, message.receives, until.timestamp() if until else 0.0))
                time.sleep(WORK)
                with suppress(miniq.StaleReceipt):
                    message.ack()
                    notes.write(Note("acked", message.id, message.receives, at=time.time()))


def start(*args: str, out: int | None = None) -> subprocess.Popen[str]:
    """A Python process of ours."""
    return subprocess.Popen([sys.executable, "-m", *args], stdout=out, text=True)  # noqa: S603


class Server:
    """The broker's process, which can be killed and started again at the same address."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._port = "0"
        self.url = ""
        self.start()

    def start(self) -> None:
        store = f"rocksdb:{self._folder}"
        self._process = start("miniq", "serve", "--store", store, "--port", self._port, out=subprocess.PIPE)
        out: IO[str] | None = self._process.stdout
        line = out.readline() if out is not None else ""
        if not line:
            raise SystemExit("the broker did not start")
        self.url = line.removeprefix("miniq ready: ").split()[0]
        self._port = self.url.rpartition(":")[2]

    def kill(self) -> None:
        self._process.kill()
        self._end()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


# What was promised


def check(sent: list[Note], seen: list[Note], left: int) -> list[tuple[bool, str]]:
    """Each promise, and whether it was kept."""
    acked = {note.id: note.at for note in seen if note.event == "acked"}
    handed: dict[str, list[Note]] = defaultdict(list)
    for note in sorted((note for note in seen if note.event == "received"), key=lambda note: note.until):
        handed[note.id].append(note)
    again = sum(len(notes) - 1 for notes in handed.values())
    lost = [note.id for note in sent if note.id not in acked]
    pairs = [pair for notes in handed.values() for pair in pairwise(notes)]
    twice = [after.id for before, after in pairs if after.until - LEASE < before.until - SLACK]
    undone = [id for id, notes in handed.items() if id in acked and notes[-1].until - LEASE > acked[id] + SLACK]
    back = [after.id for before, after in pairs if after.receives <= before.receives]
    added = (handed.keys() | acked.keys()) - {note.id for note in sent}
    whole = len(sent) == MESSAGES
    return [
        (whole and not lost, f"nothing lost: {len(sent) - len(lost)} of {len(sent)} confirmed messages were processed"),
        (not added, "nothing added: no message was there twice, though a send was repeated over the crash"),
        (not twice, f"one worker at a time: {len(handed) + again} leases, {again} of them after another had ended"),
        (not undone, f"an ack stays: none of {len(acked)} acked messages came again"),
        (not back, "the count of a message's receives never went back"),
        (left == 0, "nothing left over: the queue is empty"),
    ]


def main() -> int:
    """Run the demo; 0 if every promise was kept."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="miniq-demo-") as folder:
        server = Server(os.path.join(folder, "data"))
        print(f"broker    started: {server.url}", flush=True)
        sent, *seen = (os.path.join(folder, name) for name in ("producer", "worker-1", "worker-2"))
        crew = [start("miniq.demo", "produce", server.url, sent)]
        crew += [start("miniq.demo", "work", server.url, path, os.path.basename(path)) for path in seen]
        print(f"processes started: a producer with {MESSAGES} messages, and two workers", flush=True)
        try:
            _wait(lambda: len(read_notes(sent)) >= CRASH_AT, crew)
            server.kill()
            print(f"broker    killed with -9, after {len(read_notes(sent))} confirmed messages", flush=True)
            server.start()
            print("broker    started again on the same folder", flush=True)
            with miniq.connect(server.url) as client:
                queue = client.queue(QUEUE)
                _wait(lambda: crew[0].poll() is not None and queue.info().counts.total == 0, crew[1:])
                left = queue.info().counts.total
        finally:
            for process in crew:
                process.kill()
                process.wait()
            server.stop()
        results = check(read_notes(sent), [note for path in seen for note in read_notes(path)], left)
    for kept, promise in results:
        print(f"{'kept' if kept else 'BROKEN':<8}  {promise}")
    print(f"in {time.monotonic() - began:.1f} s")
    return 0 if all(kept for kept, _ in results) else 1


def _wait(done: Callable[[], bool], crew: list[subprocess.Popen[str]]) -> None:
    """Until something is so; a process that has failed will not bring it about."""
    until = time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > until or any(process.poll() for process in crew):
            raise SystemExit("the demo did not get on: a process failed or took too long")
        time.sleep(0.05)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    if sys.argv[1] == "produce":
        produce(*sys.argv[2:])
    else:
        work(*sys.argv[2:])
