"""What the embedded store reads at start: queues, counters, leases and delays, never the backlog."""

from __future__ import annotations

from miniq.errors import StoreCorrupt
from miniq.store.contract import ByName
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Shelf, Track
from miniq.store.embedded.kv import KV
from miniq.store.embedded.states import States


def load_shelves(kv: KV) -> ByName[Shelf]:
    """All queues with their counters."""
    shelves: ByName[Shelf] = ByName()
    for key, value in kv.scan(b"q", keys.after(b"q")):
        record = keys.decode_queue(value)
        name = key[1:].decode()
        shelf = shelves[name] = Shelf(name, record.number, record.serial, record.settings)
        counted = kv.get(keys.count_key(record.number))
        if counted is None:
            continue
        counts = keys.decode_count(counted)
        shelf.count, shelf.size = counts.count, counts.size
        if shelf.count:
            track = shelf.tracks[""] = Track(record.number, "", more=True)
            for priority, low in counts.lows.items():
                track.lanes[priority].seen = low[:-1]
    return shelves


def load_states(kv: KV, shelf: Shelf, states: States) -> None:
    """The leases, delays and removals of a queue."""
    number = shelf.number
    prefix = keys.of_queue(b"x", number)
    for key, value in kv.scan(prefix, keys.after(prefix)):
        record = keys.decode_gone(value)
        name = key[len(prefix) :].decode()
        block = _block(shelf, name, record.owner, record.priority, record.count, None, False)
        block.gone = int.from_bytes(record.gone, "little")
        block.alive = record.count - block.gone.bit_count()
    prefix = keys.of_queue(b"s", number)
    for key, value in kv.scan(prefix, keys.after(prefix)):
        state = keys.decode_state(value)
        name = key[len(prefix) : -8].decode()
        block = _block(shelf, name, state.owner, state.priority, state.count, state.group, state.waiting)
        states.restore(shelf, block, state, key)
    if len(shelf.blocks) > shelf.count:
        raise StoreCorrupt(f"store: queue {shelf.name!r} counts fewer messages than it has leases", field="store")


def newest_version(kv: KV) -> int:
    """The highest version among all states."""
    newest = 0
    for key, _ in kv.scan(b"s", keys.after(b"s")):
        newest = max(newest, int.from_bytes(key[-8:], "big"))
    return newest


def _block(shelf: Shelf, name: str, owner: str, priority: int, count: int, group: str | None, waiting: bool) -> Block:
    block = shelf.blocks.get(name)
    if block is None:
        prefix = (
            keys.group_prefix(shelf.number, group)
            if waiting and group is not None
            else keys.lane_prefix(shelf.number, owner, priority)
        )
        block = shelf.blocks[name] = Block(name, prefix + name.encode(), owner, priority, count)
        block.group, block.waiting = group, waiting
        block.source = None
    return block
