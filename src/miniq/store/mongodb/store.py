"""The store contract on MongoDB. `documents.py` describes the collections, `queries.py` has the queries; the parts of
the contract are in `messages.py`, `claims.py`, `stages.py`, `results.py` and `history.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from bson import ObjectId

from miniq.errors import InvalidRequest
from miniq.message import QueueSettings
from miniq.store import events, transfer
from miniq.store.arguments import Change, RecordChange, RecordSet
from miniq.store.contract import ChangeHint, FinishHint, LeaseCount, ReadyHint
from miniq.store.mongodb import copying, counting, fronts, groups, records, results, setup, upkeep
from miniq.store.mongodb.changes import Changes, Numbers
from miniq.store.mongodb.claims import Claims
from miniq.store.mongodb.connection import Link, Session
from miniq.store.mongodb.documents import decode_settings, encode_settings
from miniq.store.mongodb.history import HistoryLog, Tools
from miniq.store.mongodb.messages import Messages
from miniq.store.mongodb.records import save_all
from miniq.store.mongodb.results import Results
from miniq.store.mongodb.signals import Signals
from miniq.store.mongodb.stages import Stages
from miniq.store.transfer import Item, portions

T = TypeVar("T")


class MongoStore:
    """One database, any number of processes; see `Store`."""

    shared = True

    def __init__(self, url: str, *, durable: bool = True, connections: int = 0, timeout: float = 10.0) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.on_change: ChangeHint = lambda: None
        self.on_finished: FinishHint = lambda queue: None
        self.on_lease_expired: LeaseCount = lambda queue, count: None
        self._link = Link(url, durable=durable, connections=connections, patience=timeout)
        self._signals = Signals(self._link)
        self._changes = Changes(self._link)
        self.history = HistoryLog(self._link)
        tools = Tools(self._link, self._changes, self.history, self._ready)
        self.messages = Messages(tools, self._lease_expired, self._signals.finished)
        self.claims = Claims(tools, self.messages.taking, self._lease_expired)
        self.stages = Stages(tools)
        self.results = Results(tools, self._signals.finished)

    async def open(self) -> None:
        await self._link.open()
        try:
            await setup.prepare(self._link)
        except BaseException:
            await self._link.close()
            raise
        self._signals.start(self._hint, lambda: self.on_change(), lambda queue: self.on_finished(queue))

    async def close(self) -> None:
        await self.messages.close()
        await self._signals.stop()
        await self._link.close()

    def failure(self) -> Exception | None:
        return None

    async def check(self) -> None:
        with self._link.call() as db:
            await db.command("hello")

    def hint(self, queue: str, count: int) -> None:
        self._signals.ready(queue, None, count)

    def check_space(self, size: int, count: int) -> None:
        return

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        with self._link.call() as db:
            found = await db.queues.find({}).to_list()
        return {one["_id"]: decode_settings(one["settings"]) for one in found}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        async def work(session: Session) -> None:
            await self._save(session, name, settings)

        await self._revise(work)

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        async def work(session: Session) -> bool:
            queues = self._link.database.queues
            found = await queues.find_one({"_id": name}, {"settings": 1}, session=session)
            if (None if found is None else decode_settings(found["settings"])) != was:
                return False
            await self._save(session, name, settings)
            return True

        return await self._revise(work)

    async def delete_queue(self, name: str, change: Change, records: RecordSet | None = None) -> bool:
        async def work(session: Session) -> bool:
            db = self._link.database
            if records is not None:
                await save_all(db, session, records)
            found = await db.queues.find_one_and_delete({"_id": name}, session=session)
            if found is not None:
                count, size = await counting.retire(db, session, found["number"])
                for note in found.get("showing", ()):
                    held = await counting.total(db, session, note["number"])
                    count, size = count + held[0], size + held[1]
                if count and change.keep != "off":
                    event = events.purged(name, count, size, change.now, "deleted")
                    await self.history.append(db, session, [event])
            return found is not None

        if change.keep != "off":
            await self.history.copy()
        try:
            return await self._revise(work)
        finally:
            self._changes.forget(name)

    async def records(self, kind: str) -> dict[str, bytes]:
        with self._link.call() as db:
            return {one["name"]: one["value"] for one in await db.records.find({"kind": kind}).to_list()}

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        async def work(session: Session) -> None:
            await records.save(self._link.database, session, {(kind, name): value})

        await self._revise(work)

    async def save_records(self, records: RecordSet) -> None:
        async def work(session: Session) -> None:
            await save_all(self._link.database, session, records)

        await self._revise(work)

    async def add_record(self, kind: str, name: str, value: bytes) -> bytes:
        key = {"_id": f"{kind}:{name}"}

        async def work(session: Session) -> bytes:
            records = self._link.database.records
            found = await records.find_one(key, session=session)
            if found is not None:
                return bytes(found["value"])
            await records.insert_one(key | {"kind": kind, "name": name, "value": value}, session=session)
            return value

        return await self._revise(work)

    async def change_record(self, change: RecordChange) -> bool:
        async def work(session: Session) -> bool:
            return await records.change(self._link.database, session, change)

        return await (self._link.transact(work) if change.is_quiet else self._revise(work))

    async def revision(self) -> int:
        with self._link.call() as db:
            return await records.revision(db)

    async def last_id(self) -> str:
        with self._link.call() as db:
            return await counting.last_id(db)

    # Upkeep

    async def tidy(self, now: int, limit: int) -> int:
        await self.claims.finish(now)
        await self.stages.show_all()
        removed = await self.stages.tidy(now, limit)
        removed += await self.claims.tidy(now, limit - removed)
        pending, ready = await upkeep.choose_heads(self._link, now, limit)
        for queue, lane in ready:
            self._ready(queue, [lane])
        removed += await upkeep.tidy(self._link, self.history, now, limit - removed)
        return max(removed, pending)

    async def backup(self, path: str) -> None:
        raise InvalidRequest(
            "store: MongoDB makes its own backups; use mongodump --oplog, or a snapshot of its disks "
            "(docs/howto/mongodb.md)",
            field="store",
        )

    # Copying

    async def dump(self) -> AsyncIterator[list[Item]]:
        await self.stages.show_all()
        with self._link.call() as db:
            async for portion in portions(copying.dump(db, self.history)):
                yield portion

    async def load(self, items: Sequence[Item], now: int) -> None:
        await transfer.load_settings(self, items)
        saved = [item for item in items if isinstance(item, transfer.Saved)]
        records = [item for item in items if isinstance(item, transfer.Dedup)]
        readers = [item for item in items if isinstance(item, transfer.Readers)]
        kept = [item for item in items if isinstance(item, transfer.Kept)]
        queues = [one.stored.message.queue for one in saved] + [record.queue for record in records]
        queues += [reader.queue for reader in readers] + [one.queue for one in kept]

        fronted: dict[ObjectId, list[str]] = {}

        async def work(named: Numbers, session: Session) -> None:
            db = self._link.database
            for queue in dict.fromkeys(one.stored.message.queue for one in saved):
                some = [one for one in saved if one.stored.message.queue == queue]
                number = named[queue].number
                fronted[number] = await copying.load_messages(db, session, number, some, now)
            serials = {queue: name.serial for queue, name in named.items()}
            await copying.load_dedup(db, session, serials, records)
            for queue in dict.fromkeys(one.queue for one in kept):
                of_queue = [(one.id, one.finished, one.until) for one in kept if one.queue == queue]
                await results.keep(db, session, serials[queue], of_queue)
            for reader in readers:
                await copying.load_readers(db, session, reader, named[reader.queue])
            for item in items:
                if isinstance(item, transfer.LastId):
                    await copying.load_last_id(db, session, item.id)
                elif isinstance(item, transfer.HistoryStart):
                    await self.history.begin(db, session, item.offset)
                elif isinstance(item, transfer.Events):
                    await self.history.load(db, session, item.offset, item.events)

        await self._changes.make(queues, work)
        for number, keys in fronted.items():
            await fronts.hold(self._link, number, keys, now)
            await groups.choose(self._link, number, keys, now)

    # Inside

    async def _save(self, session: Session, name: str, settings: QueueSettings) -> None:
        """Save a queue; a new one gets its number and serial."""
        db, number = self._link.database, ObjectId()
        fresh = {"number": number, "serial": number}
        update = {"$set": {"settings": encode_settings(settings)}, "$setOnInsert": fresh}
        saved = await db.queues.update_one({"_id": name}, update, upsert=True, session=session)
        if saved.upserted_id is not None:
            await db.blocks.insert_one({"_id": number, "last_id": ""}, session=session)

    async def _revise(self, work: Callable[[Session], Awaitable[T]]) -> T:
        """Change queues or records, and notify other brokers."""

        async def both(session: Session) -> T:
            answer = await work(session)
            revision = {"$inc": {"number": 1}}
            await self._link.database.meta.update_one({"_id": "revision"}, revision, upsert=True, session=session)
            return answer

        answer = await self._link.transact(both)
        self._signals.changed()
        return answer

    def _hint(self, queue: str, recipient: str | None, count: int) -> None:
        """Wake long polls of this broker."""
        self.on_ready(queue, recipient, count)

    def _lease_expired(self, queue: str, count: int) -> None:
        """Report leases that a change found expired."""
        if count:
            self.on_lease_expired(queue, count)

    def _ready(self, queue: str, recipients: Iterable[str | None]) -> None:
        """Wake long polls, here and at other brokers, after messages arrived or were given back."""
        for recipient, count in Counter(recipients).items():
            self.on_ready(queue, recipient, count)
            self._signals.ready(queue, recipient, count)
