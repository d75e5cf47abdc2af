"""Single messages that many send at the same time: one put for all of them, an answer for each."""

from __future__ import annotations

import asyncio

import pytest

from miniq.broker import Broker, gather
from miniq.errors import MiniQError, NoSpace
from tests.kit import draft


class Senders:
    """Everybody who sends beside others, and what each was told."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.told: dict[int, str | Exception] = {}
        self._waiting: list[asyncio.Future[None]] = []

    def send(self, number: int, queue: str = "q", body: bytes | None = None) -> bool:
        future = asyncio.get_running_loop().create_future()

        def done(id: str, error: Exception | None) -> None:
            assert number not in self.told, "told twice"
            self.told[number] = error or id
            future.set_result(None)

        taken = self.broker.send_beside(queue, body or str(number).encode(), done)
        if taken:
            self._waiting.append(future)
        return taken

    async def answers(self) -> dict[int, str | Exception]:
        await asyncio.gather(*self._waiting)
        return self.told


async def test_everybody_gets_the_id_of_the_own_message(broker: Broker) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    for number in range(250):
        assert senders.send(number)
        if number % 7 == 0:
            await asyncio.sleep(0)
    told = await senders.answers()
    assert list(told) == list(range(250))
    assert sorted(told.values()) == list(told.values())
    for number in (0, 1, 99, 100, 249):
        id = told[number]
        assert isinstance(id, str)
        assert (await broker.get("q", id)).message.body == str(number).encode()
    assert (await broker.queue("q")).counts.ready == 250
    assert broker.metrics.messages["q", "sent"] == 250


async def test_messages_sent_beside_each_other_come_in_the_order_in_which_they_were_sent(broker: Broker) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    for number in range(30):
        senders.send(number)
    await senders.answers()
    await broker.send("q", [draft(30)])
    taken = await broker.receive("q", max=100)
    assert [stored.message.body for stored in taken] == [str(number).encode() for number in range(31)]


async def test_a_crowd_is_served_in_several_puts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "MESSAGES", 10)
    monkeypatch.setattr(gather, "BYTES", 100)
    await broker.configure("q")
    sizes: list[int] = []
    put = broker.store.put

    async def counted(messages: object, **asked: object) -> list[str]:
        sizes.append(len(messages))  # type: ignore[arg-type]
        return await put(messages, **asked)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.store, "put", counted)
    senders = Senders(broker)
    for number in range(25):
        senders.send(number, body=b'"%s"' % (b"x" * (200 if number == 20 else 3)))
    told = await senders.answers()
    assert all(isinstance(id, str) for id in told.values())
    assert sizes == [10, 10, 1, 4]


async def test_what_cannot_be_sent_beside_others_is_left_to_send(broker: Broker) -> None:
    await broker.configure("limited", {"max_length": 1})
    await broker.configure("q")
    senders = Senders(broker)
    assert not senders.send(1, queue="limited")
    assert not senders.send(2, queue="unknown")
    assert not senders.send(3, body=b"1" * (broker.options.limits.body_bytes + 1))
    assert senders.told == {}


async def test_a_put_that_fails_is_told_to_everybody_in_it_and_to_nobody_else(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.configure("q")
    put = broker.store.put
    failing = True

    async def fail_once(messages: object, **asked: object) -> list[str]:
        nonlocal failing
        await asyncio.sleep(0)
        if failing:
            failing = False
            raise NoSpace("store: full", field="store")
        return await put(messages, **asked)  # type: ignore[arg-type]

    monkeypatch.setattr(broker.store, "put", fail_once)
    senders = Senders(broker)
    senders.send(0)
    senders.send(1)
    await asyncio.sleep(0)
    senders.send(2)
    told = await senders.answers()
    assert [type(answer) for answer in told.values()] == [NoSpace, NoSpace, str]
    assert (await broker.queue("q")).counts.ready == 1


async def test_a_queue_that_is_deleted_meanwhile_is_made_again_or_refused_but_nobody_is_left_without_answer(
    broker: Broker,
) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    senders.send(0)
    await broker.delete_queue("q")
    told = await senders.answers()
    assert isinstance(told[0], str | MiniQError)


async def test_those_who_wait_when_the_broker_closes_are_answered(broker: Broker) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    for number in range(5):
        senders.send(number)
    await broker.close()
    told = await senders.answers()
    assert len(told) == 5
    assert not senders.send(9)


async def test_a_message_sent_beside_others_wakes_a_long_poll(broker: Broker) -> None:
    await broker.configure("q")
    poll = asyncio.create_task(broker.receive("q", wait=20))
    await asyncio.sleep(0.01)
    senders = Senders(broker)
    senders.send(7)
    (stored,) = await poll
    assert stored.message.body == b"7"
