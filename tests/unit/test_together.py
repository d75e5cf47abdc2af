"""Requests that come in one turn of the loop: looked at together, and each answered for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from miniq.broker import Broker
from miniq.errors import Forbidden, Unauthorized
from miniq.server.busy_poll import BusyPoll
from miniq.server.http.fast_lane import HotCycle
from miniq.server.http.request_head import Head
from miniq.server.http.together import Together
from miniq.server.operations import OPERATIONS
from miniq.store import open_store

SEND = next(operation for operation in OPERATIONS if operation.name == "send")


class Lane:
    """A connection: what became of its request."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.became: Any = None

    def refuse(self, hot: HotCycle, error: Exception) -> None:
        self.became = type(error)

    def call(self, hot: HotCycle, raw: bytes) -> None:
        self.became = "a call of its own"

    def beginning(self, status: int, media: bytes) -> bytes:
        return b""

    def write(self, hot: HotCycle, status: int, head: bytes, body: bytes) -> None:
        self.became = body


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(open_store("memory:")) as opened:
        for queue in ("a", "b"):
            await opened.configure(queue)
        await opened.configure("few", {"max_length": 5})
        yield opened


def head(queue: str = "a", secret: str | None = None, call: str | None = None) -> Head:
    return Head(SEND, queue, True, "", secret, call, None, None, None, -1, "json", "json", True)


async def became(broker: Broker, *requests: tuple[Head, bytes]) -> list[Any]:
    """What became of requests that come in one turn."""
    together = Together(broker, BusyPoll(0))
    lanes = []
    for said, raw in requests:
        lane = Lane()
        lanes.append(lane)
        together.add(HotCycle(said, lane), raw)  # type: ignore[arg-type]
    assert all(lane.became is None for lane in lanes)
    for _ in range(10):
        await asyncio.sleep(0)
    return [lane.became for lane in lanes]


async def bodies(broker: Broker, queue: str) -> dict[str, bytes]:
    page = await broker.peek(queue)
    return {stored.message.id: stored.message.body for stored in page.messages}


async def test_each_is_told_of_its_own_message(broker: Broker) -> None:
    same = head("a")
    asked = [(same, b'{"body":1}'), (head("b"), b'{"body":2}'), (same, b'{"body":3}'), (head("a"), b'{"body":4}')]
    told = await became(broker, *asked)
    there = await bodies(broker, "a") | await bodies(broker, "b")
    assert [there[answer.decode().split('"')[3]] for answer in told] == [b"1", b"2", b"3", b"4"]
    assert set((await bodies(broker, "b")).values()) == {b"2"}


async def test_what_cannot_go_together_goes_by_itself(broker: Broker) -> None:
    plain = (head("a"), b'{"body":1}')
    others = [
        (head("a"), b'{"body":2,"priority":3}'),
        (head("a"), b'{"body":'),
        (head("unknown"), b'{"body":4}'),
        (head("few"), b'{"body":5}'),
        (head("b", call=""), b'{"body":6}'),
    ]
    first, *rest = await became(broker, plain, *others)
    assert first.startswith(b'{"ids":')
    assert rest == ["a call of its own"] * len(others)
    assert list((await bodies(broker, "a")).values()) == [b"1"]


async def test_what_one_key_may_another_may_not(broker: Broker) -> None:
    _, good = await broker.keys.create("sender", ["send:a"], 0)
    _, other = await broker.keys.create("reader", ["receive:a"], 0)
    told = await became(
        broker,
        (head("a", good), b'{"body":1}'),
        (head("a", other), b'{"body":2}'),
        (head("a"), b'{"body":3}'),
        (head("b", good), b'{"body":4}'),
        (head("a", good), b'{"body":5}'),
    )
    assert told[1:4] == [Forbidden, Unauthorized, Forbidden]
    assert sorted((await bodies(broker, "a")).values()) == [b"1", b"5"]
    assert not await bodies(broker, "b")


async def test_a_mistake_with_one_leaves_the_others_answered(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(lane: Lane, hot: HotCycle, raw: bytes) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr(Lane, "call", call)
    strange = (head("a"), b'{"body":1,"priority":3}')
    told = await became(
        broker, (head("a"), b'{"body":1}'), strange, (head("few"), b'{"body":2}'), (head("b"), b'{"body":3}')
    )
    assert told[1:3] == [RuntimeError, RuntimeError]
    assert told[0].startswith(b'{"ids":')
    assert told[3].startswith(b'{"ids":')
