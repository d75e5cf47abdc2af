"""The fast lane: hot calls answered straight from the HTTP parser, without ASGI.

It is a uvicorn protocol on top of uvicorn's own httptools protocol. Other requests, and requests that arrive while
another one of their connection is being answered, take the ordinary lane (`app.py`). Both lanes read requests and write
replies with the same functions.

Clients repeat themselves: the request line and headers of a hot request are parsed into a `Head` once
(`request_head.py`), and recognised by their bytes from then on.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from miniq.api import codec, shapes
from miniq.api.codec import MSGPACK, PROBLEM
from miniq.broker import Broker
from miniq.errors import BadRequest
from miniq.message import JSON
from miniq.server.busy_poll import BusyPoll
from miniq.server.http.app import (
    error_headers,
    too_large,
)
from miniq.server.http.guard import ID, Guard, log, log_answer, next_number
from miniq.server.http.request_head import Head, read_head
from miniq.server.operations import fault, give_back, run, start

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_END = b"\r\n\r\n"
_UPDATE = b"UPDATE /messages/"
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_MEDIA = {"json": JSON.encode(), "msgpack": MSGPACK.encode()}
_PROBLEM = PROBLEM.encode()
MAX_HEADS, MAX_HEAD_BYTES = 1024, 1024
"""How many heads are cached, and the size of the largest."""
READ_TIMEOUT = 120.0
"""Seconds that a request may take to arrive."""


class _NoEvent:
    """Takes the place of the event by which uvicorn wakes a request's task."""

    def set(self) -> None:
        pass


class HotCycle:
    """A hot request and its reply; uvicorn treats it like its own `RequestResponseCycle`."""

    response_complete = False
    disconnected = False
    more_body = False
    message_event = _NoEvent()
    task: asyncio.Task[Any] | None = None
    size = 0

    def __init__(self, head: Head, lane: FastLane) -> None:
        self.head = head
        self.lane = lane
        self.keep_alive = head.keep_alive
        self.began = perf_counter()
        self.id = head.id or ID % next_number()


