"""Maps each call to a method of the broker, for servers and for clients that hold a broker themselves.

A call needs no entry here if its operation has the name of a method whose parameters are the fields of the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from importlib.metadata import version
from operator import attrgetter
from typing import Any, TypeVar, cast

from miniq.api import arrow, shapes, tables
from miniq.api import operations as ops
from miniq.api.codec import micros, moment, to_wire
from miniq.api.operation import AsTable, Call, Operation
from miniq.api.operations import OPERATIONS
from miniq.api.tables import ArrowStream, TablePage
from miniq.batch import Claim, ClaimGroup, Committed, OpenedGroup, StageName
from miniq.broker import Broker, rules
from miniq.broker.keyring import FIRST_KEY, LOCKED_OUT, VERBS
from miniq.broker.redrive import PATIENCE
from miniq.broker.trends import QueueStats
from miniq.dispatch import schedules
from miniq.dispatch.caller import OWNER as OWNER
from miniq.dispatch.caller import Caller as Caller
from miniq.errors import InvalidRequest
from miniq.message import Draft, Extended, HistoryPage, Leased, Page, PlainDrafts, QueueInfo, RedriveProgress, Stored
from miniq.result import Progress
from miniq.topic import ConfiguredTopic, Published, Subscription, TopicInfo

T = TypeVar("T")

Handler = Callable[[Broker, Any, Caller], Coroutine[Any, Any, Any]]


def perform(broker: Broker, call: Call[T], caller: Caller = OWNER) -> Coroutine[Any, Any, T]:
    """Carry out a call. The caller's permissions must have been checked."""
    return CALLS[type(call)](broker, call, caller)


# Messages


def send(broker: Broker, call: ops.Send, caller: Caller) -> Coroutine[Any, Any, list[str]]:
    if broker.catalog.find(call.queue) is None:
        caller.check_new_queues(broker, [call.queue])
    drafts = drafts_of(call.drafts, broker.options.limits.batch)
    if caller.is_owner:
        rules.check_total(drafts, broker.options.limits)
    if caller.call is None:
        return broker.send(call.queue, drafts)
    return broker.send(call.queue, drafts, caller.call, broker.keys.scope(caller.secret))


def drafts_of(drafts: Any, most: int) -> Sequence[Draft]:
    """Drafts, which may be given as a table, or as an Arrow stream of at most `most` rows."""
    if type(drafts) is PlainDrafts or type(drafts) is list:
        return drafts
    if isinstance(drafts, ArrowStream):
        return drafts.drafts(most)
    if tables.is_table(drafts):
        return arrow.drafts_of_table(tables.to_table(drafts))
    return cast("Sequence[Draft]", drafts)


def receive(broker: Broker, call: ops.Receive, caller: Caller) -> Coroutine[Any, Any, Leased]:
    return broker.receive(
        call.queue,
        max=call.max,
        visibility_timeout=call.visibility_timeout,
        wait=call.wait,
        consumer=call.consumer,
        mode=call.mode,
        permit=caller.permit(broker, "receive", call.queue) if call.wait else None,
    )


def result(broker: Broker, call: ops.Result, caller: Caller) -> Coroutine[Any, Any, Progress]:
    def permit() -> None:
        """Senders may read the results of what they sent, and so may callers that can read the messages."""
        broker.keys.check_either(caller.secret, "send", "read", call.queue)

    return broker.results.get(call.queue, call.id, call.wait, None if caller.is_owner else permit, call.unknown)


async def extend(broker: Broker, call: ops.Extend, caller: Caller) -> Extended:
    until, outcomes = await broker.extend(call.queue, call.leases, call.visibility_timeout)
    return Extended(outcomes, until)


async def peek(broker: Broker, call: ops.Peek, caller: Caller) -> Page:
    if call.find is None:
        return await broker.peek(call.queue, status=call.status, after=call.after, limit=call.limit)
    return await broker.search.messages(call.queue, call.find, status=call.status, after=call.after, limit=call.limit)


# Queues


def redrive(broker: Broker, call: ops.Redrive, caller: Caller) -> Coroutine[Any, Any, RedriveProgress]:
    check_new = partial(caller.check_new_queues, broker)
    if caller.is_owner:  # which may close the broker once it has the answer
        return broker.redrive(**_fields(call), check_new=check_new)
    may_send = partial(caller.may, broker, "send")
    return broker.redrive(**_fields(call), may_send=may_send, check_new=check_new, patience=PATIENCE)


# Topics


