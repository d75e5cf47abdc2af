"""Single messages that many send at the same time: one put for all of them, an answer for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from miniq.broker import Broker, intake
from miniq.errors import IdempotencyMismatch, InvalidRequest, MiniQError, NoSpace
from miniq.message import JSON, Message
from miniq.store.arguments import Put
from tests.clock import FrozenClock
from tests.kit import draft


class Senders:
    """Everybody who sends beside others, and what each was told."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.secret: str | None = None
        self.told: dict[int, str | Exception] = {}
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def send(
        self, number: int, queue: str = "q", body: bytes | None = None, call: str | None = None, kind: str = JSON
    ) -> bool:
        taken = self.broker.intake.add(queue, kind, body or str(number).encode(), call, self.secret, number, self.sent)
        if taken:
            self._waiting[number] = asyncio.get_running_loop().create_future()
        return taken

    def sent(self, who: list[int], answers: list[list[str]], error: Exception | None) -> None:
        for place, number in enumerate(who):
            assert number not in self.told, "told twice"
            self.told[number] = error or ",".join(answers[place])
            self._waiting[number].set_result(None)

    async def answers(self) -> dict[int, str | Exception]:
        await asyncio.gather(*self._waiting.values())
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
    monkeypatch.setattr(intake, "MESSAGES", 10)
    monkeypatch.setattr(intake, "BYTES", 100)
    await broker.configure("q")
    sizes: list[int] = []
    put = broker.store.messages.put

    async def counted(messages: Sequence[Message], asked: Put) -> list[str]:
        sizes.append(len(messages))
        return await put(messages, asked)

    monkeypatch.setattr(broker.store.messages, "put", counted)
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
    put = broker.store.messages.put
    failing = True

    async def fail_once(messages: Sequence[Message], asked: Put) -> list[str]:
        nonlocal failing
        await asyncio.sleep(0)
        if failing:
            failing = False
            raise NoSpace("store: full", field="store")
        return await put(messages, asked)

    monkeypatch.setattr(broker.store.messages, "put", fail_once)
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


async def send_named(broker: Broker, calls: dict[int, str | None]) -> dict[int, str | Exception]:
    """Send numbers, or their names, at the same time, each with its name; by the long way where that has to be."""
    senders = Senders(broker)
    for number, call in calls.items():
        body = draft(number if call is None else call)
        if not senders.send(number, body=body.body, call=call):
            senders.told[number] = ",".join(await broker.send("q", [body], call))
    return await senders.answers()


async def bodies(broker: Broker) -> list[bytes]:
    return [stored.message.body for stored in await broker.receive("q", max=100)]


async def test_named_messages_are_sent_beside_others_where_nobody_else_writes(broker: Broker) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    assert senders.send(1, call="a") is not broker.store.shared
    assert not senders.send(2, call="")
    assert not senders.send(3, call="x" * (broker.options.limits.name_bytes + 1))
    assert not senders.send(4, call="\N{SNOWMAN}")
    assert not senders.send(5, call="commit\0job\0batch")
    await senders.answers()


async def test_a_name_counts_once_within_a_put_and_after_it(broker: Broker) -> None:
    await broker.configure("q")
    told = await send_named(broker, {1: "a", 2: None, 3: "b", 4: "a", 5: None, 6: "c"})
    assert told[4] == told[1]
    assert len(set(told.values())) == 5
    again = await send_named(broker, {7: "c", 8: "d", 9: None, 10: "a"})
    assert (again[7], again[10]) == (told[6], told[1])
    assert (await broker.queue("q")).counts.ready == 7
    for number, body in {1: b'"a"', 2: b"2", 3: b'"b"', 5: b"5", 6: b'"c"', 8: b'"d"', 9: b"9"}.items():
        id = told.get(number) or again[number]
        assert isinstance(id, str)
        assert (await broker.get("q", id)).message.body == body
    assert sorted(await bodies(broker)) == [b'"a"', b'"b"', b'"c"', b'"d"', b"2", b"5", b"9"]


async def test_a_put_in_which_all_was_sent_before_adds_nothing(broker: Broker) -> None:
    await broker.configure("q")
    told = await send_named(broker, {1: "a", 2: "b"})
    again = await send_named(broker, {3: "b", 4: "a", 5: "b"})
    assert list(again.values()) == [told[2], told[1], told[2]]
    assert await bodies(broker) == [b'"a"', b'"b"']


async def test_a_name_is_the_same_by_either_way(broker: Broker) -> None:
    await broker.configure("q")
    first = await broker.send("q", [draft("long")], "long")
    told = await send_named(broker, {4: "long", 5: "one"})
    assert told[4] == first[0]
    assert await broker.send("q", [draft("one", headers={"traceparent": "00-1-1-00"})], "one") == [told[5]]
    assert len(await bodies(broker)) == 2


