"""Many callers at once on a slow disk: what one has staged and not yet written meets what another does."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from miniq.message import SECOND, Message, Outcome, QueueSettings, Stored
from miniq.store.arguments import ANY, FREE, Change, Edit, NewTime
from miniq.store.embedded import window
from miniq.store.embedded.store import EmbeddedStore
from miniq.store.memory import MemoryStore
from tests.clock import START
from tests.store.calls import Maker, drop, find, put, take
from tests.store.parts import copy_as_after_kill, seam, store_in
from tests.store.test_window import TINY


class Crowd:
    """Callers who change two queues at random, and what they were told."""

    def __init__(self, store: EmbeddedStore, seed: int) -> None:
        self.store = store
        self.seed = seed
        self.maker = Maker()
        self.where: dict[str, str | None] = {}
        """The queue of each message whose send was confirmed and which was not acked; None if it can be either."""
        self.met: Counter[str] = Counter()
        """How often each was handed out, perhaps before its sender or mover was told."""
        self.moving: Counter[str] = Counter()
        """The moves of each message that are under way. Their answers may come in another order than they were made,
        so that one may end while another has moved the message on."""
        self.held: set[str] = set()
        """With a consumer. Time stands still, so that no lease runs out."""
        self.groups: dict[tuple[str, str], str] = {}
        """The one in flight of each group of a queue."""
        self.calls = 0

    async def caller(self, name: int, steps: int) -> None:
        chance = random.Random(self.seed * 1000 + name)
        for step in range(steps):
            queue = chance.choice(["q", "q", "dead"])
            what = chance.randrange(10)
            if what < 3:
                await self.send(chance, queue)
            elif what < 8:
                await self.receive(chance, queue, f"{name}.{step}")
            elif what == 8:
                await self.edit(chance, queue)
            else:
                await self.move(chance, queue)
            self.calls += 1
            if chance.random() < 0.3:
                await asyncio.sleep(0)

    async def send(self, chance: random.Random, queue: str) -> None:
        self.maker.queue = queue
        kind = chance.randrange(4)
        if kind == 0:
            messages = [self.maker.one(group=chance.choice("gh"))]
        elif kind == 1:
            messages = [self.maker.one(recipient=chance.choice(["ann", "bob", "cy"]), group=chance.choice([None, "g"]))]
        else:
            messages = self.maker.run(chance.choice([1, 3, 30]), priority=chance.choice([0, 0, 5]))
        for id in await put(self.store, messages):
            if id not in self.met:
                self.where[id] = queue

    async def receive(self, chance: random.Random, queue: str, token: str) -> None:
        consumer = chance.choice([None, "ann", "bob", "cy"])
        got = await take(self.store, queue, limit=chance.choice([1, 2, 8]), token=token, consumer=consumer)
        for stored in got:
            self.hand_out(stored, queue)
        await asyncio.sleep(0)
        for stored in got:
            id = stored.message.id
            fence = [(id, token)]
            # Told to let go before the answer: from the call on somebody else may have it.
            self.held.discard(id)
            if stored.message.group is not None:
                del self.groups[queue, stored.message.group]
            what = chance.randrange(4)
            if what < 2:
                del self.where[id]
                assert await drop(self.store, fence, queue) == ["done"]
            elif what == 2:
                await self.store.messages.reschedule(queue, fence, NewTime(START, release=True), Change(START))
            else:
                self.moving[id] += 1
                await self.move_one(stored.message, queue, "dead" if queue == "q" else "q", token)

    def hand_out(self, stored: Stored, queue: str) -> None:
        id, group = stored.message.id, stored.message.group
        assert id not in self.held, "handed out to two"
        assert self.moving[id] or (self.where.get(id) or queue) == queue
        self.where[id] = queue
        self.held.add(id)
        self.met[id] += 1
        if group is not None:
            assert (queue, group) not in self.groups, "two of a group in flight"
            self.groups[queue, group] = id

    async def edit(self, chance: random.Random, queue: str) -> None:
        known = [id for id, at in self.where.items() if at == queue]
        if known:
            edit = Edit(body=b'"edited"', priority=chance.choice([None, 0, 5]))
            await self.store.messages.edit(queue, (chance.choice(known), ANY), edit, Change(START))

    async def move(self, chance: random.Random, queue: str) -> None:
        known = [id for id, at in self.where.items() if at == queue and id not in self.held and not self.moving[id]]
        for id in chance.sample(known, min(3, len(known))):
            if not self.moving[id] and self.where.get(id) == queue:
                self.moving[id] += 1
                stored = await find(self.store, id, queue)
                if stored is None or self.where.get(id) != queue:
                    self.moving[id] -= 1
                else:
                    await self.move_one(stored.message, queue, "dead" if queue == "q" else "q", FREE)

    async def move_one(self, message: Message, queue: str, to: str, receipt: str) -> None:
        new = Message(
            message.id, to, message.sent_at, START, message.body, message.content_type, message.priority, None, None,
            None, message.recipient, message.group,
        )  # fmt: skip
        if receipt != FREE:
            self.where.pop(message.id, None)
        met = self.met[message.id]
        moves = [((message.id, receipt), new)]
        done = await self.store.messages.move(queue, moves, Change(START, event="dead"), "off")
        if done == ["done"]:
            if self.met[message.id] == met:
                self.where[message.id] = to
            elif receipt == FREE and message.id in self.where:
                # Somebody received it meanwhile: before the move was made and gave it back, or after it was made.
                self.where[message.id] = None
            # With a receipt the others received it after the move, and know better: it may be acked by now.
        else:
            assert receipt == FREE
        self.moving[message.id] -= 1


class LateMoves:
    """Messages of a store whose moves are made, and answered, when the test says so."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.moves: list[tuple[asyncio.Event, asyncio.Event]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store.messages, name)

    async def move(self, *given: Any) -> list[Outcome]:
        make, answer = asyncio.Event(), asyncio.Event()
        self.moves.append((make, answer))
        await make.wait()
        outcomes = await self._store.messages.move(*given)
        await answer.wait()
        return outcomes


