"""`python -m tests.faults soak [--minutes N] [--store URL]`: all kinds of load at once on a server for a quarter of an
hour, with a kill -9 and a restart by SIGTERM, and the balance at the end.

The books of the clients, the history, the metrics and the counts must say the same, message by message where they can.
The metrics begin anew with each server: so they are compared with history for the time up to a scrape a few seconds
before each server ends, while all clients pause.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from http.client import HTTPException
from pathlib import Path

import msgspec
import psutil
from msgspec import Struct

import miniq
from miniq.api import operations as calls
from miniq.errors import MiniQError
from tests.faults import probe
from tests.faults.books import ASKED, DOUBT, LEFT, SEEN, Book, HistoryBook, Row, balance, counters, losses, number_of
from tests.faults.rig import ROOT, Server, progress
from tests.faults.soak_crew import BRIEF, DEAD, LASTING, LEASE, ONCE, WORK, Blocking, Crew, Door

MINUTES = 15
KILL, TERMINATE = 0.2, 0.4
"""When the server is killed and terminated, as parts of the time: the last one runs for long enough to show a drift."""
TAIL = 0.01
"""Load between the scrape and the end of a server, likewise."""
MIB = 1024 * 1024
MINUTE = 60.0
PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- sheet: made by `make soak` -->", "<!-- end of sheet -->"


class Sample(Struct):
    """What the server takes at one moment."""

    at: float
    server: int
    memory: int
    files: int
    disk: int


class Latency(Struct):
    at: float
    send: float
    receive: float


class Sheet(Struct):
    """The result."""

    rows: list[Row]
    wrong: list[str]
    """What is lost, or differs between the clients' books, history and counts."""
    differ: list[str]
    """What metrics and history count otherwise, where the balance of messages is not affected."""
    lines: list[str]

    def __str__(self) -> str:
        head = [
            "| | clients | history | of it scraped | metrics | counts | |",
            "|---|---|---|---|---|---|---|",
        ]
        found = self.wrong + self.differ
        verdict = ["**The books agree, and nothing is lost.**"] if not found else ["**The books do not agree:**", ""]
        return "\n".join([*head, *map(str, self.rows), "", *self.lines, "", *verdict, *(f"- {text}" for text in found)])


