"""The changes of the embedded store: messages arrive and leave, groups advance.

Each change is made in memory and staged in the open batch; callers have checked the fences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain

from miniq.ids import RUN, SHARE, ids_from, is_run, run_of
from miniq.message import Message, PlainBatch
from miniq.store.contract import ReadyHint
from miniq.store.embedded import block_records, fronts, keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.commit import Batch, GroupCommit
from miniq.store.embedded.history import HistoryLog
from miniq.store.embedded.kv import KV
from miniq.store.embedded.sharing import SharedBlocks
from miniq.store.embedded.states import Run, States
from miniq.store.embedded.window import Window
from miniq.store.transfer import Saved

GROUPS_IN_MEMORY = 10_000


class Ledger:
    """Stages changes of shelves."""

    def __init__(
        self,
        kv: KV,
        window: Window,
        log: HistoryLog,
        commit: GroupCommit,
        states: States,
        shared: SharedBlocks,
        hint: ReadyHint,
    ) -> None:
        self._kv = kv
        self._shared = shared
        self._window = window
        self._log = log
        self._commit = commit
        commit.complete = self._complete
        self._states = states
        self._hint = hint
        self.dirty: set[Shelf] = set()
        """Shelves whose counters changed since the last batch."""
        self.last_id = ""
        self._heads: dict[tuple[int, str], Block] = {}
        """Of messages from another store, one of the front of each group, by number and group."""

    def _complete(self, batch: Batch) -> None:
        """Add to a batch, besides its changes, the counters, the highest id and the history."""
        ops = batch.ops
        if self.dirty:
            for shelf in self.dirty:
                if shelf.tracks:  # else it was purged or deleted meanwhile
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
        """Add new messages: as blocks where ids, lane and due time allow it, else each alone. Returns the blocks in the
        order of the messages."""
        blocks: list[Block] = []
        start = 0
        if isinstance(messages, PlainBatch):
            end = len(messages.ids)
            while start < end:
                part = messages if end <= SHARE else messages[start : start + SHARE]
                if not is_run(part.ids):
                    break
                blocks.append(self._arrive_block(shelf, part.ids[0], len(part.ids), part, now))
                start += SHARE
        else:
            end = len(messages)
        while start < end:
            first = messages[start]
            stop = start + 1
            name, place = run_of(first.id)
            if place or first.recipient is not None or first.group is not None:
                blocks.append(self.arrive_alone(shelf, first, now))
            else:
                stop = _alike(messages, start, end)
                blocks.append(self._arrive_block(shelf, name, stop - start, messages[start:stop], now))
            start = stop
        self.announce_all(shelf, blocks)
        last = messages.ids[-1] if isinstance(messages, PlainBatch) else messages[-1].id
        if last > self.last_id:
            self.last_id = last
        return blocks

    def arrive_one(self, shelf: Shelf, message: Message, now: int, saved: Saved | None = None) -> None:
        """Add a message from another queue or store, with the state it had there if given; its id may be lower than
        existing ones, or new."""
        block = self.arrive_alone(shelf, message, now)
        if saved is not None:
            state, taken_at = saved.stored, saved.taken_at or 0
            error = 0 if state.error is None else self._states.failures.keep(shelf, [message.id], state.error)
            values = (state.visible_at, state.receives, state.receipt, state.consumer, taken_at, error, saved.returned)
            if saved.was_taken and message.group is not None:
                head = self._heads.setdefault((shelf.number, message.group), block)
                if head is not block:
                    fronts.join(head, block)
                    self._unfollow(shelf, block)
            self._states.give(shelf, block, range(1), *values)
        self.announce_all(shelf, [block])
        self.last_id = max(self.last_id, message.id)

    def _arrive_block(self, shelf: Shelf, name: str, count: int, messages: Sequence[Message], now: int) -> Block:
        first = messages if isinstance(messages, PlainBatch) else messages[0]
        key = shelf.tracks[""][first.priority].prefix + name.encode()
        block = Block(name, key, "", first.priority, count)
        self._enter(shelf, block, messages, first.due_at, now)
        return block

    def arrive_alone(self, shelf: Shelf, message: Message, now: int, source: bytes = b"") -> Block:
        """Add a message with a block of its own; `source` is its key if it is committed from a stage, or shared."""
        block = _lane_block(shelf, message.id + "m", message.recipient or "", message.priority, 1)
        if message.group is not None:
            block.group = message.group
            group = self.group(shelf, message.group)
            if group.count:
                block.waiting = True
                block.key = keys.group_prefix(shelf.number, message.group) + block.name.encode()
                if not group.low or block.name < group.low:
                    group.low = block.name
            group.count += 1
            self._commit.batch.ops.append((keys.group_key(shelf.number, message.group), keys.encode(group)))
        self._commit.batch.ops.append((keys.index_key(shelf.number, message.id), block.key))
        self._enter(shelf, block, [message], message.due_at, now, source)
        return block

    def arrive_later(
        self, shelf: Shelf, name: str, value: bytes, source: bytes, priority: int, due_at: int, sizes: list[int]
    ) -> Block:
        """Add a delayed block that refers to a staged or shared one."""
        block = _lane_block(shelf, name, "", priority, len(sizes))
        block.source, block.sizes = source, sizes
        self._commit.batch.ops.append((block.key, value))
        self._states.give(shelf, block, range(block.count), due_at)
        self.expect(shelf, block)
        return block

    def _enter(
        self, shelf: Shelf, block: Block, messages: Sequence[Message], due_at: int, now: int, source: bytes = b""
    ) -> None:
        if source:
            block.source = source
            value = block_records.encode_reference(source, messages[0])
        else:
            value = block_records.encode_block(messages)
        self._commit.batch.ops.append((block.key, value))
        self._window.hold(block, messages)
        shelf.count += block.count
        shelf.size += block.charged
        self.dirty.add(shelf)
        if due_at > now:
            self._states.give(shelf, block, range(block.count), due_at)
        self.expect(shelf, block)

    def expect(self, shelf: Shelf, block: Block) -> None:
        """Keep a block in memory until the open batch is written: before that its record cannot be read."""
        block.arrives = self._commit.batch
        if block.waiting:
            assert block.group is not None  # noqa: S101
            shelf.followers.setdefault(block.group, {})[block.name] = block
        if block.name not in shelf.blocks:
            shelf.arriving[block.name] = block

    def announce_all(self, shelf: Shelf, blocks: list[Block]) -> None:
        """Make blocks visible once the open batch is written."""
        batch = self._commit.batch
        batch.done.append(partial(self._arrived, shelf, blocks, batch))

    def _arrived(self, shelf: Shelf, blocks: list[Block], batch: Batch) -> None:
        """The batch is written: make its blocks visible."""
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
        """Blocks that are not in memory were written at the end of some common lanes."""
        if shelf.tracks and count:
            for priority in priorities:
                shelf.tracks[""][priority].more = True
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
        """Remove a message, but not its error. Call `mend` for its block after all removals of a change."""
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
        """Remove all messages of a run that has lost none yet. `size` is their total size if the caller knows it."""
        block, places = run.block, run.places
        count = len(places)
        if run.error:
            self._states.failures.remove(shelf, run, block.ids_at(places))
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
        """Stage the removals in some blocks; remove the blocks that are empty now."""
        removed: list[str] = []
        for block in blocks:
            if block.alive:
                shelf.blocks[block.name] = block
                bits = block.gone.to_bytes((block.count + 7) // 8, "little")
                record = keys.GoneRecord(block.owner, block.priority, block.count, bits)
                self._commit.batch.ops.append((keys.gone_key(shelf.number, block.name), keys.encode(record)))
                continue
            ops = self._commit.batch.ops
            if block.source != b"":
                self._leave_source(block)
            ops.append((block.key, None))
            if block.count > 1:
                ops.append((keys.gone_key(shelf.number, block.name), None))
            if block.alone:
                ops.append((keys.index_key(shelf.number, block.name[:36]), None))
            shelf.blocks.pop(block.name, None)
            shelf.leaving.add(block.name)
            removed.append(block.name)
            if block.messages is not None:
                self._window.forget(block)
            if block.group is not None:
                self._departed(shelf, block, block.group)
        if removed:
            self._commit.batch.done.append(partial(shelf.leaving.difference_update, removed))

    def _leave_source(self, block: Block) -> None:
        """End the reference of a block to a staged or shared one, if any, since the block is removed or rewritten."""
        source = block.source
        if source is None:
            value = self._kv.get(block.key)
            source = None if value is None else block_records.source_of(value)
        if source:
            self.release(source)
        block.source = b""

    def release(self, source: bytes) -> None:
        """Remove a staged block, or a reference to a shared one."""
        if source[:1] == keys.SHARED:
            self._shared.release(source)
        else:
            self._commit.batch.ops.append((source, None))

    def edit(self, shelf: Shelf, block: Block, place: int, message: Message) -> Block:
        """Replace a message by its edited version, which gets a fresh block of its own; `announce` it then."""
        ops = self._commit.batch.ops
        new = _lane_block(shelf, message.id + "m", block.owner, message.priority, 1)
        self.remove(shelf, block, place)
        shelf.count += 1
        if block.alone:
            new.group, new.waiting = block.group, block.waiting
            fronts.substitute(block, new)
            if block.key[:1] == b"w":
                new.key = block.key
            self._leave_source(block)
            shelf.blocks.pop(block.name, None)
            self._window.forget(block)
            if new.key != block.key:
                ops.append((block.key, None))
        else:
            self.mend(shelf, (block,))
        if new.key != block.key:
            ops.append((keys.index_key(shelf.number, message.id), new.key))
        ops.append((new.key, block_records.encode_block([message])))
        self._window.hold(new, [message])
        shelf.size += message.size
        return new

    def announce(self, shelf: Shelf, block: Block) -> None:
        """Make a block visible once it is written."""
        self.expect(shelf, block)
        self.announce_all(shelf, [block])

    # Groups

    def group(self, shelf: Shelf, name: str) -> keys.GroupRecord:
        """A group as it will be once everything staged is written."""
        group = shelf.groups.get(name)
        if group is None:
            value = self._kv.get(keys.group_key(shelf.number, name))
            group = shelf.groups[name] = keys.GroupRecord(0, "") if value is None else keys.decode_group(value)
        return group

    def _departed(self, shelf: Shelf, block: Block, name: str) -> None:
        """A message of a group was removed. If it was the last of the front, the lowest waiting id becomes the head."""
        group = self.group(shelf, name)
        group.count -= 1
        if block.waiting:
            self._unfollow(shelf, block)
        elif block.front is not None:
            head = fronts.leave(shelf, block)
            if head is not None:
                self._hint(shelf.name, head.owner or None, 1)
        elif group.count:
            self._advance(shelf, name, group)
        key = keys.group_key(shelf.number, name)
        self._commit.batch.ops.append((key, keys.encode(group) if group.count else None))
        if not group.count:
            group.low = ""

    def _advance(self, shelf: Shelf, name: str, group: keys.GroupRecord) -> None:
        """Make the first follower the head of its group."""
        block = next(self._followers(shelf, name, group))
        messages = self._window.load(block)  # once its record is moved, only memory has it until that is written
        if not block.charged:
            self._window.hold(block, messages)
        self._leave_source(block)
        ops = self._commit.batch.ops
        ops.append((block.key, None))
        self._unfollow(shelf, block)
        block.waiting = False
        block.key = keys.lane_prefix(shelf.number, block.owner, block.priority) + block.name.encode()
        ops.append((block.key, block_records.encode_block(messages)))
        ops.append((keys.index_key(shelf.number, block.id_at(0)), block.key))
        group.low = block.name
        run = block.runs[0]
        if run is not None:
            self._states.give_again(shelf, block, 0, run)
        self.announce(shelf, block)

    def batch(self, shelf: Shelf, head: Block, consumer: str | None) -> Iterator[tuple[Block, range, Run | None]]:
        """The messages that may be taken together with the head of their group, as `Window.pick` gives them. Each that
        is taken must `fronts.join` before the next is asked for."""
        name = head.group
        assert name is not None  # noqa: S101
        front = [head] if head.front is None else head.front.members[:]
        group = self.group(shelf, name)
        waiting = self._followers(shelf, name, group) if group.count > len(front) else iter(())
        for block in chain(front[1:], waiting):
            run = block.runs[0]
            if block.arrives is not None or (run is not None and not run.due) or block.owner not in ("", consumer):
                return
            if block.waiting:
                group.low = block.name
            yield block, range(1), run

    def _followers(self, shelf: Shelf, name: str, group: keys.GroupRecord) -> Iterator[Block]:
        """The waiting messages of a group by id, up to the first that is not written yet. Those that are read are not
        kept."""
        unwritten = shelf.followers.get(name, {})
        lowest = min(unwritten, default=None)
        prefix = keys.group_prefix(shelf.number, name)
        for key, value in self._kv.scan(prefix + group.low.encode(), keys.after(prefix)):
            follower = key[len(prefix) :].decode()
            if lowest is not None and lowest <= follower:
                break
            block = shelf.blocks.get(follower) or shelf.arriving.get(follower)
            if follower in shelf.leaving or (block is not None and not block.waiting):
                continue
            yield block or self._window.read_once(follower, key, value)
        if lowest is not None:
            yield unwritten[lowest]


def _lane_block(shelf: Shelf, name: str, owner: str, priority: int, count: int) -> Block:
    return Block(name, keys.lane_prefix(shelf.number, owner, priority) + name.encode(), owner, priority, count)


def _alike(messages: Sequence[Message], start: int, end: int) -> int:
    """The end of the stretch from `start` on that can share a block: consecutive ids of one run, same priority and due
    time."""
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
