"""The blocking client: `Client`, `Queue`, `Message`. They build calls, have them performed, wrap the replies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from msgspec import UNSET, UnsetType

from miniq.client import bodies, calls
from miniq.client.calls import Transport
from miniq.client.delivery import HELD, SEEN, SETTLED, Delivery, MessagePage, leases, renew, settle
from miniq.client.tables import TablePage, is_table
from miniq.errors import BadName, MiniQError
from miniq.message import (
    Claim,
    ClaimGroup,
    Committed,
    HistoryPage,
    Mode,
    Outcome,
    QueueInfo,
    RedriveProgress,
    Stage,
    StageName,
    Status,
    Stored,
)
from miniq.worker.plan import Give, Plan, Stop
from miniq.worker.thread_worker import ThreadWorker


class Message(Delivery["Queue"]):
    """A message that was received, or looked at.

    `with message:` acks it on success and releases it on an exception, unless that was done by hand.
    """

    __slots__ = ()

    def ack(self) -> bool:
        """It was processed: remove it. False if it was gone already; `StaleReceipt` if somebody else has it."""
        return self._acked(self._from._perform(self._ack()))

    def release(self, delay: float = 0) -> None:
        """Give it back, ready again at once or after `delay` seconds."""
        self._released(self._from._perform(self._release(delay)))

    def extend(self, seconds: float | None = None) -> datetime:
        """Let the lease end so many seconds from now (the queue's visibility timeout), and say when that is."""
        return self._extended(self._from._perform(self._extend(seconds)))

    def __enter__(self) -> Message:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._state is not HELD:
            return
        if error is None:
            self.ack()
            return
        try:
            self.release()
        except MiniQError as problem:
            self._not_released(error, problem)


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
        return self._perform(calls.Send(self.name, [draft]))[0]

    def send_many(self, messages: Iterable[Any]) -> list[str]:
        """Send plain bodies or drafts (`miniq.draft`), all or none, and return their ids in order."""
        drafts = bodies.drafts(messages)
        return self._perform(calls.Send(self.name, drafts)) if drafts else []

    def receive(
        self,
        max: int = 1,
        wait: float = 0,
        visibility_timeout: float | None = None,
        consumer: str | None = None,
        mode: Mode | None = None,
    ) -> list[Message]:
        """Lease up to `max` messages; with `wait`, wait that long for the first one."""
        call = calls.Receive(self.name, max, wait, visibility_timeout, consumer, mode or "at-least-once")
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
        give: Give = "body",
        stop: Stop = None,
    ) -> None:
        """Call `handler` with the body of each message (`give="message"`: with the message itself), in
        `concurrency` threads, until `stop` says so or Ctrl-C.

        The lease is extended while the handler runs; then the message is acked, or released (after
        `retry_delay`) if the handler raised. At the end running handlers are waited for, and what was
        fetched but not started is released; that takes up to `wait` seconds. `batch` is how many messages
        are fetched at once, by default as many as there are free handlers.
        """
        plan = Plan(
            handler=handler,
            concurrency=concurrency,
            batch=batch,
            wait=wait,
            visibility_timeout=visibility_timeout,
            consumer=consumer,
            retry_delay=retry_delay,
            give=give,
            stop=stop,
        )
        ThreadWorker(self, plan).run()

    def ack(self, messages: Iterable[Message]) -> list[Outcome]:
        """Ack many at once: for each `done`, `stale` or `missing`."""
        messages = list(messages)
        outcomes = self._perform(calls.Ack(self.name, leases(self.name, messages))) if messages else []
        settle(messages)
        return outcomes

    def release(self, messages: Iterable[Message], delay: float = 0) -> list[Outcome]:
        """Release many at once: for each `done`, `stale` or `missing`."""
        messages = list(messages)
        outcomes = self._perform(calls.Release(self.name, leases(self.name, messages), delay)) if messages else []
        settle(messages)
        return outcomes

    def extend(self, messages: Iterable[Message], seconds: float | None = None) -> list[Outcome]:
        """Extend many leases at once: for each `done`, `stale` or `missing`."""
        messages = list(messages)
        if not messages:
            return []
        reply = self._perform(calls.Extend(self.name, leases(self.name, messages), seconds))
        renew(messages, reply)
        return reply.outcomes

    def peek(self, status: Status | None = None, after: str | None = None, limit: int = 100) -> MessagePage[Message]:
        """Browse without consuming; give the page's `next` as `after` for more."""
        page = self._perform(calls.Peek(self.name, status, after, limit))
        return MessagePage([self._seen(stored) for stored in page.messages], page.next)

    def peek_table(self, status: Status | None = None, after: str | None = None, limit: int = 10_000) -> TablePage:
        """Browse without consuming, up to 100,000 messages at a time as a `pyarrow.Table`."""
        return self._perform(calls.PeekTable(self.name, status, after, limit))

    def get(self, id: str) -> Message:
        """Look at one message without consuming it."""
        return self._seen(self._perform(calls.Get(self.name, id)))

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
        call = calls.edit(self.name, id, body, content_type, headers, priority, delay, receipt)
        return self._seen(self._perform(call))

    def remove(self, id: str, receipt: str | None = None) -> None:
        """Delete one message that is not leased, or whose receipt you hold."""
        self._perform(calls.Remove(self.name, id, receipt))

    def send_table(self, table: Any) -> list[str]:
        """Send the rows of a `pyarrow.Table` (or record batches), all or none, and return their ids in order. Its
        columns are `body` (JSON text) or `data`, and others named as in `draft`."""
        return self._perform(calls.SendTable(self.name, table))

    def stage(self, job: str, batch: int | str, partition: int | str, attempt: int | str) -> Staging:
        """A place for the messages of one try of one task of a job, unseen until they are committed; asks nothing
        yet."""
        return Staging(self, StageName(job, str(batch), str(partition), str(attempt)))

    def commit_stages(self, job: str, batch: int | str, stages: Iterable[tuple[int | str, int | str]]) -> Committed:
        """Make the messages of some stages, (partition, attempt), part of the queue, all at once, and once per job and
        batch: repeated, it adds nothing. Other stages of the batch are removed."""
        listed = [(str(partition), str(attempt)) for partition, attempt in stages]
        return self._perform(calls.CommitStages(self.name, job, str(batch), listed))

    def discard_stages(self, job: str, batch: int | str) -> int:
        """Remove the stages of a batch that are not committed, and say how many there were."""
        return self._perform(calls.DiscardStages(self.name, job, str(batch)))

    def stages(self) -> list[Stage]:
        """All stages that are not committed."""
        return self._perform(calls.ListStages(self.name))

    def claims(self, group: str) -> Claims:
        """The claims of a group of readers: frozen batches that can be read again; asks nothing yet."""
        return Claims(self, group)

    def claim_groups(self) -> list[ClaimGroup]:
        """All groups of readers, with the claims that can be read."""
        return self._perform(calls.ListClaims(self.name))

    # The queue itself

    def purge(self) -> int:
        """Remove all messages, leased ones too, and say how many there were."""
        return self._perform(calls.Purge(self.name))

    def redrive(
        self, ids: Iterable[str] | None = None, to: str | None = None, rate: float | None = None
    ) -> RedriveProgress:
        """Move dead letters back where they came from or `to` another queue: all, or some `ids`; with
        `rate`, in the background at so many a second."""
        return self._perform(calls.Redrive(self.name, None if ids is None else list(ids), to, rate))

    def configure(self, **settings: Any) -> QueueInfo:
        """Create the queue or change some of its settings (see `QueueSettings`)."""
        return self._perform(calls.Configure(self.name, settings))

    def info(self) -> QueueInfo:
        """Settings and counts."""
        return self._perform(calls.GetQueue(self.name))

    def delete(self) -> None:
        """Remove the queue with everything in it."""
        self._perform(calls.DeleteQueue(self.name))

    def _seen(self, stored: Stored) -> Message:
        return Message(self, stored, SEEN)


