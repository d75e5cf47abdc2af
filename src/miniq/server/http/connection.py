"""An HTTP connection: it reads requests, has them answered in order, and bounds what a client can make it keep.

Requests are carried out one at a time. Those behind wait for their turn, and reading stops while `limits.pipeline` of
them wait or the heads of all have `limits.head_bytes`, while a body waits for its turn, and while the client does not
read its replies. A request is either a hot call (`fast_lane.py`) or one for the ASGI application. An error in what
arrives is an answer like any other: it follows the replies to the requests before it.

A connection that has sent much at once takes turns with the others (`load.py`).
"""

from __future__ import annotations

import asyncio
import logging
import select
from abc import ABC, abstractmethod
from collections import deque
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from miniq.errors import BadRequest, Closed, MiniQError
from miniq.options import MIB, Limits
from miniq.server.http.app import too_large
from miniq.server.http.cycle import AsgiCycle, Cycle, Request, bare
from miniq.server.http.load import SMALL, Load
from miniq.server.http.request_reader import RequestReader

READ_TIMEOUT = 120.0
"""Seconds that a request may take to arrive."""
LINGER = 2.0
"""Seconds for which the rest of a refused request is read and discarded: a client that is cut off while it writes may
never see the reply."""
TLS_END = 0.5
"""Seconds for which the client may answer the end of TLS."""
WATCH_INTERVAL = 1.0
"""Seconds between checks whether a client is still there that nothing is read from."""
WAITING_BYTES = 65536
"""Size from which on a body that waits for its turn is not read further."""
TURN_STEPS, FEW_STEPS, TURN_BYTES = 12, 3, 16384
"""How many heads and bodies are read and begun in one turn, how many while other connections wait for theirs, and past
how many bytes the turn is over."""
TURN_RECEIVED = 512 * 1024
"""Bytes to receive from a connection before others get their turn."""
_GONE = getattr(select, "POLLRDHUP", 0)
_uvicorn_log = logging.getLogger("uvicorn.error")


