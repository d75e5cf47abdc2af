"""Which method of the broker carries out which call, for servers and for clients that hold a broker themselves.

A call whose operation has the name of a method, and whose fields are that method's parameters, needs no word here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any, TypeVar, cast

from msgspec import Struct

from miniq.api import arrow, shapes, tables
from miniq.api import operations as ops
from miniq.api.codec import micros, moment
from miniq.api.operation import AsTable, Call
from miniq.api.operations import OPERATIONS
from miniq.api.tables import ArrowStream, TablePage
from miniq.broker import Broker
from miniq.broker.keyring import VERBS, ApiKey, Secret
from miniq.errors import InvalidRequest
from miniq.message import Draft, Extended, HistoryPage, Page, PlainDrafts, QueueInfo, StageName, Stored

T = TypeVar("T")


class Caller(Struct, frozen=True, gc=False):
    """Who makes a call: a client of a server, with the key that it shows, or else the process that has the broker."""

    secret: Secret | None = None
    call: str | None = None
    """The name that it gave to this call (Idempotency-Key)."""
    is_owner: bool = False

    def may(self, broker: Broker, right: str, queue: str | None) -> bool:
        return self.is_owner or broker.keys.may(self.secret, right, queue)


OWNER = Caller(is_owner=True)

Carry = Callable[[Broker, Any, Caller], Coroutine[Any, Any, Any]]


def perform(broker: Broker, call: Call[T], caller: Caller = OWNER) -> Coroutine[Any, Any, T]:
    """Begin a call; its result is the one that its record names. What the caller may do was checked before."""
    return CALLS[type(call)](broker, call, caller)


# Messages


def send(broker: Broker, call: ops.Send, caller: Caller) -> Coroutine[Any, Any, list[str]]:
    return broker.send(call.queue, drafts_of(call.drafts), caller.call)


def drafts_of(drafts: Any) -> Sequence[Draft]:
    """Drafts, which may have come as an Arrow stream or as a table."""
    if type(drafts) is PlainDrafts or type(drafts) is list:
        return drafts
    if isinstance(drafts, ArrowStream):
        return drafts.drafts()
    if tables.is_table(drafts):
        return arrow.drafts_of_table(tables.to_table(drafts))
    return cast("Sequence[Draft]", drafts)


def receive(broker: Broker, call: ops.Receive, caller: Caller) -> Coroutine[Any, Any, list[Stored]]:
    return broker.receive(
        call.queue,
        max=call.max,
        visibility_timeout=call.visibility_timeout,
        wait=call.wait,
        consumer=call.consumer,
        mode=call.mode,
    )


async def extend(broker: Broker, call: ops.Extend, caller: Caller) -> Extended:
    until, outcomes = await broker.extend(call.queue, call.leases, call.visibility_timeout)
    return Extended(outcomes, until)


async def peek(broker: Broker, call: ops.Peek, caller: Caller) -> Page:
    if call.find is None:
        return await broker.peek(call.queue, status=call.status, after=call.after, limit=call.limit)
    return await broker.search.messages(call.queue, call.find, status=call.status, after=call.after, limit=call.limit)


# Claims and stages


async def read_claim(broker: Broker, call: ops.ReadClaim, caller: Caller) -> list[Stored]:
    part = await broker.claims.find(call.queue, call.group, call.claim, call.part, call.parts)
    return [stored async for some in part.each() for stored in some]


async def upload(broker: Broker, call: ops.Upload, caller: Caller) -> tuple[int, int]:
    name = StageName(call.job, call.batch, call.partition, call.attempt)
    # Reading a stream may take a while, and others need not wait for it.
    is_stream = isinstance(call.drafts, ArrowStream)
    drafts = await asyncio.to_thread(drafts_of, call.drafts) if is_stream else drafts_of(call.drafts)
    return await broker.stages.upload(call.queue, name, call.part, drafts)


def commit_stages(broker: Broker, call: ops.CommitStages, caller: Caller) -> Coroutine[Any, Any, Any]:
    stages = [(str(stage.partition), str(stage.attempt)) for stage in call.stages]
    return broker.stages.commit(call.queue, call.job, call.batch, stages)


# The broker as a whole


async def list_queues(broker: Broker, call: ops.ListQueues, caller: Caller) -> list[QueueInfo]:
    return [info for info in await broker.queues() if caller.may(broker, "read", info.name)]


async def history(broker: Broker, call: ops.History, caller: Caller) -> HistoryPage:
    if call.since is not None and call.since.tzinfo is None:
        raise InvalidRequest(f"since: {call.since} has no offset from UTC; give one", field="since")
    since = None if call.since is None else micros(call.since)
    return await broker.search.events(**_fields(call) | {"since": since, "before": call.before or None})


async def stats(broker: Broker, call: ops.Stats, caller: Caller) -> shapes.Stats:
    found = await broker.trends.stats(_visible(broker, call.queue, caller))
    entries = [
        shapes.QueueStats(
            one.name,
            one.counts.ready,
            one.counts.delayed,
            one.counts.leased,
            one.counts.total,
            one.counts.bytes,
            None if one.counts.oldest is None else moment(one.counts.oldest),
            shapes.Rates(**one.rates),
            one.dead_letter_queue,
            one.dead,
        )
        for one in found
    ]
    return shapes.Stats(moment(broker.clock.now()), entries)


async def trends(broker: Broker, call: ops.Trends, caller: Caller) -> shapes.Trends:
    found = broker.trends.last_hour(_visible(broker, call.queue, caller), call.series.split(","), call.points)
    entries = [shapes.QueueTrend(one.name, one.series) for one in found]
    return shapes.Trends(moment(broker.trends.last), 3600 / call.points, entries)


def _visible(broker: Broker, queue: str | None, caller: Caller) -> list[str]:
    """The names of the queues that a caller may see; of one alone if it is asked for, which must be there."""
    if queue is not None:
        broker.catalog.settings(queue)
        return [queue]
    return [name for name in sorted(broker.catalog.names()) if caller.may(broker, "read", name)]


async def whoami(broker: Broker, call: ops.WhoAmI, caller: Caller) -> shapes.Identity:
    keys = broker.keys
    verbs = [verb for verb in VERBS if caller.may(broker, verb, call.queue)]
    report = broker.options.report is not None
    if keys.open or caller.is_owner:
        return shapes.Identity(keys.open, None, None, ["*"], verbs, report, version("miniq"))
    key = keys.identify(caller.secret)
    return shapes.Identity(False, key.name, key.id, key.allow, verbs, report, version("miniq"))


async def create_key(broker: Broker, call: ops.CreateKey, caller: Caller) -> shapes.ApiKey:
    keys, now = broker.keys, broker.clock.now()
    if call.public is not None:
        listed = await keys.register(call.name, call.allow, call.public, now)
        return _key(listed, server=(await keys.own_pair()).public)
    key, secret = await keys.create(call.name, call.allow, now)
    return _key(key, secret)


async def list_keys(broker: Broker, call: ops.ListKeys, caller: Caller) -> list[shapes.ApiKey]:
    return [_key(key) for key in broker.keys.list()]


def _key(key: ApiKey, secret: str | None = None, server: str | None = None) -> shapes.ApiKey:
    return shapes.ApiKey(key.id, key.name, key.allow, moment(key.created_at), secret, key.public, server)


# Tables


async def peek_table(broker: Broker, call: ops.Peek) -> TablePage:
    _refuse(call, "find")
    page = await broker.peek(call.queue, status=call.status, after=call.after, limit=call.limit, many=True)
    return TablePage(arrow.arrow().Table.from_batches([arrow.stored(page.messages)]), page.next)


async def history_table(broker: Broker, call: ops.History) -> TablePage:
    _refuse(call, "id", "event", "consumer", "since", "before")
    page = await broker.history(after=call.after, limit=call.limit, queue=call.queue, many=True)
    return TablePage(arrow.arrow().Table.from_batches([arrow.history(page.records)]), page.next, page.first, page.last)


async def claim_table(broker: Broker, call: ops.ReadClaim) -> Any:
    part = await broker.claims.find(call.queue, call.group, call.claim, call.part, call.parts)
    batches = [arrow.portions(some) async for some in part.read()]
    return arrow.arrow().Table.from_batches(batches, arrow.messages_schema())


def _refuse(call: Any, *names: str) -> None:
    """What cannot be asked for together with a table."""
    for name in names:
        if getattr(call, name):
            text = f"{name}: is not for replies in Arrow; filter the records, or ask for JSON"
            raise InvalidRequest(text, field=name)


TABLES: dict[type[Call[Any]], Callable[[Broker, Any], Coroutine[Any, Any, Any]]] = {
    ops.Peek: peek_table,
    ops.History: history_table,
    ops.ReadClaim: claim_table,
}


# All calls


def _fields(call: Any) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__struct_fields__}


def _direct(method: Callable[[Broker], Callable[..., Coroutine[Any, Any, Any]]]) -> Carry:
    """A method whose parameters are the fields of the call."""
    return lambda broker, call, caller: method(broker)(**_fields(call))


def _named(name: str) -> Carry:
    return _direct(lambda broker: getattr(broker, name))


CALLS: dict[type[Call[Any]], Carry] = {operation.request: _named(operation.name) for operation in OPERATIONS} | {
    ops.Send: send,
    ops.Receive: receive,
    ops.Ack: lambda broker, call, caller: broker.ack(call.queue, call.leases),
    ops.AckById: _named("ack_by_id"),
    ops.Release: lambda broker, call, caller: broker.release(call.queue, call.leases, call.delay),
    ops.ReleaseOne: _direct(lambda broker: broker.release_by_id),
    ops.Extend: extend,
    ops.Peek: peek,
    ops.OpenClaims: _direct(lambda broker: broker.claims.open),
    ops.NextClaim: _direct(lambda broker: broker.claims.next),
    ops.ReadClaim: read_claim,
    ops.AckClaims: _direct(lambda broker: broker.claims.ack),
    ops.ReleaseClaims: _direct(lambda broker: broker.claims.release),
    ops.ListClaims: _direct(lambda broker: broker.claims.list),
    ops.Upload: upload,
    ops.CommitStages: commit_stages,
    ops.DiscardStages: _direct(lambda broker: broker.stages.discard),
    ops.ListStages: _direct(lambda broker: broker.stages.list),
    ops.ListQueues: list_queues,
    ops.GetQueue: _direct(lambda broker: broker.queue),
    ops.History: history,
    ops.Stats: stats,
    ops.Trends: trends,
    ops.WhoAmI: whoami,
    ops.CreateKey: create_key,
    ops.ListKeys: list_keys,
    ops.RevokeKey: _direct(lambda broker: broker.keys.revoke),
    AsTable: lambda broker, call, caller: TABLES[type(call.call)](broker, call.call),
}
