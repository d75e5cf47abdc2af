"""The blocking ZeroMQ transport: lines in a pool, each with one call at a time."""

from __future__ import annotations

import contextlib
import itertools
import socket
from time import monotonic
from typing import Any

import zmq
from zmq.backend import zmq_poll

from miniq.api.operation import Call
from miniq.client.exchange import Retryable, lost, unanswered, unreachable
from miniq.client.give_back import LAST_WORDS
from miniq.client.pool import Connection, Pool
from miniq.client.zmq.line import HUNG_UP, HungUp, Line, is_address
from miniq.client.zmq.requests import ZmqExchange, judge
from miniq.client.zmq.target import Target
from miniq.message import Stored

LOOK = 100
"""Milliseconds between two looks at whether the client was closed: nobody can wake a thread that waits here."""
_names = itertools.count(1)


class Zmq(Pool):
    """Performs calls of any thread on a broker behind ZeroMQ."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.retry)
        self._target = target

    def _prepare(self, call: Call[Any]) -> ZmqExchange:
        return ZmqExchange(self._target, call)

    def _connect(self) -> Connection:
        target = self._target
        trouble: Exception | None = None
        for host in _hosts(target):
            for _ in range(HUNG_UP):
                connection = _Connection(target, host)
                try:
                    connection.open()
                    return connection
                except Retryable as error:
                    connection.drop()
                    trouble = error
                    if not isinstance(error, HungUp):
                        break
                except BaseException:
                    connection.drop()
                    raise
        raise trouble or unreachable(target.url, "it has no address", target.timeout)


class _Connection:
    """One line."""

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
        """Wait until the line is up; `Retryable`, or what will not pass."""
        line = self._line
        late = monotonic() + self._target.timeout + 1  # the library says so itself, before that
        while not line.up:
            if line.events.poll(LOOK):
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
                raise lost(target.url, "it was closed", stale=True)
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
            ready = zmq_poll(self._poll, 0 if line.lost is not None else LOOK)
            with contextlib.suppress(zmq.Again):
                while ready:
                    name, body = line.receive()
                    if name == self._name:
                        return body
            if line.lost is not None:  # and no answer came just before
                raise lost(target.url, "it was closed", stale=reused)
            if ready:
                line.look()
            if self._cut:
                raise lost(target.url, "the client was closed")
            if monotonic() > deadline:
                raise unanswered(target.url, exchange)

    def last_words(self, exchange: ZmqExchange) -> list[Stored]:
        """Take the receive back, and hear what it had found by then."""
        self._line.send(self._name, exchange.cancel())
        taken: list[Stored] = judge(exchange, self._wait(exchange, LAST_WORDS, False), self._target)
        return taken

    def cut(self) -> None:
        self._cut = True

    def drop(self) -> None:
        self.reusable = False
        self._line.drop()


def _hosts(target: Target) -> list[str]:
    """The addresses of a host, to be tried in turn."""
    if is_address(target.host):
        return [target.host]
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise unreachable(target.url, error, target.timeout) from error
    return list(dict.fromkeys(str(one[4][0]) for one in found))
