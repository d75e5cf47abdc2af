"""Schedules: messages that are sent when their time comes.

A schedule is a small record of the store, with its next moment. To fire is one change of the store: the message is
added, and the record gets its next moment, on the condition that it still is the record that this broker knows. So
every broker of a shared store may try, and one of them succeeds, whatever crashes. The next moment only moves forward,
so a clock that is set back sends nothing twice. `firing.py` says when.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from miniq.broker.definitions import check_definition, check_name, stamped
from miniq.errors import InvalidRequest, ScheduleNotFound, TooManySchedules, show
from miniq.message import SECOND, Draft
from miniq.schedule import CatchUp, Definition, Firing, Schedule
from miniq.store.arguments import RecordChange
from miniq.store.contract import RecordChanged
from miniq.timetable import Timing, moment_of, timing_of

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

KIND = "schedule"
KEPT = 20
"""Results that are kept of each schedule."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """A schedule as it is stored."""

    name: str
    draft: Draft
    timing: Timing
    catch_up: CatchUp
    queue: str | None = None
    topic: str | None = None
    paused: bool = False
    start: int = 0
    """When its timing was set."""
    due: int | None = None
    """The next moment; None if there is none."""
    handled: int = 0
    """The latest moment that was handled: no earlier one ever follows."""
    results: list[Firing] = []

    def set_off(self, now: int) -> Entry:
        """With its next moment from now on."""
        return replace(self, due=self.timing.next(max(now, self.handled), self.start))

    def after(self, moment: int, firings: Sequence[Firing]) -> Entry:
        """After all moments up to this one were handled, with these results in order of time."""
        results = [*reversed(firings), *self.results][:KEPT]
        return replace(self, handled=moment, due=self.timing.next(moment, self.start), results=results)


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Entry).decode


class Known(Struct, frozen=True):
    """A schedule with its record in the store."""

    raw: bytes
    entry: Entry


class Stamp(Protocol):
    """The change of a record that goes with messages, given their ids and, on a topic, how many queues get each."""

    def __call__(self, ids: Sequence[str], queues: Sequence[int | None] | None = None) -> RecordChange: ...


After = Callable[[Sequence[Firing]], Entry]
"""A schedule after these firings."""


class Schedules:
    """The schedules of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.known: dict[str, Known] = {}
        """By name, as they were read or written last. Another broker may have changed them since."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when there may be another next moment."""

    async def load(self) -> None:
        """Read all schedules."""
        records = await self._broker.store.records(KIND)
        known = self.known
        self.known = {
            name: known[name] if name in known and known[name].raw == raw else Known(raw, decode(raw))
            for name, raw in records.items()
        }
        self.on_change()

    def planned(self) -> frozenset[str]:
        """The queues that schedules send to and that do not exist yet."""
        find = self._broker.catalog.find
        queues = {known.entry.queue for known in self.known.values()}
        return frozenset(queue for queue in queues if queue is not None and find(queue) is None)

    def planned_topics(self) -> frozenset[str]:
        """The topics that schedules publish to and that do not exist yet."""
        topics = {known.entry.topic for known in self.known.values()}
        return frozenset(topic for topic in topics if topic is not None and topic not in self._broker.topics.topics)

    @property
    def entries(self) -> list[Entry]:
        """All schedules by name."""
        return [known.entry for _, known in sorted(self.known.items())]

    # Calls

    async def put(self, name: str, definition: Definition | None, paused: bool | None = None) -> Schedule:
        """Create a schedule or replace its definition; without one, pause or resume it. Without `paused`, it stays
        paused if it is. To repeat a call changes nothing."""
        self._broker.check_open()
        check_name(name)
        if paused is not None and not isinstance(paused, bool):
            raise InvalidRequest(f"paused: {show(paused)} is neither true nor false", field="paused")
        if definition is not None:
            check_definition(name, definition, self._broker.options.limits)
            self._broker.store.check_space(len(definition.draft.body), 1)
        now = self._broker.clock.wall()

        def change(before: Entry | None) -> Entry:
            if definition is not None:
                after = self._defined(name, definition, before, now)
            elif before is not None:
                after = before
            else:
                raise _missing(name)
            is_paused = after.paused if paused is None else paused
            if after.paused and not is_paused:
                after = after.set_off(now)
            return replace(after, paused=is_paused)

        return self._shown(await self._change(name, change), now)

    def _defined(self, name: str, definition: Definition, before: Entry | None, now: int) -> Entry:
        """A schedule with a new definition; while its timing stays, so do its moments."""
        timing = timing_of(definition, now, None if before is None else before.timing)
        queue, topic = definition.queue, definition.topic
        if before is None:
            most = self._broker.options.max_schedules
            if len(self.known) >= most:
                text = (
                    f"name: {name!r} cannot be created, there are {most} schedules; delete some, or raise max_schedules"
                )
                raise TooManySchedules(text, field="name")
            return Entry(name, definition.draft, timing, definition.catch_up, queue, topic, start=now).set_off(now)
        after = replace(before, draft=definition.draft, catch_up=definition.catch_up, queue=queue, topic=topic)
        return after if timing == before.timing else replace(after, timing=timing, start=now).set_off(now)

    async def get(self, name: str) -> Schedule:
        """One schedule."""
        return self._shown((await self._find(name)).entry, self._broker.clock.wall())

    async def all(self) -> list[Schedule]:
        """All schedules by name."""
        self._broker.check_open()
        await self._refresh()
        now = self._broker.clock.wall()
        return [self._shown(entry, now) for entry in self.entries]

    async def delete(self, name: str) -> None:
        """Remove a schedule. What it has sent stays."""
        self._broker.check_open()
        await self._refresh()
        while True:
            known = await self._find(name)
            if await self._broker.store.change_record(RecordChange(KIND, name, known.raw, None)):
                break
            await self.load()
        self.known.pop(name, None)
        self._broker.metrics.forget_schedule(name)

    async def run(self, name: str) -> Schedule:
        """Send the message of a schedule now, paused or not. Its next moment stays."""
        while True:
            known, now = await self._find(name), self._broker.clock.wall()
            entry = known.entry
            try:
                after = await self.send(
                    known,
                    [now],
                    lambda firings, entry=entry: replace(entry, results=[*firings, *entry.results][:KEPT]),  # type: ignore[misc]
                    on_request=True,
                )
            except RecordChanged:
                await self.load()
            else:
                return self._shown(after, now)

    # What firing needs

    async def send(self, known: Known, moments: Sequence[int], after: After, on_request: bool = False) -> Entry:
        """Send the message of a schedule for each of some moments and store what the schedule is `after` that, in one
        change. The only place that knows what the target of a schedule is."""
        entry, at = known.entry, moment_of(self._broker.clock.wall())
        new: list[Known] = []
        made: list[Firing] = []
        given: list[str] = []
        ids: list[str] = []

        def stamp(ids: Sequence[str], queues: Sequence[int | None] | None = None) -> RecordChange:
            shown = ids if entry.draft.dedup_id is None else [None] * len(ids)
            firings = [
                Firing(moment_of(moment), at, "sent", id, on_request=on_request, queues=count)
                for moment, id, count in zip(moments, shown, queues or [None] * len(ids), strict=True)
            ]
            made[:], given[:] = firings, ids
            result = after(firings)
            new[:] = [Known(_encode(result), result)]
            return RecordChange(KIND, entry.name, known.raw, new[0].raw, is_quiet=True)

        drafts = [stamped(entry.name, entry.draft, moment) for moment in moments]
        if entry.topic is not None:
            ids = (await self._broker.topics.publish(entry.topic, drafts, stamp=stamp)).ids
        elif entry.queue is not None:
            ids = await self._broker.send(entry.queue, drafts, stamp=stamp)
        self.known[entry.name] = new[0]
        if entry.draft.dedup_id is None:
            self._broker.metrics.firings[entry.name, "sent"] += len(moments)
        else:  # which of them were new is known only now; if the schedule was changed meanwhile, it stays unsaid
            firings = [
                replace(firing, id=id) if id == own else replace(firing, id=id, outcome="duplicate", queues=None)
                for firing, own, id in zip(made, given, ids, strict=True)
            ]
            with suppress(RecordChanged):
                await self.record(new[0], after(firings), firings)
        return self.known[entry.name].entry

    def note(self, known: Known, after: Entry, firings: Sequence[Firing]) -> None:
        """Remember what became of a schedule without a message, and store nothing: for another process its moments are
        missed ones."""
        if self.known.get(after.name) is known:  # else it was changed meanwhile, and is looked at again
            self.known[after.name] = Known(known.raw, after)
            self.count(after.name, firings)

    async def record(self, known: Known, after: Entry, firings: Sequence[Firing]) -> None:
        """Store what became of a schedule without a message."""
        raw, name = _encode(after), after.name
        change = RecordChange(KIND, name, known.raw, raw, is_quiet=True)
        if not await self._broker.store.change_record(change):
            raise RecordChanged(change)
        self.known[name] = Known(raw, after)
        self.count(name, firings)

    def count(self, name: str, firings: Sequence[Firing]) -> None:
        """Count moments in the metrics."""
        for firing in firings:
            self._broker.metrics.firings[name, firing.outcome] += firing.count

    # Inside

    async def _find(self, name: str) -> Known:
        self._broker.check_open()
        await self._refresh()
        if name not in self.known:
            check_name(name)
            raise _missing(name)
        return self.known[name]

    async def _change(self, name: str, change: Callable[[Entry | None], Entry]) -> Entry:
        """Create or change a schedule, as `change` says of what it is, and tell other brokers."""
        await self._refresh()
        while True:
            known = self.known.get(name)
            before = None if known is None else known.entry
            after = change(before)
            if after == before:
                return after
            raw = _encode(after)
            was = None if known is None else known.raw
            if await self._broker.store.change_record(RecordChange(KIND, name, was, raw)):
                break
            await self.load()
        self.known[name] = Known(raw, after)
        self.on_change()
        return after

    async def _refresh(self) -> None:
        """Read what other brokers may have changed."""
        if self._broker.store.shared:
            await self.load()

    def _shown(self, entry: Entry, now: int) -> Schedule:
        timing, first = entry.timing, entry.due
        if entry.paused:  # what would come if it were resumed now
            first = timing.next(max(now, entry.handled), entry.start)
        return Schedule(
            entry.name,
            entry.draft,
            entry.queue,
            entry.topic,
            timing.cron,
            timing.every / SECOND if timing.every else None,
            moment_of(timing.at) if timing.at else None,
            timing.timezone,
            entry.catch_up,
            entry.paused,
            list(map(moment_of, timing.upcoming(first, entry.start))),
            entry.results,
        )


def _missing(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"name: there is no schedule {name!r:.140}", field="name")
