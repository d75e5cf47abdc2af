"""`python -m bench.peers.backlog`: how MiniQ and its peers work while millions of messages wait, one after the other.

Each is measured empty, filled in batches of 1000 until it holds as many as asked for or its time is over, and measured
again: send and receive + ack of 100 at a time, and the memory that its server has then.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time

from msgspec import Struct

from bench.peers.base import Peer, Running, children, lines, missing
from bench.peers.field import PEERS
from bench.peers.shapes import BODY, Shape, measure
from bench.report import Figure, progress, result_path, save, scratch, spread

SHAPE = Shape("x100", 100, 1, 30)
ROUNDS = 5


class Found(Struct):
    """What one peer did."""

    name: str
    depth: int
    """How many messages waited in the end."""
    filled: float
    """Messages a second while it was filled."""
    empty: tuple[float, float]
    """Messages a second sent, and received and acked, of an empty queue."""
    deep: tuple[float, float]
    """The same on top of what waits."""
    memory: int
    """Resident bytes of the server."""


async def one(peer: Peer, running: Running, most: int, seconds: float) -> Found:
    empty = await rates(peer, running)
    depth = 0
    began = time.monotonic()
    async with lines(peer, running, 1) as (line,):
        while depth < most and time.monotonic() < began + seconds:
            await line.send([BODY] * 1000)
            depth += 1000
            if not depth % 50_000:
                progress(f"{peer.name}: {depth:,} of {most:,} messages")
    filled = depth / (time.monotonic() - began)
    progress(f"{peer.name}: measured with {depth:,} messages waiting")
    deep = await rates(peer, running)
    return Found(peer.name, depth, filled, empty, deep, resident(running))


async def rates(peer: Peer, running: Running) -> tuple[float, float]:
    seen = [await measure(peer, running, SHAPE) for _ in range(ROUNDS + 1)][1:]
    return (
        statistics.median(sent.rate for sent, _ in seen),
        statistics.median(taken.rate for _, taken in seen),
    )


def resident(running: Running) -> int:
    """What the processes of a server hold in memory that is their own."""
    total = 0
    for pid in children(running.pids):
        try:
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
                for line in file:
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        except OSError:
            pass  # it has ended
    return total


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers.backlog", description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=5_000_000, help="how many shall wait (5 million)")
    parser.add_argument("--seconds", type=float, default=120, help="how long each is filled at most (120)")
    parser.add_argument("--only", default="", help="those whose name contains this")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    asked = parser.parse_args()
    found: list[Found] = []
    for peer in PEERS:
        why = missing(peer)
        if why is not None or asked.only.lower() not in peer.name.lower():
            print(f"{peer.name} does not take part: {why or 'not asked for'}", file=sys.stderr)
            continue
        with scratch(asked.dir) as folder, peer.start(folder) as running:
            found.append(asyncio.run(one(peer, running, asked.messages, asked.seconds)))
        progress("")
    print(f"\n{'':<16}{'waiting':>12}{'filled/s':>10}{'send x100':>12}{'of empty':>10}", end="")
    print(f"{'receive+ack':>13}{'of empty':>10}{'memory MB':>11}")
    for each in found:
        (sent, taken), (deep_sent, deep_taken) = each.empty, each.deep
        print(
            f"{each.name:<16}{each.depth:>12,}{each.filled:>10,.0f}{deep_sent:>12,.0f}{deep_sent / sent:>10.2f}", end=""
        )
        print(f"{deep_taken:>13,.0f}{deep_taken / taken:>10.2f}{each.memory / 1e6:>11,.0f}")
    rows = [
        Figure(name=f"{verb}: {each.name}", value=spread([deep / empty]), unit="ratio to empty", rate=spread([deep]))
        for each in found
        for verb, empty, deep in zip(("send x100", "receive + ack x100"), each.empty, each.deep, strict=True)
    ]
    about = {
        "bench": "peers-backlog",
        "asked": asked.messages,
        "seconds": asked.seconds,
        "waiting": {each.name: each.depth for each in found},
        "filled_per_second": {each.name: round(each.filled) for each in found},
        "memory_mb": {each.name: round(each.memory / 1e6) for each in found},
    }
    save(result_path("peers-backlog", bool(asked.only)), about, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