class FastLane(HttpToolsProtocol):
    """A connection. uvicorn calls it like its own protocol, with the arguments in `uvicorn`."""

    def __init__(
        self,
        broker: Broker,
        max_request: int,
        guard: Guard,
        busy_poll: BusyPoll,
        heads: dict[bytes, Head],
        **uvicorn: Any,
    ) -> None:
        super().__init__(**uvicorn)
        self.broker = broker
        self.max_request = max_request
        self.guard = guard
        self.busy_poll = busy_poll
        self.heads = heads
        """Cache of heads, shared by all connections."""
        self.eager = broker.eager
        self.logs_replies = log.isEnabledFor(logging.DEBUG)
        self._asgi_cycle: Any = None
        """The request that Starlette is answering."""
        self._hot: HotCycle | None = None
        """The hot request that is being read."""
        self._parts: list[bytes] = []
        """The pieces of its body so far."""
        self._head_bytes = b""
        """Request line and headers of the latest request, if they arrived in one piece."""
        self._head: Head | None = None
        """The cached head for these bytes."""
        self._unparsed = b""
        """`_head_bytes` while the parser reads them."""
        self._idle_since = 0.0
        """When the last reply was written; 0 while a request is being read or answered."""
        self._reading_since = 0.0
        """When the first byte of the current request arrived; 0 if none is being read."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._check_timeouts_in(self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        if not self._reading_since and (self.cycle is None or self.cycle.response_complete):
            head = self._head
            if head is None or not data.startswith(self._head_bytes):
                head = self._recall(data)
            if head is not None and head.length == len(data) - len(self._head_bytes):
                self._idle_since = 0.0
                self.cycle = hot = HotCycle(head, self)  # type: ignore[assignment]
                self._call(hot, data[len(self._head_bytes) :])
                return
            if data.startswith(_UPDATE):
                # The parser does not know the method UPDATE of the short routes, which treat it like PATCH.
                data = b"PATCH" + data[len(b"UPDATE") :]
            elif _UPGRADE.search(self._head_bytes):
                # An offer to upgrade the protocol may be ignored, but it makes the parser skip the body.
                data = _UPGRADE.sub(b"\r\nx-upgrade:", self._head_bytes) + data[len(self._head_bytes) :]
            self._unparsed = self._head_bytes
        super().data_received(data)

    # The parser calls these

    def on_message_begin(self) -> None:
        self._reading_since = self.loop.time()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._hot = None

    def on_headers_complete(self) -> None:
        self._idle_since = 0.0
        if self.parser.should_upgrade():  # the header came in pieces, or in a pipelined request
            raise BadRequest(
                "request: upgrading the protocol is not supported; omit the header Upgrade", field="request"
            )
        cycle: Any = self.cycle
        if cycle is None or cycle.response_complete:
            head = self._match()
            if head is not None:
                self._hot = hot = HotCycle(head, self)
                hot.more_body = True
                self._parts = []
                self.cycle = hot  # type: ignore[assignment]
                if head.length > self.max_request:
                    self.refuse(hot, too_large(head.length, self.max_request))
                elif self.expect_100_continue:
                    self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return
        # Now do what uvicorn does at the beginning of a message: hot requests do not need it.
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
        if hot.response_complete:
            return  # read and discard the rest: a client that is cut off while it writes may never see the reply
        hot.size += len(body)
        if hot.size <= self.max_request:
            self._parts.append(body)
        else:
            self._parts.clear()
            self.refuse(hot, too_large(hot.size, self.max_request))

    def on_message_complete(self) -> None:
        self._reading_since = 0.0
        if self._idle_since:  # it was answered before it had arrived completely
            self._idle_since = self.loop.time()
        hot = self._hot
        if hot is None:
            super().on_message_complete()
            return
        self._hot = None
        hot.more_body = False
        if not hot.response_complete:
            parts, self._parts = self._parts, []
            self._call(hot, parts[0] if len(parts) == 1 else b"".join(parts))

    # uvicorn calls these

    def connection_lost(self, exc: Exception | None) -> None:
        cycle: Any = self.cycle
        if isinstance(cycle, HotCycle) and cycle.task is not None and cycle.head.operation.name == "receive":
            cycle.task.cancel()  # nobody would get the messages; a send or an ack continues
        asgi_cycle, self._asgi_cycle = self._asgi_cycle, None
        if asgi_cycle is not None:
            # uvicorn tells only the newest request of a pipeline; this one is running and would write its reply.
            asgi_cycle.disconnected = True
            asgi_cycle.message_event.set()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._asgi_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """Stop reading requests of a client that does not read its replies."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.pipeline:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with a problem too, and close the connection."""
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # The previous request is answered first, and that is the last reply.
            cycle.keep_alive = False
            self._reading_since = 0.0
            self.flow.pause_reading()
            return
        raised = sys.exception()  # the parser wraps what the callbacks above raise
        error = raised.__context__ if raised is not None else None
        if not isinstance(error, BadRequest):
            error = BadRequest(f"request: {msg}", field="request")
        body = codec.encode_json(codec.problem(error))
        lines = b"content-type: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        head = lines % (_PROBLEM, ID % next_number(), len(body))
        self.transport.write(_STATUS_LINES[400] + head + body)
        self.transport.close()

    # Calls

    def _call(self, hot: HotCycle, raw: bytes) -> None:
        """Make the call of a complete request. A lone plain message goes to the intake."""
        if self.busy_poll.last is not None:
            self.busy_poll.asked(self)
        head, broker = hot.head, self.broker
        try:
            if head.violation is not None:
                head.violation.check(broker.keys)
            if not broker.keys.open:
                broker.keys.check(head.secret, head.operation.right, head.queue)
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

    def _recall(self, data: bytes) -> Head | None:
        """The cached head that a request begins with."""
        end = data.find(_END)
        self._head_bytes = data[: end + len(_END)] if end >= 0 else b""
        self._head = self.heads.get(self._head_bytes)
        return self._head

    def _match(self) -> Head | None:
        """The head that was parsed, None if the request is not hot."""
        raw, self._unparsed = self._unparsed, b""  # pipelined requests in the same piece have other headers
        if raw and self._head is not None:
            return self._head  # cached, but the body arrives later
        parser = self.parser
        keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        head = read_head(parser.get_method(), self.url, self.headers, keep_alive, self.guard)
        if head is None:
            return None
        # The parser skips empty lines, so the head of what begins with one does not end where it seems to.
        if (
            raw.startswith(b"POST ")
            and len(raw) <= MAX_HEAD_BYTES
            and 0 <= head.length <= self.max_request
            and not self.expect_100_continue
            # These are likely to come again, and mean the same then.
            and head.keep_alive
            and (head.call, head.id, head.trace) == (None, None, None)
        ):
            if len(self.heads) >= MAX_HEADS:
                self.heads.clear()
            self.heads[raw] = head
        return head

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

    def refuse(self, hot: HotCycle, error: Exception) -> None:
        shown = fault(hot.head.operation.name, error, hot.id)
        self.broker.metrics.errors["http", shown.code] += 1
        problem = codec.problem(shown)
        extra = b"".join(b"%b: %b\r\n" % (name.encode(), value.encode()) for name, value in error_headers(problem))
        self.write(hot, problem.status, self.reply_head(problem.status, _PROBLEM), codec.encode_json(problem), extra)

    def write(self, hot: HotCycle, status: int, head: bytes, body: bytes, extra: bytes = b"") -> None:
        """Answer a request that has no reply yet; `head` is from `reply_head`."""
        if hot.response_complete:
            return
        hot.response_complete = True
        if self.logs_replies:
            path = hot.head.operation.path.replace("{queue}", hot.head.queue)
            log_answer("POST", path, status, hot.began, hot.id)
        transport = self.transport
        if transport.is_closing():
            return
        if not hot.keep_alive:
            extra += b"connection: close\r\n"
        transport.write(
            b"%b%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n%b" % (head, extra, hot.id, len(body), body)
        )
        if not hot.keep_alive:
            transport.close()
        elif self.pipeline:
            self.on_response_complete()
        else:
            self._idle_since = self.loop.time()

    def reply_head(self, status: int, media: bytes) -> bytes:
        """Status line and common headers of a reply; cached until uvicorn updates the date in them."""
        defaults = self.server_state.default_headers
        cached = _reply_heads.get((status, media))
        if cached is None or cached[0] is not defaults:
            lines = b"".join([b"%b: %b\r\n" % line for line in defaults])
            cached = (defaults, b"%b%bcontent-type: %b\r\n" % (_STATUS_LINES[status], lines, media))
            _reply_heads[status, media] = cached
        return cached[1]

    # A connection is closed that is idle for too long, or whose request takes too long to arrive. A timer per request
    # would cost more than the rest of the request, so each connection has one timer that checks both.

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._idle_since = self.loop.time()

    def _unset_keepalive_if_required(self) -> None:
        """Keep the timer when bytes arrive: they may not begin a request."""

    def _check_timeouts_in(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.is_closing():
            return
        now = self.loop.time()
        left: float = self.timeout_keep_alive
        if self._reading_since:
            left = self._reading_since + READ_TIMEOUT - now
        elif self._idle_since:
            left += self._idle_since - now
        if left > 0:
            self._check_timeouts_in(min(left, self.timeout_keep_alive))
        else:
            super().timeout_keep_alive_handler()


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