async def publish(broker: Broker, call: ops.Publish, caller: Caller) -> Published:
    caller.check_new_topic(broker, call.topic)
    drafts = drafts_of(call.drafts, broker.options.limits.batch)
    if caller.is_owner:
        rules.check_total(drafts, broker.options.limits)
    if caller.call is None:
        return await broker.publish(call.topic, drafts)
    return await broker.publish(call.topic, drafts, caller.call, broker.keys.scope(caller.secret))


async def subscribe(broker: Broker, call: ops.Subscribe, caller: Caller) -> Subscription:
    if not caller.is_owner:
        broker.keys.check(caller.secret, "send", call.name if call.queue is None else call.queue)
    caller.check_new_topic(broker, call.topic)
    return await broker.topics.subscribe(**_fields(call), check_new=partial(caller.check_new_queues, broker))


async def configure_topic(broker: Broker, call: ops.ConfigureTopic, caller: Caller) -> ConfiguredTopic:
    caller.check_new_topic(broker, call.topic)
    topic = await broker.topics.configure(call.topic, call.changes)
    return topic if caller.may(broker, "read", call.topic) else ConfiguredTopic(topic.name, topic.settings)


async def list_topics(broker: Broker, call: ops.ListTopics, caller: Caller) -> list[TopicInfo]:
    return [info for info in await broker.topics.all() if caller.may(broker, "read", info.name)]


# Claims and stages


def open_claims(broker: Broker, call: ops.OpenClaims, caller: Caller) -> Coroutine[Any, Any, OpenedGroup]:
    caller.check_new_queues(broker, [call.queue])
    return broker.claims.open(call.queue, call.group)


def next_claim(broker: Broker, call: ops.NextClaim, caller: Caller) -> Coroutine[Any, Any, tuple[Claim | None, int]]:
    caller.check_new_queues(broker, [call.queue])
    return broker.claims.next(**_fields(call), permit=caller.permit(broker, "receive", call.queue))


async def read_claim(broker: Broker, call: ops.ReadClaim, caller: Caller) -> list[Stored]:
    part = await broker.claims.fetch(call.queue, call.group, call.claim, call.part, call.parts, call.reader)
    return [stored async for chunk in part.each() for stored in chunk]


async def upload(broker: Broker, call: ops.Upload | ops.UploadToTopic, caller: Caller) -> tuple[int, int]:
    if isinstance(call, ops.Upload):
        caller.check_new_queues(broker, [call.queue])
    else:
        caller.check_new_topic(broker, call.topic)
    name = StageName(call.job, call.batch, call.partition, call.attempt)
    given, most = call.drafts, broker.options.limits.upload
    is_stream = isinstance(given, ArrowStream)  # decoding one may take long: not in the event loop
    drafts = await asyncio.to_thread(drafts_of, given, most) if is_stream else drafts_of(given, most)
    if isinstance(call, ops.UploadToTopic):
        return await broker.topic_stages.upload(call.topic, name, call.part, drafts)
    return await broker.stages.upload(call.queue, name, call.part, drafts)


async def commit(broker: Broker, call: ops.CommitStages | ops.CommitToTopic, caller: Caller) -> Committed:
    stages = [(str(stage.partition), str(stage.attempt)) for stage in call.stages]
    if isinstance(call, ops.CommitToTopic):
        caller.check_new_topic(broker, call.topic)
        return await broker.topic_stages.commit(call.topic, call.job, call.batch, stages, call.content)
    caller.check_new_queues(broker, [call.queue])
    return await broker.stages.commit(call.queue, call.job, call.batch, stages, call.content)


# The broker as a whole


def configure(broker: Broker, call: ops.Configure, caller: Caller) -> Coroutine[Any, Any, QueueInfo]:
    return broker.configure(call.queue, call.changes, partial(caller.check_new_queues, broker))


async def list_queues(broker: Broker, call: ops.ListQueues, caller: Caller) -> list[QueueInfo]:
    return [info for info in await broker.queues() if caller.may(broker, "read", info.name)]


async def history(broker: Broker, call: ops.History, caller: Caller, many: bool = False) -> HistoryPage:
    if call.since is not None and call.since.tzinfo is None:
        raise InvalidRequest(f"since: {call.since} has no offset from UTC; give one", field="since")
    since = None if call.since is None else micros(call.since)
    others = {"since": since, "before": call.before or None, "visible": _readable(broker, call, caller)}
    return await broker.search.events(**_fields(call) | others, many=many)


def _readable(broker: Broker, call: ops.History, caller: Caller) -> Callable[[str], bool] | None:
    """Tells whether a caller may read the events of a queue; None if it may read all that it asks for."""
    return None if caller.may(broker, "read", call.queue) else partial(caller.may, broker, "read")


