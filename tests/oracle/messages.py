"""The messages of the oracle."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from miniq.consumer import NOTHING, Holding
from miniq.errors import InvalidRequest
from miniq.message import NEVER, Counts, History, Message, Outcome, Page, Status, Stored
from miniq.store import events
from miniq.store.arguments import FREE, Change, Edit, Fence, NewTime, Publication, Put, Room, Scan, Take
from miniq.store.contract import HOME, MessageStore, RecordChanged
from miniq.store.decisions import (
    Budget,
    call_answer,
    check_room,
    ended,
    publication_answer,
    repeated_call,
    repeated_publication,
    sift,
    sift_publication,
    size_of,
)
from miniq.store.names import CALL, call_record
from miniq.topic import Published
from tests.oracle.shelves import Readers, Shelf, Shelves


class Messages(MessageStore):
    """See `MessageStore`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    async def put(self, messages: Sequence[Message], put: Put) -> list[str]:
        queue = messages[0].queue
        shelf = self._shelves[queue]
        if put.record is not None and not self._shelves.has_record(put.record):
            raise RecordChanged(put.record)
        if put.call is not None:
            answer = shelf.standing(call_record(put.call.name), put.now)
            if answer is not None:
                return repeated_call(answer, put.call)
        sifted = sift(messages, lambda name: shelf.standing(name, put.now))
        fresh = sifted.fresh
        check_room(put.room, queue, (len(shelf.rows), shelf.bytes), (len(fresh), size_of(fresh)))
        self._shelves.arrive(shelf, fresh, put)
        if put.record is not None and put.record.value is not None:
            self._shelves.records[put.record.kind][put.record.name] = put.record.value
        if put.call is not None:
            shelf.dedup[call_record(put.call.name)] = (call_answer(sifted.ids, put.call), put.call.until)
        return sifted.ids

    async def publish(self, publication: Publication) -> Published:
        home, now, call, record = self._shelves[HOME], publication.now, publication.call, publication.record
        if record is not None and not self._shelves.has_record(record):
            raise RecordChanged(record)
        shelves = [self._shelves[target.queue] for target in publication.targets]
        if call is not None:
            answer = home.standing(call_record(call.name), now)
            if answer is not None:
                return repeated_publication(answer, call)
        sifted = sift_publication(publication, lambda name: home.standing(call_record(name), now))
        reached = sifted.targets
        for place in reached:
            target, shelf = publication.targets[place], shelves[place]
            check_room(target.room, target.queue, (len(shelf.rows), shelf.bytes), sifted.more(place))
        published = Published(sifted.ids, len(reached))
        if record is not None and record.value is not None:
            self._shelves.records[record.kind][record.name] = record.value
        for name, id in sifted.brought.items():
            home.dedup[call_record(name)] = (id, publication.dedup_until)
        if call is not None:
            home.dedup[call_record(call.name)] = (publication_answer(published, call), call.until)
        if sifted.fresh:
            names = [publication.targets[place].queue for place in reached]
            self._shelves.record(publication.keep, events.published(publication, sifted.fresh, names))
        for place in reached:
            target = publication.targets[place]
            copies = [copy for stretch in sifted.fresh if place in stretch.targets for copy in stretch.copies(target)]
            for message in copies:
                shelves[place].add(message)
                self._shelves.record(target.keep, events.sent(message, now, "published", target.keep))
                self._shelves.last_id = max(self._shelves.last_id, message.id)
            for message in copies:
                self._shelves.on_ready(message.queue, message.recipient, 1)
        return published

    async def take(self, queue: str, take: Take) -> list[Stored]:
        taken: list[Stored] = []
        limit = take.limit
        if take.in_flight:
            limit = max(0, min(limit, take.in_flight - (await self.counts(queue, take.now)).leased))
        budget = Budget(limit, take.max_bytes)
        shelf, change = self._shelves[queue], Change(take.now, take.keep)
        for head in list(shelf.line(take.consumer, take.now)):
            for row in list(shelf.batch(head, take.consumer, take.now)) if take.group_batch else [head]:
                if not budget.admits(row.message.size):
                    return taken
                taken.append(self._shelves.lease(row, take.until, take.token, take.consumer, change, take.fit))
        return taken

    async def drop(self, queue: str, fences: Sequence[Fence], change: Change) -> list[Outcome]:
        shelf = self._shelves[queue]
        outcomes: list[Outcome] = []
        for fence in fences:
            row, outcome = shelf.check(fence, change.now)
            if row is not None:
                self._shelves.leave(shelf, row, change, fence[1])
            outcomes.append(outcome)
        self._shelves.remember(shelf, [id for id, _ in fences], outcomes, change)
        return outcomes

    async def reschedule(self, queue: str, fences: Sequence[Fence], to: NewTime, change: Change) -> list[Outcome]:
        shelf = self._shelves[queue]
        outcomes: list[Outcome] = []
        for fence in fences:
            row, outcome = shelf.check(fence, change.now)
            if row is not None:
                if change.event is not None:
                    self._shelves.record(
                        change.keep, row.left(change.event, change.now, extra=change.extra, error=to.error)
                    )
                row.error = row.error if to.error is None else to.error
                row.visible_at = to.moment(row.receives)
                if to.unused and row.receipt is not None:
                    row.receives -= 1
                if to.release:
                    row.release()
                self._shelves.on_ready(queue, row.message.recipient, 1)
            outcomes.append(outcome)
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, change: Change) -> Outcome:
        shelf = self._shelves[queue]
        old, outcome = shelf.check(fence, change.now)
        if old is not None:
            if edit.due_at is not None and fence[1] == FREE:
                self._shelves.expire(old, change)
            shelf.remove(fence[0])
            row = shelf.add(edit.apply(old.message))
            row.restore(old.stored(), old.taken_at, old.was_taken)
            if edit.due_at is not None:
                self._shelves.come_back(row, edit.due_at)
            self._shelves.record(change.keep, events.edited(row.message, change.now, row.receives, change.keep))
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        change: Change,
        keep_to: History,
        room: Room | None = None,
    ) -> list[Outcome]:
        shelf = self._shelves[queue]
        targets = [self._shelves[message.queue] for _, message in moves]  # raises before anything is changed
        if room is not None:
            given = [message for _, message in moves]
            check_room(room, given[0].queue, (len(targets[0].rows), targets[0].bytes), (len(given), size_of(given)))
        outcomes: list[Outcome] = []
        for (fence, message), target in zip(moves, targets, strict=True):
            row, outcome = shelf.check(fence, change.now)
            if row is not None:
                self._shelves.leave(shelf, row, change, fence[1], None if message.dead is None else message.dead.error)
                target.add(message)
                self._shelves.last_id = max(self._shelves.last_id, message.id)
                self._shelves.record(keep_to, events.sent(message, change.now, change.event, keep_to))
                self._shelves.on_ready(message.queue, message.recipient, 1)
            outcomes.append(outcome)
        self._shelves.remember(shelf, [id for (id, _), _ in moves], outcomes, change)
        return outcomes

    async def clear(self, queue: str, change: Change, forget: bool = False) -> int:
        old = self._shelves[queue]
        fresh = self._shelves[queue] = Shelf(old.settings)
        fresh.dedup, fresh.stages, fresh.results = old.dedup, old.stages, old.results
        if forget:
            fresh.dedup = {name: record for name, record in old.dedup.items() if name.startswith(CALL)}
        for group, readers in old.readers.items():
            fresh.readers[group] = Readers(ended(readers.state(change.now)))
        if old.rows:
            self._shelves.record(change.keep, events.purged(queue, len(old.rows), old.bytes, change.now))
        return len(old.rows)

    async def find(self, queue: str, ids: Sequence[str]) -> dict[str, Stored]:
        rows = self._shelves[queue].rows
        return {id: rows[id].stored() for id in ids if id in rows}

    async def scan(self, queue: str, scan: Scan) -> Page:
        shelf = self._shelves[queue]
        start = 0
        if scan.after is not None:
            priority, dot, id = scan.after.partition(".")
            if not dot or not priority.isdigit():
                raise InvalidRequest(f"after: {scan.after!r} is not a cursor given as `next`", field="after")
            start = bisect_left(shelf.order, (-int(priority), id + "\0"))
        page: list[Stored] = []
        budget = Budget(scan.limit, scan.max_bytes)
        for key in shelf.order[start:]:
            stored = shelf.rows[key[1]].stored()
            if scan.status is not None and stored.status(scan.now) != scan.status:
                continue
            if not budget.admits(stored.message.size):
                last = page[-1].message
                return Page(page, f"{last.priority}.{last.id}")
            page.append(stored)
        return Page(page, None)

    async def held(self, queue: str, token: str, until: int) -> list[Stored]:
        return [
            stored for stored in self.of_token(token) if (stored.message.queue, stored.visible_at) == (queue, until)
        ]

    def of_token(self, token: str) -> list[Stored]:
        """The messages of all queues whose receipt is `token`."""
        rows = [row for shelf in self._shelves.values() for row in shelf.rows.values() if row.receipt == token]
        return sorted((row.stored() for row in rows), key=lambda stored: stored.message.id)

    async def counts(self, queue: str, now: int) -> Counts:
        shelf = self._shelves[queue]
        tally: dict[Status, int] = {"ready": 0, "delayed": 0, "leased": 0}
        for row in shelf.rows.values():
            tally[row.stored().status(now)] += 1
        oldest = min((row.message.sent_at // 1000 * 1000 for row in shelf.line(None, now)), default=None)
        return Counts(tally["ready"], tally["delayed"], tally["leased"], shelf.bytes, oldest)

    async def holdings(self, queue: str, now: int) -> dict[str | None, Holding]:
        found: dict[str | None, Holding] = {}
        for row in self._shelves[queue].rows.values():
            if row.stored().status(now) == "leased":
                before = found.get(row.consumer, NOTHING)
                found[row.consumer] = Holding(before.messages + 1, max(before.taken_at, row.taken_at or 0))
        return found

    async def next_visible(self, queue: str, now: int) -> int | None:
        rows = self._shelves[queue].rows.values()
        return min((row.visible_at for row in rows if now < row.visible_at < NEVER), default=None)
