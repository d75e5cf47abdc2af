"""Rates and the last hour of every queue, for the console and `miniq top`.

Once per second it is noted which counters of `metrics.py` have changed, to compute rates. Every `STEP` seconds a row
per queue is kept for an hour in memory, and in the store for the time after a restart (`trend_log.py`). A queue whose
numbers do not change adds no rows, and at most `MAX_QUEUES` queues have a history, active ones first, so that time and
memory stay bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import operator
from array import array
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import datetime
from time import monotonic
from typing import TYPE_CHECKING

from msgspec import Struct

from miniq.batch import Claim
from miniq.broker import rules
from miniq.broker.failures import QueueFailures, first_line, grouped, last_death, recent
from miniq.broker.health import problems, unattended_since
from miniq.broker.timings import Times, percentiles
from miniq.broker.trend_log import TrendLog
from miniq.consumer import Percentiles
from miniq.errors import InvalidRequest, MiniQError, QueueNotFound
from miniq.failure import FailureGroup, HeldClaim, LastDeath, QueueProblem, RecentFailures
from miniq.message import SECOND, Counts, moment
from miniq.store.arguments import Scan

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
SAVE_EVERY = 4
"""Steps after which new rows are written to the store."""
CLAIMS_FRESH = 5.0
"""Seconds for which the claims of a shared store are not read again."""
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
    problems: list[QueueProblem] = []
    unattended_since: datetime | None = None
    failures: RecentFailures | None = None
    claim: HeldClaim | None = None
    dead_oldest: datetime | None = None
    last_death: LastDeath | None = None


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
        self._claims: dict[str, tuple[str, Claim]] = {}
        self._claims_as_of = -math.inf
        self._looked_for_dead: dict[str, LastDeath | None] = {}
        """The oldest dead letters of queues of which this broker has seen none die; None if there is none."""
        self._log = TrendLog(broker)
        self._offsets: dict[str, list[int]] = {}
        """By queue: what the counters were before they began at zero, when the broker started or the queue was made."""
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
        """Sample the numbers once per second, from those on that earlier brokers left in the store."""
        try:
            await self._restore(await self._log.load(self._broker.clock.now()))
        except MiniQError as error:
            log.warning("the last hour could not be read: %s", error)
        except Exception:
            log.exception("the last hour could not be read")  # the next one begins anew
        try:
            await self._sample()
        finally:
            with contextlib.suppress(MiniQError):
                await self._log.save()

    async def _sample(self) -> None:
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
            if step % SAVE_EVERY == 0:
                await self._log.save()

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
        claims = await self._oldest_claims()
        all_settings = broker.catalog.queues
        dead_letters = {rules.dead_letter_queue(name, settings) for name, settings in all_settings.items()}
        for start in range(0, len(queues), _CHUNK):
            chunk = {name: broker.catalog.find(name) for name in queues[start : start + _CHUNK]}
            known = {name: settings for name, settings in chunk.items() if settings is not None}
            names = list(known)
            dead_letter_queues = {name: rules.dead_letter_queue(name, settings) for name, settings in known.items()}
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
                    consumers, seen = broker.consumers.presence(name, now)
                    times = [*broker.timings.recent(name, now).values(), *broker.sharing.times(name, now)]
                    wait = percentiles(some.wait for some in times)
                    processing = percentiles(some.processing for some in times)
                    rated = dict(zip(RATES, rates, strict=True))
                    failures = self._failures(name, times, now)
                    claim = claims.get(name)
                    held_since = None if claim is None else claim[1].made_at
                    wrong = problems(known[name], counts[name], seen, name in dead_letters, failures, held_since, now)
                    since = unattended_since(counts[name], seen, now)
                    dead = counts.get(target, Counts())
                    yield QueueStats(
                        name,
                        counts[name],
                        rated,
                        *letters,
                        consumers,
                        wait,
                        processing,
                        wrong,
                        None if since is None else moment(since),
                        failures,
                        claim and HeldClaim(claim[0], claim[1].number, claim[1].messages, moment(claim[1].made_at)),
                        None if dead.oldest is None else moment(dead.oldest),
                        await self._last_death(name, target) if dead.total else None,
                    )

    async def _oldest_claims(self) -> dict[str, tuple[str, Claim]]:
        """By queue: the group and the oldest claim that is not acked. A shared store is not asked every time."""
        broker = self._broker
        if not broker.store.shared or monotonic() - self._claims_as_of > CLAIMS_FRESH:
            held = await broker.store.claims.all_groups(broker.clock.now(), held=True)
            self._claims_as_of = monotonic()
            self._claims = {
                queue: min(
                    ((group.group, claim) for group in groups for claim in group.claims),
                    key=lambda found: found[1].made_at,
                )
                for queue, groups in held.items()
            }
        return self._claims

    def _failures(self, queue: str, times: Sequence[Times], now: int) -> RecentFailures | None:
        """The failures of the last minutes."""
        known = self._known_failures(queue)
        count, last = recent(known, now) if known else (0, None)
        if not count or last is None:
            return None
        settled = sum(sum(some.processing.values()) for some in times)
        expired = self._broker.failures.expired(queue, now)
        return RecentFailures(count, max(count, settled + expired), last[1], moment(last[0]))

    def _known_failures(self, queue: str) -> list[QueueFailures]:
        own = self._broker.failures.queues.get(queue)
        return [*([] if own is None else [own]), *self._broker.sharing.failures(queue)]

    async def _last_death(self, queue: str, target: str) -> LastDeath | None:
        """The last dead letter of a queue. If this broker has seen none die, the oldest one that is there."""
        at, error = last_death(self._known_failures(queue))
        if at:
            return LastDeath(moment(at), error)
        broker = self._broker
        if queue not in self._looked_for_dead:
            if len(self._looked_for_dead) >= MAX_QUEUES:
                self._looked_for_dead.clear()
            self._looked_for_dead[queue] = None
            size = broker.options.limits.response_bytes
            with contextlib.suppress(QueueNotFound):
                page = await broker.store.messages.scan(target, Scan(limit=1, max_bytes=size, now=broker.clock.now()))
                for stored in page.messages:
                    dead = stored.message.dead
                    if dead is not None and dead.origin == queue:
                        why = first_line(dead.error or dead.reason)
                        self._looked_for_dead[queue] = LastDeath(moment(dead.at), why)
        return self._looked_for_dead[queue]

    async def failure_groups(self, queue: str) -> list[FailureGroup]:
        """Why messages of a queue failed in the last hour, the error that was seen last first."""
        broker = self._broker
        await broker.catalog.require(queue)
        await broker.sharing.read()
        return grouped(self._known_failures(queue), broker.clock.now())

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
            row += self._counted(name, rows, [counters.get((name, event), 0) for event in RATES])
            if rows[1 - _WIDTH :].tolist() != row[1:]:
                before = rows[-len(RATES) :] if rows else self._bases[name]
                gauges, deltas = row[1 : 1 + len(GAUGES)], map(operator.sub, row[1 + len(GAUGES) :], before)
                self._log.add(name, [step, *gauges, *deltas])
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
        self._offsets.pop(queue, None)

    def _counted(self, queue: str, rows: array[int], counters: list[int]) -> list[int]:
        """Counters that go on from the last row, also if the queue was deleted and made again since."""
        offsets = self._offsets.get(queue)
        if offsets is not None:
            if rows and any(map(operator.lt, map(operator.add, counters, offsets), rows[-len(RATES) :])):
                offsets = self._offsets[queue] = rows[-len(RATES) :].tolist()
            return list(map(operator.add, counters, offsets))
        return counters

    async def _restore(self, hour: dict[str, array[int]]) -> None:
        """Begin with the last hour of earlier brokers: by queue, rows of step, gauges, and what was counted since the
        row before. Other calls run in between."""
        queues = self._broker.catalog.queues
        for number, (name, rows) in enumerate(hour.items()):
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
            if name in queues and name not in self._rows and len(self._rows) < MAX_QUEUES:
                for column in range(1 + len(GAUGES), _WIDTH):
                    rows[column::_WIDTH] = array("q", itertools.accumulate(rows[column::_WIDTH]))
                self._rows[name], self._bases[name] = rows, array("q", [0] * len(RATES))
                now = [self._broker.metrics.messages[name, event] for event in RATES]
                self._offsets[name] = list(map(operator.sub, rows[-len(RATES) :], now))

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
