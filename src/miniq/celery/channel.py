"""A channel of kombu on MiniQ: what Celery calls to declare, send, consume, ack and reject.

- A queue is a queue, an exchange a topic (`exchanges.py`); a message keeps its body (`envelope.py`).
- Messages that are consumed are leased. `leases.py` extends the leases until the message is acked, rejected or given
  back, so there is no visibility timeout to set. `receivers.py` fetches messages within the prefetch limit.
- A rejected message goes to the dead-letter queue of its queue; with `requeue` it is released.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport.base import Message, StdChannel, to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from miniq.celery import arguments as queue_arguments
from miniq.celery import envelope, exchanges, workers
from miniq.celery.exchanges import Binding
from miniq.celery.leases import REJECTED
from miniq.celery.names import native
from miniq.celery.receivers import Credit, Receiver
from miniq.client._sync.client import Client
from miniq.client._sync.message import Message as Leased
from miniq.client.failure import beginning, error_text
from miniq.errors import Denied, InvalidRequest, MiniQError, NotFound, Overloaded, StoreUnavailable

if TYPE_CHECKING:
    from miniq.celery.transport import Transport

logger = logging.getLogger("kombu.transport.miniq")

TYPES = ("direct", "topic", "fanout")
JOIN = 5.0
"""Seconds that a channel that is closed waits for its threads."""


class Channel(StdChannel):
    """What a program does on a connection. Messages are acked on the channel that delivered them."""

    default_priority = 0

    def __init__(self, transport: Transport, number: int) -> None:
        self.connection = self.transport = transport
        self.channel_id = number
        self.closed = False
        self.credit = Credit()
        self.turn = threading.Lock()
        """Held by a receiver while it takes what is ready."""
        self._receivers: dict[str, Receiver] = {}
        self._unacked: dict[int, tuple[Leased, Receiver | None]] = {}
        self._tags = count(1)
        self._own_queues: set[str] = set()
        """Auto-delete queues that this channel consumed."""

    # Exchanges and queues

    def exchange_declare(
        self,
        exchange: str | None = None,
        type: str | None = "direct",
        durable: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        nowait: bool = False,
        passive: bool = False,
    ) -> None:
        """Remember the type of an exchange. Its topic comes with its first binding or message."""
        kind, name = type or "direct", exchange or f"amq.{type or 'direct'}"
        if passive:
            if name not in self.transport.exchanges:
                raise ChannelError(f"NOT_FOUND - no exchange {name!r}", (50, 10), "Channel.exchange_declare", "404")
            return
        if kind not in TYPES:
            known = ", ".join(TYPES)
            raise InvalidRequest(f"exchange_type: {kind!r} of exchange {name!r}; use one of {known}", field="type")
        known_type = self.transport.exchanges.setdefault(name, kind)
        if known_type != kind:
            text = f"exchange {name!r} is a {known_type} exchange and cannot be declared as a {kind} exchange"
            raise ChannelError(f"PRECONDITION_FAILED - {text}", (40, 10), "Channel.exchange_declare", "406")

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        self.transport.exchanges.pop(exchange, None)
        self.transport.forget(lambda binding: binding.exchange == exchange)
        with contextlib.suppress(NotFound):
            self._client.topic(native(exchange)).delete()

    def exchange_bind(self, *given: Any, **named: Any) -> None:
        raise NotImplementedError("MiniQ binds queues to exchanges, and no exchanges to each other")

    exchange_unbind = exchange_bind

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        durable: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        nowait: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> Any:
        """Create a queue if its arguments ask for settings; others are created by their first message."""
        name = queue or f"amq.gen-{uuid()}"
        if passive:
            try:
                return queue_declare_ok_t(name, self._client.queue(native(name)).info().counts.ready, 0)
            except NotFound:
                text = f"NOT_FOUND - no queue {name!r}"
                raise ChannelError(text, (50, 10), "Channel.queue_declare", "404") from None
        settings, expires = queue_arguments.read(name, arguments)
        if auto_delete and expires is None:
            expires = exchanges.AUTO_DELETE_EXPIRES
            settings.setdefault("retention", queue_arguments.EXPIRING_RETENTION)
        try:
            if settings:
                self._client.queue(native(name)).configure(**settings)
            if expires is not None:
                self.transport.expiring[name] = expires
                exchanges.keep_alive(self._client, name, expires)
        except Denied:
            if not self._exists(name):
                raise
        if auto_delete:
            self._own_queues.add(name)
        return queue_declare_ok_t(name, self._size(name), 0)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **unused: Any,
    ) -> None:
        name = exchange or "amq.direct"
        binding = Binding(queue, name, routing_key or "", self.transport.exchanges.get(name, "direct"))
        exchanges.bind(self._client, binding)
        self.transport.bindings.add(binding)
        if queue in self.transport.expiring:
            exchanges.sweep(self._client, name)

    def queue_unbind(
        self, queue: str, exchange: str | None = None, routing_key: str = "", arguments: Any = None, **unused: Any
    ) -> None:
        name = exchange or "amq.direct"
        binding = Binding(queue, name, routing_key or "", self.transport.exchanges.get(name, "direct"))
        exchanges.unbind(self._client, binding)
        self.transport.bindings.discard(binding)

    def queue_purge(self, queue: str, **unused: Any) -> int:
        """Remove all messages, those that are leased included; the number of messages."""
        try:
            return self._client.queue(native(queue)).purge()
        except NotFound:
            return 0

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **unused: Any) -> None:
        if (if_empty and self._size(queue)) or (if_unused and self._is_consumed(queue)):
            return
        self.transport.leases.flush()
        bindings = self.transport.forget(lambda binding: binding.queue == queue)
        self.transport.expiring.pop(queue, None)
        self._own_queues.discard(queue)
        exchanges.delete(self._client, queue, bindings)

    def after_reply_message_received(self, queue: str) -> None:
        self.queue_delete(queue)

    def prepare_queue_arguments(self, arguments: Any, **given: Any) -> Any:
        return to_rabbitmq_queue_arguments(arguments, **given)

    def list_bindings(self) -> list[tuple[str, str, str]]:
        return [(each.queue, each.exchange, each.routing_key) for each in self.transport.bindings]

    # Sending

    def prepare_message(
        self,
        body: Any,
        priority: int | None = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        headers: dict[str, Any] | None = None,
        properties: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        properties = properties or {}
        properties.setdefault("delivery_info", {})
        properties.setdefault("priority", priority or self.default_priority)
        return {
            "body": body,
            "content-encoding": content_encoding,
            "content-type": content_type,
            "headers": headers or {},
            "properties": properties,
        }

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **unused: Any) -> None:
        """Send a message; it is on disk when this returns. What may be lost (events) is, while the broker is down."""
        key = routing_key or ""
        draft = envelope.draft(message, exchange or "", key, datetime.now(UTC))
        transient = envelope.is_transient(message)
        client = self.transport.transient_client if transient else self._client
        try:
            if exchange:
                exchanges.publish(client, exchange, key, draft)
            else:
                client.queue(native(key)).send_many([draft])
        except NotFound:
            if not exchange:
                raise
        except (StoreUnavailable, Overloaded):
            if not transient:
                raise

    # Receiving

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """How many messages this channel may hold unacked; 0 is unlimited."""
        self.credit.set_limit(prefetch_count or 0)

    def basic_consume(
        self,
        queue: str,
        no_ack: bool = False,
        callback: Callable[[Any], Any] | None = None,
        consumer_tag: str | None = None,
        nowait: bool = False,
        **unused: Any,
    ) -> str:
        if callback is None:
            raise InvalidRequest("callback: missing; give the function that gets the messages", field="callback")
        tag = consumer_tag or uuid()
        receiver = Receiver(self, tag, queue, no_ack, callback)
        self._receivers[tag] = receiver
        self.transport.watch_expiring()
        receiver.start()
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """Receive no more for a consumer. Messages that the program has are still its own."""
        receiver = self._receivers.pop(consumer_tag, None)
        if receiver is not None:
            receiver.end()

    def basic_get(self, queue: str, no_ack: bool = False, **unused: Any) -> Message | None:
        leases = self.transport.leases
        mode: Any = "at-most-once" if no_ack else None
        seconds = None if no_ack else leases.seconds
        name = native(queue)
        for message in self._client.queue(name).receive(1, 0, seconds, self.transport.consumer, mode):
            if not no_ack:
                leases.add([message])
                self.credit.take(1)
            tag = 0 if no_ack else self._hold(message, None)
            try:
                return self._message(message, queue, tag)
            except InvalidRequest as error:
                self._refuse(message, tag, error)
                return self.basic_get(queue, no_ack)
        return None

    def deliver(self, receiver: Receiver, message: Leased) -> None:
        """Give a message to its consumer; called in the thread that drains. What a worker of Celery cannot read becomes
        a dead letter; other programs see the errors that they raise."""
        if not receiver.no_ack and (self.closed or receiver.is_ending):
            self.credit.give_back()
            self.transport.leases.settle(message, "unused")
            return
        tag = 0 if receiver.no_ack else self._hold(message, receiver)
        try:
            given = self._message(message, receiver.queue, tag, receiver.tag)
        except InvalidRequest as error:
            self._refuse(message, tag, error)
            return
        if not workers.is_worker(receiver.callback):
            receiver.callback(given)
            return
        try:
            workers.check(receiver.callback, given)
        except InvalidRequest as error:
            self._refuse(message, tag, error)
            return
        try:
            receiver.callback(given)
        except (Denied, *self.transport.connection_errors):
            raise
        except Exception as error:
            self._refuse(message, tag, error)

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:
        self._settle(delivery_tag, "ack", multiple)

    def basic_reject(self, delivery_tag: int, requeue: bool = False) -> None:
        """Give a message back, or make it a dead letter."""
        self._settle(delivery_tag, "release" if requeue else "dead")

    def basic_nack(self, delivery_tag: int, multiple: bool = False, requeue: bool = True) -> None:
        self._settle(delivery_tag, "release" if requeue else "dead", multiple)

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back all that is not acked."""
        for tag in list(self._unacked):
            self._settle(tag, "release")

    def drain_events(self, timeout: float | None = None, **unused: Any) -> None:
        self.transport.drain_events(self.transport, timeout=timeout)

    def message_to_python(self, raw: Any) -> Any:
        return raw

    def is_only(self, receiver: Receiver) -> bool:
        """Whether no other queue shares this channel's credit."""
        return all(other is receiver or other.no_ack for other in list(self._receivers.values()))

    def flow(self, active: bool = True) -> None:
        raise NotImplementedError("MiniQ's channels have no flow control; cancel the consumer")

    def close(self) -> None:
        """Cancel all consumers, give back what is not acked, and remove the queues that were only for this channel."""
        if self.closed:
            return
        self.closed = True
        if self.transport.is_forked:  # a child has no part in it, and its locks may be held for ever
            return
        receivers = self.receivers
        for receiver in receivers:
            self.basic_cancel(receiver.tag)
        for receiver in receivers:
            receiver.join(JOIN)
        for delivery in self.transport.inbox.remove(self):
            if isinstance(delivery.message, Leased) and not delivery.receiver.no_ack:
                self.transport.leases.settle(delivery.message, "unused")
        self.basic_recover(requeue=True)
        for queue in list(self._own_queues):
            try:
                if not self._is_consumed(queue):
                    self.queue_delete(queue)
            except MiniQError:  # it expires
                continue
        self.transport.close_channel(self)

    def _hold(self, message: Leased, receiver: Receiver | None) -> int:
        """The delivery tag by which a message is settled."""
        tag = next(self._tags)
        self._unacked[tag] = message, receiver
        return tag

    def _refuse(self, message: Leased, tag: int, error: Exception) -> None:
        """Make a message a dead letter that nobody can process; one that needs no ack has left its queue already."""
        is_malformed = isinstance(error, InvalidRequest)
        text = beginning(str(error)) if is_malformed else error_text(error)
        logger.error("message %s of queue %r is rejected: %s", message.id, message.queue, text)
        self._settle(tag, "dead", error=text)

    def _message(self, message: Leased, queue: str, tag: int, consumer: str = "") -> Message:
        fields = envelope.payload(message, queue)
        fields["delivery_info"]["consumer_tag"] = consumer
        return Message(channel=self, delivery_tag=tag, **fields)  # type: ignore[no-untyped-call]

    def _settle(self, tag: int, verdict: Any, multiple: bool = False, error: str = REJECTED) -> None:
        tags = [each for each in list(self._unacked) if each <= tag] if multiple else [tag]
        for each in tags:
            found = self._unacked.pop(each, None)
            if found is not None:
                self.transport.leases.settle(found[0], verdict, error)
                self.credit.give_back()

    def _exists(self, queue: str) -> bool:
        try:
            self._client.queue(native(queue)).info()
        except NotFound:
            return False
        except Denied:
            pass
        return True

    def _size(self, queue: str) -> int:
        try:
            return self._client.queue(native(queue)).info().counts.ready
        except (NotFound, Denied):
            return 0

    def _is_consumed(self, queue: str) -> bool:
        return any(receiver.queue == queue for channel in self.transport.channels for receiver in channel.receivers)

    @property
    def receivers(self) -> list[Receiver]:
        return list(self._receivers.values())

    @property
    def _client(self) -> Client:
        return self.transport.open_client
