"""The clients of a drill: eight consumers and four producers at three brokers, which go on at another one when theirs
does not answer. They write down what they asked and were told, as those of `clients.py` do, and every call is timed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from typing import Any, TypeVar

from miniq.api import operations as calls
from miniq.client._async.transport import AsyncTransport
from miniq.errors import MiniQError
from miniq.message import Draft, Lease, Mode, Outcome, Stored
from tests.faults.clients import REFUSED, Crew
from tests.faults.history import Operation, Recorder
from tests.faults.soak_crew import Door
from tests.faults.watch import Watch

T = TypeVar("T")
CONSUMERS, PRODUCERS = 8, 4
BATCH = 1000
"""Messages of a call where many are sent or leased quickly."""
WAIT = 0.5
"""Seconds that a consumer waits for messages."""
PATIENCE = 60.0
"""Seconds without a delivery after which a drain is given up."""


class Doors:
    """The brokers, as one client sees them: it stays at one until a call gets no answer there."""

    def __init__(self, doors: Sequence[Door], first: int) -> None:
        self._doors = doors
        self._at = first

    async def perform(self, call: Any) -> Any:
        try:
            return await self._doors[self._at % len(self._doors)].perform(call)
        except REFUSED:
            raise
        except MiniQError:
            self._at += 1
            raise

    async def close(self) -> None:
        """Other clients use them too."""


class DrillCrew(Crew):
    """The clients of one queue."""

    def __init__(self, doors: Sequence[Door], seed: str, queue: str, watch: Watch, file: int) -> None:
        super().__init__("http:", f"{seed}-{queue}", queue, groups="", claims=False)
        self.recorder = Recorder(file)
        self.watch = watch
        self.sent = 0
        self.done = 0
        """Messages that were sent, and that were acked."""
        self._doors = doors
        self._clients = count()

    def client(self) -> Any:
        """Access to the brokers for one more client."""
        return Doors(self._doors, next(self._clients))

    async def ask(self, call: calls.Call[T], within: float = 0) -> T:
        """A call that is timed and not recorded; it must succeed, for some time if it is repeated `within` seconds."""
        door, deadline = self.client(), time.monotonic() + within
        while True:
            began = time.monotonic()
            try:
                answer: T = await door.perform(call)
                return answer
            except MiniQError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.05)
            finally:
                self.watch.called(type(call).__name__.lower(), began)

    async def _ask(self, operation: Operation, answer: Awaitable[T]) -> T | None:
        began = time.monotonic()
        try:
            return await super()._ask(operation, _granted(answer))
        finally:
            if operation.verb != "receive":
                self.watch.called(operation.verb, began)

    async def _receive(
        self, door: AsyncTransport, name: str, most: int, seconds: float, mode: Mode, wait: float = 0.05
    ) -> list[Stored]:
        began = time.monotonic()
        taken = await super()._receive(door, name, most, seconds, mode, wait)
        self.watch.called("receive", began, wait)
        if taken:
            self.watch.delivered()
        return taken

    async def _send(self, door: AsyncTransport, name: str, drafts: list[Draft]) -> bool:
        sent = await super()._send(door, name, drafts)
        self.sent += len(drafts) if sent else 0
        return sent

    async def _ack(self, door: AsyncTransport, client: str, leases: list[Lease]) -> list[Outcome]:
        outcomes = await super()._ack(door, client, leases)
        self.done += outcomes.count("done")
        return outcomes

    def drafts(self, amount: int, fields: Callable[[int], dict[str, Any]]) -> list[Draft]:
        """Messages of which each has fields of its own, by its number."""
        made = []
        for _ in range(amount):
            self.tokens += 1
            made.append(Draft(json.dumps(f"{self.seed}/{self.tokens}").encode(), **fields(self.tokens)))
        return made

    async def fill(self, amount: int, fields: Callable[[int], dict[str, Any]], batch: int = BATCH) -> list[list[Draft]]:
        """Send messages as fast as the producers can; those that were sent."""
        sent: list[list[Draft]] = []
        left = amount

        async def produce(name: str) -> None:
            nonlocal left
            door = self.client()
            while left > 0:
                size = min(batch, left)
                left -= size
                drafts = self.drafts(size, fields)
                if await self._send(door, name, drafts):
                    sent.append(drafts)
                else:
                    left += size

        await asyncio.gather(*[produce(f"{self.seed}.p{number}") for number in range(PRODUCERS)])
        return sent

    async def each(self, what: Callable[[str, list[Stored]], Awaitable[None]], most: int, until: float) -> None:
        """Lease everything that is ready until a moment (of the wall clock), and do something with it."""

        async def consume(name: str) -> None:
            door = self.client()
            while taken := await self._receive(door, name, most, max(0.1, until - time.time()), "at-least-once", 0):
                await what(name, taken)

        await asyncio.gather(*[consume(f"{self.seed}.l{number}") for number in range(CONSUMERS)])

    async def release(self, name: str, taken: list[Stored]) -> None:
        leases = [Lease(stored.message.id, stored.receipt or "") for stored in taken]
        operation = self.recorder.invoke(name, "release", [[lease.id, lease.receipt] for lease in leases])
        outcomes = await self._ask(operation, self.client().perform(calls.Release(self.queue, leases, 0)))
        if outcomes is not None:
            operation.ok(outcomes)

    async def consume(self, sizes: Sequence[int] = (100,)) -> None:
        """All consumers receive and ack until `working` ends."""

        async def consume(number: int) -> None:
            door, name = self.client(), f"{self.seed}.c{number}"
            while self.working:
                taken = await self._receive(door, name, sizes[number % len(sizes)], 30, "at-least-once", WAIT)
                if taken:
                    await self._ack(door, name, [Lease(stored.message.id, stored.receipt or "") for stored in taken])

        await asyncio.gather(*[consume(number) for number in range(CONSUMERS)])

    async def mixed(self) -> None:
        """Producers of single messages, batches and groups, and consumers that ack, release, extend and are late."""
        jobs = [self._sender(self.client(), f"s{number}") for number in range(PRODUCERS - 2)]
        jobs += [self._group_sender(self.client(), group) for group in "ab"]
        jobs += [self._worker(self.client(), f"w{number}") for number in range(CONSUMERS)]
        await asyncio.gather(*jobs)

    async def drained(self, amount: int) -> bool:
        """Wait until consumers have acked this many messages; whether they have."""
        before, since = self.done, time.monotonic()
        while self.done < amount:
            await asyncio.sleep(0.02)
            if self.done != before:
                before, since = self.done, time.monotonic()
            elif time.monotonic() > since + PATIENCE:
                return False
        return True

    async def drain(self) -> bool:
        """Take and ack everything that is left; whether nothing is."""
        return await self._drain(self.client())


async def _granted(answer: Awaitable[T]) -> T:
    """An answer to a call that no broker has a reason to refuse."""
    try:
        return await answer
    except REFUSED as error:
        raise AssertionError(f"a call was refused: {error}") from error
