"""A message as a client has it, without I/O: its fields, its lease, and how replies change it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import UNSET, Raw

from miniq.api import codec
from miniq.client.arguments import as_list
from miniq.client.bodies import decode, encode_result
from miniq.errors import Forbidden, InvalidRequest, MessageNotFound, StaleReceipt, TooLarge
from miniq.message import JSON, AckedLease, Extended, Lease, Outcome, Status, Stored
from miniq.result import Progress, ResultStatus

HELD, ACKED, RELEASED, FAILED, LOST, SEEN = "held", "acked", "released", "failed", "lost", "seen"
"""Leased by this client; what it did with it; the lease is not this client's any more; peeked at."""
_LAST = datetime.max.replace(tzinfo=UTC)


class Dead(NamedTuple):
    """The queue a dead letter came from, why it was moved, how often it was received there, when it was moved, and its
    last error."""

    origin: str
    reason: str
    receives: int
    at: datetime
    error: str | None = None


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
    topic: str | None = _field("topic")
    data: bytes = _field("body")

    @property
    def body(self) -> Any:
        """The JSON value, the text (`text/*`), or the bytes."""
        try:
            return self._body
        except AttributeError:
            message = self._stored.message
            if getattr(message, "is_hidden", False):
                text = f"body: of message {self.id!r} is not shown to a key without `read` on queue {self.queue!r}"
                raise Forbidden(text, field="body") from None
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
        return None if dead is None else Dead(dead.origin, dead.reason, dead.receives, moment(dead.at), dead.error)

    @property
    def error(self) -> str | None:
        """Why it failed last, by this machine's clock; None if it never did."""
        return self._stored.last_error(time.time_ns() // 1000) if self._state is SEEN else self._stored.error

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} of {self.queue!r}, {self._state}, receives {self.receives}>"

    def _lease(self) -> Lease:
        receipt = self._stored.receipt
        if self._state is SEEN or receipt is None:
            text = f"receipt: message {self.id!r} was peeked at, not received; receive it to ack, fail or extend it"
            raise InvalidRequest(text, field="receipt")
        return Lease(self.id, receipt)

    def _acked_lease(self, result: Any) -> AckedLease:
        lease = self._lease()
        return AckedLease(lease.id, lease.receipt, UNSET if result is UNSET else encode_result(result))

    def _renewed(self, outcome: Outcome, until: int) -> None:
        if outcome == "done":
            old = self._stored
            self._stored = Stored(old.message, until, old.receives, old.receipt, old.consumer, old.error)
        else:
            self._state = LOST


class Result(NamedTuple):
    """What became of a message: `waiting`, `running`, `done`, `dead` or `unknown`."""

    id: str
    status: ResultStatus
    result: Any = None
    """What its consumer gave with the ack."""
    error: str | None = None
    """Why it failed last."""
    finished_at: datetime | None = None

    @classmethod
    def of(cls, id: str, progress: Progress) -> Result:
        value = None if progress.result is None else decode(progress.result, JSON)
        at = None if progress.finished_at is None else moment(progress.finished_at)
        return cls(id, progress.status, value, progress.error, at)


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


def of_single_lease(error: TooLarge) -> TooLarge:
    """The error of a call with a single lease, for a caller that gave no list of leases."""
    if error.field is None or not error.field.startswith("leases[0]."):
        return error
    field = error.field.removeprefix("leases[0].")
    return TooLarge(error.text.replace(error.field, field, 1), field=field)


def results_of(results: Iterable[Any], messages: Sequence[object]) -> list[Raw]:
    """Results as JSON, one per message."""
    encoded = [encode_result(result) for result in results]
    if len(encoded) != len(messages):
        text = f"results: {len(encoded)} for {len(messages)} messages; give one for each"
        raise InvalidRequest(text, field="results")
    return encoded


def settle(messages: Iterable[Delivery[Any]], outcomes: Iterable[str], state: str) -> None:
    """Mark messages that were acked, released or failed, and those that were lost."""
    for message, outcome in zip(messages, outcomes, strict=True):
        message._state = LOST if outcome == "stale" else state


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
        raise MessageNotFound(f"id: there is no message {id!r} in queue {queue!r}", field="id")
    if outcome != "done":
        raise StaleReceipt.of(id)
