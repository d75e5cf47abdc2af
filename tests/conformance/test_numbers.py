"""Metrics, history and counts tell the same: on every store, whoever noticed what happened.

Random calls by all the brokers that a store may have; `MINIQ_SEEDS` sets how many runs are tried (1 by default).
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from miniq.batch import StageName
from miniq.broker import Broker
from miniq.errors import ClaimGone, IdempotencyMismatch, MessageLeased, MessageNotFound, QueueFull, StaleReceipt
from miniq.message import SECOND, Draft, Lease
from miniq.options import Options
from miniq.server.http import prometheus
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import draft, leases, send

SEEDS = range(int(os.environ.get("MINIQ_SEEDS", "1")))
STEPS, STEPS_IN_A_DATABASE = 150, 60
CHECK_EVERY = 10
QUEUES: dict[str, dict[str, Any]] = {
    "a": {"max_receives": 2},
    "b": {"retention": 60, "dedup_window": 20, "max_length": 40, "dead_letter_queue": "a.dead"},
    "a.dead": {"retention": 100},
}
LEAVES = ("acked", "expired", "purged", "dead", "redriven")
"""The events by which a message leaves its queue."""
UNTOLD = ("extended", "deduplicated")
"""What is counted in metrics only."""
REFUSED = (MessageLeased, MessageNotFound, StaleReceipt, QueueFull, IdempotencyMismatch, ClaimGone)


class Run:
    """Random calls, and what the callers know of them."""

    def __init__(self, url: str, clock: FrozenClock, seed: int) -> None:
        self.url = url
        self.clock = clock
        self.random = Random(seed)
        self.brokers: list[Broker] = []
        self.earlier: Counter[tuple[str, str]] = Counter()
        """The metrics of brokers that were closed."""
        self.told: Counter[tuple[str, str]] = Counter()
        """Events in the history."""
        self.by_callers: Counter[str] = Counter()
        """Messages that were sent to each queue, not moved."""
        self.offset = 0
        self.given: Counter[str] = Counter()
        """Messages that senders got ids for."""
        self.handed: Counter[str] = Counter()
        """Messages that consumers and readers of claims got."""
        self.held: dict[str, list[Lease]] = {queue: [] for queue in QUEUES}
        self.claimed: Counter[str] = Counter()
        self.copied = self.copies = 0
        """Copies of publications, by the topic's counters of brokers that were closed, and by the history."""
        self.batch = 0
        self.done: list[str] = []

    async def open(self) -> None:
        store = open_store(self.url)
        for one in (store, open_store(self.url)) if store.shared else (store,):
            broker = Broker(one, Options(upkeep_interval=0, refresh_interval=0), self.clock)
            await broker.open()
            self.brokers.append(broker)
            await broker.configure("default", {"history": "events"})
            for queue, settings in QUEUES.items():
                await broker.configure(queue, settings | {"history": "events"})
        await self.subscribe()
        await self.refresh()

    async def subscribe(self) -> None:
        for queue, pattern in (("a", "a.#"), ("b", "#.b"), ("b", "*")):
            await self.brokers[0].topics.subscribe("t", f"{queue}-{len(pattern)}", queue, pattern)

    async def refresh(self) -> None:
        for broker in self.brokers:
            await broker.catalog.refresh()

    async def close(self) -> None:
        for broker in self.brokers:
            self.earlier += broker.metrics.messages
            self.copied += broker.topics.counters["t", "copied"]
            await broker.close()
        self.brokers.clear()

    async def step(self) -> None:
        calls = [
            *[self.send] * 5, *[self.publish] * 2, *[self.receive] * 5, *[self.ack] * 3, *[self.fail] * 2, self.release,
            self.extend, self.remove, self.edit, self.ack_by_id, self.edit_by_id, *[self.claim] * 2,
            self.release_claims, self.stage, self.redrive, *[self.upkeep] * 2, *[self.wait] * 4,
        ]  # fmt: skip
        if self.random.random() < 0.05:
            calls = [self.purge, self.delete, self.restart]
        call = self.random.choice(calls)
        queue = self.random.choice(list(QUEUES))
        self.done.append(f"{call.__name__}({queue})")
        with suppress(*REFUSED):
            await call(self.random.choice(self.brokers), queue)

    def draft(self) -> Draft:
        some = self.random.choice
        fields: dict[str, Any] = {"delay": some([None, None, None, 5]), "ttl": some([None, None, 4, 30])}
        if some([True, False]):
            fields |= {"group": some([None, "g", "h"]), "dedup_id": some([None, "d", "e"]), "priority": some([0, 5])}
        return draft(self.random.randrange(1000), **fields)

    async def send(self, broker: Broker, queue: str) -> None:
        drafts = [self.draft() for _ in range(self.random.choice([1, 1, 3, 9]))]
        call = None
        if self.random.random() < 0.3:
            call = self.random.choice("xyz")
            drafts = [draft(call, dedup_id=self.random.choice([None, "d"]))] * 2
        if self.random.random() < 0.3:
            drafts = [draft(1)] * 3  # a plain batch
        self.given[queue] += len(await broker.send(queue, drafts, call))

    async def publish(self, broker: Broker, queue: str) -> None:
        """To both queues, to one or to none, with each key."""
        keys = self.random.choice([["a.b"], ["a.x"], ["b"], ["x.y"], ["a", "x.b", "x.y", "a.b"]])
        drafts = [replace(self.draft(), key=key) for key in keys]
        call = self.random.choice([None, None, "v"])
        if call is not None:
            drafts = [draft(call, key="a.b"), draft(call, key="b")]
        await broker.publish("t", drafts, call)

    async def receive(self, broker: Broker, queue: str) -> None:
        some = self.random.choice
        mode = some(["at-least-once"] * 4 + ["at-most-once"])
        got = await broker.receive(queue, max=some([1, 3, 10]), visibility_timeout=some([0, 3, 20]), mode=mode)
        self.handed[queue] += len(got)
        if mode == "at-least-once":
            self.held[queue] += leases(got)

    def some_held(self, queue: str) -> list[Lease]:
        held = self.held[queue]
        return [held.pop(self.random.randrange(len(held))) for _ in range(min(len(held), self.random.randint(1, 4)))]

    async def ack(self, broker: Broker, queue: str) -> None:
        if some := self.some_held(queue):
            await broker.ack(queue, some)

    async def release(self, broker: Broker, queue: str) -> None:
        if some := self.some_held(queue):
            await broker.release(queue, some, delay=self.random.choice([0, 5]))

    async def fail(self, broker: Broker, queue: str) -> None:
        if some := self.some_held(queue):
            delay, dead = self.random.choice([(None, False), (0, False), (None, queue != "a.dead")])
            await broker.deliveries.fail(queue, some, "boom", delay, dead)

    async def extend(self, broker: Broker, queue: str) -> None:
        if some := self.some_held(queue):
            await broker.extend(queue, some, self.random.choice([0, 10]))
            self.held[queue] += some

    async def any_id(self, broker: Broker, queue: str) -> str:
        found = sorted(stored.message.id for stored in (await broker.peek(queue)).messages)
        return self.random.choice(found or ["none"])

    async def remove(self, broker: Broker, queue: str) -> None:
        some = self.some_held(queue)
        if some and self.random.random() < 0.5:
            await broker.remove(queue, some[0].id, some[0].receipt)
        else:
            await broker.remove(queue, await self.any_id(broker, queue))

    async def edit(self, broker: Broker, queue: str) -> None:
        change = self.random.choice([{"delay": 5}, {"delay": 0}, {"body": b"2"}, {"priority": 3}])
        await broker.edit(queue, await self.any_id(broker, queue), **change)

    async def ack_by_id(self, broker: Broker, queue: str) -> None:
        await broker.ack_by_id(queue, await self.any_id(broker, queue))

    async def edit_by_id(self, broker: Broker, queue: str) -> None:
        await broker.edit_by_id(queue, await self.any_id(broker, queue), b"3", "application/json")

    async def claim(self, broker: Broker, queue: str) -> None:
        after = max(0, self.claimed[queue] - self.random.choice([0, 0, 1]))
        claim, _ = await broker.claims.next(queue, "r", after, max_messages=self.random.choice([1, 4, 20]))
        if claim is not None:
            await broker.claims.fetch(queue, "r", claim.number)
        if claim is not None and claim.number > self.claimed[queue]:
            self.claimed[queue] = claim.number
            self.handed[queue] += claim.messages
        elif self.random.random() < 0.5:
            await broker.claims.ack(queue, "r", self.claimed[queue])

    async def release_claims(self, broker: Broker, queue: str) -> None:
        await broker.claims.release(queue, "r")

    async def stage(self, broker: Broker, queue: str) -> None:
        self.batch += 1
        name = StageName("job", str(self.batch), "0", "0")
        drafts = [self.draft() for _ in range(4)] if self.random.random() < 0.5 else [draft(1)] * 5
        await broker.stages.upload(queue, name, 0, drafts)
        for _ in range(self.random.choice([1, 2])):
            committed = await broker.stages.commit(queue, name.job, name.batch, [("0", "0")])
            self.given[queue] += committed.messages if committed.repeated else len(drafts)

    async def redrive(self, broker: Broker, queue: str) -> None:
        await broker.redrive("a.dead", to=self.random.choice([None, "b"]))

    async def upkeep(self, broker: Broker, queue: str) -> None:
        broker.sweeper.scan_again(queue)
        await broker.upkeep()

    async def wait(self, broker: Broker, queue: str) -> None:
        self.clock.advance(self.random.choice([0.5, 3, 10, 30]))

    async def purge(self, broker: Broker, queue: str) -> None:
        await broker.purge(queue)

    async def delete(self, broker: Broker, queue: str) -> None:
        """The metrics of a queue go with it; in the history all of its messages leave."""
        await broker.delete_queue(queue)
        await self.refresh()
        await broker.configure(queue, QUEUES[queue] | {"history": "events"})
        await self.subscribe()
        await self.refresh()
        await self.read_history()
        assert self.left(self.told, queue) == 0, "messages of a deleted queue have left it"
        for counter in (self.told, self.earlier):
            for key in [key for key in counter if key[0] == queue]:
                del counter[key]
        for known in (self.by_callers, self.given, self.handed, self.claimed):
            known.pop(queue, None)
        self.held[queue] = []

    async def restart(self, broker: Broker, queue: str) -> None:
        if self.url != "memory:":
            await self.close()
            await self.open()

    # What must add up

    async def read_history(self) -> None:
        while True:
            page = await self.brokers[0].history(after=self.offset, limit=1000)
            for record in page.records:
                event = record.event
                if event.event == "published":  # of the topic
                    continue
                name = "lease_expired" if event.reason == "lease" else event.event
                self.told[event.queue, name] += event.count
                self.copies += event.count if event.reason == "published" else 0
                self.by_callers[event.queue] += event.event == "sent" and event.reason is None
            if page.next == self.offset:
                return
            self.offset = page.next

    @staticmethod
    def left(counted: Counter[tuple[str, str]], queue: str) -> int:
        return counted[queue, "sent"] - sum(counted[queue, event] for event in LEAVES)

    async def check(self) -> None:
        await self.read_history()
        counted = sum((broker.metrics.messages for broker in self.brokers), self.earlier)
        deduplicated = {queue: counted[queue, "deduplicated"] for queue in QUEUES}
        metrics = {key: count for key, count in counted.items() if key[1] not in UNTOLD and count}
        assert metrics == dict(self.told), "metrics and history tell the same"
        copied = self.copied + sum(broker.topics.counters["t", "copied"] for broker in self.brokers)
        assert copied == self.copies, "the topic and history tell the same"
        for broker in self.brokers:
            for queue in QUEUES:
                total = (await broker.queue(queue)).counts.total
                assert self.left(self.told, queue) == total, f"{queue}: history and counts add up"
                assert self.left(counted, queue) == total, f"{queue}: metrics and counts add up"
        for queue in QUEUES:
            assert self.by_callers[queue] + deduplicated[queue] == self.given[queue], f"{queue}: sent"
            assert self.told[queue, "received"] == self.handed[queue], f"{queue}: received"


