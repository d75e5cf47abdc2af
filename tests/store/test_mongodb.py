"""What is the MongoDB store's own: the database it accepts, its indexes, and several processes on it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bson import ObjectId
from pymongo import AsyncMongoClient, MongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import ConfigurationError, NetworkTimeout

from miniq.broker import Broker
from miniq.errors import (
    IdempotencyMismatch,
    InvalidRequest,
    QueueFull,
    QueueNotFound,
    StoreError,
    StoreFormat,
    StoreUnavailable,
    TooLarge,
)
from miniq.message import SECOND, History, Message, PlainDrafts, QueueSettings
from miniq.options import Options
from miniq.store import open_store
from miniq.store.arguments import ANY, Change, Edit, NewTime, Once, Room
from miniq.store.mongodb import MongoStore, connection, queries, signals, writes
from miniq.store.mongodb.blocks import block_of
from miniq.store.mongodb.documents import FORMAT
from tests import mongod
from tests.clock import START
from tests.kit import draft
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
    await database.meta.update_one({"_id": "format"}, {"$set": {"version": FORMAT + 1}})
    with pytest.raises(StoreFormat, match=f"has format {FORMAT + 1}, this version of MiniQ knows {FORMAT}"):
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


def test_a_server_that_has_just_been_started_is_unavailable_and_not_misconfigured() -> None:
    error = connection.translate(ConfigurationError("Sessions are not supported by this MongoDB deployment"))
    assert isinstance(error, StoreUnavailable)


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
        assert await other.messages.held("q", "t", START + 30 * SECOND) == []
        await put(other, maker.run(2))
        assert (await one.messages.counts("q", START)).total == 2
        assert len(await take_all(other)) == 2


async def test_a_queue_that_was_deleted_elsewhere_is_gone_here(url: str) -> None:
    async with two(url, "q") as (one, other):
        maker = Maker()
        await put(other, [maker.one(dedup_id="d")])
        assert await one.delete_queue("q", Change(START))
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


async def test_a_broker_that_is_alone_sends_no_hints_until_another_starts(
    url: str, database: AsyncDatabase[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "BEAT", 0.05)
    monkeypatch.setattr(signals, "ALONE", 0.5)
    maker = Maker()
    async with opened(url, "q") as one:
        await asyncio.sleep(0.6)
        await put(one, [maker.one()])
        while await database.signals.count_documents({}) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert await database.signals.count_documents({"ready": {"$ne": []}}) == 0
        async with opened(url) as other:
            heard = asyncio.Event()
            other.on_ready = lambda queue, recipient, count: heard.set()
            async with asyncio.timeout(20):
                while not heard.is_set():
                    await put(one, [maker.one()])
                    await asyncio.sleep(0.02)


@pytest.mark.parametrize("count", [1, 3, 200])
async def test_the_same_named_send_at_two_brokers_is_made_once(url: str, count: int) -> None:
    async with two(url, "q") as stores:
        maker, call = Maker(), Once("c", START + SECOND, "digest")

        def batch() -> list[Message]:
            return [message for start in range(0, count, 100) for message in maker.run(min(100, count - start))]

        answers = await asyncio.gather(*[put(store, batch(), call=call) for store in stores * 8])
        assert len({tuple(ids) for ids in answers}) == 1
        assert (await stores[0].messages.counts("q", START)).total == count
        with pytest.raises(IdempotencyMismatch):
            await put(stores[1], maker.run(2), call=Once("c", START + SECOND, "other"))


@pytest.mark.parametrize("history", ["off", "events"])
async def test_a_named_send_is_remembered_after_its_messages_have_gone_and_then_forgotten(
    url: str, database: AsyncDatabase[dict[str, Any]], history: History
) -> None:
    until = START + 300 * SECOND
    async with two(url, "q") as (one, other):
        maker, call = Maker(), Once("c", until, "digest")
        sent = await put(one, maker.run(3), call=call, keep=history)
        assert await take_all(other) == sent
        assert await drop(other, [(id, "t") for id in sent], keep=history) == ["done"] * 3
        await one.history.read(0, 10)
        await one.tidy(until - 1, 1000)
        assert await put(other, maker.run(3), call=call) == sent
        assert (await one.messages.counts("q", START)).total == 0
        again = await put(other, maker.run(3), call=Once("c", 2 * until, "digest"), now=until)
        assert len(set(again) - set(sent)) == 3
        [call_of] = [found["call"] async for found in database.blocks.find({"call": {"$exists": True}})]
        assert call_of["until"] == 2 * until


async def test_what_remembers_a_named_send_is_removed_when_it_has_expired(
    url: str, database: AsyncDatabase[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writes, "DOUBT", -2)
    until = START + 300 * SECOND
    async with opened(url, "q") as store:
        maker = Maker()
        for count in (1, 2):
            sent = await put(store, maker.run(count), call=Once(f"c{count}", until))
            assert await drop(store, [(id, ANY) for id in sent]) == ["done"] * count
        # Nothing is added, and still the call has a record.
        await put(store, [maker.one(dedup_id="d")])
        await put(store, [maker.one(dedup_id="d")], call=Once("nothing", until))
        blocks = {"_id": {"$type": "string"}, "over": True}
        await store.tidy(until - 1, 1000)
        assert await database.blocks.count_documents(blocks) == 3
        await store.tidy(until, 1000)
        assert await database.blocks.count_documents(blocks) == 0


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


async def test_what_joins_a_group_beside_a_purge_is_delivered_or_gone_and_no_send_fails(url: str) -> None:
    """The number of the queue changes between the note of a member and the transaction that adds it."""
    async with two(url, "q") as stores:
        maker = Maker()

        async def sends(store: MongoStore) -> None:
            for _ in range(15):
                await put(store, [maker.one(group="g")])
                if got := await take(store, token="s"):
                    await drop(store, [(got[0].message.id, "s")])

        async def purges(store: MongoStore) -> None:
            for _ in range(12):
                await store.messages.clear("q", Change(START))
                await asyncio.sleep(0.005)

        await asyncio.wait_for(asyncio.gather(*map(sends, stores * 3), *map(purges, stores)), 60)
        left = (await stores[0].messages.counts("q", LATER)).total
        for _ in range(left):
            (got,) = await take(stores[1], now=LATER, until=LATER + SECOND)
            assert await drop(stores[0], [(got.message.id, "t")], now=LATER) == ["done"]
        assert (await stores[0].messages.counts("q", LATER)).total == 0


async def test_a_write_that_meets_a_conflict_knows_what_it_did_though_others_write_on(url: str) -> None:
    """Of two blocks one was changed by another broker, and the other is changed again right after this write."""
    async with two(url, "q") as (one, other):
        maker = Maker()
        for _ in range(2):
            await put(one, maker.run(2))
        link = one._link
        with link.call() as db:
            found = await db.blocks.find({"count": {"$gt": 0}}, queries.WHOLE).sort("first", 1).to_list()
        first, second = map(block_of, found)
        assert await writes.save(link, [writes.Written(block_of(found[1]), START)]) == {second.id}
        before = writes._written

        async def late(db: Any, names: Any, version: Any) -> set[str]:
            assert len(await take(other, limit=1)) == 1
            return await before(db, names, version)

        writes._written = late
        try:
            assert await writes.save(link, [writes.Written(block, START) for block in (first, second)]) == {first.id}
        finally:
            writes._written = before


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """While it is entered, writes are made as by another process."""

    @contextmanager
    def another_process() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(ObjectId, "_random", lambda: b"other")
            yield

    return another_process


async def test_an_ack_that_met_a_conflict_counts_though_another_broker_then_ended_the_block(
    url: str, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[], AbstractContextManager[None]]
) -> None:
    async with two(url, "q") as (store, other):
        maker = Maker()
        first, second = await put(store, maker.run(2))
        third, _ = await put(store, maker.run(2))
        assert len(await take(store, limit=4, token="t")) == 4
        read, written = writes.read, writes._written

        async def read_early(*args: Any, **more: Any) -> Any:
            monkeypatch.setattr(writes, "read", read)
            found = await read(*args, **more)
            later = NewTime(START + 60 * SECOND)
            with elsewhere():
                assert await other.messages.reschedule("q", [(third, "t")], later, Change(START)) == ["done"]
            return found

        async def look_late(*args: Any) -> Any:
            monkeypatch.setattr(writes, "_written", written)
            with elsewhere():
                assert await drop(other, [(second, "t")]) == ["done"]
            return await written(*args)

        monkeypatch.setattr(writes, "read", read_early)
        monkeypatch.setattr(writes, "_written", look_late)
        assert await drop(store, [(first, "t"), (third, "t")]) == ["done", "done"]
        assert (await store.messages.counts("q", START)).total == 1


async def test_a_send_whose_answer_was_late_is_not_repeated_after_another_broker_acked_it(
    url: str, monkeypatch: pytest.MonkeyPatch, elsewhere: Callable[[], AbstractContextManager[None]]
) -> None:
    async with two(url, "q") as (store, other):
        bulk_write = AsyncCollection.bulk_write

        async def answered_late(self: Any, *args: Any, **more: Any) -> Any:
            monkeypatch.setattr(AsyncCollection, "bulk_write", bulk_write)
            # Without the deadline of the call, which the others know nothing of.
            await asyncio.create_task(bulk_write(self, *args, **more), context=Context())
            await asyncio.create_task(consumed(), context=Context())
            raise NetworkTimeout("no answer")

        async def consumed() -> None:
            with elsewhere():
                [taken] = await take(other, token="t")
                assert await drop(other, [(taken.message.id, "t")]) == ["done"]

        monkeypatch.setattr(AsyncCollection, "bulk_write", answered_late)
        await put(store, Maker().run(1))
        assert (await store.messages.counts("q", START)).total == 0


async def test_a_block_that_other_processes_wrote_is_cleared_away_once_they_know_what_they_did(
    url: str,
    database: AsyncDatabase[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    elsewhere: Callable[[], AbstractContextManager[None]],
) -> None:
    async with opened(url, "q") as store:
        for where in (nullcontext, elsewhere):
            with where():
                [id] = await put(store, Maker().run(1))
            assert await drop(store, [(id, ANY)]) == ["done"]
        ended = {"over": True}
        assert await database.blocks.count_documents(ended) == 1, "that of the other process"
        assert await store.tidy(START, 10) == 1, "there will be something to do"
        assert await database.blocks.count_documents(ended) == 1
        monkeypatch.setattr(writes, "DOUBT", -1)
        assert await store.tidy(START, 10) == 1
        assert await database.blocks.count_documents(ended) == 0
        assert await store.tidy(START, 10) == 0


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


@pytest.fixture
async def abandoned(url: str) -> AsyncIterator[AsyncDatabase[dict[str, Any]]]:
    """A database seen by a broker that stops in the midst of a transaction on all blocks and groups, as if killed."""
    client = AsyncMongoClient[dict[str, Any]](url, appname=connection.APP)
    async with client, client.start_session() as session:

        async def begin() -> None:
            await session.start_transaction()
            for name in ("blocks", "groups", "queues"):
                await client.get_default_database()[name].update_many({}, {"$set": {"touched": 1}}, session=session)

        yield SimpleNamespace(begin=begin)  # type: ignore[misc]


async def test_no_call_waits_for_the_transaction_of_a_broker_that_was_killed(url: str, abandoned: Any) -> None:
    async with opened(url, "q", "dead") as store:
        maker = Maker()
        sent = await put(store, maker.run(3))
        await put(store, [maker.one(group="g")])
        await abandoned.begin()
        # Each of these would hang until the server aborts the transaction, after a minute.
        async with asyncio.timeout(20):
            [first, *_] = await take(store, limit=3)
            assert await drop(store, [(first.message.id, "t")]) == ["done"]
            assert len(await put(store, maker.run(2))) == 2
        assert (await store.messages.counts("q", START)).total == len(sent) + 2


async def test_calls_go_on_though_all_connections_wait_for_an_abandoned_transaction(url: str, abandoned: Any) -> None:
    queues = [f"q{number}" for number in range(4)]
    store = MongoStore(url, connections=2)
    await store.open()
    try:
        for queue in queues:
            await store.save_queue(queue, QueueSettings())
            await put(store, Maker(queue).run(1))
        await abandoned.begin()
        await asyncio.gather(*[put(store, Maker(queue).run(1)) for queue in queues])
    finally:
        await store.close()


@pytest.mark.parametrize("call", ["put", "ack", "release", "move", "edit", "send to a group", "purge", "settings"])
async def test_a_call_goes_on_that_meets_an_abandoned_transaction(url: str, abandoned: Any, call: str) -> None:
    async with opened(url, "q", "dead") as store:
        maker = Maker()
        [id, *_] = await put(store, maker.run(3))
        await put(store, [maker.one(group="g")])
        await abandoned.begin()
        async with asyncio.timeout(20):
            if call == "put":
                await put(store, maker.run(2))
            elif call == "ack":
                assert await drop(store, [(id, ANY)]) == ["done"]
            elif call == "release":
                to = NewTime(START, release=True)
                assert await store.messages.reschedule("q", [(id, ANY)], to, Change(START)) == ["done"]
            elif call == "move":
                dead = Message(id, "dead", START, START, b"1")
                moved = await store.messages.move("q", [((id, ANY), dead)], Change(START, event="dead"), "off")
                assert moved == ["done"]
            elif call == "edit":
                edit = Edit(body=b"2")
                assert await store.messages.edit("q", (id, ANY), edit, Change(START)) == "done"
            elif call == "send to a group":
                await put(store, [maker.one(group="g")])
            elif call == "purge":
                assert await store.messages.clear("q", Change(START)) == 4
            else:
                await store.save_queue("q", QueueSettings(delay=1))


async def test_what_a_cancelled_take_leased_is_found_by_its_caller(url: str) -> None:
    async with opened(url, "q") as store:
        await put(store, Maker().run(30))
        tokens = [f"t{number}" for number in range(20)]
        takes = [asyncio.create_task(take(store, token=token)) for token in tokens]
        await asyncio.sleep(0.003)
        for call in takes:
            call.cancel()
        await asyncio.gather(*takes, return_exceptions=True)
        held = [one for token in tokens for one in await store.messages.held("q", token, START + 30 * SECOND)]
        await take(store, token="last")  # after all that were under way
        assert (await store.messages.counts("q", START)).leased == len(held) + 1


# Upkeep


async def test_the_last_id_is_known_after_its_message_and_its_queue_are_gone(url: str) -> None:
    async with opened(url, "q") as store:
        maker = Maker()
        ids = [id for _ in range(3) for id in await put(store, maker.run(2))]
        assert await store.last_id() == ids[-1]
        assert await drop(store, [(id, ANY) for id in ids]) == ["done"] * 6
        assert await store.last_id() == ids[-1]
        await store.delete_queue("q", Change(START))
        assert await store.last_id() == ids[-1]


async def test_what_was_in_an_emptied_queue_is_cleared_away(url: str, database: AsyncDatabase[dict[str, Any]]) -> None:
    async with opened(url, "q", "r") as store:
        maker = Maker()
        for _ in range(10):
            await put(store, maker.run(20))
        await put(store, [maker.one(group="g"), maker.one(group="g")])
        await store.messages.clear("q", Change(START))
        maker.queue = "r"
        await put(store, maker.run(5))
        removed = 0
        for _ in range(4):
            done = await store.tidy(START, 5)
            assert done <= 5
            removed += done
        assert removed == 13, "12 blocks and a group"
        assert await database.blocks.count_documents({"count": {"$exists": True}}) == 1
        assert await database.groups.count_documents({}) == 0
        assert (await store.messages.counts("r", START)).total == 5


async def test_many_that_fall_due_at_once_come_in_order(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("miniq.store.mongodb.taking.DUE_AT_ONCE", 7)
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


async def test_a_publication_that_is_too_large_for_a_transaction_is_refused_before_it_is_tried(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url, options), options) as broker:
        for number in range(40):
            await broker.topics.subscribe("t", f"q{number}")
        many = [draft(number, group="g") for number in range(251)]

        async def tried(*given: Any, **named: Any) -> None:
            raise AssertionError("there is a transaction")

        with monkeypatch.context() as patch:
            patch.setattr(connection.Link, "transact", tried)
            with pytest.raises(TooLarge, match=r"^messages: 419\d+ bytes in all queues; on MongoDB at most 33554432"):
                await broker.publish("t", PlainDrafts([b"x" * 2**20], "application/octet-stream"))
            with pytest.raises(TooLarge, match=r"^messages: 10040 documents in all queues.* at most 10000 in one call"):
                await broker.publish("t", many)
        assert (await broker.publish("t", many[:5])).queues == 40
        assert {(await broker.queue(f"q{number}")).counts.total for number in range(40)} == {5}
