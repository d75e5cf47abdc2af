"""A message as a client has it, without I/O: its fields, its lease, and how replies change it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from miniq.api import codec
from miniq.client.arguments import as_list
from miniq.client.bodies import decode
from miniq.errors import InvalidRequest, MessageNotFound, StaleReceipt
from miniq.message import Extended, Lease, Outcome, Status, Stored

HELD, SETTLED, SEEN = "held", "settled", "seen"
"""Leased by this client; acked, released or lost; peeked at."""
_LAST = datetime.max.replace(tzinfo=UTC)


class Dead(NamedTuple):
    """The queue a dead letter came from, why it was moved, how often it was received there, and when it was moved."""

    origin: str
    reason: str
    receives: int
    at: datetime


Q = TypeVar("Q")


def _field(name: str) -> Any:
    """A property that is a field of the message."""
    return property(attrgetter(f"_stored.message.{name}"))


class Delivery(Generic[Q]):
    """The base of `Message` and `AsyncMessage`; `Q` is the queue object it came from.

    A call may create a thousand of these, so that it only holds the record and reads fields on access.
    """

    __slots__ = ("_body", "_from", "_state", "_stored")

    _body: Any
    """Set once it is decoded."""

    def __init__(self, source: Q, stored: Stored, state: str = HELD) -> None:
        self._from = source
        self._stored = stored
        self._state = state

    id: str = _field("id")
    queue: str = _field("queue")
    content_type: str = _field("content_type")
    priority: int = _field("priority")
    key: str | None = _field("key")
    recipient: str | None = _field("recipient")
    group: str | None = _field("group")
    dedup_id: str | None = _field("dedup_id")
    data: bytes = _field("body")

    @property
    def body(self) -> Any:
        """The JSON value, the text (`text/*`), or the bytes."""
        try:
            return self._body
        except AttributeError:
            message = self._stored.message
            self._body = decode(message.body, message.content_type)
            return self._body

    @property
    def headers(self) -> dict[str, str]:
        return dict(self._stored.message.headers or ())

    @property
    def sent_at(self) -> datetime:
        return moment(self._stored.message.sent_at)

    @property
    def receives(self) -> int:
        """How often it was received, including this time."""
        return self._stored.receives

    @property
    def receipt(self) -> str | None:
        """Proves that this client holds the lease; None if the message was peeked at."""
        return None if self._state is SEEN else self._stored.receipt

    @property
    def consumer(self) -> str | None:
        """The name that the consumer gave when it received the message."""
        return self._stored.consumer

    @property
    def lease_until(self) -> datetime | None:
        """When the lease ends; None if there is none."""
        return None if self._stored.receipt is None else moment(self._stored.visible_at)

    @property
    def visible_at(self) -> datetime:
        """When it becomes or became ready."""
        return moment(self._stored.visible_at)

    @property
    def status(self) -> Status:
        """Ready, delayed or leased now, by this machine's clock."""
        return self._stored.status(time.time_ns() // 1000)

    @property
    def dead(self) -> Dead | None:
        dead = self._stored.message.dead
        return None if dead is None else Dead(dead.origin, dead.reason, dead.receives, moment(dead.at))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue!r}, {self._state}, receives {self.receives}>"

    def _lease(self) -> Lease:
        receipt = self._stored.receipt
        if self._state is SEEN or receipt is None:
            raise InvalidRequest(
                f"receipt: message {self.id!r} was peeked at, not received; receive it to ack, release or extend it",
                field="receipt",
            )
        return Lease(self.id, receipt)

    def _renewed(self, outcome: Outcome, until: int) -> None:
        if outcome == "done":
            old = self._stored
            self._stored = Stored(old.message, until, old.receives, old.receipt, old.consumer)
        else:
            self._state = SETTLED


D = TypeVar("D", bound=Delivery[Any])


class MessagePage(list[D]):
    """The messages of one page; `next` is the `after` of the next page, None at the end."""

    def __init__(self, messages: Iterable[D], next: str | None) -> None:
        super().__init__(messages)
        self.next = next


def as_messages(messages: Iterable[D]) -> list[D]:
    """Messages as a list."""
    messages = as_list(messages, "messages", "messages that were received")
    for message in messages:
        if not isinstance(message, Delivery):
            raise InvalidRequest(f"messages: {message!r:.80} is not a message that was received", field="messages")
    return messages


def leases(queue: str, messages: Sequence[Delivery[Any]]) -> list[Lease]:
    """The leases of messages, which must be of that queue."""
    for message in messages:
        if message.queue != queue:
            text = f"messages: {message.id!r} is of queue {message.queue!r}, not of {queue!r}"
            raise InvalidRequest(text, field="messages")
    return [message._lease() for message in messages]


def settle(messages: Iterable[Delivery[Any]]) -> None:
    """Mark messages that were acked, released or lost."""
    for message in messages:
        message._state = SETTLED


def renew(messages: Iterable[Delivery[Any]], reply: Extended) -> None:
    """Update messages after an extend."""
    for message, outcome in zip(messages, reply.outcomes, strict=True):
        message._renewed(outcome, reply.until)


def moment(micros: int) -> datetime:
    """A moment as a timestamp; one that is never reached is the latest possible."""
    try:
        return codec.moment(micros)
    except OverflowError:
        return _LAST


def check_held(outcome: Outcome, queue: str, id: str) -> None:
    """Raise the error for an outcome, if the lease was lost."""
    if outcome == "missing":
        raise MessageNotFound(f"id: there is no message {id!r} in queue {queue!r} any more", field="id")
    if outcome != "done":
        raise StaleReceipt(f"receipt: message {id!r} was received again or released", field="receipt")
