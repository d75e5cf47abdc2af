"""`GET /metrics`: the broker's metrics in Prometheus text format, written in pieces.

Only the first `metrics_queues` queues have labels of their own; the numbers of all others are summed up as `queue="*"`,
which is not a valid queue name. The order is that of their creation, so a series stays the same while the broker runs.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator

from miniq.broker import Broker
from miniq.broker.metrics import BUCKETS, Latency
from miniq.broker.timings import BOUNDS as FINE
from miniq.broker.timings import Buckets
from miniq.broker.trends import QueueStats
from miniq.message import SECOND

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHERS = "*"
LINES, BLOCKS = 1000, 100
"""Lines that are written before other work gets its turn, and blocks, which may be empty."""
_BOUNDS = [*map(str, BUCKETS), "+Inf"]
_TIME_BOUNDS = [step * 10**power for power in range(3, 10) for step in (1, 2, 5)] + [math.inf]
"""The bounds of waits and processing times in microseconds, 1 ms to 5,000 s: some of those of `timings.py`."""
_TIMES = (
    ("wait", "miniq_message_wait_seconds", "How long messages were ready before their first receive"),
    ("processing", "miniq_message_processing_seconds", "How long consumers took to ack or fail messages"),
)


async def render(broker: Broker) -> AsyncIterator[bytes]:
    """The current values of all metrics."""
    return _pieces(_blocks(broker, await broker.trends.current()))


async def _pieces(blocks: Iterator[str]) -> AsyncIterator[bytes]:
    piece: list[str] = []
    lines = 0
    for block in blocks:
        piece.append(block)
        lines += block.count("\n")
        if lines >= LINES or len(piece) >= BLOCKS:
            yield "".join(piece).encode()
            piece, lines = [], 0
            await asyncio.sleep(0)
    yield "".join(piece).encode()


def _blocks(broker: Broker, queues: dict[str, QueueStats]) -> Iterator[str]:
    """The reply in blocks of a few lines, empty for numbers that are added to others; while they are written, the
    broker's numbers change."""
    own = {"", *itertools.islice(broker.catalog.queues, broker.options.metrics_queues)}
    metrics, now = broker.metrics, broker.clock.now()

    yield _head("miniq_queue_messages", "Messages by queue and state", "gauge")
    others: Counter[str] = Counter()
    oldest = 0.0
    for name, queue in queues.items():
        states = {"ready": queue.counts.ready, "delayed": queue.counts.delayed, "leased": queue.counts.leased}
        if name in own:
            yield "".join(
                f'miniq_queue_messages{{queue="{name}",state="{state}"}} {float(n)}\n' for state, n in states.items()
            )
        else:
            others.update(states, bytes=queue.counts.bytes)
            oldest = max(oldest, _age(queue, now))
            yield ""
    if others:
        for state in ("ready", "delayed", "leased"):
            yield f'miniq_queue_messages{{queue="{OTHERS}",state="{state}"}} {float(others[state])}\n'
    labelled = [queue for name, queue in queues.items() if name in own]
    yield _head("miniq_queue_bytes", "Bytes of messages by queue", "gauge")
    for queue in labelled:
        yield f'miniq_queue_bytes{{queue="{queue.name}"}} {float(queue.counts.bytes)}\n'
    if others:
        yield f'miniq_queue_bytes{{queue="{OTHERS}"}} {float(others["bytes"])}\n'
    yield _head("miniq_queue_oldest_age_seconds", "Age of the oldest ready message", "gauge")
    for queue in labelled:
        yield f'miniq_queue_oldest_age_seconds{{queue="{queue.name}"}} {_age(queue, now)}\n'
    if others:
        yield f'miniq_queue_oldest_age_seconds{{queue="{OTHERS}"}} {oldest}\n'

    yield _head("miniq_messages_total", "Messages by queue and event", "counter")
    events: Counter[str] = Counter()
    for (name, event), count in list(metrics.messages.items()):
        if name in own:
            yield f'miniq_messages_total{{event="{event}",queue="{name}"}} {float(count)}\n'
        else:
            events[event] += count
            yield ""
    for event, count in events.items():
        yield f'miniq_messages_total{{event="{event}",queue="{OTHERS}"}} {float(count)}\n'
    yield _head("miniq_schedule_firings_total", "Moments of schedules by outcome", "counter")
    for (schedule, outcome), count in list(metrics.firings.items()):
        yield f'miniq_schedule_firings_total{{outcome="{outcome}",schedule="{schedule}"}} {float(count)}\n'
    yield _head("miniq_schedule_next_seconds", "Seconds until the next moment of a schedule that is active", "gauge")
    wall = broker.clock.wall()
    for entry in broker.schedules.entries:
        if entry.due is not None and not entry.paused:
            seconds = (entry.due - wall) / SECOND
            yield f'miniq_schedule_next_seconds{{schedule="{entry.name}"}} {seconds}\n'
    yield _head(
        "miniq_topic_messages_total", "Messages by topic: published, unmatched, copied, deduplicated", "counter"
    )
    labelled_topics = set(itertools.islice(broker.topics.topics, broker.options.metrics_queues))
    rest: Counter[str] = Counter()
    for (name, event), count in list(broker.topics.counters.items()):
        if name in labelled_topics:
            yield f'miniq_topic_messages_total{{event="{event}",topic="{name}"}} {float(count)}\n'
        else:
            rest[event] += count
            yield ""
    for event, count in rest.items():
        yield f'miniq_topic_messages_total{{event="{event}",topic="{OTHERS}"}} {float(count)}\n'
    yield _head("miniq_errors_total", "Failed calls by protocol and error code", "counter")
    for (wire, code), count in list(metrics.errors.items()):
        yield f'miniq_errors_total{{code="{code}",wire="{wire}"}} {float(count)}\n'

    yield _head("miniq_call_seconds", "Duration of calls, long polling included", "histogram")
    summed: defaultdict[tuple[str, str], Latency] = defaultdict(Latency)
    for (wire, call, name), latency in list(metrics.calls.items()):
        if name in own:
            yield _histogram(wire, call, name, latency)
        else:
            summed[wire, call].merge(latency)
            yield ""
    for (wire, call), latency in summed.items():
        yield _histogram(wire, call, OTHERS, latency)

    for kind, metric, text in _TIMES:
        yield _head(metric, text, "histogram")
        rest_counts: list[int] = [0] * len(_TIME_BOUNDS)
        rest_sum = 0
        for name, times in list(broker.timings.queues.items()):
            counts = _coarse(getattr(times.total, kind))
            micros = getattr(times, f"{kind}_sum")
            if name in own:
                yield _time_histogram(metric, name, counts, micros)
            else:
                rest_counts = [mine + theirs for mine, theirs in zip(rest_counts, counts, strict=True)]
                rest_sum += micros
                yield ""
        if any(rest_counts):
            yield _time_histogram(metric, OTHERS, rest_counts, rest_sum)

    commits = getattr(broker.store, "commits", None)
    if commits is not None:  # databases have their own metrics for this
        yield _head("miniq_store_syncs_total", "Fsyncs that confirmed writes", "counter")
        yield f"miniq_store_syncs_total {float(commits[1])}\n"
    yield _head("miniq_store_up", "1 unless the store has failed", "gauge")
    yield f"miniq_store_up {0.0 if broker.store.failure() else 1.0}\n"


