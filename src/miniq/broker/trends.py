"""Rates, and the last hour: what those see who watch a broker.

Once a second the counters of `metrics.py` are noted, from which rates are taken; every `STEP` seconds a row with the
numbers of each queue is kept for an hour, in this process alone. A queue whose numbers stay the same costs nothing, and
no more than `MOST` queues have a past, so that a broker with very many of them stays small.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from miniq.broker import background, rules
from miniq.errors import InvalidRequest, MiniQError, QueueNotFound
from miniq.message import SECOND, Counts

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.trends")

RATES = ("sent", "received", "acked", "released", "expired", "dead")
"""What is counted; as a series, messages a second."""
GAUGES = ("ready", "delayed", "leased")
SERIES = ("total", *GAUGES, *RATES)
STEP = 15
"""Seconds between two rows."""
ROWS = 240
"""An hour of them."""
MOST = 2000
"""Queues that have a past."""
WINDOW = 5
"""Seconds over which a rate is taken."""
_WIDTH = 1 + len(GAUGES) + len(RATES)
SHARE = 50
"""Queues looked at without letting others have their turn."""


class QueueStats(Struct, frozen=True):
    """A queue now: its counts, messages a second by event, and how many of its messages lie dead elsewhere."""

    name: str
    counts: Counts
    rates: dict[str, float]
    dead_letter_queue: str | None
    dead: int


class Trend(Struct, frozen=True):
    """Series of one queue over the last hour, oldest first, with one value for each point in time."""

    name: str
    series: dict[str, list[float]]


class Trends:
    """The watched numbers of a broker. A server starts it; elsewhere `tick` may be called by hand."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._noted: deque[tuple[int, dict[tuple[str, str], int]]] = deque(maxlen=WINDOW + 1)
        """When, and what the counters said."""
        self._rows: dict[str, array[int]] = {}
        """By queue, rows of step, gauges and counters, one after the other; only those that differ from the last."""
        self._step = 0
        """The last one for which there are rows."""
        self._task: asyncio.Task[None] | None = None
        self._ending = asyncio.Event()

    def start(self) -> None:
        """Note the numbers once a second from now on."""
        self._task = asyncio.create_task(self._loop())

    def end(self) -> None:
        """Let those who watch go: the broker will close soon."""
        self._ending.set()

    async def pause(self, seconds: float) -> bool:
        """Wait before looking again; False if there is nothing more to be seen."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), seconds)
        return not self._ending.is_set()

    async def stop(self) -> None:
        if self._task is not None:
            await background.end(self._task)
            self._task = None

    async def tick(self) -> None:
        """Note the counters, and every `STEP` seconds a row for each queue."""
        now = self._broker.clock.now()
        self._noted.append((now, dict(self._broker.metrics.messages)))
        step = now // (STEP * SECOND)
        if step != self._step:
            self._step = step
            await self._note(step)

    async def stats(self, queues: Iterable[str]) -> list[QueueStats]:
        """These queues as they are now."""
        broker = self._broker
        names = [name for name in queues if broker.catalog.find(name) is not None]
        grave = {name: rules.dead_letter_queue(name, broker.catalog.settings(name)) for name in names}
        counts = await self._count({*names, *filter(None, grave.values())})
        now = broker.clock.now()
        before, passed = self._before(now)
        counted = broker.metrics.messages
        found: list[QueueStats] = []
        for name in names:
            if name not in counts:
                continue
            rates = {}
            for event in RATES:
                total = counted.get((name, event), 0)
                rates[event] = round(max(0, total - before.get((name, event), 0)) / passed, 2) if total else 0.0
            dead = grave[name]
            lie = counts[dead].total if dead in counts else 0
            found.append(QueueStats(name, counts[name], rates, dead, lie))
        return found

    def last_hour(self, queues: Iterable[str], series: Sequence[str], points: int) -> list[Trend]:
        """Series of these queues at `points` moments (a divisor of `ROWS`), the last of which is the last step.
        Queues of which nothing is known are left out, and moments before the first row are not there."""
        for name in series:
            if name not in SERIES:
                raise InvalidRequest(f"series: {name[:80]!r}; there are {', '.join(SERIES)}", field="series")
        rules.check_count(points, "points", 1, ROWS)
        if ROWS % points:
            raise InvalidRequest(f"points: {points} does not divide {ROWS}; use 60, 120 or {ROWS}", field="points")
        stride = ROWS // points
        found = []
        for name in queues:
            rows = self._rows.get(name)
            if rows:
                values = self._expand(rows, series, points, stride)
                found.append(Trend(name, values))
        return found

    @property
    def last(self) -> int:
        """The moment of the last row."""
        return self._step * STEP * SECOND

    # Inside

    async def _loop(self) -> None:
        while self._broker.store.failure() is None:
            try:
                await self.tick()
            except MiniQError as error:
                log.debug("the numbers could not be noted: %s", error)
            except Exception:
                log.exception("the numbers could not be noted")  # and the next ones can be
            await asyncio.sleep(1)

    def _before(self, now: int) -> tuple[dict[tuple[str, str], int], float]:
        """What the counters said a while ago, and how many seconds ago that was."""
        for at, said in self._noted:
            if SECOND // 2 <= now - at <= (WINDOW + 2) * SECOND:
                return said, (now - at) / SECOND
        return dict(self._broker.metrics.messages), 1.0

    async def _note(self, step: int) -> None:
        broker = self._broker
        counted = broker.metrics.messages
        fresh = [name for name in broker.catalog.names() if name not in self._rows]
        for name in fresh[: max(0, MOST - len(self._rows))]:
            self._rows[name] = array("q")
        for name, counts in (await self._count(set(self._rows))).items():
            rows = self._rows[name]
            row = [step, counts.ready, counts.delayed, counts.leased]
            row += [counted.get((name, event), 0) for event in RATES]
            if rows[1 - _WIDTH :].tolist() != row[1:]:
                rows.extend(row)
                while len(rows) > _WIDTH and rows[_WIDTH] <= step - ROWS:
                    del rows[:_WIDTH]
        for gone in self._rows.keys() - broker.catalog.names():
            del self._rows[gone]

    async def _count(self, queues: Collection[str]) -> dict[str, Counts]:
        """The counts of those queues that are still there, a share at a time, so that others have their turn. A store
        behind a network is asked for a share at once."""
        broker = self._broker
        names = sorted(queues)
        found: dict[str, Counts] = {}
        for start in range(0, len(names), SHARE):
            there = [name for name in names[start : start + SHARE] if broker.catalog.find(name) is not None]
            if broker.store.shared:
                answers = await asyncio.gather(*[self._ask(name) for name in there])
                found.update((name, counts) for name, counts in zip(there, answers, strict=True) if counts is not None)
            else:
                now = broker.clock.now()  # an older one would take what came in since for delayed
                for name in there:
                    found[name] = await broker.store.messages.counts(name, now)
                await asyncio.sleep(0)
        return found

    async def _ask(self, queue: str) -> Counts | None:
        """The counts of one queue, None if another broker has removed it."""
        with contextlib.suppress(QueueNotFound):
            return await self._broker.store.messages.counts(queue, self._broker.clock.now())
        return None

    def _expand(self, rows: array[int], series: Sequence[str], points: int, stride: int) -> dict[str, list[float]]:
        """The value of each series at each moment: gauges as they were then, counters as a rate since the moment
        before."""
        held = [rows[place : place + _WIDTH].tolist() for place in range(0, len(rows), _WIDTH)]
        steps = [self._step - stride * (points - 1 - point) for point in range(points)]
        seen = []
        place = -1
        for step in [steps[0] - stride, *steps]:
            while place + 1 < len(held) and held[place + 1][0] <= step:
                place += 1
            seen.append(held[place] if place >= 0 else None)
        values: dict[str, list[float]] = {}
        for name in series:
            if name == "total":
                values[name] = [sum(row[1:4]) for row in seen[1:] if row is not None]
            elif name in GAUGES:
                column = 1 + GAUGES.index(name)
                values[name] = [row[column] for row in seen[1:] if row is not None]
            else:
                column = 1 + len(GAUGES) + RATES.index(name)
                values[name] = [
                    # Counters begin anew with a queue that was deleted and made again.
                    round(max(0, row[column] - (before or held[0])[column]) / (stride * STEP), 3)
                    for before, row in itertools.pairwise(seen)
                    if row is not None
                ]
        return values
