"""The part of the backlog that is in memory, and how the rest is read.

Each lane keeps the next few thousand ready messages; the whole store keeps a bounded number of messages and bytes.
The cursor of a lane only moves forward, so reading never scans removed messages again. Blocks that are not written yet
are skipped when reading and admitted once they are written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from miniq.errors import StoreCorrupt
from miniq.ids import run_of
from miniq.message import NEVER, Message, PlainBatch
from miniq.store.embedded import block_records, keys
from miniq.store.embedded.blocks import NO_BLOCKS, Block, Lane, Shelf
from miniq.store.embedded.kv import KV

if TYPE_CHECKING:
    from miniq.store.embedded.states import Run

LANE_MESSAGES = 4096
TOTAL_MESSAGES = 65536
READ_MESSAGES = 2048
READ_BYTES = 2 * 1024 * 1024
CACHE_BYTES = 32 * 1024 * 1024
OWNERS = 4096
"""Consumers whose own lanes are kept though they are empty: those that asked last, in all queues. The lanes of another
one are read again when it asks."""


class Window:
    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._messages = 0
        self._bytes = 0
        self._ties = count()
        self._asked: dict[tuple[int, str], Shelf] = {}
        """The queues and names of the consumers that asked last, in order."""

    # Bodies

    def load(self, block: Block) -> Sequence[Message]:
        """The messages of a block, from memory or from disk."""
        messages = block.messages
        if messages is None:
            messages = self.peek(block)
            self.hold(block, messages)
        return messages

    def peek(self, block: Block) -> Sequence[Message]:
        """The messages of a block, without keeping them in memory."""
        messages = block.messages
        return block_records.decode_block(self.record(block), self._kv.get) if messages is None else messages

    def record(self, block: Block) -> bytes:
        """The written record of a block, which may refer to a stage."""
        value = self._kv.get(block.key)
        if value is None:
            raise StoreCorrupt(f"store: the record of message {block.id_at(0)} is missing", field="store")
        return value

    def sizes(self, block: Block) -> list[int]:
        """The sizes of the messages of a block."""
        if block.sizes is None:
            block.sizes = sizes_of(self.load(block))
        return block.sizes

    def forget(self, block: Block) -> None:
        """Release the messages of a block, unless they are not written yet; its state stays."""
        if block.messages is not None and block.arrives is None:
            block.messages = None
            self._bytes -= block.charged
            block.charged = 0

    def forget_if_full(self, block: Block) -> None:
        """Release the messages of a block if the cache is full."""
        if self._bytes >= CACHE_BYTES:
            self.forget(block)

    def hold(self, block: Block, messages: Sequence[Message]) -> None:
        """Keep the messages of a block in memory."""
        if block.sizes is None:
            block.sizes = sizes_of(messages)
        block.messages = messages
        block.charged = sum(block.sizes)
        self._bytes += block.charged

    # Lanes

    def admit(self, shelf: Shelf, block: Block) -> None:
        """Put a fresh block that is now written into its lane, or leave it on disk until its turn."""
        lanes = shelf.tracks.get(block.owner)
        if lanes is None:
            self.forget(block)
            return
        lane = lanes[block.priority]
        if block.name <= lane.seen and len(lane.back) >= LANE_MESSAGES:
            self._rewind(shelf, lane, block.name)
        if block.name <= lane.seen or (block.alone and block.name[:34] == lane.seen[:34]):
            # It belongs among blocks already read, at the latest inside the last one.
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
            self.forget_if_full(block)
            self._line_up(shelf, lane, block)

    def push_back(self, lane: Lane, block: Block, place: int, run: Run | None) -> None:
        """Queue a message that is ready out of turn; it is taken in order of its id."""
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
            is_current = block.runs[place] is run and not block.gone >> place & 1
            if is_current and (block.front is None or block.front.offers(block)):
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
            fresh = lane.fresh

    def _line_up(self, shelf: Shelf, lane: Lane, block: Block) -> None:
        """Put a fresh block at the end of its lane. A block that stands alone may belong between the messages of an
        earlier block, so it goes to the heap, which is ordered by id."""
        shelf.blocks[block.name] = block
        block.windowed = True
        if block.alone:
            self.push_back(lane, block, 0, None)
            return
        if lane.fresh is NO_BLOCKS:
            lane.fresh = deque()
        lane.fresh.append(block)
        lane.size += block.count
        self._messages += block.count

    def _rewind(self, shelf: Shelf, lane: Lane, name: str) -> None:
        """Too many messages are ready out of turn: release those without state, and read the lane again from the lowest
        of them."""
        # An edited message has a block of the same name as before.
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
            if not block.gone and not any(block.runs) and shelf.blocks.get(block.name) is block:
                del shelf.blocks[block.name]
        lane.seen = min([name, *[block.name for block in dropped]])[:-1]
        lane.more = True

    def _read(self, shelf: Shelf, lane: Lane) -> None:
        """Read the next blocks of a lane from disk."""
        count = size = 0
        run = ""
        start = lane.prefix + lane.seen.encode() + b"\0" if lane.seen else lane.prefix
        cut = len(lane.prefix)
        for key, value in self._kv.scan(start, keys.after(lane.prefix)):
            name = key[cut:].decode()
            # An edited message stands alone right after the block it came from: read both together.
            if (count >= READ_MESSAGES or size >= READ_BYTES) and name[:34] != run:
                return
            lane.seen = name
            run = name[:34]
            if name in shelf.arriving or name in shelf.leaving:
                continue
            block = shelf.blocks.get(name)
            if block is None:
                staged = block_records.staged_in(value)
                if staged is not None and staged.count:
                    block = _unread(name, key, lane, staged)
                else:
                    block, messages = self.read_block(name, key, value)
                    block.sizes = sizes_of(messages)
                    if self._bytes < CACHE_BYTES:
                        self.hold(block, messages)
            elif block.windowed or block.fresh_from(block.next) == block.count:
                continue
            self._line_up(shelf, lane, block)
            count += block.count
            size += len(value)
        lane.more = False

    def abandon(self, shelf: Shelf) -> None:
        """Release everything of a queue that was purged or deleted; blocks that are still being written are released
        after that."""
        for owner, lanes in shelf.tracks.items():
            self._messages -= sum(lane.size for lane in lanes)
            self._asked.pop((shelf.number, owner), None)
        shelf.tracks.clear()
        for block in shelf.blocks.values():
            self.forget(block)

    def lanes(self, shelf: Shelf, consumer: str | None) -> list[list[Lane]]:
        """By falling priority, the lanes from which a consumer may take and that may have messages."""
        if consumer is None:
            return [[lane] for lane in reversed(shelf.tracks[""]) if lane.fresh or lane.back or lane.more]
        self._asks(shelf, consumer)
        pairs = zip(reversed(shelf.tracks[""]), reversed(shelf.lanes(consumer)), strict=True)
        by_priority = [[lane for lane in pair if lane.fresh or lane.back or lane.more] for pair in pairs]
        return [lanes for lanes in by_priority if lanes]

    def _asks(self, shelf: Shelf, consumer: str) -> None:
        """A consumer asks by its name, which may be any: forget the lanes of the one that has not asked for longest."""
        asked = self._asked
        if asked.pop((shelf.number, consumer), None) is None and len(asked) >= OWNERS:
            oldest = next(iter(asked))
            tracks, owner = asked.pop(oldest).tracks, oldest[1]
            if not any(lane.fresh or lane.back for lane in tracks.get(owner, ())):
                tracks.pop(owner, None)
        asked[shelf.number, consumer] = shelf

    def pick(
        self, shelf: Shelf, lanes: list[Lane], limit: int, max_bytes: int, first: bool
    ) -> tuple[Block, range, Run | None] | None:
        """The next messages in line: neighbours in one block with one state. None if there are none; an empty range if
        the next message exceeds `max_bytes` and is not the first."""
        lane = lanes[0]
        others: list[str] = []
        """The head ids of the other lanes."""
        if len(lanes) == 1:
            if not self._find_next(shelf, lane):
                return None
        else:
            heads = sorted((id, at) for at, lane in enumerate(lanes) if (id := self.head(shelf, lane)) is not None)
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
                # Neighbours that were delayed or released together; each expired lease has its own history event.
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
                # Stop before the next message of the heap or of another lane.
                bound = min([*others, back[0][0]] if back else others)
                while stop > place + 1 and block.id_at(stop - 1) > bound:
                    stop -= 1
        if max_bytes < NEVER and sum((sizes := block.sizes or self.sizes(block))[place:stop]) > max_bytes:
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
        """The block and place of a message, None if there is none with that id. A block read for this is not kept."""
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
                    block = self.read_once(first, key, value)
                    if place < block.count:
                        return block, place
        if alone in shelf.leaving:
            return None
        index = self._kv.get(keys.index_key(shelf.number, id))
        if index is None:
            return None
        value = self._kv.get(index)
        return None if value is None else (self.read_once(alone, index, value), 0)

    def read_once(self, name: str, key: bytes, value: bytes) -> Block:
        """A block with its messages, which do not count for the cache."""
        block, messages = self.read_block(name, key, value)
        block.sizes = sizes_of(messages)
        block.messages = messages
        return block

    def read_block(self, name: str, key: bytes, value: bytes) -> tuple[Block, Sequence[Message]]:
        """The block of a record, and its messages."""
        messages = block_records.decode_block(value, self._kv.get)
        first = messages[0]
        block = Block(name, key, first.recipient or "", first.priority, len(messages))
        block.group = first.group
        block.waiting = key[:1] == b"w"
        block.source = block_records.source_of(value) or b""
        return block, messages


def _unread(name: str, key: bytes, lane: Lane, staged: block_records.StagedBlock) -> Block:
    """A block of the common lanes that was committed from a stage. Its messages are read when they are needed, which
    for a claim is when it is fetched."""
    block = Block(name, key, "", keys.priority_of(lane.prefix), staged.count)
    block.source, block.size, block.sent_at = staged.at, staged.size, staged.sent_at
    return block


def sizes_of(messages: Sequence[Message]) -> list[int]:
    if isinstance(messages, PlainBatch):
        return messages.sizes
    return [len(message.body) if message.headers is None else message.size for message in messages]