class Script:
    """A crowd whose calls happen in an order that the test chooses, with one message in `q`."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.late = LateMoves(store)
        self.crowd = Crowd(SimpleNamespace(messages=self.late), 0)  # type: ignore[arg-type]
        [self.message] = self.crowd.maker.run(1)
        self._moves: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        await self._store.open()
        for name in ("q", "dead"):
            await self._store.save_queue(name, QueueSettings())
        await put(self._store, [self.message])
        self.crowd.where[self.message.id] = "q"

    async def receive(self, queue: str, token: str) -> None:
        [stored] = await take(self._store, queue, token=token)
        self.crowd.hand_out(stored, queue)
        self.crowd.held.discard(self.message.id)

    async def release(self, queue: str, token: str) -> None:
        to = NewTime(START, release=True)
        await self._store.messages.reschedule(queue, [(self.message.id, token)], to, Change(START))

    async def start(self, queue: str, to: str, receipt: str) -> int:
        self.crowd.moving[self.message.id] += 1
        move = self.crowd.move_one(self.message, queue, to, receipt)
        self._moves.append(asyncio.create_task(move))
        await asyncio.sleep(0)
        return len(self._moves) - 1

    async def make(self, move: int) -> None:
        self.late.moves[move][0].set()
        await asyncio.sleep(0.01)

    async def answer(self, move: int) -> None:
        self.late.moves[move][1].set()
        await self._moves[move]


async def test_the_model_allows_a_move_whose_answer_comes_after_a_later_move() -> None:
    """The first move is refused because of a lease. Before it is told so, the message is moved twice."""
    script = Script(MemoryStore())
    await script.begin()
    await script.receive("q", "c")
    refused = await script.start("q", "dead", FREE)
    await script.make(refused)
    there = await script.start("q", "dead", "c")
    await script.make(there)
    await script.answer(there)
    back = await script.start("dead", "q", FREE)
    await script.make(back)
    await script.answer(refused)
    await script.receive("q", "e")  # before the mover is told
    await script.answer(back)
    assert not +script.crowd.moving


async def test_the_model_allows_a_receive_between_the_call_of_a_move_and_its_making() -> None:
    """The message is received and given back before it is moved. So the mover must not trust the receiver."""
    script = Script(MemoryStore())
    await script.begin()
    move = await script.start("q", "dead", FREE)
    await script.receive("q", "c")
    await script.release("q", "c")
    await script.make(move)
    await script.answer(move)
    await script.receive("dead", "d")
    assert script.crowd.where == {script.message.id: "dead"}


@pytest.mark.parametrize("seed", range(4))
async def test_callers_at_once_lose_nothing_and_share_nothing(
    url: str, engine: str, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    for name, value in TINY.items():
        monkeypatch.setattr(window, name, value)
    made = seam(monkeypatch)
    async with store_in(url, "q", "dead") as store:
        slow = random.Random(seed)
        made[-1].hold_before_write = lambda: time.sleep(slow.choice([0, 0, 0.001]))
        made[-1].hold_after_write = lambda: time.sleep(slow.choice([0, 0, 0.001]))
        crowd = Crowd(store, seed)
        await asyncio.wait_for(asyncio.gather(*[crowd.caller(name, 40) for name in range(10)]), 60)
        copy_as_after_kill(folder, folder.with_name("crashed"))
    there = set(crowd.where)
    for path in (folder, folder.with_name("crashed")):
        found: set[str] = set()
        async with store_in(f"{engine}:{path}") as store:
            later = START + 3600 * SECOND
            for queue in ("q", "dead"):
                for consumer in ("ann", "bob", "cy") * 50:
                    got = await take(store, queue, limit=50, now=later, until=later + SECOND, consumer=consumer)
                    ids = [stored.message.id for stored in got]
                    assert not found & set(ids)
                    found |= set(ids)
                    assert await drop(store, [(id, "t") for id in ids], queue, now=later) == ["done"] * len(ids)
                counts = await store.messages.counts(queue, later)
                assert (counts.total, counts.bytes) == (0, 0)
        assert found == there
