"""The wires to a server, and bad company on them: a proxy that cuts connections, servers that are no brokers."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import NamedTuple

from tests.serving import Served


class Wire(NamedTuple):
    """A way to a server."""

    scheme: str

    def of(self, served: Served) -> str:
        return served.url if self == HTTP else served.tcp

    @property
    def nobody(self) -> str:
        """Where nobody listens."""
        return f"{self.scheme}://127.0.0.1:1"


HTTP, ZMQ = Wire("http"), Wire("tcp")
WIRES = {"http": HTTP, "zmq": ZMQ}


class Cut(NamedTuple):
    """What one connection is let through: so many bytes of the request, then so many of the answer."""

    request: int | None = None
    answer: int | None = None


GREETING = 107
"""What a ZeroMQ server says while a connection is made."""


class Listener:
    """Accepts connections on a free loopback port, each in a thread of its own, until it is closed."""

    scheme = "http"

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"
        self.accepted = 0
        self.open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *error: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.drop_all()
        for thread in self._threads:
            thread.join(10)

    def drop_all(self) -> None:
        """Close all connections that are open, as a server does that is started anew."""
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self.accepted += 1
                self.open.add(connection)
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            with contextlib.suppress(OSError):
                self.serve(connection)
            self.open.discard(connection)


class Proxy(Listener):
    """Passes everything to a server, except on connections for which a cut is planned."""

    def __init__(self, url: str, cuts: list[Cut] | None = None) -> None:
        self.scheme, _, place = url.partition("://")
        self._upstream = int(place.rpartition(":")[2])
        self.greeting = GREETING if self.scheme == "tcp" else 0
        """Bytes that a server says before its first answer."""
        self.cuts = cuts or []
        self.asked: list[bytes] = []
        """The first bytes of each request, as far as they came in one piece."""
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        cut = self.cuts.pop(0) if self.cuts else Cut()
        with socket.create_connection(("127.0.0.1", self._upstream)) as upstream:
            back = threading.Thread(target=self._pass, args=(upstream, connection, cut.answer), daemon=True)
            back.start()
            self._pass(connection, upstream, cut.request, self.asked.append)
            back.join(30)

    @staticmethod
    def _pass(
        source: socket.socket, sink: socket.socket, most: int | None, see: Callable[[bytes], None] | None = None
    ) -> None:
        """Pass bytes on until the end, or until `most` of them; then end both sides."""
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if see is not None:
                    see(data)
                if most is not None and passed + len(data) >= most:
                    sink.sendall(data[: most - passed])
                    break
                sink.sendall(data)
                passed += len(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Canned(Listener):
    """Answers every request with the same bytes and closes; without any, it never answers."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        connection.recv(65536)
        if self._answers:
            connection.sendall(self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])
        else:
            connection.recv(1)


def answer(status: str, body: bytes, media: str = "text/html", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {media}\r\ncontent-length: {len(body)}\r\n{more}\r\n".encode() + body
