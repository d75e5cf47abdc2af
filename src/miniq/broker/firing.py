"""The background task that fires schedules.

It sleeps until the earliest next moment. Because the computer's clock may be set, and the computer may sleep, it looks
at the clock every second while there are schedules. `timetable.py` says what is due, `schedules.py` makes the change.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING

from miniq.broker.schedules import After, Known
from miniq.errors import Closed, MiniQError, NoSpace, StoreFailed, StoreUnavailable
from miniq.message import SECOND
from miniq.schedule import Firing
from miniq.store.contract import RecordChanged
from miniq.timetable import moment_of, plan

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.schedules")

PASS = 100
"""Moments of a schedule that are sent in one change when it catches up."""
TOGETHER = 16
"""Schedules that fire at the same time."""
LOOK = SECOND
LATE = 10 * SECOND
"""A moment that could not be handled within this time was missed."""
STARTED = SECOND
"""So was one that was this long ago when this broker started."""
ERROR = 1000
"""Characters that are kept of an error."""
PAUSE = 2 * SECOND
"""How long to wait after an error of the store."""


class Firings:
    """The background task of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._schedules = broker.schedules
        self._wake = asyncio.Event()
        self._schedules.on_change = self._wake.set
        self._pass = asyncio.Lock()
        self._resting: dict[str, int] = {}
        """Schedules that failed for a reason that this code does not know, and when they are tried again."""
        self._opened_at = 0

    async def open(self) -> None:
        """Read all schedules, and fire them from now on."""
        self._opened_at = self._broker.clock.wall()
        await self._schedules.load()
        self._broker.background.spawn(self._run())

    async def _run(self) -> None:
        """Fire whatever is due, until the broker closes."""
        clock = self._broker.clock
        while True:
            self._wake.clear()
            pause = 0
            try:
                await self.fire_due()
            except (StoreFailed, Closed):
                return
            except MiniQError as error:
                log.warning("schedules wait for the store: %s", error)
                pause = PAUSE
            except Exception:
                log.exception("schedules wait")
                pause = PAUSE
            timer = None
            if self._schedules.known:
                pause = max(pause, min(LOOK, self._until_next()))
                timer = clock.call_at(clock.now() + pause, self._wake.set)
            await self._wake.wait()
            if timer is not None:
                timer.cancel()

    def _until_next(self) -> int:
        """Microseconds until the earliest moment, of schedules that have one."""
        moments = [when for known in self._schedules.known.values() if (when := self._when(known)) is not None]
        return max(0, min(moments) - self._broker.clock.wall()) if moments else LOOK

    def _when(self, known: Known) -> int | None:
        """When a schedule is to be handled next."""
        entry = known.entry
        if entry.paused or entry.due is None:
            return None
        return max(entry.due, self._resting.get(entry.name, 0))

    async def fire_due(self) -> None:
        """Fire all schedules whose moment has come, and catch up as they say, until none is due."""
        async with self._pass:
            while due := self._due():
                for start in range(0, len(due), TOGETHER):
                    firings = map(self._fire_guarded, due[start : start + TOGETHER])
                    results = await asyncio.gather(*firings, return_exceptions=True)
                    for result in results:
                        if isinstance(result, BaseException):
                            raise result
                    if not all(results):  # another broker was faster, perhaps also with those that follow
                        await self._schedules.load()
                        break

    def _due(self) -> list[Known]:
        """What is due now, the earliest first. Brokers that share a store take those of the same moment in different
        order."""
        now = self._broker.clock.wall()
        due = [(when, known) for known in self._schedules.known.values() if (when := self._when(known)) is not None]
        random.shuffle(due)
        return [known for when, known in sorted(due, key=lambda each: each[0]) if when <= now]

    async def _fire_guarded(self, known: Known) -> bool:
        """Handle a schedule that is due; False if another call or broker has changed it. It never fails in a loop."""
        name = known.entry.name
        try:
            await self._fire(known)
            self._resting.pop(name, None)
        except RecordChanged:
            return False
        except (StoreUnavailable, StoreFailed, Closed):
            raise
        except Exception:
            log.exception("schedule %s could not be handled; it is tried again", name)
            self._resting[name] = self._broker.clock.wall() + LATE
        return True

    async def _fire(self, known: Known) -> None:
        """Handle some of the moments of a schedule that are due."""
        entry, now = known.entry, self._broker.clock.wall()
        assert entry.due is not None  # noqa: S101
        missed_before = max(self._opened_at - STARTED, now - LATE)
        todo = plan(entry.timing, entry.due, entry.start, now, missed_before, entry.catch_up, PASS)
        at = moment_of(now)
        skipped = []
        if todo.skipped is not None:
            first, last, count = todo.skipped
            until = moment_of(last) if count > 1 else None
            skipped = [Firing(moment_of(first), at, "skipped", count=count, until=until)]
        if not todo.send:
            await self._schedules.record(known, entry.after(todo.last, skipped), skipped)
            return

        def after(moment: int) -> After:
            return lambda firings: entry.after(moment, [*skipped, *firings])

        try:
            try:
                await self._schedules.send(known, todo.send, after(todo.last))
            except MiniQError as error:
                if len(todo.send) == 1 or not _is_final(error):
                    raise
                await self._schedules.send(known, todo.send[:1], after(todo.send[0]))  # there may be room for one
        except MiniQError as error:
            if not _is_final(error):
                raise
            log.warning("schedule %s failed: %s", entry.name, error)
            failed = Firing(moment_of(todo.send[0]), at, "failed", error=error.text[:ERROR], count=len(todo.send))
            firings, done = [*skipped, failed], entry.after(todo.last, [*skipped, failed])
            if isinstance(error, NoSpace):  # a record of each failure would take the space kept for receive and ack
                self._schedules.note(known, done, firings)
            else:
                await self._schedules.record(known, done, firings)
        else:
            self._schedules.count(entry.name, skipped)


def _is_final(error: MiniQError) -> bool:
    """Whether a firing failed because of its queue or its message, while the store works."""
    return not isinstance(error, RecordChanged | StoreUnavailable | StoreFailed | Closed)
