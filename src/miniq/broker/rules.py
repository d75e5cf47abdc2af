"""Pure decisions: what is valid, when it is due, what happens to a message. No I/O and no clock.

Every refusal names the field, the value and what is allowed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import replace

from miniq.broker.bodies import are_valid
from miniq.broker.bodies import check_body as check_body
from miniq.broker.bodies import encode_body as encode_body
from miniq.errors import (
    SECONDS,
    WHOLE_NUMBER,
    BadName,
    InvalidRequest,
    MessageLeased,
    MessageNotFound,
    StaleReceipt,
    TooLarge,
    require_moment,
    show,
    show_seconds,
)
from miniq.ids import SHARE, IdSource
from miniq.message import (
    JSON,
    NAME,
    SECOND,
    DeadLetter,
    Draft,
    Lease,
    Message,
    Outcome,
    PlainBatch,
    PlainDrafts,
    QueueSettings,
    Retry,
    Stored,
)
from miniq.options import Limits
from miniq.packed import size_of
from miniq.store.arguments import ANY, FREE, Fence, Fit, Once, Put, Refusal, Room
from miniq.store.names import CALL, RESERVED, scoped_name

_encode = msgspec.msgpack.Encoder().encode
TRACE_HEADERS = ("traceparent", "tracestate")
DIGEST = 24
"""Characters of the digest that is kept of a named call's messages: 96 bits."""
CALL_WINDOW = 300 * SECOND
"""How long an idempotency key is remembered."""
MANY = 100_000
"""Maximum number of messages or records in a long page."""
COMMIT_WINDOW = 7 * 86400 * SECOND
"""How long a committed batch is remembered."""
DEAD = ".dead"
"""How the name of a dead-letter queue ends, unless a setting names another."""
ERROR_BYTES = 4096
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS_100 = 100 * 366 * 86400.0


def check_name(name: object, field: str = "queue") -> str:
    """Raise unless this is a valid name for a new queue, or topic."""
    kind = "topic" if field == "topic" else "queue"
    check_label(name, field, f"{kind} name")
    if name in (".", ".."):
        text = f"{field}: {name!r} is not a {kind} name, because URLs give it another meaning; use another name"
        raise BadName(text, field=field)
    return str(name)


def check_label(name: object, field: str, kind: str = "name") -> None:
    """Raise unless this is a valid name for a group, job, batch, partition or attempt."""
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise BadName(f"{field}: {show(name)} is not a {kind}; use 1 to 128 of A-Z a-z 0-9 . _ -", field=field)


def check_seconds(value: object, field: str, low: float, high: float) -> float:
    """Raise unless this is a finite number of seconds in a range."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == math.inf:
        raise InvalidRequest(f"{field}: {show(value)} is not {SECONDS}", field=field)
    if not low <= value <= high:
        shown = f"{value:.15g}" if abs(value) < 1e300 else "the number of"  # an int may be too large for a float
        raise InvalidRequest(f"{field}: {shown} s is out of range; use {low:.15g} to {high:.15g}", field=field)
    return value


def check_count(value: object, field: str, low: int, high: int) -> int:
    """Raise unless this is a whole number in a range."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{field}: {show(value)} is not {WHOLE_NUMBER}", field=field)
    if not low <= value <= high:
        raise InvalidRequest(f"{field}: {value} is out of range; use {low} to {high}", field=field)
    return value


