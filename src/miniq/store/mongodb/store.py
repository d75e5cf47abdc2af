"""The store contract on MongoDB. `documents.py` describes the collections, `queries.py` has the queries; the parts of
the contract are in `messages.py`, `claims.py`, `stages.py` and `history.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from bson import ObjectId

from miniq.errors import InvalidRequest
from miniq.message import QueueSettings
from miniq.store import transfer
from miniq.store.contract import ChangeHint, ReadyHint
from miniq.store.mongodb import copying, counters, setup, upkeep
from miniq.store.mongodb.changes import Changes, Numbers
from miniq.store.mongodb.claims import Claims
from miniq.store.mongodb.connection import Link, Session
from miniq.store.mongodb.documents import decode_settings, encode_settings
from miniq.store.mongodb.history import HistoryLog, Tools
from miniq.store.mongodb.messages import Messages
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
        self._link = Link(url, durable=durable, connections=connections, patience=timeout)
        self._signals = Signals(self._link)
        self._changes = Changes(self._link)
        self.history = HistoryLog(self._link)
        tools = Tools(self._link, self._changes, self.history, self._ready)
        self.messages = Messages(tools, self._hint)
        self.claims = Claims(tools)
        self.stages = Stages(tools)

    async def open(self) -> None:
        await self._link.open()
        try:
            await setup.prepare(self._link)
        except BaseException:
            await self._link.close()
            raise
        self._signals.start(self._hint, lambda: self.on_change())

    async def close(self) -> None:
        await self._signals.stop()
        await self._link.close()

    def failure(self) -> Exception | None:
        return None

    async def check(self) -> None:
        with self._link.call() as db:
            await db.command("hello")

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        with self._link.call() as db:
            found = await db.queues.find({}).to_list()
        return {one["_id"]: decode_settings(one["settings"]) for one in found}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        async def work(session: Session) -> None:
            await self._link.database.queues.update_one({"_id": name}, _saved(settings), upsert=True, session=session)

        await self._revise(work)

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        async def work(session: Session) -> bool:
            queues = self._link.database.queues
            found = await queues.find_one({"_id": name}, {"settings": 1}, session=session)
            if (None if found is None else decode_settings(found["settings"])) != was:
                return False
            await queues.update_one({"_id": name}, _saved(settings), upsert=True, session=session)
            return True

        return await self._revise(work)

    async def delete_queue(self, name: str) -> bool:
        async def work(session: Session) -> bool:
            db = self._link.database
            found = await db.queues.find_one_and_delete({"_id": name}, session=session)
            if found is not None:
                await counters.remove(db, session, found["number"])
            return found is not None

        self._changes.forget(name)
        return await self._revise(work)

    async def records(self, kind: str) -> dict[str, bytes]:
        with self._link.call() as db:
            return {one["name"]: one["value"] for one in await db.records.find({"kind": kind}).to_list()}

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        key = {"_id": f"{kind}:{name}"}

        async def work(session: Session) -> None:
            records = self._link.database.records
            if value is None:
                await records.delete_one(key, session=session)
            else:
                record = key | {"kind": kind, "name": name, "value": value}
                await records.replace_one(key, record, upsert=True, session=session)

        await self._revise(work)

    async def revision(self) -> int:
        with self._link.call() as db:
            found = await db.meta.find_one({"_id": "revision"})
        return 0 if found is None else int(found["number"])

    async def last_id(self) -> str:
        with self._link.call() as db:
            return await counters.last_id(db)

    # Upkeep

    async def tidy(self, now: int, limit: int) -> int:
        await self.claims.finish(now)
        await self.stages.show_all()
        removed = await self.stages.tidy(now, limit)
        return removed + await upkeep.tidy(self._link, now, limit - removed)

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
        queues = [one.stored.message.queue for one in saved] + [record.queue for record in records]
        queues += [reader.queue for reader in readers]

        async def work(named: Numbers, slot: str, session: Session) -> None:
            db = self._link.database
            for queue in dict.fromkeys(one.stored.message.queue for one in saved):
                some = [one for one in saved if one.stored.message.queue == queue]
                await copying.load_messages(db, session, queue, named[queue].number, slot, some, now)
            serials = {queue: name.serial for queue, name in named.items()}
            await copying.load_dedup(db, session, serials, records)
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

    # Inside

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

    def _ready(self, queue: str, recipients: Iterable[str | None]) -> None:
        """Wake long polls, here and at other brokers, after messages arrived or were given back."""
        for recipient, count in Counter(recipients).items():
            self.on_ready(queue, recipient, count)
            self._signals.ready(queue, recipient, count)


def _saved(settings: QueueSettings) -> dict[str, Any]:
    """The update that saves a queue; a new one gets its number and serial."""
    number = ObjectId()
    fresh = {"number": number, "serial": number, "slots": 0}
    return {"$set": {"settings": encode_settings(settings)}, "$setOnInsert": fresh}
