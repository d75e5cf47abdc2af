"""The blocking ZeroMQ transport: connections in a pool, each with one call at a time."""

from __future__ import annotations

import contextlib
import itertools
import socket
from time import monotonic
from typing import Any

import zmq
from zmq.backend import zmq_poll

from miniq.api.operation import Call
from miniq.client._sync.pool import Connection, Pool
from miniq.client.exchange import Retryable, lost, unanswered, unreachable
from miniq.client.give_back import LAST_WORDS
from miniq.client.interrupts import interruptible
from miniq.client.zmq.line import HUNG_UP, HungUp, Line, is_address
from miniq.client.zmq.requests import ZmqExchange, judge
from miniq.client.zmq.target import Target
from miniq.errors import StoreUnavailable

LOOK = 100
"""Milliseconds between checks whether the client was closed: a waiting thread cannot be woken."""
_names = itertools.count(1)


class Zmq(Pool):
    """Performs calls from any thread over ZeroMQ."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.retry)
        self._target = target

    def _prepare(self, call: Call[Any]) -> ZmqExchange:
        return ZmqExchange(self._target, call)

    def _connect(self) -> Connection:
        target = self._target
        failure: Exception | None = None
        for host in _hosts(target):
            for _ in range(HUNG_UP):
                connection = _Connection(target, host)
                try:
                    connection.open()
                    return connection
                except Retryable as error:
                    connection.drop()
                    failure = error
                    if not isinstance(error, HungUp):
                        break
                except BaseException:
                    connection.drop()
                    raise
        raise failure or unreachable(target.url, "it has no address", target.timeout)


class _Connection:
    """One line, for one call at a time."""

    __slots__ = ("_cut", "_line", "_name", "_poll", "_target", "reusable", "used")

    def __init__(self, target: Target, host: str) -> None:
        self.used = 0.0
        self.reusable = False
        self._target = target
        self._cut = False
        self._name = b""
        self._line = Line(target, host)
        self._poll = [(self._line.socket, zmq.POLLIN), (self._line.events, zmq.POLLIN)]

    def open(self) -> None:
        """Wait until the line is up; raises `Retryable`, or an error that is permanent."""
        line = self._line
        late = monotonic() + self._target.timeout + 1  # libzmq reports a timeout before that
        while not line.up:
            if interruptible(line.events.poll, LOOK):
                line.look()
            if line.lost is not None:
                raise line.lost
            if monotonic() > late:
                raise unreachable(self._target.url, TimeoutError(), self._target.timeout)

    def carry(self, exchange: ZmqExchange, reused: bool) -> object:
        target, line = self._target, self._line
        self.reusable = False
        if reused:
            line.look()
            if line.lost is not None:
                raise Retryable(StoreUnavailable(f"{target.url}: an idle connection was closed"), stale=True)
        self._name = b"%x" % next(_names)
        line.send(self._name, exchange.body, reused)
        body = self._wait(exchange, exchange.patience, reused)
        self.reusable = True
        return judge(exchange, body, target)

    def _wait(self, exchange: ZmqExchange, patience: float, reused: bool) -> bytes:
        """The body of the reply to the last request."""
        target, line = self._target, self._line
        deadline = monotonic() + patience
        while True:
            ready = interruptible(zmq_poll, self._poll, 0 if line.lost is not None else LOOK)
            with contextlib.suppress(zmq.Again):
                while ready:
                    name, body = line.receive()
                    if name == self._name:
                        return body
            if line.lost is not None:  # and no reply came just before
                raise lost(target.url, "it was closed", stale=reused)
            if ready:
                line.look()
            if self._cut:
                raise lost(target.url, "the client was closed")
            if monotonic() > deadline:
                raise unanswered(target.url, exchange)

    def last_words(self, exchange: ZmqExchange) -> object:
        if exchange.operation.long_poll:
            self._line.send(self._name, exchange.cancel())
        return judge(exchange, self._wait(exchange, LAST_WORDS, False), self._target)

    def cut(self) -> None:
        self._cut = True

    def drop(self) -> None:
        self.reusable = False
        self._line.drop()


def _hosts(target: Target) -> list[str]:
    """The addresses of a host, to try in turn."""
    if is_address(target.host):
        return [target.host]
    host = target.host.encode() if target.host.isascii() else target.host  # as in `http/streams.py`
    try:
        infos = socket.getaddrinfo(host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise unreachable(target.url, error, target.timeout) from error
    return list(dict.fromkeys(str(info[4][0]) for info in infos))
