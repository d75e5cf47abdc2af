"""The fast lane: the hot calls answered straight from the HTTP parser, with no ASGI in between.

It is a protocol for uvicorn on top of its own httptools protocol. A request that is not hot, or that comes
while another one of its connection is still being answered, takes the ordinary way. Both lanes read requests
and write answers with the same functions.
"""

from __future__ import annotations

import asyncio
import contextlib
from http import HTTPStatus
from time import perf_counter
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from miniq.broker import Broker
from miniq.errors import BadRequest, Closed, MiniQError
from miniq.message import JSON, Lease
from miniq.wire import codec, shapes
from miniq.wire.codec import MSGPACK, PROBLEM
from miniq.wire.http import fault, prepare, reply_format, request_format, too_large
from miniq.wire.operations import OPERATIONS, Operation, Request, authorise, bearer

_HOT = {operation.path.rpartition("/")[2].encode(): operation for operation in OPERATIONS if operation.hot}
_PREFIX = b"/v1/queues/"
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_UPDATE = b"UPDATE /messages/"
_NO_QUERY: dict[str, str] = {}


class _HotCycle:
    """One hot request and its answer; to uvicorn it looks like a request that is being answered."""

    __slots__ = (
        "accept",
        "authorization",
        "began",
        "body",
        "call",
        "content_type",
        "disconnected",
        "keep_alive",
        "message_event",
        "more_body",
        "operation",
        "queue",
        "response_complete",
        "size",
        "task",
    )

    def __init__(self, operation: Operation, queue: str, keep_alive: bool) -> None:
        self.operation = operation
        self.queue = queue
        self.keep_alive = keep_alive
        self.body: list[bytes] = []
        self.size = 0
        self.began = perf_counter()
        self.content_type = ""
        self.accept = ""
        self.authorization: str | None = None
        self.call: str | None = None
        self.response_complete = False
        self.disconnected = False
        self.more_body = True
        self.message_event = _NOBODY
        self.task: asyncio.Task[Any] | None = None


class _Nobody:
    """Stands where uvicorn would wake a task."""

    def set(self) -> None:
        pass


_NOBODY = _Nobody()


