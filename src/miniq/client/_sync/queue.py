# Generated from ../_async/queue.py by `make generate`: change that file.
"""One queue of a broker: its messages, its settings, and what is in it as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack

from msgspec import UNSET, UnsetType

from miniq.api import operations as ops
from miniq.api.operation import AsTable
from miniq.api.shapes import StageId
from miniq.api.tables import TablePage, to_table
from miniq.client import bodies
from miniq.client._sync.claims import Claims
from miniq.client._sync.message import Message
from miniq.client._sync.stages import Staging
from miniq.client._sync.transport import Transport
from miniq.client.delivery import HELD, SEEN, SETTLED, MessagePage, leases, renew, settle
from miniq.errors import BadName
from miniq.message import (
    ClaimGroup,
    Committed,
    Mode,
    Outcome,
    QueueChanges,
    QueueInfo,
    RedriveProgress,
    Stage,
    StageName,
    Status,
    Stored,
)
from miniq.worker.plan import Plan, Stop
from miniq.worker.thread_worker import ThreadWorker


class Queue:
    """One queue of a broker, by name; it need not exist yet."""

    __slots__ = ("_perform", "_transport", "name")

    def __init__(self, transport: Transport, name: str) -> None:
        if not isinstance(name, str):
            raise BadName(f"queue: {name!r} is not a queue name; use 1 to 128 of A-Z a-z 0-9 . _ -", field="queue")
        self.name = name
        self._transport = transport
        self._perform = transport.perform

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    # Messages

    def send(
        self,
        body: Any,
        *,
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        delay: float | None = None,
        ttl: float | None = None,
        key: str | None = None,
        recipient: str | None = None,
        group: str | None = None,
        dedup_id: str | None = None,
        content_type: str | None = None,
    ) -> str:
        """Send one message (see `bodies.py` for what a body may be) and return its id once it is safe."""
        draft = bodies.draft(
            body,
            headers=headers,
            priority=priority,
            delay=delay,
            ttl=ttl,
            key=key,
            recipient=recipient,
            group=group,
            dedup_id=dedup_id,
            content_type=content_type,
        )
        return (self._perform(ops.Send(self.name, [draft])))[0]

    def send_many(self, messages: Iterable[Any]) -> list[str]:
        """Send plain bodies or drafts (`miniq.draft`), all or none, and return their ids in order."""
        drafts = bodies.drafts(messages)
        return self._perform(ops.Send(self.name, drafts)) if drafts else []

    def receive(
        self,
        max: int = 1,
        wait: float = 0,
        visibility_timeout: float | None = None,
        consumer: str | None = None,
        mode: Mode | None = None,
    ) -> list[Message]:
        """Lease up to `max` messages; with `wait`, wait that long for the first one."""
        call = ops.Receive(self.name, max, wait, visibility_timeout, consumer, mode or "at-least-once")
        state = SETTLED if mode == "at-most-once" else HELD
        return [Message(self, stored, state) for stored in self._perform(call)]

    def consume(
        self,
        handler: Callable[[Any], object],
        *,
        concurrency: int = 1,
        batch: int | None = None,
        wait: float = 1,
        visibility_timeout: float | None = None,
        consumer: str | None = None,
        retry_delay: float = 0,
        pass_message: bool = False,
        stop: Stop = None,
    ) -> None:
        """Call `handler` with the body of each message (with the message itself if `pass_message`), up to
        `concurrency` at a time, until `stop` says so or Ctrl-C.

        The handler is a function, which runs in a thread, or within an event loop also a coroutine function, which
        runs as a task. The lease is extended while it runs; then the message is acked, or released (after
        `retry_delay`) if the handler raised. At the end running handlers are waited for, and what was fetched but not
        started is released; that takes up to `wait` seconds. `batch` is how many messages are fetched at once, by
        default as many as there are free handlers.
        """
        plan = Plan(
            handler=handler,
            concurrency=concurrency,
            batch=batch,
            wait=wait,
            visibility_timeout=visibility_timeout,
            consumer=consumer,
            retry_delay=retry_delay,
            pass_message=pass_message,
            stop=stop,
        )
        ThreadWorker(self, plan).run()

    def ack(self, messages: Iterable[Message]) -> list[Outcome]:
        """Ack many at once: for each `done`, `stale` or `missing`."""
        messages = list(messages)
        outcomes = self._perform(ops.Ack(self.name, leases(self.name, messages))) if messages else []
        settle(messages)
        return outcomes

    def release(self, messages: Iterable[Message], delay: float = 0) -> list[Outcome]:
        """Release many at once: for each `done`, `stale` or `missing`."""
        messages = list(messages)
        outcomes = self._perform(ops.Release(self.name, leases(self.name, messages), delay)) if messages else []
        settle(messages)
        return outcomes

    def extend(self, messages: Iterable[Message], seconds: float | None = None) -> list[Outcome]:
        """Extend many leases at once: for each `done`, `stale` or `missing`."""
        messages = list(messages)
        if not messages:
            return []
        reply = self._perform(ops.Extend(self.name, leases(self.name, messages), seconds))
        renew(messages, reply)
        return reply.outcomes

    def peek(
        self, status: Status | None = None, after: str | None = None, limit: int = 100, find: str | None = None
    ) -> MessagePage[Message]:
        """Browse without consuming; give the page's `next` as `after` for more. `find` is a text that the id, key,
        headers or body has in it, whatever its case; a search ends after some thousand messages."""
        page = self._perform(ops.Peek(self.name, status, after, limit, find))
        return MessagePage([self._seen(stored) for stored in page.messages], page.next)

    def peek_table(self, status: Status | None = None, after: str | None = None, limit: int = 10_000) -> TablePage:
        """Browse without consuming, up to 100,000 messages at a time as a `pyarrow.Table`."""
        call: AsTable[TablePage] = AsTable(ops.Peek(self.name, status, after, limit))
        return self._perform(call)

    def get(self, id: str) -> Message:
        """Look at one message without consuming it."""
        return self._seen(self._perform(ops.Get(self.name, id)))

    def edit(
        self,
        id: str,
        *,
        body: Any | UnsetType = UNSET,
        content_type: str | None = None,
        headers: dict[str, str] | None = None,
        priority: int | None = None,
        delay: float | None = None,
        receipt: str | None = None,
    ) -> Message:
        """Change a message that is not leased, or whose receipt you hold; what is not named stays."""
        data: bytes | None = None
        if body is not UNSET:  # None is a body like any other
            data, content_type = bodies.encode(body, content_type)
        call = ops.Edit(self.name, id, data, content_type, headers, priority, delay, receipt)
        return self._seen(self._perform(call))

    def remove(self, id: str, receipt: str | None = None) -> None:
        """Delete one message that is not leased, or whose receipt you hold."""
        self._perform(ops.Remove(self.name, id, receipt))

    def release_by_id(self, id: str, delay: float = 0) -> bool:
        """Take a message from whoever holds it, whose receipt is no longer good; False if nobody holds it. For those
        who manage the queue."""
        return self._perform(ops.ReleaseOne(self.name, id, delay))

    def send_table(self, table: Any) -> list[str]:
        """Send the rows of a `pyarrow.Table` (or record batches), all or none, and return their ids in order. Its
        columns are `body` (JSON text) or `data`, and others named as in `draft`."""
        return self._perform(ops.Send(self.name, to_table(table)))

    def stage(self, job: str, batch: int | str, partition: int | str, attempt: int | str) -> Staging:
        """A place for the messages of one try of one task of a job, unseen until they are committed; asks nothing
        yet."""
        return Staging(self, StageName(job, str(batch), str(partition), str(attempt)))

    def commit_stages(self, job: str, batch: int | str, stages: Iterable[tuple[int | str, int | str]]) -> Committed:
        """Make the messages of some stages, (partition, attempt), part of the queue, all at once, and once per job and
        batch: repeated, it adds nothing. Other stages of the batch are removed."""
        listed = [StageId(str(partition), str(attempt)) for partition, attempt in stages]
        return self._perform(ops.CommitStages(self.name, job, str(batch), listed))

    def discard_stages(self, job: str, batch: int | str) -> int:
        """Remove the stages of a batch that are not committed, and say how many there were."""
        return self._perform(ops.DiscardStages(self.name, job, str(batch)))

    def stages(self) -> list[Stage]:
        """All stages that are not committed."""
        return self._perform(ops.ListStages(self.name))

    def claims(self, group: str) -> Claims:
        """The claims of a group of readers: frozen batches that can be read again; asks nothing yet."""
        return Claims(self, group)

    def claim_groups(self) -> list[ClaimGroup]:
        """All groups of readers, with the claims that can be read."""
        return self._perform(ops.ListClaims(self.name))

    # The queue itself

    def purge(self) -> int:
        """Remove all messages, leased ones too, and say how many there were."""
        return self._perform(ops.Purge(self.name))

    def redrive(
        self, ids: Iterable[str] | None = None, to: str | None = None, rate: float | None = None
    ) -> RedriveProgress:
        """Move dead letters back where they came from or `to` another queue: all, or some `ids`; with
        `rate`, in the background at so many a second."""
        return self._perform(ops.Redrive(self.name, None if ids is None else list(ids), to, rate))

    def configure(self, **settings: Unpack[QueueChanges]) -> QueueInfo:
        """Create the queue or change some of its settings (see `QueueSettings`)."""
        return self._perform(ops.Configure(self.name, dict(settings)))

    def info(self) -> QueueInfo:
        """Settings and counts."""
        return self._perform(ops.GetQueue(self.name))

    def delete(self) -> None:
        """Remove the queue with everything in it."""
        self._perform(ops.DeleteQueue(self.name))

    def _seen(self, stored: Stored) -> Message:
        return Message(self, stored, SEEN)
