"""Publications of the embedded store: one batch adds messages to many queues.

Messages that go to several queues are written once, as shared blocks (`j`), and each queue gets a small record in its
lane that refers to them (see `sharing.py`). As with a commit, these records are not kept in memory: a consumer reads
them from disk when it is their turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from miniq.store import events
from miniq.store.arguments import Publication, Stretch, Target
from miniq.store.contract import HOME
from miniq.store.decisions import (
    SiftedPublication,
    check_room,
    publication_answer,
    repeated_publication,
    sift_publication,
)
from miniq.store.embedded import block_records, keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.core import Part
from miniq.store.embedded.history import event_run
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.window import sizes_of
from miniq.store.names import call_record
from miniq.topic import Published

LARGE = 256 * 1024
LARGE_OPS = 2000
"""A batch of this many bytes or operations is written outside the event loop."""


class Publishing(Part):
    """See `MessageStore.publish`."""

    async def publish(self, publication: Publication) -> Published:
        core, now, call = self._core, publication.now, publication.call
        home = core.shelf(HOME)
        shelves = [core.shelves[target.queue] for target in publication.targets]  # raises before anything is changed
        record = publication.record
        if record is not None:
            core.records.check(record)
        if call is not None:
            answer = self._dedup.standing(home, call_record(call.name), now)
            if answer is not None:
                published = repeated_publication(answer, call)
                await self._commit.settle()
                return published
        sifted = sift_publication(publication, lambda name: self._dedup.standing(home, call_record(name), now))
        reached = sifted.targets
        for target in reached:
            if (room := publication.targets[target].room) is not None:
                shelf = shelves[target]
                check_room(room, shelf.name, (shelf.count, shelf.size), sifted.more(target))
        copies = sum(1 + len(stretch.targets) for stretch in sifted.fresh)
        core.check_space(sum(sum(sizes_of(stretch.messages)) for stretch in sifted.fresh), copies)
        published = Published(sifted.ids, len(reached))
        if record is not None:
            core.records.stage(record.kind, record.name, record.value)
        if sifted.brought:
            named = {call_record(name): id for name, id in sifted.brought.items()}
            self._dedup.remember(home, named, publication.dedup_until)
        if call is not None:
            self._dedup.remember(home, {call_record(call.name): publication_answer(published, call)}, call.until)
        if publication.keep != "off" and sifted.fresh:
            names = [publication.targets[target].queue for target in reached]
            self._commit.batch.events.append(EventRun(events.published(publication, sifted.fresh, names)))
        if reached:
            self._put(publication, sifted, shelves)
        if self._commit.batch.ops or self._commit.batch.events:
            await self._commit.commit(sync=True)
        return published

    def _put(self, publication: Publication, sifted: SiftedPublication, shelves: Sequence[Shelf]) -> None:
        """Stage the messages of all queues."""
        fresh = [stretch for stretch in sifted.fresh if stretch.targets]
        batch, ledger = self._commit.batch, self._ledger
        last = fresh[-1].ids[-1]
        if all(len(stretch.targets) == 1 for stretch in fresh):
            for place in sifted.targets:
                target = publication.targets[place]
                for stretch in fresh:
                    if place in stretch.targets:
                        ledger.arrive(shelves[place], stretch.copies(target), publication.now)
                        self._record(target, stretch, sizes_of(stretch.messages))
            return
        number = self._core.shared.next_publication()
        written = 0
        by_shelf: dict[int, list[tuple[Stretch, list[int], bytes]]] = {}
        for count, stretch in enumerate(fresh):
            value = block_records.encode_block(stretch.messages)
            written += len(value)
            key = keys.shared_key(number, count)
            self._core.shared.add(key, value, len(stretch.targets))
            sizes = sizes_of(stretch.messages)
            for place in stretch.targets:
                by_shelf.setdefault(place, []).append((stretch, sizes, key))
        for place in sorted(by_shelf):
            self._refer(shelves[place], publication.targets[place], by_shelf[place], publication.now)
        ledger.last_id = max(ledger.last_id, last)
        batch.large = batch.large or written > LARGE or len(batch.ops) > LARGE_OPS

    def _refer(self, shelf: Shelf, target: Target, parts: Sequence[tuple[Stretch, list[int], bytes]], now: int) -> None:
        """Stage the records of one queue that refer to shared blocks."""
        batch, ledger = self._commit.batch, self._ledger
        lanes: set[int] = set()
        blocks: list[Block] = []
        ready = 0
        for stretch, sizes, key in parts:
            first, due_at = stretch.first, stretch.due_at(target)
            if first.recipient is not None or first.group is not None:
                [message] = stretch.copies(target)
                blocks.append(ledger.arrive_alone(shelf, message, now, key))
            else:
                value = keys.encode(block_records.SharedBlock(key, shelf.name, due_at))
                if due_at > now:
                    blocks.append(ledger.arrive_later(shelf, first.id, value, key, first.priority, due_at, sizes))
                else:
                    batch.ops.append((shelf.tracks[""][first.priority].prefix + first.id.encode(), value))
                    lanes.add(first.priority)
                    ready += len(sizes)
                shelf.count += len(sizes)
                shelf.size += sum(sizes)
            self._record(target, stretch, sizes)
        ledger.dirty.add(shelf)
        # First, so that no block enters a lane before the blocks left on disk.
        batch.done.append(partial(ledger.more_on_disk, shelf, lanes, ready))
        if blocks:
            ledger.announce_all(shelf, blocks)

    def _record(self, target: Target, stretch: Stretch, sizes: list[int]) -> None:
        """Record the arrival of messages in the history of a queue."""
        runs, now = self._commit.batch.events, stretch.first.sent_at
        if target.keep == "full":
            copies = stretch.copies(target)
            runs += [EventRun(events.sent(message, now, "published", target.keep)) for message in copies]
        elif target.keep != "off":
            runs.append(event_run(events.sent_as(target.queue, stretch.first.id, sizes[0], now, "published"), sizes))
