"""A message as its reader has it, without I/O: what it says, whose lease it is, what replies do to it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, NamedTuple, TypeVar

from miniq.client.bodies import decode
from miniq.errors import InvalidRequest, MessageNotFound, StaleReceipt
from miniq.message import Extended, Lease, Outcome, Status, Stored

HELD, SETTLED, SEEN = "held", "settled", "seen"
"""With this reader; acked, released or lost; only looked at."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime.max.replace(tzinfo=UTC)


class Dead(NamedTuple):
    """Where a dead letter came from and why, how often it was handed out there, and when it died."""

    origin: str
    reason: str
    receives: int
    at: datetime


Q = TypeVar("Q")


class Delivery(Generic[Q]):
    """The base of `Message` and `AsyncMessage`; `Q` is the queue object it came from.

    A thousand of these are made per call, so it only holds the record and reads from it when asked.
    """

    __slots__ = ("_body", "_from", "_state", "_stored")

    _body: Any
    """Set once it was decoded."""

    def __init__(self, source: Q, stored: Stored, state: str = HELD) -> None:
        self._from = source
        self._stored = stored
        self._state = state

    @property
    def id(self) -> str:
        return self._stored.message.id

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._stored.message.queue

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
    def data(self) -> bytes:
        """The body's bytes as they were sent."""
        return self._stored.message.body

    @property
    def content_type(self) -> str:
        return self._stored.message.content_type

    @property
    def headers(self) -> dict[str, str]:
        return dict(self._stored.message.headers or ())

    @property
    def priority(self) -> int:
        return self._stored.message.priority

    @property
    def key(self) -> str | None:
        return self._stored.message.key

    @property
    def recipient(self) -> str | None:
        return self._stored.message.recipient

    @property
    def group(self) -> str | None:
        return self._stored.message.group

    @property
    def dedup_id(self) -> str | None:
        return self._stored.message.dedup_id

    @property
    def sent_at(self) -> datetime:
        return moment(self._stored.message.sent_at)

    @property
    def receives(self) -> int:
        """How often it was handed out, this time included."""
        return self._stored.receives

    @property
    def receipt(self) -> str | None:
        """The proof that this reader holds it; None if it was only looked at."""
        return None if self._state is SEEN else self._stored.receipt

    @property
    def consumer(self) -> str | None:
        """The name that whoever holds it gave."""
        return self._stored.consumer

    @property
    def lease_until(self) -> datetime | None:
        """When the lease ends; None if nobody has one."""
        return None if self._stored.receipt is None else moment(self._stored.visible_at)

    @property
    def visible_at(self) -> datetime:
        """When it is or was ready to be received."""
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
                f"receipt: message {self.id!r} was looked at, not received; receive it to ack, release or extend it",
                field="receipt",
            )
        return Lease(self.id, receipt)

    def _renewed(self, outcome: Outcome, until: int) -> None:
        if outcome == "done":
            now = self._stored
            self._stored = Stored(now.message, until, now.receives, now.receipt, now.consumer)
        else:
            self._state = SETTLED


D = TypeVar("D", bound=Delivery[Any])


class MessagePage(list[D]):
    """The messages of one peek; `next` is the `after` of the following one, None at the end."""

    def __init__(self, messages: Iterable[D], next: str | None) -> None:
        super().__init__(messages)
        self.next = next


def leases(queue: str, messages: Iterable[Delivery[Any]]) -> list[Lease]:
    """The leases of messages that were received from one queue."""
    made: list[Lease] = []
    for message in messages:
        if message.queue != queue:
            raise InvalidRequest(
                f"messages: {message.id!r} is of queue {message.queue!r}, not of {queue!r}", field="messages"
            )
        made.append(message._lease())
    return made


def settle(messages: Iterable[Delivery[Any]]) -> None:
    """These were acked, released or found lost: their readers hold them no longer."""
    for message in messages:
        message._state = SETTLED


def renew(messages: Iterable[Delivery[Any]], reply: Extended) -> None:
    """These were extended, as far as they could be."""
    for message, outcome in zip(messages, reply.outcomes, strict=True):
        message._renewed(outcome, reply.until)


def moment(micros: int) -> datetime:
    """A moment in UTC; one that does not come is the last there is."""
    try:
        return _EPOCH + timedelta(microseconds=micros)
    except OverflowError:
        return _LAST


def check_held(outcome: Outcome, queue: str, id: str) -> None:
    """Raise what an outcome means to a caller that counted on still having the message."""
    if outcome == "missing":
        raise MessageNotFound(f"id: there is no message {id!r} in queue {queue!r} any more", field="id")
    if outcome != "done":
        raise StaleReceipt(f"receipt: message {id!r} has been handed out again or given back", field="receipt")
