"""Moves of messages to other queues: to the dead-letter queue, and back by a redrive.

A move is one change of the store, and a message keeps its id. Copies of a published message have the same id in several
queues, and may meet in one, such as the dead-letter queue of several queues. So a copy gets a new id when it moves: it
is put there first, and then removed. A crash in between leaves it in both queues; nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from miniq.broker import rules
from miniq.errors import QueueNotFound
from miniq.message import EventName, Message, Outcome
from miniq.store.arguments import FREE, Change, Fence, Put

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
        published = any(message.topic is not None for _, message in moves)
        work = self._move_published if published else self._move
        while True:
            try:
                return await work(queue, to, moves, change, limited)
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

    async def _move_published(
        self, queue: str, to: str, moves: Sequence[Move], change: Change, limited: bool
    ) -> list[Outcome]:
        """Move messages of which some are copies of published ones."""
        copies = [move for move in moves if move[1].topic is not None]
        others = [move for move in moves if move[1].topic is None]
        moved = iter(await self._replace(queue, to, copies, change, limited))
        rest = iter(await self._move(queue, to, others, change, limited) if others else ())
        return [next(rest if message.topic is None else moved) for _, message in moves]

    async def _replace(
        self, queue: str, to: str, moves: Sequence[Move], change: Change, limited: bool
    ) -> list[Outcome]:
        """Move messages under new ids."""
        broker, messages, now = self._broker, self._broker.store.messages, change.now
        target = await broker.catalog.ensure(to)
        ids = broker.ids.runs(len(moves), now)
        copies = [replace(message, id=id, dedup_id=None) for (_, message), id in zip(moves, ids, strict=True)]
        room = rules.room(target) if limited else None
        put = Put(now=now, keep=target.history, room=room, reason=change.event, from_reserve=not limited)
        await messages.put(copies, put)
        fences = [fence for fence, _ in moves]
        outcomes = await messages.drop(queue, fences, self._remembering(queue, moves, change))
        # Another consumer has the message: what was put is taken back.
        back = [(copy.id, FREE) for copy, outcome in zip(copies, outcomes, strict=True) if outcome != "done"]
        if back:
            dropped = await messages.drop(to, back, Change(now, target.history, "purged", "removed"))
            broker.metrics.messages[to, "sent"] += len(back)
            broker.metrics.messages[to, "purged"] += dropped.count("done")
        self._count(queue, to, change, outcomes)
        return outcomes

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
