"""A broker with a past: an hour of work, done in seconds on a clock that a test moves, then served for real."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn

from miniq.broker import Broker
from miniq.broker.clock import SystemClock
from miniq.broker.trends import ROWS, STEP
from miniq.message import SECOND, Draft, Lease
from miniq.options import Options
from miniq.server.busy_poll import BusyPoll
from miniq.server.server import _config, bind
from miniq.store import open_store

QUEUES = {"emails": 9.0, "orders.eu": 22.0, "orders.us": 14.0, "invoices": 1.5, "thumbnails": 6.0, "webhooks": 4.0}
"""Messages a second, on average."""
SUBJECTS = ("Welcome", "Your order has shipped", "Reset your password", "Invoice 4711")


ERRORS = tuple(
    f'{text}\n\n  File "shop/deliver.py", line {line}, in deliver\n    reply = post(order)'
    for text, line in (
        ("ConnectionError: hooks.example.com:443 refused", 41),
        ("ConnectionError: hooks.example.com:443 refused", 41),
        ("KeyError: 'country'", 57),
    )
)


class LateClock(SystemClock):
    """The system's clock, so much late."""

    late = 0

    def now(self) -> int:
        return super().now() - self.late

    def set(self, moment: int) -> None:
        self.late = super().now() - moment


