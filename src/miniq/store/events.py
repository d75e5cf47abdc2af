"""The history events of each kind of change, shared by all stores."""

from __future__ import annotations

from collections.abc import Sequence

from miniq.message import Event, EventName, History, Message
from miniq.store.arguments import Publication, Stretch


def sent(message: Message, now: int, reason: str | None, keep: History) -> Event:
    """A message arrived in a queue."""
    return _with_content(message, "sent", 0, now, keep, reason)


def sent_as(queue: str, id: str, size: int, now: int, reason: str | None = None) -> Event:
    """A message arrived; for callers that have not read the message and do not keep bodies."""
    return Event(now, "sent", queue, id, 0, size, reason=reason)


def edited(message: Message, now: int, receives: int, keep: History) -> Event:
    """A message was edited."""
    return _with_content(message, "edited", receives, now, keep, None)


def _with_content(
    message: Message, event: EventName, receives: int, now: int, keep: History, reason: str | None
) -> Event:
    body, content_type = (message.body, message.content_type) if keep == "full" else (None, None)
    return Event(
        now,
        event,
        message.queue,
        message.id,
        receives,
        message.size,
        reason=reason,
        body=body,
        content_type=content_type,
    )


def received(queue: str, id: str, size: int, now: int, receives: int, since: int, consumer: str | None) -> Event:
    """A message was handed out; `since` is when it became ready."""
    return Event(now, "received", queue, id, receives, size, consumer, max(0, now - since) / 1000)


def left(
    event: EventName,
    queue: str,
    id: str,
    size: int,
    now: int,
    receives: int,
    consumer: str | None,
    held: int | None,
    reason: str | None = None,
    error: str | None = None,
) -> Event:
    """A lease ended or a message left its queue; `held` is how long the consumer had it, in microseconds."""
    held_ms = None if held is None else max(0, held) / 1000
    return Event(now, event, queue, id, receives, size, consumer, None, held_ms, reason, error=error)


def published(publication: Publication, fresh: Sequence[Stretch], queues: list[str]) -> Event:
    """Messages were published to a topic, and copied to some queues."""
    messages = [stretch.messages for stretch in fresh if not stretch.is_variant]
    count, size = sum(map(len, messages)), sum(message.size for part in messages for message in part)
    first = messages[0][0].id
    return Event(
        publication.now,
        "published",
        publication.topic,
        first,
        0,
        size,
        reason=publication.reason,
        count=count,
        queues=queues,
    )


def purged(queue: str, count: int, size: int, now: int, reason: str | None = None) -> Event:
    """A queue was purged, or deleted with its messages."""
    return Event(now, "purged", queue, "", 0, size, reason=reason, count=count)
