"""The ordinary lane of HTTP: a Starlette application with all routes. The fast lane uses its functions that read
requests and describe errors."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from miniq.api import arrow, codec, shapes
from miniq.api.codec import MSGPACK, PROBLEM, Format
from miniq.api.tables import ArrowStream
from miniq.broker import Broker
from miniq.errors import InvalidRequest, MiniQError, NoRoute, StoreUnavailable, TooLarge, WrongMedia, WrongMethod
from miniq.message import JSON
from miniq.server.http import console, event_stream, manual, openapi, prometheus, report, short_routes
from miniq.server.http.aws.wire import AwsWire
from miniq.server.http.guard import Guard, GuardedApp
from miniq.server.http.long_poll import while_connected
from miniq.server.http.streaming import StreamingAnswer
from miniq.server.operations import (
    OPERATIONS,
    READERS,
    Operation,
    Request,
    authorise,
    bearer,
    check_query,
    fault,
    run,
    waits,
)
from miniq.server.streams import Streamed


def prepare(operation: Operation, request: Request, raw: bytes, content_type: str) -> None:
    """Read the body of a request. Without a content type it is JSON; an empty one is an empty object."""
    reader, body = READERS.get(operation.name), operation.body
    if raw:
        request.format = request_format(content_type)
    if reader is None or body is None:
        return
    if not raw:
        if not body.optional:
            raise InvalidRequest("request: empty; send a JSON object", field="request")
        request.body = reader.read(b"{}", "json")
    elif content_type == JSON or not is_arrow(content_type):
        request.body = reader.read(raw, request.format)
    elif operation.arrow:
        request.body = ArrowStream(raw)
    else:
        raise WrongMedia(f"content-type: {arrow.MEDIA} is for messages; use {JSON}", field="content-type")


def is_arrow(content_type: str) -> bool:
    """Whether a body is an Arrow stream."""
    return content_type[:40].partition(";")[0].strip().lower() == arrow.MEDIA


def request_format(content_type: str) -> Format:
    """The format of a request. Arrow requests are answered in JSON. A form is what `curl -d` sends by default; its body
    must be JSON all the same."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("", JSON, arrow.MEDIA, "application/x-www-form-urlencoded") or kind.endswith("+json"):
        return "json"
    if kind in (MSGPACK, "application/x-msgpack"):
        return "msgpack"
    text = f"content-type: {content_type[:80]!r} is not supported; use {JSON} or {MSGPACK}"
    raise WrongMedia(text, field="content-type")


def reply_format(accept: str, request: Format) -> Format:
    """The format of a reply: the one accepted, else that of the request."""
    return "msgpack" if "msgpack" in accept else "json" if "json" in accept else request


