"""Lone plain messages that go to the store together, and coroutines that start without a task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from miniq.api.plain import LONE
from miniq.broker import Broker
from miniq.broker.intake import Reply
from miniq.errors import Closed, Forbidden, IdempotencyMismatch, InvalidRequest, NoSpace, Unauthorized
from miniq.json_values import DEPTH
from miniq.message import JSON, Message, PlainBatch
from miniq.options import Limits, Options
from miniq.server.busy_poll import BusyPoll
from miniq.server.http.fast_lane import FastLane, Head, HotCycle
from miniq.server.operations import OPERATIONS, Request, start
from miniq.store import open_store
from miniq.store.arguments import Change, Once, Put

SEND = next(operation for operation in OPERATIONS if operation.name == "send")


class Puts:
    """A broker whose puts wait until they are let go. A body from 5 on is the name of its call too."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.lots: list[list[bytes]] = []
        self.waiting: list[asyncio.Future[None]] = []
        self.answers: list[str] = []
        self._bodies: dict[str, bytes] = {}
        messages = broker.store.messages
        self._put, self._put_each = messages.put, messages.put_each
        messages.put, messages.put_each = self.put, self.put_each  # type: ignore[method-assign]

    def add(self, body: bytes, queue: str = "q", reply: Reply | None = None) -> None:
        call = None if body < b"5" else body.decode()
        assert self.broker.intake.add(queue, JSON, body, call, None, body, reply or self.answer)

    async def put(self, messages: Sequence[Message], put: Put) -> list[str]:
        if isinstance(messages, PlainBatch):  # else `put_each` of this store does it one by one
            await self._wait(messages)
        return await self._put(messages, put)

    async def put_each(
        self, batch: PlainBatch, calls: Sequence[Once | None], change: Change
    ) -> list[list[str] | IdempotencyMismatch]:
        names = [None if call is None else call.name for call in calls]
        assert names == [None if body < b"5" else body.decode() for body in batch.bodies]
        await self._wait(batch)
        return await self._put_each(batch, calls, change)

    async def _wait(self, batch: PlainBatch) -> None:
        self.lots.append(batch.bodies)
        self._bodies.update(zip(batch.ids, batch.bodies, strict=True))
        self.waiting.append(asyncio.get_running_loop().create_future())
        await self.waiting[-1]

    def answer(self, who: list[bytes], answers: list[list[str]], error: Exception | None) -> None:
        if error is not None:
            self.answers += [str(error)] * len(who)
            return
        assert [[body] for body in who] == [[self._bodies[id] for id in ids] for ids in answers]
        self.answers += [body.decode() for body in who]


async def opened(options: Options | None = None) -> AsyncIterator[Puts]:
    async with Broker(open_store("memory:"), options) as broker:
        for queue in ("q", "other", *[f"q{number}" for number in range(10)]):
            await broker.configure(queue)
        yield Puts(broker)


@pytest.fixture
async def puts() -> AsyncIterator[Puts]:
    async for found in opened():
        yield found


async def turns(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_what_comes_in_one_turn_or_during_a_put_goes_together(puts: Puts) -> None:
    for body in (b"1", b"2"):
        puts.add(body)
    assert puts.lots == []
    await turns()
    for body in (b"3", b"4"):
        puts.add(body)
    puts.add(b"5", "other")
    await turns()
    assert puts.lots == [[b"1", b"2"], [b"5"]]
    puts.waiting[0].set_result(None)
    await turns()
    assert puts.lots[2:] == [[b"3", b"4"]]
    for waiting in puts.waiting[1:]:
        waiting.set_result(None)
    await puts.broker.intake.stop()
    assert puts.answers == ["1", "2", "5", "3", "4"]


@pytest.mark.parametrize("wait", range(5))
async def test_what_comes_just_when_a_put_ends_is_not_forgotten(puts: Puts, wait: int) -> None:
    puts.add(b"1")
    await turns()
    puts.waiting[0].set_result(None)
    await turns(wait)
    puts.add(b"2")
    await turns()
    assert puts.lots == [[b"1"], [b"2"]]
    puts.waiting[1].set_result(None)
    await puts.broker.intake.stop()
    assert puts.answers == ["1", "2"]


async def test_a_message_that_would_be_refused_does_not_share_a_put(puts: Puts) -> None:
    """A put is refused as a whole."""
    intake, deep = puts.broker.intake, b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1)
    large = b"1" * (puts.broker.options.limits.body_bytes + 1)
    puts.add(b"1")
    assert [intake.add("q", JSON, body, None, None, body, puts.answer) for body in (deep, large)] == [False, False]
    await turns()
    puts.waiting[0].set_result(None)
    await intake.stop()
    assert puts.answers == ["1"]


