"""Short routes on the queue `default`: a minimal HTTP API for quick experiments.

They use their own reply formats, and only here can a message be acked by its id alone, without a receipt.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from miniq.api import codec
from miniq.broker import Broker
from miniq.errors import InvalidRequest, MiniQError
from miniq.message import JSON, NEVER, Draft, Stored
from miniq.server.operations import bearer
from miniq.server.query import number

QUEUE = "default"
ReadBody = Callable[[HTTPRequest], Awaitable[bytes]]

_reader = codec.Reader(dict[str, Any])


def routes(broker: Broker, read: ReadBody) -> list[BaseRoute]:
    """The short routes of a broker."""
    short = _Short(broker, read)
    table = [
        Route("/push_message", short.push_message, methods=["POST"]),
        Route("/read_messages", short.read_messages, methods=["GET"]),
        Route("/messages/produce", short.produce, methods=["POST"]),
        Route("/messages/consume", short.consume, methods=["GET"]),
        Route("/messages/{id}", short.delete, methods=["DELETE"]),
        Route("/messages/{id}", short.update, methods=["PUT", "PATCH", "UPDATE"]),
        Route("/dev/messages", short.all, methods=["GET"]),
        Route("/dev/messages/status", short.by_status, methods=["GET"]),
        Route("/dev/messages/count", short.count, methods=["GET"]),
        Route("/messages", short.post, methods=["POST"]),
        Route("/messages", short.take, methods=["GET"]),
    ]
    for route in table:
        if route.endpoint in (short.read_messages, short.consume, short.take) and route.methods:
            route.methods.discard("HEAD")  # Starlette adds it; HEAD would receive messages and discard them
    return list[BaseRoute](table)


class _Short:
    def __init__(self, broker: Broker, read: ReadBody) -> None:
        self._broker = broker
        self._read = read

    async def push_message(self, request: HTTPRequest) -> Response:
        try:
            fields = await self._fields(request, "send", "msg")
            (id,) = await self._broker.send(QUEUE, [_draft(fields["msg"])])
        except MiniQError as error:
            return _answer({"success": False, "data": error.text}, _status(error))
        return _answer({"success": True, "data": {"message_id": id}})

    async def read_messages(self, request: HTTPRequest) -> Response:
        try:
            self._check(request, "receive")
            seconds = _seconds(request, "turn_around_time")
            received = await self._receive(seconds, self._broker.options.limits.batch)
        except MiniQError as error:
            return _answer({"success": False, "data": error.text}, _status(error))
        messages = [{"id": stored.message.id, "msg": _body(stored), **_state_fields(stored)} for stored in received]
        return _answer({"success": True, "data": messages})

    async def produce(self, request: HTTPRequest) -> Response:
        try:
            fields = await self._fields(request, "send", "message")
            (id,) = await self._broker.send(QUEUE, [_draft(fields["message"])])
        except MiniQError as error:
            return _answer({"message": error.text, "status": "error", "statusCode": _status(error)}, _status(error))
        return _answer({"message": "Message produced", "status": "success", "statusCode": 201, "id": id}, 201)

    async def consume(self, request: HTTPRequest) -> Response:
        try:
            self._check(request, "receive")
            seconds = _seconds(request, "visibility_timeout")
            limit = number(request.query_params, "limit", self._broker.options.limits.batch)
            received = await self._receive(seconds, limit)
        except MiniQError as error:
            return _refused(error)
        messages = [{"id": stored.message.id, "message": _body(stored), **_state_fields(stored)} for stored in received]
        return _answer(messages)

    async def delete(self, request: HTTPRequest) -> Response:
        try:
            self._check(request, "receive")
            done = await self._broker.ack_by_id(QUEUE, request.path_params["id"])
        except MiniQError as error:
            return _refused(error)
        return _answer({"success": done}, 200 if done else 404)

    async def update(self, request: HTTPRequest) -> Response:
        try:
            fields = await self._fields(request, "manage", "message")
            draft = _draft(fields["message"])
            done = await self._broker.edit_by_id(QUEUE, request.path_params["id"], draft.body, draft.content_type)
        except MiniQError as error:
            return _refused(error)
        return _answer({"success": done}, 200 if done else 404)

    async def all(self, request: HTTPRequest) -> Response:
        return await self._show(request, None)

    async def by_status(self, request: HTTPRequest) -> Response:
        try:
            return await self._show(request, _state(request))
        except MiniQError as error:
            return _refused(error)

    async def count(self, request: HTTPRequest) -> Response:
        try:
            self._check(request, "read")
            counts = (await self._broker.queue(QUEUE)).counts
            state = _state(request) if "status" in request.query_params else None
        except MiniQError as error:
            return _refused(error)
        numbers = {None: counts.total, "processing": counts.leased, "unprocessed": counts.ready + counts.delayed}
        return _answer({"count": numbers[state]})

    async def post(self, request: HTTPRequest) -> Response:
        try:
            fields = await self._fields(request, "send", "text")
            (id,) = await self._broker.send(QUEUE, [_draft(fields["text"])])
        except MiniQError as error:
            return _refused(error)
        return _answer({"id": id}, 201)

    async def take(self, request: HTTPRequest) -> Response:
        try:
            self._check(request, "receive")
            received = await self._broker.receive(QUEUE, mode="at-most-once")
        except MiniQError as error:
            return _refused(error)
        if not received:
            return Response(status_code=204)
        return _answer({"text": _body(received[0])})

    # Inside

    def _check(self, request: HTTPRequest, verb: str) -> None:
        self._broker.keys.check(bearer(request.headers.get("authorization")), verb, QUEUE)

    async def _fields(self, request: HTTPRequest, verb: str, required: str) -> dict[str, Any]:
        """The request's JSON object, which must have exactly the required field."""
        self._check(request, verb)
        raw = await self._read(request)
        fields: dict[str, Any] = _reader.read(raw, "json")
        if required not in fields:
            raise InvalidRequest(f'{required}: is required, as in {{"{required}": …}}', field=required)
        for name in fields:
            if name != required:
                raise InvalidRequest(f"{name[:80]}: no such field; use {required}", field=name[:80])
        return fields

    async def _receive(self, seconds: float | None, limit: int) -> list[Stored]:
        return await self._broker.receive(QUEUE, max=limit, visibility_timeout=seconds)

    async def _show(self, request: HTTPRequest, state: str | None) -> Response:
        try:
            self._check(request, "read")
            listed: list[dict[str, Any]] = []
            now = self._broker.clock.now()
            after: str | None = None
            size, limits = 0, self._broker.options.limits
            while True:
                page = await self._broker.peek(QUEUE, after=after, limit=self._broker.options.limits.batch)
                for stored in page.messages:
                    status = "processing" if stored.status(now) == "leased" else "unprocessed"
                    if state in (None, status):
                        fields = {"message": _body(stored), "status": status, **_state_fields(stored)}
                        listed.append({"id": stored.message.id, **fields})
                        size += stored.message.size
                        if len(listed) >= limits.batch or size >= limits.response_bytes:
                            return _answer(listed)
                after = page.next
                if after is None:
                    return _answer(listed)
        except MiniQError as error:
            return _refused(error)