async def test_a_name_that_was_used_for_another_body_is_refused_and_the_others_of_the_put_are_sent(
    broker: Broker,
) -> None:
    await broker.configure("q")
    if broker.store.shared:
        return  # there names are not gathered: see `test_queues.py`
    senders = Senders(broker)
    for number, call in enumerate(["a", None, "a", "b"]):
        assert senders.send(number, call=call)
    told = await senders.answers()
    assert [type(told[number]) for number in range(4)] == [str, str, IdempotencyMismatch, str]
    assert senders.send(9, call="b")
    assert isinstance((await senders.answers())[9], IdempotencyMismatch)
    assert await bodies(broker) == [b"0", b"1", b"3"]


async def test_senders_with_different_keys_may_choose_the_same_name(broker: Broker) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    for number in range(2):
        _, senders.secret = await broker.keys.create("sender", ["send"], broker.clock.now())
        scope = broker.keys.scope(senders.secret)
        if not senders.send(number, call="a"):
            senders.told[number] = ",".join(await broker.send("q", [draft(number)], "a", scope))
    told = await senders.answers()
    assert await broker.send("q", [draft(1)], "a", scope) == [told[1]], "by either way"
    assert await bodies(broker) == [b"0", b"1"]


async def test_a_name_is_forgotten_in_time(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q")
    first = await send_named(broker, {1: "a"})
    clock.advance(301)
    second = await send_named(broker, {2: "a"})
    assert first[1] != second[2]
    assert await bodies(broker) == [b'"a"', b'"a"']


async def test_named_messages_stand_in_the_history(broker: Broker) -> None:
    await broker.configure("q", {"history": "full"})
    await send_named(broker, {1: "a", 2: "b", 3: "a"})
    records = (await broker.history(queue="q")).records
    assert [record.event.body for record in records if record.event.event == "sent"] == [b'"a"', b'"b"']


async def test_a_call_cannot_be_named_as_a_batch_that_was_committed(broker: Broker) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await broker.send("q", [draft(1)], "publish\0job\0batch")
    assert caught.value.field == "idempotency-key"


async def test_more_than_a_put_may_carry_is_sent_in_several(broker: Broker) -> None:
    await broker.configure("q")
    told = await send_named(broker, {number: f"n{number % 400}" for number in range(1200)})
    assert len(set(told.values())) == 400
    assert all(told[number] == told[number % 400] for number in range(1200))
    assert (await broker.queue("q")).counts.ready == 400


async def test_named_messages_wait_for_a_queue_that_is_deleted_meanwhile(broker: Broker) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    taken = [senders.send(number, call=f"n{number}") for number in range(3)]
    await broker.delete_queue("q")
    told = await senders.answers()
    assert len(told) == sum(taken)
    if taken[0]:  # where names are gathered nobody else deletes: the queue is made again for them
        assert all(isinstance(id, str) for id in told.values())
        assert (await broker.queue("q")).counts.ready == 3


async def test_a_limit_that_is_set_meanwhile_holds(broker: Broker) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    for number in range(20):
        senders.send(number, call=None if number % 2 or broker.store.shared else f"n{number}")
    await broker.configure("q", {"max_length": 5})
    told = await senders.answers()
    ids = [id for id in told.values() if isinstance(id, str)]
    assert (await broker.queue("q")).counts.ready == len(ids)
    assert len(ids) in (5, 20), "as many as fit, or all, if they were first"


async def test_with_a_tracer_each_is_sent_by_itself(broker: Broker) -> None:
    await broker.configure("q")
    broker.tracer = object()
    assert not Senders(broker).send(1)
    broker.tracer = None


async def test_those_who_come_by_different_doors_are_told_by_their_own(broker: Broker) -> None:
    await broker.configure("q")
    here, there = Senders(broker), Senders(broker)
    for number in range(10):
        (here if number % 3 else there).send(number)
    assert {*(await here.answers()), *(await there.answers())} == set(range(10))
    assert set(there.told) == {0, 3, 6, 9}
    assert sorted(map(int, await bodies(broker))) == list(range(10))


async def test_each_kind_of_body_keeps_its_kind(broker: Broker) -> None:
    await broker.configure("q")
    senders = Senders(broker)
    kinds = [JSON if number % 2 else "application/octet-stream" for number in range(10)]
    for number, kind in enumerate(kinds):
        senders.send(number, kind=kind)
    told = await senders.answers()
    for number, kind in enumerate(kinds):
        found = (await broker.get("q", str(told[number]))).message
        assert (found.body, found.content_type) == (str(number).encode(), kind)
