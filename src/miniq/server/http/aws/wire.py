"""The wire of SQS and SNS: an ASGI application beside the native routes, at `/` and at the URLs of queues.

An action belongs to the service of the request: JSON is SQS; of a form, the version of its protocol tells, else the
scope of its signature, else the name of the action.

Without API keys any credentials are accepted, and none are needed. With keys a request must be signed (`signature.py`)
by a key that has the right of the action, or carry an API key as the native routes do.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Coroutine
from functools import partial
from hashlib import sha256
from time import perf_counter
from typing import Any
from uuid import uuid4

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from miniq.broker import Broker
from miniq.broker.keyring import AwsIdentity, Secret
from miniq.dispatch import Caller
from miniq.errors import MiniQError, Overloaded, TooLarge
from miniq.server.http.aws import message_attributes, signature
from miniq.server.http.aws.actions import ACTIONS, ANY_RIGHT, Action, Call, Memory
from miniq.server.http.aws.addresses import Place, queue_of_arn, queue_of_url, region_of
from miniq.server.http.aws.errors import (
    ACCESS_DENIED,
    BAD_SIGNATURE,
    INTERNAL,
    UNKNOWN_ACTION,
    AwsError,
    invalid,
    translated,
)
from miniq.server.http.aws.protocols import TARGET, VERSIONS, Answer, AwsProtocol, JsonProtocol, QueryProtocol, Service
from miniq.server.http.aws.sns import errors as sns_errors
from miniq.server.http.aws.sns import publishing, subjects, subscriptions, topics
from miniq.server.http.aws.sqs import move_tasks, queues, receiving, sending, shapes
from miniq.server.http.aws.sqs.queue_attributes import MAX_SIZE
from miniq.server.http.long_poll import while_connected
from miniq.server.operations import bearer

log = logging.getLogger("miniq.aws")
MODULES = (sending, receiving, queues, move_tasks, topics, subscriptions, publishing)
"""Their functions are in the tables of actions."""
MAX_REQUEST = 5 * MAX_SIZE
"""Maximum size of a request: forms take up to four bytes for one of a binary attribute."""
UNVERIFIED = 4
"""The share of `max_buffered_bytes` for bodies whose signature is not verified yet: the id of a key is no secret."""
SMALL = 65536
"""Size up to which a body always has a place."""
_QUEUE_PATH = re.compile(r"/\d{12}/([^/]+)/?")
_FORM = "application/x-www-form-urlencoded"
_CREDENTIAL = re.compile(r"Credential=[^/,&%]*(?:/|%2F)\d*(?:/|%2F)([a-z0-9-]+)(?:/|%2F)([a-z0-9-]+)(?:/|%2F)")


class AwsWire:
    """The side of a broker that speaks SQS and SNS."""

    def __init__(self, broker: Broker, max_request: int) -> None:
        self._broker = broker
        self._max_request = min(max_request, MAX_REQUEST)
        self._max_unverified = broker.options.max_buffered_bytes // UNVERIFIED
        self._unverified = 0
        """Bytes of bodies that are being received, and whose signature is verified when they are there."""
        self._memory = Memory(broker)
        self._limits = message_attributes.limits_of(broker.options.limits)

    def speaks(self, scope: Scope) -> bool:
        """Whether a request is one of SQS or SNS."""
        path, fields = scope["path"], scope["fields"]
        if scope["method"] not in ("GET", "POST"):  # a HEAD must not do what a GET does
            return False
        if path != "/":
            return _QUEUE_PATH.fullmatch(path) is not None
        if fields.get("x-amz-target", "").startswith(TARGET):
            return True
        return _is_form(scope) or b"Action=" in scope["query_string"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began, id = perf_counter(), str(uuid4())
        region, service = _credential(scope)
        protocol: AwsProtocol = QueryProtocol(b"", b"", service or "sqs")
        if "x-amz-target" in scope["fields"]:
            protocol = JsonProtocol(b"")
        name = subject = ""
        try:
            secret, body = await self._authenticated(scope, receive)
            protocol = _protocol(scope, body)
            action = _action(scope, protocol, service)
            name = action.name
            if isinstance(secret, AwsIdentity) and service != action.service:
                text = f"Credential should be scoped to correct service: '{action.service}'."
                raise AwsError(BAD_SIGNATURE, text)
            call = self._call(scope, receive, action, protocol, Caller(secret), region)
            subject = call.name
            answer = protocol.answer(name, await action.run(call), id)
        except ClientDisconnect:
            return
        except Exception as error:
            shown = _shown(name or "request", error, protocol.service)
            self._broker.metrics.errors[protocol.service, shown.kind.code] += 1
            answer = protocol.failure(shown, id)
        else:
            self._broker.metrics.call(protocol.service, name, subject, perf_counter() - began)
        await _reply(send, answer, id)

    async def _body(self, receive: Receive, fields: dict[str, str]) -> bytes:
        size = fields.get("content-length", "0")
        chunks: list[bytes] = []
        total = int(size) if size.isdigit() else 0
        more = total <= self._max_request
        received = 0
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            received += len(chunks[-1])
            more = message.get("more_body", False) and received <= self._max_request
        if max(total, received) > self._max_request:
            raise TooLarge(f"request: over {self._max_request} bytes; send less at once", field="request")
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _unverified_body(self, receive: Receive, fields: dict[str, str]) -> bytes:
        """A body whose sender may know no more of a key than its id."""
        size = fields.get("content-length", "")
        expected = int(size) if size.isdigit() else self._max_request
        if expected <= SMALL:
            return await self._body(receive, fields)
        if self._unverified + expected > self._max_unverified and self._unverified:
            raise Overloaded(
                f"request: bodies of requests without {signature.HASH} would be over {self._max_unverified} bytes "
                f"(max_buffered_bytes / {UNVERIFIED}); retry later, or send that header",
                field="request",
            )
        self._unverified += expected
        try:
            return await self._body(receive, fields)
        finally:
            self._unverified -= expected

    # The caller

    async def _authenticated(self, scope: Scope, receive: Receive) -> tuple[Secret | None, bytes]:
        """The caller of a request, None while no keys exist; and its body, of which nothing is decoded before."""
        keys, fields = self._broker.keys, scope["fields"]
        if keys.open:
            return None, await self._body(receive, fields)
        header = fields.get("authorization", "")
        if header[:7].lower() == "bearer ":
            secret = bearer(header)
            keys.identify(secret)
            return secret, await self._body(receive, fields)
        query = scope["query_string"].decode("latin-1")
        head = signature.SignedHead(scope["method"], scope["raw_path"].decode("latin-1"), query, fields)
        signed = signature.read(fields, query)
        identity = signature.identify(keys, signed)
        signature.check_head(signed, head, self._broker.clock.wall())
        declared = fields.get(signature.HASH)
        if declared is not None:  # the body need not be there to verify what was signed
            signature.verify(keys, signed, head, declared)
        body = await self._body(receive, fields) if declared else await self._unverified_body(receive, fields)
        payload = sha256(body).hexdigest()
        if declared is None:
            signature.verify(keys, signed, head, payload)
        elif declared != payload:
            raise AwsError(BAD_SIGNATURE, f"{signature.HASH} is not the SHA-256 of the body that was received.")
        return identity, body

    # The call

    def _call(
        self, scope: Scope, receive: Receive, action: Action, protocol: AwsProtocol, caller: Caller, region: str
    ) -> Call:
        request = protocol.read(action.request)
        fields = scope["fields"]
        place = Place(f"{scope['scheme']}://{fields.get('host', 'localhost')}", region_of(region))
        if action.service == "sns":
            name, subscription = subjects.of(action, request)
        else:
            name, subscription = _queue(action, request, scope["path"]), ""
        call = Call(
            self._broker,
            caller,
            place,
            name,
            request,
            self._memory,
            self._limits,
            partial(_wait, receive),
            protocol.shown,
            fields.get("x-amzn-trace-id"),
            subscription,
        )
        self._check(action, call)
        return call

    def _check(self, action: Action, call: Call) -> None:
        """Raise unless the caller has the right of the action."""
        keys = self._broker.keys
        if keys.open or action.subject == "none":
            return
        if action.right != ANY_RIGHT:
            kind = "queue" if action.service == "sqs" else "topic"
            keys.check(call.caller.secret, action.right, call.name, kind)
        elif not call.has_right(call.name):
            raise AwsError(ACCESS_DENIED, f"this key has no right on queue {call.name[:128]!r}")


def _protocol(scope: Scope, body: bytes) -> AwsProtocol:
    if "x-amz-target" in scope["fields"]:
        return JsonProtocol(body)
    return QueryProtocol(body if _is_form(scope) else b"", scope["query_string"])


def _is_form(scope: Scope) -> bool:
    return bool(scope["method"] == "POST" and scope["fields"].get("content-type", "").lower().startswith(_FORM))


def _credential(scope: Scope) -> tuple[str, Service | None]:
    """The region and the service for which a request is signed, as far as it says."""
    fields = scope["fields"]
    text = fields.get("authorization") or scope["query_string"].decode("latin-1")
    credential = _CREDENTIAL.search(text)
    if credential is None:
        return "", None
    return credential[1], next((service for service in ACTIONS if service == credential[2]), None)


def _action(scope: Scope, protocol: AwsProtocol, service: Service | None) -> Action:
    if isinstance(protocol, QueryProtocol):
        name = protocol.fields.get("Action", "")
        service = VERSIONS.get(protocol.fields.get("Version", ""), service)
        if service is None:
            service = "sns" if name in ACTIONS["sns"] and name not in ACTIONS["sqs"] else "sqs"
        protocol.service = service
    else:
        name = scope["fields"]["x-amz-target"].removeprefix(TARGET)
    action = ACTIONS[protocol.service].get(name)
    at_queue = isinstance(protocol, QueryProtocol) and scope["path"] != "/"
    if action is None or (at_queue and action.subject in ("name", "none")):  # as at AWS, a queue's URL has its own
        raise AwsError(UNKNOWN_ACTION, f"The action {name[:80]} is not valid for this endpoint.")
    return action


def _queue(action: Action, request: Any, path: str) -> str:
    """The queue that a request is about."""
    if action.subject == "none":
        return ""
    if action.subject == "name":
        return str(request.queue_name)
    if action.subject == "url":
        return queue_of_url(request.queue_url or path)
    if isinstance(request, shapes.CancelMessageMoveTaskRequest):
        arn = move_tasks.read_handle(request.task_handle)[1]
    else:
        arn = request.source_arn
    queue = queue_of_arn(arn)
    if queue is None:
        form = "arn:<partition>:<service>:<region>:<account-id>:<resource-id>"
        raise invalid(f"You must use this format to specify the SourceArn: {form}")
    return queue


async def _wait(receive: Receive, call: Coroutine[Any, Any, Any]) -> Any:
    return await while_connected(receive, call)


def _shown(action: str, error: Exception, service: Service) -> AwsError:
    if isinstance(error, AwsError):
        return error if service == "sqs" else sns_errors.of_service(error)
    if isinstance(error, MiniQError):
        return translated(error) if service == "sqs" else sns_errors.translated(error)
    log.error("%s failed", action, exc_info=error)
    return AwsError(INTERNAL, "internal error; see the broker's log")


async def _reply(send: Send, answer: Answer, id: str) -> None:
    headers = [
        (b"content-type", answer.media.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"x-amzn-requestid", id.encode()),
        *answer.headers,
    ]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
