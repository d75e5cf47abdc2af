"""What is measured of a peer: rates, latencies and CPU time for one way of sending and receiving."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from msgspec import Struct

from bench.peers.base import Line, Peer, Running, cpu_seconds, lines

BODY = b"x" * 1024


class Shape(Struct, frozen=True):
    """`batch` messages a call, `flight` calls at a time, `calls` calls in all and round."""

    name: str
    batch: int
    flight: int
    calls: int


SHAPES = (
    Shape("x1, one client", 1, 1, 200),
    Shape("x1, 64 in flight", 1, 64, 64 * 30),
    Shape("x100", 100, 1, 30),
    Shape("x1000", 1000, 1, 5),
)


class Round(Struct):
    """One peer, one shape, one direction, once."""

    rate: float
    latencies: list[float]
    cpu: float
    """Seconds of the server's CPU per message."""


async def measure(peer: Peer, running: Running, shape: Shape) -> tuple[Round, Round]:
    """Send, then receive and ack all of it."""
    async with lines(peer, running, shape.flight) as opened:
        await opened[0].send([BODY])
        await _Receiving(opened[:1], 1, 1).run()
        cpu = cpu_seconds(running.pids)
        sending = _Sending(opened, shape.batch, shape.calls)
        seconds = await sending.run()
        between = cpu_seconds(running.pids)
        messages = shape.batch * shape.calls
        sent = Round(messages / seconds, sending.latencies, (between - cpu) / messages)
        receiving = _Receiving(opened, shape.batch, messages)
        seconds = await receiving.run()
        taken = Round(messages / seconds, receiving.latencies, (cpu_seconds(running.pids) - between) / messages)
    return sent, taken


class _Sending:
    """All lines send until the calls are used up."""

    def __init__(self, opened: Sequence[Line], batch: int, calls: int) -> None:
        self._opened = opened
        self._bodies = [BODY] * batch
        self._left = calls
        self.latencies: list[float] = []

    async def run(self) -> float:
        """How long it took."""
        began = time.perf_counter()
        await asyncio.gather(*[self._work(line) for line in self._opened])
        return time.perf_counter() - began

    async def _work(self, line: Line) -> None:
        while self._left > 0:
            self._left -= 1
            began = time.perf_counter()
            await line.send(self._bodies)
            self.latencies.append(time.perf_counter() - began)


class _Receiving:
    """All lines receive and ack until every message is done with."""

    def __init__(self, opened: Sequence[Line], batch: int, messages: int) -> None:
        self._opened = opened
        self._batch = batch
        self._left = messages
        self._done = asyncio.Event()
        self.latencies: list[float] = []

    async def run(self) -> float:
        began = time.perf_counter()
        tasks = [asyncio.create_task(self._work(line)) for line in self._opened]
        await asyncio.wait_for(self._done.wait(), 120)
        seconds = time.perf_counter() - began
        # Some may wait for more, which will not come; what a task is busy with at the server is over by then.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seconds

    async def _work(self, line: Line) -> None:
        while self._left > 0:
            began = time.perf_counter()
            got = await line.receive(self._batch)
            if got:
                await line.ack()
                self.latencies.append(time.perf_counter() - began)
                self._left -= got
        self._done.set()
