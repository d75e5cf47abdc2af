"""What `/metrics` writes: bounded however many queues there are."""

from __future__ import annotations

from typing import Any

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


async def test_other_work_gets_its_turn_while_metrics_are_written() -> None:
    async with Broker(open_store("memory:"), Options(upkeep_interval=0)) as broker:
        for number in range(600):
            await send(broker, f"q{number}", 1)
        pieces: list[Any] = [piece async for piece in await prometheus.render(broker)]
    assert len(pieces) > 3
