"""Cuts the bytes of a connection into requests, and limits them before anything is kept.

httptools judges what is HTTP. It never gets bytes past the end of a message: a head, a chunk and trailers end with an
empty line, so it is fed up to the next one, and a body of known length up to that length. So the connection decides
when the next request is read, and a limit holds however the bytes arrive.
"""

from __future__ import annotations

import re
from typing import Any

import httptools

from miniq.errors import BadRequest, HeadTooLarge, MiniQError, UrlTooLong
from miniq.options import Limits

_END = b"\r\n\r\n"
_BLANK = re.compile(rb"[\r\n]+")
_UPDATE = b"UPDATE /messages/"
_VERSIONS = ("1.0", "1.1")
_HTTP2 = b"PRI * HTTP/2.0\r\n"
"""How a client of HTTP/2 begins; the parser says nothing to it."""
_FRAMING = (b"content-length", b"transfer-encoding")
BLANK_BYTES = 256
"""How many bytes of empty lines may precede a request; some clients end a body with one."""
SLICE, STEPS = 16384, 2000
"""A body of tiny chunks or of empty lines must not delay other connections: most bytes of a feed, and about how many
steps (feeds and chunks) are made at a time."""


class RequestReader:
    """The requests of one connection: `add` bytes, then read a `head` and its `body`, in turns."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._data = b""
        self.size = 0
        """How many bytes there are."""
        self.start = 0
        """Where what is still needed begins: the head that is being read."""
        self.at = 0
        """How far the parser has read."""
        self.parser: Any = httptools.HttpRequestParser(self)
        self._into: bytearray | None = None
        self._is_whole = False
        """Whether the body is read in one piece."""
        self.piece = b""
        self._in_head = True
        self._refusal: MiniQError | None = None
        self._steps = 0
        self._unreported = 0
        """Bytes fed since the parser last reported something; it may be keeping them."""
        self._trailers = 0
        self._blank = 0
        """Bytes of empty lines before the head that is being read."""
        self.left = -1
        """Bytes of the body that have not been read; -1 if its length is not known."""
        self.complete = False
        """Whether the request was read to its end."""
        self.raw = b""
        """The request line and headers as they arrived."""
        self.method = b""
        self.url = b""
        self.headers: list[tuple[bytes, bytes]] = []
        """With names in lower case, without trailers."""
        self.fields: dict[str, str] = {}
        """The headers by name; of those that are repeated, the first."""
        self.version = "1.1"
        self.keep_alive = True
        self.expects_continue = False

    def add(self, data: bytes) -> None:
        start = self.start
        if start < self.size:
            data = self._data[start:] + data
        self._data = data
        self.size = len(data)
        self.at -= start
        self.start = 0

    def close(self) -> None:
        """Let go of the parser, which refers to this reader."""
        self.parser = None
        self._data = b""
        self.start = self.at = self.size = 0

    def clear(self) -> None:
        """Let go of a request that was read to its end, after which there are no bytes."""
        self._data = b""
        self.start = self.at = self.size = 0
        self.headers = []
        self.fields = {}

    def head(self) -> bool:
        """Read on to the end of the head; False if that has not arrived. There must be bytes to read."""
        if not self._in_head:  # a new request
            self._in_head = True
            self.complete = False
            self.url = b""
            self.headers = []
        data, start = self._data, self.start
        if self.at == start:
            if data[start] in b"\r\n":
                blank = _BLANK.match(data, start)
                self.start = self.at = blank.end() if blank is not None else start
                self._blank += self.start - start
                if self._blank > BLANK_BYTES:
                    raise BadRequest(f"request: over {BLANK_BYTES} bytes of empty lines before it", field="request")
                start = self.start
            if data.startswith(_UPDATE, start):
                # The parser does not know the method UPDATE of the short routes, which treat it like PATCH.
                self._data = data = b"PATCH" + data[start + len(b"UPDATE") :]
                self.start = self.at = start = 0
                self.size = len(data)
            elif _UPDATE.startswith(data[start : start + len(_UPDATE)]):  # or nothing
                return False
        limit = start + self._limits.head_bytes
        end = data.find(_END, max(start, self.at - len(_END) + 1), limit)
        if data.startswith(_HTTP2, start):
            raise BadRequest("request: HTTP/2 is not supported; use HTTP/1.1", field="request")
        self._feed(end + len(_END) if end >= 0 else min(len(data), limit))
        if self._in_head:
            if len(data) >= limit:
                raise HeadTooLarge(f"request: its head is over {self._limits.head_bytes} bytes", field="request")
            return False
        self.raw = self._data[start : self.at]
        self.start = self.at
        self._unreported = self._trailers = self._blank = 0
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(self.headers)}
        self.fields = fields
        self.expects_continue = "expect" in fields and fields["expect"].lower() == "100-continue"
        if "host" not in fields and self.version == "1.1":
            raise BadRequest("host: missing; HTTP/1.1 requires it", field="host")
        self.left = int(fields["content-length"]) if "content-length" in fields else -1
        coding = fields.get("transfer-encoding", "chunked")
        if coding.lower() != "chunked":
            raise BadRequest(f"transfer-encoding: {coding[:80]!r} is not supported; use chunked", field="request")
        return True

    def body(self, into: bytearray | None) -> bool:
        """Read on to the end of the body and append it to `into`; False if that has not arrived, or there is more to
        read. A body that arrives in one piece is `piece` instead. Without `into` it is discarded."""
        self._into = into
        self._is_whole = False
        if self.left >= 0:
            stop = min(self.size, self.at + self.left)
            self.left -= stop - self.at
            self._is_whole = not self.left and not into
            self._feed(stop)
            self.start = self.at
            return self.complete
        self._steps = 0
        while not self.complete and self.at < self.size and self._steps < STEPS:
            at, steps = self.at, self._steps
            end = self._data.find(_END, max(self.start, at - len(_END) + 1), at + SLICE)
            stop = end + len(_END) if end >= 0 else min(self.size, at + SLICE)
            self._feed(stop)
            self._unreported = 0 if self._steps > steps else self._unreported + stop - at
            if self._unreported > self._limits.head_bytes:
                raise self._trailers_too_large()
            self._steps += 1
            self.start = stop if self.complete else max(self.start, stop - len(_END) + 1)
        return self.complete

    # The parser calls these

    def on_url(self, url: bytes) -> None:
        if len(self.url) + len(url) > self._limits.url_bytes:
            raise self._refuse(UrlTooLong, f"its URL is over {self._limits.url_bytes} bytes")
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:
            if len(self.headers) >= self._limits.head_lines:
                raise self._refuse(HeadTooLarge, f"over {self._limits.head_lines} headers")
            self.headers.append((name.lower(), value.rstrip(b" \t")))
        else:
            self._steps += 1
            self._trailers += len(name) + len(value) + 4
            if self._trailers > self._limits.head_bytes:
                raise self._trailers_too_large()

    def on_headers_complete(self) -> None:
        self.method = self.parser.get_method()
        self.version = self.parser.get_http_version()
        if self.version not in _VERSIONS:
            raise self._refuse(BadRequest, f"HTTP/{self.version} is not supported; use HTTP/1.1")
        self.keep_alive = self.version == "1.1" and self.parser.should_keep_alive()
        self._in_head = False

    def on_body(self, body: bytes) -> None:
        self._steps += 1
        if self._is_whole:
            self.piece = body
        elif self._into is not None:
            self._into += body

    def on_message_complete(self) -> None:
        self.complete = True

    # Inside

    def _feed(self, stop: int) -> None:
        try:
            self.parser.feed_data(memoryview(self._data)[self.at : stop])
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade()
        except httptools.HttpParserError as error:
            if self._refusal is not None:
                raise self._refusal from None
            raise BadRequest(f"request: invalid HTTP: {error}", field="request") from None
        self.at = stop

    def _ignore_upgrade(self) -> None:
        """Go on with the request of a client that offers another protocol. The parser would skip its body."""
        url, headers = self.url, self.headers
        method, version, keep_alive = self.method, self.version, self.keep_alive
        lines = b"".join(b"%b: %b\r\n" % header for header in headers if header[0] in _FRAMING)
        self.complete = False
        self._in_head = True
        self.url, self.headers = b"", []
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % lines)
        self.url, self.headers = url, headers
        self.method, self.version, self.keep_alive = method, version, keep_alive

    def _trailers_too_large(self) -> MiniQError:
        return self._refuse(HeadTooLarge, f"its trailers are over {self._limits.head_bytes} bytes")

    def _refuse(self, kind: type[MiniQError], text: str) -> MiniQError:
        """The error for a request. The parser wraps what its callbacks raise, so it is kept."""
        self._refusal = kind(f"request: {text}", field="request")
        return self._refusal
