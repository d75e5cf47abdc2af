"""The history in PostgreSQL: a change adds its events, and whoever reads next gives them their offsets."""

from __future__ import annotations

from typing import Any

from miniq.message import HistoryPage, HistoryRecord, HistorySpan
from miniq.store.contract import HistoryStore
from miniq.store.postgres import rows
from miniq.store.postgres.access import LONG, Access, Row, execute
from miniq.store.postgres.connections import Connection

LAST = 2**63 - 1
NUMBERED = 10_000
"""Rows of history that get their offsets in one transaction."""
PAGE_BYTES = 16 * 1024 * 1024
"""A page takes no more rows past this."""


class Events(HistoryStore):
    """See `HistoryStore`."""

    def __init__(self, db: Access) -> None:
        self._db = db

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage:
        params = {"after": min(after, LAST - 1), "limit": limit, "max_bytes": PAGE_BYTES}
        found = [record for row in await self._numbered("history", params) for record in rows.records(row)]
        records: list[HistoryRecord] = []
        for record in found:
            if len(records) == limit:
                break
            if record.offset > after:
                after = record.offset
                if queue is None or record.event.queue == queue:
                    records.append(record)
        return HistoryPage(records, after)

    async def span(self) -> HistorySpan:
        first, last, size, oldest = (await self._numbered("history_span", {}))[0]
        return HistorySpan(first, last, size, oldest)

    async def trim(self, upto: int) -> None:
        steps = [self._db.step("lock_history", {}), self._db.step("trim_history", {"upto": min(upto, LAST)})]
        await self._db.change(steps, LONG)

    async def _numbered(self, name: str, params: dict[str, Any]) -> list[Row]:
        """Read history after all that is committed has got its offsets."""

        async def read(connection: Connection) -> tuple[int, list[Row]]:
            async with connection.transaction():
                await execute(connection, *self._db.step("lock_history", {}))
                numbered = await execute(connection, *self._db.step("number_history", {"limit": NUMBERED}))
                return int(numbered[0][0]), await execute(connection, *self._db.step(name, params))

        while True:
            numbered, found = await self._db.connections.call(read)
            if numbered < NUMBERED:
                return found