class Connection(asyncio.Protocol, ABC):
    """A connection to uvicorn's server."""

    def __init__(
        self, limits: Limits, load: Load, config: Any, server_state: Any, app_state: Any, _loop: Any = None
    ) -> None:
        self.limits = limits
        self.load = load
        self.loop: asyncio.AbstractEventLoop = _loop or asyncio.get_running_loop()
        self.server_state = server_state
        self.reader = RequestReader(limits)
        self._config = config
        self._app_state = app_state
        self.transport: asyncio.Transport = None  # type: ignore[assignment]
        self.flow: FlowControl = None  # type: ignore[assignment]
        self.current: Request | None = None
        """The request whose turn it is."""
        self._waiting: deque[Request] = deque()
        self._waiting_bytes = 0
        """Bytes of their heads."""
        self._reading: Request | None = None
        """The request whose body is being read."""
        self._is_last = False
        """Whether no request is read after the newest one."""
        self._proceeding = False
        self._awaits_turn = False
        self._received = 0
        """Bytes received in this turn."""
        self._held = 0
        """Bytes of the current request's body that are counted in the load of the server."""
        self._read_paused = False
        self._idle_since = 0.0
        """When the last reply was written; 0 while a request is being read or answered."""
        self._reading_since = 0.0
        """When the current request began to arrive; 0 if none is being read."""
        self._unread = 0
        """Bytes of replies that the client had not read when this was last checked."""
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._watch_timer: asyncio.TimerHandle | None = None

    # The event loop and uvicorn call these

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.server_state.connections.add(self)
        self.transport = transport
        self.flow = FlowControl(transport)
        self._idle_since = self.loop.time()
        self._check_timeouts_in(self._config.timeout_keep_alive)
        try:
            self.load.check_connections(len(self.server_state.connections))
        except MiniQError as error:
            self._fail(error)
            self.proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.connections.discard(self)
        for timer in (self._timer, self._write_timer, self._watch_timer):
            if timer is not None:
                timer.cancel()
        self.load.dropped(self._held + self.reader.size + self._waiting_bytes)
        self._release()
        request, self.current, self._reading = self.current, None, None
        self._waiting.clear()
        self._is_last = True
        self.reader.close()
        self.flow.resume_writing()
        if isinstance(request, AsgiCycle):
            request.disconnected = True
            request.message_event.set()
        elif request is not None:
            self.abandon(request)

    def pause_writing(self) -> None:
        """Stop reading the requests of a client that does not read its replies, and soon cut it off."""
        self.flow.pause_writing()
        self._pause_reading()
        self._check_written_in(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.flow.resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
        self.proceed()

    def shutdown(self) -> None:
        """Answer what has arrived, and nothing more."""
        if self._reading is not None:
            self._fail(Closed("the broker is closing"))
        self._is_last = True
        newest = self._waiting[-1] if self._waiting else self.current
        if newest is None:
            self.close()
        else:
            newest.keep_alive = False

    # Reading and beginning requests

    def proceed(self) -> None:
        """Read requests and begin the next one, as far as possible now."""
        if self._proceeding or self.transport.is_closing():
            return
        self._proceeding = True
        reader = self.reader
        until = reader.at + TURN_BYTES
        is_full: Any = False
        is_over = False
        try:
            for _ in range(FEW_STEPS if self.load.turns else TURN_STEPS):
                if self.current is None and self._waiting and not self.flow.write_paused:
                    self._begin_next()
                    continue
                is_full = (self.current or self._waiting or self._reading or self.flow.write_paused) and self._is_full()
                if is_full or reader.at == reader.size:
                    is_over = self._received < TURN_RECEIVED
                    break
                if reader.at > until:
                    break
                if not self._read_next():
                    is_over = self._reading is None or reader.at == reader.size
                    break
        except MiniQError as error:
            is_over = True
            self._fail(error)
            if self.current is None and self._waiting:
                self._begin_next()
        finally:
            self._proceeding = False
        if is_full:
            self._pause_reading()
        elif not is_over:
            self._pause_reading()
            self._later()
        elif self._read_paused and not self.transport.is_closing():
            self._read_paused = False
            self._reading_since = 0.0
            self.transport.resume_reading()
        if self._reading is None and reader.start == reader.size:
            self._reading_since = 0.0
            if reader.size > SMALL:
                reader.clear()
        elif not self._reading_since:
            self._reading_since = self.loop.time()

    def _later(self) -> None:
        """Proceed after a turn of other connections."""
        if not self._awaits_turn:
            self._awaits_turn = True
            self.load.later(self._take_turn)

    def _take_turn(self) -> None:
        self._awaits_turn = False
        self._received = 0
        self.proceed()

    def _is_full(self) -> bool:
        """Whether nothing more is to be read now."""
        request = self._reading
        if request is None:
            heads = self._waiting_bytes + (0 if self.current is None else self.current.size)
            return (
                self.flow.write_paused or len(self._waiting) >= self.limits.pipeline or heads >= self.limits.head_bytes
            )
        if request.response_complete or request.error is not None:
            return False
        is_taken = request is self.current and isinstance(request, Cycle)
        return not is_taken and len(request.body) > WAITING_BYTES

    def _begin_next(self) -> None:
        request = self._waiting.popleft()
        self._waiting_bytes -= request.size
        self._begin(request)

    def _begin(self, request: Request) -> None:
        self.current = request
        self._idle_since = 0.0
        if isinstance(request, AsgiCycle):
            task = self.loop.create_task(request.run_asgi(self._config.loaded_app))
            task.add_done_callback(self.server_state.tasks.discard)
            self.server_state.tasks.add(task)
        elif request.error is not None:
            self.refuse(request, self.reason(request, request.error))
        elif not request.more_body:
            self.carry_out(request, bytes(request.body))
        else:
            if self.reader.left > SMALL:
                self._hold(request, len(request.body) + self.reader.left)
            if request.error is not None:
                self.refuse(request, request.error)
            elif request.expects_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _take_body(self, request: AsgiCycle) -> None:
        """The application is about to take what has arrived of the current request's body."""
        if request is self._reading and not self._held and self.reader.left > SMALL:
            self._hold(request, len(request.body) + self.reader.left)
        self.proceed()

    def _hold(self, request: Request, size: int) -> None:
        """Count bytes of the current request's body, or refuse it: all of a known length before it is received."""
        try:
            self.load.hold(size, self._held)
            self._held += size
        except MiniQError as error:
            request.error = bare(error)
            request.body = bytearray()

    def _release(self) -> None:
        self.load.release(self._held)
        self._held = 0

    def _read_next(self) -> bool:
        """Read a head or more of a body; False if more bytes are needed for that."""
        request, reader = self._reading, self.reader
        if request is None:
            if self._is_last or not reader.head():
                return False
            request = self.open()
            request.size += len(reader.raw) * request.head_copies
            reader.raw = b""
            request.more_body = not reader.complete
            if request.more_body:
                self._reading = request
            elif isinstance(request, AsgiCycle):
                request.message_event.set()
            self._is_last = not request.keep_alive
            if self.current is None and not self._waiting:
                self._begin(request)
            else:
                self._waiting.append(request)
                self._waiting_bytes += request.size
            return True
        discard = request.response_complete or request.error is not None
        before = len(request.body)
        complete = reader.body(None if discard else request.body)
        piece, reader.piece = reader.piece, b""
        if reader.left < 0 and not discard and request is self.current:
            self._hold(request, len(request.body) - before)
        if complete:
            self._reading = None
            request.more_body = False
            if self._idle_since:  # it was answered before it had arrived completely
                self._idle_since = self.loop.time()
        if isinstance(request, AsgiCycle):
            request.body += piece
            if complete or request.body or request.error is not None:
                request.message_event.set()
        elif not discard:
            if piece and request is self.current:
                self.carry_out(request, piece)
                return True
            request.body += piece
            if len(request.body) > self.limits.request_bytes:
                request.body = bytearray()
                request.error = too_large(self.limits.request_bytes)
            if request.error is not None:
                if request is self.current:
                    self.refuse(request, request.error)
            elif complete and request is self.current:
                self.carry_out(request, bytes(request.body))
        return complete

    def _fail(self, error: MiniQError) -> None:
        """Nothing more can be read: refuse the request that is being read, or what cannot be read as one."""
        request, self._reading = self._reading, None
        self._is_last = True
        self.load.dropped(self.reader.size)
        self.reader.close()
        bare(error)
        if request is None:
            request = Cycle()
            self._waiting.append(request)
        elif request.response_complete:
            self.linger()
            return
        request.keep_alive = False
        request.error = request.error or error
        if isinstance(request, AsgiCycle):
            write, is_closing = self.transport.write, self.transport.is_closing
            request.transport = cast(Any, SimpleNamespace(write=write, is_closing=is_closing, close=self.linger))
            request.message_event.set()
        elif request is self.current:
            self.refuse(request, request.error)

    def finished(self) -> None:
        """The current request was answered."""
        self.current = None
        if self._held:
            self._release()
        if self.transport.is_closing():
            self.close()
            return
        self._idle_since = self.loop.time()
        if self.load.turns and not self._proceeding:
            self._later()
        else:
            self.proceed()

    def asgi_cycle(self) -> Request:
        """The request that was read, for the ASGI application."""
        reader, transport = self.reader, self.transport
        try:
            url = httptools.parse_url(reader.url)
            path = (url.path or b"").decode("ascii")
        except (httptools.HttpParserError, UnicodeDecodeError):
            raise BadRequest(f"request: {reader.url[:80]!r} is not a URL of this broker", field="request") from None
        scope = {
            "type": "http",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.3"},
            "http_version": reader.version,
            "method": reader.method.decode("ascii"),
            "scheme": "https" if is_ssl(transport) else "http",
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path or b"",
            "query_string": url.query or b"",
            "headers": reader.headers,
            "fields": reader.fields,
            "state": self._app_state.copy(),
        }
        return AsgiCycle(
            self._take_body,
            scope=scope,
            transport=transport,
            flow=self.flow,
            logger=_uvicorn_log,
            access_logger=_uvicorn_log,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=reader.expects_continue,
            keep_alive=reader.keep_alive,
            on_response=self.finished,
        )

    # The fast lane answers hot calls

    @abstractmethod
    def open(self) -> Request:
        """The request whose head was read."""

    @abstractmethod
    def carry_out(self, request: Cycle, raw: bytes) -> None:
        """Answer the current request, whose body is complete."""

    @abstractmethod
    def reason(self, request: Cycle, error: MiniQError) -> MiniQError:
        """Why a request is refused now that its turn has come: since it arrived, its key may have been revoked."""

    @abstractmethod
    def refuse(self, request: Cycle, error: Exception) -> None:
        """Answer a request with an error."""

    @abstractmethod
    def abandon(self, request: Cycle) -> None:
        """The client of the current request is gone."""

    # Closing

    def close(self) -> None:
        """Close the connection once the client has read its replies, or the time for that is over."""
        self._is_last = True
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self.limits.write_timeout, self.transport.abort)
        elif is_ssl(self.transport):
            self.loop.call_later(TLS_END, self.transport.abort)  # an idle client does not answer

    def linger(self) -> None:
        """Close the connection, but first let the client finish what it is sending."""
        self._is_last = True
        if self.transport.is_closing() or not self.transport.can_write_eof():
            self.close()
            return
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.abort)

    def _pause_reading(self) -> None:
        if not self._read_paused and not self.transport.is_closing():
            self._read_paused = True
            self.transport.pause_reading()
            if self._watch_timer is None:
                self._watch_timer = self.loop.call_later(WATCH_INTERVAL, self._watch)

    def _watch(self) -> None:
        """Notice that a client has left from which nothing is read."""
        self._watch_timer = None
        if not self._read_paused or self.transport.is_closing():
            return
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), _GONE)
        if poll.poll(0):
            self.transport.abort()
        else:
            self._watch_timer = self.loop.call_later(WATCH_INTERVAL, self._watch)

    def _check_written_in(self, unread: int) -> None:
        self._unread = unread
        self._write_timer = self.loop.call_later(self.limits.write_timeout, self._check_written)

    def _check_written(self) -> None:
        """Cut off a client that has read too little."""
        unread = self.transport.get_write_buffer_size()
        if unread > self._unread - MIB:
            self.transport.abort()
            self.load.dropped(unread)
        else:
            self._check_written_in(unread)

    # A connection is closed that is idle for too long, or whose request takes too long to arrive. A timer per request
    # would cost more than the rest of the request, so each connection has one timer that checks both.

    def _check_timeouts_in(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._check_timeouts)

    def _check_timeouts(self) -> None:
        if self.transport.is_closing():
            return
        now = self.loop.time()
        keep_alive = left = self._config.timeout_keep_alive
        if self._reading_since and not self._read_paused:
            left = self._reading_since + READ_TIMEOUT - now
        elif self._idle_since:
            left += self._idle_since - now
        if left > 0:
            self._check_timeouts_in(min(left, keep_alive))
        else:
            self.close()
