"""The clients of a soak: producers, consumers, a reader of claims, a job that commits stages, an operator, and queues
that come and go. Each writes into the book what it was told.

Producers, consumers and the operator do not repeat a call whose answer was lost, so that the book has calls that may
or may not have taken effect. The others repeat it, as clients do by default.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import miniq
from miniq.api import operations as calls
from miniq.api.operation import Call
from miniq.api.shapes import StageId
from miniq.batch import ClaimGroup, Committed
from miniq.errors import Conflict, Denied, InvalidRequest, MiniQError, NotFound
from miniq.message import Draft, Lease, PlainDrafts, Stored
from tests.faults.books import ACKED, ASKED, DOUBT, MORTAL, PASSING, REMOVED, Book, HistoryBook, number_of

T = TypeVar("T")
WORK, DEAD, BRIEF, GROUPS, NAMED, ONCE, STREAM, STAGED, SCRAP, LATER = (
    "work", "work.dead", "brief", "groups", "named", "once", "stream", "staged", "scrap", "later"
)  # fmt: skip
LASTING = (WORK, DEAD, BRIEF, GROUPS, NAMED, ONCE, STREAM, STAGED, SCRAP, LATER)
REFUSED = (InvalidRequest, NotFound, Conflict, Denied)
BACKLOG = 20_000
"""Producers wait while more is queued."""
SIZES = (1, 1, 1, 1, 1, 1, 1, 1, 10, 10, 10, 50, 100, 300, 1000)
LEASE = 2.0
"""The longest lease, in seconds; ttl and delays are shorter, except in the queue `later`."""
BAD = 40
"""Of so many messages one is released again and again, and goes to the dead-letter queue."""
_PADDING = [b"x" * size for size in (8, 40, 200, 200, 1000)]


class Door(Protocol):
    """A client."""

    async def perform(self, call: Call[T]) -> T: ...


class Blocking:
    """A blocking client, used by threads."""

    def __init__(self, client: miniq.Client) -> None:
        self._client = client

    async def perform(self, call: Call[T]) -> T:
        return await asyncio.to_thread(self._client.perform, call)

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)


class Crew:
    """All clients, and the gate that holds them while the books are compared."""

    def __init__(self, book: Book, history: HistoryBook, seed: str) -> None:
        self.book = book
        self.history = history
        self.seed = seed
        self.stopping = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.calls = 0
        """Those that are under way."""
        self.idle = asyncio.Event()
        self.idle.set()
        self.backlog = 0
        self.up = asyncio.Event()
        """Cleared while there is no server: what is not under way then waits."""
        self.reading = asyncio.Lock()
        self.servers = 0
        """Servers that were started."""
        self.queues = 0
        """Queues that were created and deleted."""
        self.errors: set[str] = set()

    @asynccontextmanager
    async def under_way(self) -> AsyncIterator[None]:
        """A call, or several that belong together, which no comparison of the books may interrupt."""
        await self.gate.wait()
        self.calls += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls:
                self.idle.set()

    async def rest(self) -> None:
        """Hold all clients."""
        self.gate.clear()
        await self.idle.wait()

    def jobs(self, doors: list[Door], stubborn: Door) -> list[Awaitable[None]]:
        self._plain = doors[0]
        jobs: list[Awaitable[None]] = [self._repeat(f"p{n}", self._produce, door) for n, door in enumerate(doors)]
        jobs += [self._repeat(f"c{n}", self._consume, door) for n, door in enumerate([*doors, *doors])]
        jobs += [
            self._repeat(work.__name__, work, stubborn) for work in (self._name, self._stage, self._scrap, self._churn)
        ]
        jobs += [self._repeat("operator", self._operate, doors[0]), self._read_claims(stubborn)]
        return jobs

    async def _repeat(self, name: str, work: Callable[[Door, random.Random], Awaitable[None]], door: Door) -> None:
        chance = random.Random(f"{self.seed} {name}")
        while not self.stopping.is_set():
            async with self.under_way():
                await work(door, chance)
            await asyncio.sleep(chance.choice([0, 0.05, 0.3]))

    async def _ask(self, answer: Awaitable[T], unanswered: Callable[[], None]) -> T | None:
        """The answer, or None: refused, or lost."""
        await self.up.wait()
        try:
            return await answer
        except REFUSED as error:
            self.errors.add(error.code)
        except MiniQError as error:
            self.errors.add(error.code)
            unanswered()
            await asyncio.sleep(0.05)  # the server may just have been killed
        return None

    def _drafts(self, count: int, chance: random.Random, fields: dict[str, Any]) -> tuple[range, list[Draft]]:
        numbers = self.book.number(count)
        padding = chance.choice(_PADDING)
        return numbers, [Draft(b'[%d,"%b"]' % (number, padding), **fields) for number in numbers]

    async def _send(self, door: Door, queue: str, count: int, chance: random.Random, **fields: Any) -> range | None:
        """Send messages; their numbers, if they were confirmed."""
        book = self.book
        numbers, drafts = self._drafts(count, chance, fields)
        if "ttl" in fields:
            book.mark(numbers, MORTAL)
        server = self.servers
        ids = await self._ask(door.perform(calls.Send(queue, drafts)), lambda: book.mark(numbers, ASKED))
        if ids is None:
            return None
        self._repeated(server, count)
        book.sent(numbers)
        if len(set(ids)) != count:
            book.wrong.append(f"{count} messages were sent to {queue}, and got {len(set(ids))} ids")
        return numbers

    def _repeated(self, server: int, count: int) -> None:
        """If the server is another one by now, the client may have sent its messages twice."""
        if server != self.servers:
            self.book.open["deduplicated"] += count

    async def _produce(self, door: Door, chance: random.Random) -> None:
        if self.backlog > BACKLOG:
            return
        count = chance.choice(SIZES)
        kind = chance.randrange(9)
        if kind < 2:
            await self._send(door, WORK, count, chance)
        elif kind == 2:
            await self._send(door, WORK, count, chance, priority=chance.randrange(10))
        elif kind == 3:
            await self._send(door, WORK, count, chance, delay=chance.choice([0.1, 1]))
        elif kind == 4:
            await self._send(door, BRIEF, count, chance, ttl=chance.choice([0.2, 1, 2]))
        elif kind == 5:
            await self._send(door, GROUPS, min(count, 10), chance, group=chance.choice("abcdefghij"))
        elif kind == 6:
            await self._send(door, ONCE, count, chance)
        elif kind == 7:
            await self._send(door, STREAM, count, chance)
        else:
            await self._send(door, LATER, 1, chance, delay=40_000)

    async def _consume(self, door: Door, chance: random.Random) -> None:
        book = self.book
        queue = chance.choice([WORK, WORK, WORK, WORK, BRIEF, GROUPS, NAMED, ONCE, STAGED])
        most, wait, lease = (
            chance.choice([1, 10, 100, 1000, 1000]),
            chance.choice([0, 0.2]),
            chance.choice([0.3, LEASE]),
        )
        once = queue == ONCE

        def unanswered() -> None:
            book.open["received"] += most
            book.open["once"] += most if once else 0

        call = calls.Receive(queue, most, wait, lease, "soak", "at-most-once" if once else "at-least-once")
        asked = time.monotonic()
        taken = await self._ask(door.perform(call), unanswered)
        if not taken:
            return
        numbers = [number_of(stored) for stored in taken]
        book.received(numbers, asked)
        if once:
            book.counts["once"] += len(taken)
            book.acked(numbers)
            return
        leases = [Lease(stored.message.id, stored.receipt or "") for stored in taken]
        bad = [lease for lease, number in zip(leases, numbers, strict=True) if not number % BAD and chance.randrange(4)]
        if bad:
            await self._ask(door.perform(calls.Release(queue, bad)), lambda: None)
        what = chance.randrange(20)
        if what < 2:
            await self._ask(door.perform(calls.Release(queue, leases, chance.choice([0, 0.2]))), lambda: None)
            return
        if what == 2:
            await self._ask(door.perform(calls.Extend(queue, leases, LEASE)), lambda: None)
        elif what == 3:
            return  # the lease runs out
        elif what == 4:
            await asyncio.sleep(0.4)  # some leases have run out
        elif what == 5:
            half = len(leases) // 2
            await self._ack(door, queue, leases[half:], numbers[half:])
            return
        await self._ack(door, queue, leases, numbers)

    async def _ack(self, door: Door, queue: str, leases: list[Lease], numbers: list[int]) -> None:
        book, server = self.book, self.servers
        outcomes = await self._ask(door.perform(calls.Ack(queue, leases)), lambda: book.mark(numbers, DOUBT))
        if server != self.servers:
            book.mark(numbers, DOUBT)  # a client that had to ask twice takes what is gone for acked
        elif outcomes is not None:
            book.acked(number for number, outcome in zip(numbers, outcomes, strict=True) if outcome == "done")

    # What repeats its calls until they are answered

    async def _name(self, door: Door, chance: random.Random) -> None:
        """The same message several times, by its name."""
        book = self.book
        if self.history.scraped:
            return  # history does not record repetitions, so none is made which no scrape would see
        name = f"{self.seed}-{len(book.marks)}"
        first = second = None
        numbers, drafts = self._drafts(1, chance, {"dedup_id": name})
        first = await self._ask(door.perform(calls.Send(NAMED, drafts)), lambda: book.mark(numbers, ASKED))
        if first is None:
            return
        book.sent(numbers)
        for _ in range(chance.choice([0, 1, 2])):
            _, drafts = self._drafts(1, chance, {"dedup_id": name})
            second = await self._ask(door.perform(calls.Send(NAMED, drafts)), lambda: None)
            if second is not None:
                book.counts["deduplicated"] += 1
                if second != first:
                    book.wrong.append(f"{name} was sent again and got the id {second[0]} instead of {first[0]}")

    async def _stage(self, door: Door, chance: random.Random) -> None:
        """A batch of a job in two partitions, the second at the second attempt, committed once or twice."""
        book = self.book
        job, batch = f"job-{self.seed}", str(len(book.marks))
        numbers: list[int] = []
        for partition, attempt in (("0", "0"), ("1", "0"), ("1", "1")):
            made, drafts = self._drafts(chance.choice(SIZES), chance, {})
            call = calls.Upload(
                STAGED, job, batch, partition, attempt, 0, PlainDrafts([draft.body for draft in drafts])
            )
            if await self._ask(door.perform(call), lambda: None) is None:
                return
            if (partition, attempt) != ("1", "0"):
                numbers += made
        commit = calls.CommitStages(STAGED, job, batch, [StageId("0", "0"), StageId("1", "1")])
        server = self.servers
        committed = await self._ask(door.perform(commit), lambda: book.mark(numbers, ASKED))
        if committed is None:
            return
        self._repeated(server, len(numbers))
        book.sent(numbers)
        if committed.messages != len(numbers):
            book.wrong.append(f"a commit of {len(numbers)} messages added {committed.messages}")
        if chance.random() < 0.3 and not self.history.scraped:  # as in `_name`
            again = await self._ask(door.perform(commit), lambda: None)
            if again == Committed(len(numbers), repeated=True):
                book.counts["deduplicated"] += len(numbers)
            elif again is not None:
                book.wrong.append(f"a commit that was repeated said {again}")

    async def _scrap(self, door: Door, chance: random.Random) -> None:
        """Messages that are purged."""
        numbers = await self._send(door, SCRAP, chance.choice(SIZES), chance)
        if numbers is not None and await self._ask(door.perform(calls.Purge(SCRAP)), lambda: None) is not None:
            self.book.mark(numbers, REMOVED)
        elif numbers is not None:
            self.book.mark(numbers, DOUBT)

    async def _churn(self, door: Door, chance: random.Random) -> None:
        """A queue is created, used and deleted with what is in it."""
        book = self.book
        queue = f"{PASSING}-{len(book.marks)}"
        if await self._ask(door.perform(calls.Configure(queue, {"history": "events"})), lambda: None) is None:
            return
        numbers = list(await self._send(door, queue, chance.choice([1, 10, 100]), chance) or ())
        asked = time.monotonic()
        call = calls.Receive(queue, chance.choice([1, 50]), 0, LEASE)
        taken = await self._ask(self._plain.perform(call), lambda: book.open.update(received=50))
        if taken:
            received = [number_of(stored) for stored in taken]
            book.received(received, asked)
            await self._ack(door, queue, [Lease(one.message.id, one.receipt or "") for one in taken], received)
        try:
            await door.perform(calls.DeleteQueue(queue))
        except MiniQError as error:
            book.wrong.append(f"{queue} could not be deleted: {error}")
            return
        rest = [number for number in numbers if not book.marks[number] & ACKED]
        book.mark(rest, REMOVED)
        book.counts["deleted"] += len(rest)
        self.queues += 1

    async def _read_claims(self, door: Door) -> None:
        """Reads the stream in claims, each twice; releases some instead of acking them, and begins anew."""
        chance = random.Random(f"{self.seed} claims")
        group: ClaimGroup | None = None
        after = 0
        while not self.stopping.is_set():
            async with self.under_way():
                if group is None:
                    group = await self._ask(door.perform(calls.OpenClaims(STREAM, "readers")), lambda: None)
                    after = 0 if group is None else group.acked
                elif (number := await self._read_claim(door, chance, group.epoch, after)) is None:
                    group = None
                else:
                    after = number
            await asyncio.sleep(chance.choice([0, 0.1]))

    async def _read_claim(self, door: Door, chance: random.Random, epoch: int, after: int) -> int | None:
        """Take the next claim and ack it; the last number that was acked, or None if it was released instead."""
        book = self.book
        most = chance.choice([1, 100, 2000])
        asked = time.monotonic()
        found = await self._ask(
            door.perform(calls.NextClaim(STREAM, "readers", after, epoch, most, wait=0.1)), lambda: None
        )
        if found is None or found[0] is None:
            return after
        number = found[0].number
        numbers: list[int] = []
        again: list[int] = []
        for into in (numbers, again):
            for part in range(2):
                read = await self._ask(door.perform(calls.ReadClaim(STREAM, "readers", number, part, 2)), lambda: None)
                into += [number_of(stored) for stored in read or []]
        book.received(numbers, asked)
        if numbers != again or len(numbers) != found[0].messages:
            book.wrong.append(f"claim {number} of {found[0].messages} held {len(numbers)}, then {len(again)} messages")
        if chance.random() < 0.1:
            await self._ask(door.perform(calls.ReleaseClaims(STREAM, "readers", epoch)), lambda: None)
            return None
        acked = await self._ask(self._ack_claims(door, number, epoch), lambda: book.mark(numbers, DOUBT))
        if acked:
            book.acked(numbers)
        return number

    @staticmethod
    async def _ack_claims(door: Door, upto: int, epoch: int) -> bool:
        await door.perform(calls.AckClaims(STREAM, "readers", upto, epoch))
        return True

    # Operating

    async def _operate(self, door: Door, chance: random.Random) -> None:
        """What people and dashboards do."""
        book = self.book
        what = chance.randrange(6)
        if what == 0:
            page = await self._ask(door.perform(calls.Peek(chance.choice(LASTING), None, None, 100)), lambda: None)
            if page is not None and page.messages and page.messages[0].message.queue == WORK:
                await self._remove(door, page.messages[-1])
        elif what == 1:
            info = await self._ask(door.perform(calls.GetQueue(DEAD)), lambda: None)
            if info is not None and info.counts.total:
                most = info.counts.total + 1000  # others may die meanwhile

                def unanswered() -> None:
                    book.open["redriven"] += most

                moved = await self._ask(door.perform(calls.Redrive(DEAD)), unanswered)
                book.counts["redriven"] += 0 if moved is None else moved.moved
        elif what == 2:
            await self._ask(door.perform(calls.Stats()), lambda: None)
        elif what == 3:
            await self._ask(door.perform(calls.Peek(WORK, "leased", None, 1000)), lambda: None)
        elif what == 4:
            await self._ask(door.perform(calls.Trends()), lambda: None)
        else:
            listed = await self._ask(door.perform(calls.ListQueues()), lambda: None)
            self.backlog = sum(queue.counts.total for queue in listed or () if queue.name != LATER)

    async def _remove(self, door: Door, stored: Stored) -> None:
        """Remove one message, unless a consumer has it by now."""
        number = number_of(stored)
        try:
            await door.perform(calls.Remove(WORK, stored.message.id))
            self.book.mark([number], REMOVED)
        except REFUSED:
            pass
        except MiniQError:
            self.book.mark([number], DOUBT)

    async def read_history(self, door: Door) -> None:
        """Read the history to its end."""
        async with self.reading:
            while True:
                page = await door.perform(calls.History(self.history.offset, 1000))
                for record in page.records:
                    self.history.add(record)
                if len(page.records) < 1000:
                    return
