"""Short routes on the queue `default`: a minimal HTTP API for quick experiments.

They use their own reply formats, and only here can a message be acked by its id alone, without a receipt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from miniq.api import codec
from miniq.broker import Broker
from miniq.errors import InvalidRequest, MiniQError
from miniq.message import JSON, NEVER, Draft, Stored
from miniq.server.operations import bearer, integer, seconds

QUEUE = "default"
ReadBody = Callable[[HTTPRequest], Awaitable[bytes]]
Handler = Callable[[HTTPRequest], Awaitable[Response]]
ErrorReply = Callable[[MiniQError, int], dict[str, Any]]

_readers = {
    name: codec.Reader(msgspec.defstruct("Short", [(name, Raw)], forbid_unknown_fields=True))
    for name in ("msg", "message", "text")
}


def routes(broker: Broker, read: ReadBody) -> list[BaseRoute]:
    """The short routes of a broker."""
    short = _Short(broker, read)
    return [
        _route("/push_message", ["POST"], short.push_message, _data_error),
        _route("/read_messages", ["GET"], short.read_messages, _data_error),
        _route("/messages/produce", ["POST"], short.produce, _message_error),
        _route("/messages/consume", ["GET"], short.consume),
        _route("/messages/{id}", ["DELETE"], short.delete),
        _route("/messages/{id}", ["PUT", "PATCH", "UPDATE"], short.update),
        _route("/dev/messages", ["GET", "HEAD"], short.list_all),
        _route("/dev/messages/status", ["GET", "HEAD"], short.list_by_status),
        _route("/dev/messages/count", ["GET", "HEAD"], short.count),
        _route("/messages", ["POST"], short.post),
        _route("/messages", ["GET"], short.take),
    ]


def _error(error: MiniQError, status: int) -> dict[str, Any]:
    return {"success": False, "error": error.text, "code": error.code}


def _data_error(error: MiniQError, status: int) -> dict[str, Any]:
    return {"success": False, "data": error.text}


def _message_error(error: MiniQError, status: int) -> dict[str, Any]:
    return {"message": error.text, "status": "error", "statusCode": status}


def _route(path: str, methods: list[str], handler: Handler, error_reply: ErrorReply = _error) -> Route:
    async def endpoint(request: HTTPRequest) -> Response:
        try:
            return await handler(request)
        except MiniQError as error:
            status = codec.STATUS.get(error.code, 500)
            return _answer(error_reply(error, status), status)

    route = Route(path, endpoint, methods=methods)
    route.methods = set(methods)  # Starlette adds HEAD to GET; here it would receive messages and discard them
    return route


class _Short:
    def __init__(self, broker: Broker, read: ReadBody) -> None:
        self._broker = broker
        self._read = read

    async def push_message(self, request: HTTPRequest) -> Response:
        return _answer({"success": True, "data": {"message_id": await self._send(request, "msg")}})

    async def produce(self, request: HTTPRequest) -> Response:
        id = await self._send(request, "message")
        return _answer({"message": "Message produced", "status": "success", "statusCode": 201, "id": id}, 201)

    async def post(self, request: HTTPRequest) -> Response:
        return _answer({"id": await self._send(request, "text")}, 201)

    async def read_messages(self, request: HTTPRequest) -> Response:
        received = await self._receive(request, "turn_around_time")
        messages = [{"id": stored.message.id, "msg": _body(stored), **_state_fields(stored)} for stored in received]
        return _answer({"success": True, "data": messages})

    async def consume(self, request: HTTPRequest) -> Response:
        received = await self._receive(request, "visibility_timeout", "limit")
        messages = [{"id": stored.message.id, "message": _body(stored), **_state_fields(stored)} for stored in received]
        return _answer(messages)

    async def take(self, request: HTTPRequest) -> Response:
        self._check(request, "receive")
        received = await self._broker.receive(QUEUE, mode="at-most-once")
        return _answer({"text": _body(received[0])}) if received else Response(status_code=204)

    async def delete(self, request: HTTPRequest) -> Response:
        self._check(request, "receive")
        done = await self._broker.ack_by_id(QUEUE, request.path_params["id"])
        return _answer({"success": done}, 200 if done else 404)

    async def update(self, request: HTTPRequest) -> Response:
        body = await self._read_field(request, "manage", "message")
        done = await self._broker.edit_by_id(QUEUE, request.path_params["id"], body, JSON)
        return _answer({"success": done}, 200 if done else 404)

    async def count(self, request: HTTPRequest) -> Response:
        self._check(request, "read")
        counts = (await self._broker.queue(QUEUE)).counts
        status = _status(request) if "status" in request.query_params else None
        numbers = {None: counts.total, "processing": counts.leased, "unprocessed": counts.ready + counts.delayed}
        return _answer({"count": numbers[status]})

    async def list_by_status(self, request: HTTPRequest) -> Response:
        return await self.list_all(request, _status(request))

    async def list_all(self, request: HTTPRequest, wanted: str | None = None) -> Response:
        self._check(request, "read")
        listed: list[dict[str, Any]] = []
        now = self._broker.clock.now()
        after: str | None = None
        size, limits = 0, self._broker.options.limits
        while True:
            page = await self._broker.peek(QUEUE, after=after, limit=limits.batch)
            for stored in page.messages:
                status = "processing" if stored.status(now) == "leased" else "unprocessed"
                if wanted in (None, status):
                    fields = {"message": _body(stored), "status": status, **_state_fields(stored)}
                    listed.append({"id": stored.message.id, **fields})
                    size += stored.message.size
                    if len(listed) >= limits.batch or size >= limits.response_bytes:
                        return _answer(listed)
            after = page.next
            if after is None:
                return _answer(listed)

    # Inside

    def _check(self, request: HTTPRequest, verb: str) -> None:
        self._broker.keys.check(bearer(request.headers.get("authorization")), verb, QUEUE)

    async def _read_field(self, request: HTTPRequest, verb: str, name: str) -> bytes:
        """The value, as JSON, of the only field of the request's JSON object."""
        self._check(request, verb)
        return bytes(getattr(_readers[name].read(await self._read(request), "json"), name))

    async def _send(self, request: HTTPRequest, field: str) -> str:
        body = await self._read_field(request, "send", field)
        (id,) = await self._broker.send(QUEUE, [Draft(body)])
        return id

    async def _receive(self, request: HTTPRequest, timeout_name: str, limit_name: str | None = None) -> list[Stored]:
        """Receive with the visibility timeout and limit in these query parameters."""
        self._check(request, "receive")
        query = request.query_params
        timeout, limit = None, self._broker.options.limits.batch
        if limit_name is not None and limit_name in query:
            limit = integer(query, limit_name)
        if timeout_name in query:
            timeout = seconds(query, timeout_name)
        return await self._broker.receive(QUEUE, max=limit, visibility_timeout=timeout)


def _body(stored: Stored) -> Any:
    message = stored.message
    if codec.is_json(message.content_type):
        return Raw(message.body)
    return message.body.decode("utf-8", "replace")


def _state_fields(stored: Stored) -> dict[str, Any]:
    return {
        "sent_at": codec.moment(stored.message.sent_at),
        "receives": stored.receives,
        "visible_at": None if stored.visible_at == NEVER else codec.moment(stored.visible_at),
    }


def _status(request: HTTPRequest) -> str:
    status = request.query_params.get("status", "")
    if status not in ("processing", "unprocessed"):
        raise InvalidRequest(f"status: {status[:80]!r} is invalid; use processing or unprocessed", field="status")
    return status


def _answer(reply: Any, status: int = 200) -> Response:
    return Response(codec.encode_json(reply), status, media_type=JSON)
