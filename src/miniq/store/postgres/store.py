"""The store contract on PostgreSQL.

Nothing that is cached here is ever the truth, so several brokers may share a database. The parts of the contract are in
`messages.py`, `claims.py`, `stages.py` and `history.py`; `parcels.py` says which messages share a row. `queries.sql`
and its companions have the statements, `schema.sql` the tables, `access.py` brings them together; `connections.py`
lends the connections, `listener.py` carries wake-ups between brokers, `rows.py` turns rows into records, `copying.py`
dumps and loads, and `driver_errors.py` turns the driver's errors into ours.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence

import msgspec

from miniq.errors import InvalidRequest
from miniq.message import QueueSettings
from miniq.store import transfer
from miniq.store.contract import ChangeHint, ReadyHint
from miniq.store.postgres import address, copying, schema
from miniq.store.postgres.access import LONG, Access, execute
from miniq.store.postgres.claims import Claims
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.history import Events
from miniq.store.postgres.messages import Messages
from miniq.store.postgres.rows import escape
from miniq.store.postgres.stages import Stages
from miniq.store.transfer import Item, portions

log = logging.getLogger("miniq.store.postgres")
REMAINS = 600 * 1_000_000
"""How long the traces of a deleted queue are watched: a call that was under way may still add a row."""


class PostgresStore:
    """A schema in a database; see `Store`."""

    shared = True

    def __init__(self, url: str, *, durable: bool = True, connections: int = 8, timeout: float = 10.0) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.on_change: ChangeHint = lambda: None
        self._durable = durable
        self._db = db = Access(
            address.parse(url, durable=durable),
            connections,
            timeout,
            lambda queue, recipient, count: self.on_ready(queue, recipient, count),
            lambda: self.on_change(),
        )
        self.messages = Messages(db)
        self.claims = Claims(db)
        self.stages = Stages(db)
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
        return None  # a database that is away comes back

    async def check(self) -> None:
        await self.revision()

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        found = await self._db.all("queues", {})
        return {name: msgspec.json.decode(settings, type=QueueSettings) for name, settings in found}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        await self._db.all("save_queue", {"queue": name, "settings": _json(settings)})
        self._db.listener.changed()

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        params = {"queue": name, "settings": _json(settings)}

        async def change(connection: Connection) -> bool:
            if was is None:
                return bool(await execute(connection, *self._db.step("create_queue", params)))
            async with connection.transaction():
                # Compared as records: those of an earlier version lack fields that have defaults now.
                found = await execute(connection, *self._db.step("lock_settings", params))
                if not found or msgspec.json.decode(found[0][0], type=QueueSettings) != was:
                    return False
                await execute(connection, *self._db.step("save_queue", params))
                return True

        done = await self._db.connections.call(change)
        if done:
            self._db.listener.changed()
        return done

    async def delete_queue(self, name: str) -> bool:
        done = await self._db.all("delete_queue", {"queue": name})
        self._db.listener.changed()
        return bool(done)

    async def records(self, kind: str) -> dict[str, bytes]:
        return dict(await self._db.all("records", {"kind": kind}))

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        params = {"kind": kind, "name": escape(name), "value": value}
        await self._db.all("drop_record" if value is None else "save_record", params)
        self._db.listener.changed()

    async def revision(self) -> int:
        return int((await self._db.all("revision", {}))[0][0])

    async def last_id(self) -> str:
        found = await self._db.all("last_id", {})
        return str(found[0][0]) if found else ""

    # Upkeep

    async def tidy(self, now: int, limit: int) -> int:
        removed = 0
        for name in ("tidy_dedup", "tidy_claimed", "tidy_claims", "tidy_stages"):
            removed += int((await self._db.all(name, {"now": now, "limit": limit}))[0][0])
        for shelf, until in await self._db.all("remains", {}):
            gone = 0
            for name in ("tidy_messages", "tidy_readers", "tidy_stages_of"):
                gone += int((await self._db.all(name, {"shelf": shelf, "limit": limit}))[0][0])
            removed += gone
            if until is None and not gone:
                await self._db.all("keep_remains", {"shelf": shelf, "until": now + REMAINS})
            elif until is not None and until <= now and not gone:
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
        for item in items:
            if isinstance(item, transfer.Queue):
                await self.save_queue(item.name, item.settings)
            elif isinstance(item, transfer.Record):
                await self.save_record(item.kind, item.name, item.value)
        steps = [self._db.step(name, params) for name, params in copying.steps(items)]
        if steps:
            await self._db.change(steps, LONG)

    async def _prepare(self, connection: Connection) -> None:
        await schema.prepare(connection, self._db.address)
        row = await (await connection.execute("SHOW fsync")).fetchone()
        if self._durable and row is not None and row[0] == "off":
            log.warning("PostgreSQL runs with fsync = off: what is confirmed may be lost with the machine's power")


def _json(settings: QueueSettings) -> str:
    return msgspec.json.encode(settings).decode()
