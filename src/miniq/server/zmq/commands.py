"""Parses ZeroMQ requests: `{"type", "payload"}` becomes an operation and its request, as a route does over HTTP.

Every operation is a command under its own name in capitals; `NAMES` has further names. A payload is one object with the
fields of the operation's path, query and body. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import FieldInfo

from miniq.api import codec, shapes
from miniq.api.bounds import SMALL, check_text, check_values
from miniq.api.codec import Format, Reader
from miniq.api.operation import plain_type
from miniq.api.plain import UNREADABLE, DataOne, PlainOne
from miniq.errors import BadRequest, InvalidRequest, MiniQError, TooLarge, show
from miniq.message import AckedLease, Lease, PlainDrafts
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
    "FAIL_MSG": "fail",
    "MSG_RESULT": "result",
    "PUBLISH_MSG": "publish",
    "CREATE_TOPIC": "configure_topic",
    "TOPIC_STATS": "get_topic",
}
"""Further names of commands, and their operations."""

ENDPOINTS = {"PRODUCE_MSG": "producer", "CONSUME": "consumer"}
"""Commands that, with nothing but a queue, ask for the address of an endpoint."""

CANCEL = "CANCEL"
LONGEST = 4096
"""Maximum size of each field of a request beside its payload, in bytes."""
_SENDS = re.compile(rb'\{"type": ?"(SEND|PRODUCE_MSG)"')
_EMPTY = {"json": b"{}", "msgpack": b"\x80"}


class Payload:
    """Reads the payloads of one operation, as one record of its path, query and body."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self._body = None if operation.body is None else operation.body.shape
        self._body_fields = getattr(self._body, "__struct_fields__", ())
        self._is_map = self._body is not None and not isinstance(self._body, type)
        self._leases = "leases" in self._body_fields
        self._reader = Reader(dict[str, Any] if self._is_map else self._kind())

    def _kind(self) -> type[Struct]:
        operation = self.operation
        bases = () if self._body is None else (self._body,)
        fields: list[Any] = [
            (name, str if name in ("queue", "id", "topic", "name") else str | int)
            for name in operation.in_path
            if name not in self._body_fields
        ]
        fields += [(name, _queried(info), info.default) for name, info in operation.in_query.items()]
        if self._leases:  # a single lease may be given as id and receipt
            kind: Any = AckedLease if operation.name == "ack" else Lease
            fields += [("leases", list[kind] | UnsetType, UNSET), ("id", str | None, None)]
            fields += [("receipt", str | None, None)]
            if kind is AckedLease:
                fields.append(("result", Raw | UnsetType, UNSET))
        return msgspec.defstruct(operation.name, fields, bases=bases, kw_only=True, forbid_unknown_fields=True)

    def read(self, raw: bytes | Raw, format: Format) -> Request:
        """The request of a payload."""
        payload = bytes(raw) or _EMPTY[format]
        check_values(payload, format, self._reader.has_bodies)
        return self._decode(payload, format)

    def _decode(self, payload: bytes, format: Format) -> Request:
        record = self._reader.decode(payload, format)
        if self._is_map:
            path = {name: _pop_text(record, name) for name in self.operation.in_path}
            return Request(path, {}, record, format, out=format)
        if self._leases:
            _gather_leases(record)
        path = {name: str(getattr(record, name)) for name in self.operation.in_path}
        query = {
            name: str(getattr(record, name)) for name in self.operation.in_query if getattr(record, name) is not None
        }
        return Request(path, query, None if self._body is None else record, format, out=format)


def _queried(info: FieldInfo) -> Any:
    """The type of a field that HTTP has in the query; timestamps are text."""
    kind = plain_type(info)
    return kind | None if kind in (int, float) else str | None


class SendPayload(Payload):
    """The payload of a send. Most have nothing but bodies, as JSON or as bytes in MessagePack, and need no record per
    message."""

    def _decode(self, payload: bytes, format: Format) -> Request:
        with suppress(*UNREADABLE):  # else it has other fields, or is invalid: the general way tells
            plain: PlainPayload | DataPayload = (_plain_payload if format == "json" else _data_payload)(payload)
            if plain.is_send:
                return plain.request()
        return super()._decode(payload, format)


