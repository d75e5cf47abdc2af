"""The fast lane: hot calls answered straight from the HTTP parser, without ASGI.

Other requests take the ordinary lane (`app.py`). Both lanes read requests and write replies with the same functions.

Clients repeat themselves: the request line and headers of a hot request are parsed into a `Head` once
(`request_head.py`), and recognised by their bytes from then on. The caller's right and the declared size are checked
before a body is kept.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any

from msgspec.structs import replace

from miniq.api import codec, shapes
from miniq.api.codec import MSGPACK, PROBLEM
from miniq.broker import Broker
from miniq.errors import MiniQError
from miniq.message import JSON
from miniq.options import Limits
from miniq.server.busy_poll import BusyPoll
from miniq.server.http.app import error_headers, too_large
from miniq.server.http.connection import Connection
from miniq.server.http.cycle import Cycle, Request, bare
from miniq.server.http.guard import ID, NOSNIFF, Guard, log, log_answer, next_number
from miniq.server.http.load import Load
from miniq.server.http.request_head import Head, read_head
from miniq.server.operations import fault, give_back, run, start

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_END = b"\r\n\r\n"
_MEDIA = {"json": JSON.encode(), "msgpack": MSGPACK.encode()}
_PROBLEM = PROBLEM.encode()
MAX_HEADS, MAX_HEAD_BYTES = 1024, 1024
"""How many heads are cached, and the size of the largest."""


class HotCycle(Cycle):
    """A hot request and its reply."""

    task: asyncio.Task[Any] | None = None

    def __init__(self, head: Head, lane: FastLane) -> None:
        # All that `Cycle.__init__` sets, without a call: there is one for every hot request.
        self.id = head.id or ID % next_number()
        self.keep_alive = head.keep_alive
        self.began = perf_counter()
        self.body = bytearray()
        self.head = head
        self.lane = lane

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.head.operation.name

    @property
    def path(self) -> str:  # type: ignore[override]
        return self.head.operation.path.replace("{queue}", self.head.queue)


class FastLane(Connection):
    """A connection that answers hot calls itself. uvicorn makes it with the arguments in `uvicorn`."""

    def __init__(
        self,
        broker: Broker,
        limits: Limits,
        load: Load,
        guard: Guard,
        busy_poll: BusyPoll,
        heads: dict[bytes, Head],
        **uvicorn: Any,
    ) -> None:
        super().__init__(limits, load, **uvicorn)
        self.broker = broker
        self.guard = guard
        self.busy_poll = busy_poll
        self.heads = heads
        """Cache of heads, shared by all connections."""
        self.eager = broker.eager
        self.logs_replies = log.isEnabledFor(logging.DEBUG)
        self._head_bytes = b""
        """Request line and headers of the latest request with a cached head."""
        self._head: Head | None = None
        """Its head."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.broker.is_closing:  # uvicorn has told the others already
            self.shutdown()

    def data_received(self, data: bytes) -> None:
        if not self._reading_since and self.current is None and not self._is_last and not self._waiting:
            head = self._head
            if head is None or not data.startswith(self._head_bytes):
                head = self._recall_head(data)
            if head is not None and head.length == len(data) - len(self._head_bytes):
                self._idle_since = 0.0
                self.current = hot = HotCycle(head, self)
                self._call(hot, data[len(self._head_bytes) :])
                return
        self._received += len(data)
        if not self._is_last or self._reading is not None:
            self.reader.add(data)
        self.proceed()

    # The connection calls these

    def open(self) -> Request:
        reader = self.reader
        head = read_head(reader, self.guard)
        if head is None:
            return self.asgi_cycle()
        hot = HotCycle(head, self)
        hot.expects_continue = reader.expects_continue
        try:
            if head.violation is not None or not self.broker.keys.open:
                self._check(head)
            if head.length > self.limits.request_bytes:
                raise too_large(self.limits.request_bytes, head.length)
        except MiniQError as error:
            hot.error = bare(error)
        else:
            self._remember(head)
        return hot

    def carry_out(self, request: Cycle, raw: bytes) -> None:
        if isinstance(request, HotCycle):
            request.body = bytearray()
            self._call(request, raw)

    def reason(self, request: Cycle, error: MiniQError) -> MiniQError:
        if isinstance(request, HotCycle):
            try:
                self._check(request.head)
            except MiniQError as denied:
                return denied
        return error

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.busy_poll.last is self:
            self.busy_poll.last = None

    def abandon(self, request: Cycle) -> None:
        if isinstance(request, HotCycle) and request.task is not None and request.head.operation.name == "receive":
            request.task.cancel()  # no client would get the messages; a send or an ack continues

    # Calls

    def _check(self, head: Head) -> None:
        """Raise unless the caller may make the call."""
        if head.violation is not None:
            head.violation.check(self.broker.keys)
        if not self.broker.keys.open:
            self.broker.keys.check(head.secret, head.operation.right, head.queue)

    def _call(self, hot: HotCycle, raw: bytes) -> None:
        """Make the call of a complete request. A lone plain message goes to the intake."""
        if self.busy_poll.last is not None:
            self.busy_poll.asked(self)
        head, broker = hot.head, self.broker
        if not raw:
            hot.head = head = replace(head, out=head.out_empty)
        try:
            if head.violation is not None or not broker.keys.open:
                self._check(head)
            lone = head.lone
            body = None if lone is None else lone.read(raw)
            if (
                lone is not None
                and body is not None
                and broker.intake.add(head.queue, lone.content_type, body, head.call, head.secret, hot, _answer_sends)
            ):
                return
            call = run(broker, head.operation, head.request(raw, body))
        except Exception as error:
            self.refuse(hot, error)
            return
        hot.task = start(self.loop, call, partial(self._done, hot), eager=self.eager)

    def _recall_head(self, data: bytes) -> Head | None:
        """The cached head that a request begins with."""
        end = data.find(_END, 0, MAX_HEAD_BYTES)
        self._head_bytes = data[: end + len(_END)] if end >= 0 else b""
        self._head = self.heads.get(self._head_bytes)
        return self._head

    def _remember(self, head: Head) -> None:
        """Cache a head that is likely to come again, and means the same then."""
        if (
            len(self.reader.raw) <= MAX_HEAD_BYTES
            and 0 <= head.length <= self.limits.request_bytes
            and not self.reader.expects_continue
            and head.keep_alive
            and (head.call, head.id, head.trace) == (None, None, None)
        ):
            if len(self.heads) >= MAX_HEADS:
                self.heads.clear()
            self.heads[self.reader.raw] = head

    # Replies

    def _done(self, hot: HotCycle, reply: Any, error: Exception | None) -> None:
        """Answer a request with the result of its call."""
        hot.task = None
        if error is not None:
            self.refuse(hot, error)
            return
        broker, operation, queue, out = self.broker, hot.head.operation, hot.head.queue, hot.head.out
        if self.transport.is_closing() and operation.name == "receive":
            give_back(broker, queue, reply)
        broker.metrics.call("http", operation.name, queue, perf_counter() - hot.began)
        head = self.reply_head(operation.status, _MEDIA[out])
        self.write(hot, operation.status, head, codec.encode(reply, out))
        self.busy_poll.answered(self)

    def refuse(self, request: Cycle, error: Exception) -> None:
        shown = fault(request.name, error, request.id)
        self.broker.metrics.errors["http", shown.code] += 1
        problem = codec.problem(shown)
        extra = b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in error_headers(problem))
        head = self.reply_head(problem.status, _PROBLEM)
        self.write(request, problem.status, head, codec.encode_json(problem), extra)

    def write(self, request: Cycle, status: int, head: bytes, body: bytes, extra: bytes = b"") -> None:
        """Answer a request that has no reply yet; `head` is from `reply_head`."""
        if request.response_complete:
            return
        request.response_complete = True
        if self.logs_replies:
            log_answer("POST", request.path, status, request.began, request.id)
        transport = self.transport
        if transport.is_closing():
            return
        if not request.keep_alive:
            extra += b"connection: close\r\n"
        transport.write(
            b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (head, extra, request.id, len(body), body)
        )
        if not request.keep_alive:
            if request.error is None:
                self.close()
            else:
                self.linger()
        elif self._waiting or self._reading_since:
            self.finished()
        else:
            self.current = None
            self._idle_since = self.loop.time()
            self._received = 0  # a client that waits for its replies takes no turns
            if self._held:
                self._release()

    def reply_head(self, status: int, media: bytes) -> bytes:
        """Status line and common headers of a reply; cached until uvicorn updates the date in them."""
        defaults = self.server_state.default_headers
        cached = _reply_heads.get((status, media))
        if cached is None or cached[0] is not defaults:
            lines = b"".join([b"%b: %b\r\n" % line for line in [*defaults, NOSNIFF]])
            cached = (defaults, b"%b%bcontent-type: %b\r\n" % (_STATUS_LINES[status], lines, media))
            _reply_heads[status, media] = cached
        return cached[1]


_reply_heads: dict[tuple[int, bytes], tuple[list[tuple[bytes, bytes]], bytes]] = {}
"""By status and media type: the default headers it was made with, and the head."""


def _answer_sends(hots: list[HotCycle], answers: list[list[str]], error: Exception | None) -> None:
    """Answer the requests of one batch of the intake: its messages are on disk, or could not be sent."""
    if error is not None:
        for hot in hots:
            hot.lane.refuse(hot, error)
        return
    lane = hots[0].lane
    now = perf_counter()
    latency = lane.broker.metrics.latency("http", "send", hots[0].head.queue)
    latency.add_all([now - hot.began for hot in hots])
    format: codec.Format | None = None
    for hot, ids in zip(hots, answers, strict=True):
        if hot.head.out != format:
            format = hot.head.out
            head = lane.reply_head(201, _MEDIA[format])
            encode = codec.encode_json if format == "json" else codec.encode_msgpack
        hot.lane.write(hot, 201, head, encode(shapes.SentReply(ids)))
    if len(hots) == 1:
        lane.busy_poll.answered(lane)
