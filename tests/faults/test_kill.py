"""`kill -9` at a random moment, many times over on one growing folder: nothing that was confirmed is undone.

`MINIQ_KILL_ROUNDS` sets how often each engine's broker is killed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from miniq.broker import Broker
from miniq.broker.clock import SystemClock
from miniq.message import SECOND, Lease, Stored
from miniq.options import Options
from miniq.store import open_store
from miniq.store.arguments import Scan
from tests.conftest import ENGINES, store_url
from tests.faults.load import COMMITTED, QUEUE, STREAM
from tests.serving import serving

LOAD = Path(__file__).with_name("load.py")
ROUNDS = {"rocksdb": 10, "leveldb": 5}


class Facts:
    """What clients were told so far, over all rounds."""

    def __init__(self) -> None:
        self.sent: dict[str, str | None] = {}
        """Confirmed sends, with their groups."""
        self.over: set[str] = set()
        """Confirmed as acked, or handed out at most once."""
        self.doubtful: set[str] = set()
        """An ack, or something else that ends a lease, was asked for and not answered."""
        self.receives: dict[str, int] = {}
        self.leases: dict[str, tuple[int, str]] = {}
        """The last confirmed lease of each message: until when, and its receipt."""
        self.rounds_with_work = 0

    def learn(self, lines: list[str]) -> None:
        self.doubtful.clear()
        for line in lines:
            kind, *rest = json.loads(line)
            if kind == "sent":
                id, group = rest
                assert id not in self.sent
                self.sent[id] = group
            elif kind in ("received", "once"):
                id, receives, until, receipt, group = rest
                assert id not in self.over, "handed out though it was acked, or handed out at most once"
                assert receives > self.receives.get(id, 0), "receives fell"
                self.receives[id] = receives
                if kind == "once":
                    self.over.add(id)
                    self.leases.pop(id, None)
                else:
                    self.leases[id] = (until, receipt)
            elif kind == "acking":
                self.doubtful.add(rest[0])
            elif kind == "acked":
                id, receipt, outcome = rest
                self.doubtful.discard(id)
                if outcome == "done":
                    self.over.add(id)
                    self.leases.pop(id, None)
                elif outcome == "missing":
                    # Somebody else's ack, at most once, came first.
                    self.doubtful.add(id)
            elif kind in ("releasing", "extending"):
                # From here on nobody knows, until it is confirmed.
                id, receipt = rest
                if self.leases.get(id, (0, ""))[1] == receipt:
                    del self.leases[id]
            elif kind == "extended":
                id, until, receipt = rest
                self.leases[id] = (until, receipt)
        self.rounds_with_work += len(lines) > 30


class StreamFacts:
    """What a reader of claims and a worker beside it were told so far."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.claims: dict[int, list[str]] = {}
        """What was in each claim that was read."""
        self.asked = self.acked = 0
        """Up to which claim an ack was asked for, and confirmed."""
        self.worked: set[str] = set()
        self.working: set[str] = set()
        self.committing: dict[tuple[str, int], tuple[list[tuple[str, str]], int]] = {}
        """What each commit that was asked for lists, and how many messages that is."""
        self.committed: set[tuple[str, int]] = set()

    def learn(self, lines: list[str]) -> None:
        for line in lines:
            kind, *rest = json.loads(line)
            if kind == "streamed":
                self.sent.update(rest[0])
            elif kind == "working":
                self.working.update(rest[0])
            elif kind == "worked":
                self.worked.update(rest[0])
            elif kind == "acking claim":
                self.asked = max(self.asked, rest[0])
            elif kind == "acked claim":
                self.acked = max(self.acked, rest[0])
            elif kind == "committing":
                job, batch, listed, count = rest
                self.committing[job, batch] = ([(partition, attempt) for partition, attempt in listed], count)
            elif kind == "committed":
                self.committed.add((rest[0], rest[1]))
            elif kind == "claimed":
                number, ids = rest
                assert self.claims.setdefault(number, ids) == ids, f"claim {number} changed"

    async def check(self, broker: Broker) -> None:
        """Every confirmed send was handed to one of both, for good, or is still there."""
        there = await contents(broker, STREAM)
        (group,) = await broker.claims.list(STREAM)
        assert self.acked <= group.acked <= self.asked, "a confirmed ack of a claim was undone, or one made itself"
        assert group.last - group.acked <= 1
        held = set()
        for claim in group.claims:
            part = await broker.claims.fetch(STREAM, "readers", claim.number)
            ids = [stored.message.id async for some in part.each() for stored in some]
            assert len(ids) == claim.messages
            if claim.number in self.claims:
                assert ids == self.claims[claim.number], "a claim changed"
            if claim.acked_at is None:
                held.update(ids)
        assert held == {id for id, stored in there.items() if stored.consumer == "readers"}
        read = [id for number, ids in self.claims.items() if number <= group.acked for id in ids]
        assert len(set(read)) == len(read), "claimed twice"
        assert group.acked == sum(number <= group.acked for number in self.claims), "acked, and never read"
        assert not set(read) & self.worked, "handed to both"
        assert not (set(read) | self.worked) & set(there), "a confirmed ack was undone"
        assert self.sent <= set(read) | self.worked | self.working | set(there), "a confirmed send is lost"
        self.worked |= self.working - set(there)
        self.working.clear()

    async def check_commits(self, broker: Broker) -> None:
        """What was committed is there once; what was not confirmed can be asked for again, and is there once then."""
        for name, (listed, count) in self.committing.items():
            done = await broker.stages.commit(COMMITTED, name[0], str(name[1]), listed)
            assert done.messages == count
            assert done.repeated or name not in self.committed, "a confirmed commit was undone"
            self.committed.add(name)
        counts = (await broker.queue(COMMITTED)).counts if self.committing else None
        assert counts is None or counts.total == sum(count for _, count in self.committing.values())
        assert counts is None or counts.total == len(await contents(broker, COMMITTED))


