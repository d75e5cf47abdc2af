"""Arguments of queues, as RabbitMQ has them, as settings of MiniQ's queues. Pure.

What MiniQ does another way is refused with what would be right: an argument that has no effect would be a surprise
later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from miniq.celery.names import native
from miniq.errors import InvalidRequest

HIGHEST = 10
"""RabbitMQ's users say 10 for priorities 0 to 9 and 10 alike."""
_NO_EFFECT = {"x-queue-mode", "x-queue-version", "x-queue-master-locator", "x-queue-leader-locator", "ha-mode"}
_TYPES = ("classic", "quorum")
SHORTEST_RETENTION = 1.0
EXPIRING_RETENTION = 300.0
"""Seconds that messages stay in a queue that expires when it has no consumers, unless it has an `x-message-ttl`."""


class Declared(NamedTuple):
    """The settings that arguments ask for, and after how many seconds without a consumer the queue is removed."""

    settings: dict[str, Any]
    expires: float | None


def read(queue: str, arguments: Mapping[str, Any] | None) -> Declared:
    """The settings for the arguments of a queue; `InvalidRequest` names what cannot be done."""
    settings: dict[str, Any] = {}
    expires: float | None = None
    given = {name: value for name, value in (arguments or {}).items() if value is not None}
    for name, value in given.items():
        if name == "x-message-ttl":
            settings["retention"] = max(_whole(queue, name, value) / 1000, SHORTEST_RETENTION)
        elif name == "x-expires":
            expires = _whole(queue, name, value, 1) / 1000
        elif name == "x-max-priority":
            if _whole(queue, name, value) > HIGHEST:
                raise _refused(queue, name, value, "MiniQ has priorities 0 to 9; use 10 or less")
        elif name == "x-delivery-limit":
            limit = _whole(queue, name, value, -1)
            settings["max_receives"] = None if limit < 0 else limit + 1
        elif name in ("x-max-length", "x-max-length-bytes"):
            if given.get("x-overflow") != "reject-publish":
                raise _refused(queue, name, value, "a full queue refuses messages: add 'x-overflow': 'reject-publish'")
            settings["max_length" if name == "x-max-length" else "max_bytes"] = _whole(queue, name, value)
        elif name == "x-overflow":
            if value != "reject-publish":
                raise _refused(queue, name, value, "MiniQ drops no messages; use 'reject-publish'")
        elif name == "x-dead-letter-exchange":
            if value or "x-dead-letter-routing-key" not in given:
                advice = "use '' and the name of a queue as 'x-dead-letter-routing-key'"
                raise _refused(queue, name, value, f"dead letters go to a queue, not to an exchange; {advice}")
        elif name == "x-dead-letter-routing-key":
            settings["dead_letter_queue"] = native(_text(queue, name, value))
        elif name == "x-queue-type":
            if value not in _TYPES:
                raise _refused(queue, name, value, "use 'classic' or 'quorum', which are the same here")
        elif name not in _NO_EFFECT:
            known = (
                "x-delivery-limit, x-expires, x-max-length, x-max-length-bytes, x-max-priority, x-message-ttl, "
                "x-overflow, x-dead-letter-exchange, x-dead-letter-routing-key, x-queue-type"
            )
            raise _refused(queue, name, value, f"MiniQ has no such argument; there are {known}")
    if expires is not None:
        settings.setdefault("retention", max(EXPIRING_RETENTION, expires))
    return Declared(settings, expires)


def _whole(queue: str, name: str, value: object, low: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise _refused(queue, name, value, f"use a whole number from {low}")
    return value


def _text(queue: str, name: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise _refused(queue, name, value, "use the name of a queue")
    return value


def _refused(queue: str, name: str, value: object, advice: str) -> InvalidRequest:
    return InvalidRequest(f"queue_arguments: {name} = {value!r:.80} of queue {queue!r}: {advice}", field=name)
