"""What HTTP and ZeroMQ do alike with a request: read it as a call, authorise it, run it, write its reply.

The calls are those of `api/operations.py`; HTTP routes, ZeroMQ commands and the OpenAPI document derive from that
table.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Generator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import FieldInfo, replace

from miniq import dispatch
from miniq.api import codec, operation, shapes
from miniq.api.codec import Format
from miniq.api.operation import plain_type
from miniq.api.operations import BY_NAME as BY_NAME
from miniq.api.operations import OPERATIONS as OPERATIONS
from miniq.api.plain import SendReader
from miniq.broker import Broker
from miniq.broker.keyring import Secret
from miniq.dispatch import Caller
from miniq.errors import SECONDS, WHOLE_NUMBER, Closed, InvalidRequest, MiniQError
from miniq.message import Draft, Lease
from miniq.server import streams

log = logging.getLogger("miniq.server")

Operation: TypeAlias = operation.Operation[Any]

READERS: dict[str, codec.Reader] = {
    operation.name: SendReader() if operation.body.shape is shapes.SendBody else codec.Reader(operation.body.shape)
    for operation in OPERATIONS
    if operation.body is not None
}


class Request(Struct):
    """A call as it came over the wire: its path, query and body."""

    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any
    format: Format
    secret: Secret | None = None
    call: str | None = None
    """The caller's name for this call (Idempotency-Key)."""
    out: Format = "json"
    """The format of the reply."""
    trace: Mapping[str, str] | None = None
    """The trace context of the request, while tracing is on."""
    trace_headers: Mapping[str, str] | None = None
    """The trace context for messages that have none."""
    arrow: bool = False
    """Whether the caller accepts Arrow, where a reply is available in it."""


def bearer(header: str | None) -> str | None:
    """The API key in an Authorization header."""
    if header is None:
        return None
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def authorise(broker: Broker, operation: Operation, request: Request) -> None:
    """Raise unless the caller may make this call. Any key may list what it may read."""
    if broker.keys.open:
        return
    subject = operation.subject
    queue = request.path.get(subject) if subject in operation.in_path else request.query.get("queue")
    if operation.own and (queue is None or operation.name == "whoami"):
        broker.keys.identify(request.secret)
    elif operation.alternative:
        broker.keys.check_either(request.secret, operation.right, operation.alternative, queue, subject)
    else:
        broker.keys.check(request.secret, operation.right, queue, subject)


def run(broker: Broker, operation: Operation, request: Request) -> Coroutine[Any, Any, Any]:
    """Run an operation, within a span if tracing is on."""
    if broker.tracer is None:
        return perform(broker, operation, request)
    return cast(Coroutine[Any, Any, Any], broker.tracer.run(operation, broker, request))


_ANONYMOUS = Caller()


async def perform(broker: Broker, operation: Operation, request: Request) -> Any:
    """Make the call of a request and return the record of its reply."""
    if operation.hot and operation.body is not None and not request.trace_headers:  # `read_call` in fewer steps
        values = operation.body.unpack(request.body, request.format)
        call: Any = operation.request(request.path["queue"], *values)
    else:
        call = read_call(operation, request)
        if request.trace_headers:
            drafts = dispatch.drafts_of(call.drafts, broker.options.limits.batch)
            call = replace(call, drafts=[_with_trace(draft, request.trace_headers) for draft in drafts])
        if request.arrow and operation.name in streams.ARROW:
            return await streams.ARROW[operation.name](broker, call, Caller(request.secret))
        if operation.name == "read_claim":
            return await streams.claim(broker, call, request.out)
    is_anonymous = request.secret is None and request.call is None
    caller = _ANONYMOUS if is_anonymous else Caller(request.secret, request.call)
    result = await dispatch.CALLS[operation.request](broker, call, caller)
    if operation.name == "list_queues" and len(result) > streams.QUEUES:
        return streams.queues(result, request.out)
    reply = operation.reply.write(result, call, request.out, broker.clock.now)
    if operation.unread is not None and not caller.may(broker, "read", call.queue):
        operation.unread(reply)
    return reply


def fault(operation: str, error: Exception, request: bytes = b"") -> MiniQError:
    """The error that the caller gets. An unexpected exception is logged and not shown."""
    if isinstance(error, MiniQError):
        return error
    log.error("%s failed", operation, exc_info=error, extra={"request": request.decode()} if request else None)
    return MiniQError("internal error; see the broker's log")


def give_back(broker: Broker, queue: str, reply: shapes.MessagesReply) -> None:
    """Release the messages of a reply that cannot be delivered."""
    leases = [Lease(message.id, message.receipt) for message in reply.messages if message.receipt]
    if leases:
        broker.deliveries.give_back(queue, leases)


