"""The OpenAPI document, generated from the operations table and the wire records, and the `/docs` page for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from miniq.topic import TopicSettings

_ERRORS = {
    "400": "A field is invalid; `field` names it",
    "401": "API key missing, unknown or revoked",
    "403": "The API key does not allow this",
    "404": "No such queue, topic, message or schedule",
    "405": "The path exists, but not with this method",
    "406": "The broker lacks the package for Arrow",
    "409": "Stale receipt, or the message is leased",
    "410": "The claim is no longer kept",
    "413": "Over a size limit",
    "414": "The URL is too long",
    "415": "Unsupported content type or encoding",
    "422": "The idempotency key was used with other messages",
    "429": "The queue is full, or there are too many queues or schedules",
    "431": "The headers are too large",
    "503": "The store is unreachable, or the broker is overloaded; retry",
    "507": "The disk is nearly full",
}


_SOME: dict[str, Callable[[Operation], bool]] = {
    "406": lambda operation: operation.table is not None,
    "410": lambda operation: "{queue}/claims" in operation.path,
    "422": lambda operation: operation.repeat == "named",
}
"""Errors that not every call has."""

_FIELDS = {
    "body": "Any JSON value, or a string for `text/*`",
    "data": "Instead of `body`, arbitrary bytes: base64 in JSON, binary in MessagePack",
    "content_type": "`application/json` by default, `application/octet-stream` with `data`",
    "headers": "A map of strings to strings",
    "priority": "0 to 9, higher first",
    "delay": "Seconds until it can be received; by default the queue's",
    "deliver_at": "Instead of `delay`, the moment at which it can be received, in RFC 3339",
    "ttl": "Seconds until it expires, unless it is leased then",
    "key": "An application-defined label",
    "recipient": "Set, only the consumer with this name can receive it",
    "group": "Messages of a group are delivered in order, one at a time",
    "dedup_id": "A second send with the same value within the queue's `dedup_window` returns the first id",
    "cron": "Five fields: minute, hour, day of month, month, day of week",
    "every": "Seconds between two messages",
    "at": "The only moment, in RFC 3339",
    "timezone": "Of `cron`, an IANA name such as Europe/Berlin; UTC by default",
    "catch_up": "Which moments are sent later if no broker ran: `skip` (none), `last` (default) or `all`",
    "paused": "Whether nothing is sent; without it, an existing schedule stays as it is",
}
"""The fields of a message and of a schedule, wherever they occur."""

_IDEMPOTENCY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Names the call: repeated within five minutes, it adds nothing and gets the original reply",
    "schema": {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[!-~]+$"},
}

_DESCRIPTION = (
    "A message broker. Durations are in seconds, timestamps are RFC 3339 in UTC. Requests and replies are JSON or "
    "MessagePack (application/msgpack); errors are RFC 9457 problems with a stable `code`."
)


@cache
def build() -> bytes:
    """The document as JSON."""
    kinds = [kind for operation in OPERATIONS for kind in _kinds(operation)]
    unique = list(
        dict.fromkeys([*kinds, QueueSettings, TopicSettings, shapes.Problem, shapes.HealthReply, shapes.StatsEvent])
    )
    _, components = msgspec.json.schema_components(unique, ref_template="#/components/schemas/{name}")
    for name in ("SendBody", "WireDraft", "EditBody", "WireMessage", "WireEvent", "ScheduleBody"):
        for field, schema in components[name]["properties"].items():
            if field in _FIELDS:
                schema["description"] = _FIELDS[field]
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


def _problems(operation: Operation | None = None) -> dict[str, Any]:
    return {
        code: _content(shapes.Problem, text, PROBLEM)
        for code, text in _ERRORS.items()
        if code not in _SOME or (operation is not None and _SOME[code](operation))
    }


def _kinds(operation: Operation) -> list[Any]:
    body = None if operation.body is None else operation.body.shape
    return [kind for kind in (body, operation.reply.shape) if hasattr(kind, "__struct_fields__")]


def _describe(operation: Operation) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _path_schema(name)} for name in operation.in_path
    ]
    parameters += _query({name: plain_type(info) for name, info in operation.in_query.items()})
    if operation.repeat == "named":
        parameters.append(_IDEMPOTENCY)
    description: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _permission(operation),
        "tags": [_tag(operation)],
        "parameters": parameters,
        "responses": {
            str(operation.status): {"description": "Success"}
            if operation.reply.shape is None
            else _content(operation.reply.shape, "Success"),
            **_problems(operation),
        },
    }
    if operation.body is not None:
        settings = {"configure": QueueSettings, "configure_topic": TopicSettings}
        kind = settings.get(operation.name, operation.body.shape)
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
    if "topics" in operation.path:
        return "topics"
    if "message" in operation.path or operation.hot:
        return "messages"
    return "queues" if "queues" in operation.path else "broker"


def _path_schema(name: str) -> dict[str, str]:
    is_name = name in ("queue", "topic", "name")
    return {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"} if is_name else {"type": "string"}


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


def _permission(operation: Operation) -> str:
    other = f" or `{operation.alternative}`" if operation.alternative else ""
    return f"Requires the permission `{operation.right}`{other}."
