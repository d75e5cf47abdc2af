"""Every call of the API in one table: route, right that it needs, shapes in and out, broker call.

Both lanes of HTTP, the commands of ZeroMQ, the OpenAPI document and the conformance suite are made from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from msgspec import UNSET, Struct
from msgspec.structs import replace

from miniq.api import arrow, codec, shapes
from miniq.api.codec import Format
from miniq.api.plain import SendReader
from miniq.broker import Broker
from miniq.broker.keyring import ApiKey, Secret
from miniq.errors import InvalidRequest, MiniQError, MissingExtra, WrongMedia
from miniq.message import Draft, Mode, PlainDrafts, QueueSettings, StageName, Status
from miniq.server import monitoring, streams
from miniq.server.query import moment, number
from miniq.server.streams import Streamed


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


Run = Callable[[Broker, Request], Coroutine[Any, Any, Any]]


class ArrowBody(Struct):
    """A body that came as an Arrow stream, and is not read yet."""

    raw: bytes

    def drafts(self) -> Sequence[Draft]:
        """The messages in it."""
        try:
            return arrow.drafts_of(self.raw)
        except MissingExtra as error:
            raise WrongMedia(error.text, field="content-type") from None


class Operation(Struct, frozen=True):
    """One call. `hot` ones are answered by the fast lane; `verb` is the right it needs (see `keyring.py`)."""

    name: str
    method: str
    path: str
    verb: str
    summary: str
    run: Run
    body: Any = None
    """The record of the request's body, None if it has none."""
    optional: bool = False
    """Whether the body may be left out."""
    query: dict[str, type] = {}
    reply: Any = None
    """The record of the reply, None if it has none."""
    status: int = 200
    hot: bool = False
    arrow: bool = False
    """Whether its body may come as an Arrow stream."""


def refuse_with_arrow(query: Mapping[str, str], *names: str) -> None:
    """What cannot be asked for together with Arrow."""
    for name in names:
        if name in query:
            raise InvalidRequest(
                f"{name}: is not for replies in Arrow; filter the records, or ask for JSON", field=name
            )


def bearer(header: str | None) -> str | None:
    """The API key in an Authorization header."""
    if header is None:
        return None
    scheme, _, secret = header.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


# Messages


async def send(broker: Broker, request: Request) -> shapes.SentReply:
    body: shapes.SendBody | PlainDrafts | ArrowBody = request.body
    format = request.format
    drafts: Sequence[Draft]
    if isinstance(body, ArrowBody):
        drafts = body.drafts()
    elif isinstance(body, PlainDrafts):
        drafts = body
    elif body.messages is UNSET:
        drafts = [codec.draft_of(body, format)]
    else:
        if body.body is not UNSET or body.data is not UNSET:
            raise InvalidRequest("messages: given beside body; send one message or many", field="messages")
        drafts = codec.drafts_of(body.messages, format)
    if request.carried:
        drafts = [_with_trace(draft, request.carried) for draft in drafts]
    return shapes.SentReply(await broker.send(request.path["queue"], drafts, request.call))


def _with_trace(draft: Draft, carried: Mapping[str, str]) -> Draft:
    if draft.headers is not None and "traceparent" in draft.headers:
        return draft
    return replace(draft, headers={**(draft.headers or {}), **carried})


async def receive(broker: Broker, request: Request) -> shapes.MessagesReply:
    body: shapes.ReceiveBody = request.body
    taken = await broker.receive(
        request.path["queue"],
        max=body.max,
        visibility_timeout=body.visibility_timeout,
        wait=body.wait,
        consumer=body.consumer,
        mode=cast(Mode, body.mode),
    )
    return shapes.MessagesReply(codec.wire_messages(taken, request.out))


async def ack(broker: Broker, request: Request) -> shapes.OutcomesReply:
    leases = request.body.leases
    outcomes = await broker.ack(request.path["queue"], leases)
    return shapes.OutcomesReply(codec.outcomes_reply(leases, outcomes, "acked"))


async def release(broker: Broker, request: Request) -> shapes.OutcomesReply:
    body: shapes.ReleaseBody = request.body
    outcomes = await broker.release(request.path["queue"], body.leases, body.delay)
    return shapes.OutcomesReply(codec.outcomes_reply(body.leases, outcomes, "released"))


async def release_one(broker: Broker, request: Request) -> shapes.OutcomeReply:
    body: shapes.ReleaseOneBody = request.body
    id = request.path["id"]
    released = await broker.release_by_id(request.path["queue"], id, body.delay)
    return shapes.OutcomeReply(id, "released" if released else "free")


