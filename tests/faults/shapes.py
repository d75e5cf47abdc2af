"""The rows of a drill, one function each: faults under mixed load, and queues of a size and form that once was slow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from miniq.api import operations as calls
from miniq.message import Counts, Status
from tests import postgresql
from tests.acceptance.client_wires import Cut, Proxy
from tests.faults.drill_crew import PRODUCERS, DrillCrew
from tests.faults.drill_stage import Shape, Stage
from tests.faults.history import Operation, Recorder, Type

PACE = 8000
"""Messages per second that are sent or leased at least, by which a common end of leases or delays is chosen."""
LOOK = 0.5
"""Seconds between two looks at the counts of a queue, as a console or Prometheus does."""
DEPTH = 1000
"""Messages that stand in a queue through which very many go."""


def plain(number: int) -> dict[str, Any]:
    """Messages that differ only in their bodies, and may share what a store keeps of them."""
    return {}


def various(number: int) -> dict[str, Any]:
    """Messages that share nothing."""
    return {"key": f"k{number}"}


# Faults


@contextlib.asynccontextmanager
async def mixed_load(stage: Stage, crew: DrillCrew) -> AsyncIterator[None]:
    """All clients are at work; then nothing is left."""
    await crew.ask(calls.Configure(crew.queue, {"visibility_timeout": 2}), within=10)
    working = asyncio.create_task(crew.mixed())
    await asyncio.sleep(0.3)
    stage.watch.expect()
    try:
        yield
        stage.watch.rest()
    finally:
        crew.working = False
        await working
    stage.equal("the queue was drained", await crew.drain(), True)


async def brokers_killed(stage: Stage, seconds: int) -> None:
    """kill -9 of one broker after the other."""
    crew, chance, ends = stage.crew(), random.Random(seconds), time.monotonic() + seconds
    async with mixed_load(stage, crew):
        for number in range(10**6):
            broker = stage.drill.brokers[number % len(stage.drill.brokers)]
            await asyncio.sleep(chance.uniform(0.3, 1.5))
            await asyncio.to_thread(broker.stop, signal.SIGKILL)
            stage.say(f"{number + 1} brokers killed, {crew.done:,} messages acked")
            await asyncio.sleep(chance.uniform(0, 1))
            await asyncio.to_thread(broker.start)
            if time.monotonic() > ends:
                return


async def _database_ends(stage: Stage, seconds: int, end: Callable[[], None]) -> None:
    crew, chance, ends = stage.crew(), random.Random(seconds), time.monotonic() + seconds
    database = stage.drill.database

    def start_anew() -> None:
        end()
        database.start()
        database.wait()

    async with mixed_load(stage, crew):
        for number in range(10**6):
            await asyncio.sleep(chance.uniform(0.5, 2))
            with stage.down():
                await asyncio.to_thread(start_anew)
            stage.say(f"the database ended {number + 1} times, {crew.done:,} messages acked")
            await asyncio.sleep(1)
            if time.monotonic() > ends:
                return


async def database_killed(stage: Stage, seconds: int) -> None:
    """kill -9 of the database, and a start at once."""
    await _database_ends(stage, seconds, stage.drill.database.kill)


async def database_restarted(stage: Stage, seconds: int) -> None:
    """As `pg_ctl restart -m immediate` does; MongoDB gets SIGTERM."""
    database = stage.drill.database

    def end() -> None:
        os.kill(database.process.pid, signal.SIGQUIT if isinstance(database, postgresql.Server) else signal.SIGTERM)
        database.process.wait(60)

    await _database_ends(stage, seconds, end)


async def connections_cut(stage: Stage, seconds: int) -> None:
    """Connections to the database are cut after some bytes, and sometimes all at once. Three more brokers, which are on
    the other side of a proxy."""
    chance, ends = random.Random(seconds), time.monotonic() + seconds
    drill = stage.drill
    async with contextlib.AsyncExitStack() as stack:
        proxy = stack.enter_context(Proxy(f"db://127.0.0.1:{drill.database.port}"))
        _, doors = await drill.serve(stack, drill.url.replace(f":{drill.database.port}", f":{proxy.port}"))
        crew = stage.crew(doors=doors)
        async with mixed_load(stage, crew):
            while time.monotonic() < ends:
                most = chance.randrange(5000)
                proxy.cuts = [Cut(request=most) if chance.random() < 0.5 else Cut(answer=most)]
                await asyncio.sleep(chance.uniform(0, 0.3))
                if chance.random() < 0.3:
                    proxy.drop_all()
            proxy.cuts = []


# Shapes


@contextlib.asynccontextmanager
async def looking(crew: DrillCrew, *more: str) -> AsyncIterator[list[Counts]]:
    """The counts of some queues are asked for again and again."""
    seen: list[Counts] = []

    async def look() -> None:
        while True:
            seen.extend([(await crew.ask(calls.GetQueue(queue))).counts for queue in (crew.queue, *more)])
            await asyncio.sleep(LOOK)

    task = asyncio.create_task(look())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def counts(crew: DrillCrew) -> tuple[int, int, int]:
    """Ready, delayed and leased messages."""
    found = (await crew.ask(calls.GetQueue(crew.queue))).counts
    return found.ready, found.delayed, found.leased


async def consumed(stage: Stage, crew: DrillCrew, sizes: tuple[int, ...] = (100,), *more: str) -> None:
    """All messages of the crew are delivered and acked, and then the queue is empty."""
    total = crew.sent
    stage.watch.expect()
    consuming = asyncio.create_task(crew.consume(sizes))
    async with looking(crew, *more):
        stage.equal("all messages were acked", await crew.drained(total), True)
    stage.watch.rest()
    crew.working = False
    await consuming
    stage.equal("counts after all were acked", await counts(crew), (0, 0, 0))


@contextlib.asynccontextmanager
async def other_queue(stage: Stage) -> AsyncIterator[DrillCrew]:
    """Steady traffic in another queue, which must not stand still."""
    crew = stage.crew("other")

    async def produce(name: str) -> None:
        door = crew.client()
        while crew.working:
            await crew._send(door, name, crew.drafts(10, plain))
            await asyncio.sleep(0.05)

    producing = [asyncio.create_task(produce(f"{crew.seed}.p{number}")) for number in range(PRODUCERS)]
    consuming = asyncio.create_task(crew.consume((10,)))
    await asyncio.sleep(0.2)
    stage.watch.expect()
    try:
        yield crew
        stage.watch.rest()
    finally:
        crew.working = False
        await asyncio.gather(*producing, consuming)
    stage.equal("the other queue was drained", await crew.drain(), True)


async def until_moment(moment: float) -> None:
    await asyncio.sleep(max(0.0, moment - time.time()))


async def leases_end(stage: Stage, count: int) -> None:
    crew = stage.crew()
    stage.say("sending")
    await crew.fill(count, various)
    end = time.time() + 1 + count / PACE
    stage.say("leasing")

    async def keep(name: str, taken: list[Any]) -> None:
        pass

    await crew.each(keep, 1000, end)
    late = time.time() > end
    stage.equal("leased until a moment that has not come", (late, await counts(crew)), (False, (0, 0, count)))
    await until_moment(end)
    stage.say("all leases have ended")
    await consumed(stage, crew)


async def delays_end(stage: Stage, count: int) -> None:
    crew = stage.crew()
    end = time.time() + 1 + count / PACE
    stage.say("sending")
    await crew.fill(count, lambda number: various(number) | {"delay": max(0.001, end - time.time())})
    stage.equal("ready before the delays end", (time.time() > end, (await counts(crew))[0]), (False, 0))
    await until_moment(end)
    stage.say("all delays have ended")
    await consumed(stage, crew)


async def groups_emptied(stage: Stage, count: int) -> None:
    """Every second group has a second message."""
    crew = stage.crew()
    await crew.fill(count, lambda number: {"group": f"g{number}"})
    await crew.fill(count // 2, lambda number: {"group": f"g{2 * (number - count)}"})
    await consumed(stage, crew, (100, 1000))


async def deep_backlog(stage: Stage, count: int) -> None:
    crew = stage.crew()
    stage.say("sending")
    await crew.fill(count, plain)
    stage.equal("counts of the backlog", await counts(crew), (count, 0, 0))
    producing = asyncio.create_task(crew.fill(count // 10, plain, batch=10))
    stage.say("consuming, while more arrives")
    stage.watch.expect()
    consuming = asyncio.create_task(crew.consume((1, 10, 100)))
    async with looking(crew):
        await producing
    stage.watch.rest()
    crew.working = False
    await consuming
    crew.working = True
    await consumed(stage, crew, (1000, 100))


async def dedup_ids(stage: Stage, count: int) -> None:
    """All are sent twice; and some once more when the window has passed, while their records are removed."""
    crew = stage.crew()
    window = 2 + 3 * count / PACE
    await crew.ask(calls.Configure(crew.queue, {"dedup_window": window}))
    stage.say("sending")
    sent = await crew.fill(count, lambda number: {"dedup_id": f"d{number}"})
    passed = time.time() + window
    stage.say("sending all of them again")

    async def again(drafts: list[list[Any]]) -> None:
        for batch in drafts:
            await crew._send(crew.client(), f"{crew.seed}.again", batch)
            crew.sent -= len(batch)

    await asyncio.gather(*[again(sent[place::PRODUCERS]) for place in range(PRODUCERS)])
    early = time.time() < passed - window / 10
    stage.equal("sent twice within the window, and there once", (early, await counts(crew)), (True, (count, 0, 0)))
    await consumed(stage, crew)
    await until_moment(passed)
    crew.working = True
    names = iter(range(1, count))
    await crew.fill(count // 10, lambda number: {"dedup_id": f"d{next(names)}"})
    async with other_queue(stage):
        await asyncio.sleep(min(10.0, count / 5000))
    await consumed(stage, crew)


async def purge(stage: Stage, count: int) -> None:
    """Ready, delayed and leased messages, in rows of their own or not; senders and consumers go on."""
    crew = stage.crew("unrecorded")
    crew.recorder = Unrecorded()
    stage.say("sending")
    await crew.fill(count // 2, plain)
    await crew.fill(count - count // 2, lambda number: various(number) | ({"delay": 600} if number % 5 == 0 else {}))
    await asyncio.gather(*[crew.ask(calls.Receive(crew.queue, 1000, visibility_timeout=600)) for _ in range(8)])
    async with other_queue(stage):
        stage.say("purging")
        async with looking(crew) as seen:
            stage.equal("purged", await crew.ask(calls.Purge(crew.queue)), count)
        partly = sorted({found.total for found in seen} - {0, count})
        stage.equal("numbers of messages seen between all and none", partly, [])
        stage.equal("counts after the purge", await counts(crew), (0, 0, 0))
        await crew.ask(calls.Send(crew.queue, crew.drafts(10, plain)))
        stage.equal("received after the purge", len(await crew.ask(calls.Receive(crew.queue, 1000))), 10)
        await asyncio.sleep(0.5)


async def redrive(stage: Stage, count: int) -> None:
    """All are given back once too often, and moved back from the dead-letter queue."""
    stage.unpromised = "I5"  # a message that is redriven counts its receives anew
    crew = stage.crew()
    dead = f"{crew.queue}.dead"
    await crew.ask(calls.Configure(crew.queue, {"max_receives": 1}))
    stage.say("sending")
    await crew.fill(count, various)
    stage.say("given back once too often")
    await crew.each(crew.release, 1000, time.time() + 600)
    stage.equal("counts before the redrive", await counts(crew), (0, 0, 0))
    stage.equal("dead letters", (await crew.ask(calls.GetQueue(dead))).counts.ready, count)
    stage.say("redriving")
    redriving = asyncio.create_task(crew.ask(calls.Redrive(dead)))
    await consumed(stage, crew, (100,), dead)
    await redriving
    stage.equal("dead letters after the redrive", (await crew.ask(calls.GetQueue(dead))).counts.total, 0)


async def long_history(stage: Stage, count: int) -> None:
    """Three events for each message; one reader follows, and one reads all of it afterwards."""
    crew = stage.crew()
    await crew.ask(calls.Configure(crew.queue, {"history": "events"}))
    before = (await crew.ask(calls.History(limit=1))).last
    messages = count // 3
    stage.say("sending and consuming")

    async def follow() -> tuple[Counter[str], int]:
        events: Counter[str] = Counter()
        after = before
        while events.total() < 3 * messages:
            page = await crew.ask(calls.History(after=after, limit=1000))
            for record in page.records:
                events[record.event.event] += 1
                if record.offset != after + 1:
                    stage.wrong.append(f"the offset after {after} is {record.offset}")
                after = record.offset
            if not page.records:
                await asyncio.sleep(0.05)
        return events, after

    following = asyncio.create_task(follow())
    await crew.fill(messages, plain, batch=100)
    await consumed(stage, crew)
    expected = dict.fromkeys(("sent", "received", "acked"), messages)
    events, last = await asyncio.wait_for(following, 120)
    stage.equal("events as they happened", dict(events), expected)
    stage.say("reading the history of the queue again")
    after, again = before, 0
    while after < last:
        page = await crew.ask(calls.History(after=after, limit=1000, queue=crew.queue))
        again += len(page.records)
        if page.next == after:
            break
        after = page.next
    stage.equal("events when read again", again, sum(expected.values()))


async def browse(stage: Stage, count: int) -> None:
    """Pages of all states to the end, and a search for what only the last message has; others send and consume."""
    crew = stage.crew()
    crew.recorder = Unrecorded()
    stage.say("sending")
    await crew.fill(count - count // 10, plain)
    await crew.fill(count // 10, lambda number: various(number) | {"delay": 600})
    await crew.ask(calls.Receive(crew.queue, min(1000, count // 20), visibility_timeout=600))
    leased = min(1000, count // 20)
    expected: dict[Status | None, int] = {None: count, "leased": leased, "delayed": count // 10}
    expected["ready"] = count - leased - count // 10

    async def pages(**asked: Any) -> int:
        after, found = None, 0
        while True:
            page = await crew.ask(calls.Peek(crew.queue, after=after, limit=1000, **asked))
            found += len(page.messages)
            if (after := page.next) is None:
                return found

    async with other_queue(stage), looking(crew):
        for status, number in expected.items():
            stage.say(f"browsing {status or 'all'}")
            stage.equal(f"messages found by browsing {status or 'all'}", await pages(status=status), number)
        stage.say("searching")
        stage.equal("found by searching", await pages(find=f"k{crew.tokens}"), 1)
    await crew.ask(calls.DeleteQueue(crew.queue))


async def churn(stage: Stage, count: int) -> None:
    """Very many messages go through a queue that is never long. The last tenth must not take much longer."""
    crew = stage.crew()
    await crew.ask(calls.Configure(crew.queue, {}))
    paces: list[float] = []

    async def produce(name: str) -> None:
        door = crew.client()
        while crew.sent < count:
            if crew.sent - crew.done < DEPTH:
                await crew._send(door, name, crew.drafts(min(100, count), plain))
            else:
                await asyncio.sleep(0.002)

    async def measure() -> None:
        at, before = 0, time.monotonic()
        while True:
            await asyncio.sleep(0.02)
            if crew.done >= at + count // 10:
                now = time.monotonic()
                paces.append((crew.done - at) / (now - before))
                at, before = crew.done, now
                stage.say(f"{crew.done:,} messages, {paces[-1]:,.0f} per second")

    measuring = asyncio.create_task(measure())
    stage.watch.expect()
    consuming = asyncio.create_task(crew.consume())
    async with looking(crew):
        await asyncio.gather(*[produce(f"{crew.seed}.p{number}") for number in range(PRODUCERS)])
    stage.watch.rest()
    stage.equal("all messages were acked", await crew.drained(crew.sent), True)
    measuring.cancel()
    crew.working = False
    await consuming
    stage.equal("counts at the end", await counts(crew), (0, 0, 0))
    if count > 100_000 and len(paces) > 1 and paces[-1] < max(paces[:2]) / 3:
        stage.wrong.append(f"{paces[0]:,.0f} messages per second at first, {paces[-1]:,.0f} at last")


class Unrecorded(Recorder):
    """The recorder of clients whose messages are purged, or only looked at."""

    def __init__(self) -> None:
        super().__init__(-1)

    def write(self, operation: Operation, type: Type, value: Any) -> None:
        pass


SHAPES = [
    Shape("kill -9 of brokers", brokers_killed, 40, "s", least=2),
    Shape("kill -9 of the database", database_killed, 40, "s", least=2),
    Shape("immediate restart of the database", database_restarted, 40, "s", least=2),
    Shape("connections to the database cut", connections_cut, 40, "s", least=2),
    Shape("leases that end at once", leases_end, 100_000),
    Shape("delays that end at once", delays_end, 100_000),
    Shape("groups emptied", groups_emptied, 50_000, "groups"),
    Shape("deep backlog", deep_backlog, 300_000),
    Shape("dedup ids", dedup_ids, 100_000),
    Shape("purge", purge, 500_000),
    Shape("redrive", redrive, 100_000),
    Shape("history", long_history, 500_000, "events"),
    Shape("browse and search", browse, 300_000),
    Shape("churn at a depth of 1,000", churn, 750_000),
]
