"""What all parts of the store share: queries, connections, and wake-up hints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.adapt import AdaptersMap

from miniq.message import History
from miniq.store.arguments import RecordChange
from miniq.store.contract import ChangeHint, FinishHint, LeaseCount, ReadyHint, no_queue
from miniq.store.postgres import queries, rows
from miniq.store.postgres.address import Address
from miniq.store.postgres.connections import Connection, Connections
from miniq.store.postgres.listener import Listener
from miniq.store.postgres.rows import Blobs, BlobsDumper

FIRST_ID = "00000000-0000-0000-0000-000000000000"
LONG = 600.0
"""Seconds that a change of very many messages may take."""
RETURNED = 1000
"""Leased or delayed rows that are put in line per statement once they are due."""

Row = tuple[Any, ...]
Step = tuple[bytes, dict[str, Any]]


class Access:
    """A schema in a database, and how its tables are reached."""

    def __init__(
        self,
        address: Address,
        connections: int,
        timeout: float,
        on_ready: ReadyHint,
        on_change: ChangeHint,
        on_finished: FinishHint,
        on_lease_expired: LeaseCount,
    ) -> None:
        self.address = address
        self.queries = queries.load()
        self.connections = Connections(self._connect, connections, timeout)
        hints = (on_ready, on_change, on_finished)
        self.listener = Listener(self._connect, self.connections, address.channel, *hints)
        self._on_ready = on_ready
        self._on_lease_expired = on_lease_expired
        self._adapters = AdaptersMap(psycopg.adapters)
        self._adapters.register_dumper(Blobs, BlobsDumper)

    async def _connect(self) -> Connection:
        return await AsyncConnection.connect(self.address.conninfo, autocommit=True, context=_Context(self._adapters))

    def step(self, name: str, params: dict[str, Any], keep: History = "off") -> Step:
        return self.queries[name].pick(*tags(keep)), params

    def record_step(self, change: RecordChange) -> Step:
        """Changes a record and returns a row, or none if the record is not what it was."""
        name = "replace_record" if change.was is not None else "create_record"
        if change.value is None:
            name = "remove_record"
        params = {"kind": change.kind, "name": rows.escape(change.name), "was": change.was, "value": change.value}
        return self.queries[name].pick(*(() if change.is_quiet else ("told",))), params

    async def all(self, name: str, params: dict[str, Any]) -> list[Row]:
        """The rows of one query."""
        query = self.queries[name].pick()
        return await self.connections.call(lambda connection: execute(connection, query, params))

    async def some(self, name: str, params: dict[str, Any]) -> list[Row]:
        """The rows of a query that returns none only if the queue does not exist."""
        return existing(params["queue"], await self.all(name, params))

    async def one(self, name: str, params: dict[str, Any]) -> Row:
        """The single row of such a query."""
        return (await self.some(name, params))[0]

    async def change(self, steps: Sequence[Step], seconds: float | None = None) -> list[Row]:
        """Run statements in one transaction; the rows of the last."""
        return await self.connections.call(lambda connection: pipeline(connection, steps, atomic=True), seconds)

    async def split(self, connection: Connection, queue: str, ids: Sequence[str], step: int) -> None:
        """Split blocks into rows of `step` messages each."""
        await execute(connection, *self.step("split", {"queue": queue, "ids": rows.array(ids), "step": step}))

    def ready(self, queue: str, recipient: str | None, count: int) -> None:
        """Wake long polls here and at other brokers."""
        self._on_ready(queue, recipient, count)
        self.listener.arrived(queue, recipient, count)

    def lease_expired(self, queue: str, count: int) -> None:
        """Report leases that a change found expired."""
        if count:
            self._on_lease_expired(queue, count)

    def arrived(self, queue: str, recipients: Iterable[str | None]) -> None:
        for recipient, count in Counter(recipients).items():
            self.ready(queue, rows.unescape(recipient), count)


class Part:
    """A part of the store."""

    def __init__(self, db: Access) -> None:
        self._db = db


class _Context:
    """Passes our adapters to a new connection."""

    def __init__(self, adapters: AdaptersMap) -> None:
        self.adapters = adapters
        self.connection = None


def existing(queue: str, result: list[Row]) -> list[Row]:
    """The result of a statement that returns rows only if the queue exists; raises if it does not."""
    if not result:
        raise no_queue(queue)
    return result


async def execute(connection: Connection, query: bytes, params: dict[str, Any]) -> list[Row]:
    """Run one statement; its rows."""
    cursor = await connection.execute(query, params, prepare=True, binary=True)
    return await cursor.fetchall() if cursor.description is not None else []


async def pipeline(connection: Connection, steps: Sequence[Step], *, atomic: bool = False) -> list[Row]:
    """Run statements in one round trip, and in one transaction if `atomic`; the rows of the last."""
    if len(steps) == 1:
        return await execute(connection, *steps[0])
    async with connection.pipeline(), connection.transaction() if atomic else nullcontext():
        for query, params in steps:
            cursor = await connection.execute(query, params, prepare=True, binary=True)
    return await cursor.fetchall() if cursor.description is not None else []


def tags(keep: History) -> tuple[str, ...]:
    """The variant of a query: with or without history."""
    return () if keep == "off" else ("history",)
