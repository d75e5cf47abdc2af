"""The ZeroMQ transport for event loops: one line for all concurrent calls."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from time import monotonic
from typing import Any

import zmq

from miniq.api.operation import Call
from miniq.api.operations import Receive
from miniq.client._async.attempts import AsyncAttempts
from miniq.client.exchange import Retryable, lost, unanswered, unreachable
from miniq.client.give_back import LAST_WORDS, Background, release_of
from miniq.client.zmq.line import HUNG_UP, HungUp, Line, is_address
from miniq.client.zmq.requests import ZmqExchange, judge
from miniq.client.zmq.target import Target
from miniq.errors import MiniQError


class AsyncZmq(AsyncAttempts):
    """Performs calls over ZeroMQ, in the event loop it was created in."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.retry)
        self._target = target
        self._line: _AsyncLine | None = None
        self._opening: asyncio.Task[_AsyncLine] | None = None
        self._background = Background()

    def _prepare(self, call: Call[Any]) -> ZmqExchange:
        return ZmqExchange(self._target, call)

    async def close(self) -> None:
        self._closed.set()
        await self._background.finish()
        if self._opening is not None:
            self._opening.cancel()
        if self._line is not None:
            self._line.retire()

    async def _attempt(self, exchange: ZmqExchange, now: float) -> object:
        """Send a call on the line, which is opened if there is none, and wait for its reply."""
        line = self._line
        reused = line is not None and line.usable
        if line is None or not reused:
            line = await self._ready()
        is_poll = exchange.operation.long_poll
        if self._closed.is_set() and is_poll:
            return exchange.nothing
        asked = line.ask(exchange.body, is_poll, reused)
        try:
            body = await line.answer(asked, exchange, reused)
        except (asyncio.CancelledError, Retryable) as problem:
            is_receive = isinstance(exchange.call, Receive)
            is_given_up = (is_receive and problem.final) if isinstance(problem, Retryable) else True
            if is_given_up and exchange.operation.repeat != "once" and not self._closed.is_set():
                self._background.start(self._finish(line, asked, exchange))
            else:
                line.forget(asked)
            raise
        return judge(exchange, body, self._target)

    async def _ready(self) -> _AsyncLine:
        """Opens the line; concurrent calls share one attempt."""
        if self._opening is None or self._opening.done():  # all its waiters were cancelled
            self._opening = self._loop.create_task(self._open())
            self._opening.add_done_callback(_look_at)
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if opening.cancelled():  # the client was closed
                raise unreachable(self._target.url, "the client was closed", self._target.timeout) from None
            raise
        finally:
            if self._opening is opening and opening.done():
                self._opening = None

    async def _open(self) -> _AsyncLine:
        failure: Exception | None = None
        for host in await self._hosts():
            for _ in range(HUNG_UP):
                line = _AsyncLine(self._target, host)
                try:
                    await line.open()
                    self._line = line
                    return line
                except Retryable as error:
                    line.drop()
                    failure = error
                    if not isinstance(error, HungUp):
                        break
                except BaseException:
                    line.drop()
                    raise
        raise failure or unreachable(self._target.url, "it has no address", self._target.timeout)

    async def _hosts(self) -> list[str]:
        target = self._target
        if is_address(target.host):
            return [target.host]
        try:
            infos = await self._loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise unreachable(target.url, error, target.timeout) from error
        return list(dict.fromkeys(str(info[4][0]) for info in infos))

    async def _finish(self, line: _AsyncLine, asked: _Asked, exchange: ZmqExchange) -> None:
        """Complete a call whose caller was cancelled; cancel a receive, also one that timed out, and release the
        messages that it had leased."""
        try:
            received = judge(exchange, await line.last_words(asked, exchange), self._target)
            release = release_of(exchange.call, received)
            if release is not None:
                await self._attempt(self._prepare(release), monotonic())
        except Exception:  # noqa: S110  the lease runs out by itself
            pass
        finally:
            line.forget(asked)


class _Asked:
    """A request that waits for its reply."""

    __slots__ = ("future", "is_poll", "late", "name")

    def __init__(self, name: bytes, future: asyncio.Future[bytes], is_poll: bool) -> None:
        self.name = name
        self.future = future
        self.is_poll = is_poll
        self.late: bytes | None = None
        """A reply that arrived after its caller had given up."""