class Claims:
    """The claims of one group of readers: batches numbered 1, 2, 3 that stay as they are until they are acked.

    `open` makes this the group's newest reader, and fences earlier ones. `next(after=n)` acks all claims up to n and
    gives claim n + 1; asked again it gives the same. The messages of a claim are acked with it, not one by one.
    """

    def __init__(self, queue: Queue, group: str) -> None:
        self.queue = queue
        self.group = group
        self.epoch: int | None = None
        """Set by `open`; then a call of a reader that was overtaken raises `Fenced`."""

    def open(self) -> ClaimGroup:
        """Begin to read; says which claim was acked last, and which is the last one made."""
        found = self.queue._perform(calls.OpenClaims(self.queue.name, self.group))
        self.epoch = found.epoch
        return found

    def next(
        self,
        after: int,
        *,
        max_messages: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        wait: float = 0,
        consumer: str | None = None,
    ) -> Claim | None:
        """Ack all claims up to `after` and give the next one, made now if need be; None if nothing is ready within
        `wait` seconds."""
        return self.queue._perform(
            calls.NextClaim(self.queue.name, self.group, after, self.epoch, max_messages, max_bytes, wait, consumer)
        )

    def fetch(self, claim: int, part: int = 0, parts: int = 1) -> list[Message]:
        """The messages of a claim, or one part of several; always the same."""
        call = calls.ReadClaim(self.queue.name, self.group, claim, part, parts)
        return [Message(self.queue, stored, SEEN) for stored in self.queue._perform(call)]

    def table(self, claim: int, part: int = 0, parts: int = 1) -> Any:
        """The same as a `pyarrow.Table`, without an object for each message."""
        call = calls.ClaimTable(self.queue.name, self.group, claim, part, parts)
        return self.queue._perform(call)

    def ack(self, upto: int) -> None:
        """Ack all claims up to a number. Harmless to repeat."""
        self.queue._perform(calls.AckClaims(self.queue.name, self.group, upto, self.epoch))

    def release(self) -> int:
        """Give the messages of claims that are not acked back, and say how many."""
        return self.queue._perform(calls.ReleaseClaims(self.queue.name, self.group, self.epoch))