def load_and_kill(url: str, seed: int, seconds: float, victim: int | None = None) -> list[str]:
    """Run the load, kill it (or the server it talks to) after some time, and return what it had told."""
    with subprocess.Popen(
        [sys.executable, str(LOAD), url, str(seed)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        if first != b'["open"]\n':
            process.kill()
            raise AssertionError(process.stderr.read().decode())
        os.set_blocking(process.stdout.fileno(), False)
        told = b""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            # Read along: a full pipe would make the load stand still.
            told += process.stdout.read() or b""
            time.sleep(0.002)
        if victim is None:
            process.kill()
        else:
            os.kill(victim, signal.SIGKILL)
        process.wait(30)
        os.set_blocking(process.stdout.fileno(), True)
        told += process.stdout.read()
        complaint = process.stderr.read().decode()
        assert not complaint, complaint
    whole, _, _ = told.rpartition(b"\n")
    return whole.decode().splitlines()


async def contents(broker: Broker, queue: str = QUEUE) -> dict[str, Stored]:
    found: dict[str, Stored] = {}
    after: str | None = None
    while True:
        page = await broker.store.messages.scan(queue, Scan(after=after, limit=1000, max_bytes=10**9, now=0))
        for stored in page.messages:
            assert stored.message.id not in found
            found[stored.message.id] = stored
        after = page.next
        if after is None:
            return found


async def check(url: str, facts: Facts, stream: StreamFacts, deep: bool) -> None:
    """Open what the kill left and compare it with what had been confirmed."""
    clock = SystemClock()
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url, options), options, clock) as broker:
        there = await contents(broker)
        now = clock.now()
        lost = set(facts.sent) - facts.over - facts.doubtful - set(there)
        # A receive at most once, or an ack, that was made but not answered may have removed something: it
        # stands in the history. Nothing else may be missing.
        removed: set[str] = set()
        after = (await broker.history_span()).first - 1
        offset = after
        while records := (await broker.store.history.read(after, 1000)).records:
            for record in records:
                assert record.offset == offset + 1, "the history has a gap"
                offset = record.offset
                if record.event.event == "acked":
                    removed.add(record.event.id)
            after = records[-1].offset
        assert not lost - removed, "a confirmed send is lost"
        assert not facts.over & set(there), "a confirmed ack was undone"
        for id in lost:
            # Nobody was told; from now on it counts as gone.
            facts.over.add(id)
            facts.leases.pop(id, None)
        for id in facts.doubtful:
            if id not in there:
                facts.over.add(id)
                facts.leases.pop(id, None)
        counts = (await broker.queue(QUEUE)).counts
        assert counts.total == len(there)
        assert counts.bytes == sum(stored.message.size for stored in there.values())
        running: set[str] = set()
        for id, (until, receipt) in list(facts.leases.items()):
            stored = there.get(id)
            if stored is None:
                continue
            assert stored.receives >= facts.receives[id], "receives went back"
            if stored.receives == facts.receives[id] and until > now:
                assert (stored.visible_at, stored.receipt) == (until, receipt), "a running lease changed"
                running.add(id)
            elif until > now:
                # Only after the lease was over could it have been handed out again.
                raise AssertionError("a message was handed out while its lease ran")
        for id, receives in facts.receives.items():
            if id in there:
                assert there[id].receives >= receives, "receives went back"
        await stream.check(broker)
        await stream.check_commits(broker)
        await check_handing_out(broker, facts, there, running)
        if deep:
            await drain_some(broker, facts, there)


