"""The messages of the embedded store.

Each call checks its fences, lets the ledger change memory and stage the records, and waits for the group commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from miniq.consumer import NOTHING, Holding
from miniq.errors import IdempotencyMismatch
from miniq.ids import sent_ms
from miniq.message import NEVER, Counts, History, Message, Outcome, Page, PlainBatch, Stored
from miniq.store import events
from miniq.store.arguments import FREE, Change, Edit, Fence, NewTime, Once, Publication, Put, Room, Scan, Take
from miniq.store.contract import MessageStore
from miniq.store.decisions import call_answer, check_room, fence, repeated_call, sift, size_of
from miniq.store.embedded import fronts
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.browse import browse, browse_held
from miniq.store.embedded.claims import Claims
from miniq.store.embedded.core import Core, Part
from miniq.store.embedded.failures import LAPSED, after_lease
from miniq.store.embedded.history import event_run, record_left, record_taken
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.publishing import Publishing
from miniq.store.embedded.states import Run
from miniq.store.names import call_record
from miniq.topic import Published

NO_ERRORS = repeat(None)
NO_BATCH: Iterator[tuple[Block, range, Run | None]] = iter(())


class Messages(Part, MessageStore):
    """See `MessageStore`."""

    def __init__(self, core: Core, claims: Claims) -> None:
        super().__init__(core)
        self._shelf = core.shelf
        self._claims = claims
        self._publishing = Publishing(core)

    async def put(self, messages: Sequence[Message], put: Put) -> list[str]:
        now, call = put.now, put.call
        if isinstance(messages, PlainBatch):
            queue, ids = messages.queue, list(messages.ids)
            # As `_shelf` has it, but for a call less: most sends come this way.
            shelf = self._core.shelves[queue] if self._commit.refusal is None else self._shelf(queue)
            size = messages.size
            deduped = False
        else:
            shelf, ids = self._shelf(messages[0].queue), [message.id for message in messages]
            size = sum([len(message.body) for message in messages])
            deduped = any(message.dedup_id for message in messages)
        if not put.from_reserve:
            self._core.check_space(size, len(ids))
        record = put.record
        if record is not None:
            self._core.records.check(record)
        fresh = messages
        brought: dict[str, str] = {}
        if call is not None:
            answer = self._dedup.standing(shelf, call_record(call.name), now)
            if answer is not None:
                given = repeated_call(answer, call)
                await self._commit.settle()
                return given
        if deduped:
            sifted = sift(messages, lambda name: self._dedup.standing(shelf, name, now))
            fresh, ids, brought = sifted.fresh, sifted.ids, sifted.brought
            if not fresh:
                if record is None:
                    await self._commit.settle()
                else:
                    self._core.records.stage(record.kind, record.name, record.value)
                    await self._commit.commit(sync=True)
                return ids
        if put.room is not None:
            check_room(put.room, shelf.name, (shelf.count, shelf.size), (len(fresh), size_of(fresh)))
        if call is not None:
            self._dedup.remember(shelf, {call_record(call.name): call_answer(ids, call)}, call.until)
        if brought:
            self._dedup.remember(shelf, brought, put.dedup_until)
        if record is not None:
            self._core.records.stage(record.kind, record.name, record.value)
        blocks = self._ledger.arrive(shelf, fresh, now)
        if put.keep != "off":
            self._record_sent(blocks, fresh, now, put.keep, put.reason)
        await self._commit.commit(sync=True)
        return ids

    async def put_each(
        self, batch: PlainBatch, calls: Sequence[Once | None], change: Change
    ) -> list[list[str] | IdempotencyMismatch]:
        shelf = self._shelf(batch.queue)
        self._core.check_space(batch.size, len(batch.ids))
        fresh, answers = self._dedup.sift_calls(shelf, batch, calls, change.now)
        if not fresh.ids:
            await self._commit.settle()
            return answers
        blocks = self._ledger.arrive(shelf, fresh, change.now)
        if change.keep != "off":
            self._record_sent(blocks, fresh, change.now, change.keep)
        await self._commit.commit(sync=True)
        return answers

    async def publish(self, publication: Publication) -> Published:
        return await self._publishing.publish(publication)

    async def take(self, queue: str, take: Take) -> list[Stored]:
        now, until, token, consumer = take.now, take.until, take.token, take.consumer
        shelf = self._shelf(queue)
        states, window = self._states, self._window
        states.wake(shelf, now)
        handed: list[tuple[Sequence[Message], int, Iterable[str | None]]] = []
        left, left_bytes = take.limit, take.max_bytes
        if take.in_flight:
            left = max(0, min(left, take.in_flight - shelf.leased))
        head: Block | None = None
        following = NO_BATCH
        for lanes in window.lanes(shelf, consumer):
            while left and left_bytes >= 0:
                picked = None if head is None else next(following, None)
                if head is not None and picked is not None:
                    if window.sizes(picked[0])[0] > left_bytes:
                        left_bytes = -1
                        break
                    if picked[0].waiting:
                        fronts.join(head, picked[0])
                else:
                    head = None
                    picked = window.pick(shelf, lanes, left, left_bytes, not handed)
                    if picked is None:
                        break
                block, places, old = picked
                count = len(places)
                if not count:
                    left_bytes = -1
                    break
                receives = 1 if old is None else old.receives + 1
                error = 0 if old is None else after_lease(old)
                run = states.give(shelf, block, places, until, receives, token, consumer, now, error)
                messages = window.load(block) if block.messages is None else block.messages
                sizes = block.sizes or window.sizes(block)
                if count < block.count:
                    messages = messages[places.start : places.stop]
                    sizes = sizes[places.start : places.stop]
                if block.next >= block.count and not any(run is None or run.due for run in block.runs):
                    window.forget(block)
                if take.group_batch and block.group is not None:
                    if head is None:
                        head, following = block, self._ledger.batch(shelf, block, consumer)
                    else:
                        window.forget(block)
                errors: Iterable[str | None] = NO_ERRORS
                if error:
                    errors = [states.failures.find(shelf, run, message.id) for message in messages]
                handed.append((messages, receives, errors))
                if old is not None and old.receipt is not None:
                    self._lease_expired(shelf, messages[0].id, sizes[0], old, Change(now, take.keep))
                left -= count
                left_bytes -= sum(sizes)
                if take.keep != "off":
                    record_taken(self._commit.batch, messages, sizes, old, consumer, now, take.fit)
        if handed:
            await self._commit.commit(sync=False)
        taken: list[Stored] = []
        for messages, receives, each in handed:
            taken += map(Stored, messages, repeat(until), repeat(receives), repeat(token), repeat(consumer), each)
        return taken

    async def drop(self, queue: str, fences: Sequence[Fence], change: Change) -> list[Outcome]:
        event = change.recorded
        shelf = self._shelf(queue)
        batch = self._commit.batch
        outcomes: list[Outcome] = []
        touched: dict[Block, None] = {}
        for run in _whole_runs(shelf, fences):
            block, places = run.block, run.places
            if event is not None:
                record_left(batch, event, shelf, block, places, self._window.sizes(block), change)
            self._ledger.remove_run(shelf, run)
            touched[block] = None
            outcomes += ["done"] * len(places)
        for id, receipt in fences[len(outcomes) :]:
            outcomes.append(self._remove(shelf, id, receipt, change, touched))
        if change.remember is not None:
            self._core.results.keep(shelf, [id for id, _ in fences], outcomes, change.remember)
        await self._finish(shelf, touched)
        return outcomes

    async def reschedule(self, queue: str, fences: Sequence[Fence], to: NewTime, change: Change) -> list[Outcome]:
        now = change.now
        shelf = self._shelf(queue)
        outcomes: list[Outcome] = []
        changed = False
        stretch: tuple[Block, int, int, Run | None] | None = None
        for id, receipt in fences:
            located = self._window.locate(shelf, id)
            outcome = _check(located, receipt, now)
            if located is not None and outcome == "done":
                block, place = located
                # Later fences must find this block, not read it again.
                shelf.blocks[block.name] = block
                run = block.runs[place]
                if stretch is not None and stretch[0] is block and stretch[2] == place and stretch[3] is run:
                    stretch = (block, stretch[1], place + 1, run)
                else:
                    if stretch is not None:
                        self._set_time(shelf, stretch, to, change)
                        run = block.runs[place]
                        outcome = _check(located, receipt, now)
                    stretch = (block, place, place + 1, run) if outcome == "done" else None
                changed = changed or outcome == "done"
            outcomes.append(outcome)
        if stretch is not None:
            self._set_time(shelf, stretch, to, change)
        if changed:
            await self._commit.commit(sync=True)
        else:
            await self._commit.settle()
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, change: Change) -> Outcome:
        now, keep = change.now, change.keep
        shelf = self._shelf(queue)
        located = self._window.locate(shelf, fence[0])
        outcome = _check(located, fence[1], now)
        if located is None or outcome != "done":
            return outcome
        block, place = located
        message = edit.apply(self._window.load(block)[place])
        self._core.check_space(len(message.body), 1)
        run = block.runs[place]
        error = 0 if run is None else run.error
        if edit.due_at is not None and self._meet(shelf, block, place, fence[1], change):
            error |= LAPSED
        new = self._ledger.edit(shelf, block, place, message)
        receives, returned = (0, False) if run is None else (run.receives, run.returned)
        if run is not None and edit.due_at is None:
            self._states.give_again(shelf, new, 0, run)
        elif message.due_at > now or receives or error or returned:
            self._states.give(shelf, new, range(1), message.due_at, receives, error=error, returned=returned)
        self._ledger.announce(shelf, new)
        if keep != "off":
            self._commit.batch.events.append(EventRun(events.edited(message, now, receives, keep)))
        await self._commit.commit(sync=True)
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        change: Change,
        keep_to: History,
        room: Room | None = None,
    ) -> list[Outcome]:
        shelf, now = self._shelf(queue), change.now
        targets = [self._core.shelves[message.queue] for _, message in moves]  # raises before anything is changed
        if room is not None:
            given = [message for _, message in moves]
            check_room(room, targets[0].name, (targets[0].count, targets[0].size), (len(given), size_of(given)))
        outcomes: list[Outcome] = []
        touched: dict[Block, None] = {}
        for ((id, receipt), message), target in zip(moves, targets, strict=True):
            error = None if message.dead is None else message.dead.error
            outcome = self._remove(shelf, id, receipt, change, touched, error)
            outcomes.append(outcome)
            if outcome == "done":
                self._ledger.arrive_one(target, message, now)
                if keep_to != "off":
                    self._commit.batch.events.append(EventRun(events.sent(message, now, change.event, keep_to)))
        if change.remember is not None:
            self._core.results.keep(shelf, [id for (id, _), _ in moves], outcomes, change.remember)
        await self._finish(shelf, touched)
        return outcomes

    async def clear(self, queue: str, change: Change, forget: bool = False) -> int:
        core, old = self._core, self._shelf(queue)
        if forget:
            self._dedup.forget(old)
        if not old.count and not old.readers:
            if forget:
                await self._commit.commit(sync=True)
            return 0
        fresh = core.shelves[queue] = Shelf(queue, core.garbage.next_number(), old.serial, old.settings)
        fresh.dedup = old.dedup
        fresh.stages = old.stages
        core.discard(old, old.number)
        core.save(fresh)
        self._claims.carry_over(old, fresh)
        if change.keep != "off" and old.count:
            self._commit.batch.events.append(EventRun(events.purged(queue, old.count, old.size, change.now)))
        await self._commit.commit(sync=True)
        return old.count

    async def find(self, queue: str, ids: Sequence[str]) -> dict[str, Stored]:
        while True:
            shelf = self._shelf(queue)
            located = {id: self._window.locate(shelf, id) for id in ids}
            present = {id: place for id, place in located.items() if place is not None}
            if all(block.arrives is None for block, _ in present.values()):
                break
            await self._commit.settle()
        stored, load = self._states.failures.stored, self._window.load
        return {id: stored(shelf, block, place, load(block)[place]) for id, (block, place) in present.items()}

    async def scan(self, queue: str, scan: Scan) -> Page:
        shelf = self._shelf(queue)
        if scan.status in ("leased", "delayed"):
            return browse_held(self._core, shelf, scan)
        return browse(self._core, shelf, scan)

    async def held(self, queue: str, token: str, until: int) -> list[Stored]:
        shelf, stored = self._shelf(queue), self._states.failures.stored
        messages = [
            stored(shelf, run.block, place, self._window.load(run.block)[place])
            for run in shelf.tokens.get(token, ())
            for place in run.held_places()
            if run.visible_at == until
        ]
        return sorted(messages, key=lambda stored: stored.message.id)

    async def counts(self, queue: str, now: int) -> Counts:
        shelf = self._shelf(queue)
        self._states.wake(shelf, now)
        heads = [self._window.head(shelf, lane) for lane in shelf.tracks[""] if lane.fresh or lane.back or lane.more]
        oldest = min((head for head in heads if head is not None), default=None)
        return Counts(
            shelf.count - shelf.leased - shelf.delayed,
            shelf.delayed,
            shelf.leased,
            shelf.size,
            None if oldest is None else sent_ms(oldest) * 1000,
        )

    async def holdings(self, queue: str, now: int) -> dict[str | None, Holding]:
        shelf = self._shelf(queue)
        self._states.wake(shelf, now)
        found: dict[str | None, Holding] = {}
        for run in (run for runs in shelf.tokens.values() for run in runs if not run.due):
            before = found.get(run.consumer, NOTHING)
            found[run.consumer] = Holding(before.messages + run.live, max(before.taken_at, run.taken_at))
        return found

    async def next_visible(self, queue: str, now: int) -> int | None:
        shelf = self._shelf(queue)
        self._states.wake(shelf, now)
        return self._states.next_due(shelf)

    # Inside

    def _set_time(self, shelf: Shelf, stretch: tuple[Block, int, int, Run | None], to: NewTime, change: Change) -> None:
        block, start, stop, run = stretch
        places = range(start, stop)
        if change.recorded is not None:
            sizes = self._window.sizes(block)
            record_left(self._commit.batch, change.recorded, shelf, block, places, sizes, change, to.error)
        receives, error, returned = (0, 0, False) if run is None else (run.receives, run.error, run.returned)
        moment = to.moment(receives)
        if to.unused and run is not None and run.receipt is not None:
            receives -= 1
            returned = block.group is not None and not receives
        if to.error is not None:
            error = self._states.failures.keep(shelf, block.ids_at(places), to.error)
        lease = (None, None, 0) if run is None or to.release else (run.receipt, run.consumer, run.taken_at)
        self._states.give(shelf, block, places, moment, receives, *lease, error, returned)
        self._core.hint(shelf.name, block.owner or None, stop - start)

    def _remove(
        self,
        shelf: Shelf,
        id: str,
        receipt: str,
        change: Change,
        touched: dict[Block, None],
        error: str | None = None,
    ) -> Outcome:
        """Remove one message under its fence; `error` is recorded."""
        located = self._window.locate(shelf, id)
        outcome = _check(located, receipt, change.now)
        if located is not None and outcome == "done":
            block, place = located
            self._meet(shelf, block, place, receipt, change)
            if change.recorded is not None:
                batch, sizes, places = self._commit.batch, self._window.sizes(block), range(place, place + 1)
                record_left(batch, change.recorded, shelf, block, places, sizes, change, error)
            if (run := block.runs[place]) is not None:
                self._states.failures.remove(shelf, run, [id])
            self._ledger.remove(shelf, block, place)
            shelf.blocks[block.name] = block
            touched[block] = None
        return outcome

    def _meet(self, shelf: Shelf, block: Block, place: int, receipt: str, change: Change) -> bool:
        """A message loses its receipt by a change that does not know it: the lease, if there was one, has expired.
        Returns whether there was one."""
        run = block.runs[place]
        expired = receipt == FREE and run is not None and run.receipt is not None
        if expired and run is not None:
            self._lease_expired(shelf, block.id_at(place), self._window.sizes(block)[place], run, change)
        return expired

    async def _finish(self, shelf: Shelf, touched: dict[Block, None]) -> None:
        """Commit removals; if there were none, wait for pending ones of other calls, which the outcomes depend on."""
        if touched:
            self._ledger.mend(shelf, touched)
            await self._commit.commit(sync=True)
        else:
            await self._commit.settle()

    def _record_sent(
        self, blocks: Sequence[Block], fresh: Sequence[Message], now: int, keep: History, reason: str | None = None
    ) -> None:
        """Record arrivals in the history."""
        runs = self._commit.batch.events
        if keep == "full":
            runs += [EventRun(events.sent(message, now, reason, keep)) for message in fresh]
            return
        place = 0
        for block in blocks:
            runs.append(event_run(events.sent(fresh[place], now, reason, keep), block.sizes))
            place += block.count


def _check(located: tuple[Block, int] | None, receipt: str, now: int) -> Outcome:
    """The outcome of a fence."""
    if located is None:
        return "missing"
    block, place = located
    run = block.runs[place]
    return fence(0, None, receipt, now) if run is None else fence(run.visible_at, run.receipt, receipt, now)


def _whole_runs(shelf: Shelf, fences: Sequence[Fence]) -> list[Run]:
    """The runs that the first fences name completely and in order, as when a consumer acks all it received."""
    whole: list[Run] = []
    start = 0
    for run in shelf.tokens.get(fences[0][1], ()) if fences else ():
        stop = start + len(run.places)
        receipt = run.receipt
        if (
            run.visible_at == NEVER
            or run.live != len(run.places)
            or list(fences[start:stop]) != [(id, receipt) for id in run.block.ids_at(run.places)]
        ):
            break
        whole.append(run)
        start = stop
    return whole
