"""The doors of the broker, each as something that takes any bytes. Whatever comes, the answer is a result or an error
that says what is wrong; a fault of the broker itself is raised here.

`test_doors.py` knocks with examples that were changed at random, `python -m tests.faults.fuzz` with what atheris makes
of them, led by the code that they reach.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import httptools
import msgspec
from uvicorn.server import ServerState

from miniq.api import codec
from miniq.broker import Broker
from miniq.errors import MiniQError
from miniq.options import Options
from miniq.server import server
from miniq.server.busy_poll import BusyPoll
from miniq.server.operations import authorise, run
from miniq.server.zmq.commands import format_of, read_command, refusal, resolve
from miniq.store import open_store

TURNS = 60
"""Turns of the event loop that an answer may take; what waits longer is a long poll."""
FRESH = 2000
"""Knocks after which there is a new broker: what was sent meanwhile must not slow down those that follow."""

BODIES: dict[str, Any] = {
    "messages": {"messages": [{"body": {"a": [1, "ü"]}, "priority": 5, "delay": 0, "key": "k", "headers": {"h": "v"}}]},
    "receive": {"max": 3, "wait": 0, "visibility_timeout": 0, "consumer": "me", "mode": "at-least-once"},
    "ack": {"leases": [{"id": "01a1de5f-b612-72f9-805f-b50496f40880", "receipt": "k5GraUX1Wf7qUUmv"}]},
    "release": {"leases": [{"id": "01a1de5f-b612-72f9-805f-b50496f40880", "receipt": "k5GraUX1Wf7qUUmv"}], "delay": 1},
    "extend": {"leases": [{"id": "x", "receipt": "y"}], "visibility_timeout": 10},
    "redrive": {"ids": ["x"]},
}
COMMANDS: dict[str, Any] = {
    "SEND": {"queue": "q", "messages": [{"body": 1}]},
    "PRODUCE_MSG": {"queue": "q", "body": [1, "x"]},
    "CONSUME": {"queue": "q", "max": 1, "visibility_timeout": 0},
    "PEEK": {"queue": "q", "limit": 1},
    "DELETE_MSG": {"queue": "q", "id": "x", "receipt": "y"},
    "CREATE_QUEUE": {"queue": "q", "delay": 0, "history": "full", "max_receives": 2},
    "QUEUE_SIZE": {"queue": "q"},
    "LIST_QUEUES": {},
    "HISTORY": {"after": 0, "limit": 3},
    "CREATE_KEY": {"name": "n", "allow": ["send:q"]},
}


class Door:
    """One way in, in front of a broker in memory."""

    seeds: tuple[bytes, ...]

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._knocks = 0
        self._faults = Faults()

    async def knock(self, data: bytes) -> None:
        """Come in with these bytes; raises what is the broker's own fault."""
        if self._knocks % FRESH == 0:
            await self.close()
            broker = Broker(open_store("memory:"), Options(upkeep_interval=0))
            self.broker = await self._stack.enter_async_context(broker)
            self._faults.attach(self._stack)
            self.open()
        self._knocks += 1
        await self.come_in(data)
        self._faults.check()

    def open(self) -> None:
        """A new broker is there."""

    async def come_in(self, data: bytes) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        await self._stack.aclose()


class HttpDoor(Door):
    """A connection that sends some bytes and is gone: both lanes, all formats, every route."""

    seeds = (
        *(
            b"POST /v1/queues/q/%b HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
            % (name.encode(), media, len(body), body)
            for name, value in BODIES.items()
            for media, body in (
                (b"application/json", msgspec.json.encode(value)),
                (b"application/msgpack", msgspec.msgpack.encode(value)),
            )
        ),
        *(
            b"%b HTTP/1.1\r\nhost: x\r\n\r\n" % line
            for line in (
                b"GET /v1/queues", b"GET /v1/queues/q", b"GET /v1/queues/q/messages?limit=3&status=ready",
                b"GET /v1/history?after=0&limit=3&queue=q", b"GET /v1/stats", b"GET /metrics", b"DELETE /v1/queues/q",
                b"GET /messages?queue=q", b"GET /console", b"GET /openapi.json", b"PATCH /v1/queues/q/messages/x",
                b"GET /v1/queues/q/claims", b"GET /v1/events",
            )
        ),
        b"PUT /v1/queues/q HTTP/1.1\r\nhost: x\r\ncontent-length: 18\r\n\r\n" + b'{"history":"full"}',
        b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\na\r\n"
        b'{"body":1}\r\n0\r\n\r\n',
        b"GET /v1/events HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\na\r\r\n",
        b"GET /metrics HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\na\r\r\n",
        b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-type: application/vnd.apache.arrow.stream\r\n"
        b"content-length: 8\r\n\r\n\xff\xff\xff\xff\x00\x00\x00\x00",
    )  # fmt: skip

    def open(self) -> None:
        self._config = server._config(self.broker, Options(), BusyPoll(0))
        self._config.load()
        self._state = ServerState()

    async def come_in(self, data: bytes) -> None:
        protocol: Any = self._config.http_protocol_class
        line = _Line()
        connection = protocol(
            config=self._config, server_state=self._state, app_state={}, _loop=asyncio.get_running_loop()
        )
        connection.reader.parser = _Parser(connection.reader.parser)
        connection.connection_made(line)
        connection.data_received(data)
        for _ in range(TURNS):
            if line.said and connection.current is None:
                break
            await asyncio.sleep(0)
        line.close()
        connection.connection_lost(None)
        for _ in range(3):
            await asyncio.sleep(0)
        found = re.search(rb"HTTP/1\.1 5\d\d.*", line.said, re.DOTALL)
        assert found is None, found and found[0]


class ZmqDoor(Door):
    """The last frame of a request to the command server."""

    seeds = tuple(
        encode({"type": name, "payload": value, "idempotency_key": None})
        for name, value in COMMANDS.items()
        for encode in (msgspec.json.encode, msgspec.msgpack.encode)
    )

    async def come_in(self, data: bytes) -> None:
        format = format_of(data)
        try:
            ask = resolve(read_command(data, format, None), format, None)
            if ask.operation is None:
                return
            authorise(self.broker, ask.operation, ask.request)
            task = asyncio.ensure_future(run(self.broker, ask.operation, ask.request))
            for _ in range(TURNS):
                if task.done():
                    break
                await asyncio.sleep(0)
            else:
                task.cancel()
                return
            codec.encode(task.result(), format)
        except MiniQError as error:
            refusal(error, format)


DOORS: dict[str, Callable[[], Door]] = {"http": HttpDoor, "zmq": ZmqDoor}


class Faults(logging.Handler):
    """Listens for what the broker logs where it is to blame."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._heard: list[str] = []

    def attach(self, stack: AsyncExitStack) -> None:
        root = logging.getLogger()
        root.addHandler(self)
        stack.callback(root.removeHandler, self)

    def emit(self, record: logging.LogRecord) -> None:
        self._heard.append(self.format(record))

    def check(self) -> None:
        heard, self._heard = self._heard, []
        assert not heard, heard


class _Parser:
    """Tells what went wrong in our part of parsing, which uvicorn takes for a bad request."""

    def __init__(self, parser: httptools.HttpRequestParser) -> None:
        self._parser = parser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, MiniQError):
                raise AssertionError("the parser's caller failed") from error
            raise


class _Line(asyncio.Transport):
    """The server's end of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.said = b""
        self._closed = False

    def write(self, data: Any) -> None:
        self.said += bytes(data)

    def is_closing(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    write_eof = abort = close

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
