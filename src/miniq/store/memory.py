"""The shortest correct store, and the oracle of the tests. Nothing survives the process."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from miniq.errors import InvalidRequest
from miniq.message import (
    Counts,
    Event,
    EventName,
    History,
    HistoryPage,
    HistoryRecord,
    HistorySpan,
    Message,
    Outcome,
    Page,
    QueueSettings,
    Status,
    Stored,
)
from miniq.store import events
from miniq.store.base import ANY, FREE, ByName, Edit, Fence, Once, ReadyHint, Room, check_room


class _Row:
    """A message and its state."""

    __slots__ = ("consumer", "message", "receipt", "receives", "taken_at", "visible_at")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.visible_at = message.due_at
        self.receives = 0
        self.receipt: str | None = None
        self.consumer: str | None = None
        self.taken_at: int | None = None

    def stored(self) -> Stored:
        return Stored(self.message, self.visible_at, self.receives, self.receipt, self.consumer)

    def held(self, now: int) -> int | None:
        return None if self.receipt is None or self.taken_at is None else now - self.taken_at


class _Queue:
    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.rows: dict[str, _Row] = {}
        self.order: list[tuple[int, str]] = []
        """(-priority, id) of every message."""
        self.heads: dict[str, str] = {}
        """The head of each group."""
        self.dedup: dict[str, tuple[str, int]] = {}
        self.bytes = 0

    def add(self, message: Message) -> _Row:
        row = self.rows[message.id] = _Row(message)
        insort(self.order, (-message.priority, message.id))
        self.bytes += message.size
        if message.group is not None:
            self.heads.setdefault(message.group, message.id)
        return row

    def remove(self, id: str) -> _Row:
        row = self.rows.pop(id)
        key = (-row.message.priority, id)
        del self.order[bisect_left(self.order, key)]
        self.bytes -= row.message.size
        return row

    def advance(self, group: str | None) -> bool:
        """Choose the next head of a group whose head has left; True if there is one."""
        if group is None or self.heads.get(group) in self.rows:
            return False
        rest = [id for id, row in self.rows.items() if row.message.group == group]
        if rest:
            self.heads[group] = min(rest)
        else:
            self.heads.pop(group, None)
        return bool(rest)

    def check(self, fence: Fence, now: int) -> Outcome:
        id, receipt = fence
        row = self.rows.get(id)
        if row is None:
            return "missing"
        if receipt == FREE:
            return "leased" if row.stored().status(now) == "leased" else "done"
        return "done" if receipt in (ANY, row.receipt) else "stale"


class MemoryStore:
    """Everything in dicts; see `Store` for what each method promises."""

    def __init__(self) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self._queues: ByName[_Queue] = ByName()
        self._history: list[Event] = []
        self._first = 1
        self._last_id = ""
        self._records: dict[str, dict[str, bytes]] = {}

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def failure(self) -> Exception | None:
        return None

    async def queues(self) -> dict[str, QueueSettings]:
        return {name: queue.settings for name, queue in self._queues.items()}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        if name in self._queues:
            self._queues[name].settings = settings
        else:
            self._queues[name] = _Queue(settings)

    async def delete_queue(self, name: str) -> bool:
        return self._queues.pop(name, None) is not None

    async def records(self, kind: str) -> dict[str, bytes]:
        return dict(self._records.get(kind, {}))

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        records = self._records.setdefault(kind, {})
        if value is None:
            records.pop(name, None)
        else:
            records[name] = value

    async def last_id(self) -> str:
        return self._last_id

    async def put(
        self,
        messages: Sequence[Message],
        *,
        now: int,
        dedup_until: int,
        room: Room | None,
        keep: History,
        call: Once | None = None,
    ) -> list[str]:
        queue = self._queues[messages[0].queue]
        if call is not None:
            given, until = queue.dedup.get("\0" + call.name, ("", 0))
            if until > now:
                return given.split(",")
        fresh: list[Message] = []
        known: dict[str, str] = {}
        ids: list[str] = []
        for message in messages:
            dedup_id = message.dedup_id
            if dedup_id is not None:
                id, until = queue.dedup.get(dedup_id, ("", 0))
                first = known.get(dedup_id) or (id if until > now else None)
                if first is not None:
                    ids.append(first)
                    continue
                known[dedup_id] = message.id
            ids.append(message.id)
            fresh.append(message)
        if room is not None:
            check_room(room, len(queue.rows), queue.bytes, fresh)
        for message in fresh:
            queue.add(message)
            self._log(keep, events.sent(message, now, None, keep))
            self._last_id = max(self._last_id, message.id)
        for dedup_id, id in known.items():
            queue.dedup[dedup_id] = (id, dedup_until)
        if call is not None:
            queue.dedup["\0" + call.name] = (",".join(ids), call.until)
        for message in fresh:
            self.on_ready(message.queue, message.recipient, 1)
        return ids

    async def take(
        self,
        queue: str,
        *,
        limit: int,
        max_bytes: int,
        now: int,
        until: int,
        token: str,
        consumer: str | None,
        keep: History,
    ) -> list[Stored]:
        taken: list[Stored] = []
        size = 0
        shelf = self._queues[queue]
        for _, id in shelf.order:
            row = shelf.rows[id]
            message = row.message
            if row.visible_at > now or (message.recipient is not None and message.recipient != consumer):
                continue
            if message.group is not None and shelf.heads[message.group] != id:
                continue
            size += message.size
            if (taken and size > max_bytes) or len(taken) == limit:
                break
            if row.receipt is not None and row.taken_at is not None:
                lasted = row.visible_at - row.taken_at
                self._log(keep, self._left("expired", row, now, "lease", lasted))
            since = row.visible_at
            row.visible_at, row.receipt, row.consumer, row.taken_at = until, token, consumer, now
            row.receives += 1
            self._log(keep, events.received(message, now, row.receives, since, consumer))
            taken.append(row.stored())
        return taken

    async def drop(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
    ) -> list[Outcome]:
        shelf = self._queues[queue]
        outcomes: list[Outcome] = []
        for fence in fences:
            outcome = shelf.check(fence, now)
            if outcome == "done":
                row = shelf.remove(fence[0])
                self._log(keep, self._left(event, row, now, reason, row.held(now)))
                self._advance(queue, shelf, row.message.group)
            outcomes.append(outcome)
        return outcomes

    async def reschedule(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        visible_at: int,
        release: bool,
        event: EventName | None,
        keep: History,
    ) -> list[Outcome]:
        shelf = self._queues[queue]
        outcomes: list[Outcome] = []
        for fence in fences:
            outcome = shelf.check(fence, now)
            if outcome == "done":
                row = shelf.rows[fence[0]]
                if event is not None:
                    self._log(keep, self._left(event, row, now, None, row.held(now)))
                row.visible_at = visible_at
                if release:
                    row.receipt = row.consumer = row.taken_at = None
                self.on_ready(queue, row.message.recipient, 1)
            outcomes.append(outcome)
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, *, now: int, keep: History) -> Outcome:
        shelf = self._queues[queue]
        outcome = shelf.check(fence, now)
        if outcome == "done":
            old = shelf.remove(fence[0])
            row = shelf.add(edit.apply(old.message))
            row.visible_at, row.receives = old.visible_at, old.receives
            row.receipt, row.consumer, row.taken_at = old.receipt, old.consumer, old.taken_at
            if edit.visible_at is not None:
                row.visible_at = edit.visible_at
                row.receipt = row.consumer = row.taken_at = None
                self.on_ready(queue, row.message.recipient, 1)
            self._log(keep, events.edited(row.message, now, row.receives, keep))
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
        keep_to: History,
    ) -> list[Outcome]:
        shelf = self._queues[queue]
        outcomes: list[Outcome] = []
        for fence, message in moves:
            outcome = shelf.check(fence, now)
            if outcome == "done":
                row = shelf.remove(fence[0])
                self._log(keep, self._left(event, row, now, reason, row.held(now)))
                self._advance(queue, shelf, row.message.group)
                self._queues[message.queue].add(message)
                self._log(keep_to, events.sent(message, now, event, keep_to))
                self.on_ready(message.queue, message.recipient, 1)
            outcomes.append(outcome)
        return outcomes

    async def clear(self, queue: str, *, now: int, keep: History) -> int:
        old = self._queues[queue]
        fresh = self._queues[queue] = _Queue(old.settings)
        fresh.dedup = old.dedup
        if old.rows:
            self._log(keep, events.purged(queue, len(old.rows), old.bytes, now))
        return len(old.rows)

    async def find(self, queue: str, id: str) -> Stored | None:
        row = self._queues[queue].rows.get(id)
        return None if row is None else row.stored()

    async def scan(
        self, queue: str, *, status: Status | None, after: str | None, limit: int, max_bytes: int, now: int
    ) -> Page:
        shelf = self._queues[queue]
        start = 0
        if after is not None:
            priority, dot, id = after.partition(".")
            if not dot or not priority.isdigit():
                raise InvalidRequest(f"after: {after!r} is not a cursor given as `next`", field="after")
            start = bisect_left(shelf.order, (-int(priority), id + "\0"))
        found: list[Stored] = []
        size = 0
        for key in shelf.order[start:]:
            stored = shelf.rows[key[1]].stored()
            if status is not None and stored.status(now) != status:
                continue
            size += stored.message.size
            if len(found) == limit or (found and size > max_bytes):
                last = found[-1].message
                return Page(found, f"{last.priority}.{last.id}")
            found.append(stored)
        return Page(found, None)

    async def held(self, token: str) -> list[Stored]:
        rows = [row for queue in self._queues.values() for row in queue.rows.values() if row.receipt == token]
        return sorted((row.stored() for row in rows), key=lambda stored: stored.message.id)

    async def counts(self, queue: str, *, now: int) -> Counts:
        shelf = self._queues[queue]
        tally: dict[Status, int] = {"ready": 0, "delayed": 0, "leased": 0}
        for row in shelf.rows.values():
            tally[row.stored().status(now)] += 1
        # Of a group only the head can be taken next.
        ready = (row.message for row in shelf.rows.values() if row.visible_at <= now and row.message.recipient is None)
        heads = (m for m in ready if m.group is None or shelf.heads[m.group] == m.id)
        oldest = min((message.sent_at // 1000 * 1000 for message in heads), default=None)
        return Counts(tally["ready"], tally["delayed"], tally["leased"], shelf.bytes, oldest)

    async def next_visible(self, queue: str, *, now: int) -> int | None:
        rows = self._queues[queue].rows.values()
        return min((row.visible_at for row in rows if row.visible_at > now), default=None)

    async def history(self, *, after: int, limit: int, queue: str | None) -> HistoryPage:
        found: list[HistoryRecord] = []
        start = max(0, after + 1 - self._first)
        for offset, event in enumerate(self._history[start:], self._first + start):
            if len(found) == limit:
                break
            after = offset
            if queue is None or event.queue == queue:
                found.append(HistoryRecord(offset, event))
        return HistoryPage(found, after)

    async def history_span(self) -> HistorySpan:
        size = sum(64 + len(event.body or b"") for event in self._history)
        oldest = self._history[0].at if self._history else None
        return HistorySpan(self._first, self._first + len(self._history) - 1, size, oldest)

    async def trim_history(self, upto: int) -> None:
        count = min(len(self._history), max(0, upto + 1 - self._first))
        del self._history[:count]
        self._first += count

    async def tidy(self, *, now: int, limit: int) -> int:
        removed = 0
        for queue in self._queues.values():
            gone = [dedup_id for dedup_id, (_, until) in queue.dedup.items() if until <= now][: limit - removed]
            for dedup_id in gone:
                del queue.dedup[dedup_id]
            removed += len(gone)
        return removed

    async def backup(self, path: str) -> None:
        raise InvalidRequest("store: a memory store has nothing on disk to back up", field="store")

    def _log(self, keep: History, event: Event) -> None:
        if keep != "off":
            self._history.append(event)

    def _advance(self, name: str, queue: _Queue, group: str | None) -> None:
        if queue.advance(group) and group is not None:
            self.on_ready(name, queue.rows[queue.heads[group]].message.recipient, 1)

    @staticmethod
    def _left(event: EventName, row: _Row, now: int, reason: str | None, held: int | None) -> Event:
        message = row.message
        return events.left(
            event,
            message.queue,
            message.id,
            message.size,
            now,
            receives=row.receives,
            consumer=row.consumer,
            held=held,
            reason=reason,
        )
