"""Wake-up hints between brokers, by LISTEN and NOTIFY.

A broker notifies the others of queues in which messages arrived, after the change is committed and in a separate
transaction: within it, NOTIFY would serialize all commits and prevent group commit. Hints that arise while a
notification is sent go into the next one. Each broker holds a shared lock that the others can see, so that a single
broker sends no notifications.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import psycopg
from psycopg import sql

from miniq.errors import MiniQError
from miniq.store.contract import ChangeHint, FinishHint, ReadyHint
from miniq.store.postgres.connections import Connect, Connection, Connections

log = logging.getLogger("miniq.store.postgres")
PAYLOAD = 7000
"""Bytes per notification; PostgreSQL allows 8000."""
PRESENCE = 1.0
"""Seconds between checks for other brokers, and between attempts to connect."""

Arrival = tuple[str, str | None]
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Any]).decode


class Listener:
    """Sends and receives the notifications of one broker."""

    def __init__(
        self,
        connect: Connect,
        connections: Connections,
        channel: str,
        on_ready: ReadyHint,
        on_change: ChangeHint,
        on_finished: FinishHint,
    ) -> None:
        self._connect = connect
        self._connections = connections
        self._channel = channel
        self._on_ready = on_ready
        self._on_change = on_change
        self._on_finished = on_finished
        self._name = secrets.token_hex(4)
        self._others = True
        self._arrivals: Counter[Arrival] = Counter()
        self._finished: set[str] = set()
        self._changed = False
        self._sending: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._listening = asyncio.create_task(self._listen())

    async def stop(self) -> None:
        """Send pending notifications, then stop."""
        if self._sending is not None:
            await asyncio.wait([self._sending])
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
            self._listening = None

    def arrived(self, queue: str, recipient: str | None, count: int) -> None:
        """Notify the other brokers of messages that arrived or were given back."""
        if self._others and self._listening is not None:
            self._arrivals[queue, recipient] += count
            self._start_sending()

    def finished(self, queue: str) -> None:
        """Notify the other brokers of results of a queue."""
        if self._others and self._listening is not None:
            self._finished.add(queue)
            self._start_sending()

    def changed(self) -> None:
        """Notify the other brokers of changed queues or records."""
        if self._listening is not None:
            self._changed = True
            self._start_sending()

    def _start_sending(self) -> None:
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
            self._sending.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending = None
        if not task.cancelled() and task.exception() is not None:
            log.debug("a notification was not sent: %s", task.exception())

    async def _send(self) -> None:
        while self._arrivals or self._finished or self._changed:
            payloads = list(self._payloads())
            with contextlib.suppress(MiniQError):  # a lost hint only delays a long poll
                await self._connections.call(partial(self._notify, payloads))

    async def _notify(self, payloads: list[str], connection: Connection) -> None:
        # A hint need not survive a crash.
        await connection.execute(
            """
            SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, payload)
            FROM unnest(%s::text[]) AS payload
            """,
            (self._channel, payloads),
            prepare=True,
        )

    def _payloads(self) -> Iterator[str]:
        """The pending hints, in payloads of limited size."""
        arrivals, self._arrivals = self._arrivals, Counter()
        finished, self._finished = self._finished, set()
        changed, self._changed = self._changed, False
        payload: list[Any] = [self._name, changed]
        size = 40
        hints: list[tuple[Any, ...]] = [(*arrival, count) for arrival, count in arrivals.items()]
        for item in [*hints, *((queue,) for queue in finished)]:
            size += len(_encode(item)) + 1
            if size > PAYLOAD:
                yield _encode(payload).decode()
                payload, size = [self._name, False], 40 + len(_encode(item))
            payload.append(item)
        yield _encode(payload).decode()

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
        self._changed = True  # tells a broker that was alone about this one
        self._start_sending()
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
                self._receive(notification.payload)

    def _receive(self, payload: str) -> None:
        try:
            name, changed, *hints = _decode(payload)
            if name == self._name:
                return
            self._others = True
            if changed:
                self._on_change()
            for queue, *arrived in hints:
                if arrived:
                    recipient, count = arrived
                    self._on_ready(queue, recipient, count)
                else:
                    self._on_finished(queue)
        except (ValueError, TypeError, msgspec.DecodeError):
            log.warning("unknown notification on %s: %.80s", self._channel, payload)
