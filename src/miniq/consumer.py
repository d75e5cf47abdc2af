"""Who consumes a queue, and how long that takes."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct


class Consumer(Struct, frozen=True, gc=False):
    """A consumer of a queue. All consumers that gave no name are one, whose `name` is None; a group of readers of
    claims is one with the name of the group. The counts begin when the broker first saw it."""

    name: str | None
    in_flight: int
    """Messages that it holds now."""
    received: int
    acked: int
    failed: int
    """Messages that it reported as failed."""
    last_seen: datetime
    """When it last received, or settled or extended what it had received."""


class Holding(Struct, frozen=True, gc=False):
    """How many messages of a queue a consumer holds, and when it received the last of them."""

    messages: int
    taken_at: int


NOTHING = Holding(0, 0)


class Percentiles(Struct, frozen=True, gc=False):
    """Durations in seconds: half of the messages, and 99 % of them, took at most so long."""

    p50: float
    p99: float
