"""The blocking HTTP transport: sockets, a pool of them, and attempts until a call comes through.

The pool is a stack, so that the connection used last is used next and the others grow old and are dropped.
Its deque and set are only used by operations that are atomic by themselves: no lock that a fork could leave shut.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
import weakref
from collections import deque
from time import monotonic
from typing import TypeVar, cast

from miniq.client.calls import Call, Receive, Release, may_wait, unanswered_poll
from miniq.client.http.answers import Answer, Trouble, garbled, judge, lost, unanswered, unreachable, untrusted
from miniq.client.http.requests import Exchange
from miniq.client.http.retries import Retries
from miniq.client.http.target import Target
from miniq.errors import Closed
from miniq.message import Lease

T = TypeVar("T")

IDLE = 30.0
"""Seconds after which a connection that nobody used is dropped; the server keeps it for longer."""
SPARE = 64
"""Most connections that are kept for later."""
CHUNK = 64 * 1024
"""Most bytes read at once. More is slower: it would be taken from the system and given back each time."""
SMALL = 32 * 1024
"""A body up to this size is sent together with its head."""
LAST_WORDS = 1.0
"""Seconds to wait for the messages of a receive that was interrupted, to give them back."""


class Http:
    """Performs calls of any thread on a broker behind HTTP."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._process = os.getpid()
        self._idle: deque[_Connection] = deque()
        self._polling: set[_Connection] = set()
        """Those on which a receive waits: closing ends it."""
        self._closed = threading.Event()
        # The finalizer must not know this object: it runs when its user lets go of it, or at exit.
        self._closer = weakref.finalize(self, _drop_all, self._idle)

    def perform(self, call: Call[T]) -> T:
        exchange = Exchange(self._target, call)
        began = now = monotonic()
        retries: Retries | None = None
        while True:
            if self._closed.is_set():
                raise Closed("the client is closed")
            try:
                return cast(T, self._attempt(exchange, now))
            except Trouble as trouble:
                if self._closed.is_set():
                    if may_wait(call):
                        return cast(T, unanswered_poll(call))
                    raise Closed("the client is closed") from None
                retries = retries or Retries(exchange, self._target.retry, began)
                pause = retries.pause(trouble, monotonic())
            if pause:
                self._closed.wait(pause)
            now = monotonic()
            retries.again(now)

    def close(self) -> None:
        if self._process != os.getpid():
            return
        self._closed.set()
        _drop_all(self._idle)
        for connection in list(self._polling):
            connection.cut()
        self._closer.detach()

    # Inside

    def _attempt(self, exchange: Exchange, now: float) -> object:
        """Send a call on a kept or a new connection, and read its answer."""
        if self._process != os.getpid():
            self._begin_again()
        connection = None if exchange.kind.once else self._kept(now)
        reused = connection is not None
        if connection is None:
            connection = _Connection(self._target)
        polling = may_wait(exchange.call)
        if polling:
            self._polling.add(connection)
            if self._closed.is_set():
                connection.cut()
        try:
            answer = connection.exchange(exchange, self._target, reused)
        except Exception:
            connection.drop()
            raise
        except BaseException:
            if polling:
                self._give_back(connection, exchange)
            connection.drop()
            raise
        finally:
            if polling:
                self._polling.discard(connection)
        try:
            return judge(exchange, answer, self._target)
        finally:
            self._keep(connection, now)

    def _kept(self, now: float) -> _Connection | None:
        """The connection that was used last, if it is not too old; then all others are too."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if now - connection.used < IDLE:
            return connection
        connection.drop()
        _drop_all(self._idle)
        return None

    def _keep(self, connection: _Connection, now: float) -> None:
        if not connection.answer.reusable:
            connection.drop()
            return
        connection.used = now
        idle = self._idle
        idle.append(connection)
        if self._closed.is_set():
            _drop_all(idle)
        elif len(idle) > 1:
            with contextlib.suppress(IndexError):
                if now - idle[0].used > IDLE or len(idle) > SPARE:
                    idle.popleft().drop()

    def _begin_again(self) -> None:
        """This is a forked child: the connections are its parent's."""
        _drop_all(self._idle)
        self._polling.clear()
        self._process = os.getpid()

    def _give_back(self, connection: _Connection, exchange: Exchange) -> None:
        """A receive was interrupted. The broker is told by the end of what we say; messages that it had sent by
        then are released, so that they need not wait for the end of their lease."""
        call = exchange.call
        if not isinstance(call, Receive) or call.mode == "at-most-once":
            return
        with contextlib.suppress(Exception):
            if not connection.last_words():
                return
            taken = judge(exchange, connection.answer, self._target)
            leases = [Lease(stored.message.id, stored.receipt or "") for stored in taken]
            if leases:
                self._attempt(Exchange(self._target, Release(call.queue, leases)), monotonic())


class _Connection:
    """One socket, which carries one call at a time."""

    __slots__ = ("_socket", "_timeout", "answer", "used")

    def __init__(self, target: Target) -> None:
        self.used = 0.0
        self.answer = Answer()
        self._timeout = target.timeout
        self._socket = _connect(target)

    def exchange(self, exchange: Exchange, target: Target, reused: bool) -> Answer:
        """Send a call and read its answer."""
        answer, sock = self.answer, self._socket
        answer.begin()
        if exchange.patience != self._timeout:
            sock.settimeout(exchange.patience)
            self._timeout = exchange.patience
        try:
            try:
                if len(exchange.body) <= SMALL:
                    sock.sendall(exchange.head + exchange.body)
                else:
                    sock.sendall(exchange.head)
                    sock.sendall(exchange.body)
            except TimeoutError:
                raise
            except OSError:
                # It may have refused what is too large without hearing it out.
                with contextlib.suppress(OSError):
                    while (data := sock.recv(CHUNK)) and not answer.feed(data):
                        pass
                if not answer.done:
                    raise
                answer.more = True
                return answer
            while data := sock.recv(CHUNK):
                if answer.feed(data):
                    return answer
        except TimeoutError:
            raise unanswered(target, exchange) from None
        except OSError as error:
            raise lost(target, error, reused=reused, begun=answer.begun) from error
        except ValueError as error:
            raise garbled(target, error) from None
        if answer.end():
            return answer
        raise lost(target, "it was closed", reused=reused, begun=answer.begun)

    def last_words(self) -> bool:
        """Say no more, and hear the answer that may be on its way; whether there was one."""
        socket.socket.shutdown(self._socket, socket.SHUT_WR)
        self._socket.settimeout(LAST_WORDS)
        while not self.answer.done and (data := self._socket.recv(CHUNK)):
            self.answer.feed(data)
        return self.answer.done

    def cut(self) -> None:
        """End what another thread waits for on it."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


def _connect(target: Target) -> socket.socket:
    try:
        sock = socket.create_connection((target.host, target.port), target.timeout)
    except (OSError, UnicodeError) as error:
        raise unreachable(target, error) from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is not None:
            return target.tls.wrap_socket(sock, server_hostname=target.host)
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise untrusted(target, error) from None
    except OSError as error:
        sock.close()
        raise unreachable(target, error) from error
    except BaseException:
        sock.close()
        raise
    return sock


def _drop_all(connections: deque[_Connection]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            connections.pop().drop()
