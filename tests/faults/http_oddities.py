"""Unusual and bad heads of HTTP requests."""

from __future__ import annotations

from tests.faults import predictable

HARMLESS = [
    b"accept: application/msgpack", b"accept: */*", b"accept: application/json", b"idempotency-key: one",
    b"idempotency-key: two", b"idempotency-key: " + b"x" * 300, b"x-request-id: mine", b"x-request-id: not mine",
    b"origin: http://evil.example", b"origin: http://x", b"origin: null", b"sec-fetch-site: cross-site",
    b"authorization: Basic eDp5", b"authorization: Bearer nonsense", b"authorization: bearer",
    b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"x: \xff\xfe", b"x:", b"cookie: a=b",
    b"content-encoding: gzip", b"content-encoding: identity", b"user-agent: curl/8", b"te: trailers",
    b"range: bytes=0-3", b"if-none-match: *", b"x-http-method-override: DELETE", b"x-forwarded-for: 1.2.3.4",
    b"content-type: application/json", b"connection: keep-alive",
]  # fmt: skip
"""Headers that may be added to any request; some change what it means."""

ODD: list[tuple[str, bytes, tuple[bytes, ...], bytes, bool | None]] = [
    ("connection: close", b"", (b"connection: close",), b"", True),
    ("Connection: Close", b"", (b"Connection: foo, Close",), b"", True),
    ("HTTP/1.0", b"HTTP/1.0", (), b"", True),
    ("HTTP/1.0 keep-alive", b"HTTP/1.0", (b"connection: keep-alive",), b"", None),
    ("empty lines before", b"", (), b"\r\n\r\n", False),
    ("upgrade", b"", (b"connection: upgrade", b"upgrade: h2c"), b"", None),
    ("upgrade websocket", b"", (b"Connection: Upgrade", b"Upgrade: websocket", b"sec-websocket-key: x"), b"", None),
    ("upgrade without connection", b"", (b"upgrade: h2c",), b"", False),
    ("host twice", b"", (b"host: x", b"host: a.example.com"), b"", None),
    ("host twice the same", b"", (b"host: x", b"host: x"), b"", None),
    ("empty host", b"", (b"host:",), b"", None),
    ("origin twice", b"", (b"origin: http://x", b"origin: http://evil.example"), b"", None),
    (
        "authorization twice",
        b"",
        tuple(b"authorization: Bearer " + predictable.secret(n).encode() for n in (1, 4)),
        b"",
        None,
    ),
    (
        "authorization twice, wrong first",
        b"",
        (b"authorization: Bearer no", b"authorization: Bearer " + predictable.secret(1).encode()),
        b"",
        None,
    ),
    ("content-type twice", b"", (b"content-type: text/csv", b"content-type: application/json"), b"", None),
    ("accept twice", b"", (b"accept: application/json", b"accept: application/msgpack"), b"", None),
    ("idempotency-key twice", b"", (b"idempotency-key: one", b"idempotency-key: two"), b"", None),
    ("expect twice", b"", (b"expect: 100-continue", b"expect: 100-continue"), b"", None),
    ("expect something", b"", (b"expect: 200-maybe",), b"", None),
    ("folded header", b"", (b"x: a", b" b"), b"", None),
    ("90 headers", b"", tuple(b"x-%d: y" % number for number in range(90)), b"", False),
    ("large header", b"", (b"x: " + b"y" * 2000,), b"", False),
    ("long host", b"", (b"host: " + b"y" * 2000,), b"", None),
    ("many empty lines before", b"", (), b"\r\n" * 3000, None),
    ("keep-alive header", b"", (b"connection: keep-alive", b"keep-alive: timeout=5"), b"", False),
    ("empty content-length list", b"", (b"connection: ,",), b"", None),
]
"""Label, version if not 1.1, headers in front, bytes before the request, and whether the connection ends with it."""

_SEND = b"POST /v1/queues/q/messages HTTP/1.1"
BAD: list[tuple[str, bytes, tuple[bytes, ...], bytes]] = [
    ("method", b"BREW /v1/queues/q HTTP/1.1", (), b""),
    ("lower-case method", b"post /v1/queues/q/messages HTTP/1.1", (b"content-length: 10",), b'{"body":1}'),
    ("version", b"GET /health HTTP/9.9", (), b""),
    ("version 2", b"PRI * HTTP/2.0", (), b""),
    ("line", b"GET", (), b""),
    ("spaces in the target", b"GET /hea lth HTTP/1.1", (), b""),
    ("header without a colon", _SEND, (b"content-length: 10", b"nonsense"), b'{"body":1}'),
    ("space before the colon", _SEND, (b"content-length : 10",), b'{"body":1}'),
    ("NUL in a header", _SEND, (b"content-length: 10", b"x: a\x00b"), b'{"body":1}'),
    ("CR in a header", _SEND, (b"content-length: 10", b"x: a\rb"), b'{"body":1}'),
    ("name of a header", _SEND, (b"content-length: 10", b"x y: ab"), b'{"body":1}'),
    ("two lengths", _SEND, (b"content-length: 10", b"content-length: 11"), b'{"body":1}'),
    ("two equal lengths", _SEND, (b"content-length: 10", b"content-length: 10"), b'{"body":1}'),
    ("length with a sign", _SEND, (b"content-length: +10",), b'{"body":1}'),
    ("negative length", _SEND, (b"content-length: -1",), b'{"body":1}'),
    ("length in hexadecimal", _SEND, (b"content-length: 0xa",), b'{"body":1}'),
    ("length with a space", _SEND, (b"content-length: 1 0",), b'{"body":1}'),
    ("list of lengths", _SEND, (b"content-length: 10, 10",), b'{"body":1}'),
    ("length that overflows", _SEND, (b"content-length: 99999999999999999999999",), b'{"body":1}'),
    ("length and chunks", _SEND, (b"content-length: 10", b"transfer-encoding: chunked"), b"0\r\n\r\n"),
    ("chunks and length", _SEND, (b"transfer-encoding: chunked", b"content-length: 10"), b"0\r\n\r\n"),
    ("transfer encoding", _SEND, (b"transfer-encoding: gzip",), b"0\r\n\r\n"),
    ("transfer encoding identity", _SEND, (b"transfer-encoding: identity",), b"0\r\n\r\n"),
    ("chunked not last", _SEND, (b"transfer-encoding: chunked, gzip",), b"0\r\n\r\n"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01", (), b""),
]  # fmt: skip
"""Label, request line, headers and body; the connection ends with each."""
