"""`kill -9` during publications: each is in all of its queues or in none.

A process publishes, receives, acks, rejects, redrives, purges and tidies. On a folder it kills itself before or after a
write, on a database it is killed after a random time. Then another process looks: three queues that nobody consumes
from must hold the same messages, all that were confirmed among them; no message may be both in a queue and in its
dead-letter queue; in a folder, every number of references must be right.

`python -m tests.faults.publications --rounds 1000` runs many rounds; the processes are forked, which is quick.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from miniq.broker import Broker
from miniq.errors import MiniQError
from miniq.message import Lease, Message
from miniq.options import Options
from miniq.store import open_store
from miniq.store.embedded import store as embedded
from miniq.store.embedded.check import check
from miniq.store.embedded.folder import Folder
from tests.kit import draft
from tests.store.parts import FaultyKV

KEPT = ("kept0", "kept1", "kept2")
"""Queues from which nobody consumes."""
WORKED = ("worked0", "worked1")
FIELDS: list[dict[str, Any]] = [{}, {}, {"group": "g"}, {"recipient": "ann"}, {"delay": 0.01}, {"headers": {"a": "b"}}]
ENOUGH = 40
"""Steps after which a process on a folder ends by itself if it was not killed."""
FRESH = 25
"""Rounds on one folder."""


async def load(url: str, seed: int, facts: Path, begin: Callable[[], None]) -> None:
    """Work until the end comes, and say when it begins; what is confirmed is written down first."""
    chance = random.Random(seed)
    options = Options(upkeep_interval=0, database_timeout=5.0)
    async with Broker(open_store(url, options), options) as broker:
        for queue in (*KEPT, *WORKED):
            await broker.topics.subscribe("all", queue)
        await broker.topics.subscribe("some", KEPT[0], pattern="x.#")
        begin()
        with facts.open("a", encoding="utf-8") as told:
            for nth in range(ENOUGH) if "://" not in url else itertools.count():
                step = chance.random()
                queue = chance.choice(WORKED)
                if step < 0.5:
                    name = f"{seed} {nth}"
                    drafts = [draft(f"{name} {n}", **chance.choice(FIELDS)) for n in range(chance.randint(1, 12))]
                    if chance.random() < 0.5:
                        drafts = [draft(f"{name} {n}") for n in range(chance.randint(1, 250))]
                    published = await broker.publish("all", drafts)
                    assert published.queues == len(KEPT) + len(WORKED)
                    told.write("".join(f"{id}\n" for id in published.ids))
                    told.flush()
                elif step < 0.75:
                    received = await broker.receive(queue, max=chance.choice([10, 60, 300]), consumer="ann")
                    leases = [Lease(stored.message.id, stored.receipt or "") for stored in received]
                    if leases and chance.random() < 0.3:
                        await broker.ack(queue, leases)
                    elif leases:
                        await broker.deliveries.fail(queue, leases, "rejected", dead=True)
                elif step < 0.9:
                    if f"{queue}.dead" in await broker.store.queues():
                        await broker.redrive(f"{queue}.dead")
                elif step < 0.95:
                    await broker.purge(queue)
                else:
                    await broker.upkeep()


def work(url: str, seed: int, facts: Path, begun: Connection) -> None:
    """The process that is killed: in a folder, at the write that `seed` says."""
    if "://" not in url:
        chance = random.Random(seed)
        left = chance.randint(8, 60)
        real = embedded.open_kv

        def count() -> None:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def open_counting(folder: Folder, durable: bool) -> FaultyKV:
            faulty = FaultyKV(real(folder, durable))
            faulty.hold_before_write = faulty.hold_after_write = count
            return faulty

        embedded.open_kv = open_counting  # type: ignore[assignment]
    asyncio.run(load(url, seed, facts, lambda: begun.send_bytes(b".")))


async def _all(broker: Broker, queue: str) -> list[Message]:
    """All messages of a queue, if it exists."""
    found: list[Message] = []
    after: str | None = None
    if queue not in await broker.store.queues():
        return found
    while True:
        page = await broker.peek(queue, limit=1000, after=after)
        found += [stored.message for stored in page.messages]
        after = page.next
        if after is None:
            break
    assert len(found) == (await broker.queue(queue)).counts.total, "a message is counted and not there"
    return found


async def look(url: str, facts: Path) -> None:
    """Raise unless what was published is in all queues that keep it, or in none, and what moved is in one queue."""
    confirmed = set(facts.read_text(encoding="utf-8").split()) if facts.exists() else set()
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url, options), options) as broker:
        found = [{message.id for message in await _all(broker, queue)} for queue in KEPT]
        for queue in WORKED:
            bodies = [message.body for name in (queue, f"{queue}.dead") for message in await _all(broker, name)]
            assert len(set(bodies)) == len(bodies), "a message is both in its queue and in the dead-letter queue"
    assert found[0] == found[1] == found[2], "a publication is in some queues and not in others"
    assert confirmed <= found[0], "a confirmed publication is gone"


def verify(url: str, facts: Path) -> None:
    if "://" not in url:
        report = check(url.partition(":")[2])
        assert report.damage == [], report.damage
    asyncio.run(look(url, facts))


def run(rounds: int, url_of: Callable[[int], str], folder: Path, seed: int = 0) -> int:
    """Kill and look, many times over; how many of the processes were killed. Forks: call it in a process that has
    opened no folder."""
    context = multiprocessing.get_context("fork")
    chance = random.Random(seed)
    killed = 0
    for number in range(rounds):
        url = url_of(number)
        facts = folder / f"facts{url_of(number).rpartition('/')[2]}"
        begins, begun = context.Pipe(duplex=False)
        worker = context.Process(target=work, args=(url, seed + number, facts, begun))
        worker.start()
        begun.close()
        if "://" in url:
            begins.recv_bytes()
            time.sleep(chance.uniform(0, 1.5))
            worker.kill()
        worker.join(120)
        begins.close()
        assert worker.exitcode in (0, -signal.SIGKILL), f"round {number}: exit code {worker.exitcode}"
        killed += worker.exitcode != 0
        looker = context.Process(target=verify, args=(url, facts))
        looker.start()
        looker.join(120)
        assert looker.exitcode == 0, f"round {number} on {url}"
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--store", default="rocksdb", help="rocksdb, leveldb, or the URL of a database")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="miniq-publications-") as name:
        folder = Path(name)

        def url_of(number: int) -> str:
            if "://" in given.store:
                return str(given.store)
            return f"{given.store}:{folder / f'data{number // FRESH}'}"

        try:
            killed = run(given.rounds, url_of, folder, given.seed)
        except (AssertionError, MiniQError) as error:
            sys.exit(f"failed: {error}")
        confirmed = sum(len(facts.read_text(encoding="utf-8").split()) for facts in folder.glob("facts*"))
        told = f"{killed} killed, {confirmed} messages confirmed"
        print(f"{given.rounds} rounds on {given.store.partition(':')[0]}, {told}: all copies or none")


if __name__ == "__main__":
    main()
