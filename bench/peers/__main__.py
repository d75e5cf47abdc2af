"""`python -m bench.peers`: MiniQ and every peer that is installed, in interleaved rounds, as table, JSON and plot."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
from collections import defaultdict

from bench.peers.base import Peer, Running, missing
from bench.peers.field import OURS, PEERS
from bench.peers.plot import bars
from bench.peers.shapes import SHAPES, Round, Shape, measure
from bench.report import RESULTS, Figure, progress, result_path, save, scratch, spread

TARGETS = {"x1, one client": 1.0, "x1, 64 in flight": 1.5, "x100": 3.0, "x1000": 3.0}
VERBS = ("send", "receive + ack")

Seen = dict[tuple[str, str, str], list[Round]]
"""By peer, shape and verb."""


async def compare(running: dict[str, tuple[Peer, Running]], rounds: int) -> tuple[Seen, dict[str, list[float]]]:
    seen: Seen = defaultdict(list)
    tools: dict[str, list[float]] = defaultdict(list)
    order = list(running.values())
    for number in range(rounds + 1):
        for shape in SHAPES:
            for peer, server in order:
                progress(f"round {number} of {rounds}: {shape.name}, {peer.name}")
                sent, taken = await measure(peer, server, shape)
                if number:
                    seen[peer.name, shape.name, "send"].append(sent)
                    seen[peer.name, shape.name, "receive + ack"].append(taken)
            order.append(order.pop(0))
        if number and number <= 3:
            for peer, server in order:
                progress(f"round {number} of {rounds}: load tool of {peer.name}")
                rate = await peer.load_tool(server)
                if rate is not None:
                    tools[peer.name].append(rate)
    return seen, tools


def durable(peer: Peer) -> bool:
    """Whether a confirmation of this peer means what ours means; others are shown, not compared."""
    return not peer.durability.startswith("none")


def figures(seen: Seen, peers: dict[str, Peer]) -> list[Figure]:
    rows = []
    for shape in SHAPES:
        for verb in VERBS:
            medians = {
                name: statistics.median(one.rate for one in seen[name, shape.name, verb])
                for name in peers
                if seen[name, shape.name, verb]
            }
            rivals = [rate for name, rate in medians.items() if name not in OURS and durable(peers[name])]
            best = max(rivals, default=0.0)
            for name in medians:
                rates = [one.rate for one in seen[name, shape.name, verb]]
                ratio = [rate / best for rate in rates] if best else [0.0]
                rows.append(
                    Figure(
                        name=f"{verb} {shape.name}: {name}",
                        value=spread(ratio),
                        unit="ratio",
                        rate=spread(rates),
                        target=TARGETS[shape.name] if name == "MiniQ HTTP" and best else None,
                    )
                )
    return rows


def show(seen: Seen, peers: dict[str, Peer], tools: dict[str, list[float]]) -> None:
    for verb in VERBS:
        for shape in SHAPES:
            print(f"\n{verb}, {shape.name}")
            print(f"  {'':<26}{'messages/s':>12}{'p50 ms':>10}{'p99 ms':>10}{'server µs/message':>20}")
            ranked = sorted(peers, key=lambda name: -_rate(seen, name, shape, verb))
            for name in ranked:
                rounds = seen[name, shape.name, verb]
                if not rounds:
                    continue
                latencies = sorted(one for each in rounds for one in each.latencies)
                half, most = _at(latencies, 0.5), _at(latencies, 0.99)
                cpu = statistics.mean(one.cpu for one in rounds) * 1e6
                mark = "" if durable(peers[name]) else "  (not durable)"
                rate = _rate(seen, name, shape, verb)
                print(f"  {name:<26}{rate:>12,.0f}{half * 1e3:>10.2f}{most * 1e3:>10.2f}{cpu:>20.1f}{mark}")
    if tools:
        print("\nsend, x1 with 64 in flight, by the load tool of each")
        for name, rates in sorted(tools.items(), key=lambda item: -statistics.median(item[1])):
            print(f"  {name:<26}{statistics.median(rates):>12,.0f}")
    print("\nwhat a confirmation means")
    for name, peer in peers.items():
        print(f"  {name:<26}{peer.durability}")


def _rate(seen: Seen, name: str, shape: Shape, verb: str) -> float:
    rounds = seen[name, shape.name, verb]
    return statistics.median(one.rate for one in rounds) if rounds else 0.0


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count (7)")
    parser.add_argument("--quick", action="store_true", help="1 round, to see that it works")
    parser.add_argument("--only", default="", help="peers whose name contains this, beside MiniQ")
    parser.add_argument("--dir", default=".", help="a folder on the disk to measure (the current one)")
    asked = parser.parse_args()
    rounds = 1 if asked.quick else asked.rounds
    peers: dict[str, Peer] = {}
    with scratch(asked.dir) as folder, contextlib.ExitStack() as stack:
        running: dict[str, tuple[Peer, Running]] = {}
        for peer in PEERS:
            if peer.name not in OURS and asked.only.lower() not in peer.name.lower():
                continue
            why = missing(peer)
            if why is not None:
                print(f"{peer.name} does not take part: {why}", file=sys.stderr)
                continue
            progress(f"starting {peer.name}")
            peers[peer.name] = peer
            running[peer.name] = (peer, stack.enter_context(peer.start(folder)))
        seen, tools = asyncio.run(compare(running, rounds))
    show(seen, peers, tools)
    about = {
        "bench": "peers",
        "rounds": rounds,
        "quick": asked.quick,
        "body_bytes": 1024,
        "durability": {name: peer.durability for name, peer in peers.items()},
        "load_tools": {name: spread(rates).median for name, rates in tools.items()},
        "latency_ms": {
            f"{verb} {shape.name}: {name}": {
                "p50": round(_at(found, 0.5) * 1e3, 3),
                "p99": round(_at(found, 0.99) * 1e3, 3),
            }
            for shape in SHAPES
            for verb in VERBS
            for name in peers
            if (found := sorted(one for each in seen[name, shape.name, verb] for one in each.latencies))
        },
        "server_cpu_us": {
            f"{verb} {shape.name}: {name}": round(statistics.mean(one.cpu for one in each) * 1e6, 1)
            for shape in SHAPES
            for verb in VERBS
            for name in peers
            if (each := seen[name, shape.name, verb])
        },
    }
    save(result_path("peers", asked.quick), about, figures(seen, peers))
    if not asked.quick:
        with open(os.path.join(RESULTS, "peers.svg"), "w", encoding="utf-8") as file:
            groups = [
                (f"{verb}, {shape.name}", {name: _rate(seen, name, shape, verb) for name in peers})
                for verb in VERBS
                for shape in SHAPES
            ]
            file.write(
                bars("Messages a second, 1 KB, one Python client, 2 cores; fsynced, but for NATS JetStream", groups)
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
