"""`GET /metrics`: the broker's metrics in Prometheus text format."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from miniq.broker import Broker
from miniq.broker.metrics import BUCKETS
from miniq.message import SECOND, QueueInfo

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def render(broker: Broker) -> bytes:
    """The current values of all metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_BrokerCollector(broker, await broker.queues()))
    return generate_latest(registry)


class _BrokerCollector(Collector):
    def __init__(self, broker: Broker, queues: list[QueueInfo]) -> None:
        self._broker = broker
        self._queues = queues

    def collect(self) -> Iterable[Metric]:
        now = self._broker.clock.now()
        depth = GaugeMetricFamily("miniq_queue_messages", "Messages by queue and state", labels=["queue", "state"])
        size = GaugeMetricFamily("miniq_queue_bytes", "Bytes of messages by queue", labels=["queue"])
        oldest = GaugeMetricFamily(
            "miniq_queue_oldest_age_seconds", "Age of the oldest ready message", labels=["queue"]
        )
        for info in self._queues:
            counts = info.counts
            for state in ("ready", "delayed", "leased"):
                depth.add_metric([info.name, state], getattr(counts, state))
            size.add_metric([info.name], counts.bytes)
            oldest.add_metric([info.name], 0 if counts.oldest is None else max(0, now - counts.oldest) / SECOND)
        yield from (depth, size, oldest)
        metrics = self._broker.metrics
        events = CounterMetricFamily("miniq_messages", "Messages by queue and event", labels=["queue", "event"])
        for (queue, event), count in metrics.messages.items():
            events.add_metric([queue, event], count)
        yield events
        errors = CounterMetricFamily("miniq_errors", "Failed calls by protocol and error code", labels=["wire", "code"])
        for (wire, code), count in metrics.errors.items():
            errors.add_metric([wire, code], count)
        yield errors
        calls = HistogramMetricFamily(
            "miniq_call_seconds", "Duration of calls, long polling included", labels=["wire", "call", "queue"]
        )
        for (wire, name, queue), latency in metrics.calls.items():
            bounds = [*map(str, BUCKETS), "+Inf"]
            buckets: list[tuple[str, float]] = [*zip(bounds, itertools.accumulate(latency.buckets), strict=True)]
            calls.add_metric([wire, name, queue], buckets, latency.total)
        yield calls
        commits = getattr(self._broker.store, "commits", None)
        if commits is not None:  # databases have their own metrics for this
            yield CounterMetricFamily("miniq_store_syncs", "Fsyncs that confirmed writes", value=commits[1])
        yield GaugeMetricFamily(
            "miniq_store_up", "1 unless the store has failed", value=0 if self._broker.store.failure() else 1
        )
