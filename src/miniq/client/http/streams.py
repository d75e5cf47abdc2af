"""Bytes to and from a server, for one request at a time: by a socket, or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from miniq.client.http.answers import unconnected
from miniq.client.http.target import Target
from miniq.client.interrupts import interruptible

CHUNK = 64 * 1024
"""The most bytes to read at once. More is slower: each larger buffer is allocated and freed by the system."""
SMALL = 32 * 1024
"""A body up to this size is sent together with its head."""


class Stream:
    """A connection by a blocking socket."""

    __slots__ = ("_decrypted", "_is_unsent", "_patience", "_poll", "_socket")

    def __init__(self, connected: socket.socket, patience: float) -> None:
        self._is_unsent = False
        self._patience = patience
        self._socket = connected
        self._poll = select.poll()
        self._poll.register(connected, select.POLLIN)
        self._decrypted: Callable[[], int] = connected.pending if isinstance(connected, ssl.SSLSocket) else int
        """The number of bytes that were read from the socket and not yet from here."""

    @classmethod
    def open(cls, target: Target) -> Stream:
        return interruptible(cls._open, target)

    @classmethod
    def _open(cls, target: Target) -> Stream:
        # Text would make Python import the codec for it: a signal handler that connects meanwhile would not find it.
        host: Any = target.host.encode() if target.host.isascii() else target.host
        try:
            connected = socket.create_connection((host, target.port), target.timeout)
        except (OSError, UnicodeError) as error:
            raise unconnected(target, error) from error
        try:
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if target.tls is not None:
                connected = target.tls.wrap_socket(connected, server_hostname=target.host)
            return cls(connected, target.timeout)
        except BaseException as error:
            connected.close()
            if isinstance(error, OSError):
                raise unconnected(target, error) from error
            raise

    def is_stale(self) -> bool:
        """Whether it was closed while idle, or has bytes that are no reply to the next request."""
        return bool(self._poll.poll(0))

    def send(self, head: bytes, body: bytes | memoryview, patience: float) -> None:
        """Send a request; `patience` is how many seconds to wait for the reply or its next part."""
        self._set_patience(patience)
        send = self._socket.sendall
        try:
            if len(body) <= SMALL:
                send(head + body)
            else:
                send(head)
                send(body)
        except TimeoutError:
            raise
        except OSError:
            self._is_unsent = True  # the broker may have refused a request that is too large before reading all of it

    def is_unsent(self) -> bool:
        """Whether a part of the request could not be sent."""
        return self._is_unsent

    def read(self) -> bytes:
        """The next bytes; none once the connection has ended."""
        # Ctrl-C during `recv` would discard bytes that it has read.
        if not self._decrypted() and not interruptible(self._poll.poll, self._patience * 1000):
            raise TimeoutError
        return self._socket.recv(CHUNK)

    def begin_shutdown(self, patience: float, end: bool) -> None:
        """Wait less for the reply; with `end`, close the sending side."""
        self._set_patience(patience)
        if end:
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def cut(self) -> None:
        """End a `read` that another thread is waiting for."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def drop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    def _set_patience(self, seconds: float) -> None:
        if seconds != self._patience:
            self._socket.settimeout(seconds)
            self._patience = seconds


class AsyncStream(asyncio.Protocol):
    """The same in an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport
        self._is_open = False
        self._error: Exception | None = None
        self._arrived: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._patience = 0.0
        self._deadline = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(cls, target: Target) -> AsyncStream:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(target.timeout):
                _, stream = await loop.create_connection(lambda: cls(loop), target.host, target.port, ssl=target.tls)
        except (OSError, UnicodeError) as error:
            raise unconnected(target, error) from error
        return stream

    def is_stale(self) -> bool:
        return not self._is_open or bool(self._arrived)

    def send(self, head: bytes, body: bytes | memoryview, patience: float) -> None:
        self._patience = patience
        if len(body) <= SMALL:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)

    def is_unsent(self) -> bool:
        return self._transport.get_write_buffer_size() > 0

    async def read(self) -> bytes:
        if not self._arrived and self._is_open:
            self._waiter = self._loop.create_future()
            self._watch()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if self._arrived:
            return self._arrived.popleft()
        if isinstance(self._error, OSError):
            raise self._error
        if self._error is not None:
            raise ConnectionError(str(self._error)) from self._error
        return b""

    def begin_shutdown(self, patience: float, end: bool) -> None:
        self._patience = patience
        if not end:
            return
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()

    def cut(self) -> None:
        self.drop()

    def drop(self) -> None:
        if self._is_open:
            self._transport.abort()

    def _watch(self) -> None:
        """Set the deadline of a `read`. One timer serves many: it is moved only if it would be late."""
        self._deadline = self._loop.time() + self._patience
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

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # The event loop calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._is_open = True

    def data_received(self, data: bytes) -> None:
        self._arrived.append(data)
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
