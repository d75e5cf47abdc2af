"""How a call becomes a ZeroMQ request, by its row in the table of operations, and what its reply means. No I/O."""

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

CANCEL = codec.encode(shapes.Command("CANCEL"), "json")
_GOOD = b'{"ok":true,"data":'
"""How a broker begins a reply; what follows is read as it is."""


class ZmqExchange(Exchange):
    """One call on its way over ZeroMQ: the body of the request."""

    __slots__ = ("_target", "body", "format")

    def __init__(self, target: Target, call: Call[Any]) -> None:
        self._target = target
        super().__init__(call, target.timeout)

    def write(self) -> None:
        operation, call = self.operation, self.call
        packed: Any = None if operation.body is None else operation.body.pack(call)
        if self.is_table or isinstance(packed, bytes):
            raise only_over_http()
        names = operation.path_values(call)
        try:
            path = _path(operation, *names)
        except TypeError:  # what cannot be remembered is no name
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
        """The request that takes this one back."""
        return codec.encode(shapes.Command("CANCEL", api_key=self._target.api_key), "json")


class _Reply(Struct):
    ok: bool
    data: Raw = Raw(b"")
    error: shapes.CommandError | None = None


_json_reply = msgspec.json.Decoder(_Reply).decode
_msgpack_reply = msgspec.msgpack.Decoder(_Reply).decode


def judge(exchange: ZmqExchange, body: bytes, target: Target) -> Any:
    """The result that a reply brings, or the error that it is."""
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
        raise MiniQError(f"{target.url} answered what is not of a MiniQ broker: {begin!r} ({error})") from None
    status = codec.STATUS.get(error.code, 500)
    return exchange.refused(shapes.Problem(error.code, status, error.code, error.text, error.field), target.url)


def _json_of(data: bytes) -> bytes:
    """What came in MessagePack, as it would be in JSON: replies to sends, which are ids."""
    return codec.encode_json(msgspec.msgpack.decode(data))


@lru_cache(1024)
def _path(operation: Operation[Any], *values: Any) -> bytes:
    """What HTTP has in its path, as an object."""
    operation.check_path(values)
    return encoded(dict(zip(operation.in_path, values, strict=True)))


def _joined(*objects: bytes) -> bytes:
    """One object in JSON with the names of several."""
    return b"{%b}" % b",".join([one[1:-1] for one in objects if len(one) > 2])


def _fields(record: Struct) -> dict[str, Any]:
    """The fields of a record that say something else than is said by leaving them out."""
    names, defaults = record.__struct_fields__, record.__struct_defaults__
    usual = (NODEFAULT,) * (len(names) - len(defaults)) + defaults
    found = {}
    for name, other in zip(names, usual, strict=True):
        value = getattr(record, name)
        if value is not other and (type(value) is not type(other) or value != other):
            found[name] = value
    return found
