"""The request line and headers of a hot request: which call, on which queue, by whom, in which format."""

from __future__ import annotations

import re

from msgspec import Struct

from miniq.api import codec
from miniq.api.plain import LONE, Lone, SendReader
from miniq.errors import WrongMedia
from miniq.message import JSON, PlainDrafts
from miniq.server.http.app import is_arrow, prepare, reply_format, request_format, trace_context
from miniq.server.http.guard import Guard, Violation, given_id
from miniq.server.http.request_reader import RequestReader
from miniq.server.operations import OPERATIONS, READERS, Operation, Request, bearer

_HOT = {operation.path.rpartition("/")[2].encode(): operation for operation in OPERATIONS if operation.hot}
_PREFIX = b"/v1/queues/"
_NOT_PLAIN = re.compile(rb"[%?#]")
_NO_QUERY: dict[str, str] = {}
_SENDS = SendReader()


class Head(Struct, frozen=True):
    """The request line and headers of a hot request, parsed."""

    operation: Operation
    queue: str
    keep_alive: bool
    content_type: str
    secret: str | None
    call: str | None
    id: bytes | None
    """The caller's request id."""
    violation: Violation | None
    trace: dict[str, str] | None
    length: int
    """Bytes of the body; -1 if the headers do not say."""
    format: codec.Format | None
    """Format of the body; None if it is Arrow or not supported."""
    out: codec.Format
    """Format of the reply."""
    out_empty: codec.Format
    """Format of the reply if the body is empty, which is taken for JSON."""
    lone: Lone | None
    """For a send, the reader of a lone plain message."""

    def request(self, raw: bytes, lone_body: bytes | None) -> Request:
        """The request with this head and the body `raw`; `lone_body` if that is a lone plain message."""
        path, format = {"queue": self.queue}, self.format
        request = Request(path, _NO_QUERY, None, format or "json", self.secret, self.call, self.out, self.trace)
        if not raw or format is None:
            request.format = "json"
            prepare(self.operation, request, raw, self.content_type)
        elif self.lone is None:
            request.body = READERS[self.operation.name].read(raw, format)
        elif lone_body is None:
            request.body = _SENDS.read_other(raw, format)
        else:
            request.body = PlainDrafts([lone_body], self.lone.content_type)
        return request


def read_head(reader: RequestReader, guard: Guard) -> Head | None:
    """The head that was read, None if the request is not hot."""
    method, url, fields = reader.method, reader.url, reader.fields
    if not url.startswith(_PREFIX) or method != b"POST":
        return None
    queue, _, call = url[len(_PREFIX) :].partition(b"/")
    operation = _HOT.get(call)
    if operation is None or _NOT_PLAIN.search(queue):
        return None
    content_type = fields.get("content-type", "")
    format: codec.Format | None = "json"
    if content_type not in ("", JSON):
        try:
            format = None if is_arrow(content_type) else request_format(content_type)
        except WrongMedia:
            format = None
    length = int(fields["content-length"]) if "content-length" in fields else -1
    accept, body_format = fields.get("accept", ""), format or "json"
    return Head(
        operation,
        queue.decode("latin-1"),
        reader.keep_alive,
        content_type,
        bearer(fields["authorization"]) if "authorization" in fields else None,
        fields.get("idempotency-key"),
        given_id(fields["x-request-id"]) if "x-request-id" in fields else None,
        guard.violation(fields, reader.headers, is_safe=False),
        trace_context(fields) if "traceparent" in fields or "tracestate" in fields else None,
        length,
        format,
        reply_format(accept, body_format) if accept else body_format,
        reply_format(accept, "json") if accept else "json",
        LONE[format] if operation.name == "send" and format is not None else None,
    )
