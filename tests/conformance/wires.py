"""The wires of a server, asked alike: a call is written as HTTP has it, and said on each wire in its own words."""

from __future__ import annotations

import http.client
import json
import re
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, unquote

import msgspec
import zmq

from miniq.api.codec import STATUS
from miniq.api.operation import plain_type
from miniq.server.operations import OPERATIONS, Operation
from miniq.server.zmq.commands import NAMES
from tests.serving import Served

PATIENCE = 20_000
HTTP_ONLY = frozenset({"no_route", "wrong_method"})
"""Errors about routes and methods, which only HTTP has."""


class Refusal(NamedTuple):
    status: int
    code: str
    field: str | None
    text: str


class Wire(Protocol):
    """One way to a server."""

    name: str

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """What comes back, or the `Refusal`. A body of bytes goes out as it is."""

    def packed(self, method: str, path: str, body: Any) -> Any:
        """The same in MessagePack."""

    def begin(self, method: str, path: str, body: Any, **headers: str) -> Pending:
        """Ask, and fetch the answer later."""

    def close(self) -> None: ...


class Pending(Protocol):
    def end(self) -> Any: ...

    def hang_up(self) -> None: ...


class Caller:
    """A wire in a test's hands."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        found = self.wire.ask(method, path, body, **headers)
        assert not isinstance(found, Refusal), found
        return found

    def refused(self, method: str, path: str, body: Any = None, **headers: str) -> Refusal:
        found = self.wire.ask(method, path, body, **headers)
        assert isinstance(found, Refusal), found
        return found

    def state(self) -> Any:
        """Everything there is, without what time changes."""
        queues = self.ok("GET", "/v1/queues")["queues"]
        messages = {
            queue["name"]: self.ok("GET", f"/v1/queues/{queue['name']}/messages?limit=1000") for queue in queues
        }
        return queues, messages

    def clear(self) -> None:
        for topic in self.ok("GET", "/v1/topics")["topics"]:
            self.ok("DELETE", f"/v1/topics/{topic['name']}")
        for queue in self.ok("GET", "/v1/queues")["queues"]:
            if queue["name"] == "default":
                self.ok("POST", "/v1/queues/default/purge")
            else:
                self.ok("DELETE", f"/v1/queues/{queue['name']}")


# HTTP


class HttpWire:
    name = "http"

    def __init__(self, served: Served) -> None:
        self.served = served

    def call(
        self, method: str, path: str, body: Any = None, raw: bytes | None = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        """Status, content and headers of an answer."""
        pending = self._begin(method, path, body, raw, **headers)
        try:
            return pending.answer()
        finally:
            pending.hang_up()

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        raw = body if isinstance(body, bytes) else None
        return _judged(*self.call(method, path, None if raw is not None else body, raw, **headers))

    def packed(self, method: str, path: str, body: Any) -> Any:
        kind = "application/msgpack"
        status, found, headers = self.call(
            method, path, raw=msgspec.msgpack.encode(body), content_type=kind, accept=kind
        )
        assert headers["content-type"] == kind or status >= 400
        return _judged(status, found, headers)

    def begin(self, method: str, path: str, body: Any, **headers: str) -> HttpPending:
        return self._begin(method, path, body, **headers)

    def _begin(self, method: str, path: str, body: Any = None, raw: bytes | None = None, **headers: str) -> HttpPending:
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=PATIENCE / 1000)
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None and "content-type" not in sent:
            sent["content-type"] = "application/json"
        connection.request(method, path, data, sent)
        return HttpPending(connection)

    def close(self) -> None:
        pass


class HttpPending:
    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def answer(self) -> tuple[int, Any, http.client.HTTPMessage]:
        reply = self._connection.getresponse()
        found = reply.read()
        kind = reply.headers.get("content-type", "")
        if "msgpack" in kind:
            return reply.status, msgspec.msgpack.decode(found), reply.headers
        return reply.status, json.loads(found) if found and "json" in kind else found, reply.headers

    def end(self) -> Any:
        try:
            return _judged(*self.answer())
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        self._connection.close()


def _judged(status: int, found: Any, headers: http.client.HTTPMessage) -> Any:
    if status < 300:
        return found
    assert headers["content-type"] == "application/problem+json", found
    assert found["status"] == status
    return Refusal(status, found["code"], found.get("field"), found["detail"])


# ZeroMQ

COMMAND_OF = {operation: name for name, operation in NAMES.items() if name != "QUEUE_SIZE"}
"""The contract's own name of an operation, where it has one."""