async def extend(broker: Broker, request: Request) -> shapes.ExtendReply:
    body: shapes.ExtendBody = request.body
    until, outcomes = await broker.extend(request.path["queue"], body.leases, body.visibility_timeout)
    return shapes.ExtendReply(codec.outcomes_reply(body.leases, outcomes, "extended"), codec.moment(until))


async def peek(broker: Broker, request: Request) -> shapes.PageReply | Streamed:
    queue, query = request.path["queue"], request.query
    status = cast("Status | None", query.get("status"))
    after, limit, find = query.get("after"), number(query, "limit", 100), query.get("find")
    if request.arrow:
        refuse_with_arrow(query, "find")
        page = await broker.peek(queue, status=status, after=after, limit=limit, many=True)
        about = {} if page.next is None else {"miniq-next": page.next}
        return streams.arrow_page([arrow.stored(page.messages)], arrow.messages_schema(), about)
    if find is None:
        page = await broker.peek(queue, status=status, after=after, limit=limit)
        return shapes.PageReply(codec.shown_messages(page.messages, broker.clock.now(), request.out), page.next)
    found = await broker.search.messages(queue, find, status=status, after=after, limit=limit)
    shown = codec.shown_messages(found.page.messages, broker.clock.now(), request.out)
    return shapes.PageReply(shown, found.page.next, found.looked)


async def get(broker: Broker, request: Request) -> shapes.WireMessage:
    stored = await broker.get(request.path["queue"], request.path["id"])
    return codec.shown_messages([stored], broker.clock.now(), request.out)[0]


async def edit(broker: Broker, request: Request) -> shapes.WireMessage:
    wire: shapes.EditBody = request.body
    body = content_type = None
    if wire.body is not UNSET or wire.data is not UNSET:
        body, content_type = codec.body_of(wire.body, wire.data, wire.content_type, request.format)
    elif wire.content_type is not None:
        raise InvalidRequest("content_type: comes only with a new body", field="content_type")
    stored = await broker.edit(
        request.path["queue"],
        request.path["id"],
        body=body,
        content_type=content_type,
        headers=wire.headers,
        priority=wire.priority,
        delay=wire.delay,
        receipt=wire.receipt,
    )
    return codec.shown_messages([stored], broker.clock.now(), request.out)[0]


async def remove(broker: Broker, request: Request) -> None:
    await broker.remove(request.path["queue"], request.path["id"], request.query.get("receipt"))


# Claims


async def open_claims(broker: Broker, request: Request) -> shapes.ClaimsOpenedReply:
    found = await broker.claims.open(request.path["queue"], request.path["group"])
    return shapes.ClaimsOpenedReply(found.group, found.epoch, found.acked, found.last)


async def claim(broker: Broker, request: Request) -> shapes.ClaimReply:
    body: shapes.ClaimBody = request.body
    made, epoch = await broker.claims.next(
        request.path["queue"],
        body.group,
        body.after,
        epoch=body.epoch,
        max_messages=body.max_messages,
        max_bytes=body.max_bytes,
        wait=body.wait,
        consumer=body.consumer,
    )
    return codec.claim_reply(body.group, made, epoch)


async def read_claim(broker: Broker, request: Request) -> Streamed:
    query = request.query
    part = await broker.claims.find(
        request.path["queue"],
        request.path["group"],
        number(request.path, "claim", 0),
        number(query, "part", 0),
        number(query, "parts", 1),
    )
    if request.arrow:
        return Streamed(streams.arrow_messages(part.read()), arrow.MEDIA)
    return Streamed(streams.messages(part.each(), len(part), request.out), codec.MEDIA[request.out])


async def ack_claims(broker: Broker, request: Request) -> shapes.ClaimsAckedReply:
    query = request.query
    if "upto" not in query:
        raise InvalidRequest("upto: is required: the number of the last claim to ack", field="upto")
    upto = number(query, "upto", 0)
    epoch = number(query, "epoch", 0) if "epoch" in query else None
    await broker.claims.ack(request.path["queue"], request.path["group"], upto, epoch)
    return shapes.ClaimsAckedReply(upto)


async def release_claims(broker: Broker, request: Request) -> shapes.ClaimsReleasedReply:
    body: shapes.ReleaseClaimsBody = request.body
    released = await broker.claims.release(request.path["queue"], request.path["group"], body.epoch)
    return shapes.ClaimsReleasedReply(released)


async def list_claims(broker: Broker, request: Request) -> shapes.ClaimGroupsReply:
    return shapes.ClaimGroupsReply(
        [codec.claim_group(group) for group in await broker.claims.list(request.path["queue"])]
    )