def _draft(value: Any) -> Draft:
    return Draft(msgspec.json.encode(value))


def _body(stored: Stored) -> Any:
    message = stored.message
    if codec.is_json(message.content_type):
        return msgspec.Raw(message.body)
    return message.body.decode("utf-8", "replace")


def _state_fields(stored: Stored) -> dict[str, Any]:
    return {
        "sent_at": codec.moment(stored.message.sent_at),
        "receives": stored.receives,
        "visible_at": None if stored.visible_at == NEVER else codec.moment(stored.visible_at),
    }


def _state(request: HTTPRequest) -> str:
    state = request.query_params.get("status", "")
    if state not in ("processing", "unprocessed"):
        raise InvalidRequest(f"status: {state[:80]!r} is invalid; use processing or unprocessed", field="status")
    return state


def _seconds(request: HTTPRequest, name: str) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{name}: {text[:80]!r} is not a number of seconds", field=name) from None


def _status(error: MiniQError) -> int:
    return codec.STATUS.get(error.code, 500)


def _refused(error: MiniQError) -> Response:
    status = _status(error)
    return _answer({"success": False, "error": error.text, "code": error.code}, status)


def _answer(reply: Any, status: int = 200) -> Response:
    return Response(codec.encode_json(reply), status, media_type=JSON)