def check_text(value: object, field: str, limits: Limits) -> str:
    """Raise unless this is a short text: a key, recipient, group, consumer."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field}: {show(value)} is not text", field=field)
    if not value:
        raise InvalidRequest(f"{field}: '' is empty; use at least one character", field=field)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field}: {show(value)} is not valid Unicode", field=field) from None
    if size > limits.name_bytes:
        raise TooLarge(f"{field}: {size} bytes in UTF-8; at most {limits.name_bytes}", field=field)
    return value


def check_call(value: object, limits: Limits) -> str:
    """Raise unless this is a valid idempotency key."""
    name = check_text(value, "idempotency-key", limits)
    if name.startswith(RESERVED):
        text = f"idempotency-key: {show(name)} has a reserved prefix; use another key"
        raise InvalidRequest(text, field="idempotency-key")
    return name


def is_simple(name: str, limits: Limits) -> bool:
    """A fast test: whether `check_call` certainly accepts an idempotency key."""
    return name.isascii() and name.isprintable() and 0 < len(name) <= limits.name_bytes


def once(call: str, scope: str, drafts: Sequence[Draft], now: int) -> Once:
    """A named call of a sender: `scope` is the id of its API key, or empty."""
    return Once(scoped_name(scope, call), now + CALL_WINDOW, content_of(drafts))


def content_of(drafts: Sequence[Draft]) -> str:
    """A digest of messages to send, the same for each attempt of a call. Trace headers may differ between attempts."""
    plain = [replace(draft, headers=_untraced(draft.headers)) if draft.headers else draft for draft in drafts]
    return hashlib.sha256(_encode(plain)).hexdigest()[:DIGEST]


def _untraced(headers: Mapping[str, str]) -> dict[str, str] | None:
    return {name: headers[name] for name in sorted(headers) if name not in TRACE_HEADERS} or None


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_headers(headers: object, limits: Limits) -> None:
    """Raise unless headers are a map from text to text within the limits."""
    if not isinstance(headers, dict):
        raise InvalidRequest(f"headers: {show(headers)} is not a map from text to text", field="headers")
    if len(headers) > limits.headers:
        raise TooLarge(f"headers: {len(headers)} of them; at most {limits.headers}", field="headers")
    for name, value in headers.items():
        if not isinstance(name, str) or not name:
            raise InvalidRequest(f"headers: {show(name)} is not a name; use text", field="headers")
        if _CONTROL.search(name) is not None:
            text = f"headers: the name {show(name)} contains a control character; use printable text"
            raise InvalidRequest(text, field="headers")
        if not isinstance(value, str):
            raise InvalidRequest(f"headers: the value of {show(name)} is {show(value)}; use text", field="headers")
        try:
            size = len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(f"headers: {show(name)} is not valid Unicode", field="headers") from None
        if size > limits.header_bytes:
            raise TooLarge(f"headers: {show(name)} has {size} bytes; at most {limits.header_bytes}", field="headers")


def check_batch(items: Sequence[object], field: str, limits: Limits) -> None:
    """Raise unless a list has at least one item, and no more than a call may have."""
    if not items:
        raise InvalidRequest(f"{field}: empty; give at least one", field=field)
    if len(items) > limits.batch:
        raise TooLarge(f"{field}: {len(items)} in one call; at most {limits.batch}", field=field)


def check_total(drafts: Sequence[Draft], limits: Limits) -> None:
    """Raise if the bodies of a send have more bytes than a request, which a server would have refused already."""
    bodies = drafts.bodies if isinstance(drafts, PlainDrafts) else [draft.body for draft in drafts]
    size = size_of(bodies)
    if size > limits.request_bytes:
        raise TooLarge(f"messages: {size} bytes in one call; at most {limits.request_bytes}", field="messages")


def check_draft(draft: Draft, limits: Limits) -> None:
    """Raise unless a draft is valid, whatever its queue."""
    check_body(draft.body, draft.content_type, limits)
    if draft.headers is not None:
        check_headers(draft.headers, limits)
    if draft.priority != 0 or type(draft.priority) is not int:
        check_count(draft.priority, "priority", 0, 9)
    if draft.delay is not None:
        check_seconds(draft.delay, "delay", 0, limits.delay)
    if draft.deliver_at is not None:
        _check_moment(draft)
    if draft.ttl is not None:
        check_seconds(draft.ttl, "ttl", 0, YEARS_100)
    if draft.key is not None:
        check_text(draft.key, "key", limits)
    if draft.recipient is not None:
        check_text(draft.recipient, "recipient", limits)
    if draft.group is not None:
        check_text(draft.group, "group", limits)
    if draft.dedup_id is not None and check_text(draft.dedup_id, "dedup_id", limits).startswith(CALL):
        text = f"dedup_id: {show(draft.dedup_id)} has a reserved prefix; use another id"
        raise InvalidRequest(text, field="dedup_id")


def _check_moment(draft: Draft) -> None:
    """Raise unless a message may be delivered at a moment."""
    require_moment(draft.deliver_at, "deliver_at")
    if draft.delay is not None:
        raise InvalidRequest("deliver_at: given together with delay; use one of them", field="deliver_at")


def admit(
    queue: str, settings: QueueSettings, drafts: Sequence[Draft], ids: IdSource, now: int, limits: Limits
) -> Sequence[Message]:
    """The messages of these drafts, with ids in the same order; raise if one is invalid. Similar drafts share a run of
    ids (see `ids.py`)."""
    if isinstance(drafts, PlainDrafts):
        return admit_plain(queue, settings, drafts.bodies, drafts.content_type, ids, now, limits)
    check_batch(drafts, "messages", limits)
    first = drafts[0]
    check_draft(first, limits)
    if _alike(drafts, first):
        bodies = [draft.body for draft in drafts]
        if are_valid(bodies, first.content_type, limits):
            due = now + micros(settings.delay)
            return PlainBatch(ids.runs(len(bodies), now), queue, now, due, bodies, first.content_type, first.priority)
    return _admit_each(queue, settings, drafts, ids, now, limits)


def admit_plain(
    queue: str,
    settings: QueueSettings,
    bodies: Sequence[bytes],
    content_type: str,
    ids: IdSource,
    now: int,
    limits: Limits,
) -> PlainBatch:
    """`admit` for plain bodies, the common case."""
    count = len(bodies)
    if not 0 < count <= limits.batch:
        check_batch(bodies, "messages", limits)
    if content_type != JSON:
        check_body(bodies[0], content_type, limits)
    if not are_valid(bodies, content_type, limits):
        _check_each(PlainDrafts(bodies, content_type), limits)
    return plain_batch(queue, settings, bodies, content_type, ids, now)


def plain_batch(
    queue: str, settings: QueueSettings, bodies: Sequence[bytes], content_type: str, ids: IdSource, now: int
) -> PlainBatch:
    """Messages of bodies that were checked."""
    due = now + micros(settings.delay) if settings.delay else now
    return PlainBatch(ids.runs(len(bodies), now), queue, now, due, bodies, content_type)


def _alike(drafts: Sequence[Draft], first: Draft) -> bool:
    """Whether drafts differ only in their bodies and have no options but a priority."""
    kind, priority = first.content_type, first.priority
    for draft in drafts:
        if (
            draft.priority != priority
            or draft.content_type != kind
            or type(draft.body) is not bytes
            or draft.delay is not None
            or draft.headers is not None
            or draft.recipient is not None
            or draft.group is not None
            or draft.dedup_id is not None
            or draft.ttl is not None
            or draft.key is not None
            or draft.deliver_at is not None
        ):
            return False
    return True


def _admit_each(
    queue: str, settings: QueueSettings, drafts: Sequence[Draft], ids: IdSource, now: int, limits: Limits
) -> list[Message]:
    _check_each(drafts, limits)
    messages: list[Message] = []
    run: list[str] = []
    before: tuple[object, ...] | None = None
    for draft in drafts:
        alone = draft.recipient is not None or draft.group is not None or draft.dedup_id is not None
        alike = None if alone else (draft.priority, draft.delay, draft.deliver_at)
        if alike is None or alike != before or not run:
            run = ids.run(1 if alike is None else SHARE, now)
            run.reverse()
        before = alike
        messages.append(message(draft, queue, settings, run.pop(), now, limits))
    return messages


def message(
    draft: Draft, queue: str, settings: QueueSettings, id: str, now: int, limits: Limits, topic: str | None = None
) -> Message:
    """The message of a valid draft."""
    made = _message(draft, queue, settings, id, now, topic)
    if made.due_at > now + micros(limits.delay):
        most = show_seconds(limits.delay)
        text = f"deliver_at: {show(draft.deliver_at)} is too far ahead; use a moment at most {most} from now"
        raise InvalidRequest(text, field="deliver_at")
    return made


def stage(queue: str, settings: QueueSettings, drafts: Sequence[Draft], limits: Limits) -> Sequence[Message]:
    """The messages of drafts in a stage: without ids, and with times relative to the commit."""
    if len(drafts) > limits.upload:
        raise TooLarge(f"messages: {len(drafts)} in one upload; at most {limits.upload}", field="messages")
    if not drafts:
        return []
    first = drafts[0]
    due = micros(settings.delay)
    if isinstance(drafts, PlainDrafts) or _alike(drafts, first):
        check_draft(first, limits)
        bodies = drafts.bodies if isinstance(drafts, PlainDrafts) else [draft.body for draft in drafts]
        if are_valid(bodies, first.content_type, limits):
            return PlainBatch([""] * len(bodies), queue, 0, due, bodies, first.content_type, first.priority)
    _check_each(drafts, limits)
    if any(draft.deliver_at is not None for draft in drafts):
        text = "deliver_at: not supported in a stage, whose times count from the commit; use delay"
        raise InvalidRequest(text, field="deliver_at")
    return [_message(draft, queue, settings, "", 0) for draft in drafts]


def _message(draft: Draft, queue: str, settings: QueueSettings, id: str, now: int, topic: str | None = None) -> Message:
    if draft.deliver_at is not None:
        due = max(now, (draft.deliver_at - EPOCH) // timedelta(microseconds=1))
    else:
        due = now + micros(settings.delay if draft.delay is None else draft.delay)
    return Message(
        id,
        queue,
        now,
        due,
        draft.body,
        draft.content_type,
        draft.priority,
        draft.headers or None,
        None if draft.ttl is None else now + micros(draft.ttl),
        draft.key,
        draft.recipient,
        draft.group,
        draft.dedup_id,
        topic=topic,
    )


def check_drafts(drafts: Sequence[Draft], limits: Limits) -> None:
    """Raise unless these drafts may be sent in one call, whatever their queue."""
    check_batch(drafts, "messages", limits)
    if isinstance(drafts, PlainDrafts):
        if drafts.content_type != JSON:
            check_body(drafts.bodies[0], drafts.content_type, limits)
        if are_valid(drafts.bodies, drafts.content_type, limits):
            return
    _check_each(drafts, limits)


def _check_each(drafts: Sequence[Draft], limits: Limits) -> None:
    for index, draft in enumerate(drafts):
        try:
            check_draft(draft, limits)
        except InvalidRequest as error:
            if len(drafts) == 1:
                raise
            raise type(error)(f"messages[{index}].{error.text}", field=f"messages[{index}].{error.field}") from None


def micros(seconds: float) -> int:
    """Seconds as a whole number of microseconds."""
    return round(seconds * SECOND)


def lease_seconds(value: float | None, settings: QueueSettings, limits: Limits) -> float:
    """The duration of a lease: `value`, else the queue's default."""
    if value is None:
        return settings.visibility_timeout
    return check_seconds(value, "visibility_timeout", 0, limits.visibility_timeout)