# Stages


async def upload(broker: Broker, request: Request) -> shapes.UploadReply:
    path, body = request.path, request.body
    name = StageName(path["job"], path["batch"], path["partition"], path["attempt"])
    if isinstance(body, ArrowBody):
        # It may take a while, and others need not wait for it.
        drafts = await asyncio.to_thread(body.drafts)
    else:
        drafts = codec.drafts_of(body.messages, request.format)
    messages, size = await broker.stages.upload(path["queue"], name, number(request.query, "part", 0), drafts)
    return shapes.UploadReply(messages, size)


async def commit_stages(broker: Broker, request: Request) -> shapes.CommitStagesReply:
    path = request.path
    stages = [(str(stage.partition), str(stage.attempt)) for stage in request.body.stages]
    done = await broker.stages.commit(path["queue"], path["job"], path["batch"], stages)
    return shapes.CommitStagesReply(done.messages, done.repeated)


async def discard_stages(broker: Broker, request: Request) -> shapes.DiscardReply:
    path = request.path
    return shapes.DiscardReply(await broker.stages.discard(path["queue"], path["job"], path["batch"]))


async def list_stages(broker: Broker, request: Request) -> shapes.StagesReply:
    return shapes.StagesReply([codec.stage_reply(stage) for stage in await broker.stages.list(request.path["queue"])])


# Queues


async def list_queues(broker: Broker, request: Request) -> shapes.QueuesReply:
    may = broker.keys.may
    infos = [info for info in await broker.queues() if may(request.secret, "read", info.name)]
    return shapes.QueuesReply([codec.queue_reply(info) for info in infos])


async def configure(broker: Broker, request: Request) -> shapes.QueueReply:
    return codec.queue_reply(await broker.configure(request.path["queue"], request.body or {}))


async def get_queue(broker: Broker, request: Request) -> shapes.QueueReply:
    return codec.queue_reply(await broker.queue(request.path["queue"]))


async def delete_queue(broker: Broker, request: Request) -> None:
    await broker.delete_queue(request.path["queue"])


async def purge(broker: Broker, request: Request) -> shapes.PurgeReply:
    return shapes.PurgeReply(await broker.purge(request.path["queue"]))


async def redrive(broker: Broker, request: Request) -> shapes.RedriveReply:
    body: shapes.RedriveBody = request.body or shapes.RedriveBody()
    done = await broker.redrive(request.path["queue"], ids=body.ids, to=body.to, rate=body.rate)
    return shapes.RedriveReply(done.moved, done.skipped, done.running)


# The broker as a whole


async def history(broker: Broker, request: Request) -> shapes.HistoryReply | Streamed:
    query = request.query
    if request.arrow:
        refuse_with_arrow(query, "id", "event", "consumer", "since", "before")
        after, limit = number(query, "after", 0), number(query, "limit", 100)
        records = await broker.history(after=after, limit=limit, queue=query.get("queue"), many=True)
        about = {f"miniq-{name}": str(getattr(records, name)) for name in ("next", "first", "last")}
        return streams.arrow_page([arrow.history(records.records)], arrow.history_schema(), about)
    page = await broker.search.events(
        after=number(query, "after", 0),
        limit=number(query, "limit", 100),
        queue=query.get("queue"),
        id=query.get("id"),
        event=query.get("event"),
        consumer=query.get("consumer"),
        since=moment(query, "since"),
        before=number(query, "before", 0) or None,
    )
    events = [codec.wire_event(record, request.out) for record in page.records]
    return shapes.HistoryReply(events, page.next, page.first, page.last)


async def create_key(broker: Broker, request: Request) -> shapes.KeyReply:
    body: shapes.KeyBody = request.body
    keys, now = broker.keys, broker.clock.now()
    if body.public is not None:
        listed = await keys.admit(body.name, body.allow, body.public, now)
        return key_reply(listed, server=(await keys.own_pair()).public)
    key, secret = await keys.create(body.name, body.allow, now)
    return key_reply(key, secret)


async def list_keys(broker: Broker, request: Request) -> shapes.KeysReply:
    return shapes.KeysReply([key_reply(key) for key in broker.keys.list()])


def key_reply(key: ApiKey, secret: str | None = None, server: str | None = None) -> shapes.KeyReply:
    return shapes.KeyReply(key.id, key.name, key.allow, codec.moment(key.created_at), secret, key.public, server)


async def revoke_key(broker: Broker, request: Request) -> None:
    await broker.keys.revoke(request.path["id"])


async def backup(broker: Broker, request: Request) -> None:
    body: BackupBody = request.body
    await broker.backup(body.path)


