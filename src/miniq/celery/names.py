"""Names of kombu's queues and exchanges as names that MiniQ has.

A name that is valid stays as it is. Others, such as `celery@host.celery.pidbox`, get a dash for each character that is
not allowed and a digest of the whole, so that two names never become one.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2s

from miniq.message import NAME, NAME_LENGTH

_FORBIDDEN = re.compile(r"[^A-Za-z0-9._-]")
_ROOM = NAME_LENGTH - len(".dead") - 11
"""Long names leave room for the digest, and for the dead-letter queue."""


@lru_cache(maxsize=4096)
def native(name: str) -> str:
    """The name of a queue or topic for one of kombu."""
    if NAME.fullmatch(name) and name not in (".", ".."):
        return name
    return f"{_FORBIDDEN.sub('-', name)[:_ROOM]}.{digest(name)}"


def subscription(queue: str, routing_key: str) -> str:
    """The name of the subscription for a binding: one per queue and routing key."""
    if not routing_key:
        return native(queue)
    return f"{native(queue)[:_ROOM]}.{digest(f'{queue} {routing_key}')}"


def digest(text: str) -> str:
    return blake2s(text.encode("utf-8", "surrogatepass"), digest_size=5).hexdigest()
