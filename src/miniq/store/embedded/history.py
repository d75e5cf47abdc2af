"""The history of the embedded store: the events of a batch share a record, whose key has the last offset, and
neighbouring messages with the same fate share an event.

So a batch costs one record however many messages it changes. Offsets are assigned when the batch is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

import msgspec

from miniq.ids import ids_from
from miniq.message import Event, EventName, HistoryPage, HistoryRecord, HistorySpan, Message, PlainBatch
from miniq.store import events
from miniq.store.arguments import ANYTHING, Change, Fit
from miniq.store.contract import HistoryStore
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.commit import Batch, GroupCommit
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.kv import KV, Op
from miniq.store.embedded.states import Run

RECORD_BYTES = 1024 * 1024
RECORD_EVENTS = 4096
"""Events per record, about: a page decodes whole records."""
EXAMINED = 20_000


class HistoryLog(HistoryStore):
    """See `HistoryStore`."""

    def __init__(self, kv: KV, commit: GroupCommit) -> None:
        self._kv = kv
        self._commit = commit
        head = kv.get(keys.HISTORY_HEAD)
        last = kv.last(keys.history_key(0), keys.after(b"h"))
        record = keys.HistoryHead(1, 0) if head is None else keys.decode_head(head)
        self._first, self._bytes = record.first, record.bytes
        self._last = record.first - 1 if last is None else keys.offset_of(last)
        self._oldest: tuple[int, int | None] = 0, None
        """The first offset for which it was looked up, and the time of its event."""

    def begin(self, first: int, ops: list[Op]) -> None:
        """Start an empty history at an offset."""
        self._first, self._last, self._bytes = first, first - 1, 0
        ops.append((keys.HISTORY_HEAD, keys.encode(keys.HistoryHead(first, 0))))

    def append(self, runs: list[EventRun], ops: list[Op]) -> None:
        """Assign the next offsets to events and stage their records."""
        part: list[EventRun] = []
        size = count = 0
        for run in runs:
            part.append(run)
            count += _length(run)
            if run.first.body is not None or run.first.error is not None:
                size += len(run.first.body or b"") + len(run.first.error or "")
            if size > RECORD_BYTES or count >= RECORD_EVENTS:
                self._append(part, ops)
                part, size, count = [], 0, 0
        if part:
            self._append(part, ops)
        ops.append((keys.HISTORY_HEAD, keys.encode(keys.HistoryHead(self._first, self._bytes))))

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage:
        """Examines a bounded number of events."""
        self._commit.check()
        records: list[HistoryRecord] = []
        examined = 0
        for key, value in self._kv.scan(keys.history_key(max(after + 1, self._first)), keys.after(b"h")):
            runs = keys.decode_events(value)
            count = sum(map(_length, runs))
            offset = keys.offset_of(key) - count
            for run in runs:
                begin, offset = offset, offset + _length(run)
                if offset <= after:
                    continue
                if queue is None or run.first.queue == queue:
                    start = max(after, begin)
                    expanded = islice(_expand(run, start - begin), limit - len(records))
                    records += map(HistoryRecord, range(start + 1, offset + 1), expanded)
                    if len(records) == limit:
                        return HistoryPage(records, records[-1].offset)
                after = offset
            examined += count
            if examined >= EXAMINED:
                break
        return HistoryPage(records, after)

    async def span(self) -> HistorySpan:
        self._commit.check()
        if self._oldest[0] != self._first or self._last < self._first:
            page = await self.read(self._first - 1, 1)
            self._oldest = (self._first, page.records[0].event.at) if page.records else (0, None)
        return HistorySpan(self._first, self._last, self._bytes, self._oldest[1])

    async def trim(self, upto: int) -> None:
        """Removes whole records, a bounded number of them."""
        self._commit.check()
        await self._commit.settle()
        ops = self._commit.batch.ops
        removed = 0
        for key, value in self._kv.scan(keys.history_key(self._first), keys.after(b"h")):
            last = keys.offset_of(key)
            if last > upto or removed == 1000:
                break
            ops.append((key, None))
            self._bytes -= len(value)
            self._first = last + 1
            removed += 1
        if removed:
            ops.append((keys.HISTORY_HEAD, keys.encode(keys.HistoryHead(self._first, self._bytes))))
        await self._commit.settle()

    def _append(self, runs: list[EventRun], ops: list[Op]) -> None:
        value = keys.encode(runs)
        self._last += sum(map(_length, runs))
        self._bytes += len(value)
        ops.append((keys.history_key(self._last), value))


def _length(run: EventRun) -> int:
    return 1 if run.sizes is None else len(run.sizes)


def _expand(run: EventRun, start: int) -> Iterator[Event]:
    """The events of a run, without the first `start`."""
    first, sizes = run.first, run.sizes
    if sizes is None:
        yield first
        return
    change = msgspec.structs.replace
    for id, size in zip(ids_from(first.id, len(sizes))[start:], sizes[start:], strict=True):
        yield change(first, id=id, size=size)


def event_run(first: Event, sizes: list[int] | None) -> EventRun:
    """The event of one message, or of as many neighbours as there are sizes."""
    return EventRun(first, sizes if sizes is not None and len(sizes) > 1 else None)


def record_taken(
    batch: Batch,
    messages: Sequence[Message],
    sizes: list[int],
    old: Run | None,
    consumer: str | None,
    now: int,
    fit: Fit = ANYTHING,
) -> None:
    """Record that neighbours with one state were handed out, except those that are not fit."""
    receives, since = (0, messages[0].due_at) if old is None else (old.receives, old.visible_at)
    stretches = [range(len(sizes))]
    if not (isinstance(messages, PlainBatch) and fit.allows_plain(messages.sent_at, receives)):
        unfit = [place for place, message in enumerate(messages) if fit.refusal(message, receives, now) is not None]
        stretches = [range(start + 1, stop) for start, stop in pairwise([-1, *unfit, len(sizes)]) if stop > start + 1]
    for places in stretches:
        message, some = messages[places.start], sizes[places.start : places.stop]
        first = events.received(message.queue, message.id, some[0], now, receives + 1, since, consumer)
        batch.events.append(event_run(first, some))


def record_left(
    batch: Batch,
    event: EventName,
    shelf: Shelf,
    block: Block,
    places: range,
    sizes: list[int],
    change: Change,
    error: str | None = None,
) -> None:
    """Record that neighbours in a block with one state left the queue or lost their lease. `sizes` are the block's."""
    start = places.start
    run = block.runs[start]
    receives, consumer, held = 0, None, None
    if run is not None:
        receives, consumer = run.receives - change.extra, run.consumer
        held = None if run.receipt is None else change.now - run.taken_at
    state = (change.now, receives, consumer, held, change.reason, error)
    first = events.left(event, shelf.name, block.id_at(start), sizes[start], *state)
    batch.events.append(event_run(first, sizes[start : places.stop]))
