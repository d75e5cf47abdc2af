"""The states of messages in the embedded store: leases and delays, given, read at start, run out, left.

A state is a run: neighbours of one block that share it. It is set in memory and staged in the open
batch; nothing here decides whether that is right.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from miniq.message import NEVER
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.window import Window


class Run:
    """One state, shared by some messages of one block. Never changed: a new state is a new run."""

    __slots__ = (
        "block",
        "consumer",
        "due",
        "key",
        "live",
        "places",
        "receipt",
        "receives",
        "taken_at",
        "visible_at",
    )

    def __init__(
        self,
        block: Block,
        places: range,
        visible_at: int,
        receives: int,
        receipt: str | None,
        consumer: str | None,
        taken_at: int,
        key: bytes,
    ) -> None:
        self.block = block
        self.places = places
        self.visible_at = visible_at
        self.receives = receives
        self.receipt = receipt
        self.consumer = consumer
        self.taken_at = taken_at
        self.key = key
        self.live = 0
        """How many messages are still in this state."""
        self.due = False
        """Whether its time has come: its messages are ready again, though the receipt still counts."""

    def held_places(self) -> list[int]:
        runs = self.block.runs
        return [place for place in self.places if runs[place] is self]


class States:
    """Stages the states of messages. `version` is the highest that is on disk."""

    def __init__(self, window: Window, commit: GroupCommit, version: int) -> None:
        self._window = window
        self._commit = commit
        self._version = version
        self._ties = count()

    def give(
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
        key = b"%b%b%b" % (shelf.state_prefix, block.name.encode(), self._version.to_bytes(8, "big"))
        run = Run(block, places, visible_at, receives, receipt, consumer, taken_at, key)
        start, stop = places.start, places.stop
        if any(block.runs[start:stop]):
            for place in places:
                old = block.runs[place]
                if old is not None:
                    self.leave(shelf, old)
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
        record = keys.StateRecord(
            block.owner,
            block.priority,
            block.count,
            start,
            stop,
            visible_at,
            receives,
            receipt,
            consumer,
            taken_at,
            block.group,
            block.waiting,
        )
        self._commit.batch.ops.append((key, keys.encode(record)))
        return run

    def restore(self, shelf: Shelf, block: Block, record: keys.StateRecord, key: bytes) -> None:
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

    def leave(self, shelf: Shelf, run: Run, count: int = 1) -> None:
        """Some messages of a run have another state now, or are gone."""
        run.live -= count
        if not run.due:
            if run.receipt is None:
                shelf.delayed -= count
            else:
                shelf.leased -= count
        if not run.live:
            self._commit.batch.ops.append((run.key, None))
            if run.receipt is not None:
                runs = shelf.tokens[run.receipt]
                runs.remove(run)
                if not runs:
                    del shelf.tokens[run.receipt]
