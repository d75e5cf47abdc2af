"""Dramatiq's broker on MiniQ: actors' queues are MiniQ's queues, which hold delays and priorities themselves."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from dramatiq.broker import Broker, Consumer
from dramatiq.common import current_millis, q_name
from dramatiq.encoder import JSONEncoder
from dramatiq.errors import QueueJoinTimeout
from dramatiq.errors import QueueNotFound as QueueNotDeclared
from dramatiq.message import Message, get_encoder
from dramatiq.middleware import Middleware

from miniq.client._sync.client import Client
from miniq.dramatiq.connection import URL, Connection, connection_errors
from miniq.dramatiq.consumer import MiniQConsumer
from miniq.dramatiq.leases import Leases
from miniq.errors import InvalidRequest, QueueNotFound
from miniq.message import JSON, NAME, NAME_LENGTH, OCTETS, Counts

DEAD = ".dead"
"""What MiniQ adds to the name of a queue for its dead letters."""
LEVELS = 9
"""The highest priority of a message."""
MIDDLE = 5
"""The priority of messages to actors that have none."""


class MiniQBroker(Broker):
    """A broker for Dramatiq.

    Parameters:
      url: The address of a MiniQ server, or a store for a single process, as in `miniq.connect`.
      namespace: The actors of queue `default` are sent messages in MiniQ's queue `dramatiq.default`; with another
        namespace, or none (`""`), the queues are called otherwise.
      middleware: As everywhere in Dramatiq.
      client: A client to use instead of `url`.
      **options: Those of `miniq.connect`, such as `api_key`, `ca`, `timeout`, `retry`.
    """

    def __init__(
        self,
        url: str = URL,
        *,
        namespace: str = "dramatiq",
        middleware: list[Middleware] | None = None,
        client: Client | None = None,
        **options: Any,
    ) -> None:
        if not isinstance(namespace, str) or (namespace and NAME.fullmatch(namespace) is None):
            text = f"namespace: {namespace!r} cannot begin a queue name; use 1 to {NAME_LENGTH} of A-Z a-z 0-9 . _ -"
            raise InvalidRequest(text, field="namespace")
        self._prefix = f"{namespace}." if namespace else ""
        self._connection = Connection(url, client, options)
        self.leases = Leases(lambda: self.client)
        super().__init__(middleware=middleware)
        self.queues: set[str] = set()
        self.actor_options.add("broker_priority")

    @property
    def client(self) -> Client:
        """The client of this process."""
        return self._connection.client

    def queue_of(self, queue_name: str) -> str:
        """The name of the MiniQ queue of a queue of Dramatiq."""
        return self._prefix + q_name(queue_name)

    def close(self) -> None:
        self.leases.close()
        self._connection.close()
        self.leases = Leases(lambda: self.client)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        if queue_name not in self.queues:
            raise QueueNotDeclared(queue_name)
        return MiniQConsumer(self, queue_name, prefetch, timeout)

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue, which the broker creates with its first message."""
        if queue_name in self.queues:
            return
        if NAME.fullmatch(self.queue_of(queue_name)) is None:
            name = self.queue_of(queue_name)
            text = f"queue_name: {name!r} is not a queue name; use 1 to {NAME_LENGTH} of A-Z a-z 0-9 . _ -"
            raise InvalidRequest(text, field="queue_name")
        self.emit_before("declare_queue", queue_name)
        self.queues.add(queue_name)
        self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Enqueue a message; with `delay`, in milliseconds, the broker holds it that long."""
        message = message.copy(queue_name=q_name(message.queue_name))
        self.logger.debug("Enqueueing message %r on queue %r.", message.message_id, message.queue_name)
        self.emit_before("enqueue", message, delay)
        body = message.encode()
        queue = self.client.queue(self.queue_of(message.queue_name))
        seconds = None if delay is None else max(0, delay) / 1000
        priority = self._priority(message)
        with connection_errors():
            try:
                queue.send(body, content_type=_content_type(), delay=seconds, priority=priority)
            except InvalidRequest as error:
                if error.field != "body":
                    raise
                queue.send(body, delay=seconds, priority=priority)  # NaN, which JSON does not have
        self.emit_after("enqueue", message, delay)
        return message

    def _priority(self, message: Message[Any]) -> int:
        """The priority in the queue: `broker_priority` of the message or its actor, else what follows from the actor's
        `priority`."""
        actor = self.actors.get(message.actor_name)
        options = {} if actor is None else actor.options
        given = message.options.get("broker_priority", options.get("broker_priority"))
        if given is None:
            return level(0 if actor is None else actor.priority)
        if type(given) is not int or not 0 <= given <= LEVELS:
            text = f"broker_priority: {given!r} is not a whole number from 0 to {LEVELS}; higher numbers come first"
            raise InvalidRequest(text, field="broker_priority")
        return given

    def get_declared_queues(self) -> set[str]:
        return self.queues.copy()

    def flush(self, queue_name: str) -> None:
        """Drop all messages of a queue, delayed and leased ones included."""
        if queue_name not in self.queues:
            raise QueueNotDeclared(queue_name)
        with connection_errors(), suppress(QueueNotFound):
            self.client.queue(self.queue_of(queue_name)).purge()

    def flush_all(self) -> None:
        """Drop all messages of all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until a queue is empty: for tests. Raises `QueueJoinTimeout` after `timeout` milliseconds; `interval` is
        the time between two looks."""
        if queue_name not in self.queues:
            raise QueueNotDeclared(queue_name)
        deadline = None if timeout is None else current_millis() + timeout
        while self.count(queue_name):
            if deadline is not None and current_millis() >= deadline:
                raise QueueJoinTimeout(queue_name)
            time.sleep(interval / 1000)

    def count(self, queue_name: str) -> int:
        """How many messages a queue has: ready, delayed and leased."""
        counts = self._counts(self.queue_of(queue_name))
        return counts.ready + counts.delayed + counts.leased

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """How many messages of a queue are ready, delayed and dead."""
        name = self.queue_of(queue_name)
        counts, dead = self._counts(name), self._counts(name + DEAD)
        return counts.ready, counts.delayed, dead.ready + dead.leased

    def _counts(self, name: str) -> Counts:
        with connection_errors():
            try:
                return self.client.queue(name).info().counts
            except QueueNotFound:
                return Counts()


def level(priority: float) -> int:
    """The priority of a message in its queue, where 9 comes first, for a priority of an actor, where lower numbers
    come first: one step per digit. 0 is 5, 1 to 9 is 4, 10 to 99 is 3."""
    digits = len(str(abs(int(priority)))) if int(priority) else 0
    return max(0, MIDDLE - digits) if priority > 0 else min(LEVELS, MIDDLE + digits)


def _content_type() -> str:
    return JSON if type(get_encoder()) is JSONEncoder else OCTETS
