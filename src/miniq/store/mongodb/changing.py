"""Acks, releases and extensions: changes of messages under fences, block by block.

Those of one process that wait for the same queue are made together: each block is read once and written once. A block
that another broker has written meanwhile is read again, and the changes of its messages are repeated. So each message
is changed as a whole, while a call that fails in the middle may have changed some of its messages: to repeat it is
safe.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence

from bson import ObjectId
from msgspec import Struct

from miniq.errors import StoreUnavailable
from miniq.message import Event, Outcome
from miniq.store.arguments import Change, Fence
from miniq.store.contract import LeaseCount
from miniq.store.mongodb import groups, results, writes
from miniq.store.mongodb.blocks import Block
from miniq.store.mongodb.changes import Outdated
from miniq.store.mongodb.history import Tools
from miniq.store.mongodb.turns import Turn, Turns
from miniq.store.mongodb.writes import Written

Act = Callable[[Block, int, str], list[Event]]
"""Changes the message at a place of a block under a receipt; its events."""


class Request(Struct, eq=False):
    """A change of messages, each under its fence."""

    fences: Sequence[Fence]
    act: Act
    change: Change
    leaves: bool
    """Whether the messages leave their queue: then a lease may have expired, and groups get new heads."""


class _Result(Struct, eq=False):
    outcomes: list[Outcome]
    lanes: list[str | None] = []
    left: list[tuple[str, ObjectId, str]] = []
    """The blocks of messages of groups that left, or that are of a front."""
    expired: int = 0


class _Item(Struct, eq=False):
    """One fence of a request."""

    request: Request
    result: _Result
    index: int
    id: str
    receipt: str


class _Effect(Struct, eq=False):
    """What a change of one block does, once it is written."""

    block: Block
    items: list[tuple[_Item, Outcome]] = []
    events: list[Event] = []
    lanes: list[tuple[_Result, str | None]] = []
    expired: dict[int, tuple[_Result, int]] = {}
    left: _Result | None = None
    kept: list[results.Kept] = []
    changed: bool = False


class Changing:
    """The changes of this process."""

    def __init__(self, tools: Tools, lease_expired: LeaseCount) -> None:
        self._link, self._changes, _, self._ready = tools
        self._lease_expired = lease_expired
        self._turns: Turns[Request, _Result] = Turns(self._serve, at_once=True)

    async def change(self, queue: str, request: Request) -> list[Outcome]:
        result = await self._turns.make(queue, request)
        self._lease_expired(queue, result.expired)
        self._ready(queue, result.lanes)
        if result.left:
            self._ready(queue, await groups.finish(self._link, result.left, request.change.now))
        return result.outcomes

    async def close(self) -> None:
        await self._turns.close()

    async def _serve(self, queue: str, turns: list[Turn[Request, _Result]]) -> None:
        items: list[_Item] = []
        results: list[_Result] = []
        for turn in turns:
            result = _Result(["missing"] * len(turn.call.fences))
            results.append(result)
            items += [
                _Item(turn.call, result, index, id, receipt) for index, (id, receipt) in enumerate(turn.call.fences)
            ]
        deadline = time.monotonic() + self._link.patience
        pause = 0.001
        while True:
            items = await self._attempt(queue, items)
            if not items:
                break
            if time.monotonic() > deadline:
                raise StoreUnavailable("store: other brokers change the same messages all the time", field="store")
            await asyncio.sleep(random.uniform(0, pause))  # noqa: S311
            pause = min(pause * 2, 0.05)
        for turn, result in zip(turns, results, strict=True):
            turn.done(result)

    async def _attempt(self, queue: str, items: list[_Item]) -> list[_Item]:
        """Make changes as far as no other broker is faster; those that are left."""
        named = await self._changes.know(queue)
        number = named.number
        with self._link.call() as db:
            try:
                blocks = await writes.read(db, number, [item.id for item in items], queue=queue)
            except Outdated:
                self._changes.forget(queue)
                return items
        effects: dict[str, _Effect] = {}
        for item in items:
            block = blocks.get(item.id)
            if block is not None:
                self._apply(queue, item, effects.setdefault(block.id, _Effect(block)))
        changed = [effect for effect in effects.values() if effect.changed]
        written = [
            Written(effect.block, max(item.request.change.now for item, _ in effect.items), effect.events)
            for effect in changed
        ]
        if kept := [one for effect in changed for one in effect.kept]:
            saved = await results.save(self._link, queue, named.serial, written, kept)
        else:
            saved = await writes.save(self._link, written)
        again: list[_Item] = []
        for effect in effects.values():
            if effect.changed and effect.block.id not in saved:
                again += [item for item, _ in effect.items]
                continue
            for item, outcome in effect.items:
                item.result.outcomes[item.index] = outcome
            for result, lane in effect.lanes:
                result.lanes.append(lane)
            for result, expired in effect.expired.values():
                result.expired += expired
            if effect.left is not None:
                effect.left.left.append((effect.block.id, number, effect.block.group or ""))
        return again

    def _apply(self, queue: str, item: _Item, effect: _Effect) -> None:
        """Change a message of a block in memory."""
        block, request, receipt = effect.block, item.request, item.receipt
        place = block.place(item.id)
        outcome = block.check(place, receipt, request.change.now)
        effect.items.append((item, outcome))
        if place is None or outcome != "done":
            return
        effect.changed = True
        if request.leaves:
            lost = len(block.expired(place, queue, request.change.now, receipt))
            _, before = effect.expired.get(id(item.result), (item.result, 0))
            effect.expired[id(item.result)] = (item.result, before + lost)
            if block.group is not None:
                effect.left = item.result
        else:
            effect.lanes.append((item.result, block.lane or None))
            if block.in_front:
                effect.left = item.result
        effect.events += request.act(block, place, receipt)
        if (remember := request.change.remember) is not None:
            effect.kept.append((item.id, remember.each[item.index], remember.until))