@pytest.mark.parametrize("seed", SEEDS)
async def test_metrics_history_and_counts_add_up(url: str, clock: FrozenClock, seed: int) -> None:
    run = Run(url, clock, seed)
    await run.open()
    try:
        for number in range(STEPS_IN_A_DATABASE if run.brokers[0].store.shared else STEPS):
            await run.step()
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                await run.check()
    except Exception as error:
        error.add_note(f"seed {seed}: {' '.join(run.done[-CHECK_EVERY:])}")
        raise
    finally:
        await run.close()


async def oldest(broker: Broker) -> float | None:
    """The age of the oldest message of queue `q`, the same wherever it is shown."""
    counts = (await broker.queue("q")).counts
    (stats,) = await broker.trends.stats(["q"])
    assert stats.counts == counts
    age = None if counts.oldest is None else (broker.clock.now() - counts.oldest) / SECOND
    text = b"".join([piece async for piece in await prometheus.render(broker)]).decode()
    assert f'miniq_queue_oldest_age_seconds{{queue="q"}} {age or 0.0}\n' in text
    ready = counts.ready
    assert f'miniq_queue_messages{{queue="q",state="ready"}} {float(ready)}\n' in text
    return age


async def test_the_oldest_message_is_right_in_every_state(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q")
    assert await oldest(broker) is None
    await send(broker, "q", "first")
    clock.advance(10)
    await send(broker, "q", "second", priority=5)
    assert await oldest(broker) == 10

    await broker.receive("q", max=2, visibility_timeout=5)
    assert await oldest(broker) is None, "leased"
    clock.advance(4.9)
    assert await oldest(broker) is None
    clock.advance(0.1)
    assert await oldest(broker) == 15, "leases expired, and nobody has received since"

    (second,) = await broker.receive("q", visibility_timeout=60)
    assert await oldest(broker) == 15
    (first,) = await broker.receive("q", visibility_timeout=60)
    await broker.extend("q", leases([first]), 10)
    clock.advance(10)
    assert await oldest(broker) == 25, "an extended lease expired"
    assert await broker.ack("q", leases([first])) == ["done"]
    assert await oldest(broker) is None
    await broker.release("q", leases([second]), delay=5)
    assert await oldest(broker) is None, "released with a delay"
    clock.advance(5)
    assert await oldest(broker) == 20

    claim, _ = await broker.claims.next("q", "readers", 0)
    assert claim is not None
    assert await oldest(broker) is None, "claimed"
    await broker.claims.release("q", "readers")
    assert await oldest(broker) == 20
    await broker.purge("q")
    assert await oldest(broker) is None

    await send(broker, "q", "for ann", recipient="ann")
    clock.advance(1)
    await send(broker, "q", "head", delay=9, group="g")
    clock.advance(1)
    await send(broker, "q", "follows", group="g")
    clock.advance(1)
    assert await oldest(broker) is None, "what is here is for one recipient, delayed, or must wait for its turn"
    clock.advance(7)
    assert await oldest(broker) == 9
    await broker.ack("q", leases(await broker.receive("q")))
    assert await oldest(broker) == 8, "the next of the group"


async def test_dead_letters_are_as_old_as_their_messages(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("source", {"max_receives": 1, "dead_letter_queue": "q"})
    await send(broker, "source", 1)
    clock.advance(3)
    await broker.release("source", leases(await broker.receive("source")))
    assert await oldest(broker) == 3
    await broker.receive("q", visibility_timeout=1)
    assert await oldest(broker) is None
    clock.advance(1)
    assert await oldest(broker) == 4
    assert (await broker.redrive("q")).moved == 1
    assert await oldest(broker) is None
    assert (await broker.queue("source")).counts.oldest == clock.now() - 4 * SECOND


async def test_history_does_not_count_a_receive_that_did_not_happen(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "events", "max_receives": 1})
    await send(broker, "q", "worn")
    await broker.receive("q", visibility_timeout=1)
    await send(broker, "q", "old", ttl=1)
    clock.advance(1)
    assert await broker.receive("q", max=2) == []
    events = [record.event for record in (await broker.history()).records]
    assert [(event.event, event.reason, event.receives) for event in events] == [
        ("sent", None, 0),
        ("received", None, 1),
        ("sent", None, 0),
        ("expired", "lease", 1),
        ("dead", "max_receives", 1),
        ("expired", "ttl", 0),
    ]
    metrics = {event: count for (queue, event), count in broker.metrics.messages.items() if queue == "q" and count}
    assert metrics == {"sent": 2, "received": 1, "lease_expired": 1, "dead": 1, "expired": 1}


async def test_leases_that_expired_are_counted_whoever_notices(broker: Broker, clock: FrozenClock) -> None:
    """With the history off, too."""

    async def expired() -> str:
        (id,) = await send(broker, "q", 1)
        await broker.receive("q", visibility_timeout=1)
        clock.advance(1)
        return id

    noticed = broker.metrics.messages
    await expired()
    (late,) = await broker.receive("q", visibility_timeout=1)
    assert noticed["q", "lease_expired"] == 1
    clock.advance(1)
    assert await broker.ack("q", leases([late])) == ["done"]
    assert noticed["q", "lease_expired"] == 1, "a late ack counts, so the lease did not expire"
    await broker.remove("q", await expired())
    assert noticed["q", "lease_expired"] == 2
    id = await expired()
    await broker.edit("q", id, body=b"1")
    assert noticed["q", "lease_expired"] == 2, "its receipt is still valid"
    await broker.edit("q", id, delay=5)
    assert noticed["q", "lease_expired"] == 3
    await broker.remove("q", id)
    await expired()
    await broker.claims.next("q", "readers", 0)
    assert noticed["q", "lease_expired"] == 4
    await broker.claims.fetch("q", "readers", 1)
    await broker.claims.ack("q", "readers", 1)
    await expired()
    await broker.configure("q", {"retention": 1})
    await broker.upkeep()
    assert noticed["q", "lease_expired"] == 5
    assert noticed["q", "expired"] == 1


async def test_a_repeated_send_is_deduplicated_and_not_sent(broker: Broker) -> None:
    counted = broker.metrics.messages
    await send(broker, "q", 1, 2, dedup_id="d")
    assert (counted["q", "sent"], counted["q", "deduplicated"]) == (1, 1)
    await broker.send("q", [draft("a"), draft("b")], call="c")
    await broker.send("q", [draft("a"), draft("b")], call="c")
    assert (counted["q", "sent"], counted["q", "deduplicated"]) == (3, 3)
    if broker.store.shared:
        return  # there, the intake leaves named sends to `send`
    replies: list[Any] = []
    for call in ("c", "e", "e", None):
        answered = broker.intake.add(
            "q", "application/json", b"1", call, None, call, lambda *reply: replies.append(reply)
        )
        assert answered
    await broker.intake.stop()
    assert (counted["q", "sent"], counted["q", "deduplicated"]) == (5, 4), "one was refused: it had other messages"
    assert (await broker.queue("q")).counts.total == 5
