"""What the first line and the headers of a hot request say: which call, on which queue, for whom, in which format.

The same bytes always say the same, so what was read once need not be read again where they come again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from miniq.api import codec
from miniq.api.plain import LONE, Lone, SendReader
from miniq.broker.keyring import KeyRing
from miniq.errors import WrongMedia
from miniq.message import JSON, PlainDrafts
from miniq.server.http.app import is_arrow, prepare, reply_format, request_format, traced
from miniq.server.http.guard import Doubt, Guard, given_id
from miniq.server.operations import OPERATIONS, READERS, Operation, Request, bearer

_HOT = {operation.path.rpartition("/")[2].encode(): operation for operation in OPERATIONS if operation.hot}
_PREFIX = b"/v1/queues/"
_NO_QUERY: dict[str, str] = {}
_SENDS = SendReader()


class Head(Struct, frozen=True):
    """What the first line and the headers of a hot request say."""

    operation: Operation
    queue: str
    keep_alive: bool
    content_type: str
    secret: str | None
    call: str | None
    id: bytes | None
    """Which the caller gave to its request."""
    doubt: Doubt | None
    trace: dict[str, str] | None
    length: int
    """How many bytes follow; -1 if the headers do not say."""
    format: codec.Format | None
    """In which format its body is, None if that has to be looked at: an Arrow stream, or nothing known here."""
    out: codec.Format
    """In which format to answer."""
    lone: Lone | None
    """Of a send, how a lone plain message is read."""

    def check(self, keys: KeyRing) -> None:
        """Raise unless the caller may make this call."""
        if self.doubt is not None:
            self.doubt.check(keys)
        keys.check(self.secret, self.operation.right, self.queue)

    def request(self, raw: bytes, lone: bytes | None) -> Request:
        """The request that these headers begin and `raw` ends; `lone` is the body of the one plain message in it."""
        format, name = self.format, self.operation.name
        request = Request(
            {"queue": self.queue},
            _NO_QUERY,
            None,
            format or "json",
            secret=self.secret,
            call=self.call,
            out=self.out,
            trace=self.trace,
        )
        if not raw or format is None:
            request.format = request_format(self.content_type) if raw else "json"
            prepare(self.operation, request, raw, self.content_type)
        elif self.lone is None:
            request.body = READERS[name].read(raw, format)
        elif lone is None:
            request.body = _SENDS.read_other(raw, format)
        else:
            request.body = PlainDrafts([lone], self.lone.content_type)
        return request


def read_head(
    method: bytes, url: bytes, headers: Sequence[tuple[bytes, bytes]], keep_alive: bool, guard: Guard
) -> Head | None:
    """What these headers say if they begin a hot request, None if they begin another."""
    if not url.startswith(_PREFIX) or method != b"POST":
        return None
    queue, _, call = url[len(_PREFIX) :].partition(b"/")
    operation = _HOT.get(call)
    if operation is None or b"%" in queue:
        return None
    said = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(headers)}
    kind = said.get("content-type", "")
    format: codec.Format | None = "json"
    if kind not in ("", JSON):
        try:
            format = None if is_arrow(kind) else request_format(kind)
        except WrongMedia:
            format = None
    length = int(said["content-length"]) if "content-length" in said else -1
    asked = (format if length else None) or "json"
    return Head(
        operation,
        queue.decode("latin-1"),
        keep_alive,
        kind,
        bearer(said["authorization"]) if "authorization" in said else None,
        said.get("idempotency-key"),
        given_id(said["x-request-id"]) if "x-request-id" in said else None,
        guard.usual(said),
        traced(said) if "traceparent" in said or "tracestate" in said else None,
        length,
        format,
        reply_format(said["accept"], asked) if "accept" in said else asked,
        LONE[format] if operation.name == "send" and format is not None else None,
    )
