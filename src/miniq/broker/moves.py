"""Moves of messages to other queues: to the dead-letter queue, and back by a redrive.

A move is one change of the store, and a message keeps its id. Copies of a published message have the same id in several
queues, and may meet in one, such as the dead-letter queue of several queues. So a copy gets a new id when it moves, in
the same change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from miniq.broker import rules
from miniq.errors import QueueNotFound
from miniq.message import EventName, Message, Outcome
from miniq.store.arguments import Change, Fence

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

Move = tuple[Fence, Message]


class Moves:
    """The moves of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def move(
        self,
        queue: str,
        to: str,
        moves: Sequence[Move],
        *,
        event: EventName,
        reason: str | None = None,
        extra: int = 0,
        limited: bool = False,
    ) -> list[Outcome]:
        """Move messages to another queue, which is created if necessary. With `limited`, its limits apply as to a
        send: a message must be dead-lettered even if there is no room."""
        broker = self._broker
        settings = broker.catalog.settings(queue)
        change = Change(broker.clock.now(), settings.history, event, reason, extra)
        moves = self._with_own_ids(moves, change.now)
        while True:
            try:
                return await self._move(queue, to, moves, change, limited)
            except QueueNotFound:
                if queue not in await broker.store.queues():
                    raise
                broker.catalog.forget(to)  # just deleted by a concurrent call

    async def _move(self, queue: str, to: str, moves: Sequence[Move], change: Change, limited: bool) -> list[Outcome]:
        broker = self._broker
        target = await broker.catalog.ensure(to)
        room = rules.room(target) if limited else None
        change = self._remembering(queue, moves, change)
        outcomes = await broker.store.messages.move(queue, moves, change, target.history, room)
        self._count(queue, to, change, outcomes)
        return outcomes

    def _with_own_ids(self, moves: Sequence[Move], now: int) -> Sequence[Move]:
        """The moves, in which copies of published messages have new ids."""
        copies = sum(message.topic is not None for _, message in moves)
        ids = iter(self._broker.ids.runs(copies, now) if copies else ())
        return [
            (fence, message if message.topic is None else replace(message, id=next(ids))) for fence, message in moves
        ]

    def _remembering(self, queue: str, moves: Sequence[Move], change: Change) -> Change:
        """The change, with the results of messages that become dead letters."""
        if change.event != "dead":
            return change
        results, settings = self._broker.results, self._broker.catalog.settings(queue)
        return replace(change, remember=results.of_dead((message for _, message in moves), settings, change.now))

    def _count(self, queue: str, to: str, change: Change, outcomes: Sequence[Outcome]) -> None:
        messages = self._broker.metrics.messages
        messages[queue, change.event or ""] += outcomes.count("done")
        messages[to, "sent"] += outcomes.count("done")
