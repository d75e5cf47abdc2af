"""Short ways to say what tests say often."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from miniq.broker import Broker
from miniq.message import Draft, Lease, Stored


def draft(body: Any = "x", **fields: Any) -> Draft:
    return Draft(json.dumps(body).encode(), **fields)


def bodies(messages: Sequence[Stored]) -> list[Any]:
    return [json.loads(stored.message.body) for stored in messages]


def ids(messages: Sequence[Stored]) -> list[str]:
    return [stored.message.id for stored in messages]


def leases(messages: Sequence[Stored]) -> list[Lease]:
    return [Lease(stored.message.id, stored.receipt or "") for stored in messages]


async def send(broker: Broker, queue: str, *values: Any, **fields: Any) -> list[str]:
    return await broker.send(queue, [draft(value, **fields) for value in values])


async def drain(broker: Broker, queue: str, **asked: Any) -> list[Any]:
    """Receive and ack until there is nothing more, one at a time, and return the bodies in order."""
    found: list[Any] = []
    while got := await broker.receive(queue, max=1, **asked):
        found += bodies(got)
        assert await broker.ack(queue, leases(got)) == ["done"]
    return found


async def states(broker: Broker, queue: str) -> tuple[int, int, int]:
    """Ready, delayed, leased."""
    counts = (await broker.queue(queue)).counts
    return counts.ready, counts.delayed, counts.leased