class _AsyncLine(Line):
    """A line in an event loop, with its pending calls."""

    def __init__(self, target: Target, host: str) -> None:
        super().__init__(target, host)
        self._url = target.url
        self._timeout = target.timeout
        self._loop = asyncio.get_running_loop()
        self._names = itertools.count(1)
        self._waiting: dict[bytes, _Asked] = {}
        self._retired = False
        self._looking = False
        self._is_up: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self.events.fileno(), self._read)
        self._loop.add_reader(self.socket.fileno(), self._read)
        self._again()

    @property
    def usable(self) -> bool:
        return self.up and self.lost is None and not self.socket.closed

    async def open(self) -> None:
        """Wait until it is up; raises `Retryable`, or an error that is permanent."""
        try:
            async with asyncio.timeout(self._timeout + 1):  # libzmq reports a timeout before that
                await self._is_up
        except TimeoutError as error:
            raise unreachable(self._url, error, self._timeout) from None

    def ask(self, body: bytes, is_poll: bool, reused: bool) -> _Asked:
        """Send a request."""
        asked = _Asked(b"%x" % next(self._names), self._loop.create_future(), is_poll)
        try:
            self.send(asked.name, body, reused)
        except Retryable:
            self.drop()
            raise
        self._again()
        self._waiting[asked.name] = asked
        return asked

    async def answer(self, asked: _Asked, exchange: ZmqExchange, reused: bool) -> bytes:
        """The body of the reply to a request."""
        timer = self._loop.call_later(exchange.patience, _give_up, asked.future)
        try:
            body = await asked.future
        except TimeoutError:
            raise unanswered(self._url, exchange) from None
        except ConnectionError as error:
            raise lost(self._url, error, stale=reused) from None
        finally:
            timer.cancel()
        return body

    async def last_words(self, asked: _Asked, exchange: ZmqExchange) -> bytes:
        """The reply to a call that was given up. A long poll is cancelled: what it already had."""
        if asked.late is not None:
            return asked.late
        future = asked.future
        if future.done() and (future.cancelled() or future.exception() is not None):  # its caller gave up
            asked.future = self._loop.create_future()
            if exchange.operation.long_poll:
                self.send(asked.name, exchange.cancel())
                self._again()
        async with asyncio.timeout(LAST_WORDS):
            return await asked.future

    def forget(self, asked: _Asked) -> None:
        """Drop a pending call."""
        self._waiting.pop(asked.name, None)
        if self._retired and not self._waiting:
            self.drop()

    def retire(self) -> None:
        """End long polls, and close the line once no other call is pending."""
        self._retired = True
        for asked in [asked for asked in self._waiting.values() if asked.is_poll]:
            del self._waiting[asked.name]
            if not asked.future.done():
                asked.future.set_exception(ConnectionError("the client was closed"))
        if not self._waiting:
            self.drop()

    def drop(self) -> None:
        if not self.socket.closed:
            self._loop.remove_reader(self.socket.fileno())
            self._loop.remove_reader(self.events.fileno())
        super().drop()
        self._fail(ConnectionError("it was closed"))

    # The event loop calls these

    def _again(self) -> None:
        """Read again soon: the file descriptor is edge-triggered, and each operation of ours may consume the edge."""
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._read_again)

    def _read_again(self) -> None:
        self._looking = False
        self._read()

    def _read(self) -> None:
        if self.socket.closed:
            return
        try:
            self._deliver()
            self.look()
            if self.lost is not None:
                self._deliver()  # replies that came just before the end
        except MiniQError as error:
            self._fail(error)
            self.drop()
            return
        if self.lost is not None:
            if not self._is_up.done():
                self._is_up.set_exception(self.lost)
            self.drop()
        elif self.up and not self._is_up.done():
            self._is_up.set_result(None)
            self._again()
        if self._retired and not self._waiting:
            self.drop()

    def _deliver(self) -> None:
        """Pass the replies that have arrived to their callers."""
        with contextlib.suppress(zmq.Again):
            while self.up:  # before the handshake the peer is not authenticated
                name, body = self.receive()
                asked = self._waiting.pop(name, None)
                if asked is None:
                    continue
                if asked.future.done():
                    asked.late = body
                else:
                    asked.future.set_result(body)

    def _fail(self, error: Exception) -> None:
        waiting, self._waiting = self._waiting, {}
        for asked in waiting.values():
            if not asked.future.done():
                asked.future.set_exception(error)


def _look_at(opening: asyncio.Task[_AsyncLine]) -> None:
    """Retrieve the exception: asyncio logs those that are never retrieved."""
    if not opening.cancelled():
        opening.exception()


def _give_up(future: asyncio.Future[bytes]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
