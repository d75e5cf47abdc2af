"""Encodes calls as HTTP requests, by the table of operations. No I/O."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal
from urllib.parse import quote, urlencode

from miniq.api.messages import best_format
from miniq.api.operation import Call, Operation
from miniq.client.exchange import Exchange, encoded
from miniq.client.http.target import Target

_ACCEPT_ARROW = b"accept: application/vnd.apache.arrow.stream\r\n"
_HEADS: dict[Literal["json", "msgpack", "arrow"], bytes] = {
    "json": b"content-type: application/json\r\ncontent-length: %d\r\n\r\n",
    "msgpack": b"content-type: application/msgpack\r\naccept: application/json\r\ncontent-length: %d\r\n\r\n",
    "arrow": b"content-type: application/vnd.apache.arrow.stream\r\ncontent-length: %d\r\n\r\n",
}


class HttpExchange(Exchange):
    """One call over HTTP: the bytes to send."""

    __slots__ = ("_target", "body", "head")

    def __init__(self, target: Target, call: Call[Any]) -> None:
        self._target = target
        super().__init__(call, target.timeout)

    def write(self) -> None:
        target, operation, call = self._target, self.operation, self.call
        names = operation.path_values(call)
        try:
            line = _line(operation, target.prefix, *names)
        except TypeError:  # not hashable, therefore not a name
            operation.check_path(names)
            raise
        if operation.in_query and (query := operation.query_of(call)):
            line = b"%b?%b" % (line, urlencode(query, errors="replace").encode())
        head = b"%b HTTP/1.1\r\n%b" % (line, target.headers)
        if target.lines is not None:
            head += target.lines()
        if self.name is not None:
            head = b"%bidempotency-key: %b\r\n" % (head, self.name.encode())
        if self.is_table:
            head += _ACCEPT_ARROW
        self.body: bytes | memoryview = b""
        if operation.body is None:
            self.head = head + b"\r\n"
            return
        packed = operation.body.pack(call)
        if isinstance(packed, memoryview):
            self.head, self.body = head + _HEADS["arrow"] % len(packed), packed
            return
        format = best_format(packed)
        self.body = encoded(packed, format)
        self.head = head + _HEADS[format] % len(self.body)


@lru_cache(1024)
def _line(operation: Operation[Any], prefix: str, *values: Any) -> bytes:
    """Method and path of a request."""
    operation.check_path(values)
    path, *parts = operation.path.split("{")
    for value, part in zip(values, parts, strict=True):
        path += quote(str(value), safe="", errors="replace") + part.partition("}")[2]
    return f"{operation.method} {prefix}{path}".encode()
