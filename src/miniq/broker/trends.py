"""Rates and the last hour of every queue, for the console and `miniq top`.

Once per second it is noted which counters of `metrics.py` have changed, to compute rates. Every `STEP` seconds a row
per queue is stored for an hour, in this process's memory. A queue whose numbers do not change adds no rows, and at most
`MAX_QUEUES` queues have a history, active ones first, so that time and memory stay bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from array import array
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from miniq.broker import rules
from miniq.broker.timings import percentiles
from miniq.consumer import Percentiles
from miniq.errors import InvalidRequest, MiniQError, QueueNotFound
from miniq.message import SECOND, Counts

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.trends")

RATES = ("sent", "received", "acked", "released", "failed", "expired", "dead")
"""Counted events; as a series, messages per second."""
GAUGES = ("ready", "delayed", "leased")
SERIES = ("total", *GAUGES, *RATES)
STEP = 15
"""Seconds between two rows."""
ROWS = 240
"""Rows in an hour."""
MAX_QUEUES = 2000
"""Queues for which the last hour is kept."""
WINDOW = 5
"""Seconds over which a rate is averaged."""
_WIDTH = 1 + len(GAUGES) + len(RATES)
REST = 4
"""Duration of the pause between two passes over all queues for event streams, in durations of a pass."""
FRESH = 1.0
"""Seconds for which what other brokers know about consumers is not read again."""
_CHUNK = 50
"""Queues counted before yielding to the event loop."""


class QueueStats(Struct, frozen=True):
    """A queue's current counts, its messages per second by event, its dead-letter queue, if that exists, with the
    number of messages in it, its consumers, and how long messages waited and were processed in the last minutes."""

    name: str
    counts: Counts
    rates: dict[str, float]
    dead_letter_queue: str | None
    dead: int
    consumers: int = 0
    """How many were seen in the last five minutes."""
    wait: Percentiles | None = None
    processing: Percentiles | None = None


class Trend(Struct, frozen=True):
    """Series of one queue over the last hour: one value per point in time, oldest first."""

    name: str
    series: dict[str, list[float]]


class Trends:
    """The rates and trends of a broker. The server spawns `run`; tests call `tick`."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._samples: deque[tuple[int, dict[tuple[str, str], int]]] = deque(maxlen=WINDOW + 1)
        """Times, each with the counters that changed until the next, as they were at that time."""
        self._before: dict[tuple[str, str], int] = {}
        """Counters that changed since the last step, as they were at that step."""
        self._rows: dict[str, array[int]] = {}
        """By queue: rows of step, gauges and counters, concatenated. A row equal to its predecessor is left out."""
        self._bases: dict[str, array[int]] = {}
        """By queue: the counters one step before its first row, so that what happened until that row is counted."""
        self._step = 0
        """The latest step for which rows were stored."""
        self._next_turn = asyncio.Event()
        self._is_ending = False
        self._current: dict[str, QueueStats] = {}
        self._as_of = -math.inf
        """When the pass over the queues that found `_current` began."""
        self._pass: asyncio.Task[None] | None = None
        self._pass_seconds = 0.0
        self.streams = 0
        """Event streams that are open."""

    def end(self) -> None:
        """End all event streams: the broker will close soon."""
        self._is_ending = True
        self.wake()

    def wake(self) -> None:
        """Give all event streams their next turn now."""
        self._next_turn.set()
        self._next_turn = asyncio.Event()

    async def pause(self, seconds: float) -> bool:
        """Wait until an event stream's next turn; False if the stream should end."""
        if not self._is_ending:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._next_turn.wait(), seconds)
        return not self._is_ending

    async def run(self) -> None:
        """Sample the numbers once per second."""
        while True:
            try:
                await self.tick()
            except MiniQError as error:
                log.debug("sampling the queues failed: %s", error)
            except Exception:
                log.exception("sampling the queues failed")  # the next sample may succeed
            await asyncio.sleep(1)

    async def tick(self) -> None:
        """Sample the counters, and store a row per queue every `STEP` seconds."""
        now = self._broker.clock.now()
        counters = self._broker.metrics.messages
        self._before = counters.before | self._before
        self._samples.append((now, counters.mark()))
        step = now // (STEP * SECOND)
        if step != self._step:
            self._step = step
            await self._store_rows(step)

    async def current(self, age: float = 0) -> dict[str, QueueStats]:
        """The numbers of all queues by name, at most `age` seconds old; or a few times the duration of a pass over all
        queues, so that passes leave time for other work. Callers share a pass. The numbers of a queue that have not
        changed are the same object as before."""
        wanted = monotonic() - (max(age, REST * self._pass_seconds) if age else 0)
        while self._as_of < wanted:
            if self._pass is None:
                self._pass = asyncio.create_task(self._count_all())
            await asyncio.shield(self._pass)
        return self._current

    async def _count_all(self) -> None:
        began = monotonic()
        try:
            before, current = self._current, {}
            async for entry in self._stats(sorted(self._broker.catalog.names())):
                previous = before.get(entry.name)
                current[entry.name] = previous if previous == entry and previous is not None else entry
            self._current, self._as_of, self._pass_seconds = current, began, monotonic() - began
        finally:
            self._pass = None

    async def stats(self, queues: Iterable[str]) -> list[QueueStats]:
        """The current numbers of these queues; those that do not exist are left out."""
        return [entry async for entry in self._stats(list(queues))]

    async def _stats(self, queues: list[str]) -> AsyncIterator[QueueStats]:
        """The same in chunks, to yield to the event loop in between; each queue is counted once."""
        broker = self._broker
        counters = broker.metrics.messages
        counts: dict[str, Counts] = {}
        await broker.sharing.read(age=FRESH)
        for start in range(0, len(queues), _CHUNK):
            names = [name for name in queues[start : start + _CHUNK] if broker.catalog.find(name) is not None]
            dead_letter_queues = {name: rules.dead_letter_queue(name, broker.catalog.settings(name)) for name in names}
            needed = {*names, *dead_letter_queues.values()}
            counts |= await self.count(needed - counts.keys())
            now = broker.clock.now()
            before, elapsed = self._changes(now)
            for name in names:
                if name in counts:
                    keys = [(name, event) for event in RATES]
                    rates = [
                        round(max(0, counters[key] - before[key]) / elapsed, 2) if key in before else 0.0
                        for key in keys
                    ]
                    target = dead_letter_queues[name]
                    letters: tuple[str | None, int] = (None, 0)
                    if target in counts:
                        letters = (target, counts[target].total)
                    consumers = broker.consumers.number(name, now)
                    times = [*broker.timings.recent(name, now).values(), *broker.sharing.times(name, now)]
                    wait = percentiles(some.wait for some in times)
                    processing = percentiles(some.processing for some in times)
                    rated = dict(zip(RATES, rates, strict=True))
                    yield QueueStats(name, counts[name], rated, *letters, consumers, wait, processing)

    def last_hour(self, queues: Iterable[str], series: Sequence[str], points: int) -> list[Trend]:
        """Series of these queues at `points` moments (a divisor of `ROWS`), ending with the latest step.
        Queues without rows and moments before a queue's first row are left out."""
        for name in series:
            if name not in SERIES:
                raise InvalidRequest(f"series: {name[:80]!r} is unknown; use {', '.join(SERIES)}", field="series")
        rules.check_count(points, "points", 1, ROWS)
        if ROWS % points:
            raise InvalidRequest(f"points: {points} does not divide {ROWS}; use 60, 120 or {ROWS}", field="points")
        stride = ROWS // points
        trends = []
        for name in queues:
            rows = self._rows.get(name)
            if rows:
                trends.append(Trend(name, self._expand(rows, self._bases[name], series, points, stride)))
        return trends

    @property
    def last(self) -> int:
        """The time of the latest step."""
        return self._step * STEP * SECOND

    # Inside

    def _changes(self, now: int) -> tuple[dict[tuple[str, str], int], float]:
        """The counters that changed in the last seconds, as they were before, and how many seconds that is."""
        for index, (at, _) in enumerate(self._samples):
            if SECOND // 2 <= now - at <= (WINDOW + 2) * SECOND:
                before: dict[tuple[str, str], int] = {}
                for _, changed in reversed(list(itertools.islice(self._samples, index, None))):
                    before |= changed
                return before, (now - at) / SECOND
        return {}, 1.0

    async def _store_rows(self, step: int) -> None:
        broker = self._broker
        counters = broker.metrics.messages
        self._choose(step)
        for name, counts in (await self.count(set(self._rows))).items():
            rows = self._rows[name]
            row = [step, counts.ready, counts.delayed, counts.leased]
            row += [counters.get((name, event), 0) for event in RATES]
            if rows[1 - _WIDTH :].tolist() != row[1:]:
                rows.extend(row)
                while len(rows) > _WIDTH and rows[_WIDTH] <= step - ROWS:
                    del rows[:_WIDTH]

    def _choose(self, step: int) -> None:
        """Choose the queues for which rows are stored: those that were active, then others. Once there are too many,
        an active one takes the place of one that did not change in the last hour."""
        queues = self._broker.catalog.queues
        for deleted in [name for name in self._rows if name not in queues]:
            self._forget(deleted)
        before, self._before = self._before, {}
        active = {queue for queue, _ in before}
        new = [name for name in active if name not in self._rows and name in queues]
        quiet = [
            name
            for name, rows in self._rows.items()
            if name not in active and (len(rows) <= _WIDTH or rows[-_WIDTH] <= step - ROWS)
        ]
        for name in quiet[: max(0, len(self._rows) + len(new) - MAX_QUEUES)]:
            self._forget(name)
        counters = self._broker.metrics.messages
        for name in itertools.chain(new, queues):
            if len(self._rows) >= MAX_QUEUES:
                break
            if name not in self._rows:
                self._rows[name] = array("q")
                keys = [(name, event) for event in RATES]
                self._bases[name] = array("q", [before.get(key, counters[key]) for key in keys])

    def _forget(self, queue: str) -> None:
        del self._rows[queue], self._bases[queue]

    async def count(self, queues: Collection[str]) -> dict[str, Counts]:
        """The counts of the queues that still exist, in chunks, to yield to the event loop in between. On a store
        behind a network, the queries of a chunk run concurrently."""
        broker = self._broker
        names = sorted(queues)
        counts: dict[str, Counts] = {}
        for start in range(0, len(names), _CHUNK):
            chunk = [name for name in names[start : start + _CHUNK] if broker.catalog.find(name) is not None]
            if broker.store.shared:
                replies = await asyncio.gather(*[self._count_one(name, broker.clock.now()) for name in chunk])
            else:
                now = broker.clock.now()  # per chunk: with an older one, messages sent since would count as delayed
                replies = [await self._count_one(name, now) for name in chunk]
                await asyncio.sleep(0)
            counts.update((name, reply) for name, reply in zip(chunk, replies, strict=True) if reply is not None)
        return counts

    async def _count_one(self, queue: str, now: int) -> Counts | None:
        """The counts of one queue, None if it was deleted meanwhile."""
        with contextlib.suppress(QueueNotFound):
            return await self._broker.store.messages.counts(queue, now)
        return None

    def _expand(
        self, rows: array[int], base: array[int], series: Sequence[str], points: int, stride: int
    ) -> dict[str, list[float]]:
        """The value of each series at each moment: gauges as they were, counters as the rate since the previous
        moment."""
        stored = [rows[offset : offset + _WIDTH].tolist() for offset in range(0, len(rows), _WIDTH)]
        steps = [self._step - stride * (points - 1 - point) for point in range(points)]
        sampled = []
        index = -1
        for step in [steps[0] - stride, *steps]:
            while index + 1 < len(stored) and stored[index + 1][0] <= step:
                index += 1
            sampled.append(stored[index] if index >= 0 else None)
        values: dict[str, list[float]] = {}
        for name in series:
            if name == "total":
                values[name] = [sum(row[1:4]) for row in sampled[1:] if row is not None]
            elif name in GAUGES:
                column = 1 + GAUGES.index(name)
                values[name] = [row[column] for row in sampled[1:] if row is not None]
            else:
                event = RATES.index(name)
                column = 1 + len(GAUGES) + event
                values[name] = [
                    round(
                        _increase(base[event] if before is None else before[column], row[column]) / (stride * STEP), 3
                    )
                    for before, row in itertools.pairwise(sampled)
                    if row is not None
                ]
        return values


def _increase(before: int, after: int) -> int:
    """By how much a counter rose; it restarts at zero when its queue is deleted and created again."""
    return after - before if after >= before else after
