"""Who is waited for with open eyes."""

from __future__ import annotations

import asyncio

import pytest

from miniq.server.busy_poll import BusyPoll

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


def call(busy_poll: BusyPoll, who: object) -> None:
    busy_poll.asked(who)
    busy_poll.answered(who)


async def test_one_who_asks_again_at_once_is_waited_for_but_not_for_ever(watch: Watch) -> None:
    busy_poll = BusyPoll(LONGEST)
    call(busy_poll, "a")
    assert not await watch.awake(), "nothing is known of it yet"
    watch.now += LONGEST / 2
    call(busy_poll, "a")
    assert await watch.awake()
    watch.now += LONGEST / 2
    assert await watch.awake()
    watch.now += LONGEST / 2
    assert not await watch.awake()


async def test_one_who_takes_its_time_is_not_waited_for(watch: Watch) -> None:
    busy_poll = BusyPoll(LONGEST)
    for _ in range(3):
        call(busy_poll, "a")
        assert not await watch.awake()
        watch.now += LONGEST


async def test_those_who_take_turns_are_not_waited_for(watch: Watch) -> None:
    busy_poll = BusyPoll(LONGEST)
    for who in ("a", "b", "a", "b"):
        call(busy_poll, who)
        assert not await watch.awake()


async def test_those_whose_requests_overlap_are_not_waited_for(watch: Watch) -> None:
    busy_poll = BusyPoll(LONGEST)
    for _ in range(3):
        busy_poll.asked("a")
        busy_poll.asked("b")
        busy_poll.answered("a")
        busy_poll.answered("b")
        assert not await watch.awake()
    for _ in range(3):
        busy_poll.asked(None)
        busy_poll.answered("b")
        assert not await watch.awake()


async def test_nothing_is_waited_for_while_a_request_is_being_answered(watch: Watch) -> None:
    busy_poll = BusyPoll(LONGEST)
    call(busy_poll, "a")
    call(busy_poll, "a")
    assert await watch.awake()
    busy_poll.asked("a")
    assert not await watch.awake()
    busy_poll.answered("a")
    assert await watch.awake()


async def test_zero_is_never(watch: Watch) -> None:
    busy_poll = BusyPoll(0)
    for _ in range(3):
        call(busy_poll, "a")
        assert not await watch.awake()
