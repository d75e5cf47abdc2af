"""The changes of the embedded store, one message at a time: arrive, change state, leave, advance a group.

Each is made in memory and staged in the open batch. Nothing here decides whether a change is right; the
store has checked its fences before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import count

from miniq.ids import RUN, SHARE, id_after, ids_from, run_of
from miniq.message import NEVER, Message, PlainBatch
from miniq.store.contract import ReadyHint
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Run, Shelf
from miniq.store.embedded.commit import Batch, GroupCommit
from miniq.store.embedded.kv import KV, Op
from miniq.store.embedded.window import Window


class Ledger:
    """Stages changes of shelves."""

    def __init__(self, kv: KV, window: Window, commit: GroupCommit, hint: ReadyHint, version: int) -> None:
        self._kv = kv
        self._window = window
        self._commit = commit
        self._hint = hint
        self._version = version
        self._ties = count()
        self.dirty: set[Shelf] = set()
        """Shelves whose counters changed since the last batch."""
        self.last_id = ""

    @property
    def _ops(self) -> list[Op]:
        return self._commit.batch.ops

    # Arriving

    def arrive(self, shelf: Shelf, messages: Sequence[Message], now: int) -> list[Block]:
        """New messages: as blocks where ids, lane and due time allow it, else each alone. The blocks are
        in the order of the messages."""
        blocks: list[Block] = []
        start, end = 0, len(messages)
        if isinstance(messages, PlainBatch):
            while start < end:
                part = messages[start : start + SHARE]
                name = part.ids[0]
                if run_of(name)[1] or part.ids[-1] != id_after(name, len(part) - 1):
                    break
                self._arrive_block(shelf, name, part, now, blocks)
                start += SHARE
        while start < end:
            first = messages[start]
            stop = start + 1
            if first.recipient is not None or first.group is not None:
                self._arrive_alone(shelf, first, now, blocks)
            else:
                name, place = run_of(first.id)
                if place:
                    self._arrive_alone(shelf, first, now, blocks)
                else:
                    stop = _alike(messages, start, end)
                    self._arrive_block(shelf, name, messages[start:stop], now, blocks)
            start = stop
        self.announce_all(shelf, blocks)
        last = messages.ids[-1] if isinstance(messages, PlainBatch) else messages[-1].id
        if last > self.last_id:
            self.last_id = last
        return blocks

    def arrive_moved(self, shelf: Shelf, message: Message, now: int) -> None:
        """A message that comes from another queue; its id may be older than others."""
        blocks: list[Block] = []
        self._arrive_alone(shelf, message, now, blocks)
        self.announce_all(shelf, blocks)

    def arrive_saved(
        self,
        shelf: Shelf,
        message: Message,
        visible_at: int,
        receives: int,
        receipt: str | None,
        consumer: str | None,
        taken_at: int,
        now: int,
    ) -> None:
        """A message that comes from another store, with the state it had there."""
        blocks: list[Block] = []
        self._arrive_alone(shelf, message, now, blocks)
        self.set_state(shelf, blocks[0], range(1), visible_at, receives, receipt, consumer, taken_at)
        self.announce_all(shelf, blocks)

    def _arrive_block(
        self, shelf: Shelf, name: str, messages: Sequence[Message], now: int, blocks: list[Block]
    ) -> None:
        priority = messages.priority if isinstance(messages, PlainBatch) else messages[0].priority
        key = keys.lane_prefix(shelf.number, "", priority) + name.encode()
        block = Block(name, key, "", priority, len(messages))
        self._enter(shelf, block, messages, now, blocks)

    def _arrive_alone(self, shelf: Shelf, message: Message, now: int, blocks: list[Block], source: bytes = b"") -> None:
        name = message.id + "m"
        owner = message.recipient or ""
        key = keys.lane_prefix(shelf.number, owner, message.priority) + name.encode()
        block = Block(name, key, owner, message.priority, 1)
        if message.group is not None:
            block.group = message.group
            group = self.group(shelf, message.group)
            if group.count:
                self._follow(shelf, block, group)
            group.count += 1
            self._ops.append((keys.group_key(shelf.number, message.group), keys.encode(group)))
        self._ops.append((keys.index_key(shelf.number, message.id), block.key))
        self._enter(shelf, block, [message], now, blocks, source)

    def _follow(self, shelf: Shelf, block: Block, group: keys.GroupRecord) -> None:
        """The group has a head already: wait behind it."""
        assert block.group is not None  # noqa: S101
        block.waiting = True
        block.key = keys.group_prefix(shelf.number, block.group) + block.name.encode()
        if not group.low or block.name < group.low:
            group.low = block.name

    def arrive_staged(self, shelf: Shelf, message: Message, source: bytes, now: int, blocks: list[Block]) -> None:
        """A message that stands alone is committed from a stage, where it stays."""
        self._arrive_alone(shelf, message, now, blocks, source)

    def arrive_later(
        self, shelf: Shelf, name: str, value: bytes, source: bytes, priority: int, due_at: int, sizes: list[int]
    ) -> Block:
        """A block that is committed from a stage, where it stays, and cannot be taken yet."""
        block = Block(name, keys.lane_prefix(shelf.number, "", priority) + name.encode(), "", priority, len(sizes))
        block.source, block.sizes = source, sizes
        self._ops.append((block.key, value))
        self.set_state(shelf, block, range(block.count), due_at, 0, None, None, 0)
        self.expect(shelf, block)
        return block

    def _enter(
        self,
        shelf: Shelf,
        block: Block,
        messages: Sequence[Message],
        now: int,
        blocks: list[Block],
        source: bytes = b"",
    ) -> None:
        if source:
            record = keys.StagedBlock(source, messages[0].id, messages[0].sent_at)
            block.source = source
            self._ops.append((block.key, keys.encode(record)))
        else:
            self._ops.append((block.key, keys.encode_block(messages)))
        self._window.hold(block, messages)
        shelf.count += block.count
        shelf.size += block.charged
        self.dirty.add(shelf)
        due_at = messages.due_at if isinstance(messages, PlainBatch) else messages[0].due_at
        if due_at > now:
            self.set_state(shelf, block, range(block.count), due_at, 0, None, None, 0)
        self.expect(shelf, block)
        blocks.append(block)

    def expect(self, shelf: Shelf, block: Block) -> None:
        """What is fresh in a block may be taken once the open batch is written; until then its record
        cannot be read, so its messages stay in memory."""
        block.arrives = self._commit.batch
        if block.waiting:
            assert block.group is not None  # noqa: S101
            shelf.followers.setdefault(block.group, {})[block.name] = block
        if block.name not in shelf.blocks:
            shelf.arriving[block.name] = block

    def announce_all(self, shelf: Shelf, blocks: list[Block]) -> None:
        batch = self._commit.batch
        batch.done.append(partial(self._arrived, shelf, blocks, batch))

    def _arrived(self, shelf: Shelf, blocks: list[Block], batch: Batch) -> None:
        """The batch is written: let the blocks be seen."""
        for block in blocks:
            if block.arrives is batch:
                block.arrives = None
                if shelf.arriving.get(block.name) is block:
                    del shelf.arriving[block.name]
                if not block.alive or not shelf.tracks:
                    self._window.forget(block)
                elif block.waiting:
                    self._unfollow(shelf, block)
                    self._window.forget(block)
                elif block.fresh_from(0) < block.count:
                    self._window.admit(shelf, block)
                elif self._window.full:
                    self._window.forget(block)
            if block.alive:
                self._hint(shelf.name, block.owner or None, block.alive)

    def more_on_disk(self, shelf: Shelf, priorities: Iterable[int], count: int) -> None:
        """Blocks were written behind all others in some lanes for anybody, and none of them is in memory."""
        if shelf.tracks and count:
            for priority in priorities:
                shelf.tracks[""].lanes[priority].more = True
            self._hint(shelf.name, None, count)

    def _unfollow(self, shelf: Shelf, block: Block) -> None:
        assert block.group is not None  # noqa: S101
        waiting = shelf.followers.get(block.group)
        if waiting is not None and waiting.get(block.name) is block:
            del waiting[block.name]
            if not waiting:
                del shelf.followers[block.group]

    # State

    def set_state(
        self,
        shelf: Shelf,
        block: Block,
        places: range,
        visible_at: int,
        receives: int,
        receipt: str | None,
        consumer: str | None,
        taken_at: int,
    ) -> Run:
        """Give some neighbouring messages of a block a new state."""
        self._version += 1
        key = keys.state_key(shelf.number, block.name, self._version)
        run = Run(block, places, visible_at, receives, receipt, consumer, taken_at, key)
        start, stop = places.start, places.stop
        if any(block.runs[start:stop]):
            for place in places:
                old = block.runs[place]
                if old is not None:
                    self._leave_run(shelf, old)
        block.runs[start:stop] = [run] * (stop - start)
        run.live = stop - start
        if receipt is None:
            shelf.delayed += run.live
        else:
            shelf.leased += run.live
            shelf.tokens.setdefault(receipt, []).append(run)
        if visible_at != NEVER:
            heappush(shelf.timers, (visible_at, next(self._ties), run))
        shelf.blocks[block.name] = block
        self._ops.append((key, keys.encode(block.state_record(run))))
        return run

    def restore_state(self, shelf: Shelf, block: Block, record: keys.StateRecord, key: bytes) -> None:
        """Take up a state that was read from disk; later ones are given later."""
        places = range(record.start, record.stop)
        run = Run(
            block,
            places,
            record.visible_at,
            record.receives,
            record.receipt,
            record.consumer,
            record.taken_at,
            key,
        )
        for place in places:
            if block.is_gone(place):
                continue
            old = block.runs[place]
            if old is not None:
                self._leave_run(shelf, old)
            block.runs[place] = run
            run.live += 1
        if not run.live:
            return
        if run.receipt is None:
            shelf.delayed += run.live
        else:
            shelf.leased += run.live
            shelf.tokens.setdefault(run.receipt, []).append(run)
        if run.visible_at != NEVER:
            heappush(shelf.timers, (run.visible_at, next(self._ties), run))

    def wake(self, shelf: Shelf, now: int) -> None:
        """Put back in line all messages whose lease or delay has run out."""
        timers = shelf.timers
        while timers and timers[0][0] <= now:
            _, _, run = heappop(timers)
            if not run.live or run.due:
                continue
            run.due = True
            if run.receipt is None:
                shelf.delayed -= run.live
            else:
                shelf.leased -= run.live
            if not run.block.waiting:
                lane = shelf.lane(run.block)
                for place in run.held_places():
                    self._window.push_back(lane, run.block, place, run)

    def next_due(self, shelf: Shelf) -> int | None:
        """When the next lease or delay runs out; call `wake` first."""
        timers = shelf.timers
        while timers and not timers[0][2].live:
            heappop(timers)
        return timers[0][0] if timers else None

    def _leave_run(self, shelf: Shelf, run: Run, count: int = 1) -> None:
        """Some messages of a run have another state now, or are gone."""
        run.live -= count
        if not run.due:
            if run.receipt is None:
                shelf.delayed -= count
            else:
                shelf.leased -= count
        if not run.live:
            self._ops.append((run.key, None))
            if run.receipt is not None:
                runs = shelf.tokens[run.receipt]
                runs.remove(run)
                if not runs:
                    del shelf.tokens[run.receipt]

    # Leaving

    def remove(self, shelf: Shelf, block: Block, place: int) -> None:
        """A message is gone. Call `mend` for its block when all removals of a change are made."""
        run = block.runs[place]
        if run is not None:
            self._leave_run(shelf, run)
            block.runs[place] = None
        shelf.count -= 1
        shelf.size -= self._window.sizes(block)[place]
        block.gone |= 1 << place
        block.alive -= 1
        self.dirty.add(shelf)

    def remove_run(self, shelf: Shelf, run: Run, size: int | None = None) -> None:
        """All messages of a run that has lost none yet are gone: `remove` for each, at once. Who counts their bytes
        himself gives what to take off; they are not looked up then."""
        block, places = run.block, run.places
        count = len(places)
        self._leave_run(shelf, run, count)
        block.runs[places.start : places.stop] = [None] * count
        shelf.count -= count
        shelf.size -= sum(self._window.sizes(block)[places.start : places.stop]) if size is None else size
        block.gone |= ((1 << count) - 1) << places.start
        block.alive -= count
        self.dirty.add(shelf)

    def mend(self, shelf: Shelf, blocks: Iterable[Block]) -> None:
        """Write which messages of some blocks are gone; remove blocks of which nothing is left."""
        gone: list[str] = []
        for block in blocks:
            if block.alive:
                shelf.blocks[block.name] = block
                bits = block.gone.to_bytes((block.count + 7) // 8, "little")
                record = keys.GoneRecord(block.owner, block.priority, block.count, bits)
                self._ops.append((keys.gone_key(shelf.number, block.name), keys.encode(record)))
                continue
            ops = self._ops
            self._leave_stage(block)
            ops.append((block.key, None))
            if block.count > 1:
                ops.append((keys.gone_key(shelf.number, block.name), None))
            if block.alone:
                ops.append((keys.index_key(shelf.number, block.name[:36]), None))
            shelf.blocks.pop(block.name, None)
            shelf.leaving.add(block.name)
            gone.append(block.name)
            self._window.forget(block)
            if block.group is not None:
                self._departed(shelf, block, block.group)
        if gone:
            self._commit.batch.done.append(partial(shelf.leaving.difference_update, gone))

    def _leave_stage(self, block: Block) -> None:
        """The record of a block is no longer needed where it lies, or is written anew: nor is what it refers to."""
        source = block.source
        if source is None:
            value = self._kv.get(block.key)
            source = None if value is None else keys.source_of(value)
        if source:
            self._ops.append((source, None))
        block.source = b""

    def replace(self, shelf: Shelf, block: Block, message: Message) -> Block:
        """A message that stands alone is edited: the block that stands for it from now on, fresh."""
        old_size = self._window.sizes(block)[0]
        run = block.runs[0]
        if run is not None:
            self._leave_run(shelf, run)
            block.runs[0] = None
        block.gone = 1
        block.alive = 0
        self._leave_stage(block)
        shelf.blocks.pop(block.name, None)
        self._window.forget(block)
        key = keys.lane_prefix(shelf.number, block.owner, message.priority) + block.name.encode()
        new = Block(block.name, block.key if block.waiting else key, block.owner, message.priority, 1)
        new.group, new.waiting = block.group, block.waiting
        if new.key != block.key:
            self._ops.append((block.key, None))
            self._ops.append((keys.index_key(shelf.number, message.id), new.key))
        self._ops.append((new.key, keys.encode_block([message])))
        self._window.hold(new, [message])
        shelf.size += message.size - old_size
        self.dirty.add(shelf)
        return new

    def detach(self, shelf: Shelf, block: Block, place: int, message: Message) -> Block:
        """A message of a larger block is edited: the block of its own that it gets, fresh."""
        self.remove(shelf, block, place)
        self.mend(shelf, (block,))
        name = message.id + "m"
        key = keys.lane_prefix(shelf.number, block.owner, message.priority) + name.encode()
        new = Block(name, key, block.owner, message.priority, 1)
        self._ops.append((keys.index_key(shelf.number, message.id), key))
        self._ops.append((key, keys.encode_block([message])))
        self._window.hold(new, [message])
        shelf.count += 1
        shelf.size += message.size
        return new

    def announce(self, shelf: Shelf, block: Block) -> None:
        """Let a block that `replace` or `detach` made be seen."""
        self.expect(shelf, block)
        self.announce_all(shelf, [block])

    # Groups

    def group(self, shelf: Shelf, name: str) -> keys.GroupRecord:
        """A group as it will be once all that is staged is written."""
        group = shelf.groups.get(name)
        if group is None:
            value = self._kv.get(keys.group_key(shelf.number, name))
            group = shelf.groups[name] = keys.GroupRecord(0, "") if value is None else keys.decode_group(value)
        return group

    def _departed(self, shelf: Shelf, block: Block, name: str) -> None:
        """A message of a group is gone. If it was the head, the lowest id that waits takes its place."""
        group = self.group(shelf, name)
        group.count -= 1
        key = keys.group_key(shelf.number, name)
        if block.waiting:
            self._unfollow(shelf, block)
        elif group.count:
            self._advance(shelf, name, group)
        self._ops.append((key, keys.encode(group) if group.count else None))
        if not group.count:
            group.low = ""

    def _advance(self, shelf: Shelf, name: str, group: keys.GroupRecord) -> None:
        block, message = self._next_follower(shelf, name, group)
        self._leave_stage(block)
        self._ops.append((block.key, None))
        self._unfollow(shelf, block)
        if block.messages is None:
            # Its record lies at another key once this is written; until then only memory has it.
            self._window.hold(block, [message])
        block.waiting = False
        block.key = keys.lane_prefix(shelf.number, block.owner, block.priority) + block.name.encode()
        self._ops.append((block.key, keys.encode_block([message])))
        self._ops.append((keys.index_key(shelf.number, message.id), block.key))
        group.low = block.name
        run = block.runs[0]
        if run is not None:
            self._ops.append((run.key, keys.encode(block.state_record(run))))
            if run.due:
                self._window.push_back(shelf.lane(block), block, 0, run)
        self.expect(shelf, block)
        self.announce_all(shelf, [block])

    def _next_follower(self, shelf: Shelf, name: str, group: keys.GroupRecord) -> tuple[Block, Message]:
        """The waiting message with the lowest id, whether it is written yet or not."""
        fresh = shelf.followers.get(name, {})
        best = min(fresh, default=None)
        prefix = keys.group_prefix(shelf.number, name)
        for key, value in self._kv.scan(prefix + group.low.encode(), keys.after(prefix)):
            found = key[len(prefix) :].decode()
            if best is not None and best <= found:
                break
            known = shelf.blocks.get(found) or shelf.arriving.get(found)
            if found in shelf.leaving or (known is not None and not known.waiting):
                continue
            message = keys.decode_block(value, self._kv.get)[0]
            if known is None:
                known = Block(found, key, message.recipient or "", message.priority, 1)
                known.group, known.waiting = name, True
                known.source = keys.source_of(value) or b""
                self._window.hold(known, [message])
            return known, message
        assert best is not None  # noqa: S101  the group's count says that somebody waits
        block = fresh[best]
        return block, self._window.load(block)[0]


def _alike(messages: Sequence[Message], start: int, end: int) -> int:
    """The end of the stretch from `start` on whose ids follow each other in one run and which can lie in
    one block."""
    first = messages[start]
    priority, due_at = first.priority, first.due_at
    part = messages[start : min(end, start + RUN)]
    stop = start
    for message, id in zip(part, ids_from(first.id, len(part)), strict=False):
        if (
            message.id != id
            or message.priority != priority
            or message.due_at != due_at
            or message.recipient is not None
            or message.group is not None
        ):
            break
        stop += 1
    return stop
