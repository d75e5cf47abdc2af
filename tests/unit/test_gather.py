"""Single messages that are sent together."""

from __future__ import annotations

import asyncio

import pytest

from miniq.broker.gather import Gather
from miniq.message import Bodies


class Puts:
    """A broker whose sends wait until they are let go."""

    prompt = True

    def __init__(self) -> None:
        self.lots: list[list[bytes]] = []
        self.waiting: list[asyncio.Future[None]] = []
        self.answers: list[str] = []

    async def send_each(self, queue: str, bodies: Bodies, calls: list[str | None]) -> list[list[str]]:
        assert len(calls) == len(bodies.bodies)
        self.lots.append(bodies.bodies)
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]
        return [[body.decode()] for body in bodies.bodies]

    def answer(self, who: list[bytes], answers: list[list[str]], error: Exception | None) -> None:
        if error is not None:
            self.answers += [str(error)] * len(who)
            return
        assert [[one.decode()] for one in who] == answers
        self.answers += [ids[0] for ids in answers]


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_or_during_a_put_goes_together() -> None:
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    for body in (b"1", b"2"):
        gather.add("q", body, None, body, puts.answer)
    assert puts.lots == []
    await turns()
    for body in (b"3", b"4"):
        gather.add("q", body, None, body, puts.answer)
    gather.add("other", b"5", None, b"5", puts.answer)
    await turns()
    assert puts.lots == [[b"1", b"2"], [b"5"]]
    puts.waiting[0].set_result(None)
    await turns()
    assert puts.lots[2:] == [[b"3", b"4"]]
    for waiting in puts.waiting[1:]:
        waiting.set_result(None)
    await gather.stop()
    assert puts.answers == ["1", "2", "5", "3", "4"]


@pytest.mark.parametrize("wait", range(5))
async def test_what_comes_just_when_a_put_ends_is_not_forgotten(wait: int) -> None:
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    gather.add("q", b"1", None, b"1", puts.answer)
    await turns()
    puts.waiting[0].set_result(None)
    await turns(wait)
    gather.add("q", b"2", None, b"2", puts.answer)
    await turns()
    assert puts.lots == [[b"1"], [b"2"]]
    puts.waiting[1].set_result(None)
    await gather.stop()
    assert puts.answers == ["1", "2"]


async def test_an_error_is_told_to_each_and_the_next_put_is_made() -> None:
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    for body in (b"1", b"2"):
        gather.add("q", body, None, body, puts.answer)
    await turns()
    puts.waiting[0].set_exception(ValueError("no"))
    await turns()
    gather.add("q", b"3", None, b"3", puts.answer)
    await turns()
    puts.waiting[1].set_result(None)
    await gather.stop()
    assert puts.answers == ["no", "no", "3"]