async def work(broker: Broker, clock: LateClock, recorded: tuple[str, ...] = ("emails", "webhooks")) -> None:
    """An hour: waves of messages, workers that keep up more or less, and some that fail."""
    chance = random.Random(7)
    for name in QUEUES:
        changes = {"max_receives": 2, "retry": {"delay": 5}} if name in ("emails", "webhooks") else {}
        history = "events" if name in recorded else "off"
        await broker.configure(name, {"visibility_timeout": 120, "history": history, **changes})
    end = clock.now() // (STEP * SECOND) * STEP * SECOND  # the hour ends with an interval
    for row in range(ROWS + 1):
        moment = end - (ROWS - row) * STEP * SECOND
        clock.set(moment)
        for place, (name, rate) in enumerate(QUEUES.items()):
            wave = 1 + 0.6 * math.sin(row / (9 + 4 * place) + place) + chance.uniform(-0.2, 0.2)
            many = max(1, round(rate * STEP * wave / 10))
            await broker.send(name, [_draft(chance) for _ in range(many)])
            moment += SECOND // 5
            clock.set(moment)
            able = round(rate * STEP * (1.02 + 0.35 * math.sin(row / 17 + 2 * place)) / 10)
            taken = await broker.receive(name, max=max(1, able), consumer=f"{name}-{row % 3 + 1}")
            moment += round(
                chance.lognormvariate(-1.5, 0.6) * SECOND
            )  # what the work takes, in all queues less than a step
            clock.set(moment)
            leases = [Lease(one.message.id, one.receipt or "") for one in taken]
            bad = [lease for lease, one in zip(leases, taken, strict=True) if b"bounce" in one.message.body]
            good = [lease for lease in leases if lease not in bad]
            if good:
                await broker.ack(name, good)
            if bad:
                await broker.deliveries.fail(name, bad, chance.choice(ERRORS))
        if row in (20, ROWS * 4 // 5):  # a nightly job, whose worker is gone since
            await broker.send("reports", [_draft(chance) for _ in range(40)])
            if row == 20:
                for one in await broker.receive("reports", max=100, consumer="reports-1"):
                    await broker.ack("reports", [Lease(one.message.id, one.receipt or "")])
        if row > ROWS - 6:  # work that takes long
            for name, many in (("emails", 2), ("orders.eu", 5), ("thumbnails", 1)):
                await broker.receive(name, max=many, consumer=f"{name}-2", visibility_timeout=900)
        if row == ROWS:
            await broker.send("emails", [Draft(b'{"later": true}', delay=1800) for _ in range(3)])
        await broker.trends.tick()


def _draft(chance: random.Random) -> Draft:
    to = f"person{chance.randint(100, 999)}@example.com"
    bounce = ', "bounce": true' if chance.random() < 0.01 else ""
    text = f'{{"to": "{to}", "subject": "{chance.choice(SUBJECTS)}"{bounce}, "order": {chance.randint(10000, 99999)}}}'
    return Draft(text.encode(), key=f"order-{chance.randint(1000, 9999)}", headers={"tenant": "acme"})


async def history(broker: Broker, clock: LateClock) -> None:
    """The same, with a history of all queues."""
    await work(broker, clock, tuple(QUEUES))


async def trouble(broker: Broker, clock: LateClock) -> None:
    """A queue that nobody consumes, one whose consumer fails on every third message, one with a stuck claim, and some
    that are fine; also dead letters, and a queue that is paused."""
    await broker.configure("payments", {"history": "events", "retry": {"delay": 3600}})
    await broker.configure("paused", {"paused": True})
    clock.late = 30 * 60 * SECOND
    for name, many in (("orders", 465), ("etl", 40), ("fine", 60), ("payments", 90), ("paused", 7), ("mail", 12)):
        await broker.send(
            name, [Draft(b'{"order": %d, "lines": [{"sku": "A-1", "count": 2}]}' % n) for n in range(many)]
        )
    for minutes in range(29, -1, -1):
        clock.late = minutes * 60 * SECOND
        if minutes == 14:
            await broker.claims.next("etl", "nightly", 0, max_messages=25)
        if minutes >= 12:
            await _settle(broker, "orders", "web-1")
        await _settle(broker, "fine", "fine-1")
        for _ in range(3):
            await _settle(broker, "payments", "worker-7")
        await broker.trends.tick()
    for number in range(3):
        [one] = await broker.receive("mail", consumer="mailer")
        error = f'ConnectionError: 10.0.0.{number} refused\n\n  File "mail.py", line 12, in send\n    connect(host)'
        await broker.deliveries.fail("mail", [Lease(one.message.id, one.receipt or "")], error, dead=True)
    for one in await broker.receive("mail", max=100, consumer="mailer"):
        await broker.ack("mail", [Lease(one.message.id, one.receipt or "")])


async def graded(broker: Broker, clock: LateClock) -> None:
    """A queue of which every other message fails, one of which every eighth does, and one whose worker went away before
    the messages came."""
    for minutes, many in ((55, 1), (12, 40)):
        clock.late = minutes * 60 * SECOND
        await broker.send("late", [Draft(b"1") for _ in range(many)])
        if minutes == 55:
            [one] = await broker.receive("late", consumer="gone")
            await broker.ack("late", [Lease(one.message.id, one.receipt or "")])
    clock.late = 0
    for name, of in (("often", 2), ("seldom", 8)):
        await broker.send(name, [Draft(b"1") for _ in range(40)])
        leases = [Lease(one.message.id, one.receipt or "") for one in await broker.receive(name, max=40, consumer="a")]
        await broker.deliveries.fail(name, leases[: 40 // of], "KeyError: 'country'", delay=600)
        await broker.ack(name, leases[40 // of :])


async def gone(broker: Broker, clock: LateClock) -> None:
    """A queue whose consumers were seen less than five minutes ago, and have died since."""
    clock.late = 4 * 60 * SECOND
    await broker.send("jobs", [Draft(b"1") for _ in range(4)])
    for number in range(2):
        for one in await broker.receive("jobs", consumer=f"worker-{number}"):
            await broker.ack("jobs", [Lease(one.message.id, one.receipt or "")])
    clock.late = 0


async def _settle(broker: Broker, queue: str, consumer: str) -> None:
    """A consumer works on a message; that of `payments` fails on every third."""
    for one in await broker.receive(queue, consumer=consumer):
        lease = Lease(one.message.id, one.receipt or "")
        if queue == "payments" and int(one.message.body.split(b",")[0][10:]) % 3 == 0:
            await broker.deliveries.fail(queue, [lease], 'ValueError: no such card\n\n  File "pay.py", line 7, in pay')
        else:
            await broker.ack(queue, [lease])


@contextmanager
def staged(work: Callable[[Broker, LateClock], Awaitable[None]] = work, goes_on: bool = True) -> Iterator[str]:
    """The address of such a broker, on which work goes on."""
    listener = bind("127.0.0.1", 0)
    ready, done = threading.Event(), threading.Event()

    async def run() -> None:
        clock = LateClock()
        options = Options(store="memory:", upkeep_interval=0)
        async with Broker(open_store(options.store, options), options, clock) as broker:
            await work(broker, clock)
            broker.background.spawn(broker.trends.run())
            server = uvicorn.Server(_config(broker, options, BusyPoll(0)))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:  # noqa: ASYNC110  uvicorn tells nobody
                await asyncio.sleep(0.01)
            ready.set()
            due = dict.fromkeys(QUEUES, 0.0)
            while not done.is_set():
                # Work goes on, so that there is something to see.
                for name, rate in QUEUES.items() if goes_on else ():
                    due[name] += 1.3 * rate / 10 / 5
                    if due[name] >= 1:
                        due[name] -= 1
                        await broker.send(name, [_draft(random.Random(time.time_ns()))])
                        for one in await broker.receive(name):
                            await broker.ack(name, [Lease(one.message.id, one.receipt or "")])
                await asyncio.sleep(0.2)
            broker.begin_shutdown()
            server.should_exit = True
            await serving

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        done.set()
        thread.join(30)
        listener.close()
