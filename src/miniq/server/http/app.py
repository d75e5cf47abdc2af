"""HTTP on Starlette: all routes but the hot ones' fast lane, and how a request becomes a call.

`prepare` and `answer` are shared with the fast lane, so both lanes speak alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import perf_counter
from typing import Any, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from miniq.api import arrow, codec, shapes
from miniq.api.codec import MSGPACK, PROBLEM, Format
from miniq.api.tables import ArrowStream
from miniq.broker import Broker
from miniq.errors import InvalidRequest, MiniQError, NoRoute, StoreUnavailable, TooLarge, WrongMedia, WrongMethod
from miniq.message import JSON
from miniq.server.http import console, event_stream, openapi, prometheus, report, short_routes
from miniq.server.http.guard import Edge, Guard
from miniq.server.operations import OPERATIONS, READERS, Operation, Request, authorise, bearer, fault, run
from miniq.server.streams import Streamed


def prepare(operation: Operation, request: Request, raw: bytes, content_type: str) -> None:
    """Read a request's body into its record. Without a content type it is taken for JSON."""
    reader = READERS.get(operation.name)
    if reader is None:
        return
    if raw and is_arrow(content_type):
        if not operation.arrow:
            raise WrongMedia(f"content-type: {arrow.MEDIA} is for messages; use {JSON}", field="content-type")
        request.body = ArrowStream(raw)
        return
    if not raw:
        if not operation.optional:
            raise InvalidRequest("request: is empty; a JSON object is needed", field="request")
        raw = b"{}" if request_format(content_type) == "json" else b"\x80"
    request.body = reader.read(raw, request_format(content_type))


def is_arrow(content_type: str) -> bool:
    """Whether a request came as an Arrow stream."""
    return content_type[:40].partition(";")[0].strip().lower() == arrow.MEDIA


