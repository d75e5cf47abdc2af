"""The states of messages in the embedded store: leases and delays.

A state is a run of neighbours in a block. It is set in memory and staged in the open batch; callers have checked that
the change is allowed.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from msgspec import Struct

from miniq.errors import StoreCorrupt
from miniq.message import NEVER
from miniq.store.embedded import fronts, keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.failures import Failures
from miniq.store.embedded.kv import KV
from miniq.store.embedded.window import Window


class Run(Struct, eq=False):
    """One state, shared by neighbouring messages of a block. It never changes: a new state is a new run."""

    block: Block
    places: range
    key: bytes
    visible_at: int
    receives: int
    receipt: str | None
    consumer: str | None
    taken_at: int
    live: int = 0
    """How many messages are still in this state."""
    due: bool = False
    """Whether `visible_at` has passed: its messages are ready again, though the receipt is still valid."""
    error: int = 0
    """Whether its messages failed, and how: see `failures.py`."""
    returned: bool = False
    """Whether its messages were taken, though they have no receives: all were taken back."""

    def held_places(self) -> list[int]:
        runs = self.block.runs
        return [place for place in self.places if runs[place] is self]


class States:
    """Sets and stages the states of messages."""

    def __init__(self, kv: KV, window: Window, commit: GroupCommit) -> None:
        self._kv = kv
        self._window = window
        self._commit = commit
        self.failures = Failures(kv, commit)
        self._ties = count()
        self._version = 0
        """The highest version of a state on disk."""
        for key, _ in kv.scan(b"s", keys.after(b"s")):
            self._version = max(self._version, int.from_bytes(key[-8:], "big"))

    def load(self, shelf: Shelf) -> None:
        """Read the leases, delays and removals of a queue at start."""
        prefix = keys.of_queue(b"x", shelf.number)
        for key, value in self._kv.scan(prefix, keys.after(prefix)):
            record = keys.decode_gone(value)
            block = _block(shelf, key[len(prefix) :].decode(), record)
            block.gone = int.from_bytes(record.gone, "little")
            block.alive = record.count - block.gone.bit_count()
        prefix = keys.of_queue(b"s", shelf.number)
        for key, value in self._kv.scan(prefix, keys.after(prefix)):
            state = keys.decode_state(value)
            self._restore(shelf, _block(shelf, key[len(prefix) : -8].decode(), state), state, key)
        if len(shelf.blocks) > shelf.count:
            raise StoreCorrupt(f"store: queue {shelf.name!r} counts fewer messages than it has leases", field="store")
        fronts.restore(shelf)

    def _restore(self, shelf: Shelf, block: Block, record: keys.StateRecord, key: bytes) -> None:
        """Set a state that was read from disk; later versions override earlier ones."""
        state = (record.visible_at, record.receives, record.receipt, record.consumer, record.taken_at)
        run = Run(block, range(record.start, record.stop), key, *state, error=record.error, returned=record.returned)
        for place in run.places:
            if not block.is_gone(place):
                old = block.runs[place]
                if old is not None:
                    self.leave(shelf, old)
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

    def give(
        self,
        shelf: Shelf,
        block: Block,
        places: range,
        visible_at: int,
        receives: int = 0,
        receipt: str | None = None,
        consumer: str | None = None,
        taken_at: int = 0,
        error: int = 0,
        returned: bool = False,
    ) -> Run:
        """Give neighbouring messages of a block a new state."""
        self._version += 1
        key = b"%b%b%b" % (shelf.state_prefix, block.name.encode(), self._version.to_bytes(8, "big"))
        start, stop = places.start, places.stop
        state = (visible_at, receives, receipt, consumer, taken_at)
        owner, priority, group = block.owner, block.priority, block.group
        waiting = group is not None and block.key[:1] == b"w"
        record = keys.StateRecord(owner, priority, block.count, start, stop, *state, group, waiting, error, returned)
        run = Run(block, places, key, *state, stop - start, False, error, returned)
        if any(block.runs[start:stop]):
            for place in places:
                old = block.runs[place]
                if old is not None:
                    self.leave(shelf, old)
        block.runs[start:stop] = [run] * run.live
        if receipt is None:
            shelf.delayed += run.live
        else:
            shelf.leased += run.live
            shelf.tokens.setdefault(receipt, []).append(run)
            if block.front is not None:
                block.front.leased += 1
        if visible_at != NEVER:
            heappush(shelf.timers, (visible_at, next(self._ties), run))
        shelf.blocks[block.name] = block
        self._commit.batch.ops.append((key, keys.encode(record)))
        return run

    def give_again(self, shelf: Shelf, block: Block, place: int, run: Run) -> None:
        """Give a message the state of a run that it had before."""
        state = (run.visible_at, run.receives, run.receipt, run.consumer, run.taken_at, run.error, run.returned)
        self.give(shelf, block, range(place, place + 1), *state)

    def wake(self, shelf: Shelf, now: int) -> None:
        """Put all messages whose lease or delay has expired back in line."""
        timers = shelf.timers
        while timers and timers[0][0] <= now:
            _, _, run = heappop(timers)
            if not run.live or run.due:
                continue
            run.due = True
            front = run.block.front
            if run.receipt is None:
                shelf.delayed -= run.live
            else:
                shelf.leased -= run.live
                if front is not None:
                    front.leased -= 1
            if front is not None:
                shelf.settled.append(front)
            elif not run.block.waiting:
                lane = shelf.lane(run.block)
                for place in run.held_places():
                    self._window.push_back(lane, run.block, place, run)
        if shelf.settled:
            fronts.line_up(shelf, self._window)

    def next_due(self, shelf: Shelf) -> int | None:
        """When the next lease or delay expires; call `wake` first."""
        timers = shelf.timers
        while timers and not timers[0][2].live:
            heappop(timers)
        return timers[0][0] if timers else None

    def leave(self, shelf: Shelf, run: Run, count: int = 1) -> None:
        """Some messages of a run got another state or were removed."""
        run.live -= count
        if not run.due:
            if run.receipt is None:
                shelf.delayed -= count
            else:
                shelf.leased -= count
                front = run.block.front
                if front is not None:
                    front.leased -= 1
                    shelf.settled.append(front)
        if not run.live:
            self._commit.batch.ops.append((run.key, None))
            if run.receipt is not None:
                runs = shelf.tokens[run.receipt]
                runs.remove(run)
                if not runs:
                    del shelf.tokens[run.receipt]


def _block(shelf: Shelf, name: str, record: keys.StateRecord | keys.GoneRecord) -> Block:
    """The block that a record on disk belongs to."""
    block = shelf.blocks.get(name)
    if block is None:
        group, waiting = (record.group, record.waiting) if isinstance(record, keys.StateRecord) else (None, False)
        if waiting and group is not None:
            prefix = keys.group_prefix(shelf.number, group)
        else:
            prefix = keys.lane_prefix(shelf.number, record.owner, record.priority)
        block = shelf.blocks[name] = Block(name, prefix + name.encode(), record.owner, record.priority, record.count)
        block.group, block.waiting, block.source = group, waiting, None
    return block
