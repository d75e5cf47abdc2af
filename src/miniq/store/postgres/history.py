"""The history in PostgreSQL: a change adds its events, and the next read assigns their offsets."""

from __future__ import annotations

from typing import Any

from miniq.message import HistoryPage, HistoryRecord, HistorySpan
from miniq.store.contract import HistoryStore
from miniq.store.postgres import rows
from miniq.store.postgres.access import LONG, Part, Row, execute
from miniq.store.postgres.connections import Connection

LAST = 2**63 - 1
NUMBERED = 10_000
"""History rows that get offsets per transaction."""
EXAMINED = 10_000
"""Events that are examined at least for a page of one queue."""
PAGE_BYTES = 16 * 1024 * 1024
"""The size at which a page ends."""


class Events(Part, HistoryStore):
    """See `HistoryStore`."""

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage:
        examined = limit if queue is None else max(limit, EXAMINED)
        params = {"after": min(after, LAST - examined), "limit": examined, "max_bytes": PAGE_BYTES}
        read = [record for row in await self._numbered("history", params) for record in rows.records(row)]
        records: list[HistoryRecord] = []
        for record in read:
            if len(records) == limit:
                break
            if record.offset > after:
                after = record.offset
                if queue is None or record.event.queue == queue:
                    records.append(record)
        return HistoryPage(records, after)

    async def span(self) -> HistorySpan:
        return HistorySpan(*(await self._numbered("history_span", {}))[0])

    async def trim(self, upto: int) -> None:
        steps = [self._db.step("lock_history", {}), self._db.step("trim_history", {"upto": min(upto, LAST)})]
        await self._db.change(steps, LONG)

    async def _numbered(self, name: str, params: dict[str, Any]) -> list[Row]:
        """Read the history after assigning offsets to all committed events."""

        async def read(connection: Connection) -> tuple[int, list[Row]]:
            async with connection.transaction():
                await execute(connection, *self._db.step("lock_history", {}))
                numbered = await execute(connection, *self._db.step("number_history", {"limit": NUMBERED}))
                return int(numbered[0][0]), await execute(connection, *self._db.step(name, params))

        while True:
            numbered, rows = await self._db.connections.call(read)
            if numbered < NUMBERED:
                return rows
