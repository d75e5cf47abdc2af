"""What a ZeroMQ request asks for: `{"type", "payload"}` becomes the operation and request that HTTP makes of a route.

Every operation is a command under its own name in capitals; `NAMES` holds those that are called otherwise as well.
A payload is one object with the names of the operation's path, query and body. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import FieldInfo

from miniq.api import codec, shapes
from miniq.api.codec import Format, Reader
from miniq.api.operation import plain_type
from miniq.api.plain import UNREADABLE, DataOne, PlainOne, check_text
from miniq.errors import BadRequest, InvalidRequest
from miniq.message import Lease, PlainDrafts
from miniq.server.operations import BY_NAME, OPERATIONS, Operation, Request

NAMES = {
    "CREATE_QUEUE": "configure",
    "QUEUE_STATS": "get_queue",
    "QUEUE_SIZE": "get_queue",
    "PRODUCE_MSG": "send",
    "CONSUME": "receive",
    "DELETE_MSG": "ack",
    "UPDATE_MSG": "edit",
    "RELEASE_MSG": "release",
    "EXTEND_MSG": "extend",
}
"""Commands that are called otherwise than their operation."""

OPENS = {"PRODUCE_MSG": "producer", "CONSUME": "consumer"}
"""Commands that, with no more than a queue, ask for an endpoint's address instead."""

CANCEL = "CANCEL"
_SENDS = re.compile(rb'\{"type": ?"(SEND|PRODUCE_MSG)"')
BEGINNING = 200
"""Bytes of a request in which the name `messages` is looked for; a queue's name may come before it."""
_EMPTY = {"json": b"{}", "msgpack": b"\x80"}


class Payload:
    """How the payload of one operation is read: one record made of its path, query and body."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._body = None if operation.body is None else operation.body.shape
        self._there = getattr(self._body, "__struct_fields__", ())
        self._is_map = self._body is not None and not isinstance(self._body, type)
        self._leases = "leases" in self._there
        self._reader = Reader(dict[str, Any] if self._is_map else self._kind())

    def _kind(self) -> type[Struct]:
        operation, there = self.operation, self._there
        bases = () if self._body is None else (self._body,)
        fields: list[Any] = [
            (name, str if name in ("queue", "id") else str | int) for name in operation.in_path if name not in there
        ]
        fields += [(name, _queried(info), info.default) for name, info in operation.in_query.items()]
        if self._leases:  # one lease may be given by itself
            fields += [("leases", list[Lease] | UnsetType, UNSET), ("id", str | None, None)]
            fields += [("receipt", str | None, None)]
        return msgspec.defstruct(operation.name, fields, bases=bases, kw_only=True, forbid_unknown_fields=True)

    def read(self, raw: bytes | Raw, format: Format) -> Request:
        """The request that a payload makes."""
        found = self._reader.read(bytes(raw) or _EMPTY[format], format)
        if self._is_map:
            path = {name: _text(found, name) for name in self.operation.in_path}
            return Request(path, {}, found, format, out=format)
        if self._leases:
            _gather(found)
        path = {name: str(getattr(found, name)) for name in self.operation.in_path}
        query = {}
        for name in self.operation.in_query:
            value = getattr(found, name)
            if value is not None:
                query[name] = str(value)
        return Request(path, query, None if self._body is None else found, format, out=format)


def _queried(info: FieldInfo) -> Any:
    """The type of a field that HTTP has in a query; moments are texts."""
    kind = plain_type(info)
    return kind | None if kind is int else str | None


class SendPayload(Payload):
    """The payload of a send. Most are JSON, or bytes in MessagePack, with nothing beside the bodies, which needs no
    record per message."""

    def read(self, raw: bytes | Raw, format: Format) -> Request:
        data = bytes(raw)
        try:
            if format == "json":
                return (_plain_many(data) if _has_many(data) else _plain_single(data)).request()
            return (_data_many(data) if b"messages" in data[:BEGINNING] else _data_single(data)).request()
        except UNREADABLE:
            pass  # it says more, or is wrong: then the other way says how
        return super().read(raw, format)


class _PlainMany(Struct, forbid_unknown_fields=True):
    queue: str
    messages: list[PlainOne]

    def request(self) -> Request:
        bodies = [bytes(one.body) for one in self.messages]
        return Request({"queue": self.queue}, {}, PlainDrafts(bodies), "json", out="json")


class _PlainSingle(Struct, forbid_unknown_fields=True):
    queue: str
    body: Raw

    def request(self) -> Request:
        return Request({"queue": self.queue}, {}, PlainDrafts([bytes(self.body)]), "json", out="json")


class _DataMany(Struct, forbid_unknown_fields=True):
    queue: str
    messages: list[DataOne]

    def request(self) -> Request:
        bodies = PlainDrafts([one.data for one in self.messages], codec.OCTETS)
        return Request({"queue": self.queue}, {}, bodies, "msgpack", out="msgpack")


class _DataSingle(Struct, forbid_unknown_fields=True):
    queue: str
    data: bytes

    def request(self) -> Request:
        return Request({"queue": self.queue}, {}, PlainDrafts([self.data], codec.OCTETS), "msgpack", out="msgpack")


class PlainSend(Struct, forbid_unknown_fields=True):
    """The command of a send that says nothing else. It is read in one go, payload and all."""

    type: Literal["SEND", "PRODUCE_MSG"]
    payload: Any
    api_key: str | None = None
    idempotency_key: str | None = None


class _SendMany(PlainSend):
    payload: _PlainMany


class _SendSingle(PlainSend):
    payload: _PlainSingle


_plain_many = msgspec.json.Decoder(_PlainMany).decode
_plain_single = msgspec.json.Decoder(_PlainSingle).decode
_data_many = msgspec.msgpack.Decoder(_DataMany).decode
_data_single = msgspec.msgpack.Decoder(_DataSingle).decode
_send_many = msgspec.json.Decoder(_SendMany).decode
_send_single = msgspec.json.Decoder(_SendSingle).decode


def _has_many(data: bytes) -> bool:
    return b'"messages":' in data[:BEGINNING]


def _text(found: dict[str, Any], name: str) -> str:
    """Take one name out of a payload whose other names are anybody's."""
    if name not in found:
        raise InvalidRequest(f"{name}: is required", field=name)
    value = found.pop(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: {value!r:.80} is not text", field=name)
    return value


def _gather(found: Any) -> None:
    """One lease that was given by itself becomes a list of one. An `id` alone is left to the command."""
    if found.leases is not UNSET:
        if found.id is not None or found.receipt is not None:
            raise InvalidRequest("leases: given beside id and receipt; give one or many", field="leases")
    elif found.id is None:
        raise InvalidRequest("leases: is required (or id and receipt, for one)", field="leases")
    elif found.receipt is not None:
        found.leases = [Lease(found.id, found.receipt)]


class Ask(NamedTuple):
    """One request, understood: the operation and its request, or the endpoint to open, or receives to take back."""

    operation: Operation | None
    request: Request
    shape: Callable[[Any], Any] | None = None
    """What is made of the operation's reply, where it is not the answer."""
    opens: str | None = None


_PAYLOADS = {
    operation.name: SendPayload(operation) if operation.name == "send" else Payload(operation)
    for operation in OPERATIONS
}
COMMANDS: dict[str, str] = {operation.command: operation.name for operation in OPERATIONS} | NAMES
"""Every command, and the operation it is."""

_SHAPES: dict[str, Callable[[Any], Any]] = {"QUEUE_SIZE": lambda reply: shapes.SizeReply(reply.counts.total)}


class _Typed(Struct):
    type: Any = UNSET


_command = Reader(shapes.Command)
_typed = Reader(_Typed)
_names = Reader(dict[str, Raw])


def format_of(body: bytes) -> Format:
    """In which format a request is: an object in JSON begins with a brace, one in MessagePack does not."""
    if not body:
        return "json"
    first = body[0]
    return "msgpack" if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF) else "json"


