"""The fast lane: the hot calls answered straight from the HTTP parser, with no ASGI in between.

It is a protocol for uvicorn on top of its own httptools protocol. A request that is not hot, or that comes
while another one of its connection is still being answered, takes the ordinary way. Both lanes read requests
and write answers with the same functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
from functools import partial
from http import HTTPStatus
from time import perf_counter
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from miniq.api import codec, shapes
from miniq.api.codec import MSGPACK, PROBLEM
from miniq.broker import Broker
from miniq.broker.intake import begin
from miniq.errors import BadRequest, MiniQError
from miniq.message import JSON, Lease
from miniq.server.busy_poll import BusyPoll
from miniq.server.http.app import too_large
from miniq.server.http.guard import ID, Guard, log, log_answer, new_id, number
from miniq.server.http.request_head import Head, read_head
from miniq.server.operations import fault, run

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_END = b"\r\n\r\n"
_UPDATE = b"UPDATE /messages/"
_UPGRADE = re.compile(rb"\r\nupgrade[ \t]*:", re.IGNORECASE)
_JSON, _MSGPACK = JSON.encode(), MSGPACK.encode()
_PROBLEM = PROBLEM.encode()
KNOWN, KNOWN_BYTES = 1024, 1024
"""How many beginnings of requests are remembered, and how long each may be."""


class HotCycle:
    """One hot request and its answer; to uvicorn it looks like a request that is being answered."""

    response_complete = False
    disconnected = False
    more_body = False
    message_event: _Nobody
    task: asyncio.Task[Any] | None = None
    size = 0

    def __init__(self, head: Head, lane: _FastLane) -> None:
        self.head = head
        self.lane = lane
        self.keep_alive = head.keep_alive
        self.began = perf_counter()
        self.id = head.id or ID % number()


class _Begun:
    """Beginnings of answers that were made before, for as long as they are right."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.heads: dict[tuple[int, bytes], bytes] = {}


_begun = _Begun()


class _Nobody:
    """Stands where uvicorn would wake a task."""

    def set(self) -> None:
        pass


HotCycle.message_event = _Nobody()


def fast_lane(broker: Broker, max_request: int, guard: Guard, busy_poll: BusyPoll) -> type[asyncio.Protocol]:
    """The protocol class for the connections of a broker."""
    known: dict[bytes, Head] = {}

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
            self.guard = guard
            self.known = known
            self.busy_poll = busy_poll
            self.chatty = log.isEnabledFor(logging.DEBUG)

    return FastLane