async def test_an_error_is_told_to_each_and_the_next_put_is_made(puts: Puts) -> None:
    for body in (b"1", b"2"):
        puts.add(body)
    await turns()
    puts.waiting[0].set_exception(NoSpace("no"))
    await turns()
    puts.add(b"3")
    await turns()
    puts.waiting[1].set_result(None)
    await puts.broker.intake.stop()
    assert puts.answers == ["no", "no", "3"]


async def test_names_stay_with_their_messages_where_a_crowd_is_split(
    puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniq.broker.intake.MESSAGES", 3)
    for body in (b"1", b"5", b"6", b"7", b"2", b"8", b"9"):
        puts.add(body)
    for number in range(3):
        await turns()
        puts.waiting[number].set_result(None)
    await puts.broker.intake.stop()
    assert puts.lots == [[b"1", b"5", b"6"], [b"7", b"2", b"8"], [b"9"]]


async def test_a_queue_that_got_a_limit_meanwhile_is_sent_one_at_a_time(puts: Puts) -> None:
    for body in (b"1", b"2"):
        puts.add(body)
    await puts.broker.configure("q", {"max_length": 5})
    for number in range(2):
        await turns()
        puts.waiting[number].set_result(None)
    await puts.broker.intake.stop()
    assert puts.lots == [[b"1"], [b"2"]]


async def test_who_answers_for_others_and_fails_does_not_stop_the_queue(
    puts: Puts, caplog: pytest.LogCaptureFixture
) -> None:

    def broken(who: list[bytes], answers: list[list[str]], error: Exception | None) -> None:
        puts.answers.append("broken")
        raise RuntimeError("oops")

    puts.add(b"1", reply=broken)
    await turns()
    puts.add(b"2", reply=broken)
    for number in range(2):
        await turns()
        puts.waiting[number].set_result(None)
    await puts.broker.intake.stop()
    assert puts.answers == ["broken", "broken"]
    assert "could be answered" in caplog.text


async def test_a_put_carries_no_more_than_one_call_may() -> None:
    async for few in opened(Options(limits=Limits(batch=2))):
        for body in (b"1", b"2", b"3"):
            few.add(body)
        for number in range(2):
            await turns()
            few.waiting[number].set_result(None)
        await few.broker.intake.stop()
        assert few.lots == [[b"1", b"2"], [b"3"]]


def wait_at_most(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """For a crowd, however long a put takes."""
    monkeypatch.setattr("miniq.broker.intake.PATIENCE", 1e9)
    monkeypatch.setattr("miniq.broker.intake.LONGEST", seconds)


async def come_and_go(puts: Puts, *crowds: int) -> None:
    """Crowds that send one after the other, each when the one before is answered."""
    for crowd in crowds:
        for _ in range(crowd):
            puts.add(b"1")
        await turns()
        if puts.waiting and not puts.waiting[-1].done():
            puts.waiting[-1].set_result(None)
            await turns()


async def wait_in_vain(puts: Puts, monkeypatch: pytest.MonkeyPatch, crowd: int, left: int) -> None:
    """A crowd of which not all come back until the put that waits for them gives up."""
    now = 0.0
    monkeypatch.setattr("miniq.broker.intake.perf_counter", lambda: now)
    puts.broker.intake._put_seconds = 1.0
    await come_and_go(puts, crowd, left)
    assert len(puts.lots) == 1
    now = 601.0
    while len(puts.lots) < 2:
        await turns()
    puts.waiting[-1].set_result(None)


async def test_a_put_for_a_crowd_waits_for_those_who_are_late(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 600.0)
    await come_and_go(puts, 10, 4, 5)
    assert [len(lot) for lot in puts.lots] == [10]  # one is still missing
    await come_and_go(puts, 2, 11)
    await puts.broker.intake.stop()
    assert [len(lot) for lot in puts.lots] == [10, 11, 11]


async def test_a_put_does_not_wait_long_for_those_who_do_not_come_back(
    puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_at_most(monkeypatch, 600.0)
    await wait_in_vain(puts, monkeypatch, 10, 9)
    await puts.broker.intake.stop()
    assert [len(lot) for lot in puts.lots] == [10, 9]


async def test_a_put_for_a_few_waits_for_nobody(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 600.0)
    await come_and_go(puts, 7, 1, 3)
    await puts.broker.intake.stop()
    assert [len(lot) for lot in puts.lots] == [7, 1, 3]


async def test_a_put_that_is_full_waits_for_nobody(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_at_most(monkeypatch, 600.0)
    monkeypatch.setattr("miniq.broker.intake.MESSAGES", 10)
    await come_and_go(puts, 30)
    for number in (1, 2):
        await turns()
        puts.waiting[number].set_result(None)
    await puts.broker.intake.stop()
    assert [len(lot) for lot in puts.lots] == [10, 10, 10]


async def test_after_a_put_that_waited_in_vain_the_next_one_does_not_wait(
    puts: Puts, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_at_most(monkeypatch, 600.0)
    await wait_in_vain(puts, monkeypatch, 20, 12)
    await turns()
    await come_and_go(puts, 11, 9)
    assert [len(lot) for lot in puts.lots] == [20, 12, 11]
    await come_and_go(puts, 2)  # the one after that waits again
    await puts.broker.intake.stop()
    assert [len(lot) for lot in puts.lots] == [20, 12, 11, 11]


async def test_crowds_of_queues_that_are_no_more_are_forgotten(puts: Puts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniq.broker.intake.CROWDS", 3)
    for number in range(10):
        for _ in range(9):
            puts.add(b"1", f"q{number}")
        await turns()
        puts.waiting[-1].set_result(None)
        await turns()
    await puts.broker.intake.stop()
    assert len(puts.broker.intake._crowds) <= 3


# Over HTTP: requests that one turn of the loop has read


class Lane:
    """A connection: what became of its request."""

    call, _check = FastLane._call, FastLane._check

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.busy_poll = BusyPoll(0)
        self.eager = True
        self.loop = asyncio.get_running_loop()
        self.became: Any = None

    def refuse(self, hot: HotCycle, error: Exception) -> None:
        self.became = type(error)

    def _done(self, hot: HotCycle, reply: Any, error: Exception | None) -> None:
        self.became = "a call of its own" if error is None else type(error)

    def reply_head(self, status: int, media: bytes) -> bytes:
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
    return Head(SEND, queue, True, "", secret, call, None, None, None, -1, "json", "json", "json", LONE["json"])


async def became(broker: Broker, *requests: tuple[Head, bytes]) -> list[Any]:
    """What became of requests that come in one turn."""
    lanes = []
    for said, raw in requests:
        lane = Lane(broker)
        lanes.append(lane)
        lane.call(HotCycle(said, lane), raw)  # type: ignore[arg-type]
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


async def test_what_is_no_lone_plain_message_goes_by_itself(broker: Broker) -> None:
    plain = (head("a"), b'{"body":1}')
    others = [
        (head("a"), b'{"body":2,"priority":3}'),
        (head("a"), b'{"messages":[{"body":3}]}'),
        (head("unknown"), b'{"body":4}'),
        (head("few"), b'{"body":5}'),
        (head("b", call="\N{SNOWMAN}"), b'{"body":6}'),
    ]
    wrong = [(head("a"), b'{"body":'), (head("b", call=""), b'{"body":6}')]
    first, *rest = await became(broker, plain, *others, *wrong)
    assert first.startswith(b'{"ids":')
    assert rest == ["a call of its own"] * len(others) + [InvalidRequest] * len(wrong)
    assert sorted((await bodies(broker, "a")).values()) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("raw", [b'{"body":1,"priority":3}', b'{"messages":[{"body":1}]}'])
async def test_what_goes_by_itself_is_authorised_once_and_waits_for_no_other(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, raw: bytes
) -> None:
    _, secret = await broker.keys.create("sender", ["send:a"], 0)
    checked: list[str] = []
    check = broker.keys.check

    def counted(*asked: Any) -> None:
        checked.append("once")
        check(*asked)

    monkeypatch.setattr(broker.keys, "check", counted)
    lane = Lane(broker)
    lane.call(HotCycle(head("a", secret), lane), raw)  # type: ignore[arg-type]
    assert lane.became == "a call of its own"
    assert checked == ["once"]


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
    def request(head: Head, raw: bytes, lone: bytes | None) -> Request:
        raise RuntimeError("oops")

    monkeypatch.setattr(Head, "request", request)
    strange = (head("a"), b'{"body":1,"priority":3}')
    told = await became(
        broker, (head("a"), b'{"body":1}'), strange, (head("few"), b'{"body":2}'), (head("b"), b'{"body":3}')
    )
    assert told[1:3] == [RuntimeError, RuntimeError]
    assert told[0].startswith(b'{"ids":')
    assert told[3].startswith(b'{"ids":')


# Coroutines that start without a task


class Told:
    """What came of a coroutine."""

    def __init__(self) -> None:
        self.ends: list[tuple[Any, Exception | None]] = []

    def __call__(self, result: Any, error: Exception | None) -> None:
        self.ends.append((result, error))


async def test_what_waits_for_nothing_is_over_at_once() -> None:
    async def call() -> int:
        return 7

    told = Told()
    assert start(asyncio.get_running_loop(), call(), told) is None
    assert told.ends == [(7, None)]


async def test_an_error_before_the_first_wait_is_told_at_once() -> None:
    wrong = ValueError("wrong")

    async def call() -> None:
        raise wrong

    told = Told()
    assert start(asyncio.get_running_loop(), call(), told) is None
    assert told.ends == [(None, wrong)]


async def test_what_waits_goes_on_as_a_task() -> None:
    loop = asyncio.get_running_loop()
    first, second = loop.create_future(), loop.create_future()
    steps = []

    async def call() -> int:
        steps.append("begun")
        got = await first
        await asyncio.sleep(0)
        try:
            await second
        except ValueError:
            steps.append("caught")
        async with asyncio.timeout(5):  # asks for the current task
            await asyncio.sleep(0)
        return int(got)

    told = Told()
    task = start(loop, call(), told)
    assert task is not None
    assert steps == ["begun"]
    first.set_result(3)
    second.set_exception(ValueError())
    assert await task == 3
    await asyncio.sleep(0)
    assert steps == ["begun", "caught"]
    assert told.ends == [(3, None)]


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_one_that_waits_can_be_cancelled_at_any_time(turns: int) -> None:
    loop = asyncio.get_running_loop()
    cleaned = []

    async def call() -> None:
        try:
            await loop.create_future()
        finally:
            cleaned.append(True)

    told = Told()
    task = start(loop, call(), told)
    assert task is not None
    for _ in range(turns):
        await asyncio.sleep(0)
    assert task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(0)
    assert cleaned == [True]
    ((result, error),) = told.ends
    assert result is None
    assert isinstance(error, Closed)


async def test_one_that_has_to_be_a_task_is_one_from_its_beginning() -> None:
    async def call() -> bool:
        return asyncio.current_task() is not None

    told = Told()
    task = start(asyncio.get_running_loop(), call(), told, eager=False)
    assert task is not None
    assert await task
    await asyncio.sleep(0)
    assert told.ends == [(True, None)]
