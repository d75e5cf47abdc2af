"""What `/metrics` writes: bounded however many queues there are."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from miniq.broker import Broker
from miniq.options import Options
from miniq.server.http import prometheus
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import draft, leases, send


async def metrics(broker: Broker) -> dict[str, dict[tuple[str, ...], float]]:
    text = b"".join([piece async for piece in await prometheus.render(broker)]).decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def test_queues_beyond_the_limit_are_summed_up() -> None:
    async with Broker(open_store("memory:"), Options(upkeep_interval=0, metrics_queues=2)) as broker:
        for queue, bodies in (("z", 1), ("b", 2), ("c", 3)):
            await send(broker, queue, *range(bodies))
            broker.metrics.call("http", "send", queue, 0.003)
        broker.metrics.call("http", "stats", "", 0.003)
        found = await metrics(broker)
    ready = {key[0]: value for key, value in found["miniq_queue_messages"].items() if key[1] == "ready"}
    assert ready == {"default": 0, "z": 1, "*": 5}
    assert found["miniq_messages_total"] == {("sent", "z"): 1, ("sent", "*"): 5}
    assert found["miniq_queue_bytes"]["*",] == 5
    assert found["miniq_queue_oldest_age_seconds"]["*",] >= 0
    counts = found["miniq_call_seconds_count"]
    assert counts == {("send", "z", "http"): 1, ("stats", "", "http"): 1, ("send", "*", "http"): 2}
    assert found["miniq_call_seconds_bucket"]["send", "0.002", "*", "http"] == 0
    assert found["miniq_call_seconds_bucket"]["send", "0.005", "*", "http"] == 2
    assert found["miniq_store_up"] == {(): 1}


async def test_waits_and_processing_times_are_histograms() -> None:
    clock = FrozenClock()
    async with Broker(open_store("memory:"), Options(upkeep_interval=0, metrics_queues=2), clock) as broker:
        for queue in ("a", "b", "c"):
            await send(broker, queue, 1)
        clock.advance(0.4)
        for queue in ("a", "b", "c"):
            taken = await broker.receive(queue)
            clock.advance(2)
            await broker.ack(queue, leases(taken))
        found = await metrics(broker)
    assert found["miniq_message_wait_seconds_count"] == {("a",): 1, ("*",): 2}
    assert found["miniq_message_wait_seconds_sum"]["a",] == 0.4
    assert found["miniq_message_wait_seconds_bucket"]["0.2", "a"] == 0
    assert found["miniq_message_wait_seconds_bucket"]["0.5", "a"] == 1
    assert found["miniq_message_processing_seconds_bucket"]["1", "*"] == 0
    assert found["miniq_message_processing_seconds_bucket"]["2", "*"] == 2
    assert found["miniq_message_processing_seconds_bucket"]["+Inf", "*"] == 2


async def test_messages_of_topics_are_counted_by_what_became_of_them() -> None:
    async with Broker(open_store("memory:"), Options(upkeep_interval=0, metrics_queues=1)) as broker:
        for queue in ("a", "b"):
            await broker.topics.subscribe("first", queue, pattern="x.#")
        await broker.publish("first", [draft(1, key="x.y"), draft(2, key="x"), draft(3, key="y")])
        await broker.publish("first", [draft(4, key="x", dedup_id="d")])
        await broker.publish("first", [draft(5, key="x", dedup_id="d")])
        for topic in ("second", "third"):
            await broker.publish(topic, [draft(6), draft(7)])
        found = await metrics(broker)
    assert found["miniq_topic_messages_total"] == {
        ("published", "first"): 4,
        ("unmatched", "first"): 1,
        ("copied", "first"): 6,
        ("deduplicated", "first"): 1,
        ("published", "*"): 4,
        ("unmatched", "*"): 4,
    }


@pytest.mark.parametrize("labelled", [1000, 5], ids=["labelled", "summed up"])
async def test_work_between_turns_does_not_grow_with_the_number_of_queues(labelled: int) -> None:
    """Counted in lines of Python, as a wall clock would depend on the machine."""
    clock = FrozenClock()
    options = Options(upkeep_interval=0, metrics_queues=labelled)
    most: list[int] = []
    async with Broker(open_store("memory:"), options, clock) as broker:
        for first, last in ((0, 110), (110, 550)):
            for number in range(first, last):
                queue = f"q{number}"
                await send(broker, queue, 1)
                await broker.ack(queue, leases(await broker.receive(queue)))
                for call in ("send", "receive", "ack"):
                    broker.metrics.call("http", call, queue, 0.003)
                broker.topics.counters[f"t{number}", "published"] += 1
                broker.metrics.firings[f"s{number}", "sent"] += 1
            await broker.trends.current()
            with counted_lines(prometheus.__file__) as turns:
                pieces = [piece async for piece in await prometheus.render(broker)]
            most.append(max(turns.values()))
            assert max(piece.count(b"\n") for piece in pieces) < prometheus.LINES + 50
    assert len(turns) > 3
    assert most[1] < 1.2 * most[0]


@contextmanager
def counted_lines(file: str) -> Iterator[Counter[int]]:
    """Counts the lines of a module that are executed, by turn of the event loop."""
    turns: Counter[int] = Counter()
    turn, counting = 0, True

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if counting:
            loop.call_soon(next_turn)

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != file:
            return None
        turns[turn] += event == "line"
        return trace

    loop = asyncio.get_running_loop()
    loop.call_soon(next_turn)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield turns
    finally:
        sys.settrace(before)
        counting = False
