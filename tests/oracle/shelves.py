"""The data of the oracle: queues with their messages, claims, stages and dedup records, and the history."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from miniq.batch import Claim, ClaimGroup, StageName
from miniq.message import LEASE_EXPIRED, NEVER, Event, EventName, History, Message, Outcome, QueueSettings, Stored
from miniq.result import Finished
from miniq.store import events
from miniq.store.arguments import ANYTHING, FREE, Change, Fence, Fit, Put, RecordChange
from miniq.store.contract import ByName, LeaseCount, ReadyHint
from miniq.store.decisions import StagePart, fence


class Row:
    """A message and its state."""

    __slots__ = ("consumer", "error", "message", "receipt", "receives", "taken_at", "visible_at", "was_taken")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.visible_at = message.due_at
        self.receives = 0
        self.receipt: str | None = None
        self.consumer: str | None = None
        self.taken_at: int | None = None
        self.error: str | None = None
        self.was_taken = False

    def stored(self) -> Stored:
        return Stored(self.message, self.visible_at, self.receives, self.receipt, self.consumer, self.error)

    def restore(self, state: Stored, taken_at: int | None, was_taken: bool) -> None:
        """Take over the state of a message from elsewhere."""
        self.visible_at, self.receives = state.visible_at, state.receives
        self.receipt, self.consumer, self.taken_at = state.receipt, state.consumer, taken_at
        self.error = state.error
        self.was_taken = was_taken

    def release(self) -> None:
        self.receipt = self.consumer = self.taken_at = None

    def left(
        self,
        event: EventName,
        now: int,
        reason: str | None = None,
        until: int | None = None,
        extra: int = 0,
        error: str | None = None,
    ) -> Event:
        """The event of a lease that ended or a message that left; the consumer held it until now, or `until`."""
        held = None if self.taken_at is None else (now if until is None else until) - self.taken_at
        message = self.message
        queue, id, size = message.queue, message.id, message.size
        return events.left(event, queue, id, size, now, self.receives - extra, self.consumer, held, reason, error)


class Readers:
    """The claims of a group, with their messages as they were when the claim was made."""

    def __init__(self, state: ClaimGroup) -> None:
        self.group = state.group
        self.epoch, self.acked, self.last, self.id = state.epoch, state.acked, state.last, state.id
        self.content: dict[int, list[Stored]] = {}
        self.claims: dict[int, Claim] = {}
        self.kept: dict[int, int] = {}
        """Until when an acked claim is readable."""

    def readable(self, number: int, now: int) -> Claim | None:
        return self.claims.get(number) if self.kept.get(number, NEVER) > now else None

    def state(self, now: int) -> ClaimGroup:
        claims = [claim for number, claim in sorted(self.claims.items()) if self.readable(number, now)]
        return ClaimGroup(self.group, self.epoch, self.acked, self.last, claims, self.id)

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
        self.results: dict[str, tuple[Finished, int]] = {}
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
        open_groups = {group: self.members(group)[0] for group in self.heads if not self.is_leased(group, now)}
        for _, id in self.order:
            row = self.rows[id]
            message = row.message
            if row.visible_at > now or (message.recipient is not None and message.recipient != consumer):
                continue
            if message.group is None or open_groups.get(message.group) is row:
                yield row

    def members(self, group: str) -> list[Row]:
        """The messages of a group in order: its front, or its head, then the others."""
        rows = [row for row in self.rows.values() if row.message.group == group]
        head = self.heads[group]
        return sorted(
            rows, key=lambda row: (not row.was_taken, not row.was_taken and row.message.id != head, row.message.id)
        )

    def is_leased(self, group: str, now: int) -> bool:
        """Whether one of the messages of a group is leased."""
        rows = (row for row in self.rows.values() if row.message.group == group)
        return any(row.receipt is not None and row.visible_at > now for row in rows)

    def batch(self, head: Row, consumer: str | None, now: int) -> Iterator[Row]:
        """The messages that a consumer gets together with the head of their group, and that first."""
        group = head.message.group
        for row in [head] if group is None else self.members(group):
            if row.visible_at > now or row.message.recipient not in (None, consumer):
                return
            yield row

    def advance(self, group: str) -> Row | None:
        """Choose a new head for a group whose head has left; None if it has not, or was the last message."""
        if self.heads.get(group) in self.rows:
            return None
        rows = [row for row in self.rows.values() if row.message.group == group]
        if not rows:
            self.heads.pop(group, None)
            return None
        head = min(rows, key=lambda row: (not row.was_taken, row.message.id))
        self.heads[group] = head.message.id
        return head

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
        self.on_lease_expired: LeaseCount = lambda queue, count: None
        self.events: list[Event] = []
        self.first = 1
        self.last_id = ""
        self.records: dict[str, dict[str, bytes]] = {}

    def has_record(self, change: RecordChange) -> bool:
        """Whether a small record is what it was."""
        return self.records.get(change.kind, {}).get(change.name) == change.was

    def record(self, keep: History, event: Event) -> None:
        if keep != "off":
            self.events.append(event)

    def arrive(self, shelf: Shelf, fresh: list[Message], put: Put) -> None:
        """Add new messages."""
        for message in fresh:
            shelf.add(message)
            self.record(put.keep, events.sent(message, put.now, put.reason, put.keep))
            self.last_id = max(self.last_id, message.id)
            if message.dedup_id is not None:
                shelf.dedup[message.dedup_id] = (message.id, put.dedup_until)
        for message in fresh:
            self.on_ready(message.queue, message.recipient, 1)

    def remember(self, shelf: Shelf, ids: list[str], outcomes: list[Outcome], change: Change) -> None:
        """Keep the results of messages that a change has removed."""
        if change.remember is not None:
            for id, outcome, finished in zip(ids, outcomes, change.remember.each, strict=True):
                if outcome == "done":
                    shelf.results[id] = (finished, change.remember.until)

    def leave(self, shelf: Shelf, row: Row, change: Change, receipt: str, error: str | None = None) -> None:
        """Remove a message from its queue, under a fence with this receipt."""
        if receipt == FREE:
            self.expire(row, change)
        message = shelf.remove(row.message.id).message
        if change.recorded is not None:
            self.events.append(row.left(change.recorded, change.now, change.reason, extra=change.extra, error=error))
        head = None if message.group is None else shelf.advance(message.group)
        if head is not None:
            self.on_ready(message.queue, head.message.recipient, 1)

    def expire(self, row: Row, change: Change) -> None:
        """The lease of a message that loses its receipt, if it had one, has expired."""
        if row.receipt is not None and row.taken_at is not None:
            self.record(change.keep, row.left("expired", change.now, "lease", row.visible_at))
            self.on_lease_expired(row.message.queue, 1)
            row.error = LEASE_EXPIRED

    def lease(
        self, row: Row, until: int, token: str, consumer: str | None, change: Change, fit: Fit = ANYTHING
    ) -> Stored:
        """Lease a message; it is received if it is fit."""
        now, message = change.now, row.message
        self.expire(row, change)
        is_fit = fit.refusal(message, row.receives, now) is None
        since = row.visible_at
        row.visible_at, row.receipt, row.consumer, row.taken_at = until, token, consumer, now
        row.receives += 1
        row.was_taken = True
        event = events.received(message.queue, message.id, message.size, now, row.receives, since, consumer)
        if is_fit:
            self.record(change.keep, event)
        return row.stored()

    def come_back(self, row: Row, visible_at: int) -> None:
        """Give a message back."""
        row.visible_at = visible_at
        row.release()
        self.on_ready(row.message.queue, row.message.recipient, 1)