def dead_letter_queue(name: str, settings: QueueSettings) -> str:
    """The dead-letter queue of a queue, whether it exists or not."""
    return settings.dead_letter_queue or f"{name}{DEAD}"


def final_reason(receives: int, settings: QueueSettings, dead: bool) -> str | None:
    """Why a message that failed is dead-lettered, None if it is tried again."""
    if dead:
        return "rejected"
    return "max_receives" if receives >= (settings.max_receives or 2**62) else None


def retry_delay(retry: Retry, receives: int, chance: float) -> float:
    """Seconds that a message waits after it failed, having been received that often; `chance` is from 0 to 1."""
    try:
        delay = min(retry.delay * retry.factor ** (receives - 1), retry.max)
    except OverflowError:
        delay = retry.max
    return delay * (1 + retry.jitter * (2 * chance - 1))


def check_error(value: object, field: str = "error") -> None:
    """Raise unless this is a text that fits into a message's state."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field}: {show(value)} is not a text", field=field)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field}: is not valid Unicode", field=field) from None
    if size > ERROR_BYTES:
        raise TooLarge(f"{field}: {size} bytes in UTF-8; at most {ERROR_BYTES}", field=field)


def fit(settings: QueueSettings, now: int) -> Fit:
    """Which messages of a queue may be handed out."""
    return Fit(now - micros(settings.retention), settings.max_receives or 2**62)


def expired(stored: Stored, settings: QueueSettings, now: int) -> Refusal | None:
    """Why a message has expired, None if it has not. A leased one lives until its lease ends."""
    return None if stored.status(now) == "leased" else fit(settings, now).refusal(stored.message, 0, now)


def ends_at(message: Message, settings: QueueSettings) -> int:
    """When a message expires."""
    since = message.sent_at if message.dead is None else message.dead.at
    end = since + micros(settings.retention)
    return end if message.expires_at is None else min(end, message.expires_at)


def put(settings: QueueSettings, now: int, call: Once | None = None) -> Put:
    """The conditions under which a queue accepts messages."""
    dedup_until = now + micros(settings.dedup_window)
    return Put(now=now, keep=settings.history, dedup_until=dedup_until, room=room(settings), call=call)


def room(settings: QueueSettings) -> Room | None:
    """The limits of a queue, None if it has none."""
    return Room(settings.max_length, settings.max_bytes) if settings.max_length or settings.max_bytes else None


def fences(leases: Sequence[Lease]) -> list[Fence]:
    """Leases as fences."""
    fences = [(lease.id, lease.receipt) for lease in leases]
    if {receipt for _, receipt in fences} & {FREE, ANY}:
        return [(id, receipt_of(receipt)) for id, receipt in fences]
    return fences


def receipt_of(receipt: str) -> str:
    """A caller's receipt; the store's wildcards become one that matches nothing."""
    return "?" if receipt in (FREE, ANY) else receipt


def no_message(queue: str, id: str) -> MessageNotFound:
    """The error for a message that does not exist."""
    return MessageNotFound(f"id: there is no message {id!r} in queue {queue!r}", field="id")


def check_done(queue: str, id: str, outcome: Outcome) -> None:
    """Raise unless a change of one message succeeded."""
    if outcome == "missing":
        raise no_message(queue, id)
    if outcome == "leased":
        raise MessageLeased(f"id: message {id!r} is leased; give its receipt, or wait", field="receipt")
    if outcome == "stale":
        raise StaleReceipt.of(id)


def bury(message: Message, to: str, reason: str, receives: int, now: int, error: str | None) -> Message:
    """A message as a dead letter. The retention of the dead-letter queue applies, not its own ttl."""
    lifetime = message.lifetime
    if lifetime is None and message.expires_at is not None:
        lifetime = message.expires_at - message.sent_at
    dead = DeadLetter(message.queue, reason, receives, now, error)
    return replace(message, queue=to, due_at=now, expires_at=None, dead=dead, lifetime=lifetime)


def revive(message: Message, to: str, now: int) -> Message:
    """A dead letter as a message again; its receives count from 0, and its ttl from now."""
    expires_at = None if message.lifetime is None else now + message.lifetime
    return replace(message, queue=to, due_at=now, expires_at=expires_at, dead=None)
