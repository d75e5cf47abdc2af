"""Producers and workers that live through faults: `python -m tests.faults.clients URL SEED SECONDS`.

They write down what they asked and what they were told (`history.py`), go on after every error, and at last drain
the queue. The line `drained` on stderr says that nothing is left. With the URL of a store the broker is in
this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

from miniq.api import operations as calls
from miniq.batch import ClaimGroup
from miniq.client._async.transport import AsyncTransport
from miniq.client.connection import _find
from miniq.errors import (
    BadRequest,
    Conflict,
    Denied,
    InvalidRequest,
    MiniQError,
    NotFound,
    StoreFailed,
    StoreUnavailable,
)
from miniq.message import SECOND, Draft, Lease, Mode, Outcome, Stored
from tests.faults.history import Operation, Recorder

T = TypeVar("T")
QUEUE = "work"
ONCE = "once"
"""The queue for receives at most once: there a lost answer excuses a lost message, so it is judged apart."""
READERS = "readers"
REFUSED = (InvalidRequest, NotFound, Conflict, Denied, BadRequest)
DRAIN_SECONDS = 25


class Crew:
    """All clients of one process."""

    def __init__(self, url: str, seed: str, queue: str = QUEUE, groups: str = "abc", claims: bool = True) -> None:
        self.url = url
        self.remote = url.startswith(("http:", "tcp:"))
        self.seed = seed
        self.queue = queue
        self.groups = groups
        self.claims = claims
        self.recorder = Recorder(1)
        self.working = True
        self.tokens = 0
        self.error: MiniQError | None = None
        """The last one that left a question open."""
        self.receipts: dict[str, str] = {}
        """The last receipt of each message."""

    async def run(self, seconds: float) -> bool:
        """Work for a while, then drain; whether nothing was left."""
        plain = await self._door(retry=0)
        stubborn = await self._door() if self.remote else plain
        await self._made(stubborn)
        jobs = [self._sender(plain, f"s{n}") for n in range(2)]
        jobs += [self._sender(stubborn, f"t{n}") for n in range(2)]
        jobs += [self._worker(plain, f"w{n}") for n in range(4)]
        if self.groups:
            jobs += [self._group_sender(plain, group) for group in self.groups]
        running = asyncio.gather(*jobs)
        reading = asyncio.create_task(self._reader(plain)) if self.claims else None
        await asyncio.sleep(seconds)
        self.working = False
        await running
        if reading is not None:
            await reading
        drained = await self._drain(plain)
        await plain.close()
        await stubborn.close()
        return drained

    async def _door(self, **options: Any) -> AsyncTransport:
        door, address = _find(self.url)
        return await door.open_async(address, options if self.remote else {})

    async def _made(self, door: AsyncTransport) -> None:
        while self.working:
            try:
                await door.perform(calls.Configure(self.queue, {"visibility_timeout": 2}))
                return
            except StoreUnavailable:
                await asyncio.sleep(0.05)

    def _chance(self, name: str) -> random.Random:
        return random.Random(f"{self.seed} {name}")

    def _drafts(self, count: int, **fields: Any) -> list[Draft]:
        made = []
        for _ in range(count):
            self.tokens += 1
            made.append(Draft(json.dumps(f"{self.seed}/{self.tokens}").encode(), **fields))
        return made

    async def _ask(self, operation: Operation, answer: Awaitable[T]) -> T | None:
        """The answer, or None: refused, or nobody knows. Who gets no answer lets some time pass."""
        try:
            return await answer
        except REFUSED as error:
            operation.fail(error.code)
        except StoreFailed as error:
            self.error = error
            operation.unknown(error.code)
            if not self.remote:
                os._exit(4)  # final for this process, as it says
        except MiniQError as error:
            self.error = error
            operation.unknown(error.code)
        await asyncio.sleep(0.02)
        return None

    async def _send(self, door: AsyncTransport, name: str, drafts: list[Draft]) -> bool:
        operation = self.recorder.invoke(name, "send", [[json.loads(d.body), d.group] for d in drafts])
        ids = await self._ask(operation, door.perform(calls.Send(self.queue, drafts)))
        if ids is not None:
            operation.ok(ids)
        return ids is not None

    async def _sender(self, door: AsyncTransport, name: str) -> None:
        chance = self._chance(name)
        while self.working:
            fields: dict[str, Any] = chance.choice([{}, {}, {"delay": 0.05}, {"priority": chance.randrange(10)}])
            await self._send(door, f"{self.seed}.{name}", self._drafts(chance.choice([1, 1, 5, 30]), **fields))
            await asyncio.sleep(chance.choice([0, 0.002, 0.01]))

    async def _group_sender(self, door: AsyncTransport, group: str) -> None:
        """One sender for each group, one message after the other: so their order is known."""
        chance = self._chance(group)
        while self.working:
            await self._send(door, f"{self.seed}.g{group}", self._drafts(1, group=f"{self.seed}{group}"))
            await asyncio.sleep(chance.choice([0.005, 0.02]))

    async def _receive(
        self, door: AsyncTransport, name: str, most: int, seconds: float, mode: Mode, wait: float = 0.05
    ) -> list[Stored]:
        once = mode == "at-most-once"
        operation = self.recorder.invoke(name, "receive", {"max": most, "once": once})
        call = calls.Receive(self.queue, most, wait, seconds, name, mode)
        taken = await self._ask(operation, door.perform(call))
        if taken is None:
            return []
        now = time.time_ns() // 1000
        operation.ok(
            [
                [
                    stored.message.id,
                    json.loads(stored.message.body),
                    stored.message.group,
                    stored.receives,
                    stored.receipt or "",
                    now if once else stored.visible_at - round(seconds * SECOND),
                    stored.visible_at,
                ]
                for stored in taken
            ]
        )
        return taken

    async def _worker(self, door: AsyncTransport, name: str) -> None:
        chance = self._chance(name)
        client = f"{self.seed}.{name}"
        while self.working:
            once = self.queue == ONCE and chance.random() < 0.5
            mode: Mode = "at-most-once" if once else "at-least-once"
            taken = await self._receive(door, client, chance.choice([1, 3, 20]), chance.choice([0.1, 0.5, 2]), mode)
            if once or not taken:
                continue
            await self._ack_late(door, client, taken, chance)
            await asyncio.sleep(chance.choice([0, 0, 0.01, 0.15]))
            leases = [Lease(stored.message.id, stored.receipt or "") for stored in taken]
            what = chance.randrange(8)
            if what < 5:
                await self._ack(door, client, leases)
                if what == 0:
                    await self._ack(door, client, leases)  # once more, as one does whose answer was lost
            elif what == 5:
                operation = self.recorder.invoke(client, "release", [[one.id, one.receipt] for one in leases])
                delay = chance.choice([0, 0.05])
                outcomes = await self._ask(operation, door.perform(calls.Release(self.queue, leases, delay)))
                if outcomes is not None:
                    operation.ok(outcomes)
            elif what == 6:
                operation = self.recorder.invoke(client, "extend", [[one.id, one.receipt] for one in leases])
                extended = await self._ask(operation, door.perform(calls.Extend(self.queue, leases, 1)))
                if extended is not None:
                    operation.ok([[outcome, extended.until] for outcome in extended.outcomes])

    async def _ack_late(self, door: AsyncTransport, client: str, taken: list[Stored], chance: random.Random) -> None:
        """Ack with the receipts of those who had the messages before, as they do who took too long."""
        late = [
            Lease(stored.message.id, self.receipts[stored.message.id])
            for stored in taken
            if stored.message.id in self.receipts
        ]
        self.receipts.update((stored.message.id, stored.receipt or "") for stored in taken)
        if late and chance.random() < 0.3:
            await self._ack(door, client, late)

    async def _reader(self, door: AsyncTransport) -> None:
        """Reads claims as Spark does: writes down what a claim holds before it asks for the next one, asks again when
        it got no answer, reads some a second time, and acks the last one at the end."""
        chance = self._chance("reader")
        client = f"{self.seed}.reader"
        group: ClaimGroup | None = None
        while group is None:
            try:
                group = await door.perform(calls.OpenClaims(self.queue, READERS))
            except InvalidRequest:
                return  # this kind of store keeps no claims
            except MiniQError:
                await asyncio.sleep(0.02)
        after = group.acked
        while self.working:
            operation = self.recorder.invoke(client, "claim", {"group": READERS, "after": after})
            found = await self._ask(operation, self._claim(door, after, group.epoch))
            if found is None:
                continue
            number, messages = found
            operation.ok({"claim": number, "messages": messages})
            if number is not None and chance.random() < 0.7:
                after = number
        ended = False
        while not ended:
            operation = self.recorder.invoke(client, "ack_claims", {"group": READERS, "upto": after})
            done = await self._ask(operation, self._end_claims(door, after, group.epoch))
            if done is not None:
                (operation.ok if done else operation.fail)()
                ended = True

    async def _claim(self, door: AsyncTransport, after: int, epoch: int) -> tuple[int | None, list[list[str]]]:
        claim, _ = await door.perform(calls.NextClaim(self.queue, READERS, after, epoch, 20, wait=0.05))
        if claim is None:
            return None, []
        held: list[Stored] = []
        for part in range(2):
            held += await door.perform(calls.ReadClaim(self.queue, READERS, claim.number, part, 2))
        return claim.number, [[stored.message.id, json.loads(stored.message.body)] for stored in held]

    async def _end_claims(self, door: AsyncTransport, upto: int, epoch: int) -> bool:
        """Ack what was read; what was not goes back to the others. All of it does, if the broker knows nothing of it
        any more, so that the drain comes to an end."""
        try:
            await door.perform(calls.AckClaims(self.queue, READERS, upto, epoch))
            await door.perform(calls.ReleaseClaims(self.queue, READERS, epoch))
        except REFUSED:
            group = await door.perform(calls.OpenClaims(self.queue, READERS))
            await door.perform(calls.ReleaseClaims(self.queue, READERS, group.epoch))
            return False
        return True

    async def _ack(self, door: AsyncTransport, client: str, leases: list[Lease]) -> list[Outcome]:
        """The outcomes, none if there was no answer."""
        operation = self.recorder.invoke(client, "ack", [[one.id, one.receipt] for one in leases])
        outcomes = await self._ask(operation, door.perform(calls.Ack(self.queue, leases)))
        if outcomes is not None:
            operation.ok(outcomes)
        return outcomes or []

    async def _drain(self, door: AsyncTransport) -> bool:
        """Take and ack everything, also what others still hold, once that comes back."""
        client = f"{self.seed}.drain"
        deadline = time.monotonic() + DRAIN_SECONDS
        while time.monotonic() < deadline:
            taken = await self._receive(door, client, 1000, 5, "at-least-once", 0.2)
            if taken:
                await self._ack(door, client, [Lease(stored.message.id, stored.receipt or "") for stored in taken])
                continue
            try:
                if (await door.perform(calls.GetQueue(self.queue))).counts.total == 0:
                    return True
            except MiniQError as error:
                self.error = error
                await asyncio.sleep(0.05)
        return False


async def main(url: str, seed: str, seconds: float, queue: str) -> int:
    crew = Crew(url, seed, queue)
    drained = await crew.run(seconds)
    print("drained" if drained else f"something is left; last error: {crew.error!r}", file=sys.stderr)
    return 0 if drained else 3


if __name__ == "__main__":
    given = [*sys.argv[1:], QUEUE]
    sys.exit(asyncio.run(main(given[0], given[1], float(given[2]), given[3])))
