"""Every error that MiniQ raises, with a stable code for machines and a text for people.

MiniQError                error              base class
├── InvalidRequest        invalid            a field is invalid; the text names it and what is allowed
│   ├── BadName           bad_name           invalid queue name
│   └── TooLarge          too_large          body, headers or batch over a limit
│       ├── HeadTooLarge  head_too_large     HTTP headers or trailers over a limit
│       └── UrlTooLong    url_too_long       URL over a limit
├── NotFound              not_found
│   ├── QueueNotFound     queue_not_found
│   ├── MessageNotFound   message_not_found
│   ├── ScheduleNotFound  schedule_not_found
│   ├── TopicNotFound     topic_not_found
│   ├── SubscriptionNotFound  subscription_not_found
│   ├── ClaimUnknown      claim_unknown      no claim with that number has been made yet
│   └── ClaimGone         claim_gone         the claim was released, purged, or acked and has expired
├── Conflict              conflict
│   ├── StaleReceipt      stale_receipt      the lease expired, was released, or another consumer holds it
│   ├── MessageLeased     message_leased     a consumer holds the message; its receipt is required
│   ├── QueueFull         queue_full         over the queue's max_length or max_bytes
│   ├── TooManyQueues     too_many_queues    over the broker's or the key's max_queues
│   ├── TooManySchedules  too_many_schedules over the broker's max_schedules
│   ├── TooManyTopics     too_many_topics    over the broker's max_topics or the key's max_queues
│   ├── TooManySubscriptions  too_many_subscriptions  over the limit of subscriptions of a topic
│   ├── StageUnknown      stage_unknown      the stage to commit does not exist
│   ├── BatchMismatch     batch_mismatch     the batch was committed with other messages
│   ├── ClaimUnread       claim_unread       no part of the claim to ack was fetched
│   ├── ClaimTaken        claim_taken        another reader of the group has fetched the claim
│   ├── IdempotencyMismatch  idempotency_mismatch  the idempotency key was used for other messages
│   ├── ResultsOff        results_off        the queue keeps no results
│   ├── Fenced            fenced             a newer reader has taken over the group's claims
│   └── QueueProtected    queue_protected    the queue `default` cannot be deleted
├── Denied                denied
│   ├── Unauthorized      unauthorized       API key missing, unknown or revoked
│   ├── Forbidden         forbidden          the key does not allow this on that queue
│   └── CrossOrigin       cross_origin       a browser request from another site
├── BadRequest            bad_request        the request does not map to an operation
│   ├── NoRoute           no_route
│   ├── WrongMethod       wrong_method
│   └── WrongMedia        wrong_media        unsupported content type
├── TooManyStreams        too_many_streams   over max_streams event streams; retry later
├── Overloaded            overloaded         over max_connections or max_buffered_bytes; retry later
├── Closed                closed             the broker or client is closed
├── MissingExtra          missing_extra      an optional dependency is not installed
└── StoreError            store_error
    ├── NoSpace           no_space           the disk is nearly full; receive and ack still work
    ├── StoreUnavailable  store_unavailable  temporarily unreachable; retry
    ├── StoreFailed       store_failed       a write or fsync failed; final for this process
    ├── StoreLocked       store_locked       another process has the folder open
    ├── StoreCorrupt      store_corrupt      data on disk is damaged
    └── StoreFormat       store_format       written in a format that this version does not support
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime


class MiniQError(Exception):
    """The base class: `code` is stable, `text` is for people, `field` names the invalid input."""

    code = "error"

    def __init__(self, text: str, *, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field


class InvalidRequest(MiniQError):
    code = "invalid"


class BadName(InvalidRequest):
    code = "bad_name"


class TooLarge(InvalidRequest):
    code = "too_large"


class HeadTooLarge(TooLarge):
    code = "head_too_large"


class UrlTooLong(TooLarge):
    code = "url_too_long"


class NotFound(MiniQError):
    code = "not_found"


class QueueNotFound(NotFound):
    code = "queue_not_found"


class MessageNotFound(NotFound):
    code = "message_not_found"


class ScheduleNotFound(NotFound):
    code = "schedule_not_found"


class TopicNotFound(NotFound):
    code = "topic_not_found"


class SubscriptionNotFound(NotFound):
    code = "subscription_not_found"


class ClaimUnknown(NotFound):
    code = "claim_unknown"


class ClaimGone(NotFound):
    code = "claim_gone"


class Conflict(MiniQError):
    code = "conflict"


class StaleReceipt(Conflict):
    code = "stale_receipt"

    @classmethod
    def of(cls, id: str) -> StaleReceipt:
        """The error for a message that this receipt does not hold."""
        text = f"receipt: message {id!r} was received again or released, or this is not its receipt"
        return cls(text, field="receipt")


class MessageLeased(Conflict):
    code = "message_leased"


class QueueFull(Conflict):
    code = "queue_full"


class TooManyQueues(Conflict):
    code = "too_many_queues"


class TooManySchedules(Conflict):
    code = "too_many_schedules"


class TooManyTopics(Conflict):
    code = "too_many_topics"


class TooManySubscriptions(Conflict):
    code = "too_many_subscriptions"


class StageUnknown(Conflict):
    code = "stage_unknown"


class ClaimUnread(Conflict):
    code = "claim_unread"


class ClaimTaken(Conflict):
    code = "claim_taken"


class BatchMismatch(Conflict):
    code = "batch_mismatch"


class IdempotencyMismatch(Conflict):
    code = "idempotency_mismatch"


class ResultsOff(Conflict):
    code = "results_off"


class Fenced(Conflict):
    code = "fenced"


class QueueProtected(Conflict):
    code = "queue_protected"


class Denied(MiniQError):
    code = "denied"


class Unauthorized(Denied):
    code = "unauthorized"


class Forbidden(Denied):
    code = "forbidden"


class CrossOrigin(Denied):
    code = "cross_origin"


class BadRequest(MiniQError):
    code = "bad_request"


class NoRoute(BadRequest):
    code = "no_route"


class WrongMethod(BadRequest):
    code = "wrong_method"


class WrongMedia(BadRequest):
    code = "wrong_media"


class TooManyStreams(MiniQError):
    code = "too_many_streams"


class Overloaded(MiniQError):
    code = "overloaded"


class Closed(MiniQError):
    code = "closed"


FORK_ADVICE = (
    "Connect only after the fork (Gunicorn: in post_fork), or start processes by multiprocessing's 'spawn'; processes "
    "that share a folder need a server: start `miniq serve` and connect to its address"
)
"""What to do instead of using a folder in a process that was forked from one that had opened a folder."""


class MissingExtra(MiniQError):
    code = "missing_extra"


def install(extra: str) -> str:
    """How an optional dependency is installed: the `miniq` on PyPI is another project."""
    return f"pip install '.[{extra}]' in the checkout of MiniQ"


class StoreError(MiniQError):
    code = "store_error"


class NoSpace(StoreError):
    code = "no_space"


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class StoreFailed(StoreError):
    code = "store_failed"


class StoreLocked(StoreError):
    code = "store_locked"


class StoreCorrupt(StoreError):
    code = "store_corrupt"


class StoreFormat(StoreError):
    code = "store_format"


def _tree(root: type[MiniQError]) -> dict[str, type[MiniQError]]:
    classes = {root.code: root}
    for child in root.__subclasses__():
        classes |= _tree(child)
    return classes


BY_CODE: dict[str, type[MiniQError]] = _tree(MiniQError)
"""The class for each code; a client uses it to re-raise the broker's error."""