class BackupBody(Struct, forbid_unknown_fields=True):
    """A folder on the server that does not exist yet."""

    path: str


QUEUE = "/v1/queues/{queue}"
CLAIMS = f"{QUEUE}/claims"
STAGES = f"{QUEUE}/stages"

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "send", "POST", f"{QUEUE}/messages", "send", "Send one message or many, all or nothing", send,
        body=shapes.SendBody, reply=shapes.SentReply, status=201, hot=True, arrow=True,
    ),
    Operation(
        "receive", "POST", f"{QUEUE}/receive", "receive", "Lease messages; with `wait`, wait for the first", receive,
        body=shapes.ReceiveBody, optional=True, reply=shapes.MessagesReply, hot=True,
    ),
    Operation(
        "ack", "POST", f"{QUEUE}/ack", "receive", "Remove messages that were processed", ack,
        body=shapes.LeasesBody, reply=shapes.OutcomesReply, hot=True,
    ),
    Operation(
        "release", "POST", f"{QUEUE}/release", "receive", "Give messages back, now or after `delay`", release,
        body=shapes.ReleaseBody, reply=shapes.OutcomesReply, hot=True,
    ),
    Operation(
        "extend", "POST", f"{QUEUE}/extend", "receive", "Let leases end `visibility_timeout` from now", extend,
        body=shapes.ExtendBody, reply=shapes.ExtendReply, hot=True,
    ),
    Operation(
        "peek", "GET", f"{QUEUE}/messages", "read", "Browse messages without consuming", peek,
        query={"status": str, "after": str, "limit": int, "find": str}, reply=shapes.PageReply,
    ),
    Operation(
        "get", "GET", f"{QUEUE}/messages/{{id}}", "read", "Look at one message", get, reply=shapes.WireMessage
    ),
    Operation(
        "release_one", "POST", f"{QUEUE}/messages/{{id}}/release", "manage",
        "Take a message from whoever holds it", release_one,
        body=shapes.ReleaseOneBody, optional=True, reply=shapes.OutcomeReply,
    ),
    Operation(
        "edit", "PATCH", f"{QUEUE}/messages/{{id}}", "manage",
        "Change a message that is not leased, or with its receipt", edit,
        body=shapes.EditBody, reply=shapes.WireMessage,
    ),
    Operation(
        "remove", "DELETE", f"{QUEUE}/messages/{{id}}", "manage",
        "Remove a message that is not leased, or with its receipt", remove, query={"receipt": str}, status=204,
    ),
    Operation(
        "open_claims", "POST", f"{CLAIMS}/{{group}}/open", "receive",
        "Begin to read the claims of a group; earlier readers are fenced", open_claims,
        body=shapes.OpenClaimsBody, optional=True, reply=shapes.ClaimsOpenedReply,
    ),
    Operation(
        "claim", "POST", CLAIMS, "receive", "Ack claims up to `after` and give the next one; safe to repeat", claim,
        body=shapes.ClaimBody, reply=shapes.ClaimReply,
    ),
    Operation(
        "read_claim", "GET", f"{CLAIMS}/{{group}}/{{claim}}", "receive",
        "The messages of a claim, or part `part` of `parts`; always the same", read_claim,
        query={"part": int, "parts": int}, reply=shapes.MessagesReply,
    ),
    Operation(
        "ack_claims", "DELETE", f"{CLAIMS}/{{group}}", "receive", "Ack all claims up to `upto`", ack_claims,
        query={"upto": int, "epoch": int}, reply=shapes.ClaimsAckedReply,
    ),
    Operation(
        "release_claims", "POST", f"{CLAIMS}/{{group}}/release", "receive",
        "Give the messages of claims that are not acked back", release_claims,
        body=shapes.ReleaseClaimsBody, optional=True, reply=shapes.ClaimsReleasedReply,
    ),
    Operation("list_claims", "GET", CLAIMS, "read", "All groups with their claims", list_claims,
              reply=shapes.ClaimGroupsReply),
    Operation(
        "commit_stages", "POST", f"{STAGES}/{{job}}/{{batch}}/commit", "send",
        "Make the messages of some stages part of the queue, once per job and batch", commit_stages,
        body=shapes.CommitStagesBody, reply=shapes.CommitStagesReply,
    ),
    Operation(
        "upload", "POST", f"{STAGES}/{{job}}/{{batch}}/{{partition}}/{{attempt}}", "send",
        "Keep messages, unseen, to be committed later; part `part` of a stage", upload,
        body=shapes.UploadBody, query={"part": int}, reply=shapes.UploadReply, status=201, arrow=True,
    ),
    Operation(
        "discard_stages", "DELETE", f"{STAGES}/{{job}}/{{batch}}", "send",
        "Remove the stages of a batch that are not committed", discard_stages, reply=shapes.DiscardReply,
    ),
    Operation("list_stages", "GET", STAGES, "read", "All stages that are not committed", list_stages,
              reply=shapes.StagesReply),
    Operation("list_queues", "GET", "/v1/queues", "read", "All queues with their counts", list_queues,
              reply=shapes.QueuesReply),
    Operation(
        "configure", "PUT", QUEUE, "manage", "Create a queue, or change some of its settings", configure,
        body=dict[str, Any], optional=True, reply=shapes.QueueReply,
    ),
    Operation("get_queue", "GET", QUEUE, "read", "Settings and counts of a queue", get_queue, reply=shapes.QueueReply),
    Operation("delete_queue", "DELETE", QUEUE, "manage", "Remove a queue with its messages", delete_queue, status=204),
    Operation("purge", "POST", f"{QUEUE}/purge", "manage", "Remove all messages of a queue", purge,
              reply=shapes.PurgeReply),
    Operation(
        "redrive", "POST", f"{QUEUE}/redrive", "manage", "Move dead letters back where they came from", redrive,
        body=shapes.RedriveBody, optional=True, reply=shapes.RedriveReply,
    ),
    Operation(
        "history", "GET", "/v1/history", "read", "What happened, by rising offset", history,
        query={
            "after": int, "limit": int, "queue": str, "id": str, "event": str, "consumer": str, "since": str,
            "before": int,
        },
        reply=shapes.HistoryReply,
    ),
    Operation("stats", "GET", "/v1/stats", "read", "All queues, or one: counts, rates, dead letters", monitoring.stats,
              query={"queue": str}, reply=shapes.StatsReply),
    Operation("trends", "GET", "/v1/trends", "read", "Numbers of the last hour", monitoring.trends,
              query={"queue": str, "series": str, "points": int}, reply=shapes.TrendsReply),
    Operation("whoami", "GET", "/v1/whoami", "read", "Who the caller is, and which rights it has", monitoring.whoami,
              query={"queue": str}, reply=shapes.WhoReply),
    Operation("create_key", "POST", "/v1/keys", "admin", "Make an API key; its secret is shown once", create_key,
              body=shapes.KeyBody, reply=shapes.KeyReply, status=201),
    Operation("list_keys", "GET", "/v1/keys", "admin", "All API keys, without their secrets", list_keys,
              reply=shapes.KeysReply),
    Operation("revoke_key", "DELETE", "/v1/keys/{id}", "admin", "Make an API key useless", revoke_key, status=204),
    Operation("backup", "POST", "/v1/backup", "admin", "Write a copy of everything to a folder on the server", backup,
              body=BackupBody, status=204),
)  # fmt: skip

