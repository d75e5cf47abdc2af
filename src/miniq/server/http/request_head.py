"""What the first line and the headers of a hot request say: which call, on which queue, for whom, in which format.

The same bytes always say the same, so what was read once need not be read again where they come again.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from miniq.api import codec
from miniq.broker import Broker
from miniq.errors import WrongMedia
from miniq.server.http.app import is_arrow, reply_format, request_format, traced
from miniq.server.http.guard import Doubt, Guard, given_id
from miniq.server.operations import OPERATIONS, Operation, Request, authorise, bearer

_HOT = {operation.path.rpartition("/")[2].encode(): operation for operation in OPERATIONS if operation.hot}
_PREFIX = b"/v1/queues/"
_NO_QUERY: dict[str, str] = {}


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
    format: codec.Format
    """In which format it came."""
    out: codec.Format
    """In which format to answer."""
    single: bool
    """Whether it may be a message that can be sent together with those of others."""

    def admit(self, broker: Broker) -> Request:
        """The request that these headers begin, without its body; raises unless its caller may make it."""
        if self.doubt is not None:
            self.doubt.check(broker.keys)
        request = Request({"queue": self.queue}, _NO_QUERY, None, self.format, self.secret, self.call)
        authorise(broker, self.operation, request)
        return request

    @property
    def repeats(self) -> bool:
        """Whether other requests are likely to begin with the same bytes, and these say all there is to know."""
        return self.length >= 0 and self.keep_alive and self.call is None and self.id is None and self.trace is None


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
    format = _format(kind)
    length = int(said["content-length"]) if "content-length" in said else -1
    return Head(
        operation,
        queue.decode("latin-1"),
        keep_alive,
        kind,
        bearer(said.get("authorization")),
        said.get("idempotency-key"),
        given_id(said.get("x-request-id")),
        guard.usual(said),
        traced(said),
        length,
        format or "json",
        reply_format(said.get("accept", ""), (format if length else None) or "json"),
        operation.name == "send" and format is not None and not is_arrow(kind),
    )


def _format(content_type: str) -> codec.Format | None:
    """In which format a request comes, None if that is not spoken here."""
    try:
        return request_format(content_type)
    except WrongMedia:
        return None
