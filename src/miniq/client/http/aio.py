"""The HTTP transport for event loops: connections as `asyncio` protocols, in a pool."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any, cast

from msgspec.structs import replace

from miniq.api.operation import Call
from miniq.api.operations import Receive
from miniq.client._async.attempts import AsyncAttempts
from miniq.client.exchange import lost, unanswered, unreachable
from miniq.client.give_back import LAST_WORDS, Background, release_of
from miniq.client.http.answers import Answer, garbled, judge, untrusted
from miniq.client.http.requests import HttpExchange
from miniq.client.http.sync import SMALL
from miniq.client.http.target import Target
from miniq.client.pool import IDLE, SPARE


class AsyncHttp(AsyncAttempts):
    """Performs calls over HTTP, in the event loop it was created in."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.retry)
        self._target = target
        self._idle: deque[_Connection] = deque()
        self._all: set[_Connection] = set()
        self._background = Background()

    def _prepare(self, call: Call[Any]) -> HttpExchange:
        return HttpExchange(self._target, call)

    def carry(self, lines: Callable[[], bytes]) -> None:
        """Add header lines to every request, computed for each."""
        self._target = replace(self._target, lines=lines)

    async def close(self) -> None:
        self._closed.set()
        await self._background.finish()
        for connection in list(self._all):
            if connection.ends_with_client:
                connection.drop()
        self._idle.clear()
        await asyncio.sleep(0)  # transports close in the next iteration of the loop

    async def _attempt(self, exchange: HttpExchange, now: float) -> object:
        """Send a call on an idle or a new connection, and read its reply."""
        connection = None if exchange.operation.repeat == "once" else self._kept(now)
        reused = connection is not None
        if connection is None:
            connection = await self._connect()
            if self._closed.is_set() and exchange.operation.long_poll:
                connection.drop()
                return exchange.nothing
        try:
            answer = await connection.exchange(exchange, self._target, reused)
        except asyncio.CancelledError:
            if isinstance(exchange.call, Receive) and not self._closed.is_set():
                self._background.start(self._give_back(connection, exchange))
            else:
                connection.drop()
            raise
        except BaseException:
            connection.drop()
            raise
        try:
            return judge(exchange, answer, self._target)
        finally:
            self._keep(connection, monotonic())

    async def _connect(self) -> _Connection:
        target = self._target
        try:
            async with asyncio.timeout(target.timeout):
                _, connection = await self._loop.create_connection(
                    lambda: _Connection(self._loop, self._all), target.host, target.port, ssl=target.tls
                )
        except ssl.SSLCertVerificationError as error:
            raise untrusted(target, error) from None
        except (OSError, UnicodeError) as error:
            raise unreachable(target.url, error, target.timeout) from error
        return connection

    def _kept(self, now: float) -> _Connection | None:
        """The connection used last that is still open and not too old."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.answer.reusable and now - connection.used < IDLE:
                return connection
            connection.drop()
        return None

    def _keep(self, connection: _Connection, now: float) -> None:
        if self._closed.is_set() or not connection.is_open or not connection.answer.reusable:
            connection.drop()
            return
        connection.used = now
        idle = self._idle
        idle.append(connection)
        if now - idle[0].used > IDLE or len(idle) > SPARE:
            idle.popleft().drop()

    async def _give_back(self, connection: _Connection, exchange: HttpExchange) -> None:
        """Cancel a receive by closing the sending side, and release the messages that it had leased."""
        try:
            if await connection.last_words():
                release = release_of(exchange.call, judge(exchange, connection.answer, self._target))
                if release is not None:
                    await self._attempt(self._prepare(release), monotonic())
        except Exception:  # noqa: S110  the lease runs out by itself
            pass
        finally:
            connection.drop()


class _Connection(asyncio.Protocol):
    """One connection, for one call at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, all: set[_Connection]) -> None:
        self.answer = Answer()
        self.used = 0.0
        self.is_open = False
        self._loop = loop
        self._all = all
        self._transport: asyncio.Transport
        self._waiter: asyncio.Future[None] | None = None
        self._polling = False
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def ends_with_client(self) -> bool:
        """Whether closing the client closes it at once: it is idle, or has a long poll."""
        return self._polling or self._waiter is None

    async def exchange(self, exchange: HttpExchange, target: Target, reused: bool) -> Answer:
        """Send a call and wait for its reply."""
        answer, transport = self.answer, self._transport
        answer.begin()
        self._polling = exchange.operation.long_poll
        waiter = self._waiter = self._loop.create_future()
        self._watch(exchange.patience)
        if len(exchange.body) <= SMALL:
            transport.write(exchange.head + exchange.body)
        else:
            transport.write(exchange.head)
            transport.write(exchange.body)
        try:
            await waiter
        except TimeoutError:
            raise unanswered(target.url, exchange) from None
        except ConnectionError as error:
            raise lost(target.url, error, stale=reused and not answer.begun) from error
        except ValueError as error:
            raise garbled(target, error) from None
        finally:
            self._waiter = None
        if transport.get_write_buffer_size():  # refused before it was read completely
            answer.more = True
        return answer

    async def last_words(self) -> bool:
        """Close the sending side and wait for a reply that may be under way; whether there was one."""
        if not self.is_open or self.answer.done:
            return self.answer.done
        waiter = self._waiter = self._loop.create_future()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()
        try:
            async with asyncio.timeout(LAST_WORDS):
                await waiter
        finally:
            self._waiter = None
        return self.answer.done

    def drop(self) -> None:
        if self.is_open:
            self.is_open = False
            self._transport.abort()

    # Time

    def _watch(self, seconds: float) -> None:
        """Set the deadline for the reply. One timer serves many calls: it is moved only if it would be late."""
        self._deadline = self._loop.time() + seconds
        self._patience = seconds
        if self._timer is None or self._timer.when() > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return
        if self._loop.time() < self._deadline:
            self._timer = self._loop.call_at(self._deadline, self._check_deadline)
        else:
            self._waiter.set_exception(TimeoutError())

    # The event loop calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        self._deadline = self._loop.time() + self._patience
        try:
            done = self.answer.feed(data)
        except ValueError as error:
            self._settle(error)
            return
        if done:
            self._settle(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        self._all.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.answer.end():
            self._settle(None)
        else:
            self._settle(ConnectionError(str(error) if error else "it was closed"))

    def _settle(self, error: Exception | None) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