# Reading


def read_call(operation: Operation, request: Request) -> Any:
    """The call that a request makes."""
    path, query, body = request.path, request.query, operation.body
    values: list[Any] = [integer(path, name) if kind is int else path[name] for name, kind in operation.in_path.items()]
    values += [_read(query, name, info) for name, info in operation.in_query.items()]
    if body is not None:
        values += body.unpack(request.body, request.format)
    return operation.request(*values)


def _read(query: Mapping[str, str], name: str, info: FieldInfo) -> Any:
    if name in query:
        kind = plain_type(info)
        read = _READS.get(kind)
        return query[name] if read is None else read(query, name)
    if info.required:
        raise InvalidRequest(f"{name} is required", field=name)
    return info.default


def check_query(query: Mapping[str, str], known: Collection[str]) -> None:
    """Refuse unknown parameters."""
    for name in query:
        if name not in known:
            allowed = f"use {', '.join(known)}" if known else "this call has none"
            raise InvalidRequest(f"{name[:80]}: no such parameter; {allowed}", field=name[:80])


def integer(fields: Mapping[str, str], name: str) -> int:
    """A field of a path or query as an integer."""
    try:
        return int(_plain(fields[name]))
    except ValueError:
        raise InvalidRequest(f"{name}: {fields[name][:80]!r} is not {WHOLE_NUMBER}", field=name) from None


def seconds(fields: Mapping[str, str], name: str) -> float:
    """A field of a query as a duration."""
    try:
        return float(_plain(fields[name]))
    except ValueError:
        raise InvalidRequest(f"{name}: {fields[name][:80]!r} is not {SECONDS}", field=name) from None


def waits(operation: Operation, request: Request) -> bool:
    """Whether a request is a long poll."""
    if not operation.long_poll:
        return False
    return bool(request.query.get("wait") if request.body is None else request.body.wait)


def _plain(number: str) -> str:
    """A number without what only Python allows in one, as in 1_000."""
    return number if number.isascii() and "_" not in number and " " not in number else ""


def timestamp(fields: Mapping[str, str], name: str) -> datetime:
    """A field of a query as a point in time."""
    try:
        at = datetime.fromisoformat(fields[name])
        if at.tzinfo is not None:
            codec.micros(at)
            return at
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest(f"{name}: {fields[name][:80]!r} is not a time such as 2026-11-15T08:00:00Z", field=name)


_READS: dict[type, Callable[[Mapping[str, str], str], Any]] = {int: integer, float: seconds, datetime: timestamp}
"""How fields of a query are read that are not text."""


def _with_trace(draft: Draft, trace_headers: Mapping[str, str]) -> Draft:
    if draft.headers is not None and "traceparent" in draft.headers:
        return draft
    return replace(draft, headers={**(draft.headers or {}), **trace_headers})


# Starting


def start(
    loop: asyncio.AbstractEventLoop,
    coroutine: Coroutine[Any, Any, Any],
    done: Callable[[Any, Exception | None], None] | None = None,
    *,
    eager: bool = True,
) -> asyncio.Task[Any] | None:
    """Run a coroutine up to its first wait. If it waits, it continues as the task that is returned; most never do, and
    need no task.

    Before the first wait there is no current task, so a coroutine that needs one, as timeouts do, must not be `eager`.
    `done` gets the result or the error; without `done`, an error is raised here or logged by the loop.
    """
    if eager:
        try:
            awaited = coroutine.send(None)
        except StopIteration as end:
            if done is not None:
                done(end.value, None)
            return None
        except Exception as error:
            if done is None:
                raise
            done(None, error)
            return None
        coroutine = _Started(coroutine, awaited)
    task = loop.create_task(coroutine)
    if done is not None:
        task.add_done_callback(lambda task: _report(task, done))
    return task


def _report(task: asyncio.Task[Any], done: Callable[[Any, Exception | None], None]) -> None:
    error = None if task.cancelled() else task.exception()
    if task.cancelled() or (error is not None and not isinstance(error, Exception)):
        done(None, Closed("the broker is closing"))
    elif error is not None:
        done(None, error)
    else:
        done(task.result(), None)


class _Started(Coroutine[Any, Any, Any]):
    """The rest of a coroutine that was started; it begins by yielding what the coroutine awaits."""

    __slots__ = ("_awaited", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, Any], awaited: Any) -> None:
        self._coroutine = coroutine
        self._awaited: list[Any] = [awaited]

    def send(self, value: Any) -> Any:
        return self._awaited.pop() if self._awaited else self._coroutine.send(value)

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        at: TracebackType | None = None,
    ) -> Any:
        self._awaited.clear()
        return self._coroutine.throw(error if isinstance(error, BaseException) else kind)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()
