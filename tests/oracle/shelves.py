"""The data of the oracle: queues with their messages, claims, stages and dedup records, and the history."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from miniq.message import (
    NEVER,
    Claim,
    ClaimGroup,
    Event,
    EventName,
    History,
    Message,
    Outcome,
    QueueSettings,
    StageName,
    Stored,
)
from miniq.store import events
from miniq.store.arguments import Change, Fence, Put
from miniq.store.contract import ByName, ReadyHint
from miniq.store.decisions import StagePart, fence


class Row:
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

    def restore(self, state: Stored, taken_at: int | None) -> None:
        """Take over the state of a message from elsewhere."""
        self.visible_at, self.receives = state.visible_at, state.receives
        self.receipt, self.consumer, self.taken_at = state.receipt, state.consumer, taken_at

    def release(self) -> None:
        self.receipt = self.consumer = self.taken_at = None

    def left(self, event: EventName, now: int, reason: str | None = None, until: int | None = None) -> Event:
        """The event of a lease that ended or a message that left; the consumer held it until now, or `until`."""
        held = None if self.taken_at is None else (now if until is None else until) - self.taken_at
        message = self.message
        queue, id, size = message.queue, message.id, message.size
        return events.left(event, queue, id, size, now, self.receives, self.consumer, held, reason)


class Readers:
    """The claims of a group, with their messages as they were when the claim was made."""

    def __init__(self, state: ClaimGroup) -> None:
        self.group = state.group
        self.epoch, self.acked, self.last = state.epoch, state.acked, state.last
        self.content: dict[int, list[Stored]] = {}
        self.claims: dict[int, Claim] = {}
        self.kept: dict[int, int] = {}
        """Until when an acked claim is readable."""

    def readable(self, number: int, now: int) -> Claim | None:
        return self.claims.get(number) if self.kept.get(number, NEVER) > now else None

    def state(self, now: int) -> ClaimGroup:
        claims = [claim for number, claim in sorted(self.claims.items()) if self.readable(number, now)]
        return ClaimGroup(self.group, self.epoch, self.acked, self.last, claims)

    def forget(self, number: int) -> None:
        del self.claims[number], self.content[number]
        self.kept.pop(number, None)


class Part(StagePart, frozen=True):
    """A part of a stage, with its messages."""

    content: list[Message]


class Shelf:
    """A queue."""

    def __init__(self, settings: QueueSettings) -> None:
        self.settings = settings
        self.rows: dict[str, Row] = {}
        self.order: list[tuple[int, str]] = []
        """(-priority, id) of every message."""
        self.heads: dict[str, str] = {}
        """The head of each group."""
        self.dedup: dict[str, tuple[str, int]] = {}
        self.readers: dict[str, Readers] = {}
        self.stages: dict[StageName, dict[int, Part]] = {}
        self.bytes = 0

    def add(self, message: Message) -> Row:
        row = self.rows[message.id] = Row(message)
        insort(self.order, (-message.priority, message.id))
        self.bytes += message.size
        if message.group is not None:
            self.heads.setdefault(message.group, message.id)
        return row

    def remove(self, id: str) -> Row:
        row = self.rows.pop(id)
        del self.order[bisect_left(self.order, (-row.message.priority, id))]
        self.bytes -= row.message.size
        return row

    def line(self, consumer: str | None, now: int) -> Iterator[Row]:
        """The messages that a consumer may take, in queue order."""
        for _, id in self.order:
            row = self.rows[id]
            message = row.message
            if row.visible_at > now or (message.recipient is not None and message.recipient != consumer):
                continue
            if message.group is None or self.heads[message.group] == id:
                yield row

    def advance(self, group: str) -> Row | None:
        """Choose a new head for a group whose head has left; None if it has not, or was the last message."""
        if self.heads.get(group) in self.rows:
            return None
        ids = [id for id, row in self.rows.items() if row.message.group == group]
        if not ids:
            self.heads.pop(group, None)
            return None
        self.heads[group] = min(ids)
        return self.rows[min(ids)]

    def check(self, named: Fence, now: int) -> tuple[Row | None, Outcome]:
        """The outcome of a change under a fence, and the message if it may be changed."""
        id, receipt = named
        row = self.rows.get(id)
        if row is None:
            return None, "missing"
        outcome = fence(row.visible_at, row.receipt, receipt, now)
        return (row if outcome == "done" else None), outcome

    def standing(self, name: str, now: int) -> str | None:
        """The answer in a dedup record that has not expired."""
        answer, until = self.dedup.get(name, ("", 0))
        return answer if until > now else None


class Shelves(ByName[Shelf]):
    """All queues, the history, and the changes shared by several parts of the store."""

    def __init__(self) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.events: list[Event] = []
        self.first = 1
        self.last_id = ""

    def record(self, keep: History, event: Event) -> None:
        if keep != "off":
            self.events.append(event)

    def arrive(self, shelf: Shelf, fresh: list[Message], put: Put) -> None:
        """Add new messages."""
        for message in fresh:
            shelf.add(message)
            self.record(put.keep, events.sent(message, put.now, None, put.keep))
            self.last_id = max(self.last_id, message.id)
            if message.dedup_id is not None:
                shelf.dedup[message.dedup_id] = (message.id, put.dedup_until)
        for message in fresh:
            self.on_ready(message.queue, message.recipient, 1)

    def leave(self, shelf: Shelf, row: Row, change: Change) -> None:
        """Remove a message from its queue."""
        message = shelf.remove(row.message.id).message
        if change.recorded is not None:
            self.events.append(row.left(change.recorded, change.now, change.reason))
        head = None if message.group is None else shelf.advance(message.group)
        if head is not None:
            self.on_ready(message.queue, head.message.recipient, 1)

    def lease(self, row: Row, until: int, token: str, consumer: str | None, change: Change) -> Stored:
        """Lease a message."""
        now, message = change.now, row.message
        if row.receipt is not None and row.taken_at is not None:
            self.record(change.keep, row.left("expired", now, "lease", row.visible_at))
        since = row.visible_at
        row.visible_at, row.receipt, row.consumer, row.taken_at = until, token, consumer, now
        row.receives += 1
        event = events.received(message.queue, message.id, message.size, now, row.receives, since, consumer)
        self.record(change.keep, event)
        return row.stored()

    def come_back(self, row: Row, visible_at: int) -> None:
        """Give a message back."""
        row.visible_at = visible_at
        row.release()
        self.on_ready(row.message.queue, row.message.recipient, 1)