async def list_all_claims(broker: Broker, call: ops.ListAllClaims, caller: Caller) -> list[tuple[str, ClaimGroup]]:
    found = [(queue, group) for queue, some in (await broker.claims.everywhere()).items() for group in some]
    return [one for one in found if caller.may(broker, "read", one[0])]


async def stats(broker: Broker, call: ops.Stats, caller: Caller) -> shapes.Stats:
    if call.queue is not None:
        broker.catalog.settings(call.queue)
        entries = await broker.trends.stats([call.queue])
    else:
        entries = list((await broker.trends.current()).values())
    return shapes.Stats(moment(broker.clock.now()), await wire_stats(broker, entries, caller))


async def wire_stats(broker: Broker, entries: Sequence[QueueStats], caller: Caller) -> list[shapes.QueueStats]:
    """The numbers of the queues that a caller may see, as they are sent. Other calls run in between."""
    queues = []
    for number, queue in enumerate(entries):
        if number % 500 == 499:
            await asyncio.sleep(0)
        if caller.may(broker, "read", queue.name):
            rates = shapes.Rates(**queue.rates)
            to = queue.dead_letter_queue
            dead = queue.dead if to is None or caller.may(broker, "read", to) else None
            others = {"name": queue.name, "dead_letter_queue": to, "dead": dead}
            work = {name: getattr(queue, name) for name in shapes.QueueStats.__struct_fields__[10:]}
            if dead is None:
                work |= {"dead_oldest": None, "last_death": None}
            queues.append(to_wire(shapes.QueueStats, queue.counts, rates=rates, **others, **work))
    return queues


async def trends(broker: Broker, call: ops.Trends, caller: Caller) -> shapes.Trends:
    queues = broker.trends.last_hour(_visible(broker, call.queue, caller), call.series.split(","), call.points)
    entries = [shapes.QueueTrend(queue.name, queue.series) for queue in queues]
    return shapes.Trends(moment(broker.trends.last), 3600 / call.points, entries)


def _visible(broker: Broker, queue: str | None, caller: Caller) -> list[str]:
    """The names of the queues that a caller may see, or of the given one, which must exist."""
    if queue is not None:
        broker.catalog.settings(queue)
        return [queue]
    return [name for name in sorted(broker.catalog.names()) if caller.may(broker, "read", name)]


async def whoami(broker: Broker, call: ops.WhoAmI, caller: Caller) -> shapes.Identity:
    keys = broker.keys
    if call.queue is not None:
        rules.check_name(call.queue)
    verbs = [verb for verb in VERBS if caller.may(broker, verb, call.queue)]
    report = broker.options.report is not None
    if keys.open or caller.is_owner:
        return shapes.Identity(keys.open, None, None, ["*"], verbs, report, version("miniq"), broker.store_id)
    key = keys.identify(caller.secret)
    return shapes.Identity(False, key.name, key.id, key.allow, verbs, report, version("miniq"), broker.store_id)


async def create_key(broker: Broker, call: ops.CreateKey, caller: Caller) -> shapes.ApiKey:
    keys, now, was_open = broker.keys, broker.clock.now(), broker.keys.open
    if call.aws and call.public is not None:
        raise InvalidRequest("aws: given together with public; a key is for SQS or for ZeroMQ", field="aws")
    if call.aws:
        key = await keys.create_aws(call.name, call.allow, now, call.max_queues)
        secret, server = key.aws, None
    elif call.public is not None:
        key = await keys.register(call.name, call.allow, call.public, now, call.max_queues)
        secret, server = None, (await keys.own_pair()).public
    else:
        key, secret = await keys.create(call.name, call.allow, now, call.max_queues)
        server = None
    warnings = [FIRST_KEY] if was_open else []
    if not keys.managed:
        warnings.append(LOCKED_OUT)
    return to_wire(shapes.ApiKey, key, secret=secret, server=server, warnings=warnings)


async def list_keys(broker: Broker, call: ops.ListKeys, caller: Caller) -> list[shapes.ApiKey]:
    return [to_wire(shapes.ApiKey, key, secret=None, server=None, warnings=[]) for key in broker.keys.list()]


# Tables


async def peek_table(broker: Broker, call: ops.Peek, caller: Caller) -> TablePage:
    _refuse(call, "find")
    page = await broker.peek(call.queue, status=call.status, after=call.after, limit=call.limit, many=True)
    messages = arrow.stored(page.messages, broker.clock.now())
    return TablePage(arrow.arrow().Table.from_batches([messages]), page.next)


async def history_table(broker: Broker, call: ops.History, caller: Caller) -> TablePage:
    page = await history(broker, call, caller, many=True)
    return TablePage(arrow.arrow().Table.from_batches([arrow.history(page.records)]), page.next, page.first, page.last)