async def check_handing_out(broker: Broker, facts: Facts, there: dict[str, Stored], running: set[str]) -> None:
    """Take what can be had now: nothing that is leased, of each group one, and of each the oldest."""
    got: dict[str, Stored] = {}
    while some := await broker.receive(QUEUE, max=1000, visibility_timeout=30):
        for stored in some:
            assert stored.message.id not in got
            got[stored.message.id] = stored
    for id in running & set(got):
        handed_out_at = got[id].visible_at - 30 * SECOND
        assert facts.leases[id][0] <= handed_out_at, "handed out before its lease ended"
    running = running - set(got)
    groups: dict[str, list[str]] = {}
    for id, stored in there.items():
        if stored.message.group is not None:
            groups.setdefault(stored.message.group, []).append(id)
    flying = [stored.message.group for id, stored in there.items() if stored.message.group and (id in running)]
    flying += [stored.message.group for stored in got.values() if stored.message.group]
    assert len(flying) == len(set(flying)), "two of a group in flight"
    for group, ids in groups.items():
        for id in ids:
            if id in got or id in running:
                assert id == min(ids), f"group {group} is out of order"
    for id, stored in got.items():
        facts.receives[id] = max(facts.receives.get(id, 0), stored.receives)
        facts.leases.pop(id, None)
    # Hand all of it back, so that the next round has something to do.
    for start in range(0, len(got), 1000):
        leases = [Lease(id, stored.receipt or "") for id, stored in list(got.items())[start : start + 1000]]
        assert set(await broker.release(QUEUE, leases)) == {"done"}


async def drain_some(broker: Broker, facts: Facts, there: dict[str, Stored]) -> None:
    """Keep the folder from growing without end."""
    left = len(there) - 500
    while left > 0:
        got = await broker.receive(QUEUE, max=min(left, 500))
        if not got:
            return
        assert set(await broker.ack(QUEUE, [Lease(s.message.id, s.receipt or "") for s in got])) == {"done"}
        facts.over |= {stored.message.id for stored in got}
        left -= len(got)


@pytest.mark.parametrize("engine", ENGINES)
async def test_nothing_confirmed_is_undone_by_kill_9(engine: str, tmp_path: Path) -> None:
    url = store_url(engine, tmp_path)
    rounds = int(os.environ.get("MINIQ_KILL_ROUNDS", ROUNDS[engine]))
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    facts, stream = Facts(), StreamFacts()
    for number in range(rounds):
        told = load_and_kill(url, seed + number, chance.uniform(0.2, 0.5))
        facts.learn(told)
        stream.learn(told)
        await check(url, facts, stream, deep=number % 5 == 4)
    assert facts.rounds_with_work > rounds * 0.5
    assert len(facts.over) > rounds
    assert len(facts.sent) > rounds * 5
    assert stream.acked > rounds
    assert len(stream.worked) > rounds
    assert len(stream.committed) > rounds


@pytest.mark.parametrize(("wire", "rounds"), [("http", 6), ("zmq", 3)])
async def test_nothing_confirmed_over_a_wire_is_undone_by_kill_9_of_the_server(
    wire: str, rounds: int, tmp_path: Path
) -> None:
    url = store_url("rocksdb", tmp_path)
    rounds = int(os.environ.get("MINIQ_KILL_ROUNDS", rounds))
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    facts, stream = Facts(), StreamFacts()
    for number in range(rounds):
        with serving(url) as served:
            door = served.url if wire == "http" else served.tcp
            told = load_and_kill(door, seed + number, chance.uniform(0.3, 0.6), served.process.pid)
        facts.learn(told)
        stream.learn(told)
        await check(url, facts, stream, deep=number % 5 == 4)
    assert facts.rounds_with_work > rounds * 0.5
    assert len(facts.over) > rounds
    assert len(facts.sent) > rounds * 5
    assert stream.acked > rounds
    assert len(stream.worked) > rounds
    assert len(stream.committed) > rounds
