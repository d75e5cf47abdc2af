"""Who is waited for with open eyes."""

from __future__ import annotations

import asyncio

import pytest

from miniq.server.busy_poll import Awake

LONGEST = 0.25


class Watch:
    """A clock that stands, and the turns that the loop was kept awake for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.turns = 0
        monkeypatch.setattr("miniq.server.busy_poll.perf_counter", lambda: self.now)
        monkeypatch.setattr("os.sched_yield", self._turn)

    def _turn(self) -> None:
        self.turns += 1

    async def awake(self) -> bool:
        """Whether the loop is being kept awake."""
        before = self.turns
        for _ in range(5):
            await asyncio.sleep(0)
        return self.turns > before


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def call(awake: Awake, who: object) -> None:
    awake.asked(who)
    awake.answered(who)


async def test_one_who_asks_again_at_once_is_waited_for_but_not_for_ever(watch: Watch) -> None:
    awake = Awake(LONGEST)
    call(awake, "a")
    assert not await watch.awake(), "nothing is known of it yet"
    watch.now += LONGEST / 2
    call(awake, "a")
    assert await watch.awake()
    watch.now += LONGEST / 2
    assert await watch.awake()
    watch.now += LONGEST / 2
    assert not await watch.awake()


async def test_one_who_takes_its_time_is_not_waited_for(watch: Watch) -> None:
    awake = Awake(LONGEST)
    for _ in range(3):
        call(awake, "a")
        assert not await watch.awake()
        watch.now += LONGEST


async def test_those_who_take_turns_are_not_waited_for(watch: Watch) -> None:
    awake = Awake(LONGEST)
    for who in ("a", "b", "a", "b"):
        call(awake, who)
        assert not await watch.awake()


async def test_those_whose_requests_overlap_are_not_waited_for(watch: Watch) -> None:
    awake = Awake(LONGEST)
    for _ in range(3):
        awake.asked("a")
        awake.asked("b")
        awake.answered("a")
        awake.answered("b")
        assert not await watch.awake()
    for _ in range(3):
        awake.asked(None)
        awake.answered("b")
        assert not await watch.awake()


async def test_nothing_is_waited_for_while_a_request_is_being_answered(watch: Watch) -> None:
    awake = Awake(LONGEST)
    call(awake, "a")
    call(awake, "a")
    assert await watch.awake()
    awake.asked("a")
    assert not await watch.awake()
    awake.answered("a")
    assert await watch.awake()


async def test_zero_is_never(watch: Watch) -> None:
    awake = Awake(0)
    for _ in range(3):
        call(awake, "a")
        assert not await watch.awake()
