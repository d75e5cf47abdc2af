"""The changes of the embedded store, one message at a time: arrive, leave, advance a group.

Each is made in memory and staged in the open batch. Nothing here decides whether a change is right; the
store has checked its fences before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from miniq.ids import RUN, SHARE, ids_from, is_run, run_of
from miniq.message import Message, PlainBatch
from miniq.store.contract import ReadyHint
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.commit import Batch, GroupCommit
from miniq.store.embedded.history import HistoryLog
from miniq.store.embedded.kv import KV
from miniq.store.embedded.states import Run, States
from miniq.store.embedded.window import Window

GROUPS_IN_MEMORY = 10_000


class Ledger:
    """Stages changes of shelves."""

    def __init__(
        self, kv: KV, window: Window, log: HistoryLog, commit: GroupCommit, states: States, hint: ReadyHint
    ) -> None:
        self._kv = kv
        self._window = window
        self._log = log
        self._commit = commit
        commit.complete = self._complete
        self._states = states
        self._hint = hint
        self.dirty: set[Shelf] = set()
        """Shelves whose counters changed since the last batch."""
        self.last_id = ""

    def _complete(self, batch: Batch) -> None:
        """Add what every batch carries besides its changes: counters, the highest id, the history."""
        ops = batch.ops
        if self.dirty:
            for shelf in self.dirty:
                if shelf.tracks:  # else it was emptied or deleted meanwhile
                    ops.append((shelf.count_key, keys.encode(keys.CountRecord(shelf.count, shelf.size, shelf.lows()))))
                    if len(shelf.groups) > GROUPS_IN_MEMORY:
                        batch.done.append(partial(self._forget_groups, shelf))
            ops.append((keys.LAST_ID, self.last_id.encode()))
            self.dirty.clear()
        if batch.events:
            self._log.append(batch.events, ops)

    def _forget_groups(self, shelf: Shelf) -> None:
        if not self._commit.batch.ops:
            shelf.groups.clear()

    # Arriving

    def arrive(self, shelf: Shelf, messages: Sequence[Message], now: int) -> list[Block]:
        """New messages: as blocks where ids, lane and due time allow it, else each alone. The blocks are
        in the order of the messages."""
        blocks: list[Block] = []
        start = 0
        if isinstance(messages, PlainBatch):
            end = len(messages.ids)
            while start < end:
                part = messages if end <= SHARE else messages[start : start + SHARE]
                if not is_run(part.ids):
                    break
                self._arrive_block(shelf, part.ids[0], len(part.ids), part, now, blocks)
                start += SHARE
        else:
            end = len(messages)
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
                    self._arrive_block(shelf, name, stop - start, messages[start:stop], now, blocks)
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
        self._states.give(shelf, blocks[0], range(1), visible_at, receives, receipt, consumer, taken_at)
        self.announce_all(shelf, blocks)

    def _arrive_block(
        self, shelf: Shelf, name: str, count: int, messages: Sequence[Message], now: int, blocks: list[Block]
    ) -> None:
        first = messages if isinstance(messages, PlainBatch) else messages[0]
        key = shelf.tracks[""].lanes[first.priority].prefix + name.encode()
        block = Block(name, key, "", first.priority, count)
        self._enter(shelf, block, messages, first.due_at, now, blocks)

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
            self._commit.batch.ops.append((keys.group_key(shelf.number, message.group), keys.encode(group)))
        self._commit.batch.ops.append((keys.index_key(shelf.number, message.id), block.key))
        self._enter(shelf, block, [message], message.due_at, now, blocks, source)

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
        self._commit.batch.ops.append((block.key, value))
        self._states.give(shelf, block, range(block.count), due_at, 0, None, None, 0)
        self.expect(shelf, block)
        return block

    def _enter(
        self,
        shelf: Shelf,
        block: Block,
        messages: Sequence[Message],
        due_at: int,
        now: int,
        blocks: list[Block],
        source: bytes = b"",
    ) -> None:
        if source:
            record = keys.StagedBlock(source, messages[0].id, messages[0].sent_at)
            block.source = source
            value = keys.encode(record)
        else:
            value = keys.encode_block(messages)
        self._commit.batch.ops.append((block.key, value))
        self._window.hold(block, messages)
        shelf.count += block.count
        shelf.size += block.charged
        self.dirty.add(shelf)
        if due_at > now:
            self._states.give(shelf, block, range(block.count), due_at, 0, None, None, 0)
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
                elif None in block.runs and (not block.gone or block.fresh_from(0) < block.count):
                    self._window.admit(shelf, block)
                else:
                    self._window.forget_if_full(block)
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

    # Leaving

    def remove(self, shelf: Shelf, block: Block, place: int) -> None:
        """A message is gone. Call `mend` for its block when all removals of a change are made."""
        run = block.runs[place]
        if run is not None:
            self._states.leave(shelf, run)
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
        self._states.leave(shelf, run, count)
        block.runs[places.start : places.stop] = [None] * count
        shelf.count -= count
        if size is None:
            size = sum((block.sizes or self._window.sizes(block))[places.start : places.stop])
        shelf.size -= size
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
                self._commit.batch.ops.append((keys.gone_key(shelf.number, block.name), keys.encode(record)))
                continue
            ops = self._commit.batch.ops
            if block.source != b"":
                self._leave_stage(block)
            ops.append((block.key, None))
            if block.count > 1:
                ops.append((keys.gone_key(shelf.number, block.name), None))
            if block.alone:
                ops.append((keys.index_key(shelf.number, block.name[:36]), None))
            shelf.blocks.pop(block.name, None)
            shelf.leaving.add(block.name)
            gone.append(block.name)
            if block.messages is not None:
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
            self._commit.batch.ops.append((source, None))
        block.source = b""

    def replace(self, shelf: Shelf, block: Block, message: Message) -> Block:
        """A message that stands alone is edited: the block that stands for it from now on, fresh."""
        old_size = self._window.sizes(block)[0]
        run = block.runs[0]
        if run is not None:
            self._states.leave(shelf, run)
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
            self._commit.batch.ops.append((block.key, None))
            self._commit.batch.ops.append((keys.index_key(shelf.number, message.id), new.key))
        self._commit.batch.ops.append((new.key, keys.encode_block([message])))
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
        self._commit.batch.ops.append((keys.index_key(shelf.number, message.id), key))
        self._commit.batch.ops.append((key, keys.encode_block([message])))
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
        self._commit.batch.ops.append((key, keys.encode(group) if group.count else None))
        if not group.count:
            group.low = ""

    def _advance(self, shelf: Shelf, name: str, group: keys.GroupRecord) -> None:
        block, message = self._next_follower(shelf, name, group)
        self._leave_stage(block)
        self._commit.batch.ops.append((block.key, None))
        self._unfollow(shelf, block)
        if block.messages is None:
            # Its record lies at another key once this is written; until then only memory has it.
            self._window.hold(block, [message])
        block.waiting = False
        block.key = keys.lane_prefix(shelf.number, block.owner, block.priority) + block.name.encode()
        self._commit.batch.ops.append((block.key, keys.encode_block([message])))
        self._commit.batch.ops.append((keys.index_key(shelf.number, message.id), block.key))
        group.low = block.name
        run = block.runs[0]
        if run is not None:
            self._commit.batch.ops.append((run.key, keys.encode(block.state_record(run))))
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
