"""A consumer of one queue for Dramatiq's worker: receives by long polls, acks, dead-letters and requeues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from threading import Condition
from typing import TYPE_CHECKING, Any

from dramatiq.broker import Consumer, MessageProxy
from dramatiq.logging import get_logger
from dramatiq.message import Message as Task
from dramatiq.message import get_encoder

from miniq.api import operations as ops
from miniq.client._sync.message import Message
from miniq.client.failure import beginning, error_text
from miniq.dramatiq.connection import connection_errors
from miniq.dramatiq.malformed import check
from miniq.errors import InvalidRequest, MessageNotFound, MiniQError, QueueNotFound, StaleReceipt
from miniq.worker.plan import own_name

if TYPE_CHECKING:
    from miniq.dramatiq.broker import MiniQBroker

BATCH = 1000
"""The most messages that one receive asks for."""
UNKNOWN = "failed without an exception"


class MiniQMessageProxy(MessageProxy):
    """A message of Dramatiq with its lease."""

    def __init__(self, task: Task[Any], lease: Message, consumer: MiniQConsumer) -> None:
        super().__init__(task)
        self.lease = lease
        self.consumer = consumer
        """The one that received it; the one that acks it may have replaced that after a lost connection."""


class MiniQConsumer(Consumer):
    """Holds at most `prefetch` messages that are not acked, and waits up to `timeout` milliseconds for one."""

    def __init__(self, broker: MiniQBroker, queue_name: str, prefetch: int, timeout: int) -> None:
        self.logger = get_logger(__name__, type(self))
        self.queue_name = queue_name
        self._broker = broker
        self._name = broker.queue_of(queue_name)
        self._prefetch = max(1, prefetch)
        self._wait = max(0, timeout) / 1000
        self._fetched: deque[MiniQMessageProxy] = deque()
        self._free = Condition()
        self._held = 0
        """Messages that were received and are neither acked nor requeued."""

    def __next__(self) -> MessageProxy | None:
        if not self._fetched:
            with self._free:
                if not self._free.wait_for(lambda: self._held < self._prefetch, self._wait):
                    return None
                free = self._prefetch - self._held
            self._fetch(min(free, BATCH))
        return self._fetched.popleft() if self._fetched else None

    def _fetch(self, most: int) -> None:
        """Lease up to that many messages."""
        client, leases = self._broker.client, self._broker.leases
        queue = client.queue(self._name)
        with connection_errors():
            try:
                leased = client.perform(ops.Receive(self._name, most, self._wait, None, own_name()))
            except QueueNotFound:  # a broker without `auto_create`
                queue.configure()
                return
        messages = [Message(queue, stored) for stored in leased]
        leases.hold(messages, leased.seconds or 30.0)
        with self._free:
            self._held += len(messages)
        for message in messages:
            try:
                task = self._task(message)
            except Exception as error:  # of the encoder, which may be the program's own
                reason = str(error) if isinstance(error, InvalidRequest) else error_text(error)
                self.logger.error(
                    "Message %s of queue %r is no message of Dramatiq: %s", message.id, self._name, reason
                )
                self._settle(message, reason)
                continue
            self._fetched.append(MiniQMessageProxy(task, message, self))

    def _task(self, message: Message) -> Task[Any]:
        fields = get_encoder().decode(message.data)
        check(fields)
        task: Task[Any] = Task(**{**fields, "args": tuple(fields["args"])})
        if task.queue_name != self.queue_name:  # it was redriven to another queue
            task = task.copy(queue_name=self.queue_name)
        return task

    def ack(self, message: MessageProxy) -> None:
        if isinstance(message, MiniQMessageProxy):
            message.consumer._settle(message.lease, None)

    def nack(self, message: MessageProxy) -> None:
        if isinstance(message, MiniQMessageProxy):
            error = message._exception
            reason = str(message.options.get("traceback") or UNKNOWN) if error is None else error_text(error)
            message.consumer._settle(message.lease, reason)

    def _settle(self, message: Message, error: str | None) -> None:
        """Ack, or dead-letter with an error. While the broker is unreachable, the lease is extended further."""
        try:
            with connection_errors():
                try:
                    if error is None:
                        message.ack()
                    else:
                        message.fail(beginning(error), dead=True)
                except (StaleReceipt, MessageNotFound, QueueNotFound) as lost:
                    self.logger.warning("Message %s is finished, but was not held any more: %s", message.id, lost)
        except MiniQError:  # such as a revoked key: it will be received again
            self._forget([message])
            raise
        self._forget([message])

    def _forget(self, messages: list[Message]) -> None:
        self._broker.leases.drop(*messages)
        with self._free:
            self._held -= len(messages)
            self._free.notify_all()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        proxies = [message for message in messages if isinstance(message, MiniQMessageProxy)]
        queue = self._broker.client.queue(self._name)
        for start in range(0, len(proxies), BATCH):
            part = proxies[start : start + BATCH]
            with connection_errors(), suppress(QueueNotFound):
                queue.release([message.lease for message in part], unused=True)
            for message in part:
                message.consumer._forget([message.lease])

    def close(self) -> None:
        """Return what was fetched and not handed out. Messages that actors work on stay leased."""
        fetched = list(self._fetched)
        self._fetched.clear()
        try:
            self.requeue(fetched)
        except (MiniQError, ConnectionError):
            self._broker.leases.drop(*(message.lease for message in fetched))
            raise
