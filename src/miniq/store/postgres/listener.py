"""Wake-ups between brokers: LISTEN and NOTIFY as a hint, never as the truth.

A broker tells the others in which queues messages came. It does so after its change is committed, in a
transaction of its own: inside it, NOTIFY would make every commit wait for the one before, and group commit
would be gone. What piles up while one notification is on its way goes out with the next. A broker that is alone
tells nobody: each holds a lock that the others can see.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from miniq.errors import MiniQError
from miniq.store.postgres.connections import Connect, Connection, Connections

log = logging.getLogger("miniq.store.postgres")
PAYLOAD = 7000
"""Bytes that one notification may carry, with some air: PostgreSQL allows 8000."""
PRESENCE = 1.0
"""Seconds between two looks whether there are other brokers, and between two tries to connect."""

Arrival = tuple[str, str | None]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Any]).decode


class Listener:
    """One broker's ear and mouth on the channel of a store."""

    def __init__(
        self,
        connect: Connect,
        connections: Connections,
        channel: str,
        on_ready: Callable[[str, str | None, int], None],
        on_change: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._connections = connections
        self._channel = channel
        self._on_ready = on_ready
        self._on_change = on_change
        self._name = secrets.token_hex(4)
        self._others = True
        self._arrivals: dict[Arrival, int] = {}
        self._changed = False
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._listening = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """Say what is still to be said, then fall silent."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
            self._listening = None

    def arrived(self, queue: str, recipient: str | None, count: int) -> None:
        """Messages came or came back: tell the other brokers."""
        if self._others and self._listening is not None:
            key = (queue, recipient)
            self._arrivals[key] = self._arrivals.get(key, 0) + count
            self._speak()

    def changed(self) -> None:
        """Queues or records were changed: tell the other brokers."""
        if self._listening is not None:
            self._changed = True
            self._speak()

    def _speak(self) -> None:
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
            self._sending.add_done_callback(self._spoken)

    def _spoken(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if not task.cancelled() and task.exception() is not None:
            log.debug("a notification was not sent: %s", task.exception())

    async def _send(self) -> None:
        while self._arrivals or self._changed:
            payloads = list(self._payloads())
            with contextlib.suppress(MiniQError):  # a hint that is lost costs a moment, no more
                await self._connections.call(partial(self._notify, payloads))

    async def _notify(self, payloads: list[str], connection: Connection) -> None:
        # A hint need not survive a crash: nobody waits for the disk.
        await connection.execute(
            """
            SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, said)
            FROM unnest(%s::text[]) AS said
            """,
            (self._channel, payloads),
            prepare=True,
        )

    def _payloads(self) -> Iterator[str]:
        """What is to be said, in pieces that fit."""
        arrivals, self._arrivals = self._arrivals, {}
        changed, self._changed = self._changed, False
        said: list[Any] = [self._name, changed]
        size = 40
        for (queue, recipient), count in arrivals.items():
            item = (queue, recipient, count)
            size += len(_encode(item)) + 1
            if size > PAYLOAD:
                yield _encode(said).decode()
                said, size = [self._name, False], 40 + len(_encode(item))
            said.append(item)
        yield _encode(said).decode()

    async def _listen(self) -> None:
        while True:
            try:
                connection = await self._connect()
                try:
                    await self._follow(connection)
                finally:
                    connection.pgconn.finish()
            except (psycopg.Error, OSError) as error:
                log.debug("not listening: %s", error)
            self._others = True
            await asyncio.sleep(PRESENCE)

    async def _follow(self, connection: Connection) -> None:
        await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        await connection.execute("SELECT pg_advisory_lock_shared(hashtextextended(%s, 0))", (self._channel,))
        self._changed = True  # whoever thought to be alone looks again
        self._speak()
        while True:
            others = await connection.execute(
                """
                WITH key AS (SELECT hashtextextended(%s, 0) AS value)
                SELECT count(*) > 1 FROM pg_locks, key
                WHERE locktype = 'advisory' AND mode = 'ShareLock' AND granted AND objsubid = 1
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                    AND (classid::bigint << 32 | objid::bigint) = value
                """,
                (self._channel,),
                prepare=True,
            )
            row = await others.fetchone()
            self._others = row is None or bool(row[0])
            async for notification in connection.notifies(timeout=PRESENCE):
                self._heard(notification.payload)

    def _heard(self, payload: str) -> None:
        try:
            name, changed, *arrivals = _decode(payload)
            if name == self._name:
                return
            self._others = True
            if changed:
                self._on_change()
            for queue, recipient, count in arrivals:
                self._on_ready(queue, recipient, count)
        except (ValueError, TypeError, msgspec.DecodeError):
            log.warning("a notification on %s is not ours: %.80s", self._channel, payload)