def fast_lane(broker: Broker, max_request: int) -> type[asyncio.Protocol]:
    """The protocol class for the connections of a broker."""

    class FastLane(_FastLane):
        def __init__(
            self,
            config: Config,
            server_state: ServerState,
            app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> None:
            super().__init__(config, server_state, app_state, _loop)
            self.broker = broker
            self.max_request = max_request

    return FastLane


class _FastLane(HttpToolsProtocol):
    broker: Broker
    max_request: int

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._hot: _HotCycle | None = None
        """The hot request that is being read."""

    def data_received(self, data: bytes) -> None:
        if data.startswith(_UPDATE) and (self.cycle is None or self.cycle.response_complete):
            # The parser knows no method UPDATE, which the short routes promise: to them it is PATCH.
            data = b"PATCH" + data[len(b"UPDATE") :]
        super().data_received(data)

    # The parser calls these

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._hot = None

    def on_headers_complete(self) -> None:
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            hot = self._match()
            if hot is not None:
                self._hot = hot
                self.cycle = hot  # type: ignore[assignment]
                if self.expect_100_continue:
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
        # What uvicorn prepares at the beginning of a message is made only now, for those who need it.
        headers, url, expect = self.headers, self.url, self.expect_100_continue
        super().on_message_begin()
        self.url, self.expect_100_continue = url, expect
        self.headers.extend(headers)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        hot = self._hot
        if hot is None:
            super().on_body(body)
            return
        hot.size += len(body)
        if hot.size <= self.max_request:
            hot.body.append(body)
        elif not hot.response_complete:
            hot.body.clear()
            hot.keep_alive = False
            self._refuse(hot, too_large(hot.size, self.max_request))

    def on_message_complete(self) -> None:
        hot = self._hot
        if hot is None:
            super().on_message_complete()
            return
        self._hot = None
        if hot.response_complete:
            return
        try:
            operation = hot.operation
            content_type = hot.content_type
            raw = hot.body[0] if len(hot.body) == 1 else b"".join(hot.body)
            hot.body.clear()
            format = request_format(content_type) if raw else "json"
            request = Request({"queue": hot.queue}, _NO_QUERY, None, format, bearer(hot.authorization), hot.call)
            authorise(self.broker, operation, request)
            prepare(operation, request, raw, content_type)
        except Exception as error:
            self._refuse(hot, error)
            return
        out = reply_format(hot.accept, format)
        request.out = out
        hot.task = self.loop.create_task(operation.run(self.broker, request))  # type: ignore[arg-type]
        hot.task.add_done_callback(lambda task: self._done(hot, task, out))

    def connection_lost(self, exc: Exception | None) -> None:
        cycle: Any = self.cycle
        if isinstance(cycle, _HotCycle) and cycle.task is not None and cycle.operation.name == "receive":
            # Nobody is there to take the messages. A send or an ack goes on: it may be confirmed otherwise.
            cycle.task.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets a problem too, and the connection is closed."""
        body = codec.encode_json(codec.problem(BadRequest(f"request: {msg}", field="request")))
        head = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (PROBLEM.encode(), len(body))
        self.transport.write(_LINES[400] + head + body)
        self.transport.close()

    # Inside

    def _match(self) -> _HotCycle | None:
        """The hot request that these headers begin, None if they begin another."""
        url = self.url
        if not url.startswith(_PREFIX) or self.parser.get_method() != b"POST":
            return None
        queue, _, call = url[len(_PREFIX) :].partition(b"/")
        operation = _HOT.get(call)
        if operation is None or b"%" in queue:
            return None
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        hot = _HotCycle(operation, queue.decode("latin-1"), keep_alive)
        for name, value in self.headers:
            if name == b"content-type":
                hot.content_type = value.decode("latin-1")
            elif name == b"accept":
                hot.accept = value.decode("latin-1")
            elif name == b"authorization":
                hot.authorization = value.decode("latin-1")
            elif name == b"idempotency-key":
                hot.call = value.decode("latin-1")
            elif name == b"upgrade":
                return None
        return hot

    def _done(self, hot: _HotCycle, task: asyncio.Task[Any], out: codec.Format) -> None:
        """The call is answered: so is the request."""
        hot.task = None
        if task.cancelled():
            self._refuse(hot, Closed("the broker is closing"))
            return
        error = task.exception()
        if error is not None:
            self._refuse(hot, error if isinstance(error, Exception) else Closed("the broker is closing"))
            return
        reply = task.result()
        operation = hot.operation
        if self.transport.is_closing() and operation.name == "receive" and reply.messages:
            self._give_back(hot.queue, reply)
        self.broker.metrics.call("http", operation.name, self.broker.known(hot.queue), perf_counter() - hot.began)
        self._write(hot, operation.status, codec.encode(reply, out), JSON if out == "json" else MSGPACK)

    def _give_back(self, queue: str, reply: shapes.MessagesReply) -> None:
        """Messages were leased for a connection that is gone: they need not wait for their timeout."""
        leases = [Lease(message.id, message.receipt) for message in reply.messages if message.receipt]
        if leases:
            task = self.loop.create_task(_quietly(self.broker, queue, leases))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def _refuse(self, hot: _HotCycle, error: Exception) -> None:
        ours = fault(hot.operation.name, error)
        self.broker.metrics.errors["http", ours.code] += 1
        found = codec.problem(ours)
        extra = b""
        if found.status == 503:
            extra = b"retry-after: 1\r\n"
        elif found.status == 401:
            extra = b"www-authenticate: Bearer\r\n"
        self._write(hot, found.status, codec.encode_json(found), PROBLEM, extra)

    def _write(self, hot: _HotCycle, status: int, body: bytes, media: str, extra: bytes = b"") -> None:
        if hot.response_complete:
            return
        hot.response_complete = True
        transport = self.transport
        if not transport.is_closing():
            head = [_LINES[status]]
            for name, value in self.server_state.default_headers:
                head += (name, b": ", value, b"\r\n")
            head.append(b"content-type: %b\r\ncontent-length: %d\r\n%b" % (media.encode(), len(body), extra))
            if not hot.keep_alive:
                head.append(b"connection: close\r\n")
            head += (b"\r\n", body)
            transport.write(b"".join(head))
            if not hot.keep_alive:
                transport.close()
        self.on_response_complete()


async def _quietly(broker: Broker, queue: str, leases: list[Lease]) -> None:
    with contextlib.suppress(MiniQError):
        await broker.release(queue, leases)
