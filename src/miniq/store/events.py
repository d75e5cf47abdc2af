"""How each change looks in the history: written once, used by every store."""

from __future__ import annotations

from miniq.message import Event, EventName, History, Message


def sent(message: Message, now: int, reason: str | None, keep: History) -> Event:
    """A message arrived in a queue."""
    return Event(
        now,
        "sent",
        message.queue,
        message.id,
        0,
        message.size,
        reason=reason,
        body=message.body if keep == "full" else None,
        content_type=message.content_type if keep == "full" else None,
    )


def sent_as(queue: str, id: str, size: int, now: int) -> Event:
    """The same, where no more is known of a message, and no more wanted."""
    return Event(now, "sent", queue, id, 0, size)


def edited(message: Message, now: int, receives: int, keep: History) -> Event:
    """A message was changed by hand."""
    return Event(
        now,
        "edited",
        message.queue,
        message.id,
        receives,
        message.size,
        body=message.body if keep == "full" else None,
        content_type=message.content_type if keep == "full" else None,
    )


def received(message: Message, now: int, receives: int, since: int, consumer: str | None) -> Event:
    """A message was handed out; `since` is when it could last become ready."""
    return received_as(message.queue, message.id, message.size, now, receives, since, consumer)


def received_as(queue: str, id: str, size: int, now: int, receives: int, since: int, consumer: str | None) -> Event:
    """The same, where the rest of the message was not read."""
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
) -> Event:
    """A lease ended or a message left; `held` is how long the consumer had it, in microseconds."""
    held_ms = None if held is None else max(0, held) / 1000
    return Event(now, event, queue, id, receives, size, consumer, None, held_ms, reason)


def purged(queue: str, count: int, size: int, now: int) -> Event:
    """A queue was emptied."""
    return Event(now, "purged", queue, "", 0, size, count=count)