class PlainPayload(Struct, forbid_unknown_fields=True):
    """A send in JSON with nothing but its body or bodies."""

    queue: str
    body: Raw | UnsetType = UNSET
    messages: list[PlainOne] | UnsetType = UNSET

    @property
    def is_send(self) -> bool:
        return (self.body is UNSET) is not (self.messages is UNSET)

    def request(self) -> Request:
        bodies = [bytes(self.body)] if self.messages is UNSET else [bytes(each.body) for each in self.messages]  # type: ignore[arg-type]
        return Request({"queue": self.queue}, {}, PlainDrafts(bodies), "json", out="json")


class DataPayload(Struct, forbid_unknown_fields=True):
    """A send in MessagePack with nothing but bytes."""

    queue: str
    data: bytes | UnsetType = UNSET
    messages: list[DataOne] | UnsetType = UNSET

    @property
    def is_send(self) -> bool:
        return (self.data is UNSET) is not (self.messages is UNSET)

    def request(self) -> Request:
        bodies = [self.data] if self.messages is UNSET else [each.data for each in self.messages]
        drafts = PlainDrafts(cast(list[bytes], bodies), codec.OCTETS)
        return Request({"queue": self.queue}, {}, drafts, "msgpack", out="msgpack")


class PlainSend(Struct, forbid_unknown_fields=True):
    """The command of a plain send, decoded together with its payload."""

    type: Literal["SEND", "PRODUCE_MSG"]
    payload: PlainPayload
    api_key: str | None = None
    idempotency_key: str | None = None


_plain_payload = msgspec.json.Decoder(PlainPayload).decode
_data_payload = msgspec.msgpack.Decoder(DataPayload).decode
_plain_send = msgspec.json.Decoder(PlainSend).decode


def _pop_text(payload: dict[str, Any], name: str) -> str:
    """Take a field of the path out of a payload whose other fields are the body."""
    if name not in payload:
        raise InvalidRequest(f"{name} is required", field=name)
    value = payload.pop(name)
    if not isinstance(value, str):
        raise InvalidRequest(f"{name}: {show(value)} is not text", field=name)
    return value


def _gather_leases(payload: Any) -> None:
    """Turn a single lease into a list. An `id` alone is left to the command."""
    result = getattr(payload, "result", UNSET)
    if payload.leases is not UNSET:
        if payload.id is not None or payload.receipt is not None or result is not UNSET:
            raise InvalidRequest("leases: cannot be combined with id and receipt", field="leases")
    elif payload.id is None:
        raise InvalidRequest("leases are required (or id and receipt, for one)", field="leases")
    elif payload.receipt is not None:
        payload.leases = [AckedLease(payload.id, payload.receipt, result)]
    elif result is not UNSET:
        raise InvalidRequest("result: comes only with a receipt", field="result")


class Invocation(NamedTuple):
    """A parsed command: an operation with its request, or the name of the endpoint whose address is wanted."""

    operation: Operation | None
    request: Request
    shape: Callable[[Any], Any] | None = None
    """Converts the operation's reply, where the command has another one."""
    endpoint: str | None = None


_PAYLOADS = {
    operation.name: SendPayload(operation) if operation.name == "send" else Payload(operation)
    for operation in OPERATIONS
}
COMMANDS: dict[str, str] = {operation.command: operation.name for operation in OPERATIONS} | NAMES
"""Every command and its operation."""

_SHAPES: dict[str, Callable[[Any], Any]] = {"QUEUE_SIZE": lambda reply: shapes.SizeReply(reply.counts.total)}


class Head(Struct):
    """What a request has beside its payload, which is skipped."""

    type: str | UnsetType = UNSET
    api_key: str | None = None
    idempotency_key: str | None = None


class _RawHead(Struct):
    type: Raw = Raw()
    api_key: Raw = Raw()
    idempotency_key: Raw = Raw()