class HttpApp:
    """The ASGI application of a broker."""

    def __init__(self, broker: Broker, max_request: int, guard: Guard) -> None:
        self._broker = broker
        self._max_request = max_request
        routes: list[BaseRoute] = [
            Route(operation.path, self._endpoint(operation), methods=[operation.method]) for operation in OPERATIONS
        ]
        routes += short_routes.routes(broker, self.body)
        routes += [
            Route(event_stream.PATH, self._events),
            Route(report.PATH, self._report),
            *console.routes(),
            *manual.ManualPages().routes(),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
            Route("/openapi.json", openapi.document),
            Route("/docs", openapi.page),
            Route("/docs.js", openapi.script),
        ]
        handled = (ClientDisconnect, MiniQError, HTTPException, Exception)
        self._routes = routes
        app = Starlette(routes=routes, exception_handlers=dict.fromkeys(handled, self._failed))
        app.router.redirect_slashes = False
        aws = AwsWire(broker, max_request)

        async def routed(scope: Scope, receive: Receive, send: Send) -> None:
            is_native = scope["path"].startswith("/v1/")
            await (app if is_native or not aws.speaks(scope) else aws)(scope, receive, send)

        self.asgi = GuardedApp(routed, guard, problem_response)

    async def body(self, request: HTTPRequest, limit: int | None = None) -> bytes:
        """The whole body of a request, up to the limit."""
        limit = limit or self._max_request
        size = request.headers.get("content-length", "0")
        if size.isdigit() and int(size) > limit:
            raise too_large(limit, int(size))
        chunks: list[bytes] = []
        received = 0
        async for chunk in request.stream():
            chunks.append(chunk)
            received += len(chunk)
            if received > limit:
                raise too_large(limit)
        return b"".join(chunks)

    def _endpoint(self, operation: Operation) -> Any:
        async def endpoint(http: HTTPRequest) -> Response:
            began = perf_counter()
            headers = http.headers
            content_type = headers.get("content-type", "")
            query = http.query_params
            check_query(query, operation.in_query)
            secret, call = bearer(headers.get("authorization")), headers.get("idempotency-key")
            request = Request(http.path_params, query, None, "json", secret, call)
            if self._broker.tracer is not None:
                request.trace = trace_context(headers)
            authorise(self._broker, operation, request)  # before its body takes up memory
            is_upload = operation.name == "upload" and is_arrow(content_type)
            raw = await self.body(http, self._broker.options.limits.upload_bytes if is_upload else None)
            prepare(operation, request, raw, content_type)
            accept = headers.get("accept", "")
            out = request.out = reply_format(accept, request.format) if accept else request.format
            request.arrow = arrow.MEDIA in accept
            running = run(self._broker, operation, request)
            is_poll = waits(operation, request)
            reply = await (while_connected(http.receive, running) if is_poll else running)
            self._broker.metrics.call("http", operation.name, request.path.get("queue", ""), perf_counter() - began)
            if operation.reply.shape is None:
                return Response(status_code=operation.status)
            if isinstance(reply, Streamed):
                return StreamingAnswer(reply.pieces, operation.status, reply.headers, reply.media)
            return Response(codec.encode(reply, out), operation.status, media_type=codec.MEDIA[out])

        endpoint.__name__ = operation.name
        return endpoint

    async def _health(self, request: HTTPRequest) -> Response:
        return _json(shapes.HealthReply("ok"))

    async def _ready(self, request: HTTPRequest) -> Response:
        failure = self._broker.store.failure()
        if failure is not None:
            return _json(shapes.HealthReply("failed", str(failure)), 503)
        try:
            await self._broker.store.check()
        except StoreUnavailable as error:
            return _json(shapes.HealthReply("unavailable", str(error)), 503)
        return _json(shapes.HealthReply("ready"))

    async def _metrics(self, request: HTTPRequest) -> Response:
        authorise_read(self._broker, request)
        return StreamingAnswer(await prometheus.render(self._broker), media_type=prometheus.CONTENT_TYPE)

    async def _report(self, request: HTTPRequest) -> Response:
        authorise_read(self._broker, request)
        return await report.answer(self._broker.options.report)

    async def _events(self, request: HTTPRequest) -> Response:
        return await event_stream.listen(self._broker, request)

    def _methods(self, request: HTTPRequest) -> str:
        """All methods of the routes that a path leads to."""
        routes = [route for route in self._routes if route.matches(request.scope)[0] != Match.NONE]
        return ", ".join(sorted({method for route in routes for method in getattr(route, "methods", None) or ()}))

    async def _failed(self, request: HTTPRequest, error: Exception) -> Response:
        """Answer an error with a problem; the short routes have their own error replies."""
        if isinstance(error, ClientDisconnect):
            return Response(status_code=499)
        allow = None
        if isinstance(error, HTTPException):
            if error.status_code == 405:
                allow = self._methods(request)
            error = _from_starlette(request, error, allow)
        shown = fault(request.scope["path"], error)
        self._broker.metrics.errors["http", shown.code] += 1
        response = problem_response(shown)
        if allow is not None:
            response.headers["allow"] = allow
        return response


def trace_context(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The trace context of a request."""
    return {name: headers[name] for name in ("traceparent", "tracestate") if name in headers} or None


def too_large(limit: int, size: int | None = None) -> TooLarge:
    """The error for a body over the limit; `size` is what the request declares."""
    return TooLarge(f"request: {f'over {limit}' if size is None else size} bytes; at most {limit}", field="request")


def error_headers(problem: shapes.Problem) -> list[tuple[str, str]]:
    """The extra headers of a reply with an error."""
    return _ERROR_HEADERS.get(problem.status, [])


_ERROR_HEADERS = {503: [("retry-after", "1")], 401: [("www-authenticate", "Bearer")]}


def problem_response(error: MiniQError) -> Response:
    problem = codec.problem(error)
    return Response(codec.encode_json(problem), problem.status, dict(error_headers(problem)), PROBLEM)


def authorise_read(broker: Broker, request: HTTPRequest) -> None:
    """Raise unless the caller may read all queues."""
    broker.keys.check(bearer(request.headers.get("authorization")), "read", None)


def _from_starlette(request: HTTPRequest, error: HTTPException, allow: str | None) -> MiniQError:
    path = request.scope["path"][:200]
    if error.status_code == 404:
        return NoRoute(f"not found: {path}; see /docs")
    if error.status_code == 405:
        return WrongMethod(f"{request.method[:20]} is not allowed for {path}; use {allow}")
    return cast(MiniQError, InvalidRequest(str(error.detail)))


def _json(reply: Any, status: int = 200) -> Response:
    return Response(codec.encode_json(reply), status, media_type=JSON)
