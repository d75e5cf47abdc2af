"""The OpenAPI document, generated from the operations table and the wire records, and the `/docs` page for it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata, resources
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from miniq.api import shapes
from miniq.api.codec import MSGPACK, PROBLEM
from miniq.api.operation import plain_type
from miniq.message import JSON, QueueSettings
from miniq.server.http import event_stream, report
from miniq.server.operations import OPERATIONS, Operation

_ERRORS = {
    "400": "A field is invalid; `field` names it",
    "401": "API key missing, unknown or revoked",
    "403": "The API key does not allow this",
    "404": "No such queue or message",
    "409": "Stale receipt, or the message is leased",
    "413": "Over a size limit",
    "414": "The URL is too long",
    "415": "Unsupported content type or encoding",
    "429": "The queue is full",
    "431": "The headers are too large",
    "503": "The store is unreachable; retry",
    "507": "The disk is nearly full",
}


_DESCRIPTION = (
    "A message broker. Durations are in seconds, timestamps are RFC 3339 in UTC. Requests and replies are JSON or "
    "MessagePack (application/msgpack); errors are RFC 9457 problems with a stable `code`."
)


@cache
def build() -> bytes:
    """The document as JSON."""
    kinds = [kind for operation in OPERATIONS for kind in _kinds(operation)]
    unique = list(dict.fromkeys([*kinds, QueueSettings, shapes.Problem, shapes.HealthReply, shapes.StatsEvent]))
    _, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    for name in ("SendBody", "WireDraft", "EditBody", "WireMessage", "WireEvent"):
        # msgspec already gives `Raw` the schema of any JSON value; add a description.
        components[name]["properties"]["body"] = {"description": "Any JSON value, or a string for text/*"}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    health = {code: _content(shapes.HealthReply, text) for code, text in (("200", "Yes"), ("503", "No"))}
    paths["/health"] = _get("health", "Liveness: the process is running", health)
    paths["/ready"] = _get("ready", "Readiness: the store accepts writes", health)
    data = {"type": "string", "contentMediaType": JSON, "contentSchema": _ref(shapes.StatsEvent)}
    event = {"type": "object", "properties": {"event": {"enum": ["stats", "problem"]}, "data": data}}
    paths[event_stream.PATH] = _get(
        "events",
        "Stream the statistics of all queues, or of one, as server-sent events",
        {
            "200": {"description": "A stream of events", "content": {"text/event-stream": {"schema": event}}},
            **_problems(),
        },
        description="Sends an event `stats` every `interval` seconds and ends after `count` events. "
        "Requires the permission `read`.",
        parameters=_query(event_stream.PARAMETERS),
    )
    page = {"description": "The page", "content": {"text/html": {"schema": {"type": "string"}}}}
    paths[report.PATH] = _get(
        "report",
        "The latest page written by `miniq pipeline report`",
        {"200": page, **_problems()},
        description="Requires the permission `read` on all queues.",
    )
    document = {
        "openapi": "3.1.0",
        "info": {"title": "MiniQ", "version": metadata.version("miniq"), "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=1)


def _get(name: str, summary: str, responses: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A route outside the table of operations."""
    return {"get": {"operationId": name, "summary": summary, "tags": ["broker"], "responses": responses, **more}}


def _problems() -> dict[str, Any]:
    return {code: _content(shapes.Problem, text, PROBLEM) for code, text in _ERRORS.items()}


def _kinds(operation: Operation) -> list[Any]:
    body = None if operation.body is None else operation.body.shape
    return [kind for kind in (body, operation.reply.shape) if hasattr(kind, "__struct_fields__")]


def _describe(operation: Operation) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)} for name in operation.in_path
    ]
    parameters += _query({name: plain_type(info) for name, info in operation.in_query.items()})
    description: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": f"Requires the permission `{operation.right}`.",
        "tags": [_tag(operation)],
        "parameters": parameters,
        "responses": {
            str(operation.status): {"description": "Success"}
            if operation.reply.shape is None
            else _content(operation.reply.shape, "Success"),
            **_problems(),
        },
    }
    if operation.body is not None:
        kind = QueueSettings if operation.name == "configure" else operation.body.shape
        description["requestBody"] = {
            "required": not operation.body.optional,
            "content": {media: {"schema": _ref(kind)} for media in (JSON, MSGPACK)},
        }
    return description


def _query(parameters: Mapping[str, type]) -> list[dict[str, Any]]:
    kinds = {int: "integer", float: "number"}
    return [
        {"name": name, "in": "query", "schema": {"type": kinds.get(kind, "string")}}
        for name, kind in parameters.items()
    ]


def _tag(operation: Operation) -> str:
    if "message" in operation.path or operation.hot:
        return "messages"
    return "queues" if "queues" in operation.path else "broker"


def _path_schema(name: str) -> dict[str, str]:
    return {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"} if name == "queue" else {"type": "string"}


def _content(kind: Any, text: str, media: str | None = None) -> dict[str, Any]:
    medias = [media] if media else [JSON, MSGPACK]
    return {"description": text, "content": {each: {"schema": _ref(kind)} for each in medias}}


def _ref(kind: Any) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


async def document(request: Request) -> Response:
    return Response(build(), media_type=JSON)


def _page(name: str, media: str) -> Response:
    text = resources.files("miniq.server.http").joinpath("pages", name).read_bytes()
    policy = (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Response(text, media_type=media, headers={"content-security-policy": policy})


async def page(request: Request) -> Response:
    return _page("docs.html", "text/html; charset=utf-8")


async def script(request: Request) -> Response:
    return _page("docs.js", "text/javascript; charset=utf-8")
