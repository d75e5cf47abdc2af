"""Brokers that do nothing but fire schedules, on a clock that runs fast, and are killed at random moments.

A process of its own, which forks the brokers: to start Python for each would take most of the time.

    python firing_load.py STORE ROUNDS BROKERS SPEED MILLISECONDS
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

from miniq.broker import Broker
from miniq.broker.clock import SystemClock
from miniq.errors import MiniQError
from miniq.message import Draft
from miniq.options import Options
from miniq.schedule import Definition
from miniq.store import open_store

QUEUE = "fired"
NAMES = ("a", "b", "c")
EVERY = 1.0


class FastClock(SystemClock):
    """A clock whose wall time runs fast, the same in all processes."""

    def __init__(self, since: int, speed: int) -> None:
        super().__init__()
        self._since = since
        self._speed = speed

    def wall(self) -> int:
        now = time.time_ns() // 1000
        return now + (now - self._since) * (self._speed - 1)


async def define(store: str, clock: FastClock) -> None:
    async with Broker(open_store(store), Options(upkeep_interval=0), clock) as broker:
        for name in NAMES:
            await broker.schedules.put(name, Definition(Draft(b"1"), QUEUE, every=EVERY, catch_up="all"), True)
        for name in NAMES:
            await broker.schedules.put(name, None, False)


async def fire(store: str, clock: FastClock, ready: int) -> None:
    """Say so once it is open, and go on until the end."""
    async with Broker(open_store(store), Options(upkeep_interval=0, refresh_interval=0.2), clock):
        os.write(ready, b".")
        await asyncio.sleep(60)


def main(store: str, rounds: int, brokers: int, speed: int, longest: int) -> None:
    clock = FastClock(time.time_ns() // 1000, speed)
    first = spawn(define(store, clock))  # not here: a process that opened a folder must not be forked
    assert os.waitpid(first, 0)[1] == 0
    chance = random.Random(rounds)
    opened, ready = os.pipe()
    for _ in range(rounds):
        children = [spawn(fire(store, clock, ready)) for _ in range(brokers)]
        for _ in children:
            os.read(opened, 1)
        for child in children:
            time.sleep(chance.uniform(0, longest / 1000))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WTERMSIG(status) == signal.SIGKILL, status


def spawn(work: Coroutine[Any, Any, None]) -> int:
    """Do something in a process of its own."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            asyncio.run(work)
            code = 0
        except MiniQError as error:
            print(error, file=sys.stderr)
        finally:
            os._exit(code)
    work.close()
    return child


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
