"""Dump and load of the embedded store: see `transfer.py`.

Messages are dumped in order of their keys, so fresh messages that shared a block share one again after loading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from miniq.store import transfer
from miniq.store.embedded import keys
from miniq.store.embedded.browse import written
from miniq.store.embedded.core import Core
from miniq.store.embedded.keys import EventRun
from miniq.store.transfer import Item, Saved


def dump(core: Core) -> Iterator[Item]:
    """Everything but the history, once nothing is staged."""
    kv, shelves = core.kv, core.shelves
    for shelf in shelves.values():
        yield transfer.Queue(shelf.name, shelf.settings)
        readers = [
            (transfer.Readers(shelf.name, name, group.epoch, group.last, group.id), len(group.held))
            for name, group in shelf.readers.items()
        ]
        yield from transfer.at_rest(shelf.name, bool(shelf.stages), readers)
    for key, value in kv.scan(b"k", keys.after(b"k")):
        kind, name = keys.read_record_key(key)
        if kind != transfer.MARK:
            yield transfer.Record(kind, name, value)
    yield transfer.LastId(core.ledger.last_id)
    for shelf in shelves.values():
        # The heads and fronts of groups come before the messages that wait behind them.
        for position, _, stored, run in written(core, shelf):
            taken_at = None if run is None or run.receipt is None else run.taken_at
            saved = Saved(stored, taken_at, run is not None and run.returned)
            if position[:1] == b"b" or saved.was_taken:
                yield saved
        for _, _, stored, run in written(core, shelf, b"w"):
            if not (stored.receives or (run is not None and run.returned)):
                yield Saved(stored)
        prefix = keys.of_queue(b"d", shelf.serial)
        for key, value in kv.scan(prefix, keys.after(prefix)):
            record = keys.decode_dedup(value)
            yield transfer.Dedup(shelf.name, key[len(prefix) :].decode(), record.id, record.until)
        prefix = keys.of_queue(b"f", shelf.serial)
        for key, value in kv.scan(prefix, keys.after(prefix)):
            kept = keys.decode_result(value)
            yield transfer.Kept(shelf.name, key[len(prefix) :].decode(), kept.finished, kept.until)


def load(items: Sequence[Item], core: Core, now: int) -> None:
    """Stage items other than queues, records and readers."""
    commit, shelves, ledger = core.commit, core.shelves, core.ledger
    ops = commit.batch.ops
    for item in items:
        if isinstance(item, transfer.Dedup):
            record = keys.DedupRecord(item.answer, item.until)
            ops.append((keys.dedup_key(shelves[item.queue].serial, item.name), keys.encode(record)))
        elif isinstance(item, transfer.Kept):
            core.results.stage(shelves[item.queue], item.id, item.finished, item.until)
        elif isinstance(item, transfer.HistoryStart):
            core.history.begin(item.offset, ops)
        elif isinstance(item, transfer.Events):
            commit.batch.events += [EventRun(event) for event in item.events]
    saved = [item for item in items if isinstance(item, Saved)]
    for (queue, fresh), group in groupby(saved, lambda item: (item.stored.message.queue, item.fresh)):
        if fresh:
            ledger.arrive(shelves[queue], [item.stored.message for item in group], now)
        else:
            for item in group:
                ledger.arrive_one(shelves[queue], item.stored.message, now, item)
    for item in items:
        if isinstance(item, transfer.LastId):
            ledger.last_id = max(ledger.last_id, item.id)
            ops.append((keys.LAST_ID, ledger.last_id.encode()))
