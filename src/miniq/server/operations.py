"""A request on its way to the broker, whatever the wire: read as a call, authorised, carried out, answered.

The calls are those of `api/operations.py`; HTTP, ZeroMQ and the OpenAPI document are made from that table.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import FieldInfo, replace

from miniq import dispatch
from miniq.api import codec, operation
from miniq.api import operations as ops
from miniq.api.codec import Format
from miniq.api.operation import plain_type
from miniq.api.operations import BY_NAME, OPERATIONS
from miniq.api.plain import SendReader
from miniq.broker import Broker
from miniq.broker.keyring import Secret
from miniq.dispatch import Caller
from miniq.errors import InvalidRequest, MiniQError
from miniq.message import Draft
from miniq.server import query, streams

__all__ = ["BY_NAME", "OPERATIONS", "READERS", "Operation", "Request", "authorise", "bearer", "fault", "run"]


class Request(Struct):
    """A call on its way to the broker: what the path, the query and the body said."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    format: Format
    secret: Secret | None = None
    call: str | None = None
    """The name that the caller gave to this call (Idempotency-Key)."""
    out: Format = "json"
    """The format of the reply, for which its bodies are made."""
    trace: Mapping[str, str] | None = None
    """The trace context that came with it, where traces are written."""
    carried: Mapping[str, str] | None = None
    """The one that messages are given which have none."""
    arrow: bool = False
    """Whether the caller would rather have Arrow, where there is Arrow to be had."""


log = logging.getLogger("miniq.server")

Operation: TypeAlias = operation.Operation[Any]

READERS: dict[str, codec.Reader] = {
    operation.name: SendReader() if operation.name == "send" else codec.Reader(operation.body.shape)
    for operation in OPERATIONS
    if operation.body is not None
}


def bearer(header: str | None) -> str | None:
    """The API key in an Authorization header."""
    if header is None:
        return None
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def authorise(broker: Broker, operation: Operation, request: Request) -> None:
    """Raise unless the caller may make this call. Lists and history show a key what it may read."""
    if broker.keys.open:
        return
    queue = request.path.get("queue") if "queue" in operation.in_path else request.query.get("queue")
    if operation.own and (queue is None or operation.name == "whoami"):
        broker.keys.identify(request.secret)
    else:
        broker.keys.check(request.secret, operation.right, queue)


def run(broker: Broker, operation: Operation, request: Request) -> Coroutine[Any, Any, Any]:
    """Begin an operation, within a span where traces are written."""
    if broker.tracer is None:
        return perform(broker, operation, request)
    return cast(Coroutine[Any, Any, Any], broker.tracer.run(operation, broker, request))


_ANYBODY = Caller()


async def perform(broker: Broker, operation: Operation, request: Request) -> Any:
    """Make the call of a request; the record of its reply."""
    if operation.hot and operation.body is not None and not request.carried:  # the same in fewer steps
        values = operation.body.unpack(request.body, request.format)
        call: Any = operation.request(request.path["queue"], *values)
    else:
        call = read_call(operation, request)
        if request.arrow and operation.name in streams.ARROW:
            return await streams.ARROW[operation.name](broker, call)
        if operation.name == "read_claim":
            return await streams.claim(broker, call, request.out)
    is_plain = request.secret is None and request.call is None
    caller = _ANYBODY if is_plain else Caller(request.secret, request.call)
    result = await dispatch.CALLS[operation.request](broker, call, caller)
    return operation.reply.write(result, call, request.out, broker.clock.now)


# Reading


def read_call(operation: Operation, request: Request) -> Any:
    """The call that a request makes."""
    path, asked, body = request.path, request.query, operation.body
    values: list[Any] = [
        query.number(path, name, 0) if kind is int else path[name] for name, kind in operation.in_path.items()
    ]
    if operation.in_query:
        values += [_read(asked, name, info) for name, info in operation.in_query.items()]
    if body is not None:
        values += body.unpack(request.body, request.format)
    if request.carried:
        return ops.Send(values[0], [_with_trace(draft, request.carried) for draft in dispatch.drafts_of(values[1])])
    return operation.request(*values)


def _read(asked: Mapping[str, str], name: str, info: FieldInfo) -> Any:
    """A field from a query."""
    if name in asked:
        return _KINDS[plain_type(info)](asked, name)
    if info.required:
        raise InvalidRequest(f"{name}: is required", field=name)
    return info.default


_KINDS: dict[type, Callable[[Mapping[str, str], str], Any]] = {
    int: lambda asked, name: query.number(asked, name, 0),
    datetime: query.moment,
    str: lambda asked, name: asked[name],
}


def _with_trace(draft: Draft, carried: Mapping[str, str]) -> Draft:
    if draft.headers is not None and "traceparent" in draft.headers:
        return draft
    return replace(draft, headers={**(draft.headers or {}), **carried})


def fault(operation: str, error: Exception, request: bytes = b"") -> MiniQError:
    """An exception as an error for the caller. One that is not ours is a fault of the broker: logged, not shown."""
    if isinstance(error, MiniQError):
        return error
    about = {"request": request.decode()} if request else None
    log.error("%s failed", operation, exc_info=error, extra=about)
    return MiniQError("the broker made a mistake; its log says more")
