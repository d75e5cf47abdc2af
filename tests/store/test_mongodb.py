"""What is the MongoDB store's own: the database it accepts, its indexes, and several processes on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.database import AsyncDatabase

from miniq.errors import InvalidRequest, QueueFull, QueueNotFound, StoreError, StoreFormat, StoreUnavailable
from miniq.message import SECOND, QueueSettings
from miniq.store import open_store
from miniq.store.arguments import ANY, Change, NewTime, Room
from miniq.store.mongodb import MongoStore, queries
from tests import mongod
from tests.clock import START
from tests.serving import free_ports
from tests.store.calls import Maker, drop, find, put, take, take_all
from tests.store.mongodb import opened, two
from tests.store.test_races import Crowd

LATER = START + 3600 * SECOND


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Also after tests that had no database."""
    yield
    mongod.sweep()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return mongod.databases().url(tmp_path)


# What is accepted


async def test_a_database_of_a_later_version_is_refused(url: str, database: AsyncDatabase[dict[str, Any]]) -> None:
    async with opened(url):
        pass
    await database.meta.update_one({"_id": "format"}, {"$set": {"version": 2}})
    with pytest.raises(StoreFormat, match="has format 2, this version of MiniQ knows 1"):
        async with opened(url):
            pass


async def test_a_database_of_another_program_is_refused(url: str, database: AsyncDatabase[dict[str, Any]]) -> None:
    await database.messages.insert_one({"text": "hello"})
    with pytest.raises(StoreFormat, match="is not MiniQ's"):
        async with opened(url):
            pass
    assert await database.messages.count_documents({}) == 1


async def test_brokers_that_start_together_make_one_database() -> None:
    server = mongod.databases().server
    url = f"{server.url}/fresh{random.randrange(10**9)}"
    stores = [MongoStore(url) for _ in range(4)]
    try:
        await asyncio.gather(*[store.open() for store in stores])
        await asyncio.gather(*[store.save_queue("q", QueueSettings()) for store in stores])
        async with AsyncMongoClient[dict[str, Any]](url) as client:
            database = client.get_default_database()
            assert await database.queues.count_documents({}) == 1
            for name, models in queries.INDEXES.items():
                wanted = {model.document["name"] for model in models} | {"_id_"}
                assert set(await database[name].index_information()) == wanted
            await client.drop_database(database.name)
    finally:
        for store in stores:
            await store.close()


async def test_a_standalone_server_is_refused(tmp_path: Path) -> None:
    alone = mongod.Mongod(alone=True)
    try:
        with pytest.raises(StoreError, match=r"is a standalone server.*--replSet NAME") as caught:
            async with opened(alone.url):
                pass
        assert caught.value.code == "store_error"
    finally:
        alone.remove()


async def test_the_rights_that_the_how_to_names_are_enough_and_others_are_refused() -> None:
    guarded = mongod.Mongod(guarded=True)
    try:
        with MongoClient[dict[str, Any]](guarded.url, directConnection=True) as client:
            # Without users, one may be made from the same machine; the next ones by him.
            client.admin.command("createUser", "root", pwd="r", roles=["root"])
        with MongoClient[dict[str, Any]](guarded.url, username="root", password="r") as client:
            for name, role in (("miniq", "readWrite"), ("reader", "read")):
                client.queue.command("createUser", name, pwd="p@ss", roles=[{"role": role, "db": "queue"}])
        where = f"127.0.0.1:{guarded.port}/queue"
        async with two(f"mongodb://miniq:p%40ss@{where}", "q") as (one, other):
            heard = asyncio.Event()
            other.on_ready = lambda queue, recipient, count: heard.set()
            while not heard.is_set():
                await put(one, [Maker().one()])
                await asyncio.sleep(0.05)
            assert len(await take(other)) == 1
        for user in ("reader:p%40ss@", "miniq:wrong@", ""):
            with pytest.raises(StoreError, match="the database refuses this user") as caught:
                async with opened(f"mongodb://{user}{where}"):
                    pass
            assert "p@ss" not in caught.value.text
            assert "wrong" not in caught.value.text
    finally:
        guarded.remove()


async def test_a_server_that_is_not_there_is_named_and_its_password_is_not() -> None:
    [port] = free_ports(1)
    with pytest.raises(StoreUnavailable) as caught:
        async with opened(f"mongodb://user:secret@127.0.0.1:{port}/x?serverSelectionTimeoutMS=200"):
            pass
    assert f"127.0.0.1:{port}" in caught.value.text
    assert "secret" not in caught.value.text
    assert "Topology" not in caught.value.text


