"""`python -m tests.faults interruptions [--rounds N] [--only TEXT] [--seed TEXT]`: Ctrl-C and SIGTERM at random times.

Every second round is SIGTERM. Afterwards nothing may be left: no lease that the command did not report, no `.part`
file, no process, no queue of a copy, no locked folder. What a command left unfinished must be complete when it is
repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

import miniq
from tests.faults.rig import ROOT, Server, server

PATIENCE = 60
HELD = 600.0
"""Seconds of a lease: longer than any round."""
MANY = 10_000
LINES = 60_000

RECEIVE = """
import signal, sys, miniq

def end(number, frame):
    raise SystemExit(128 + number)

signal.signal(signal.SIGTERM, end)
with miniq.connect(sys.argv[1]) as mq:
    queue = mq.queue("work")
    print("ready", flush=True)
    while True:
        for message in queue.receive(wait=5):
            with message:
                pass
"""
CONSUME = """
import sys, miniq

with miniq.connect(sys.argv[1]) as mq:
    print("ready", flush=True)
    mq.queue("work").consume(lambda body: None, concurrency=3, wait=0.5)
"""
ASYNC = """
import asyncio, signal, sys, miniq

async def main():
    task = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with miniq.connect_async(sys.argv[1]) as mq:
        queue = mq.queue("work")
        print("ready", flush=True)
        while True:
            for message in await queue.receive(wait=5):
                async with message:
                    pass

asyncio.run(main())
"""


Ready = Callable[["subprocess.Popen[bytes]"], bool]


class Round(Struct):
    """One interruption: where, with which signal, and what was found afterwards."""

    folder: Path
    served: Server
    wire: str
    number: int
    dice: random.Random
    left: list[str] = []

    @property
    def url(self) -> str:
        return {"http": self.served.url, "zmq": self.served.tcp_url}.get(self.wire, str(self.folder / "data"))

    @property
    def is_folder(self) -> bool:
        return self.wire == "folder"

    def fill(self, count: int, queue: str = "work") -> None:
        with miniq.connect(self.url) as mq:
            for info in mq.queues():
                mq.queue(info.name).purge()
            mq.queue(queue).configure(visibility_timeout=HELD)
            for start in range(0, count, 1000):
                mq.queue(queue).send_many([{"n": n} for n in range(start, min(start + 1000, count))])

    def interrupt(self, args: list[str], after: float, ready: Ready | None = None) -> str:
        """Start a program, send the signal some time after it is ready, and return its output. By default it is ready
        when it has printed something; meanwhile messages go on arriving."""
        with open(self.folder / "out", "w+b") as out, open(self.folder / "err", "w+b") as err:
            process = subprocess.Popen(
                args, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=self.folder, env=environment(self.url)
            )
            try:
                deadline = time.monotonic() + PATIENCE
                ready = ready or (lambda _: (self.folder / "out").stat().st_size > 0)
                while not ready(process) and process.poll() is None and time.monotonic() < deadline:
                    time.sleep(0.002)
                with self.sending():
                    time.sleep(after)
                    process.send_signal(signal.SIGTERM if self.number % 2 else signal.SIGINT)
                    process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # faulthandler then prints where it is
                process.wait()
                said = (self.folder / "err").read_text()
                self.left.append(f"the command itself, which did not end: {said[-3000:]}")
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            if b"Traceback" in (said := (self.folder / "err").read_bytes()) and args[2].startswith(
                "import miniq_command"
            ):
                self.left.append(f"a traceback: {said.decode()[-300:]}")
            return (self.folder / "out").read_text()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Send a message every few milliseconds, where the command is not the only one that can."""
        if self.is_folder:
            yield
            return
        over = threading.Event()
        with miniq.connect(self.served.url) as mq:

            def send() -> None:
                while not over.wait(self.dice.uniform(0, 0.004)):
                    mq.queue("work").send({"n": -1})

            thread = threading.Thread(target=send)
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()

    def check_leases(self, known: str = "", queue: str = "work") -> None:
        """Nothing is leased but messages that the command printed."""
        with miniq.connect(self.url) as mq:
            deadline = time.monotonic() + 2  # the broker may not have noticed yet that a connection was closed
            while leaked := [m.id for m in mq.queue(queue).peek("leased", limit=1000) if m.id not in known]:
                if time.monotonic() > deadline:
                    self.left.append(f"{len(leaked)} leased")
                    return
                time.sleep(0.02)

    def check_files(self) -> None:
        for path in self.folder.rglob("*.part"):
            self.left.append(f"file {path.name}")
            path.unlink()  # the next round shall not find it

    def check_processes(self) -> None:
        """No process has the name of the folder in its command line or its environment."""
        name = str(self.folder).encode()
        for found in Path("/proc").iterdir():
            try:
                if not found.name.isdigit() or int(found.name) == os.getpid():
                    continue
                if name in (found / "cmdline").read_bytes() + (found / "environ").read_bytes():
                    pid = int(found.name)
                    if pid != (self.served.process and self.served.process.pid):
                        self.left.append(f"process {(found / 'cmdline').read_bytes()[-80:]!r}")
                        os.kill(pid, signal.SIGKILL)
            except (OSError, ValueError):
                continue


