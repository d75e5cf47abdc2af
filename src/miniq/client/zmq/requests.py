"""Encodes calls as ZeroMQ requests, by the table of operations, and decodes replies. No I/O."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import NODEFAULT, Raw, Struct

from miniq.api import codec, shapes
from miniq.api.messages import best_format
from miniq.api.operation import Call, Operation
from miniq.api.tables import only_over_http
from miniq.client.exchange import Exchange, encoded
from miniq.client.zmq.target import Target
from miniq.errors import MiniQError

_GOOD = b'{"ok":true,"data":'
"""The start of a successful reply; the data follows."""


class ZmqExchange(Exchange):
    """One call over ZeroMQ: the body of the request."""

    __slots__ = ("_target", "body", "format")

    def __init__(self, target: Target, call: Call[Any]) -> None:
        self._target = target
        super().__init__(call, target.timeout)

    def write(self) -> None:
        operation, call = self.operation, self.call
        packed: Any = None if operation.body is None else operation.body.pack(call)
        if self.is_table or isinstance(packed, memoryview):
            raise only_over_http()
        names = operation.path_values(call)
        try:
            path = _path(operation, *names)
        except TypeError:  # not hashable, therefore not a name
            operation.check_path(names)
            raise
        self.format: codec.Format = best_format(packed)
        if self.format == "msgpack":
            payload = encoded(dict(zip(operation.in_path, names, strict=True)) | _fields(packed), "msgpack")
        else:
            query = encoded(operation.query_of(call)) if operation.in_query else b""
            payload = _joined(path, query, b"" if packed is None else encoded(packed))
        command = shapes.Command(operation.command, Raw(payload), self._target.api_key, self.name)
        self.body = codec.encode(command, self.format)

    def cancel(self) -> bytes:
        """The request that cancels this one."""
        return codec.encode(shapes.Command("CANCEL", api_key=self._target.api_key), "json")


class _Reply(Struct):
    ok: bool
    data: Raw = Raw(b"")
    error: shapes.CommandError | None = None


_json_reply = msgspec.json.Decoder(_Reply).decode
_msgpack_reply = msgspec.msgpack.Decoder(_Reply).decode


def judge(exchange: ZmqExchange, body: bytes, target: Target) -> Any:
    """The result of a reply; raises the error that it is."""
    try:
        if exchange.format == "json" and body.startswith(_GOOD):
            return exchange.result(body[len(_GOOD) : -1])
        reply = _json_reply(body) if exchange.format == "json" else _msgpack_reply(body)
        if reply.ok:
            data = bytes(reply.data)
            return exchange.result(data if exchange.format == "json" else _json_of(data))
        error = reply.error
        if error is None:
            raise ValueError("no error")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        begin = body[:80].decode("utf-8", "replace")
        raise MiniQError(f"{target.url} replied, but not as a MiniQ broker does: {begin!r} ({error})") from None
    status = codec.STATUS.get(error.code, 500)
    return exchange.refused(shapes.Problem(error.code, status, error.code, error.text, error.field), target.url)


def _json_of(data: bytes) -> bytes:
    """A MessagePack reply as JSON. Only sends get one, so it is a list of ids."""
    return codec.encode_json(msgspec.msgpack.decode(data))


@lru_cache(1024)
def _path(operation: Operation[Any], *values: Any) -> bytes:
    """The values of the HTTP path, as a JSON object."""
    operation.check_path(values)
    return encoded(dict(zip(operation.in_path, values, strict=True)))


def _joined(*objects: bytes) -> bytes:
    """JSON objects merged into one."""
    return b"{%b}" % b",".join([text[1:-1] for text in objects if len(text) > 2])


def _fields(record: Struct) -> dict[str, Any]:
    """The fields of a record that are not defaults."""
    names, defaults = record.__struct_fields__, record.__struct_defaults__
    defaults = (NODEFAULT,) * (len(names) - len(defaults)) + defaults
    fields = {}
    for name, default in zip(names, defaults, strict=True):
        value = getattr(record, name)
        if value is not default and (type(value) is not type(default) or value != default):
            fields[name] = value
    return fields