class _OnlyQueue(Struct, forbid_unknown_fields=True):
    queue: Raw = Raw()


class _NoPayload(Struct, forbid_unknown_fields=True):
    pass


_command = Reader(shapes.Command)
_no_payload = Reader(_NoPayload)
_head = Reader(Head)
_raw_head = Reader(_RawHead)
_only_queue = Reader(_OnlyQueue)


def format_of(body: bytes) -> Format:
    """The format of a request, by its first byte: that of a map in MessagePack, or anything else."""
    if not body:
        return "json"
    first = body[0]
    return "msgpack" if 0x80 <= first <= 0x8F or first in (0xDE, 0xDF) else "json"


def is_send(body: bytes) -> bool:
    """Whether a request is certainly a send, or asks for the producer endpoint."""
    return _SENDS.match(body) is not None


def read_head(body: bytes, format: Format) -> Head:
    """The head of a request, with which its key is checked before anything else is decoded."""
    if len(body) > LONGEST:
        raw = _raw_head.decode(body, format)
        for name in _RawHead.__struct_fields__:
            size = len(memoryview(getattr(raw, name)))
            if size > LONGEST:
                raise TooLarge(f"{name}: {size} bytes; at most {LONGEST}", field=name)
    head: Head = _head.decode(body, format)
    return head


def read_command(body: bytes, format: Format, default: str | None) -> shapes.Command | PlainSend:
    """The command in a request; with a `default` command, the request is its payload."""
    if default is not None:
        return shapes.Command(default, Raw(body))
    if len(body) <= SMALL and is_send(body):
        with suppress(*UNREADABLE):  # else it has other fields, or is invalid: the general way tells
            check_text(body)
            send = _plain_send(body)
            if send.payload.is_send:
                return send
    command: shapes.Command = _command.decode(body, format)
    return command


def resolve(command: shapes.Command | PlainSend, format: Format, allowed: frozenset[str] | None) -> Invocation:
    """The operation and request of a command. An endpoint has some `allowed` operations, the command server all."""
    type = command.type
    name = COMMANDS.get(type)
    if name is None:
        raise BadRequest(f"type: {type[:80]!r} is unknown; use one of {', '.join(sorted(COMMANDS))}", field="type")
    if allowed is not None and name not in allowed:
        raise BadRequest(f"type: {type} is not available at this endpoint; use the command server", field="type")
    operation = BY_NAME[name]
    if isinstance(command, PlainSend):
        request = command.payload.request()
        request.call = command.idempotency_key
        return Invocation(operation, request)
    raw = b"" if command.payload is UNSET else command.payload
    if allowed is None and type in ENDPOINTS and _has_only_queue(bytes(raw) or _EMPTY[format], format):
        return Invocation(None, Request({}, {}, None, format, out=format), endpoint=ENDPOINTS[type])
    request = _PAYLOADS[name].read(raw, format)
    request.call = command.idempotency_key
    if request.body is not None and getattr(request.body, "leases", None) is UNSET:
        # An id without a receipt: only DELETE_MSG accepts that, for a message that is not leased.
        if type != "DELETE_MSG":
            raise InvalidRequest("receipt is required", field="receipt")
        operation = BY_NAME["remove"]
        request.path = {**request.path, "id": request.body.id}
        request.body = None
    return Invocation(operation, request, _SHAPES.get(type))


def check_no_payload(command: shapes.Command | PlainSend, format: Format) -> None:
    """Refuse a payload that a command has no use for."""
    if isinstance(command, shapes.Command) and command.payload is not UNSET:
        _no_payload.decode(bytes(command.payload), format)


def _has_only_queue(payload: bytes, format: Format) -> bool:
    with suppress(InvalidRequest):
        _only_queue.decode(payload, format)
        return True
    return False


def refusal(error: MiniQError, format: Format) -> bytes:
    """An error as a reply."""
    return codec.encode(shapes.CommandRefusal(False, shapes.CommandError(error.code, error.text, error.field)), format)