def environment(url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MINIQ_")}
    return kept | {
        "MINIQ_URL": url,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "PYTHONPATH": str(ROOT / "src"),
    }


def command(*args: str) -> list[str]:
    """What the installed script runs."""
    return [sys.executable, "-c", "import miniq_command; miniq_command.main()", *args]


def receive(now: Round, *flags: str) -> None:
    now.fill(2000 if now.is_folder else 1)
    out = now.interrupt(command("receive", "work", "--follow", *flags), now.dice.uniform(0, 0.05))
    now.check_leases(known=out)


def receive_ack(now: Round) -> None:
    receive(now, "--ack", "--body", "--max", "10")
    now.check_leases()


def consume(now: Round) -> None:
    now.fill(2000 if now.is_folder else 1)
    now.interrupt(command("consume", "work", "--batch", "5"), now.dice.uniform(0, 0.05))
    now.check_leases()


def program(text: str) -> Callable[[Round], None]:
    def run(now: Round) -> None:
        now.fill(2000 if now.is_folder else 1)
        now.interrupt([sys.executable, "-c", text, now.url], now.dice.uniform(0, 0.1))
        now.check_leases()

    return run


def export(now: Round) -> None:
    now.fill(MANY, "export")
    file = now.folder / f"out.{now.dice.choice(['jsonl', 'csv'])}"
    file.unlink(missing_ok=True)
    begun = lambda _: any(now.folder.glob("*.part")) or file.exists()  # noqa: E731
    now.interrupt(command("export", "export", file.name, "--consume"), now.dice.uniform(0, 0.4), begun)
    now.check_leases(queue="export")
    now.check_files()
    with miniq.connect(now.url) as mq:
        total = mq.queue("export").info().counts.total
    if total != MANY and len(file.read_bytes().splitlines()) not in (MANY, MANY + 1):
        now.left.append(f"{total} messages, not {MANY}, and not all in the file")


def copy(now: Round) -> None:
    if now.is_folder:
        now.fill(0)
    source = now.folder / "source"
    source.write_bytes(b"".join(b"line %d\n" % n for n in range(LINES)))
    (now.folder / "copy").unlink(missing_ok=True)
    now.interrupt(command("copy", str(source), str(now.folder / "copy")), now.dice.uniform(0.1, 2.5), lambda _: True)
    time.sleep(0.05)
    now.check_files()
    now.check_processes()
    with miniq.connect(now.url) as mq:
        if queues := [info.name for info in mq.queues() if info.name.startswith("copy-")]:
            now.left.append(f"queues {queues}")
            for queue in queues:
                mq.queue(queue).delete()


def import_(now: Round, to_topic: bool = False) -> None:
    """What was interrupted is repeated until it is done."""
    name = f"import-{now.number}-{now.dice.random()}"
    with miniq.connect(now.url) as mq:
        for topic in mq.topics():
            mq.topic(topic.name).delete()
        for info in mq.queues():
            if info.name.startswith("import-"):
                mq.queue(info.name).delete()
        queues = [f"{name}-{number}" for number in range(2)] if to_topic else [name]
        if to_topic:
            for queue in queues:
                mq.topic(name).subscribe(queue)
    lines = [json.dumps({"n": n}) for n in range(LINES)]
    (now.folder / "rows.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def stages() -> int:
        with miniq.connect(now.url) as mq:
            found = mq.topic(name).stages() if to_topic else mq.queue(name).stages() if name in _names(mq) else []
            return len(found)

    def begun(process: subprocess.Popen[bytes]) -> bool:
        return _has_open(process, "rows.jsonl") if now.is_folder else stages() > 0

    args = command("import", "rows.jsonl", *(["--topic"] * to_topic), name)
    now.interrupt(args, now.dice.uniform(0, 0.8 if now.is_folder else 0.3), begun)
    if left := stages():
        now.left.append(f"{left} stages")
    now.check_processes()
    subprocess.run(args, cwd=now.folder, env=environment(now.url), check=True, capture_output=True)
    with miniq.connect(now.url) as mq:
        for queue in queues:
            counts = mq.queue(queue).info().counts
            if (counts.total, counts.bytes) != (LINES, sum(map(len, lines))):
                now.left.append(f"{counts.total - LINES:+} messages, {counts.bytes} B")


def import_to_topic(now: Round) -> None:
    import_(now, to_topic=True)


def _names(mq: miniq.Client) -> list[str]:
    return [info.name for info in mq.queues()]


def _has_open(process: subprocess.Popen[bytes], name: str) -> bool:
    """Whether a process reads the file of a name."""
    for descriptor in Path(f"/proc/{process.pid}/fd").glob("*"):
        with suppress(OSError):
            if os.path.basename(os.readlink(descriptor)) == name:
                return True
    return False


CASES: dict[str, tuple[Callable[[Round], None], tuple[str, ...]]] = {
    "miniq receive": (receive, ("http", "zmq", "folder")),
    "miniq receive --ack": (receive_ack, ("http", "zmq", "folder")),
    "miniq consume": (consume, ("http", "zmq", "folder")),
    "miniq export --consume": (export, ("http", "zmq", "folder")),
    "miniq copy": (copy, ("http", "zmq", "folder")),
    "miniq import": (import_, ("http", "zmq", "folder")),
    "miniq import --topic": (import_to_topic, ("http", "zmq", "folder")),
    "queue.receive": (program(RECEIVE), ("http", "zmq", "folder")),
    "await queue.receive": (program(ASYNC), ("http", "zmq", "folder")),
    "queue.consume": (program(CONSUME), ("http", "zmq", "folder")),
}


def run(name: str, wire: str, rounds: int, seed: str) -> list[str]:
    """What was left behind, for each round that left something."""
    case = CASES[name][0]
    wrong = []
    folder = Path(tempfile.mkdtemp(prefix="miniq-interrupted-"))
    try:
        with server(f"rocksdb:{folder / 'served'}") as served:
            for number in range(rounds):
                now = Round(folder, served, wire, number, random.Random(f"{seed} {name} {wire} {number}"), left=[])
                case(now)
                wrong += [f"{'SIGTERM' if number % 2 else 'SIGINT'}, round {number}: {', '.join(now.left)}"] * bool(
                    now.left
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return wrong


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults interruptions")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", default="", help="cases whose name and wire contain this")
    parser.add_argument("--seed", default="1")
    asked = parser.parse_args(args)
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a background job of a shell would pass on that it is ignored
    failed = False
    print("| interrupted | over | rounds | with something left |\n|---|---|---|---|", flush=True)
    for name, (_, wires) in CASES.items():
        for wire in wires:
            if asked.only in f"{name} {wire}":
                wrong = run(name, wire, asked.rounds, asked.seed)
                print(f"| `{name}` | {wire} | {asked.rounds} | {len(wrong)} |", flush=True)
                for text in wrong:
                    print(f"  {text}", file=sys.stderr, flush=True)
                failed = failed or bool(wrong)
    return int(failed)
