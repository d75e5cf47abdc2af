"""The blocking HTTP transport: sockets, in a pool."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from miniq.api.operation import Call
from miniq.client.exchange import Retryable, lost, unanswered, unreachable
from miniq.client.give_back import LAST_WORDS
from miniq.client.http.answers import Answer, garbled, judge, untrusted
from miniq.client.http.requests import HttpExchange
from miniq.client.http.target import Target
from miniq.client.pool import Connection, Pool
from miniq.errors import StoreUnavailable
from miniq.message import Stored

CHUNK = 64 * 1024
"""The most bytes to read at once. More is slower: each larger buffer is allocated and freed by the system."""
SMALL = 32 * 1024
"""A body up to this size is sent together with its head."""


class Http(Pool):
    """Performs calls from any thread over HTTP."""

    def __init__(self, target: Target) -> None:
        super().__init__(target.retry)
        self._target = target

    def _prepare(self, call: Call[Any]) -> HttpExchange:
        return HttpExchange(self._target, call)

    def carry(self, lines: Callable[[], bytes]) -> None:
        """Add header lines to every request, computed for each."""
        self._target = replace(self._target, lines=lines)

    def _connect(self) -> Connection:
        return _Connection(self._target)


class _Connection:
    """One socket, for one call at a time."""

    __slots__ = ("_poll", "_socket", "_target", "_timeout", "answer", "used")

    def __init__(self, target: Target) -> None:
        self.used = 0.0
        self._target = target
        self.answer = Answer()
        self._timeout = target.timeout
        self._socket = _connect(target)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    @property
    def reusable(self) -> bool:
        return self.answer.reusable

    def carry(self, exchange: HttpExchange, reused: bool) -> object:
        target = self._target
        return judge(exchange, self.exchange(exchange, target, reused), target)

    def exchange(self, exchange: HttpExchange, target: Target, reused: bool) -> Answer:
        """Send a call and read its reply."""
        answer, sock = self.answer, self._socket
        answer.begin()
        if reused and self._poll.poll(0):  # it was closed, or has bytes that are no reply to this call
            raise Retryable(StoreUnavailable(f"{target.url}: an idle connection was closed"), stale=True)
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
                # The broker may have refused a request that is too large before reading all of it.
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
            raise unanswered(target.url, exchange) from None
        except OSError as error:
            raise lost(target.url, error, stale=reused and not answer.begun) from error
        except ValueError as error:
            raise garbled(target, error) from None
        if answer.end():
            return answer
        raise lost(target.url, "it was closed", stale=reused and not answer.begun)

    def last_words(self, exchange: HttpExchange) -> list[Stored]:
        """Close the sending side, which cancels the receive, and read a reply that may be under way."""
        socket.socket.shutdown(self._socket, socket.SHUT_WR)
        self._socket.settimeout(LAST_WORDS)
        while not self.answer.done and (data := self._socket.recv(CHUNK)):
            self.answer.feed(data)
        received: list[Stored] = judge(exchange, self.answer, self._target) if self.answer.done else []
        return received

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()


def _connect(target: Target) -> socket.socket:
    try:
        sock = socket.create_connection((target.host, target.port), target.timeout)
    except (OSError, UnicodeError) as error:
        raise unreachable(target.url, error, target.timeout) from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if target.tls is not None:
            return target.tls.wrap_socket(sock, server_hostname=target.host)
    except ssl.SSLCertVerificationError as error:
        sock.close()
        raise untrusted(target, error) from None
    except OSError as error:
        sock.close()
        raise unreachable(target.url, error, target.timeout) from error
    except BaseException:
        sock.close()
        raise
    return sock