class _FastLane(HttpToolsProtocol):
    broker: Broker
    max_request: int
    guard: Guard
    busy_poll: BusyPoll
    known: dict[bytes, Head]
    """What the same bytes said before: most clients repeat themselves, and need no parser then."""
    read_timeout = 120.0
    """Seconds that a request may take to arrive."""
    chatty: bool

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._hot: HotCycle | None = None
        """The hot request that is being read."""
        self._parts: list[bytes] = []
        """What has come of its body."""
        self._said = b""
        """The bytes of the request line and headers of the last request, if they came in one piece."""
        self._head: Head | None = None
        """What they say, if that is known."""
        self._raw = b""
        """The same bytes, while the parser reads them."""
        self._rests_since = 0.0
        """When the last answer was written; 0 while a request is being read or answered."""
        self._reads_since = 0.0
        """When the request that is being read began; 0 if none is."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._rests_since = self.loop.time()
        self._look_again(self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        if not self._reads_since and (self.cycle is None or self.cycle.response_complete):
            head = self._head
            if head is None or not data.startswith(self._said):
                head = self._recall(data)
            if head is not None and head.length == len(data) - len(self._said):
                self._rests_since = 0.0
                self.cycle = hot = HotCycle(head, self)  # type: ignore[assignment]
                self._call(hot, data[len(self._said) :])
                return
            if data.startswith(_UPDATE):
                # The parser knows no method UPDATE, which the short routes promise: to them it is PATCH.
                data = b"PATCH" + data[len(b"UPDATE") :]
            elif _UPGRADE.search(self._said):
                # Who offers another protocol may be answered in this one, but the parser would skip the body then.
                data = _UPGRADE.sub(b"\r\nx-upgrade:", self._said) + data[len(self._said) :]
            self._raw = self._said
        super().data_received(data)

    # The parser calls these

    def on_message_begin(self) -> None:
        self._reads_since = self.loop.time()
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._hot = None

    def on_headers_complete(self) -> None:
        self._rests_since = 0.0
        if self.parser.should_upgrade():  # in pieces, or behind another one
            raise BadRequest("request: offers another protocol; leave out the header Upgrade", field="request")
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
        if hot.response_complete:
            return  # the rest is read and forgotten: who is cut off while it writes may never see the answer
        hot.size += len(body)
        if hot.size <= self.max_request:
            self._parts.append(body)
        else:
            self._parts.clear()
            self.refuse(hot, too_large(hot.size, self.max_request))

    def on_message_complete(self) -> None:
        self._reads_since = 0.0
        if self._rests_since:  # it was answered before all of it was there
            self._rests_since = self.loop.time()
        hot = self._hot
        if hot is None:
            super().on_message_complete()
            return
        self._hot = None
        hot.more_body = False
        if not hot.response_complete:
            parts, self._parts = self._parts, []
            self._call(hot, parts[0] if len(parts) == 1 else b"".join(parts))

    def connection_lost(self, exc: Exception | None) -> None:
        cycle: Any = self.cycle
        if isinstance(cycle, HotCycle) and cycle.task is not None and cycle.head.operation.name == "receive":
            # Nobody is there to take the messages. A send or an ack goes on: it may be confirmed otherwise.
            cycle.task.cancel()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Who does not read its answers is not heard either."""
        super().pause_writing()
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.pipeline:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """What is not HTTP gets a problem too, and the connection is closed."""
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete and not cycle.more_body:
            # The request before it has its answer first, and that is the last one.
            cycle.keep_alive = False
            self._reads_since = 0.0
            self.flow.pause_reading()
            return
        raised = sys.exception()  # the parser passes on what is raised in the calls above
        ours = raised.__context__ if raised is not None else None
        if not isinstance(ours, BadRequest):
            ours = BadRequest(f"request: {msg}", field="request")
        body = codec.encode_json(codec.problem(ours))
        lines = b"content-type: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        head = lines % (_PROBLEM, new_id(), len(body))
        self.transport.write(_LINES[400] + head + body)
        self.transport.close()

    # Inside

    def _call(self, hot: HotCycle, raw: bytes) -> None:
        """Make the call of a request that is there as a whole. A lone plain message is handed to the intake."""
        if self.busy_poll.last is not None:
            self.busy_poll.asked(self)
        head, broker = hot.head, self.broker
        try:
            if head.doubt is not None or not broker.keys.open:
                head.check(broker.keys)
            lone = head.lone
            body = None if lone is None else lone.read(raw)
            if (
                lone is not None
                and body is not None
                and broker.intake.add(head.queue, lone.content_type, body, head.call, hot, _answer_sends)
            ):
                return
            call = run(broker, head.operation, head.request(raw, body))
        except Exception as error:
            self.refuse(hot, error)
            return
        hot.task = begin(self.loop, call, partial(self._done, hot), eager=broker.eager)

    def _recall(self, data: bytes) -> Head | None:
        """What the beginning of a request said before, on any connection."""
        place = data.find(_END)
        self._said = data[: place + len(_END)] if place >= 0 else b""
        self._head = self.known.get(self._said)
        return self._head

    def _match(self) -> Head | None:
        """What these headers say if they begin a hot request, None if they begin another."""
        raw, self._raw = self._raw, b""  # those that follow in the same piece have other headers
        if raw and self._head is not None:
            return self._head  # the same bytes as before, only that the body comes later
        parser = self.parser
        keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        head = read_head(parser.get_method(), self.url, self.headers, keep_alive, self.guard)
        if head is None:
            return None
        # The parser passes over empty lines: what begins with one does not end where it seems to.
        if (
            raw.startswith(b"POST ")
            and len(raw) <= KNOWN_BYTES
            and 0 <= head.length <= self.max_request
            and not self.expect_100_continue
            # Other requests are likely to begin with the same bytes, and these say all there is to know.
            and head.keep_alive
            and (head.call, head.id, head.trace) == (None, None, None)
        ):
            if len(self.known) >= KNOWN:
                self.known.clear()
            self.known[raw] = head
        return head

    def _done(self, hot: HotCycle, reply: Any, error: Exception | None) -> None:
        """The call is answered: so is the request."""
        hot.task = None
        if error is not None:
            self.refuse(hot, error)
            return
        operation, queue = hot.head.operation, hot.head.queue
        if self.transport.is_closing() and operation.name == "receive" and reply.messages:
            self._give_back(queue, reply)
        self.broker.metrics.call("http", operation.name, self.broker.catalog.known(queue), perf_counter() - hot.began)
        out = hot.head.out
        head = self.beginning(operation.status, _JSON if out == "json" else _MSGPACK)
        self.write(hot, operation.status, head, codec.encode(reply, out))
        self.busy_poll.answered(self)

    def _give_back(self, queue: str, reply: shapes.MessagesReply) -> None:
        """Messages were leased for a connection that is gone: they need not wait for their timeout."""
        leases = [Lease(message.id, message.receipt) for message in reply.messages if message.receipt]
        if leases:
            task = self.loop.create_task(_quietly(self.broker, queue, leases))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def refuse(self, hot: HotCycle, error: Exception) -> None:
        ours = fault(hot.head.operation.name, error, hot.id)
        self.broker.metrics.errors["http", ours.code] += 1
        found = codec.problem(ours)
        extra = b""
        if found.status == 503:
            extra = b"retry-after: 1\r\n"
        elif found.status == 401:
            extra = b"www-authenticate: Bearer\r\n"
        self.write(hot, found.status, self.beginning(found.status, _PROBLEM), codec.encode_json(found), extra)

    def write(self, hot: HotCycle, status: int, head: bytes, body: bytes, extra: bytes = b"") -> None:
        """Answer a request, unless it is answered; `head` is the `beginning` of the answer."""
        if hot.response_complete:
            return
        hot.response_complete = True
        if self.chatty:
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
            self._rests_since = self.loop.time()

    def beginning(self, status: int, media: bytes) -> bytes:
        """The beginning of an answer; it is the same until the date changes."""
        given = self.server_state.default_headers
        if _begun.headers is not given:
            _begun.headers, _begun.heads = given, {}
        head = _begun.heads.get((status, media))
        if head is None:
            lines = b"".join([b"%b: %b\r\n" % line for line in given])
            head = _begun.heads[status, media] = b"%b%bcontent-type: %b\r\n" % (_LINES[status], lines, media)
        return head

    # A connection that says nothing is closed after a while, and so is one that takes for ever to say it. A timer for
    # each request would cost more than the rest of it, so there is one for each connection, which looks how things are.

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
        self._rests_since = self.loop.time()

    def _unset_keepalive_if_required(self) -> None:
        """Not by bytes alone: they may begin no request."""

    def _look_again(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.is_closing():
            return
        now = self.loop.time()
        left: float = self.timeout_keep_alive
        if self._reads_since:
            left = self._reads_since + self.read_timeout - now
        elif self._rests_since:
            left += self._rests_since - now
        if left > 0:
            self._look_again(min(left, self.timeout_keep_alive))
        else:
            super().timeout_keep_alive_handler()


def _answer_sends(hots: list[HotCycle], answers: list[list[str]], error: Exception | None) -> None:
    """Answer the requests of one put of the intake: its messages are on disk, or could not be sent."""
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
            head = lane.beginning(201, _JSON if format == "json" else _MSGPACK)
            encode = codec.encode_json if format == "json" else codec.encode_msgpack
        hot.lane.write(hot, 201, head, encode(shapes.SentReply(ids)))
    if len(hots) == 1:
        lane.busy_poll.answered(lane)


async def _quietly(broker: Broker, queue: str, leases: list[Lease]) -> None:
    with contextlib.suppress(MiniQError):
        await broker.release(queue, leases)