@pytest.mark.parametrize("bad", ["mongodb://", "mongodb://h:notaport/x", "mongodb://h/x?tls=perhaps", "mongodb://h/$x"])
async def test_a_wrong_url_is_refused_with_a_reason(bad: str) -> None:
    with pytest.raises(InvalidRequest, match="invalid MongoDB URL") as caught:
        async with opened(bad):
            pass
    assert caught.value.field == "store"


async def test_a_backup_is_mongodumps_work(url: str, tmp_path: Path) -> None:
    async with opened(url) as store:
        with pytest.raises(InvalidRequest, match="mongodump"):
            await store.backup(str(tmp_path / "copy"))


# Several processes


async def test_an_arrival_is_told_to_others(url: str) -> None:
    async with two(url, "q") as (one, other):
        heard: asyncio.Queue[tuple[str, str | None]] = asyncio.Queue()
        other.on_ready = lambda queue, recipient, count: heard.put_nowait((queue, recipient))
        changed = asyncio.Event()
        other.on_change = changed.set
        while heard.empty():  # the stream is there a moment after the store is open
            await put(one, [Maker().one()])
            await asyncio.sleep(0.05)
        assert await heard.get() == ("q", None)
        await put(one, [Maker().one(recipient="ann")])
        while await asyncio.wait_for(heard.get(), 5) != ("q", "ann"):
            pass
        await one.save_queue("r", QueueSettings())
        await asyncio.wait_for(changed.wait(), 5)
        assert await other.revision() == await one.revision() > 0


async def test_a_queue_that_was_emptied_elsewhere_is_empty_here(url: str) -> None:
    async with two(url, "q") as (one, other):
        maker = Maker()
        old = maker.run(3)
        await put(other, old)
        assert len(await take(other)) == 1
        assert await one.messages.clear("q", Change(START)) == 3
        assert await take(other) == []
        assert await drop(other, [(old[0].id, ANY)]) == ["missing"]
        assert await find(other, old[0].id) is None
        assert await other.messages.held("t") == []
        await put(other, maker.run(2))
        assert (await one.messages.counts("q", START)).total == 2
        assert len(await take_all(other)) == 2


async def test_a_queue_that_was_deleted_elsewhere_is_gone_here(url: str) -> None:
    async with two(url, "q") as (one, other):
        maker = Maker()
        await put(other, [maker.one(dedup_id="d")])
        assert await one.delete_queue("q")
        for call in (
            put(other, [maker.one()]),
            take(other),
            drop(other, [("x", ANY)]),
            other.messages.counts("q", START),
            other.messages.reschedule("q", [("x", ANY)], NewTime(START, release=True), Change(START)),
        ):
            with pytest.raises(QueueNotFound):
                await call
        await one.save_queue("q", QueueSettings())
        again = maker.one(dedup_id="d")
        assert await put(other, [again]) == [again.id]
        assert (await other.messages.counts("q", START)).total == 1


async def test_senders_at_two_brokers_do_not_overfill_a_queue(url: str) -> None:
    async with two(url, "q") as stores:
        maker = Maker()

        async def send(store: MongoStore, room: int) -> int:
            try:
                return len(await put(store, maker.run(3), room=Room(room, 0)))
            except QueueFull:
                return 0

        # Everybody has sent before: what each has to make once does not keep them apart any more.
        await asyncio.gather(*[put(store, [maker.one()]) for store in stores * 6])
        for room in (20, 30, 40):
            before = (await stores[0].messages.counts("q", START)).total
            sent = await asyncio.gather(*[send(store, room) for store in stores * 6])
            assert sum(sent) == (room - before) // 3 * 3
            assert (await stores[0].messages.counts("q", START)).total == before + sum(sent) <= room


async def test_the_same_send_at_two_brokers_is_made_once(url: str) -> None:
    async with two(url, "q") as stores:
        maker = Maker()
        answers = await asyncio.gather(*[put(store, [maker.one(dedup_id="d")]) for store in stores * 8])
        assert len({id for [id] in answers}) == 1
        assert (await stores[0].messages.counts("q", START)).total == 1


