"""Everything a store holds, copied to any other: the same items come out again, and work goes on where it was."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from miniq.batch import StageName
from miniq.broker import Broker
from miniq.errors import InvalidRequest, StoreError
from miniq.ids import IdSource
from miniq.message import SECOND, DeadLetter, Message, QueueSettings
from miniq.options import Options
from miniq.store import open_store
from miniq.store.arguments import ANY, FREE, Change, NewTime, Once
from miniq.store.contract import Store
from miniq.store.names import STORE, STORE_ID
from miniq.store.transfer import EVENTS, MARK, PORTION, Events, Item, LastId, copy
from tests.clock import START, FrozenClock
from tests.conftest import STORES, store_url
from tests.oracle import Oracle
from tests.store.calls import Maker, claim, commit, drop, put, take, upload

NOW = START + 10 * SECOND
CALL = Once("call", START + 300 * SECOND, "digest")


class Contents:
    """Something of everything, the same for each store that is filled with it."""

    def __init__(self) -> None:
        maker = Maker()
        self.plain = maker.run(100)
        self.called = maker.run(20, priority=5)
        self.late = maker.run(5, delay=3600)
        self.grouped = [
            maker.one(group="g", headers={"a.$b": "1"}, key="k"), maker.one(group="g"), maker.one(group="h")
        ]  # fmt: skip
        self.own = maker.one(recipient="ann", dedup_id="d", expires_at=START + 9 * SECOND)
        self.dead = [replace(maker.one(), queue="dead", dead=DeadLetter("q", "why", 4, START))]
        self.old = Message(
            "00000000-0000-7000-8000-000000000000",
            "dead",
            START,
            START,
            b"{}",
            group="g",
            dead=DeadLetter("q", "x", 3, START),
        )

    async def fill(self, store: Store) -> None:
        await store.save_queue("q", QueueSettings(history="full", max_receives=3, dead_letter_queue="dead"))
        await store.save_queue("dead", QueueSettings())
        await store.save_queue("empty", QueueSettings(delay=5.0))
        await store.save_record("key", "one", b"\x00secret")
        await put(store, self.plain, keep="full")
        await put(store, self.called, keep="full", call=CALL)
        await put(store, self.late)
        await put(store, self.grouped)
        await put(store, [self.own])
        await take(store, limit=10, token="over", until=START + SECOND, keep="full", consumer="bob")
        held = await take(store, limit=15, token="held", until=NOW + 60 * SECOND, keep="full")
        await drop(store, [(one.message.id, "held") for one in held[:3]], keep="full")
        back = [(one.message.id, "held") for one in held[3:6]]
        await store.messages.reschedule("q", back, NewTime(START, release=True), Change(START, "full", "released"))
        await put(store, [self.old, *self.dead])
        # An older message comes into a group that has a head: it waits.
        moves = [((self.old.id, FREE), replace(self.old, queue="q"))]
        await store.messages.move("dead", moves, Change(START, event="redriven"), "events")


async def fill(store: Store) -> None:
    await Contents().fill(store)


async def items(store: Store) -> list[str]:
    """All that a store dumps, in an order that does not depend on it; events one by one."""
    found: list[Any] = []
    async for portion in store.dump():
        found += portion
    plain: list[Any] = []
    for item in found:
        if hasattr(item, "events"):
            plain += enumerate(item.events, item.offset)
        else:
            plain.append(item)
    return sorted(map(repr, plain))


@pytest.fixture
async def fresh(tmp_path: Path) -> AsyncIterator[Callable[[str], Any]]:
    """Opens new stores by kind."""
    async with AsyncExitStack() as stack:

        async def opened(kind: str, name: str = "fresh") -> Store:
            store = open_store(store_url(kind, tmp_path / f"{name}-{kind}"))
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield opened


@pytest.mark.parametrize("kind", STORES)
async def test_a_copy_is_the_same_and_goes_on_in_the_same_way(
    kind: str, fresh: Callable[..., Any], tmp_path: Path
) -> None:
    oracle, filled, contents = Oracle(), await fresh(kind, "filled"), Contents()
    await contents.fill(oracle)
    await contents.fill(filled)
    assert await items(filled) == await items(oracle)
    middle, target = Oracle(), await fresh(kind)
    await copy(filled, middle, now=NOW)
    copied = await copy(middle, target, now=NOW)
    assert await items(target) == await items(middle) == await items(filled)
    assert copied.messages == 128
    assert await target.last_id() == await oracle.last_id()
    if kind != "memory":
        await target.close()
        target = await fresh(kind)
    for consumer in (None, "ann"):
        for token in map(str, range(20)):
            asked = {"limit": 9, "now": NOW, "until": NOW + SECOND, "consumer": consumer, "keep": "events"}
            assert await take(target, token=token, **asked) == await take(oracle, token=token, **asked)
    done = [
        await drop(store, [(one.message.id, ANY) for one in oracle.messages.of_token("held")], now=NOW, keep="events")
        for store in (target, oracle)
    ]
    assert done[0] == done[1] == ["done"] * 9
    for queue in ("q", "dead", "empty"):
        counts = [await store.messages.counts(queue, NOW) for store in (target, oracle)]
        assert replace(counts[0], oldest=0) == replace(counts[1], oldest=0)
    again = [Maker().one(dedup_id="d", recipient="ann")]
    assert await put(target, again) == await put(oracle, again)
    assert await put(target, again, call=CALL) == [message.id for message in contents.called]
    assert await items(target) == await items(oracle)


async def test_a_history_goes_on_at_its_offset(store: Store) -> None:
    source = Oracle()
    await fill(source)
    last = (await source.history.span()).last
    await source.history.trim(last)
    await copy(source, store, now=NOW)
    await put(store, Maker().run(2), keep="events")
    page = await store.history.read(0, 10)
    assert [record.offset for record in page.records] == [last + 1, last + 2]


async def test_a_store_that_is_not_empty_is_refused_and_left_alone(store: Store) -> None:
    source = Oracle()
    await fill(source)
    await store.save_queue("default", QueueSettings())
    await store.save_queue("mine", QueueSettings())
    before = await items(store)
    with pytest.raises(StoreError, match="to: the target is not empty: it holds a queue 'mine'"):
        await copy(source, store, now=NOW)
    assert await items(store) == before
    assert not await store.records(MARK)


@pytest.mark.parametrize("kind", [kind for kind in STORES if kind != "memory"])
async def test_a_copy_that_was_cut_off_is_refused_by_brokers_and_by_migrate(
    kind: str, clock: FrozenClock, tmp_path: Path
) -> None:
    url = store_url(kind, tmp_path / "target")

    class CutOff(Oracle):
        async def dump(self) -> AsyncIterator[list[Item]]:
            async for portion in super().dump():
                yield portion[: len(portion) // 2]
                raise KeyboardInterrupt

    source = CutOff()
    await fill(source)
    target = open_store(url)
    await target.open()
    with pytest.raises(KeyboardInterrupt):
        await copy(source, target, now=NOW)
    with pytest.raises(StoreError, match="to: this store was left incomplete by a `miniq migrate`"):
        await copy(source, target, now=NOW)
    await target.close()
    with pytest.raises(StoreError, match="store: this store was left incomplete"):
        async with Broker(open_store(url), Options(upkeep_interval=0), clock):
            pass


async def test_a_source_that_changes_meanwhile_is_noticed(store: Store) -> None:
    class Busy(Oracle):
        async def dump(self) -> AsyncIterator[list[Item]]:
            async for portion in super().dump():
                yield portion
            await put(self, [Maker().one()])

    source = Busy()
    await fill(source)
    with pytest.raises(StoreError, match="the source changed meanwhile"):
        await copy(source, store, now=NOW)
    assert await store.records(MARK)


async def test_a_send_during_the_copy_is_told_as_a_change_of_the_source(store: Store) -> None:
    sent = [Message(IdSource().run(1, NOW)[0], "q", NOW, NOW, b"{}")]

    class Busy(Oracle):
        async def dump(self) -> AsyncIterator[list[Item]]:
            last = LastId(await self.last_id())  # which is read before the messages
            if sent:
                await put(self, [sent.pop()])
            async for portion in super().dump():
                yield [last if isinstance(item, LastId) else item for item in portion]

    source = Busy()
    await fill(source)
    with pytest.raises(StoreError, match="the source changed meanwhile"):
        await copy(source, store, now=NOW)


async def test_a_portion_of_a_copy_has_a_bounded_number_of_messages_and_events(store: Store) -> None:
    await store.save_queue("q", QueueSettings())
    maker = Maker()
    for _ in range(30):
        await put(store, maker.run(100), keep="events")

    def size(item: Item) -> int:
        return len(item.events) if isinstance(item, Events) else 1

    sizes = [sum(map(size, portion)) async for portion in store.dump()]
    assert sum(sizes) > 6000
    assert max(sizes) <= PORTION + EVENTS


async def test_a_copy_that_differs_is_noticed(store: Store) -> None:
    class Lossy(Oracle):
        async def load(self, items: Any, now: int) -> None:
            await super().load(items[:-1], now)

    await fill(store)
    with pytest.raises(StoreError, match=r"the copy is not the same as the source: \d+ instead of"):
        await copy(store, Lossy(), now=NOW)


@pytest.mark.parametrize("kind", ["memory", "rocksdb", "mongodb"])
async def test_readers_of_claims_go_on_where_they_were_unless_one_is_held(kind: str, fresh: Callable[..., Any]) -> None:
    source = await fresh(kind, "source")
    await source.save_queue("q", QueueSettings())
    await put(source, Maker().run(10))
    await source.claims.open("q", "readers", "made with it")
    await source.add_record(STORE, STORE_ID, b"source")
    asked: dict[str, Any] = {"group": "readers", "limit": 5, "now": NOW, "keep_until": NOW}
    await claim(source, **asked)
    with pytest.raises(InvalidRequest, match="group 'readers' holds 1 claim of queue 'q'"):
        await copy(source, await fresh(kind, "held"), now=NOW)
    await claim(source, 1, **asked | {"limit": 0})
    target = await fresh(kind)
    assert await target.add_record(STORE, STORE_ID, b"target") == b"target", "a broker has opened it"
    await copy(source, target, now=NOW)
    assert await target.add_record(STORE, STORE_ID, b"new") == b"source"
    opened = await target.claims.open("q", "readers", "another")
    assert (opened.epoch, opened.acked, opened.last, opened.id) == (2, 1, 1, "made with it")
    following = (await claim(target, 1, **asked)).claim
    assert following is not None
    assert following.messages == 5


@pytest.mark.parametrize("kind", ["memory", "rocksdb", "mongodb"])
async def test_what_was_committed_is_copied_and_known_and_what_was_not_is_refused(
    kind: str, fresh: Callable[..., Any]
) -> None:
    source, target, other = await fresh(kind, "source"), await fresh(kind), await fresh("mongodb", "other")
    await source.save_queue("q", QueueSettings())
    name = StageName("job", "1", "0", "0")
    staged = [Message("", "q", 0, 0, b"%d" % place) for place in range(200)]
    await upload(source, name, 0, staged, now=NOW, until=NOW + SECOND)
    with pytest.raises(InvalidRequest, match="has stages that are not committed yet"):
        await copy(source, await fresh(kind, "refused"), now=NOW)
    ids = iter([IdSource().run(1, NOW)[0]])
    asked: dict[str, Any] = {"now": NOW, "until": NOW + SECOND, "dedup_until": NOW, "keep": "events"}
    await commit(source, "job", "1", [("0", "0")], lambda count: next(ids), **asked)
    for store in (target, other):
        assert (await copy(source, store, now=NOW)).messages == 200
        assert await items(store) == await items(source)
    assert (await commit(target, "job", "1", [("0", "0")], lambda count: next(ids), **asked)).repeated
