"""The messages of the embedded store: added, handed out, removed, given another time, edited, moved, looked at.

Each call checks its fences here, lets the ledger change memory and stage what has to be written, and waits for the
group commit. `EmbeddedStore` in `store.py` is made of this and of what is not about single messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

from miniq.ids import sent_ms
from miniq.message import (
    NEVER,
    Counts,
    EventName,
    History,
    Message,
    Outcome,
    Page,
    PlainBatch,
    Status,
    Stored,
)
from miniq.store import events
from miniq.store.contract import ANY, FREE, ByName, Edit, Fence, Once, Room, SingleProcessStore, check_room
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.browse import browse, browse_held
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.dedup import DedupRecords
from miniq.store.embedded.folder import Space
from miniq.store.embedded.history import event_run, tell_left, tell_taken
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.kv import KV
from miniq.store.embedded.ledger import Ledger
from miniq.store.embedded.states import Run, States
from miniq.store.embedded.window import Window


class EmbeddedMessages(SingleProcessStore):
    """The part of the store's contract that is about messages. The parts that it works on are set by `open`."""

    _kv: KV
    _commit: GroupCommit
    _space: Space
    _shelves: ByName[Shelf]
    _ledger: Ledger
    _states: States
    _window: Window
    _dedup: DedupRecords
    _sync_takes: bool

    def _shelf(self, queue: str) -> Shelf:
        """A queue in memory; raises if there is none, or if the store is closed or has failed."""
        if self._commit.refusal is not None:
            raise self._commit.refusal
        return self._shelves[queue]

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
        if isinstance(messages, PlainBatch):
            shelf, ids = self._shelf(messages.queue), messages.ids
            size = sum(map(len, messages.bodies))
            deduped = False
        else:
            shelf, ids = self._shelf(messages[0].queue), [message.id for message in messages]
            size = sum([len(message.body) for message in messages])
            deduped = any(message.dedup_id for message in messages)
        self._space.check(size, len(ids))
        fresh = messages
        dedup: dict[str, str] = {}
        if call is not None:
            given = self._dedup.ids_of_call(shelf, call.name, now)
            if given is not None:
                await self._commit.settle()
                return given
        if deduped:
            fresh, dedup = self._dedup.sift(shelf, messages, ids, now)
            if not fresh:
                await self._commit.settle()
                return ids
        if room is not None:
            check_room(room, shelf.count, shelf.size, fresh)
        if call is not None:
            self._dedup.remember_call(shelf, call.name, ids, call.until)
        if dedup:
            self._dedup.remember(shelf, dedup, dedup_until)
        blocks = self._ledger.arrive(shelf, fresh, now)
        if keep != "off":
            self._tell_sent(blocks, fresh, now, keep)
        await self._commit.commit(sync=True)
        return ids

    async def put_each(
        self, parcel: PlainBatch, calls: Sequence[str | None], *, now: int, until: int, keep: History
    ) -> list[list[str]]:
        shelf = self._shelf(parcel.queue)
        self._space.check(parcel.size, len(parcel.ids))
        fresh, answers = self._dedup.sift_calls(shelf, parcel, calls, now, until)
        if not fresh.ids:
            await self._commit.settle()
            return answers
        blocks = self._ledger.arrive(shelf, fresh, now)
        if keep != "off":
            self._tell_sent(blocks, fresh, now, keep)
        await self._commit.commit(sync=True)
        return answers

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
        shelf = self._shelf(queue)
        states, window = self._states, self._window
        states.wake(shelf, now)
        handed: list[tuple[Sequence[Message], int]] = []
        left, left_bytes = limit, max_bytes
        for lanes in window.lanes(shelf, consumer):
            while left and left_bytes >= 0:
                picked = window.pick(shelf, lanes, left, left_bytes, not handed)
                if picked is None:
                    break
                block, places, old = picked
                count = len(places)
                if not count:
                    left_bytes = -1
                    break
                receives = 1 if old is None else old.receives + 1
                states.give(shelf, block, places, until, receives, token, consumer, now)
                messages = window.load(block) if block.messages is None else block.messages
                sizes = block.sizes or window.sizes(block)
                if count < block.count:
                    messages = messages[places.start : places.stop]
                    sizes = sizes[places.start : places.stop]
                if block.next >= block.count and not any(run is None or run.due for run in block.runs):
                    window.forget(block)
                handed.append((messages, receives))
                left -= count
                left_bytes -= sum(sizes)
                if keep != "off":
                    tell_taken(self._commit.batch, messages[0], sizes, old, receives, consumer, now)
        if handed:
            await self._commit.commit(sync=self._sync_takes)
        taken: list[Stored] = []
        for messages, receives in handed:
            taken += map(Stored, messages, repeat(until), repeat(receives), repeat(token), repeat(consumer))
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
        shelf = self._shelf(queue)
        batch = self._commit.batch
        outcomes: list[Outcome] = []
        touched: dict[Block, None] = {}
        for run in _whole_runs(shelf, fences):
            block, places = run.block, run.places
            if keep != "off":
                sizes = self._window.sizes(block)[places.start : places.stop]
                tell_left(batch, self._window, event, shelf, block, places.start, now, reason, sizes)
            self._ledger.remove_run(shelf, run)
            touched[block] = None
            outcomes += ["done"] * len(places)
        for id, receipt in fences[len(outcomes) :]:
            found = self._window.locate(shelf, id)
            outcome = _check(found, receipt, now)
            outcomes.append(outcome)
            if found is not None and outcome == "done":
                block, place = found
                if keep != "off":
                    tell_left(batch, self._window, event, shelf, block, place, now, reason)
                self._ledger.remove(shelf, block, place)
                shelf.blocks[block.name] = block
                touched[block] = None
        await self._finish(shelf, touched)
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
        shelf = self._shelf(queue)
        outcomes: list[Outcome] = []
        changed = False
        stretch: tuple[Block, int, int, Run | None] | None = None
        for id, receipt in fences:
            found = self._window.locate(shelf, id)
            outcome = _check(found, receipt, now)
            if found is not None and outcome == "done":
                block, place = found
                # From here on it is this one, also for the fences that follow.
                shelf.blocks[block.name] = block
                run = block.runs[place]
                if stretch is not None and stretch[0] is block and stretch[2] == place and stretch[3] is run:
                    stretch = (block, stretch[1], place + 1, run)
                else:
                    if stretch is not None:
                        self._set_time(shelf, stretch, visible_at, release)
                        run = block.runs[place]
                        outcome = _check(found, receipt, now)
                    stretch = (block, place, place + 1, run) if outcome == "done" else None
                if outcome == "done":
                    changed = True
                    if event is not None and keep != "off":
                        tell_left(self._commit.batch, self._window, event, shelf, block, place, now, None)
            outcomes.append(outcome)
        if stretch is not None:
            self._set_time(shelf, stretch, visible_at, release)
        if changed:
            await self._commit.commit(sync=True)
        else:
            await self._commit.settle()
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, *, now: int, keep: History) -> Outcome:
        shelf = self._shelf(queue)
        found = self._window.locate(shelf, fence[0])
        outcome = _check(found, fence[1], now)
        if found is None or outcome != "done":
            return outcome
        block, place = found
        run = block.runs[place]
        message = edit.apply(self._window.load(block)[place])
        if block.alone:
            new = self._ledger.replace(shelf, block, message)
        else:
            new = self._ledger.detach(shelf, block, place, message)
        receives = 0 if run is None else run.receives
        if edit.visible_at is not None:
            if edit.visible_at > now or receives:
                self._states.give(shelf, new, range(1), edit.visible_at, receives, None, None, 0)
        elif run is not None:
            self._states.give(shelf, new, range(1), run.visible_at, receives, run.receipt, run.consumer, run.taken_at)
        elif message.due_at > now:
            self._states.give(shelf, new, range(1), message.due_at, 0, None, None, 0)
        self._ledger.announce(shelf, new)
        if keep != "off":
            self._commit.batch.events.append(EventRun(events.edited(message, now, receives, keep)))
        await self._commit.commit(sync=True)
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
        shelf = self._shelf(queue)
        targets = [self._shelves[message.queue] for _, message in moves]  # all there, or nothing is changed
        outcomes: list[Outcome] = []
        touched: dict[Block, None] = {}
        for ((id, receipt), message), target in zip(moves, targets, strict=True):
            found = self._window.locate(shelf, id)
            outcome = _check(found, receipt, now)
            outcomes.append(outcome)
            if found is None or outcome != "done":
                continue
            block, place = found
            if keep != "off":
                tell_left(self._commit.batch, self._window, event, shelf, block, place, now, reason)
            self._ledger.remove(shelf, block, place)
            shelf.blocks[block.name] = block
            touched[block] = None
            self._ledger.arrive_moved(target, message, now)
            if keep_to != "off":
                self._commit.batch.events.append(EventRun(events.sent(message, now, event, keep_to)))
        await self._finish(shelf, touched)
        return outcomes

    async def find(self, queue: str, id: str) -> Stored | None:
        while True:
            found = self._window.locate(self._shelf(queue), id)
            if found is None:
                return None
            block, place = found
            if block.arrives is None:
                break
            await self._commit.settle()
        return block.stored(place, self._window.load(block)[place])

    async def scan(
        self, queue: str, *, status: Status | None, after: str | None, limit: int, max_bytes: int, now: int
    ) -> Page:
        shelf = self._shelf(queue)
        if status in ("leased", "delayed"):
            return browse_held(self._window, shelf, status, after, limit, max_bytes, now)
        return browse(self._kv, shelf, status, after, limit, max_bytes, now)

    async def held(self, token: str) -> list[Stored]:
        if self._commit.refusal is not None:
            raise self._commit.refusal
        found = [
            run.block.stored(place, self._window.load(run.block)[place])
            for shelf in self._shelves.values()
            for run in shelf.tokens.get(token, ())
            for place in run.held_places()
        ]
        return sorted(found, key=lambda stored: stored.message.id)

    async def counts(self, queue: str, *, now: int) -> Counts:
        shelf = self._shelf(queue)
        self._states.wake(shelf, now)
        heads = [
            self._window.head(shelf, lane) for lane in shelf.tracks[""].lanes if lane.fresh or lane.back or lane.more
        ]
        oldest = min((head for head in heads if head is not None), default=None)
        return Counts(
            shelf.count - shelf.leased - shelf.delayed,
            shelf.delayed,
            shelf.leased,
            shelf.size,
            None if oldest is None else sent_ms(oldest) * 1000,
        )

    async def next_visible(self, queue: str, *, now: int) -> int | None:
        shelf = self._shelf(queue)
        self._states.wake(shelf, now)
        return self._states.next_due(shelf)

    # Inside

    def _set_time(
        self, shelf: Shelf, stretch: tuple[Block, int, int, Run | None], visible_at: int, release: bool
    ) -> None:
        block, start, stop, run = stretch
        receives = 0 if run is None else run.receives
        if release or run is None or run.receipt is None:
            self._states.give(shelf, block, range(start, stop), visible_at, receives, None, None, 0)
        else:
            self._states.give(
                shelf,
                block,
                range(start, stop),
                visible_at,
                receives,
                run.receipt,
                run.consumer,
                run.taken_at,
            )
        self.on_ready(shelf.name, block.owner or None, stop - start)

    async def _finish(self, shelf: Shelf, touched: dict[Block, None]) -> None:
        """Finish removals; even if there were none, wait for those that others made."""
        if touched:
            self._ledger.mend(shelf, touched)
            await self._commit.commit(sync=True)
        else:
            await self._commit.settle()

    def _tell_sent(self, blocks: Sequence[Block], fresh: Sequence[Message], now: int, keep: History) -> None:
        """Put arrivals into the history."""
        told = self._commit.batch.events
        if keep == "full":
            told += [EventRun(events.sent(message, now, None, keep)) for message in fresh]
            return
        place = 0
        for block in blocks:
            told.append(event_run(events.sent(fresh[place], now, None, keep), block.sizes))
            place += block.count


def _check(found: tuple[Block, int] | None, receipt: str, now: int) -> Outcome:
    """Whether a fence holds."""
    if found is None:
        return "missing"
    run = found[0].runs[found[1]]
    if run is not None and run.visible_at == NEVER:
        return "leased"
    if receipt == FREE:
        leased = run is not None and run.receipt is not None and run.visible_at > now
        return "leased" if leased else "done"
    if receipt == ANY or (run is not None and run.receipt == receipt):
        return "done"
    return "stale"


def _whole_runs(shelf: Shelf, fences: Sequence[Fence]) -> list[Run]:
    """The runs that the first fences name one after the other, each whole and in order: what a consumer
    sends who acks all he received. The rest of the fences is not looked at."""
    found: list[Run] = []
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
        found.append(run)
        start = stop
    return found
