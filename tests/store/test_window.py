"""The backlog is far larger than what memory holds of it, and nobody can tell: order, age, and bounds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from miniq.message import SECOND, Message, QueueSettings, Stored
from miniq.store.arguments import ANY, FREE, Change, Edit, NewTime, Put, Take
from miniq.store.contract import Store
from miniq.store.embedded import window
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import START
from tests.kit import bodies, leases, send
from tests.oracle import Oracle
from tests.store.calls import BIG, Maker, drop, put, scan, take, take_all
from tests.store.parts import opened, store_in

TINY = {
    "LANE_MESSAGES": 4,
    "TOTAL_MESSAGES": 12,
    "READ_MESSAGES": 2,
    "READ_BYTES": 200,
    "CACHE_BYTES": 300,
    "OWNERS": 2,
}


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window so small that every path through it is taken."""
    for name, value in TINY.items():
        monkeypatch.setattr(window, name, value)


def ids_of(taken: Sequence[Stored]) -> list[str]:
    return [stored.message.id for stored in taken]


def in_memory(store: EmbeddedStore, queue: str = "q") -> int:
    """How many messages without a state of their own the store holds in memory for a queue."""
    shelf = store._core.shelves[queue]
    fresh = sum(block.count for block in shelf.blocks.values() if not any(block.runs))
    back = sum(len(lane.back) for lanes in shelf.tracks.values() for lane in lanes)
    return max(fresh, back) + sum(block.count for block in shelf.arriving.values())


def moved(messages: Sequence[Message], to: str) -> list[tuple[tuple[str, str], Message]]:
    return [
        ((old.id, FREE), Message(old.id, to, old.sent_at, START, old.body, old.content_type, old.priority))
        for old in messages
    ]


async def move(store: EmbeddedStore, messages: Sequence[Message], queue: str, to: str) -> list[str]:
    change = Change(START, event="redriven")
    return list(await store.messages.move(queue, moved(messages, to), change, "off"))


