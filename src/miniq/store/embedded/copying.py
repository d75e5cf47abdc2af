"""Dump and load of the embedded store: see `transfer.py`.

Messages are read in the order of their keys, so those that lay in one block come one after the other and lie in one
block again, unless they have a state of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import groupby

from miniq.message import Stored
from miniq.store import transfer
from miniq.store.contract import ByName
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.core import Core
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.kv import KV
from miniq.store.embedded.ledger import Ledger
from miniq.store.transfer import Item, Saved


async def dump(core: Core) -> AsyncIterator[Item]:
    """Everything, once nothing is staged."""
    async for item in transfer.one_by_one(_items(core.kv, core.shelves, core.ledger.last_id)):
        yield item
    async for item in transfer.history_of(core.history):
        yield item


def _items(kv: KV, shelves: ByName[Shelf], last_id: str) -> Iterator[Item]:
    for shelf in shelves.values():
        yield transfer.Queue(shelf.name, shelf.settings)
        prefix = keys.stage_prefix(shelf.serial)
        staged = any(True for _ in kv.scan(prefix, keys.after(prefix)))
        readers = [
            (transfer.Readers(shelf.name, name, one.epoch, one.last), len(one.held))
            for name, one in shelf.readers.items()
        ]
        yield from transfer.at_rest(shelf.name, staged, readers)
    for key, value in kv.scan(b"k", keys.after(b"k")):
        kind, name = keys.read_record_key(key)
        if kind != transfer.MARK:
            yield transfer.Record(kind, name, value)
    yield transfer.LastId(last_id)
    for shelf in shelves.values():
        yield from _messages(kv, shelf)
        prefix = keys.of_queue(b"d", shelf.serial)
        for key, value in kv.scan(prefix, keys.after(prefix)):
            record = keys.decode_dedup(value)
            yield transfer.Dedup(shelf.name, key[len(prefix) :].decode(), record.id, record.until)


def _messages(kv: KV, shelf: Shelf) -> Iterator[Saved]:
    """What is in line comes before what waits in groups: so heads come first."""
    for kind in (b"b", b"w"):
        prefix = keys.of_queue(kind, shelf.number)
        for key, value in kv.scan(prefix, keys.after(prefix)):
            name = key[-37:] if key[-1:] == b"m" else key[-36:]
            block = shelf.blocks.get(name.decode())
            for place, message in enumerate(keys.decode_block(value, kv.get)):
                if block is None:
                    yield Saved(Stored(message, message.due_at))
                elif not block.is_gone(place) and block.key == key:
                    run = block.runs[place]
                    taken_at = None if run is None or run.receipt is None else run.taken_at
                    yield Saved(block.stored(place, message), taken_at)


def load(items: Sequence[Item], core: Core, now: int) -> None:
    """Stage items; queues and readers are not among them."""
    commit, shelves, ledger = core.commit, core.shelves, core.ledger
    ops = commit.batch.ops
    for item in items:
        if isinstance(item, transfer.Record):
            ops.append((keys.record_prefix(item.kind) + item.name.encode(), item.value))
        elif isinstance(item, transfer.Dedup):
            record = keys.DedupRecord(item.said, item.until)
            ops.append((keys.dedup_key(shelves[item.queue].serial, item.name), keys.encode(record)))
        elif isinstance(item, transfer.HistoryStart):
            core.history.begin(item.offset, ops)
        elif isinstance(item, transfer.Events):
            commit.batch.events += [EventRun(event) for event in item.events]
    saved = [item for item in items if isinstance(item, Saved)]
    for (queue, fresh), some in groupby(saved, lambda one: (one.stored.message.queue, transfer.is_fresh(one))):
        _load_messages(shelves[queue], fresh, some, ledger, now)
    for item in items:
        if isinstance(item, transfer.LastId):
            ledger.last_id = max(ledger.last_id, item.id)
            ops.append((keys.LAST_ID, ledger.last_id.encode()))


def _load_messages(shelf: Shelf, fresh: bool, some: Iterable[Saved], ledger: Ledger, now: int) -> None:
    if fresh:
        ledger.arrive(shelf, [one.stored.message for one in some], now)
        return
    for one in some:
        state = one.stored
        ledger.arrive_saved(
            shelf,
            state.message,
            state.visible_at,
            state.receives,
            state.receipt,
            state.consumer,
            one.taken_at or 0,
            now,
        )
