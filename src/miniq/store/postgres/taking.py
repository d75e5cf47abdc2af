"""Leases in PostgreSQL: the statement of a take, and what it does about rows that are due, locked, or too many."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import asdict

from miniq.message import Stored
from miniq.store.arguments import Take
from miniq.store.postgres import rows
from miniq.store.postgres.access import RETURNED, Part, Row, execute, existing, tags
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.rows import escape, unescape

NOTHING = (None,)
"""The row of a take that takes nothing."""
PAUSES = (0.002, 0.005, 0.01)
"""Seconds between retries of a take that found only blocks locked by other calls, which may be splitting them."""


class Taking(Part):
    """See `MessageStore.take`."""

    async def take(self, queue: str, take: Take) -> list[Stored]:
        fit = {"since": take.fit.since, "most": take.fit.receives}
        params = asdict(take) | fit | {"queue": queue, "consumer": escape(take.consumer)}
        query = self._db.queries["take" if take.consumer is None else "take_own"].pick(*tags(take.keep))

        async def limited(connection: Connection) -> list[Row]:
            """One take at a time, which sees what the others have taken."""
            async with connection.transaction():
                await execute(connection, *self._db.step("lock_queue", {"queue": queue}))
                leased = await execute(connection, *self._db.step("in_flight", {"queue": queue, "now": take.now}))
                room = take.in_flight - existing(queue, leased)[0][0]
                return await work(connection, min(take.limit, room)) if room > 0 else [NOTHING]

        async def batch(connection: Connection, asked: dict[str, Any]) -> list[Row]:
            """Rows that are locked one by one, and then leased together."""
            async with connection.transaction():
                lined_up = await execute(connection, *self._db.step("gather", asked))
                ids, together, obstacle = existing(queue, lined_up)[0]
                if not ids:
                    return [(*NOTHING * 8, obstacle)]
                rows = {"ids": ids, "together": together}
                return await execute(connection, *self._db.step("take_batch", asked | rows, take.keep))

        async def work(connection: Connection, limit: int = take.limit) -> list[Row]:
            look, more_due, pauses = True, True, iter(PAUSES)
            while True:
                asked = params | {"look": look, "limit": limit}
                taken = await (batch(connection, asked) if take.group_batch else execute(connection, query, asked))
                obstacle = taken[0][8] if taken else None
                if obstacle == "due":
                    back = {"queue": queue, "now": take.now, "limit": RETURNED}
                    more_due = (await execute(connection, *self._db.step("return_due", back)))[0][0] >= RETURNED
                    look = False  # when very many are due at the same time, the next takes go on with the others
                elif taken and taken[0][0] is None and obstacle is None and more_due and not look:
                    look = True  # what came in line is for other consumers
                elif obstacle == "locked" and (pause := next(pauses, None)) is not None:
                    await asyncio.sleep(pause)
                elif obstacle is not None and obstacle.startswith("cut"):
                    _, id, step = obstacle.split()
                    await self._db.split(connection, queue, [id], int(step))
                else:
                    return taken

        taken = existing(queue, await self._db.connections.call(limited if take.in_flight else work))
        if taken[0][0] is None:
            return []
        self._db.lease_expired(queue, sum(row[9] for row in taken))
        return [
            Stored(message, take.until, row[4], take.token, take.consumer, unescape(row[10]))
            for row in taken
            for message in rows.messages(queue, row)
        ]