class Soak:
    """One run."""

    def __init__(self, store: str, folder: Path, seconds: float) -> None:
        self.server = Server(store, log=folder / "server.log")
        self.folder = folder
        self.seconds = seconds
        self.book = Book()
        self.history = HistoryBook()
        self.crew = Crew(self.book, self.history, f"{int(time.time())}")
        self.scraped: Counter[str] = Counter()
        self.samples: list[Sample] = []
        self.latencies: list[Latency] = []
        self.began = time.monotonic()
        self.ended = 0.0

    @property
    def at(self) -> float:
        return time.monotonic() - self.began

    async def run(self) -> Sheet:
        try:
            await self._start()
            async with contextlib.AsyncExitStack() as stack:
                return await self._run([await stack.enter_async_context(door) for door in self._doors()])
        finally:
            self.server.stop()

    def _doors(self) -> list[contextlib.AbstractAsyncContextManager[Door]]:
        """The clients; the last two repeat calls without an answer."""
        http, tcp = self.server.url, self.server.tcp_url
        plain = [miniq.connect_async(http, retry=0), miniq.connect_async(tcp, retry=0)]
        blocking = [_blocking(http), _blocking(tcp)]
        return [*plain, *blocking, miniq.connect_async(http, retry=60), miniq.connect_async(tcp, retry=60)]

    async def _run(self, doors: list[Door]) -> Sheet:
        *doors, watching, stubborn = doors
        await self._configure(watching)
        self.began = time.monotonic()
        jobs = [asyncio.ensure_future(job) for job in self.crew.jobs(doors, stubborn)]
        jobs += [
            asyncio.create_task(work)
            for work in (self._probe(), self._follow(watching), self._watch(), self._break(watching))
        ]
        await asyncio.wait(jobs, timeout=self.seconds, return_when=asyncio.FIRST_EXCEPTION)
        self.crew.stopping.set()
        await asyncio.gather(*jobs)
        self.ended = self.at
        self._progress("the clients have stopped; waiting for the last leases to end")
        await asyncio.sleep(LEASE + 0.5)
        await self._all_expired(watching)
        self.scraped += await self._settle(watching)
        return await self._close(watching)

    async def _configure(self, door: Door) -> None:
        there = {queue.name for queue in await door.perform(calls.ListQueues())}
        if there & {*LASTING, probe.QUEUE}:
            raise SystemExit(f"the store is not empty: it has the queues {', '.join(sorted(there))}")
        self.history.offset = (await door.perform(calls.History(0, 1))).last
        await door.perform(calls.Configure(WORK, {"max_receives": 2, "dead_letter_queue": DEAD}))
        for queue in (*LASTING, probe.QUEUE):
            await door.perform(calls.Configure(queue, {"history": "events"}))
        for queue in {*LASTING} - {WORK, DEAD}:  # all dead letters are those of WORK
            await door.perform(calls.Configure(queue, {"max_receives": None}))

    # The server

    async def _start(self) -> None:
        await asyncio.to_thread(self.server.start)
        self.crew.servers += 1
        self.crew.up.set()

    async def _break(self, door: Door) -> None:
        """Kill the server, and later terminate it, each time under load and some seconds after a scrape."""
        for part, how in ((KILL, signal.SIGKILL), (TERMINATE, signal.SIGTERM)):
            if not await self._until(part * self.seconds):
                return
            await self.crew.rest()
            self.scraped += await self._settle(door)
            self.history.scraped = True
            self.crew.gate.set()
            await self._until((part + TAIL) * self.seconds)
            self._progress(f"{how.name} to the server")
            ending = asyncio.create_task(asyncio.to_thread(self.server.stop, how))
            await asyncio.sleep(0)
            self.crew.up.clear()
            await ending
            if self.server.ended[-1] != (-how if how == signal.SIGKILL else 0):
                self.book.wrong.append(f"after {how.name} the server ended with {self.server.ended[-1]}")
            self.history.died_at, self.history.scraped = time.time_ns() // 1000, False
            await self._start()

    async def _until(self, moment: float) -> bool:
        """Wait until then, or until the run stops."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, moment - self.at)):
                await self.crew.stopping.wait()
        return not self.crew.stopping.is_set()

    async def _all_expired(self, door: Door) -> None:
        """Wait until upkeep has removed all messages that had a ttl."""
        for _ in range(200):
            if not (await door.perform(calls.GetQueue(BRIEF))).counts.total:
                return
            await asyncio.sleep(0.3)
        self.book.wrong.append("a minute after the last of them should have expired, messages with a ttl are left")

    async def _settle(self, door: Door) -> Counter[str]:
        """The metrics, once neither they nor the history change any more."""
        before: tuple[Counter[str], int] | None = None
        for _ in range(200):
            await self.crew.read_history(door)
            now = (counters(await self._scrape()), self.history.offset)
            if now == before:
                return now[0]
            before = now
            await asyncio.sleep(0.3)
        self.book.wrong.append("while no client calls, the metrics and the history do not come to rest")
        return now[0]

    async def _scrape(self) -> str:
        def read() -> str:
            with urllib.request.urlopen(f"{self.server.url}/metrics", timeout=30) as reply:  # noqa: S310
                return str(reply.read(), "utf-8")

        return await asyncio.to_thread(read)

    # Watching

    async def _follow(self, door: Door) -> None:
        """Read the history as it grows, and scrape."""
        while not self.crew.stopping.is_set():
            with contextlib.suppress(MiniQError, OSError, HTTPException):  # there may be no server just now
                await self.crew.read_history(door)
                await self._scrape()
            await self._until(self.at + 2)

    async def _watch(self) -> None:
        """Sample what the server takes, and show the progress."""
        shown = 0.0
        while not self.crew.stopping.is_set():
            self._sample()
            if sys.stderr.isatty() or self.at >= shown:
                shown += MINUTE / 2
                self._progress()
            await self._until(self.at + 1)

    def _sample(self) -> None:
        process = self.server.process
        if process is None:
            return  # between two servers
        with contextlib.suppress(psutil.Error):
            info = psutil.Process(process.pid)
            with info.oneshot():
                sample = Sample(self.at, self.crew.servers, info.memory_info().rss, info.num_fds(), _size(self.folder))
            self.samples.append(sample)

    def _progress(self, text: str = "") -> None:
        memory = f"{self.samples[-1].memory // MIB} MiB" if self.samples else ""
        told = self.book.counts
        text = text or f"{told['sent']:,} sent, {told['acked']:,} acked, {self.crew.backlog:,} queued, {memory}"
        progress(f"{self.at:4.0f} of {self.seconds:.0f} s: {text}")

    async def _probe(self) -> None:
        """Time single sends and receives, about twenty of each per second."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.faults.probe", self.server.url),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
            cwd=ROOT,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        while not self.crew.stopping.is_set():
            async with self.crew.under_way():
                await self.crew.up.wait()
                (number,) = self.book.number(1)
                asked = time.monotonic()
                process.stdin.write(b"%d\n" % number)
                self._enter(number, json.loads(await process.stdout.readline()), asked)
            await asyncio.sleep(0.05)
        process.stdin.close()
        await process.wait()

    def _enter(self, number: int, done: dict[str, object], asked: float) -> None:
        """Write down what the probe was told."""
        book = self.book
        if "send" in done:
            book.sent([number])
            book.open["received"] += "received" not in done
        else:
            book.mark([number], ASKED)
        received = msgspec.convert(done.get("received", []), list[int])
        book.received(received, asked)
        if "outcomes" in done:
            outcomes = msgspec.convert(done["outcomes"], list[str])
            book.acked(number for number, outcome in zip(received, outcomes, strict=True) if outcome == "done")
        elif "acking" in done:
            book.mark(received, DOUBT)
        if "receive" in done:
            self.latencies.append(msgspec.convert({**done, "at": self.at}, Latency))

    # The end

    async def _close(self, door: Door) -> Sheet:
        """Look at what is left, and compare the books."""
        book, history = self.book, self.history
        queues = {queue.name: queue.counts.total for queue in await door.perform(calls.ListQueues())}
        for queue in queues:
            after: str | None = None
            seen: set[str] = set()
            while True:
                page = await door.perform(calls.Peek(queue, None, after, 1000))
                for stored in page.messages:
                    seen.add(stored.message.id)
                    book.mark([number_of(stored)], LEFT)
                if (after := page.next) is None:
                    break
            if seen != history.live[queue]:
                text = f"{queue}: {len(seen):,} messages by browsing, {len(history.live[queue]):,} by history"
                book.wrong.append(f"{text}, {len(seen ^ history.live[queue]):,} of them different")
        dead = sum(count for queue, count in queues.items() if queue == DEAD)
        # A receive at most once whose lease ends before it has removed the messages may lose them to another one.
        book.open["received"] += history.events[ONCE, "expired", "lease"]
        rows = balance(book, history, self.scraped, sum(queues.values()), dead)
        found = {row.name: row.wrong() for row in rows}
        received = found.pop("received")  # it moves nothing
        wrong = [*losses(book, history), *filter(None, found.values()), *self._log()]
        differ = [*filter(None, [received, *(row.disagrees() for row in rows)]), *history.unended()]
        return Sheet(rows, wrong, differ, self._lines())

    def _log(self) -> list[str]:
        """What the server should not have had to say."""
        text = (self.folder / "server.log").read_text(errors="replace")
        return [f"the server's log: {line}" for line in text.splitlines() if "Traceback" in line or " ERROR " in line]

    def _lines(self) -> list[str]:
        """Everything but the balance."""
        book = self.book
        python, linux = platform.python_version(), platform.release().partition("-")[0]
        return [
            f"{datetime.date.today().isoformat()}, {self.ended / MINUTE:.1f} minutes, Python {python}, Linux {linux}, "
            f"{os.cpu_count()} cores. {book.counts['sent'] / self.ended:,.0f} messages sent per second, "
            f"{self.crew.queues:,} queues created and deleted, {self.crew.servers - 1} restarts of the server.",
            "",
            f"Calls without an answer: sends of {book.tally(ASKED):,} messages, of which {book.tally(ASKED | SEEN):,} "
            f"were seen later, and acks of {book.tally(DOUBT):,}. {self.history.uncounted.total():,} events of history "
            "fall between the last scrape of a server and its end.",
            "",
            *self._usage(),
            "",
            *self._speed(),
        ]

    def _usage(self) -> list[str]:
        if not self.samples:
            return []
        rows = ["| server | | memory | open files | disk |", "|---|---|---|---|---|"]
        for server in range(1, self.crew.servers + 1):
            taken = [sample for sample in self.samples if sample.server == server]
            warm = taken[len(taken) // 4 :]
            for name, one in (("start", taken[:1]), ("warm", warm[:1]), ("end", taken[-1:])):
                for sample in one:
                    cells = f"{sample.memory / MIB:.0f} MiB | {sample.files} | {sample.disk / MIB:.0f} MiB"
                    rows.append(f"| {server} | {name}, {sample.at:.0f} s | {cells} |")
        if warm and warm[-1].at - warm[0].at > MINUTE:
            drift = statistics.linear_regression([s.at / 3600 for s in warm], [s.memory / MIB for s in warm]).slope
            rows += ["", f"Drift of the last server's memory once it is warm: {drift:+.0f} MiB per hour."]
        return rows

    def _speed(self) -> list[str]:
        rows = [
            "| | calls | send p50 | send p99 | receive p50 | receive p99 |",
            "|---|---|---|---|---|---|",
        ]
        span = self.ended / 3
        minutes = range(round(self.ended / MINUTE))
        parts = [(f"minute {minute + 1}", minute * MINUTE, (minute + 1) * MINUTE) for minute in minutes]
        parts += [("first third", 0.0, span), ("last third", 2 * span, self.ended + 1)]
        for name, start, stop in parts:
            found = [one for one in self.latencies if start <= one.at < stop]
            if len(found) > 1:
                cells = [
                    f"{value * 1000:.2f} ms" for kind in ("send", "receive") for value in _percentiles(found, kind)
                ]
                rows.append(f"| {name} | {len(found):,} | {' | '.join(cells)} |")
        return rows


def _percentiles(found: list[Latency], kind: str) -> tuple[float, float]:
    cuts = statistics.quantiles((getattr(one, kind) for one in found), n=100, method="inclusive")
    return cuts[49], cuts[98]


@contextlib.asynccontextmanager
async def _blocking(url: str) -> AsyncIterator[Door]:
    door = Blocking(await asyncio.to_thread(miniq.connect, url, retry=0))
    try:
        yield door
    finally:
        await door.close()


def _size(folder: Path) -> int:
    """The bytes of all files; they come and go."""
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


async def soak(store: str, folder: Path, seconds: float) -> tuple[Sheet, bool]:
    """The sheet, and whether the run was interrupted. `store` is a URL, or an engine for a new folder."""
    url = store if ":" in store else f"{store}:{folder / 'data'}"
    run = Soak(url, folder, seconds)
    loop, interrupted = asyncio.get_running_loop(), False

    def interrupt(number: int) -> None:
        nonlocal interrupted
        interrupted = True
        run.crew.stopping.set()
        loop.remove_signal_handler(number)  # a second one ends at once

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt, number)
    try:
        return await run.run(), interrupted
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def write(sheet: Sheet) -> None:
    before, rest = PAGE.read_text().split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text("\n".join([before + BEGIN, str(sheet), END + after]))


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults soak")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"how long the load lasts ({MINUTES})")
    parser.add_argument("--store", default="rocksdb", help="rocksdb or leveldb in a new folder, or the URL of a store")
    parser.add_argument("--page", action="store_true", help="write the sheet to docs/reliability.md in any case")
    asked = parser.parse_args(given)
    if asked.store.startswith("memory"):
        parser.error("--store: memory: keeps nothing when the server is killed; use rocksdb, leveldb or a database")
    with tempfile.TemporaryDirectory(prefix="miniq-soak-", ignore_cleanup_errors=True) as folder:
        sheet, interrupted = asyncio.run(soak(asked.store, Path(folder), asked.minutes * MINUTE))
    print(f"\n{sheet}")
    if asked.page or (not interrupted and (asked.minutes, asked.store) == (MINUTES, "rocksdb")):
        write(sheet)
    return 1 if sheet.wrong or sheet.differ else 0