def _coarse(buckets: Buckets) -> list[int]:
    """The counts of the fine buckets of timings, in those that are exported."""
    counts = [0] * len(_TIME_BOUNDS)
    for bucket, count in list(buckets.items()):
        counts[bisect_left(_TIME_BOUNDS, FINE[bucket] if bucket < len(FINE) else math.inf)] += count
    return counts


def _time_histogram(name: str, queue: str, counts: list[int], micros: int) -> str:
    sums = list(itertools.accumulate(counts))
    bounds = [f"{bound / SECOND:g}" for bound in _TIME_BOUNDS[:-1]]
    lines = [
        f'{name}_bucket{{le="{bound}",queue="{queue}"}} {float(n)}\n'
        for bound, n in zip([*bounds, "+Inf"], sums, strict=True)
    ]
    lines.append(f'{name}_count{{queue="{queue}"}} {float(sums[-1])}\n')
    lines.append(f'{name}_sum{{queue="{queue}"}} {micros / SECOND}\n')
    return "".join(lines)


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _age(queue: QueueStats, now: int) -> float:
    oldest = queue.counts.oldest
    return 0.0 if oldest is None else max(0, now - oldest) / SECOND


def _histogram(wire: str, call: str, queue: str, latency: Latency) -> str:
    rest = f'queue="{queue}",wire="{wire}"'
    counts = zip(_BOUNDS, itertools.accumulate(latency.buckets), strict=True)
    lines = [f'miniq_call_seconds_bucket{{call="{call}",le="{bound}",{rest}}} {float(n)}\n' for bound, n in counts]
    lines.append(f'miniq_call_seconds_count{{call="{call}",{rest}}} {float(latency.count)}\n')
    lines.append(f'miniq_call_seconds_sum{{call="{call}",{rest}}} {latency.total}\n')
    return "".join(lines)