class ZmqWire:
    """Plain REQ sockets to the command server and, for what is sent and received, to the endpoints."""

    name = "zmq"

    def __init__(self, served: Served) -> None:
        self.served = served
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.secret = ""
        """Opens endpoints, where there are keys."""
        self._addresses = {"command": served.tcp}
        self._sockets: dict[str, zmq.Socket[bytes]] = {}

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        place, request = zmq_request(method, path, body, **headers)
        socket = self._socket(place)
        socket.send(request)
        return _read(socket.recv())

    def packed(self, method: str, path: str, body: Any) -> Any:
        operation, fields = _route(method, path)
        command = {"type": COMMAND_OF.get(operation.name, operation.name.upper()), "payload": fields | body}
        socket = self._socket(_place(operation))
        socket.send(msgspec.msgpack.encode(command))
        return _judged_reply(msgspec.msgpack.decode(socket.recv()))

    def begin(self, method: str, path: str, body: Any, **headers: str) -> ZmqPending:
        place, request = zmq_request(method, path, body, **headers)
        socket = self._connect(place)
        socket.send(request)
        return ZmqPending(socket)

    def close(self) -> None:
        self._context.destroy(0)

    def _socket(self, place: str) -> zmq.Socket[bytes]:
        if place not in self._sockets:
            self._sockets[place] = self._connect(place)
        return self._sockets[place]

    def _connect(self, place: str) -> zmq.Socket[bytes]:
        if place not in self._addresses:
            self._addresses[place] = self._open(place)
        socket = self._context.socket(zmq.REQ)
        socket.linger = 0
        socket.rcvtimeo = PATIENCE
        socket.connect(self._addresses[place])
        return socket

    def _open(self, place: str) -> str:
        socket = self._socket("command")
        named = {"producer": "PRODUCE_MSG", "consumer": "CONSUME"}[place]
        socket.send_json({"type": named} | ({"api_key": self.secret} if self.secret else {}))
        address: str = _read(socket.recv())["address"]
        return address


class ZmqPending:
    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket

    def end(self) -> Any:
        try:
            return _read(self._socket.recv())
        finally:
            self.hang_up()

    def hang_up(self) -> None:
        self._socket.close(0)


def zmq_request(method: str, path: str, body: Any = None, **headers: str) -> tuple[str, bytes]:
    """The socket for a call, and the request."""
    operation, fields = _route(method, path)
    if body == b"":
        return _place(operation), b""
    if isinstance(body, bytes):
        payload = json.dumps(fields).encode()[:-1] + b", " + body[1:] if body.startswith(b"{") else body
    else:
        payload = json.dumps(fields | (body or {})).encode()
    more = "".join(f', "{name}": "{value}"' for name, value in headers.items()).encode()
    type = COMMAND_OF.get(operation.name, operation.name.upper()).encode()
    return _place(operation), b'{"type": "%b", "payload": %b%b}' % (type, payload, more)


def _place(operation: Operation) -> str:
    return {"send": "producer", "receive": "consumer"}.get(operation.name, "command")


def _route(method: str, path: str) -> tuple[Operation, dict[str, Any]]:
    """The operation behind a route, and what its path and query say."""
    path, _, query = path.partition("?")
    for operation in OPERATIONS:
        found = re.fullmatch(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", operation.path), path)
        if found is not None and operation.method == method:
            fields: dict[str, Any] = {name: unquote(value) for name, value in found.groupdict().items()}
            for name, value in parse_qsl(query, keep_blank_values=True):
                info = operation.in_query.get(name)
                is_number = info is not None and plain_type(info) in (int, float) and re.fullmatch(r"-?\d+", value)
                fields[name] = int(value) if is_number else value
            return operation, fields
    raise LookupError(f"{method} {path}")


def _read(raw: bytes) -> Any:
    return _judged_reply(json.loads(raw))


def _judged_reply(reply: Any) -> Any:
    if reply["ok"]:
        assert set(reply) == {"ok", "data"}
        return reply["data"]
    error = reply["error"]
    assert set(reply) == {"ok", "error"}
    return Refusal(STATUS[error["code"]], error["code"], error.get("field"), error["text"])


WIRES = {"http": HttpWire, "zmq": ZmqWire}