MOMENT = "a moment with an offset from UTC, such as 2026-01-31T08:00:00Z"
SECONDS = "a number of seconds, such as 1.5"
WHOLE_NUMBER = "a whole number"
NUMBERS = {
    "rate": "a number of messages per second",
    **dict.fromkeys(("max_receives", "max_length", "max_bytes", "max_in_flight"), WHOLE_NUMBER),
}
"""What the numbers of some fields are; those of others are seconds."""


def require_moment(value: object, field: str) -> datetime:
    """A moment with an offset from UTC; raises unless it is one."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value
    problem = f"is not {MOMENT}"
    if isinstance(value, str):  # only from Python: on the wire, text is read as a moment
        problem = "is text; pass a datetime with a time zone"
    raise InvalidRequest(f"{field}: {show(value)} {problem}", field=field)


def show(value: object) -> str:
    """A value as errors show it: text in quotes, moments in RFC 3339, the rest as JSON where it can be, and at most
    80 characters."""
    text = value.isoformat() if isinstance(value, datetime) else ""
    if value is None or isinstance(value, bool | list | tuple | dict):
        with suppress(TypeError, ValueError, RecursionError):
            text = json.dumps(value, ensure_ascii=False)
            if not text.isprintable():
                text = json.dumps(value)
    text = text or repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def show_seconds(seconds: float) -> str:
    """A limit of time in its largest unit that gives a whole number."""
    units = (("day", 86400), ("hour", 3600), ("minute", 60), ("second", 1))
    unit, length = next((each for each in units if seconds >= each[1] and not seconds % each[1]), ("second", 1))
    count = seconds / length
    return f"{count:.15g} {unit}{'' if count == 1 else 's'}"