BY_NAME = {operation.name: operation for operation in OPERATIONS}
READERS: dict[str, codec.Reader] = {
    operation.name: SendReader() if operation.name == "send" else codec.Reader(operation.body)
    for operation in OPERATIONS
    if operation.body is not None
}
SETTINGS = QueueSettings
"""What `configure` takes, for the OpenAPI document; the broker checks each field."""


OWN = frozenset({"list_queues", "stats", "trends", "whoami"})
"""Calls that show each key its own part, so that every key may make them."""


def authorise(broker: Broker, operation: Operation, request: Request) -> None:
    """Raise unless the caller may make this call. Lists and history show a key what it may read."""
    if broker.keys.open:
        return
    queue = request.path.get("queue")
    if operation.name in OWN:
        queue = request.query.get("queue")
        if queue is None or operation.name == "whoami":
            broker.keys.identify(request.secret)
            return
    if operation.name == "history":
        queue = request.query.get("queue")
    broker.keys.check(request.secret, operation.verb, queue)


def run(broker: Broker, operation: Operation, request: Request) -> Coroutine[Any, Any, Any]:
    """Begin an operation, within a span where traces are written."""
    if broker.tracer is None:
        return operation.run(broker, request)
    return cast(Coroutine[Any, Any, Any], broker.tracer.run(operation, broker, request))


def fault(operation: str, error: Exception, request: bytes = b"") -> MiniQError:
    """An exception as an error for the caller. One that is not ours is a fault of the broker: logged, not shown."""
    if isinstance(error, MiniQError):
        return error
    about = {"request": request.decode()} if request else None
    log.error("%s failed", operation, exc_info=error, extra=about)
    return MiniQError("the broker made a mistake; its log says more")
