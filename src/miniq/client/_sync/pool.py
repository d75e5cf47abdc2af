# Generated from ../_async/pool.py by `make generate`: change that file.
"""A pool of connections: each carries one call at a time, from any thread or in one event loop.

The pool is a stack: the connection used last is used next, and idle ones are dropped. Its deque and set are used only
by atomic operations, so that there is no lock that a fork could leave locked.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from abc import abstractmethod
from collections import deque
from time import monotonic
from typing import Any, Protocol

from miniq.client._sync.attempts import Attempts
from miniq.client.exchange import Exchange
from miniq.client.give_back import release_of

IDLE = 30.0
"""Seconds after which an unused connection is dropped; the server keeps it longer."""
SPARE = 64
"""The most idle connections that are kept."""


class Connection(Protocol):
    """One connection, for one call at a time."""

    used: float

    @property
    def reusable(self) -> bool:
        """Whether it can carry another call."""

    def carry(self, exchange: Any, reused: bool) -> object:
        """Send a call and return the result."""

    def last_words(self, exchange: Any) -> object:
        """The result of a call whose caller was interrupted. A long poll is cancelled: what it already had."""

    def cut(self) -> None:
        """End the call that is waiting for its reply."""

    def drop(self) -> None: ...


class Pool(Attempts):
    """Performs calls on pooled connections."""

    def __init__(self, retry: float) -> None:
        super().__init__(retry)
        self._process = os.getpid()
        self._idle: deque[Connection] = deque()
        self._polling: set[Connection] = set()
        """Connections with a long poll, which `close` ends."""
        # The finalizer must not refer to this object: it runs when the object is collected, or at exit.
        self._closer = weakref.finalize(self, _drop_all, self._idle)

    @abstractmethod
    def _connect(self) -> Connection:
        """A new connection."""

    def close(self) -> None:
        if self._process != os.getpid():
            return
        self._closed.set()
        _drop_all(self._idle)
        for connection in list(self._polling):
            connection.cut()
        self._closer.detach()

    def _attempt(self, exchange: Exchange, now: float) -> object:
        """Send a call on an idle or a new connection, and read its reply."""
        if self._process != os.getpid():
            self._begin_again()
        connection = None if exchange.operation.repeat == "once" else self._kept(now)
        reused = connection is not None
        if connection is None:
            connection = self._connect()
        polling = exchange.operation.long_poll
        if polling:
            self._polling.add(connection)
            if self._closed.is_set():
                connection.cut()
        interrupted = True
        try:
            result = connection.carry(exchange, reused)
            interrupted = False
            return result
        except Exception:
            interrupted = False
            raise
        finally:
            if polling:
                self._polling.discard(connection)
            if not interrupted:
                self._keep(connection, monotonic())
            elif exchange.operation.repeat == "once" or self._closed.is_set():
                connection.drop()
            else:
                self._finish(connection, exchange)

    def _kept(self, now: float) -> Connection | None:
        """The connection used last; if that is too old, all are."""
        try:
            connection = self._idle.pop()
        except IndexError:
            return None
        if now - connection.used < IDLE:
            return connection
        connection.drop()
        _drop_all(self._idle)
        return None

    def _keep(self, connection: Connection, now: float) -> None:
        if not connection.reusable:
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
        """Forget the connections of the parent after a fork."""
        _drop_all(self._idle)
        self._polling.clear()
        self._process = os.getpid()

    def _finish(self, connection: Connection, exchange: Exchange) -> None:
        """Complete a call that was interrupted; cancel a receive, and release the messages that it had leased."""
        try:
            release = release_of(exchange.call, connection.last_words(exchange))
            if release is not None:
                self._attempt(self._prepare(release), monotonic())
        except Exception:  # noqa: S110  the lease runs out by itself
            pass
        finally:
            connection.drop()


def _drop_all(connections: deque[Connection]) -> None:
    with contextlib.suppress(IndexError):
        while True:
            connections.pop().drop()
