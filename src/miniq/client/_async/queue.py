"""One queue of a broker: its messages, claims and stages, and its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import UNSET, UnsetType

from miniq.api import operations as ops
from miniq.api.operation import AsTable
from miniq.api.tables import TablePage, to_table
from miniq.batch import ClaimGroup, Committed, Stage, StageName
from miniq.client import bodies
from miniq.client._async.claims import AsyncClaims
from miniq.client._async.message import AsyncMessage
from miniq.client._async.stages import AsyncStaging, stage_ids
from miniq.client._async.transport import AsyncTransport
from miniq.client.arguments import as_texts
from miniq.client.delivery import (
    ACKED,
    FAILED,
    HELD,
    RELEASED,
    SEEN,
    MessagePage,
    Result,
    as_messages,
    leases,
    renew,
    results_of,
    settle,
)
from miniq.client.failure import error_text
from miniq.client.interrupts import async_shield
from miniq.client.one_process import OneProcess
from miniq.consumer import Consumer
from miniq.errors import BadName, MiniQError
from miniq.failure import FailureGroup
from miniq.message import (
    AckedLease,
    ConfiguredQueue,
    DraftOptions,
    Failed,
    Lease,
    Mode,
    Outcome,
    QueueChanges,
    QueueInfo,
    RedriveProgress,
    Status,
)
from miniq.result import Unknown
from miniq.worker.plan import TIMEOUT, Plan, Stop, own_name

if TYPE_CHECKING:
    from miniq.worker.jobs import Attempt


class AsyncQueue(OneProcess):
    """One queue of a broker, by name; it need not exist yet."""

    __slots__ = ("_perform", "_transport", "name")

    def __init__(self, transport: AsyncTransport, name: str) -> None:
        if not isinstance(name, str):
            raise BadName(f"queue: {name!r} is not a queue name; use 1 to 128 of A-Z a-z 0-9 . _ -", field="queue")
        self.name = name
        self._transport = transport
        self._perform = transport.perform

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Messages

    async def send(self, body: Any, **options: Unpack[DraftOptions]) -> str:
        """Send one message and return its id once it is stored. `body` is any JSON value, text or bytes; `options` are
        `headers`, `priority`, `delay`, `ttl`, `key`, `recipient`, `group`, `dedup_id` and `content_type`."""
        return (await self._perform(ops.Send(self.name, [bodies.draft(body, **options)])))[0]

    async def send_many(self, messages: Iterable[Any]) -> list[str]:
        """Send bodies or drafts (`miniq.draft`), all or none, and return their ids in order."""
        drafts = bodies.drafts(messages)
        return await self._perform(ops.Send(self.name, drafts)) if drafts else []

    async def receive(
        self,
        max: int = 1,
        wait: float = 0,
        visibility_timeout: float | None = None,
        consumer: str | None = None,
        mode: Mode | None = None,
    ) -> list[AsyncMessage]:
        """Lease up to `max` messages; wait up to `wait` seconds for the first one."""
        call = ops.Receive(self.name, max, wait, visibility_timeout, consumer, mode or "at-least-once")
        state = ACKED if mode == "at-most-once" else HELD
        messages: list[AsyncMessage] = []
        try:
            with async_shield:
                messages += [AsyncMessage(self, stored, state) for stored in await self._perform(call)]
        except BaseException:
            if messages and state is HELD:  # the caller was interrupted before it had them
                with suppress(MiniQError):
                    await self.release(messages, unused=True)
            raise
        return messages

    async def consume(
        self,
        handler: Callable[[Any], object],
        *,
        concurrency: int = 1,
        batch: int | None = None,
        wait: float = 1,
        visibility_timeout: float | None = None,
        consumer: str | None = None,
        retry_delay: float | None = None,
        pass_message: bool = False,
        stop: Stop = None,
        timeout: float | None = TIMEOUT,  # noqa: ASYNC109  # async only
        # sync only: timeout: float | None = TIMEOUT,
        grace: float | None = None,
        before: Callable[[Attempt], object] | None = None,
        after: Callable[[Attempt], object] | None = None,
        on_error: Callable[[AsyncMessage, Exception], object] | None = None,
    ) -> None:
        """Call `handler` with the body of each message (with the message itself if `pass_message`), up to
        `concurrency` at a time, until `stop` is set or returns true, Ctrl-C, or SIGTERM without a handler.

        The handler is a function, which runs in a thread, or with the async client also a coroutine function, which
        runs as a task. The lease is extended while it runs, up to `timeout` seconds; then a task is cancelled, the
        outcome of a thread is ignored, and the message has failed. When the handler returns, the message is acked. If
        it raises, the message fails: it is tried again after `retry_delay`, by default as the queue's `retry` says, and
        not at all after `raise miniq.Reject("why")`. Acks of short handlers share calls.

        At the end, running handlers finish, within `grace` seconds if given, and all other messages are released; this
        takes up to `wait` seconds. `batch` is the number of messages to fetch at once; by default as many as there are
        free handlers, and for quick handlers the work of a tenth of a second. `consumer` is the name that `consumers`
        shows, by default HOST:PID.

        `before` and `after` are called with an `Attempt` around each call of the handler, in its thread or task, and
        `on_error` with the message and the exception.
        """
        from miniq.client._async.worker import AsyncWorker  # only for programs that consume
        from miniq.worker.handlers import hooks_of, plain_source

        # sync only: from miniq.worker.handlers import refuse_coroutine
        # sync only: refuse_coroutine(handler)
        plan = Plan(
            concurrency=concurrency,
            batch=batch,
            wait=wait,
            visibility_timeout=visibility_timeout,
            consumer=own_name() if consumer is None else consumer,
            grace=grace,
            stop=stop,
        )
        hooks = hooks_of(before, after, on_error)
        source = plain_source(self, handler, pass_message, timeout, retry_delay, hooks)
        await AsyncWorker([source], plan).run()

    async def ack(self, messages: Iterable[AsyncMessage], results: Iterable[Any] | None = None) -> list[Outcome]:
        """Ack several messages, with the result of each if there are `results`; the outcome of each is `done`, `stale`
        or `missing`."""
        messages = as_messages(messages)
        held: Sequence[Lease] = leases(self.name, messages)
        if results is not None:
            each = zip(held, results_of(results, messages), strict=True)
            held = [AckedLease(lease.id, lease.receipt, result) for lease, result in each]
        outcomes = await self._perform(ops.Ack(self.name, held)) if messages else []
        settle(messages, outcomes, ACKED)
        return outcomes

    async def result(self, id: str, wait: float = 0, unknown: Unknown = "return") -> Result:
        """What became of a message, by its id: waits up to `wait` seconds until it is acked, with or without a result,
        or dead. The queue must keep results (its setting `results`). With `unknown="wait"` it also waits while nothing
        is known of the id."""
        return Result.of(id, await self._perform(ops.Result(self.name, id, wait, unknown)))

    async def put_result(
        self,
        id: str,
        result: Any = UNSET,
        *,
        final: bool = True,
        ttl: float | None = None,
        replaces: datetime | None = None,
        new: bool = False,
    ) -> bool:
        """Keep a result under an id of your own, a UUID, for `ttl` seconds or as long as the queue keeps results; 0
        forgets it. One that is not `final` ends no wait. With `replaces`, the `finished_at` of a result, it is kept
        only instead of that, and as `new` only if there is none: whether it was kept."""
        kept = UNSET if result is UNSET else bodies.encode_result(result)
        return await self._perform(ops.PutResult(self.name, id, kept, final, ttl, replaces, new))

    async def release(self, messages: Iterable[AsyncMessage], delay: float = 0, unused: bool = False) -> list[Outcome]:
        """Release several messages; the outcome of each is `done`, `stale` or `missing`. With `unused` their receives
        do not count: nothing was done with them."""
        messages = as_messages(messages)
        call = ops.Release(self.name, leases(self.name, messages), delay, unused)
        outcomes = await self._perform(call) if messages else []
        settle(messages, outcomes, RELEASED)
        return outcomes

    async def fail(
        self,
        messages: Iterable[AsyncMessage],
        error: str | BaseException,
        delay: float | None = None,
        dead: bool = False,
    ) -> list[Failed]:
        """Report that several messages could not be processed, and why; see `AsyncMessage.fail`. The outcome of each is
        `retried` (with the moment at which it is ready again), `dead`, `stale` or `missing`."""
        messages = as_messages(messages)
        call = ops.Fail(self.name, leases(self.name, messages), error_text(error), delay, dead)
        failed = await self._perform(call) if messages else []
        settle(messages, [each.outcome for each in failed], FAILED)
        return failed

    async def extend(self, messages: Iterable[AsyncMessage], seconds: float | None = None) -> list[Outcome]:
        """Extend several leases; the outcome of each is `done`, `stale` or `missing`."""
        messages = as_messages(messages)
        if not messages:
            return []
        reply = await self._perform(ops.Extend(self.name, leases(self.name, messages), seconds))
        renew(messages, reply)
        return reply.outcomes

    async def peek(
        self, status: Status | None = None, after: str | None = None, limit: int = 100, find: str | None = None
    ) -> MessagePage[AsyncMessage]:
        """Browse without consuming; pass the page's `next` as `after` for more. With `find`, only messages whose id,
        key, headers or body contain that text, in any case; a search ends after some thousand messages."""
        page = await self._perform(ops.Peek(self.name, status, after, limit, find))
        return MessagePage([AsyncMessage(self, stored, SEEN) for stored in page.messages], page.next)

    async def peek_table(
        self, status: Status | None = None, after: str | None = None, limit: int = 10_000
    ) -> TablePage:
        """Browse without consuming, up to 100,000 messages at a time as a `pyarrow.Table`."""
        call: AsTable[TablePage] = AsTable(ops.Peek(self.name, status, after, limit))
        return await self._perform(call)

    async def get(self, id: str) -> AsyncMessage:
        """Get one message without consuming it."""
        return AsyncMessage(self, await self._perform(ops.Get(self.name, id)), SEEN)

    async def edit(
        self,
        id: str,
        *,
        body: Any | UnsetType = UNSET,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
        priority: int | None = None,
        delay: float | None = None,
        receipt: str | None = None,
    ) -> AsyncMessage:
        """Change a message that is not leased, or whose receipt you hold; fields that are not given stay as they
        are."""
        data: bytes | None = None
        if body is not UNSET:  # None is a valid body
            data, content_type = bodies.encode(body, content_type)
        call = ops.Edit(self.name, id, data, content_type, headers, priority, delay, receipt)
        return AsyncMessage(self, await self._perform(call), SEEN)

    async def remove(self, id: str, receipt: str | None = None) -> None:
        """Delete one message that is not leased, or whose receipt you hold."""
        await self._perform(ops.Remove(self.name, id, receipt))

    async def release_by_id(self, id: str, delay: float = 0) -> bool:
        """Release a message that any consumer holds, whose receipt becomes invalid; False if it is not leased. Requires
        the permission `manage`."""
        return await self._perform(ops.ReleaseOne(self.name, id, delay))

    async def send_table(self, table: Any) -> list[str]:
        """Send the rows of a `pyarrow.Table` (or record batches), all or none, and return their ids in order. Its
        columns are `body` (JSON text) or `data`, and others named as in `draft`."""
        return await self._perform(ops.Send(self.name, to_table(table)))

    def stage(self, job: str, batch: int | str, partition: int | str, attempt: int | str) -> AsyncStaging:
        """A stage for the messages of one attempt of one task of a job, invisible until they are committed; makes no
        call yet."""
        return AsyncStaging(self, StageName(job, str(batch), str(partition), str(attempt)))

    async def _upload(self, name: StageName, part: int, drafts: Any) -> tuple[int, int]:
        call = ops.Upload(self.name, name.job, name.batch, name.partition, name.attempt, part, drafts)
        return await self._perform(call)

    async def commit_stages(
        self, job: str, batch: int | str, stages: Iterable[tuple[int | str, int | str]], content: str | None = None
    ) -> Committed:
        """Add the messages of some stages, (partition, attempt), to the queue, all at once, and once per job and batch:
        a repeated commit adds nothing. Other stages of the batch are removed. `content` names what they hold: a
        repetition with another one raises `BatchMismatch`."""
        return await self._perform(ops.CommitStages(self.name, job, str(batch), stage_ids(stages), content))

    async def discard_stages(self, job: str, batch: int | str) -> int:
        """Remove the uncommitted stages of a batch, and return their number."""
        return await self._perform(ops.DiscardStages(self.name, job, str(batch)))

    async def stages(self) -> list[Stage]:
        """All uncommitted stages."""
        return await self._perform(ops.ListStages(self.name))

    def claims(self, group: str, reader: str | None = None) -> AsyncClaims:
        """The claims of a group of readers: frozen batches that can be read again; makes no call yet. `reader` is a
        name that this reader keeps together with its position (see `AsyncClaims.reader`)."""
        return AsyncClaims(self, group, reader)

    async def claim_groups(self) -> list[ClaimGroup]:
        """All groups of readers, with the claims that can be read."""
        return await self._perform(ops.ListClaims(self.name))

    async def consumers(self) -> list[Consumer]:
        """Who received in the last five minutes, and who holds messages, by name."""
        return await self._perform(ops.ListConsumers(self.name))

    async def failures(self) -> list[FailureGroup]:
        """Why messages failed in the last hour, in groups with about the same error, the last one first."""
        return await self._perform(ops.ListFailures(self.name))

    # The queue itself

    async def purge(self) -> int:
        """Remove all messages, including leased ones, and return their number."""
        return await self._perform(ops.Purge(self.name))

    async def redrive(
        self, ids: Iterable[str] | None = None, to: str | None = None, rate: float | None = None
    ) -> RedriveProgress:
        """Move dead letters back to the queues they came from, or `to` another queue: all, or those with the given
        `ids`; with `rate`, in the background at that many per second. A server answers after 2 s while a long redrive
        is still `running`."""
        return await self._perform(ops.Redrive(self.name, None if ids is None else as_texts(ids, "ids"), to, rate))

    async def configure(self, **settings: Unpack[QueueChanges]) -> ConfiguredQueue:
        """Create the queue or change some of its settings (see `QueueSettings`)."""
        return await self._perform(ops.Configure(self.name, dict(settings)))

    async def info(self) -> QueueInfo:
        """Settings and counts."""
        return await self._perform(ops.GetQueue(self.name))

    async def delete(self) -> None:
        """Remove the queue with everything in it."""
        await self._perform(ops.DeleteQueue(self.name))
