"""What every part of the store works with: the queries, the connections they run on, and the hints they give."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import AdaptersMap

from miniq.errors import QueueNotFound
from miniq.message import History
from miniq.store.contract import ChangeHint, ReadyHint
from miniq.store.postgres import address, queries, rows
from miniq.store.postgres.connections import Connection, Connections
from miniq.store.postgres.listener import Listener
from miniq.store.postgres.rows import Blobs, BlobsDumper

FIRST_ID = "00000000-0000-0000-0000-000000000000"
LONG = 600.0
"""Seconds that a change of very many messages may take."""
RETURNED = 1000
"""Leases that have run out and are put back into line in one statement."""

Row = tuple[Any, ...]
Step = tuple[bytes, dict[str, Any]]


class Access:
    """A schema in a database, and how its tables are reached."""

    def __init__(self, url: str, *, durable: bool = True, connections: int = 8, timeout: float = 10.0) -> None:
        self.on_ready: ReadyHint = lambda queue, recipient, count: None
        self.on_change: ChangeHint = lambda: None
        self._address = address.parse(url, durable=durable)
        self._durable = durable
        self._adapters = AdaptersMap(psycopg.adapters)
        self._adapters.register_dumper(Blobs, BlobsDumper)
        self._queries = queries.load()
        self._connections = Connections(self._connect, connections, timeout)
        self._listener = Listener(
            self._connect,
            self._connections,
            self._address.channel,
            lambda queue, recipient, count: self.on_ready(queue, recipient, count),
            lambda: self.on_change(),
        )

    async def _connect(self) -> Connection:
        return await AsyncConnection.connect(self._address.conninfo, autocommit=True, context=_Context(self._adapters))

    def _step(self, name: str, params: dict[str, Any], keep: History = "off") -> Step:
        return self._queries[name].pick(*tags(keep)), params

    async def _all(self, name: str, params: dict[str, Any], seconds: float | None = None) -> list[Row]:
        query = self._queries[name].pick()
        return await self._connections.call(lambda connection: execute(connection, query, params), seconds)

    async def _one(self, name: str, params: dict[str, Any], queue: str, keep: History = "off") -> Row:
        """The one row of a query that gives none only where there is no such queue."""
        query = self._queries[name].pick(*tags(keep))
        found = await self._connections.call(lambda connection: execute(connection, query, params))
        if not found:
            raise no_queue(queue)
        return found[0]

    async def _split(self, connection: Connection, queue: str, ids: Sequence[str], step: int) -> None:
        """Let parcels become rows of `step` messages each."""
        await execute(connection, *self._step("split", {"queue": queue, "ids": rows.array(ids), "step": step}))

    def _ready(self, queue: str, recipient: str | None, count: int) -> None:
        self.on_ready(queue, recipient, count)
        self._listener.arrived(queue, recipient, count)

    def _arrived(self, queue: str, recipients: Iterable[str | None]) -> None:
        for recipient, count in Counter(recipients).items():
            self._ready(queue, rows.unescape(recipient), count)


class _Context:
    """Carries our adapters to a new connection."""

    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters
        self.connection = None


async def execute(connection: Connection, query: bytes, params: dict[str, Any]) -> list[Row]:
    """One statement and its rows."""
    cursor = await connection.execute(query, params, prepare=True, binary=True)
    return await cursor.fetchall() if cursor.description is not None else []


async def pipeline(connection: Connection, steps: Sequence[Step]) -> list[Row]:
    """Send statements together; the rows of the last."""
    if len(steps) == 1:
        return await execute(connection, *steps[0])
    async with connection.pipeline():
        for query, params in steps:
            cursor = await connection.execute(query, params, prepare=True, binary=True)
    return await cursor.fetchall() if cursor.description is not None else []


async def transaction(connection: Connection, steps: Sequence[Step]) -> list[Row]:
    """Statements in one transaction and one round trip; the rows of the last."""
    if len(steps) == 1:
        return await execute(connection, *steps[0])
    async with connection.pipeline(), connection.transaction():
        for query, params in steps:
            cursor = await connection.execute(query, params, prepare=True, binary=True)
    return await cursor.fetchall() if cursor.description is not None else []


def tags(keep: History) -> tuple[str, ...]:
    """The variant of a query: whether it tells the history."""
    return () if keep == "off" else ("history",)


def no_queue(name: str) -> QueueNotFound:
    """What a query that found no queue means."""
    return QueueNotFound(f"queue: there is no queue {name!r}", field="queue")