def is_send(body: bytes) -> bool:
    """Whether a request is surely a send, or asks where to send to."""
    return _SENDS.match(body) is not None


def read_command(body: bytes, format: Format, usual: str | None) -> shapes.Command | PlainSend:
    """The command in a request. On an endpoint, which has a `usual` one, a payload may come without any."""
    if not body:
        raise InvalidRequest('request: is empty; send {"type": ..., "payload": {...}}', field="request")
    if usual is not None and _typed.read(body, format).type is UNSET:
        return shapes.Command(usual, Raw(body))
    if is_send(body):
        try:
            check_text(body)
            return _send_many(body) if _has_many(body) else _send_single(body)
        except UNREADABLE:
            pass  # it says more, or is wrong: then the other way says how
    command: shapes.Command = _command.read(body, format)
    return command


def understand(command: shapes.Command | PlainSend, format: Format, only: frozenset[str] | None) -> Ask:
    """What a command asks for. An endpoint takes `only` some operations; the command server all of them."""
    type = command.type
    name = COMMANDS.get(type)
    if name is None:
        raise BadRequest(f"type: {type[:80]!r} is no command; there are {', '.join(sorted(COMMANDS))}", field="type")
    if only is not None and name not in only:
        raise BadRequest(f"type: {type} is not for this endpoint; ask the command server", field="type")
    if isinstance(command, PlainSend):
        request: Request = command.payload.request()
        request.call = command.idempotency_key
        return Ask(BY_NAME[name], request)
    raw = b"" if command.payload is UNSET else command.payload
    if only is None and type in OPENS and _names.read(bytes(raw) or _EMPTY[format], format).keys() <= {"queue"}:
        return Ask(None, Request({}, {}, None, format, out=format), opens=OPENS[type])
    request = _PAYLOADS[name].read(raw, format)
    operation = BY_NAME[name]
    if request.body is not None and getattr(request.body, "leases", None) is UNSET:
        operation = _alone(type, request)
    request.call = command.idempotency_key
    return Ask(operation, request, _SHAPES.get(type))


def _alone(type: str, request: Request) -> Operation:
    """An id without a receipt: a message that nobody leases may be deleted so, and nothing else be done."""
    if type != "DELETE_MSG":
        raise InvalidRequest("receipt: is required", field="receipt")
    request.path = {**request.path, "id": request.body.id}
    request.body = None
    return BY_NAME["remove"]


def refusal(error: Any, format: Format) -> bytes:
    """An error as a reply."""
    found = shapes.CommandError(error.code, error.text, error.field)
    return codec.encode(shapes.CommandRefusal(False, found), format)
