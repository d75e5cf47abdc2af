"""The oracle: everything in dicts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

from miniq.batch import ClaimGroup
from miniq.errors import InvalidRequest
from miniq.message import HistoryPage, HistoryRecord, HistorySpan, QueueSettings
from miniq.result import Finished
from miniq.store import events, transfer
from miniq.store.arguments import Change, PutResult, RecordChange, RecordSet
from miniq.store.contract import HistoryStore, ResultStore, SingleProcessStore
from miniq.store.decisions import stages_of
from miniq.store.transfer import Item, portions, with_history
from tests.oracle.claims import Claims
from tests.oracle.messages import Messages
from tests.oracle.shelves import Readers, Shelf, Shelves
from tests.oracle.stages import Stages


class Oracle(SingleProcessStore):
    """See `Store`."""

    def __init__(self) -> None:
        super().__init__()
        self._shelves = Shelves()
        self._shelves.on_ready = lambda queue, recipient, count: self.on_ready(queue, recipient, count)
        self._shelves.on_lease_expired = lambda queue, count: self.on_lease_expired(queue, count)
        self._records = self._shelves.records
        self.messages = Messages(self._shelves)
        self.claims = Claims(self._shelves)
        self.stages = Stages(self._shelves)
        self.results = Results(self._shelves)
        self.history = Events(self._shelves)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    def failure(self) -> Exception | None:
        return None

    async def queues(self) -> dict[str, QueueSettings]:
        return {name: shelf.settings for name, shelf in self._shelves.items()}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        if name in self._shelves:
            self._shelves[name].settings = settings
        else:
            self._shelves[name] = Shelf(settings)

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        if (await self.queues()).get(name) != was:
            return False
        await self.save_queue(name, settings)
        return True

    async def delete_queue(self, name: str, change: Change, records: RecordSet | None = None) -> bool:
        shelf = self._shelves.pop(name, None)
        if shelf is not None and records is not None:
            await self.save_records(records)
        if shelf is not None and shelf.rows:
            self._shelves.record(change.keep, events.purged(name, len(shelf.rows), shelf.bytes, change.now, "deleted"))
        return shelf is not None

    async def records(self, kind: str) -> dict[str, bytes]:
        return dict(self._records.get(kind, {}))

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        records = self._records.setdefault(kind, {})
        if value is None:
            records.pop(name, None)
        else:
            records[name] = value

    async def save_records(self, records: RecordSet) -> None:
        for (kind, name), value in records.values.items():
            await self.save_record(kind, name, value)

    async def add_record(self, kind: str, name: str, value: bytes) -> bytes:
        return self._records.setdefault(kind, {}).setdefault(name, value)

    async def change_record(self, change: RecordChange) -> bool:
        if not self._shelves.has_record(change):
            return False
        await self.save_record(change.kind, change.name, change.value)
        return True

    async def last_id(self) -> str:
        return self._shelves.last_id

    async def tidy(self, now: int, limit: int) -> int:
        removed = 0
        for shelf in self._shelves.values():
            expired = [dedup_id for dedup_id, (_, until) in shelf.dedup.items() if until <= now][: limit - removed]
            for dedup_id in expired:
                del shelf.dedup[dedup_id]
            removed += len(expired)
            over = [id for id, (_, until) in shelf.results.items() if until <= now][: limit - removed]
            for id in over:
                del shelf.results[id]
            removed += len(over)
            for stage in stages_of(shelf.stages):
                if stage.until <= now:
                    del shelf.stages[stage.name]
                    removed += 1
            for readers in shelf.readers.values():
                for number in [number for number, until in readers.kept.items() if until <= now]:
                    readers.forget(number)
                    removed += 1
        return removed

    async def backup(self, path: str) -> None:
        raise InvalidRequest("store: the oracle has nothing on disk", field="store")

    async def dump(self) -> AsyncIterator[list[Item]]:
        async for portion in portions(with_history(self._items(), self.history)):
            yield portion

    def _items(self) -> Iterator[Item]:
        for name, shelf in self._shelves.items():
            yield transfer.Queue(name, shelf.settings)
            readers = [
                (
                    transfer.Readers(name, group.group, group.epoch, group.last, group.id),
                    len(group.claims) - len(group.kept),
                )
                for group in shelf.readers.values()
            ]
            yield from transfer.at_rest(name, bool(shelf.stages), readers)
        for kind, records in self._records.items():
            if kind != transfer.MARK:
                for name, value in records.items():
                    yield transfer.Record(kind, name, value)
        yield transfer.LastId(self._shelves.last_id)
        for name, shelf in self._shelves.items():
            heads = set(shelf.heads.values())
            for row in sorted(shelf.rows.values(), key=lambda row: (not row.was_taken, row.message.id not in heads)):
                returned = row.was_taken and not row.receives and row.message.group is not None
                yield transfer.Saved(row.stored(), row.taken_at, returned)
            for dedup_id, (answer, until) in shelf.dedup.items():
                yield transfer.Dedup(name, dedup_id, answer, until)
            for id, (finished, until) in shelf.results.items():
                yield transfer.Kept(name, id, finished, until)

    async def load(self, items: Sequence[Item], now: int) -> None:
        shelves = self._shelves
        await transfer.load_settings(self, items)
        for item in items:
            if isinstance(item, transfer.Readers):
                state = ClaimGroup(item.group, item.epoch, item.last, item.last, id=item.id)
                shelves[item.queue].readers[item.group] = Readers(state)
            elif isinstance(item, transfer.Saved):
                message = item.stored.message
                shelves[message.queue].add(message).restore(item.stored, item.taken_at, item.was_taken)
            elif isinstance(item, transfer.Dedup):
                shelves[item.queue].dedup[item.name] = (item.answer, item.until)
            elif isinstance(item, transfer.Kept):
                shelves[item.queue].results[item.id] = (item.finished, item.until)
            elif isinstance(item, transfer.LastId):
                shelves.last_id = max(shelves.last_id, item.id)
            elif isinstance(item, transfer.HistoryStart):
                shelves.first = item.offset
            elif isinstance(item, transfer.Events):
                shelves.events += item.events


class Results(ResultStore):
    """See `ResultStore`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    async def find(self, queue: str, ids: Sequence[str], now: int) -> dict[str, Finished]:
        kept = self._shelves[queue].results
        return {id: kept[id][0] for id in ids if id in kept and kept[id][1] > now}

    async def put(self, queue: str, id: str, put: PutResult) -> bool:
        kept = self._shelves[queue].results
        finished, until = kept.get(id, (None, 0))
        if not put.matches(finished if until > put.now else None):
            return False
        if put.finished is None:
            kept.pop(id, None)
        else:
            kept[id] = (put.finished, put.until)
        return True


class Events(HistoryStore):
    """See `HistoryStore`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage:
        records: list[HistoryRecord] = []
        first = self._shelves.first
        start = max(0, after + 1 - first)
        for offset, event in enumerate(self._shelves.events[start:], first + start):
            if len(records) == limit:
                break
            after = offset
            if queue is None or event.queue == queue:
                records.append(HistoryRecord(offset, event))
        return HistoryPage(records, after)

    async def span(self) -> HistorySpan:
        first, events = self._shelves.first, self._shelves.events
        size = sum(64 + len(event.body or b"") for event in events)
        return HistorySpan(first, first + len(events) - 1, size, events[0].at if events else None)

    async def trim(self, upto: int) -> None:
        count = min(len(self._shelves.events), max(0, upto + 1 - self._shelves.first))
        del self._shelves.events[:count]
        self._shelves.first += count