class Turns:
    """A store whose calls go to several in turn."""

    def __init__(self, stores: tuple[MongoStore, ...]) -> None:
        self._stores = stores
        self._turn = 0

    def __getattr__(self, name: str) -> Any:
        self._turn += 1
        return getattr(self._stores[self._turn % len(self._stores)], name)


@pytest.mark.parametrize("seed", range(3))
async def test_callers_at_two_brokers_lose_nothing_and_share_nothing(url: str, seed: int) -> None:
    async with two(url, "q", "dead") as stores:
        crowd = Crowd(Turns(stores), seed)  # type: ignore[arg-type]
        await asyncio.wait_for(asyncio.gather(*[crowd.caller(name, 30) for name in range(10)]), 120)
        found: set[str] = set()
        for queue in ("q", "dead"):
            for consumer in ("ann", "bob", "cy") * 50:
                got = await take(stores[0], queue, limit=50, now=LATER, until=LATER + SECOND, consumer=consumer)
                ids = [stored.message.id for stored in got]
                assert not found & set(ids)
                found |= set(ids)
                if ids:
                    assert await drop(stores[1], [(id, "t") for id in ids], queue, now=LATER) == ["done"] * len(ids)
            counts = await stores[0].messages.counts(queue, LATER)
            assert (counts.total, counts.bytes) == (0, 0)
        assert found == set(crowd.where)


async def test_offsets_have_no_gaps_whichever_broker_writes_and_reads(url: str) -> None:
    async with two(url, "q") as stores:
        maker = Maker()

        async def work(store: MongoStore) -> None:
            await put(store, maker.run(3), keep="events")
            got = await take(store, limit=2, keep="events", token=f"t{random.random()}")
            await drop(store, [(one.message.id, one.receipt or "") for one in got], keep="events")
            await store.history.read(0, 1000)

        await asyncio.gather(*[work(store) for store in stores * 8])
        pages = [await store.history.read(0, 1000) for store in stores]
        assert pages[0] == pages[1]
        records = pages[0].records
        assert [record.offset for record in records] == list(range(1, len(records) + 1))
        seen: dict[str, list[str]] = {}
        for record in records:
            seen.setdefault(record.event.id, []).append(record.event.event)
        assert all(["sent", "received", "acked"][: len(story)] == story for story in seen.values())
        assert len(records) >= 16 * 3


# Upkeep


async def test_counters_of_processes_that_are_gone_are_added_up(
    url: str, database: AsyncDatabase[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(queries.SLOTS[1]["$match"], "slots", {"$gt": 2})
    maker = Maker()
    last = ""
    for round in range(4):
        async with opened(url, *(["q"] if round == 0 else [])) as store:
            [last] = await put(store, [maker.one()])
            assert await database.tallies.count_documents({}) == round + 1
    async with opened(url) as store:
        await store.tidy(START, 10)
        assert await database.tallies.count_documents({}) == 1
        assert (await store.messages.counts("q", START)).total == 4
        assert await store.last_id() == last
        await store.delete_queue("q")
        assert await store.last_id() == last


async def test_what_was_in_an_emptied_queue_is_cleared_away(url: str, database: AsyncDatabase[dict[str, Any]]) -> None:
    async with opened(url, "q", "r") as store:
        maker = Maker()
        await put(store, maker.run(20))
        await put(store, [maker.one(group="g"), maker.one(group="g")])
        await store.messages.clear("q", Change(START))
        maker.queue = "r"
        await put(store, maker.run(5))
        removed = 0
        for _ in range(6):
            done = await store.tidy(START, 5)
            assert done <= 5
            removed += done
        assert removed == 23
        assert await database.messages.count_documents({}) == 5
        assert await database.groups.count_documents({}) == 0
        assert (await store.messages.counts("r", START)).total == 5


async def test_many_that_fall_due_at_once_come_in_order(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniq.store.mongodb.upkeep.AT_ONCE", 7)
    async with opened(url, "q") as store:
        maker = Maker()
        late = maker.run(30, delay=5)
        await put(store, late)
        now = maker.run(3)
        await put(store, now)
        due = START + 5 * SECOND
        assert await take_all(store, limit=4, now=due, until=LATER) == [one.id for one in (*late, *now)]


async def test_a_store_is_found_by_its_url(url: str) -> None:
    store = open_store(url)
    assert isinstance(store, MongoStore)
    await store.open()
    await store.check()
    await store.close()
    await store.close()