def request_format(content_type: str) -> Format:
    """In which format a request came; what comes in Arrow is answered in JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("", JSON, arrow.MEDIA) or kind.endswith("+json"):
        return "json"
    if kind in (MSGPACK, "application/x-msgpack"):
        return "msgpack"
    # What curl says of `-d` unless told otherwise; the body still has to be JSON.
    if kind == "application/x-www-form-urlencoded":
        return "json"
    raise WrongMedia(
        f"content-type: {content_type[:80]!r} is not spoken here; use {JSON} or {MSGPACK}", field="content-type"
    )


def reply_format(accept: str, asked: Format) -> Format:
    """In which format to answer: as accepted, else as asked."""
    if not accept or accept == "*/*":
        return asked
    if "msgpack" in accept:
        return "msgpack"
    if "json" in accept:
        return "json"
    return asked


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
            Route(event_stream.PATH, self._events, methods=["GET"]),
            Route(report.PATH, self._report, methods=["GET", "HEAD"]),
            *console.routes(),
            Route("/health", self._health, methods=["GET"]),
            Route("/ready", self._ready, methods=["GET"]),
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/openapi.json", openapi.document, methods=["GET"]),
            Route("/docs", openapi.page, methods=["GET"]),
            Route("/docs.js", openapi.script, methods=["GET"]),
        ]
        app = Starlette(
            routes=routes,
            exception_handlers={
                ClientDisconnect: self._failed,
                MiniQError: self._failed,
                HTTPException: self._failed,
                Exception: self._failed,
            },
        )
        app.router.redirect_slashes = False
        self.asgi = Edge(app, guard, problem_response)

    async def body(self, request: HTTPRequest, most: int | None = None) -> bytes:
        """The whole body of a request, up to the limit."""
        most = most or self._max_request
        size = request.headers.get("content-length", "0")
        if size.isdigit() and int(size) > most:
            raise too_large(int(size), most)
        raw = bytearray()
        async for chunk in request.stream():
            raw += chunk
            if len(raw) > most:
                raise too_large(len(raw), most)
        return bytes(raw)

    def _endpoint(self, operation: Operation) -> Any:
        async def endpoint(http: HTTPRequest) -> Response:
            began = perf_counter()
            headers = http.headers
            content_type = headers.get("content-type", "")
            most = self._broker.options.limits.upload_bytes if operation.name == "upload" else None
            request = Request(
                http.path_params,
                _query(operation, http.query_params),
                None,
                "json",
                bearer(headers.get("authorization")),
                headers.get("idempotency-key"),
            )
            if self._broker.tracer is not None:
                request.trace = traced(headers)
            authorise(self._broker, operation, request)  # before the body: who may not call fills no memory
            raw = await self.body(http, most if is_arrow(content_type) else None)
            format = request.format = request_format(content_type) if raw else "json"
            prepare(operation, request, raw, content_type)
            accept = headers.get("accept", "")
            out = request.out = reply_format(accept, format)
            request.arrow = arrow.MEDIA in accept
            reply = await _while_connected(http, operation, run(self._broker, operation, request))
            queue = self._broker.catalog.known(request.path.get("queue", ""))
            self._broker.metrics.call("http", operation.name, queue, perf_counter() - began)
            if operation.reply.shape is None:
                return Response(status_code=operation.status)
            if isinstance(reply, Streamed):
                return StreamingResponse(reply.pieces, operation.status, reply.headers, reply.media)
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
            return _json(shapes.HealthReply("away", str(error)), 503)
        return _json(shapes.HealthReply("ready"))

    async def _metrics(self, request: HTTPRequest) -> Response:
        authorise_read(self._broker, request)
        return Response(await prometheus.render(self._broker), media_type=prometheus.CONTENT_TYPE)

    async def _report(self, request: HTTPRequest) -> Response:
        authorise_read(self._broker, request)
        return await report.answer(self._broker.options.report)

    async def _events(self, request: HTTPRequest) -> Response:
        return await event_stream.listen(self._broker, request)

    async def _failed(self, request: HTTPRequest, error: Exception) -> Response:
        """Every error as a problem; the short routes have a shape of their own."""
        if isinstance(error, ClientDisconnect):
            return Response(status_code=499)
        allow = None
        if isinstance(error, HTTPException):
            allow = (error.headers or {}).get("Allow")
            error = _from_starlette(request, error)
        ours = fault(request.url.path, error)
        self._broker.metrics.errors["http", ours.code] += 1
        response = problem_response(ours)
        if allow is not None:
            response.headers["allow"] = allow
        return response


def traced(headers: Mapping[str, str]) -> dict[str, str] | None:
    """The trace context that a request carries."""
    found = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
    return found or None


def too_large(size: int, most: int) -> TooLarge:
    return TooLarge(f"request: {size} bytes; at most {most}", field="request")


def problem_response(error: MiniQError) -> Response:
    found = codec.problem(error)
    headers = {}
    if found.status == 503:
        headers["retry-after"] = "1"
    if found.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(codec.encode_json(found), found.status, headers, PROBLEM)


def authorise_read(broker: Broker, request: HTTPRequest) -> None:
    """What shows the broker as a whole needs a key that may read everything."""
    broker.keys.check(bearer(request.headers.get("authorization")), "read", None)


async def _while_connected(http: HTTPRequest, operation: Operation, call: Any) -> Any:
    """Wait for a call; a receive whose client goes away is taken back, and nothing more is claimed for one."""
    if not operation.long_poll:
        return await call
    task = asyncio.ensure_future(call)
    gone = asyncio.ensure_future(_disconnected(http))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(http: HTTPRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _query(operation: Operation, found: Mapping[str, str]) -> Mapping[str, str]:
    for name in found:
        if name not in operation.in_query:
            known = ", ".join(operation.in_query) or "none"
            raise InvalidRequest(f"{name[:80]}: there is no such parameter; there are: {known}", field=name[:80])
    return found


def _from_starlette(request: HTTPRequest, error: HTTPException) -> MiniQError:
    path = request.url.path[:200]
    if error.status_code == 404:
        return NoRoute(f"there is nothing at {path}; see /docs")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return WrongMethod(f"{request.method[:20]} is not for {path}; use {allowed}")
    return cast(MiniQError, InvalidRequest(str(error.detail)))


def _json(reply: Any, status: int = 200) -> Response:
    return Response(codec.encode_json(reply), status, media_type=JSON)
