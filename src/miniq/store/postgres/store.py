"""The store contract on PostgreSQL.

All state is in the database, so several brokers may share it. The parts of the contract are in `messages.py`,
`claims.py`, `stages.py`, `results.py` and `history.py`; `blocks.py` decides which messages share a row. The `.sql`
files have the statements, `schema.sql` the tables, `access.py` combines them; `connections.py` is the pool,
`listener.py` carries wake-ups between brokers, `rows.py` converts rows, `copying.py` dumps and loads.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence

import msgspec

from miniq.errors import InvalidRequest
from miniq.message import QueueSettings
from miniq.store import transfer
from miniq.store.arguments import Change, RecordChange, RecordSet
from miniq.store.contract import ChangeHint, FinishHint, LeaseCount, ReadyHint, RevisionChanged
from miniq.store.postgres import address, copying, schema
from miniq.store.postgres.access import LONG, Access, Step, execute, pipeline
from miniq.store.postgres.claims import Claims
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.history import Events
from miniq.store.postgres.messages import Messages
from miniq.store.postgres.results import Results
from miniq.store.postgres.rows import escape
from miniq.store.postgres.stages import Stages
from miniq.store.transfer import Item, portions

log = logging.getLogger("miniq.store.postgres")
REMAINS = 600 * 1_000_000
"""How long the remains of a deleted queue are checked: a call in flight may still add a row."""


class PostgresStore:
    """A schema in a database; see `Store`."""

    shared = True

    def __init__(self, url: str, *, durable: bool = True, connections: int = 8, timeout: float = 10.0) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.on_change: ChangeHint = lambda: None
        self.on_finished: FinishHint = lambda queue: None
        self.on_lease_expired: LeaseCount = lambda queue, count: None
        self._durable = durable
        self._db = db = Access(
            address.parse(url, durable=durable),
            connections,
            timeout,
            lambda queue, recipient, count: self.on_ready(queue, recipient, count),
            lambda: self.on_change(),
            lambda queue: self.on_finished(queue),
            lambda queue, count: self.on_lease_expired(queue, count),
        )
        self.messages = Messages(db)
        self.claims = Claims(db)
        self.stages = Stages(db)
        self.results = Results(db)
        self.history = Events(db)

    async def open(self) -> None:
        try:
            await self._db.connections.call(self._prepare, LONG)
        except BaseException:
            await self._db.connections.close()
            raise
        self._db.listener.start()

    async def close(self) -> None:
        await self._db.listener.stop()
        await self._db.connections.close()

    def failure(self) -> Exception | None:
        return None  # an unreachable database may come back

    async def check(self) -> None:
        await self.revision()

    def hint(self, queue: str, count: int) -> None:
        self._db.listener.arrived(queue, None, count)

    def check_space(self, size: int, count: int) -> None:
        return

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        queues = await self._db.all("queues", {})
        return {name: msgspec.json.decode(settings, type=QueueSettings) for name, settings in queues}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        await self._db.all("save_queue", {"queue": name, "settings": _json(settings)})
        self._db.listener.changed()

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        params = {"queue": name, "settings": _json(settings)}

        async def change(connection: Connection) -> bool:
            if was is None:
                return bool(await execute(connection, *self._db.step("create_queue", params)))
            async with connection.transaction():
                # Compared as records: settings of an earlier version lack fields that have defaults now.
                current = await execute(connection, *self._db.step("lock_settings", params))
                if not current or msgspec.json.decode(current[0][0], type=QueueSettings) != was:
                    return False
                await execute(connection, *self._db.step("save_queue", params))
                return True

        done = await self._db.connections.call(change)
        if done:
            self._db.listener.changed()
        return done

    async def delete_queue(self, name: str, change: Change, records: RecordSet | None = None) -> bool:
        delete = self._db.step("delete_queue", {"queue": name, "now": change.now}, change.keep)
        done = await (self._db.change([delete]) if records is None else self._save_all(records, delete))
        self._db.listener.changed()
        return bool(done)

    async def records(self, kind: str) -> dict[str, bytes]:
        return dict(await self._db.all("records", {"kind": kind}))

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        await self._db.change([self._record_step(kind, name, value), self._db.step("revise", {})])
        self._db.listener.changed()

    async def save_records(self, records: RecordSet) -> None:
        await self._save_all(records, self._db.step("revise", {}))
        self._db.listener.changed()

    async def add_record(self, kind: str, name: str, value: bytes) -> bytes:
        await self._db.all("add_record", {"kind": kind, "name": escape(name), "value": value})
        self._db.listener.changed()
        return (await self.records(kind)).get(name, value)

    async def change_record(self, change: RecordChange) -> bool:
        query, params = self._db.record_step(change)
        done = bool(await self._db.connections.call(lambda connection: execute(connection, query, params)))
        if done and not change.is_quiet:
            self._db.listener.changed()
        return done

    async def revision(self) -> int:
        return int((await self._db.all("revision", {}))[0][0])

    async def last_id(self) -> str:
        last = await self._db.all("last_id", {})
        return str(last[0][0]) if last else ""

    # Upkeep

    async def tidy(self, now: int, limit: int) -> int:
        removed = 0
        for name in ("tidy_dedup", "tidy_results", "tidy_claimed", "tidy_claims", "tidy_stages"):
            removed += int((await self._db.all(name, {"now": now, "limit": limit}))[0][0])
        for shelf, until in await self._db.all("remains", {}):
            remains = 0
            for name in ("tidy_messages", "tidy_readers", "tidy_stages_of"):
                remains += int((await self._db.all(name, {"shelf": shelf, "limit": limit}))[0][0])
            removed += remains
            if until is None and not remains:
                await self._db.all("keep_remains", {"shelf": shelf, "until": now + REMAINS})
            elif until is not None and until <= now and not remains:
                await self._db.all("drop_remains", {"shelf": shelf})
        return removed

    async def backup(self, path: str) -> None:
        raise InvalidRequest(
            f"store: a PostgreSQL store is backed up with PostgreSQL's tools, not with a copy in {path!r}; "
            f"use `pg_dump --schema={self._db.address.schema}` or a base backup (docs/howto/postgresql.md)",
            field="store",
        )

    # Copying

    async def dump(self) -> AsyncIterator[list[Item]]:
        async for portion in portions(copying.dump(self, self._db)):
            yield portion

    async def load(self, items: Sequence[Item], now: int) -> None:
        await transfer.load_settings(self, items)
        steps = [self._db.step(name, params) for name, params in copying.steps(items)]
        if steps:
            await self._db.change(steps, LONG)

    def _record_step(self, kind: str, name: str, value: bytes | None) -> Step:
        params = {"kind": kind, "name": escape(name), "value": value}
        return self._db.step("drop_record" if value is None else "save_record", params)

    async def _save_all(self, records: RecordSet, last: Step) -> bool:
        """Save records, and run a statement that returns the revision after it, if that is the next one."""
        steps = [self._record_step(kind, name, value) for (kind, name), value in records.values.items()]

        async def change(connection: Connection) -> bool:
            async with connection.transaction():
                revised = await pipeline(connection, [*steps, last])
                if not revised or revised[0][0] != records.revision + 1:
                    raise RevisionChanged
            return True

        return await self._db.connections.call(change)

    async def _prepare(self, connection: Connection) -> None:
        await schema.prepare(connection, self._db.address)
        row = await (await connection.execute("SHOW fsync")).fetchone()
        if self._durable and row is not None and row[0] == "off":
            log.warning("PostgreSQL runs with fsync = off: confirmed messages may be lost in a power failure")


def _json(settings: QueueSettings) -> str:
    return msgspec.json.encode(settings).decode()
