"""Single messages that are sent together."""

from __future__ import annotations

import asyncio

import pytest

from miniq.broker.gather import Gather
from miniq.message import PlainDrafts
from miniq.options import Limits, Options


class Puts:
    """A broker whose sends wait until they are let go."""

    prompt = True
    options = Options()

    def __init__(self) -> None:
        self.lots: list[list[bytes]] = []
        self.limited: set[str] = set()
        self.waiting: list[asyncio.Future[None]] = []
        self.answers: list[str] = []

    async def send_each(self, queue: str, bodies: PlainDrafts, calls: list[str | None]) -> list[list[str]]:
        assert calls == [None if body < b"5" else body.decode() for body in bodies.bodies]
        self.lots.append(bodies.bodies)
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]
        return [[body.decode()] for body in bodies.bodies]

    def is_limited(self, queue: str) -> bool:
        return queue in self.limited

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
        gather.add("q", PlainDrafts([body]), [None], [body], puts.answer, False)
    assert puts.lots == []
    await turns()
    for body in (b"3", b"4"):
        gather.add("q", PlainDrafts([body]), [None], [body], puts.answer, False)
    gather.add("other", PlainDrafts([b"5"]), ["5"], [b"5"], puts.answer, False)
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
    gather.add("q", PlainDrafts([b"1"]), [None], [b"1"], puts.answer, False)
    await turns()
    puts.waiting[0].set_result(None)
    await turns(wait)
    gather.add("q", PlainDrafts([b"2"]), [None], [b"2"], puts.answer, False)
    await turns()
    assert puts.lots == [[b"1"], [b"2"]]
    puts.waiting[1].set_result(None)
    await gather.stop()
    assert puts.answers == ["1", "2"]


async def test_an_error_is_told_to_each_and_the_next_put_is_made() -> None:
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    for body in (b"1", b"2"):
        gather.add("q", PlainDrafts([body]), [None], [body], puts.answer, False)
    await turns()
    puts.waiting[0].set_exception(ValueError("no"))
    await turns()
    gather.add("q", PlainDrafts([b"3"]), [None], [b"3"], puts.answer, False)
    await turns()
    puts.waiting[1].set_result(None)
    await gather.stop()
    assert puts.answers == ["no", "no", "3"]


async def test_names_stay_with_their_messages_where_a_crowd_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniq.broker.gather.MESSAGES", 3)
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    for body in (b"1", b"5", b"6", b"7", b"2", b"8", b"9"):
        gather.add("q", PlainDrafts([body]), [None if body < b"5" else body.decode()], [body], puts.answer, False)
    for number in range(3):
        await turns()
        puts.waiting[number].set_result(None)
    await gather.stop()
    assert puts.lots == [[b"1", b"5", b"6"], [b"7", b"2", b"8"], [b"9"]]


async def test_a_queue_that_got_a_limit_meanwhile_is_sent_one_at_a_time() -> None:
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    for body in (b"1", b"2"):
        gather.add("q", PlainDrafts([body]), [None], [body], puts.answer, False)
    puts.limited.add("q")
    for number in range(2):
        await turns()
        puts.waiting[number].set_result(None)
    await gather.stop()
    assert puts.lots == [[b"1"], [b"2"]]


async def test_who_answers_for_others_and_fails_does_not_stop_the_queue(caplog: pytest.LogCaptureFixture) -> None:
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]

    def broken(who: list[bytes], answers: list[list[str]], error: Exception | None) -> None:
        puts.answers.append("broken")
        raise RuntimeError("oops")

    gather.add("q", PlainDrafts([b"1"]), [None], [b"1"], broken, False)
    await turns()
    gather.add("q", PlainDrafts([b"2"]), [None], [b"2"], broken, False)
    for number in range(2):
        await turns()
        puts.waiting[number].set_result(None)
    await gather.stop()
    assert puts.answers == ["broken", "broken"]
    assert "could not all be answered" in caplog.text


async def test_a_put_carries_no_more_than_one_call_may() -> None:
    puts = Puts()
    puts.options = Options(limits=Limits(batch=2))
    gather = Gather(puts)  # type: ignore[arg-type]
    for body in (b"1", b"2", b"3"):
        gather.add("q", PlainDrafts([body]), [None], [body], puts.answer, False)
    for number in range(2):
        await turns()
        puts.waiting[number].set_result(None)
    await gather.stop()
    assert puts.lots == [[b"1", b"2"], [b"3"]]


def wait_at_most(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """For a crowd, however long a put takes."""
    monkeypatch.setattr("miniq.broker.gather.PATIENCE", 1e9)
    monkeypatch.setattr("miniq.broker.gather.LONGEST", seconds)


async def come_and_go(puts: Puts, gather: Gather, *crowds: int) -> None:
    """Crowds that send one after the other, each when the one before is answered."""
    for crowd in crowds:
        for _ in range(crowd):
            gather.add("q", PlainDrafts([b"1"]), [None], [b"1"], puts.answer, False)
        await turns()
        if puts.waiting and not puts.waiting[-1].done():
            puts.waiting[-1].set_result(None)
            await turns()


async def test_a_put_for_a_crowd_waits_for_those_who_are_late(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 600.0)
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    await come_and_go(puts, gather, 10, 4, 5)
    assert [len(lot) for lot in puts.lots] == [10]  # one is still missing
    await come_and_go(puts, gather, 2, 11)
    await gather.stop()
    assert [len(lot) for lot in puts.lots] == [10, 11, 11]


async def test_a_put_does_not_wait_long_for_those_who_do_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 0.002)
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    await come_and_go(puts, gather, 10, 9)
    while len(puts.lots) < 2:
        await turns()
    puts.waiting[-1].set_result(None)
    await gather.stop()
    assert [len(lot) for lot in puts.lots] == [10, 9]


async def test_a_put_for_a_few_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 600.0)
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    await come_and_go(puts, gather, 7, 1, 3)
    await gather.stop()
    assert [len(lot) for lot in puts.lots] == [7, 1, 3]


async def test_a_put_that_is_full_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 600.0)
    monkeypatch.setattr("miniq.broker.gather.MESSAGES", 10)
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    await come_and_go(puts, gather, 30)
    for number in (1, 2):
        await turns()
        puts.waiting[number].set_result(None)
    await gather.stop()
    assert [len(lot) for lot in puts.lots] == [10, 10, 10]


async def test_after_a_put_that_waited_in_vain_the_next_one_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 0.002)
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    await come_and_go(puts, gather, 20, 12)
    while len(puts.lots) < 2:
        await turns()
    wait_at_most(monkeypatch, 600.0)
    puts.waiting[-1].set_result(None)
    await turns()
    await come_and_go(puts, gather, 11, 9)
    assert [len(lot) for lot in puts.lots] == [20, 12, 11]
    await come_and_go(puts, gather, 2)  # the one after that waits again
    await gather.stop()
    assert [len(lot) for lot in puts.lots] == [20, 12, 11, 11]


async def test_crowds_of_queues_that_are_no_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniq.broker.gather.CROWDS", 3)
    puts = Puts()
    gather = Gather(puts)  # type: ignore[arg-type]
    for number in range(10):
        for _ in range(9):
            gather.add(f"q{number}", PlainDrafts([b"1"]), [None], [b"1"], puts.answer, False)
        await turns()
        puts.waiting[-1].set_result(None)
        await turns()
    await gather.stop()
    assert len(gather._crowds) <= 3
