"""The part of the backlog that is in memory, and how the rest is read.

Each lane keeps the next few thousand ready messages; the whole store keeps a bounded number of them and a
bounded number of bytes. The cursor of a lane only moves forward, so reading never passes over what was
removed. What is not written yet cannot be read: arriving blocks are skipped and come in when written.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from miniq.errors import StoreCorrupt
from miniq.ids import run_of
from miniq.message import Message, PlainBatch
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Lane, Shelf
from miniq.store.embedded.kv import KV

if TYPE_CHECKING:
    from miniq.store.embedded.states import Run

LANE_MESSAGES = 4096
TOTAL_MESSAGES = 65536
READ_MESSAGES = 2048
READ_BYTES = 2 * 1024 * 1024
CACHE_BYTES = 32 * 1024 * 1024
OWNERS = 1024


class Window:
    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._messages = 0
        self._bytes = 0
        self._ties = count()

    # Bodies

    def load(self, block: Block) -> Sequence[Message]:
        """The messages of a block, from memory or from disk."""
        messages = block.messages
        if messages is None:
            messages = keys.decode_block(self.record(block), self._kv.get)
            self.hold(block, messages)
        return messages

    def look(self, block: Block) -> Sequence[Message]:
        """The same, without keeping them."""
        messages = block.messages
        return keys.decode_block(self.record(block), self._kv.get) if messages is None else messages

    def record(self, block: Block) -> bytes:
        """The record of a block that is written."""
        value = self._kv.get(block.key)
        if value is None:
            raise StoreCorrupt(f"store: the record of message {block.id_at(0)} is missing", field="store")
        return keys.whole_block(value, self._kv.get)

    def sizes(self, block: Block) -> list[int]:
        """The sizes of the messages of a block."""
        if block.sizes is None:
            block.sizes = sizes_of(self.load(block))
        return block.sizes

    def forget(self, block: Block) -> None:
        """Let go of the bodies of a block, unless they are nowhere else yet; its state stays."""
        if block.messages is not None and block.arrives is None:
            block.messages = None
            self._bytes -= block.charged
            block.charged = 0

    def offer(self, block: Block, messages: Sequence[Message]) -> None:
        """Keep the bodies of a block that will soon be wanted, while there is room for them."""
        block.sizes = sizes_of(messages)
        if self._bytes < CACHE_BYTES:
            self.hold(block, messages)

    def forget_if_full(self, block: Block) -> None:
        """Let go of bodies that are not wanted soon, if there is no room for them."""
        if self._bytes >= CACHE_BYTES:
            self.forget(block)

    def hold(self, block: Block, messages: Sequence[Message]) -> None:
        """Keep the bodies of a block."""
        if block.sizes is None:
            block.sizes = sizes_of(messages)
        block.messages = messages
        block.charged = sum(block.sizes)
        self._bytes += block.charged

    # Lanes

    def admit(self, shelf: Shelf, block: Block) -> None:
        """A fresh block is written: put it in its lane, or leave it on disk until its turn."""
        track = shelf.tracks.get(block.owner)
        if track is None:
            self.forget(block)
            return
        lane = track.lanes[block.priority]
        if block.name <= lane.seen and len(lane.back) >= LANE_MESSAGES:
            self._rewind(shelf, lane, block.name)
        if block.name <= lane.seen or (block.alone and block.name[:34] == lane.seen[:34]):
            # Its place is among what was read already, at the latest within the last block.
            shelf.blocks[block.name] = block
            block.windowed = True
            for place in range(block.count):
                if block.is_fresh(place):
                    self.push_back(lane, block, place, None)
        elif lane.more or lane.size + len(lane.back) >= LANE_MESSAGES or self._messages >= TOTAL_MESSAGES:
            lane.more = True
            self.forget(block)
        else:
            lane.seen = block.name
            if self._bytes >= CACHE_BYTES:
                self.forget(block)
            self._line_up(shelf, lane, block)

    def push_back(self, lane: Lane, block: Block, place: int, run: Run | None) -> None:
        """A message is ready out of turn; it keeps its place by age."""
        heappush(lane.back, (block.id_at(place), next(self._ties), block, place, run))

    def head(self, shelf: Shelf, lane: Lane) -> str | None:
        """The id of the next message of a lane."""
        if not self._find_next(shelf, lane):
            return None
        back, fresh = lane.back, lane.fresh
        if not fresh:
            return back[0][0]
        id = fresh[0].id_at(fresh[0].next)
        return min(id, back[0][0]) if back else id

    def _find_next(self, shelf: Shelf, lane: Lane) -> bool:
        """Whether a lane has a next message, which is then `back[0]` or the `next` of `fresh[0]`."""
        back, fresh = lane.back, lane.fresh
        while back:
            _, _, block, place, run = back[0]
            if block.runs[place] is run and not block.gone >> place & 1:
                break
            heappop(back)
        while True:
            while fresh:
                block = fresh[0]
                place = block.next
                if place < block.count and (block.runs[place] is not None or block.gone):
                    place = block.next = block.fresh_from(place)
                if place < block.count:
                    return True
                fresh.popleft()
                block.windowed = False
                lane.size -= block.count
                self._messages -= block.count
            if not lane.more or (back and back[0][0] <= lane.seen):
                return bool(back)
            self._read(shelf, lane)

    def _line_up(self, shelf: Shelf, lane: Lane, block: Block) -> None:
        """Put a fresh block at the end of its lane. One that stands alone may have its place between the
        messages of a block before it, so it goes where the order is by id."""
        shelf.blocks[block.name] = block
        block.windowed = True
        if block.alone:
            self.push_back(lane, block, 0, None)
            return
        lane.fresh.append(block)
        lane.size += block.count
        self._messages += block.count

    def _rewind(self, shelf: Shelf, lane: Lane, name: str) -> None:
        """Too much is ready out of turn: leave on disk what has no state, and read the lane again from
        the lowest name among it."""
        # Several blocks may have one name: that of a message and those it had before it was edited.
        dropped = dict.fromkeys(lane.fresh)
        dropped |= dict.fromkeys(block for _, _, block, _, run in lane.back if run is None)
        lane.fresh.clear()
        lane.back = [entry for entry in lane.back if entry[4] is not None]
        heapify(lane.back)
        self._messages -= lane.size
        lane.size = 0
        for block in dropped:
            block.windowed = False
            self.forget(block)
            if not block.touched and shelf.blocks.get(block.name) is block:
                del shelf.blocks[block.name]
        lane.seen = min([name, *[block.name for block in dropped]])[:-1]
        lane.more = True

    def _read(self, shelf: Shelf, lane: Lane) -> None:
        """Read the next blocks of a lane from disk."""
        found = size = 0
        run = ""
        start = lane.prefix + lane.seen.encode() + b"\0" if lane.seen else lane.prefix
        cut = len(lane.prefix)
        for key, value in self._kv.scan(start, keys.after(lane.prefix)):
            name = key[cut:].decode()
            # What was edited stands alone right after the block it came from: read it with that.
            if (found >= READ_MESSAGES or size >= READ_BYTES) and name[:34] != run:
                return
            lane.seen = name
            run = name[:34]
            if name in shelf.arriving or name in shelf.leaving:
                continue
            block = shelf.blocks.get(name)
            if block is None:
                messages = keys.decode_block(value, self._kv.get)
                first = messages[0]
                block = Block(name, key, first.recipient or "", first.priority, len(messages))
                block.group = first.group
                block.source = keys.source_of(value) or b""
                self.offer(block, messages)
            elif block.windowed or block.fresh_from(block.next) == block.count:
                continue
            self._line_up(shelf, lane, block)
            found += block.count
            size += len(value)
        lane.more = False

    def abandon(self, shelf: Shelf) -> None:
        """A queue was emptied or deleted: give back what it had of the window. What is still being written
        is given back when that is done."""
        for track in shelf.tracks.values():
            self._messages -= sum(lane.size for lane in track.lanes)
        shelf.tracks.clear()
        for block in shelf.blocks.values():
            self.forget(block)

    def trim_owners(self, shelf: Shelf) -> None:
        """Forget the lanes of recipients for whom nothing is in memory, if there are many."""
        if len(shelf.tracks) > OWNERS:
            for owner in [owner for owner, track in shelf.tracks.items() if owner and track.idle()]:
                del shelf.tracks[owner]

    def lanes(self, shelf: Shelf, consumer: str | None) -> list[list[Lane]]:
        """By falling priority, the lanes from which a consumer may take, where there may be something in them."""
        tracks = [shelf.tracks[""]]
        if consumer is not None:
            # Before his own lanes are looked up: they must not be among those that are forgotten.
            self.trim_owners(shelf)
            tracks.append(shelf.track(consumer))
        found = [
            [lane for track in tracks if (lane := track.lanes[priority]).fresh or lane.back or lane.more]
            for priority in range(9, -1, -1)
        ]
        return [lanes for lanes in found if lanes]

    def pick(
        self, shelf: Shelf, lanes: list[Lane], limit: int, max_bytes: int, first: bool
    ) -> tuple[Block, range, Run | None] | None:
        """The next messages in line: neighbours in one block that have one state. None if there is
        nothing; an empty range if the next one is too large for `max_bytes` and is not the first."""
        lane = lanes[0]
        others: list[str] = []
        """Ids that come first in other lanes."""
        if len(lanes) == 1:
            if not self._find_next(shelf, lane):
                return None
        else:
            heads = sorted((id, at) for at, one in enumerate(lanes) if (id := self.head(shelf, one)) is not None)
            if not heads:
                return None
            lane = lanes[heads[0][1]]
            others = [id for id, _ in heads[1:]]
        back, fresh = lane.back, lane.fresh
        old: Run | None = None
        is_back = bool(back) and (not fresh or back[0][0] <= fresh[0].id_at(fresh[0].next))
        if is_back:
            _, _, block, place, old = back[0]
            stop = place + 1
            if old is not None and old.receipt is None and not others:
                # Neighbours that were delayed or given back together; of leases each that ran out is told by itself.
                end = min(block.count, place + limit)
                while stop < end and block.runs[stop] is old:
                    stop += 1
        else:
            block = fresh[0]
            place = block.next
            stop = place + 1
            if block.count > stop and limit > 1:
                stop = block.fresh_until(place, limit)
            if back or others:
                # Only as far as nothing else comes first.
                bound = min([*others, back[0][0]] if back else others)
                while stop > place + 1 and block.id_at(stop - 1) > bound:
                    stop -= 1
        sizes = block.sizes or self.sizes(block)
        if sum(sizes[place:stop]) > max_bytes:
            total, end = 0, place
            while end < stop and total + sizes[end] <= max_bytes:
                total += sizes[end]
                end += 1
            stop = max(end, place + 1) if first else end
        if not is_back:
            block.next = stop
        return block, range(place, stop), old

    # By id

    def locate(self, shelf: Shelf, id: str) -> tuple[Block, int] | None:
        """Where a message is, None if there is none with that id. A block read for this is not kept."""
        if len(id) != 36 or not id.isascii():
            return None
        alone = id + "m"
        block = shelf.blocks.get(alone) or shelf.arriving.get(alone)
        if block is not None:
            return None if block.is_gone(0) else (block, 0)
        try:
            first, place = run_of(id)
        except KeyError:
            return None
        block = shelf.blocks.get(first) or shelf.arriving.get(first)
        if block is not None and place < block.count and not block.is_gone(place):
            return block, place
        if block is None and first not in shelf.leaving:
            for priority in range(10):
                key = keys.lane_prefix(shelf.number, "", priority) + first.encode()
                value = self._kv.get(key)
                if value is not None:
                    found = self._found(key, value, first, place)
                    if found is not None:
                        return found
        if alone in shelf.leaving:
            return None
        index = self._kv.get(keys.index_key(shelf.number, id))
        if index is None:
            return None
        value = self._kv.get(index)
        return None if value is None else self._found(index, value, alone, 0)

    def _found(self, key: bytes, value: bytes, name: str, place: int) -> tuple[Block, int] | None:
        messages = keys.decode_block(value, self._kv.get)
        if place >= len(messages):
            return None
        first = messages[0]
        block = Block(name, key, first.recipient or "", first.priority, len(messages))
        block.group = first.group
        block.waiting = key[:1] == b"w"
        block.source = keys.source_of(value) or b""
        block.sizes = sizes_of(messages)
        block.messages = messages
        return block, place


def sizes_of(messages: Sequence[Message]) -> list[int]:
    if isinstance(messages, PlainBatch):
        return list(map(len, messages.bodies))
    return [len(message.body) if message.headers is None else message.size for message in messages]