async def claim_table(broker: Broker, call: ops.ReadClaim, caller: Caller) -> Any:
    part = await broker.claims.fetch(call.queue, call.group, call.claim, call.part, call.parts, call.reader)
    batches = [arrow.portions(chunk) async for chunk in part.read()]
    return arrow.arrow().Table.from_batches(batches, arrow.messages_schema())


def _refuse(call: Any, *names: str) -> None:
    """Refuse fields that are not supported for tables."""
    for name in names:
        if getattr(call, name):
            text = f"{name}: not supported for replies in Arrow; filter the records, or request JSON"
            raise InvalidRequest(text, field=name)


TABLES: dict[type[Call[Any]], Handler] = {
    ops.Peek: peek_table,
    ops.History: history_table,
    ops.ReadClaim: claim_table,
}


# All calls


def _fields(call: Any) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__struct_fields__}


def _with_targets(operation: Operation[Any], handler: Handler) -> Handler:
    """A handler that first checks the caller's right to send to the queue that a field of the call names."""
    field, *entry = operation.sends_to.split(".")

    async def checked(broker: Broker, call: Any, caller: Caller) -> Any:
        target = getattr(call, field)
        for name in entry:
            target = target.get(name)
        if isinstance(target, str) and not caller.is_owner:
            broker.keys.check(caller.secret, "send", target)
        return await handler(broker, call, caller)

    return checked


def _method(path: str) -> Handler:
    """A method of the broker, or of a part of it, whose parameters are the fields of the call."""
    method = attrgetter(path)
    return lambda broker, call, caller: method(broker)(**_fields(call))


CALLS: dict[type[Call[Any]], Handler] = {operation.request: _method(operation.name) for operation in OPERATIONS} | {
    ops.Send: send,
    ops.Receive: receive,
    ops.Ack: lambda broker, call, caller: broker.ack(call.queue, call.leases),
    ops.AckById: _method("ack_by_id"),
    ops.Release: lambda broker, call, caller: broker.release(call.queue, call.leases, call.delay, unused=call.unused),
    ops.Fail: _method("deliveries.fail"),
    ops.ReleaseOne: _method("release_by_id"),
    ops.Extend: extend,
    ops.Result: result,
    ops.PutResult: _method("results.put"),
    ops.Peek: peek,
    ops.Publish: publish,
    ops.ListTopics: list_topics,
    ops.ConfigureTopic: configure_topic,
    ops.GetTopic: _method("topics.get"),
    ops.DeleteTopic: _method("topics.delete"),
    ops.MatchTopic: _method("topics.match"),
    ops.Subscribe: subscribe,
    ops.Unsubscribe: _method("topics.unsubscribe"),
    ops.UploadToTopic: upload,
    ops.CommitToTopic: commit,
    ops.DiscardFromTopic: _method("topic_stages.discard"),
    ops.ListTopicStages: _method("topic_stages.list"),
    ops.OpenClaims: open_claims,
    ops.NextClaim: next_claim,
    ops.ReadClaim: read_claim,
    ops.AckClaims: _method("claims.ack"),
    ops.ReleaseClaims: _method("claims.release"),
    ops.BuryClaimed: _method("claims.bury"),
    ops.ListClaims: _method("claims.list"),
    ops.ListAllClaims: list_all_claims,
    ops.Upload: upload,
    ops.CommitStages: commit,
    ops.DiscardStages: _method("stages.discard"),
    ops.ListStages: _method("stages.list"),
    ops.PutSchedule: schedules.put_schedule,
    ops.GetSchedule: schedules.get_schedule,
    ops.DeleteSchedule: schedules.delete_schedule,
    ops.RunSchedule: schedules.run_schedule,
    ops.ListSchedules: schedules.list_schedules,
    ops.ListQueues: list_queues,
    ops.Configure: configure,
    ops.GetQueue: _method("queue"),
    ops.Redrive: redrive,
    ops.History: history,
    ops.Stats: stats,
    ops.ListConsumers: _method("consumers.list"),
    ops.ListFailures: _method("trends.failure_groups"),
    ops.Trends: trends,
    ops.WhoAmI: whoami,
    ops.CreateKey: create_key,
    ops.ListKeys: list_keys,
    ops.RevokeKey: _method("keys.revoke"),
    AsTable: lambda broker, call, caller: TABLES[type(call.call)](broker, call.call, caller),
}

for operation in OPERATIONS:
    if operation.sends_to:
        CALLS[operation.request] = _with_targets(operation, CALLS[operation.request])
