"""A broker on any store against a broker on the oracle: the same random calls, the same answers. What the rules of the
broker decide is in it: failures and their retries, pauses, limits, ordered groups, topics, dead letters. On a database
there are two brokers, which take turns.

`MINIQ_STEPS` sets how many steps are tried on each store (2,000 by default, 700 on a database).
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from miniq.broker import Broker
from miniq.errors import MiniQError
from miniq.message import Lease, Stored
from miniq.options import Options
from miniq.store import open_store
from miniq.store.embedded import window
from tests import mongod, postgresql
from tests.clock import FrozenClock
from tests.conformance.pair import DATABASES, run_machine, steps
from tests.conftest import ENGINES, store_url
from tests.kit import draft
from tests.oracle import Oracle

QUEUES = ("a", "b", "dead")
RETRY = {"retry": {"delay": 2, "factor": 2, "max": 5, "jitter": 0}}
BEGINNING = {"a": RETRY | {"dead_letter_queue": "dead"}, "b": RETRY | {"dead_letter_queue": "dead"}, "dead": RETRY}
queues = st.sampled_from(QUEUES)
optional = st.sampled_from([None, None, None, "x", "y"])
topics = st.sampled_from(["t", "t", "t", "u"])
subscriptions = st.sampled_from(["a", "b", "other"])
"""Names of subscriptions."""
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "paused": st.sampled_from([False, False, True]),
        "max_in_flight": st.sampled_from([0, 1, 3]),
        "group_batch": st.booleans(),
        "max_receives": st.sampled_from([None, 1, 2, 20]),
        "delay": st.sampled_from([0, 0, 2]),
    },
)
ROLES = (0, 1)
"""The broker on the oracle, and those that are tested."""
MOMENT = 0.01
"""Seconds between two calls, so that ids of two brokers are in the order in which they were made."""


class Held:
    """A lease that both brokers gave."""

    def __init__(self, queue: str, pair: list[Stored]) -> None:
        self.queue = queue
        self.leases = [Lease(stored.message.id, stored.receipt or "") for stored in pair]


class Brokers(RuleBasedStateMachine):
    """Brokers with one clock. Messages are known by their bodies: the oracle has ids and receipts of its own."""

    kind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="miniq-machine-"))
        self.clock = FrozenClock()
        self.url = store_url(self.kind, self.folder)
        self.options = Options(upkeep_interval=0)
        self.oracle = Broker(Oracle(), self.options, self.clock)
        self.tested = [self.made() for _ in range(2 if self.kind in DATABASES else 1)]
        for broker in (self.oracle, *self.tested):
            self.run(broker.open())
        self.calls = 0
        self.serial = 0
        self.held: list[Held] = []
        self.paused: dict[str, bool] = {}
        self.limits: dict[str, int] = {}

    def made(self) -> Broker:
        return Broker(open_store(self.url), self.options, self.clock)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(call)

    def both(self, call: Callable[[Broker, int], Coroutine[Any, Any, Any]], shown: Callable[[Any], Any]) -> list[Any]:
        """What both answer, once it was found to be alike."""
        answers: list[Any] = []
        seen: list[Any] = []
        self.calls += 1
        self.advance(MOMENT)
        for role in ROLES:
            broker = self.tested[self.calls % len(self.tested)] if role else self.oracle
            try:
                answers.append(self.run(call(broker, role)))
                seen.append(shown(answers[-1]))
            except MiniQError as error:
                seen.append((type(error).__name__, error.field))
        assert seen[1] == seen[0]
        return answers

    @initialize()
    def begin(self) -> None:
        for queue in QUEUES:
            self.configure(queue, BEGINNING[queue])
        for queue, pattern, filter in (("a", "x.#", None), ("b", None, {"h": ["x"]})):
            self.both(lambda broker, _, to=queue, p=pattern, f=filter: broker.topics.subscribe("t", to, to, p, f), str)  # type: ignore[misc]

    def teardown(self) -> None:
        for broker in (self.oracle, *self.tested):
            self.run(broker.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        mongod.give_back()
        postgresql.give_back()

    def configure(self, queue: str, changes: dict[str, Any]) -> None:
        self.both(lambda broker, _: broker.configure(queue, changes), lambda _: None)
        for broker in self.tested:
            self.run(broker.catalog.refresh())  # which it would do in a moment

    def drafts(self, count: int, **fields: Any) -> list[Any]:
        self.serial += count
        return [draft(number, **fields) for number in range(self.serial - count, self.serial)]

    # Changes

    @rule(
        queue=queues,
        count=st.integers(1, 6),
        group=st.sampled_from([None, "g", "g", "h"]),
        dedup_id=st.sampled_from([None, None, None, "d"]),
        priority=st.sampled_from([0, 0, 0, 5]),
        delay=st.sampled_from([None, None, None, 3]),
        ttl=st.sampled_from([None, None, None, 8]),
        recipient=st.sampled_from([None, None, None, "ann"]),
    )
    def send(self, queue: str, count: int, **fields: Any) -> None:
        drafts = self.drafts(count, **fields)
        self.both(lambda broker, _: broker.send(queue, drafts), len)

    @rule(
        topic=topics,
        count=st.integers(1, 4),
        first=optional,
        header=optional,
        group=st.sampled_from([None, "g"]),
        dedup_id=st.sampled_from([None, None, "d"]),
    )
    def publish(self, topic: str, count: int, first: str | None, header: str | None, **fields: Any) -> None:
        """To several queues, to one or to none."""
        key = None if first is None else f"{first}.z"
        drafts = self.drafts(count, key=key, headers=header and {"h": header}, **fields)
        self.both(lambda broker, _: broker.publish(topic, drafts), lambda one: (len(one.ids), one.queues))

    @rule(
        topic=topics,
        name=subscriptions,
        queue=queues,
        pattern=st.sampled_from([None, "x.#", "*.z", "y"]),
        header=st.sampled_from([None, None, "x", "y"]),
    )
    def subscribe(self, topic: str, name: str, queue: str, pattern: str | None, header: str | None) -> None:
        """Make a subscription or replace it; what the other broker publishes next follows it."""
        filter = {"h": [header]} if header else None
        self.both(lambda broker, _: broker.topics.subscribe(topic, name, queue, pattern, filter), repr)
        self.publish(topic, 2, "x", "x", group=None, dedup_id=None)

    @rule(topic=topics, name=subscriptions)
    def unsubscribe(self, topic: str, name: str) -> None:
        self.both(lambda broker, _: broker.topics.unsubscribe(topic, name), repr)
        self.publish(topic, 2, "x", "x", group=None, dedup_id=None)

    @precondition(lambda self: self.serial % 3 == 0)
    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        """With its subscriptions and its dedup ids; the next publication creates it again."""
        self.both(lambda broker, _: broker.topics.delete(topic), repr)

    @rule()
    def topics_are_the_same(self) -> None:
        """At every broker."""
        for _ in self.tested:
            self.both(
                lambda broker, _: broker.topics.all(), lambda found: [(one.name, one.subscriptions) for one in found]
            )

    @rule(queue=st.sampled_from(["a", "b"]), changes=SETTINGS)
    def set(self, queue: str, changes: dict[str, Any]) -> None:
        self.configure(queue, changes)
        self.paused[queue] = changes.get("paused", self.paused.get(queue, False))
        self.limits[queue] = changes.get("max_in_flight", self.limits.get(queue, 0))

    @rule(queue=st.sampled_from(["a", "b"]), changes=SETTINGS, group=st.sampled_from([None, "g"]))
    def set_and_use(self, queue: str, changes: dict[str, Any], group: str | None) -> None:
        self.set(queue, changes)
        self.send(queue, 5, group=group)
        self.receive(queue, 10, 4, None, "at-least-once")
        self.receive(queue, 1, 4, None, "at-least-once")

    @rule(
        queue=queues,
        max=st.sampled_from([1, 2, 4, 10]),
        timeout=st.sampled_from([None, 0, 4, 60]),
        consumer=st.sampled_from([None, None, "ann"]),
        mode=st.sampled_from(["at-least-once"] * 5 + ["at-most-once"]),
    )
    def receive(self, queue: str, max: int, timeout: float | None, consumer: str | None, mode: Any) -> None:
        def call(broker: Broker, _: int) -> Coroutine[Any, Any, Any]:
            return broker.receive(queue, max=max, visibility_timeout=timeout, consumer=consumer, mode=mode)

        before = self.run(self.oracle.queue(queue)).counts.leased
        answers = self.both(call, lambda got: [told(stored) for stored in got])
        if self.paused.get(queue):
            assert answers[1] == []
        if limit := self.limits.get(queue):
            assert len(answers[1]) <= builtin_max(0, limit - before)
        if mode == "at-least-once":
            self.held += [Held(queue, list(pair)) for pair in zip(*answers, strict=True)]

    @precondition(lambda self: self.held)
    @rule(
        picked=st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
        how=st.sampled_from(["ack", "ack", "fail", "unused", "reject", "release", "extend"]),
        delay=st.sampled_from([None, 0, 3]),
    )
    def settle(self, picked: list[int], how: str, delay: float | None) -> None:
        """What consumers do with what they have, or had."""
        chosen = [self.held[-1 - pick % min(len(self.held), 12)] for pick in picked]
        queue = chosen[0].queue
        chosen = [one for one in chosen if one.queue == queue]

        def call(broker: Broker, role: int) -> Coroutine[Any, Any, Any]:
            leases = [one.leases[role] for one in chosen]
            if how == "ack":
                return broker.ack(queue, leases)
            if how in ("release", "unused"):
                return broker.release(queue, leases, delay or 0, unused=how == "unused")
            if how == "extend":
                return broker.extend(queue, leases, delay)
            is_dead = how == "reject"
            return broker.deliveries.fail(queue, leases, f"boom {self.serial}", None if is_dead else delay, is_dead)

        self.both(call, repr)

    @rule(to=st.sampled_from([None, None, "a"]))
    def redrive(self, to: str | None) -> None:
        self.both(lambda broker, _: broker.redrive("dead", to=to), repr)

    @precondition(lambda self: self.serial % 5 == 0)
    @rule(queue=queues)
    def purge(self, queue: str) -> None:
        self.both(lambda broker, _: broker.purge(queue), repr)

    @rule(seconds=st.sampled_from([0.5, 2, 4, 11, 61]))
    def time_passes(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        async def advance() -> None:
            self.clock.advance(seconds)

        self.run(advance())

    @precondition(lambda self: self.kind != "memory")
    @rule()
    def restart(self) -> None:
        self.run(self.tested[0].close())
        self.tested[0] = self.made()
        self.run(self.tested[0].open())

    # Looking

    @invariant()
    def both_hold_the_same(self) -> None:
        def shown(info: Any) -> Any:
            counts = info.counts  # the oldest has the time of its id, which is ahead of the clock after a restart
            return counts.ready, counts.delayed, counts.leased, counts.bytes, counts.oldest is None

        for queue in QUEUES:
            self.both(lambda broker, _, of=queue: broker.queue(of), shown)  # type: ignore[misc]

    @rule(queue=queues)
    def peek(self, queue: str) -> None:
        def shown(page: Any) -> Any:
            return sorted(
                (told(stored), stored.visible_at, stored.status(self.clock.now())) for stored in page.messages
            )

        self.both(lambda broker, _: broker.peek(queue, limit=100), shown)


builtin_max = max


def told(stored: Stored) -> str:
    """A message as both brokers must know it."""
    message, dead = stored.message, stored.message.dead
    origin = dead and (dead.origin, dead.reason, dead.receives, dead.error, dead.at)
    fields = (message.priority, message.group, message.topic, message.key, message.recipient, message.due_at, origin)
    return repr((json.loads(message.body), stored.receives, stored.error, message.sent_at, *fields))


@pytest.mark.parametrize("kind", [*ENGINES, *DATABASES])
def test_a_broker_on_a_store_answers_as_one_on_the_oracle(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "LANE_MESSAGES", 4)
    monkeypatch.setattr(window, "READ_MESSAGES", 3)
    run_machine(Brokers, kind, steps(kind) // (8 if kind in DATABASES else 4))  # type: ignore[arg-type]
