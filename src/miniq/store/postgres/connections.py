"""The connection pool of a store: a fixed number of connections, each used by one call at a time.

psycopg_pool is not used: it retries a failed connect after pauses that grow to minutes, while callers wait. A broker
must reject calls at once while the database is unreachable, and work again as soon as it is back.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.pq import TransactionStatus

from miniq.errors import Closed, StoreUnavailable
from miniq.store.postgres.driver_errors import RETRIED, is_disconnect, translated

log = logging.getLogger("miniq.store.postgres")
T = TypeVar("T")
Connection = AsyncConnection[Any]
Connect = Callable[[], Awaitable[Connection]]

PAUSE = 0.25
"""Seconds after a failed connect during which calls are rejected without another attempt."""
TRIES = 5


class Connections:
    """Runs calls on connections and replaces broken ones."""

    def __init__(self, connect: Connect, size: int, timeout: float) -> None:
        self._connect = connect
        self._size = size
        self._timeout = timeout
        self._made = 0
        self._idle: list[Connection] = []
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._busy: set[asyncio.Task[Any]] = set()
        self._unreachable: tuple[float, str] | None = None
        """Until when no connect is attempted, and why."""
        self._closed = False

    async def close(self) -> None:
        """Wait for calls in flight, then close all connections."""
        self._closed = True
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(Closed("the store is closed"))
        if self._busy:
            await asyncio.wait(self._busy)
        for connection in self._idle:
            await connection.close()
        self._idle.clear()

    async def call(self, work: Callable[[Connection], Awaitable[T]], seconds: float | None = None) -> T:
        """Run `work` on a connection, and retry it if the server rolled it back in favour of another call.

        A cancelled caller waits for the end of the work, so that no change happens after the cancellation.
        """
        for _ in range(TRIES - 1):
            try:
                return await self._once(work, seconds or self._timeout)
            except RETRIED:
                continue
        try:
            return await self._once(work, seconds or self._timeout)
        except RETRIED as error:
            raise StoreUnavailable(f"store: PostgreSQL rolled the transaction back {TRIES} times: {error}") from error

    async def _once(self, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        connection = await self._borrow()
        task = asyncio.ensure_future(self._perform(connection, work, seconds))
        self._busy.add(task)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # retrieved, so that it is not logged
            raise

    async def _perform(self, connection: Connection, work: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        late = False

        def give_up() -> None:
            # The server may hang and not even answer a cancel request, so the connection is closed for good.
            nonlocal late
            late = True
            connection.pgconn.finish()
            task.cancel()

        timer = asyncio.get_running_loop().call_later(seconds, give_up)
        try:
            return await work(connection)
        except asyncio.CancelledError:
            if late:
                self._suspect("no answer")
                raise StoreUnavailable(f"store: PostgreSQL did not answer within {seconds:g} s") from None
            raise
        except RETRIED:
            raise
        except psycopg.Error as error:
            if is_disconnect(error):
                self._suspect(str(error))
            ours = translated(error)
            if ours is None:
                raise
            raise ours from error
        finally:
            timer.cancel()
            self._busy.discard(task)
            self._give_back(connection)

    async def _borrow(self) -> Connection:
        while True:
            if self._closed:
                raise Closed("the store is closed")
            while self._idle:
                connection = self._idle.pop()
                if not _stale(connection):
                    return connection
                self._drop(connection)
            if self._made < self._size:
                return await self._new()
            waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                async with asyncio.timeout(self._timeout):
                    given = await waiter
            except TimeoutError:
                raise StoreUnavailable("store: all connections to PostgreSQL are busy; try again") from None
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                    other = waiter.result()
                    if other is None:
                        self._wake(None)
                    else:
                        self._give_back(other)
                raise
            if given is not None:
                return given

    async def _new(self) -> Connection:
        now = asyncio.get_running_loop().time()
        if self._unreachable is not None and now < self._unreachable[0]:
            raise StoreUnavailable(f"store: PostgreSQL is not available: {self._unreachable[1]}")
        self._made += 1
        try:
            connection = await self._connect()
        except BaseException as error:
            self._made -= 1
            self._wake(None)
            if isinstance(error, psycopg.Error):
                why = " ".join(str(error).split())
                self._unreachable = (asyncio.get_running_loop().time() + PAUSE, why)
                raise translated(error) or error from error
            raise
        if self._unreachable is not None:
            log.info("PostgreSQL is available again")
            self._unreachable = None
        return connection

    def _give_back(self, connection: Connection) -> None:
        if self._closed or connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self._drop(connection)
            self._wake(None)
        elif not self._wake(connection):
            self._idle.append(connection)

    def _wake(self, connection: Connection | None) -> bool:
        """Hand a connection, or the right to open one, to the call that has waited longest."""
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _suspect(self, why: str) -> None:
        """Drop all idle connections, since one connection turned out to be dead."""
        if self._idle:
            log.warning("lost the connection to PostgreSQL: %s", " ".join(why.split()))
        for connection in self._idle:
            self._drop(connection)
        self._idle.clear()

    def _drop(self, connection: Connection) -> None:
        self._made -= 1
        connection.pgconn.finish()


def _stale(connection: Connection) -> bool:
    """Whether an idle connection has unread data: the server has closed it, or is about to."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(0))