async def test_order_holds_in_a_backlog_far_larger_than_the_window(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        sent: list[Message] = []
        for number in range(60):
            messages = maker.run(number % 7 + 1, priority=(number * 7) % 10)
            await put(store, messages)
            sent += messages
        expected = [message.id for message in sorted(sent, key=lambda message: (-message.priority, message.id))]
        assert await take_all(store, limit=3) == expected


async def test_what_comes_back_keeps_its_place_in_a_large_backlog(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        sent = [id for _ in range(40) for id in await put(store, maker.run(5))]
        first = await take(store, limit=30)
        assert ids_of(first) == sent[:30]
        again = sorted(random.Random(1).sample(sent[:30], 12))
        fences = [(id, "t") for id in again]
        await store.messages.reschedule("q", fences, NewTime(START, release=True), Change(START))
        assert ids_of(await take(store, limit=20, token="u")) == again + sent[30:38]
        later = START + 31 * SECOND
        # The leases of the others ran out, those of the second receive too.
        got = await take(store, limit=500, now=later, until=later + SECOND, token="v")
        assert ids_of(got) == sent
        assert {stored.receives for stored in got if stored.message.id in again} == {3}


async def test_delayed_messages_take_their_place_by_age_when_they_are_due(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        sent: list[str] = []
        for number in range(40):
            sent += await put(store, maker.run(3, delay=5 if number % 3 == 0 else 0))
        early = await take_all(store, limit=4)
        assert len(early) == 78
        assert early == [id for id in sent if id in set(early)]
        later = START + 5 * SECOND
        assert await take_all(store, limit=4, now=later, token="u") == [id for id in sent if id not in set(early)]


async def test_recipients_and_anybody_are_merged_by_age(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        for number in range(90):
            await put(store, [maker.one(recipient=[None, "ann", "bob"][number % 3])])
        page = await scan(store)
        sent = sorted((stored.message.id, stored.message.recipient) for stored in page.messages)
        bob = await take_all(store, limit=4, consumer="bob")
        assert bob == [id for id, recipient in sent if recipient in (None, "bob")]
        assert await take_all(store, limit=4, consumer="ann") == [id for id, who in sent if who == "ann"]


async def test_more_recipients_than_lanes_are_kept_each_get_everything(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        names = [f"c{number}" for number in range(8)]
        expected: dict[str, list[str]] = {name: [] for name in names}
        for _ in range(6):
            for name in names:
                expected[name] += await put(store, [maker.one(recipient=name)])
        got: dict[str, list[str]] = {name: [] for name in names}
        for _ in range(6):
            for name in names:
                got[name] += ids_of(await take(store, limit=1, consumer=name))
        assert got == expected


async def test_many_consumers_who_ask_in_vain_cost_nothing(url: str, tiny: None) -> None:
    """Nor if each asks in another queue."""
    maker = Maker()
    queues = ["q", "r", "s", "t"]
    async with store_in(url, *queues) as store:
        for number in range(50):
            assert await take(store, queues[number % 4], consumer=f"c{number}") == []
        assert sum(len(store._core.shelves[queue].tracks) - 1 for queue in queues) == TINY["OWNERS"]
        sent = await put(store, [maker.one(recipient="c7")])
        assert await take_all(store, consumer="c7") == sent


async def test_groups_do_not_stall_the_messages_behind_them(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        grouped = [(await put(store, [maker.one(group="g")]))[0] for _ in range(40)]
        plain = await put(store, maker.run(20))
        assert await take_all(store, limit=3) == [grouped[0], *plain]
        order = [grouped[0]]
        while len(order) < len(grouped):
            assert await drop(store, [(order[-1], "t")]) == ["done"]
            order += ids_of(await take(store, limit=10))
        assert order == grouped


async def test_redrive_of_many_old_messages_comes_in_order_of_age_and_memory_stays_bounded(
    url: str, tiny: None
) -> None:
    maker = Maker("dead")
    async with store_in(url, "dead", "q") as store:
        old = [message for _ in range(50) for message in maker.run(6)]
        for start in range(0, len(old), 6):
            await put(store, old[start : start + 6])
        maker.queue = "q"
        young = [message for _ in range(20) for message in maker.run(5)]
        for start in range(0, len(young), 5):
            await put(store, young[start : start + 5])
        # The cursor of the queue stands behind all the old ids.
        first = await take(store, limit=7)
        assert ids_of(first) == [message.id for message in young[:7]]
        shuffled = random.Random(2).sample(old, len(old))
        most = 0
        for start in range(0, len(shuffled), 4):
            assert set(await move(store, shuffled[start : start + 4], "dead", "q")) == {"done"}
            most = max(most, in_memory(store))
        assert most <= 40
        expected = [message.id for message in old + young[7:]]
        got: list[str] = []
        while some := await take(store, limit=5, token="u"):
            got += ids_of(some)
            assert in_memory(store) <= 60
        assert got == expected
        assert (await store.messages.counts("dead", START)).total == 0


async def test_edited_message_is_not_lost_when_the_window_is_left_for_the_disk(
    url: str, tiny: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "LANE_MESSAGES", 12)
    maker = Maker("dead")
    chance = random.Random(5)
    async with store_in(url, "dead", "q") as store:
        for _ in range(12):
            maker.queue = "dead"
            old = maker.run(20)
            await put(store, old)
            maker.queue = "q"
            await put(store, maker.run(1))
            await take(store)
            # The last ones first: they are let in out of turn, until there are too many of them.
            await move(store, chance.sample(old[14:], 6), "dead", "q")
            for message in chance.sample(old[14:], 5):
                edit = Edit(body=b'"edited"')
                assert await store.messages.edit("q", (message.id, FREE), edit, Change(START)) == "done"
            await move(store, chance.sample(old[:14], 14), "dead", "q")
            assert await take_all(store, limit=3, token="u") == [message.id for message in old]


async def test_redrive_while_others_receive_loses_and_doubles_nothing(url: str, tiny: None) -> None:
    maker = Maker("dead")
    async with store_in(url, "dead", "q") as store:
        old = [message for _ in range(30) for message in maker.run(5)]
        for start in range(0, len(old), 5):
            await put(store, old[start : start + 5])
        maker.queue = "q"
        young = [message for _ in range(30) for message in maker.run(5)]
        got: list[str] = []

        async def redrive() -> None:
            for start in range(0, len(old), 3):
                await move(store, old[start : start + 3], "dead", "q")

        async def sender() -> None:
            for start in range(0, len(young), 5):
                await put(store, young[start : start + 5])

        async def receiver(name: str) -> None:
            idle = 0
            while idle < 50:
                taken = await take(store, limit=2, token=f"{name}{len(got)}")
                idle = 0 if taken else idle + 1
                got.extend(ids_of(taken))
                await drop(store, [(stored.message.id, stored.receipt or "") for stored in taken])
                await asyncio.sleep(0)

        await asyncio.gather(redrive(), sender(), *[receiver(f"r{number}-") for number in range(4)])
        got += await take_all(store, token="end")
        assert len(got) == len(set(got))
        assert set(got) == {message.id for message in old + young}


async def test_edited_message_keeps_its_place_while_more_waits_on_disk(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        sent = [id for _ in range(6) for id in await put(store, maker.run(10))]
        assert ids_of(await take(store, limit=2)) == sent[:2]
        for id in (sent[5], sent[14], sent[33]):
            assert await store.messages.edit("q", (id, FREE), Edit(body=b'"edited"'), Change(START)) == "done"
        assert await take_all(store, limit=3, token="u") == sent[2:]


async def test_raised_priority_brings_a_message_forward_from_deep_in_the_backlog(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        sent = [id for _ in range(30) for id in await put(store, maker.run(5))]
        await take(store, limit=1)
        for id, priority in ((sent[77], 5), (sent[120], 9), (sent[40], 5)):
            await store.messages.edit("q", (id, FREE), Edit(priority=priority), Change(START))
        rest = [id for id in sent[1:] if id not in (sent[77], sent[120], sent[40])]
        assert await take_all(store, limit=4, token="u") == [sent[120], sent[40], sent[77], *rest]


async def test_memory_and_its_accounts_are_empty_when_the_queue_is(url: str, tiny: None) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        for number in range(30):
            await put(store, maker.run(4, priority=number % 3))
            await put(store, [maker.one(group="g"), maker.one(recipient="ann")])
        while got := await take(store, limit=5, consumer="ann"):
            assert await drop(store, [(id, "t") for id in ids_of(got)]) == ["done"] * len(got)
        shelf = store._core.shelves["q"]
        assert (shelf.count, shelf.size, shelf.leased, shelf.delayed) == (0, 0, 0, 0)
        assert (shelf.blocks, shelf.arriving, shelf.leaving, shelf.tokens, shelf.followers) == ({}, {}, set(), {}, {})
        await store.messages.counts("q", START)
        assert (store._core.window._messages, store._core.window._bytes) == (0, 0)


@pytest.mark.parametrize("how", ["purge", "delete"])
async def test_purged_or_deleted_queue_gives_its_share_of_the_window_back(url: str, how: str) -> None:
    async with opened(url) as broker:
        store = broker.store
        assert isinstance(store, EmbeddedStore)
        for _ in range(3):
            await send(broker, "q", *range(500))
            await send(broker, "q", "g", "g", group="g")
            await broker.receive("q", max=30)
            await send(broker, "q", "later", delay=5)
            if how == "purge":
                await broker.purge("q")
            else:
                await broker.delete_queue("q")
        assert (store._core.window._messages, store._core.window._bytes) == (0, 0)


async def test_large_backlog_stays_on_disk(url: str) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        for _ in range(60):
            await put(store, [message for _ in range(8) for message in maker.run(125)])
        shelf = store._core.shelves["q"]
        assert shelf.count == 60_000
        held = sum(block.count for block in shelf.blocks.values())
        assert held <= window.LANE_MESSAGES + 128
        # Receiving reads on, a part at a time.
        got = await take(store, limit=1000)
        for _ in range(9):
            await drop(store, [(id, "t") for id in ids_of(got)])
            got = await take(store, limit=1000)
            held = sum(block.count for block in shelf.blocks.values())
            assert held <= window.LANE_MESSAGES + 1000 + 256


@pytest.mark.parametrize("seed", range(8))
async def test_tiny_window_answers_as_the_oracle_does(url: str, tiny: None, seed: int) -> None:
    """Everything mixed on a large backlog, each answer compared with the store that keeps all in memory."""
    chance = random.Random(seed)
    makers = {queue: Maker(queue) for queue in ("q", "dead")}
    makers["dead"]._ids = makers["q"]._ids
    now = START
    known: dict[str, list[str]] = {"q": [], "dead": []}
    oracle = Oracle()
    engine, _, path = url.partition(":")
    store: Store = EmbeddedStore(engine, path)
    await store.open()

    async def both(method: str, *args: Any) -> Any:
        expected = await getattr(oracle.messages, method)(*args)
        assert await getattr(store.messages, method)(*args) == expected, method
        return expected

    for queue in known:
        for one in (oracle, store):
            await one.save_queue(queue, QueueSettings())
    for step in range(250):
        queue = chance.choice(["q", "q", "dead"])
        other = "dead" if queue == "q" else "q"
        maker = makers[queue]
        maker.now = now
        picked = [chance.choice(known[queue]) for _ in range(chance.randint(1, 6))] if known[queue] else []
        kind = chance.randrange(14)
        if kind < 4:
            fields: dict[str, Any] = {"priority": chance.choice([0, 0, 0, 5])}
            if kind == 3:
                fields |= chance.choice([{"group": "g"}, {"group": "h"}, {"recipient": "ann"}, {"recipient": "bob"}])
                messages = [maker.one(**fields) for _ in range(chance.randint(1, 3))]
            else:
                messages = maker.run(chance.randint(1, 25), delay=chance.choice([0, 0, 0, 4]), **fields)
            known[queue] += await both("put", messages, Put(now=now, dedup_until=now, keep="events"))
        elif kind < 8:
            token = f"t{step}"
            asked = Take(
                limit=chance.randint(1, 12), max_bytes=chance.choice([BIG, BIG, 20]), now=now,
                until=now + chance.choice([0, 2, 30]) * SECOND, token=token,
                consumer=chance.choice([None, "ann", "bob", "cy", "di"]), keep="events",
            )  # fmt: skip
            taken = await both("take", queue, asked)
            some = [(stored.message.id, token) for stored in taken if chance.random() < 0.6]
            await both("drop", queue, some, Change(now, "events", "acked"))
        elif kind == 8:
            fences = [(id, ANY) for id in dict.fromkeys(picked)]
            at = now + chance.choice([0, 3]) * SECOND
            await both("reschedule", queue, fences, NewTime(at, release=True), Change(now, event="released"))
        elif kind == 9 and picked:
            edit = Edit(priority=chance.choice([None, 0, 5]), body=chance.choice([None, b'"a longer body"']))
            await both("edit", queue, (picked[0], chance.choice([FREE, ANY])), edit, Change(now, "events"))
        elif kind < 12:
            found = (await oracle.messages.find(queue, picked)).values()
            moves = [
                ((s.message.id, FREE), Message(s.message.id, other, s.message.sent_at, now, s.message.body,
                 s.message.content_type, s.message.priority, None, None, None, s.message.recipient, s.message.group))
                for s in found
            ]  # fmt: skip
            done = await both("move", queue, moves, Change(now, "events", "redriven"), "events")
            known[other] += [fence[0] for (fence, _), end in zip(moves, done, strict=True) if end == "done"]
        elif kind == 12:
            now += chance.choice([1, 3, 40]) * SECOND
        else:
            await store.close()
            store = EmbeddedStore(engine, path)
            await store.open()
        for name in known:
            counted = [await one.messages.counts(name, now) for one in (oracle, store)]
            assert len({(c.ready, c.delayed, c.leased, c.bytes) for c in counted}) == 1
            await both("next_visible", name, now)
    now += 3600 * SECOND
    for queue in known:
        rest = Take(limit=9, max_bytes=BIG, now=now, until=now + SECOND, token="end", consumer="ann")
        while await both("take", queue, rest):
            held = [(stored.message.id, "end") for stored in await both("held", queue, "end", rest.until)]
            await both("drop", queue, held, Change(now, event="acked"))
    await store.close()


async def test_long_poll_is_woken_by_what_was_left_on_disk(url: str, tiny: None) -> None:
    async with opened(url) as broker:
        await send(broker, "q", *range(40))
        seen: list[int] = []

        async def consumer() -> None:
            while len(seen) < 41:
                got = await broker.receive("q", wait=20)
                seen.extend(bodies(got))
                await broker.ack("q", leases(got))

        tasks = [asyncio.create_task(consumer()) for _ in range(3)]
        while len(seen) < 40:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await send(broker, "q", 40)
        await asyncio.wait_for(asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED), 5)
        assert sorted(seen) == list(range(41))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
