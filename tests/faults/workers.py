"""`python -m tests.faults workers [--rounds N] [--only stop|kill] [--seed TEXT]`: workers that are told to stop under
load, and workers whose processes are killed.

A worker that is told to stop ends with code 0 within its grace time, and leaves nothing leased. Of a worker whose
processes are killed, every task is done at least once, and no message stays leased beyond its timeout.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import miniq
from tests.faults.rig import ROOT, Server, progress, server

APP = """
import asyncio, os, time
import miniq

app = miniq.App()
done = os.open(os.environ["DONE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task(queue="work", timeout=TIMEOUT)
def work(n: int, seconds: float) -> None:
    if seconds:
        time.sleep(seconds)
    os.write(done, b"%d\\n" % n)

@app.task(queue="work", timeout=TIMEOUT)
async def work_async(n: int, seconds: float) -> None:
    await asyncio.sleep(seconds)
    os.write(done, b"%d\\n" % n)
"""
GRACE = 5.0
TIMEOUT = 3.0
"""Seconds that a task may take."""
LEASE = 1.0
SLACK = 2.0
"""Seconds by which a lease may outlive the timeout, and a busy machine may be late."""
PATIENCE = 90.0


class Round:
    """A queue of tasks, and workers on it."""

    def __init__(self, folder: Path, served: Server, number: int, dice: random.Random) -> None:
        self.folder = folder
        self.number = number
        self.dice = dice
        self.wrong: list[str] = []
        self._url = served.url
        self.done = folder / f"done{number}"
        (folder / "shop.py").write_text(APP.replace("TIMEOUT", str(TIMEOUT)))
        self.mq = miniq.connect(served.url)
        self.queue = self.mq.queue("work")
        self.queue.configure(visibility_timeout=LEASE, max_receives=None)
        self.queue.purge()
        self.sent = 0

    def fill(self, count: int, longest: float) -> None:
        """Send tasks; most are quick."""
        drafts = []
        for n in range(self.sent, self.sent + count):
            seconds = self.dice.choice([0, 0, 0, self.dice.uniform(0, longest)])
            task = self.dice.choice(["work", "work_async"])
            drafts.append(miniq.draft({"n": n, "seconds": seconds}, headers={"task": task}))
        for start in range(0, count, 1000):
            self.queue.send_many(drafts[start : start + 1000])
        self.sent += count

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("MINIQ_")}
        env |= {"MINIQ_URL": self._url, "DONE": str(self.done), "PYTHONPATH": str(ROOT / "src")}
        with open(self.folder / "err", "ab") as err:
            return subprocess.Popen(
                [sys.executable, "-m", "miniq", "worker", "shop:app", f"--grace={GRACE}", *args, "--log-level=warning"],
                cwd=self.folder,
                env=env,
                stderr=err,
                start_new_session=True,
            )

    def wait_for_work(self, process: subprocess.Popen[bytes], count: int = 1) -> None:
        """Wait until some tasks are done."""
        deadline = time.monotonic() + PATIENCE
        while len(self.finished()) < count:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the worker does not work: {(self.folder / 'err').read_text()[-2000:]}")
            time.sleep(0.005)

    def finished(self) -> list[int]:
        try:
            return [int(line) for line in self.done.read_text().split("\n")[:-1]]
        except FileNotFoundError:
            return []

    def close(self) -> None:
        self.mq.close()


def stop(found: Round) -> None:
    """One worker, told to stop at a random moment under load."""
    found.fill(4000, longest=0.3)
    process = found.start("--concurrency=8", *(["--processes=2"] if found.number % 2 else []))
    try:
        found.wait_for_work(process)
        time.sleep(found.dice.uniform(0, 0.4))
        process.send_signal(signal.SIGTERM if found.number % 4 < 2 else signal.SIGINT)
        began = time.monotonic()
        code = process.wait(PATIENCE)
        took = time.monotonic() - began
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    leased = found.queue.info().counts.leased
    if code != 0 or leased or took > GRACE + SLACK:
        found.wrong.append(f"round {found.number}: code {code}, {leased} leased, after {took:.1f} s")


def kill(found: Round) -> None:
    """Two processes, which are killed at random moments, once with their supervisor."""
    found.fill(1500, longest=0.2)
    process = found.start("--concurrency=4", "--processes=2")
    try:
        with watched(found):
            found.wait_for_work(process)
            for fatality in range(4):
                time.sleep(found.dice.uniform(0.05, 0.5))
                victims = children(process.pid)
                if fatality == 2:
                    victims = [process.pid, *victims]
                for victim in victims if fatality == 2 else victims[:1]:
                    os.kill(victim, signal.SIGKILL)
                if fatality == 2:
                    process.wait()
                    process = found.start("--concurrency=4", "--processes=2")
                found.fill(200, longest=0.2)
            deadline = time.monotonic() + PATIENCE
            while found.queue.info().counts.total and time.monotonic() < deadline:
                time.sleep(0.05)
            if time.monotonic() > deadline:
                found.wrong.append(f"round {found.number}: not done after {PATIENCE:g} s: {found.queue.info().counts}")
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    left = found.queue.info().counts.total
    lost = set(range(found.sent)) - set(found.finished())
    if code != 0 or left or lost:
        found.wrong.append(
            f"round {found.number}: code {code}, {left} left, {len(lost)} never done: {sorted(lost)[:5]}"
        )


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def watched(found: Round) -> Iterator[None]:
    """Note messages that one receive keeps leased beyond the timeout of the task."""
    over = threading.Event()
    seen: dict[tuple[str, int], float] = {}

    def watch() -> None:
        while not over.wait(0.2):
            now = time.monotonic()
            for message in found.queue.peek(status="leased", limit=1000):
                held = now - seen.setdefault((message.id, message.receives), now)
                if held > TIMEOUT + LEASE + SLACK:
                    found.wrong.append(f"round {found.number}: message {message.id} was leased for {held:.1f} s")
                    return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


KINDS: dict[str, Callable[[Round], None]] = {"stop": stop, "kill": kill}


def run(kind: str, rounds: int, seed: str, store: str = "rocksdb") -> list[str]:
    """Play some rounds; returns what was wrong."""
    wrong: list[str] = []
    with tempfile.TemporaryDirectory(prefix="miniq-workers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with server(f"{store}:{folder / 'data'}" if store != "memory" else "memory:") as served:
            for number in range(rounds):
                found = Round(folder, served, number, random.Random(f"{seed} {kind} {number}"))
                try:
                    KINDS[kind](found)
                except AssertionError as error:
                    found.wrong.append(f"round {number}: {error}")
                finally:
                    found.close()
                if found.wrong:
                    wrong += [*found.wrong, (folder / "err").read_text()[-3000:]]
                progress(f"{kind}: {number + 1} of {rounds} rounds, {len(wrong)} wrong")
    return wrong


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults workers")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--seed", default=str(int(time.time())))
    asked = parser.parse_args(args)
    wrong = []
    for kind in [asked.only] if asked.only else KINDS:
        found = run(kind, asked.rounds, asked.seed)
        print(f"{kind}: {asked.rounds} rounds with seed {asked.seed}, {len(found)} wrong", flush=True)
        wrong += found
    for line in wrong:
        print(line)
    return 1 if wrong else 0