class Staging:
    """The messages of one try of one task, uploaded in as many parts as it likes."""

    def __init__(self, queue: Queue, name: StageName) -> None:
        self.queue = queue
        self.name = name
        self.parts = 0
        """How many parts were uploaded through this object."""

    def upload(self, messages: Any, part: int | None = None) -> int:
        """Keep messages (drafts, plain bodies or a `pyarrow.Table`) as the next part, or as `part`, and say how many
        they were. A part that is there already stays as it is, so that an upload can be repeated."""
        drafts = messages if is_table(messages) else bodies.drafts(messages)
        number = self.parts if part is None else part
        count, _ = self.queue._perform(calls.Upload(self.queue.name, self.name, number, drafts))
        self.parts = max(self.parts, number + 1)
        return count


class Client:
    """A connection to a broker, made by `miniq.connect`. May be used by many threads at once."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def queue(self, name: str) -> Queue:
        """A queue by name; asks nothing yet."""
        return Queue(self._transport, name)

    def queues(self) -> list[QueueInfo]:
        """All queues by name, with settings and counts."""
        return self._transport.perform(calls.ListQueues())

    def history(self, after: int = 0, limit: int = 100, queue: str | None = None) -> HistoryPage:
        """What happened, by rising offset; give the page's `next` as `after` for more."""
        return self._transport.perform(calls.History(after, limit, queue))

    def history_table(self, after: int = 0, limit: int = 10_000, queue: str | None = None) -> TablePage:
        """What happened, up to 100,000 records at a time as a `pyarrow.Table`."""
        return self._transport.perform(calls.HistoryTable(after, limit, queue))

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent copy of everything to a new folder, while work goes on."""
        self._transport.perform(calls.Backup(os.fspath(path)))

    def close(self) -> None:
        """End the connection; receives that wait come back at once. Harmless to repeat."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
