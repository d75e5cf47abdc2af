"""Upkeep of several brokers on one MongoDB: they take turns, and leave alone what another broker is just doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from miniq.message import SECOND
from miniq.store.mongodb import MongoStore, connection, groups, upkeep
from tests import mongod
from tests.clock import START
from tests.store.calls import Maker, drop, put, take
from tests.store.mongodb import two

Database = AsyncDatabase[dict[str, Any]]
LATER = START + 3600 * SECOND


class Changes(CommandListener):
    """What the commands of all stores change, without records of turns and hints."""

    def __init__(self) -> None:
        self.made: list[tuple[str, str]] = []

    def started(self, event: CommandStartedEvent) -> None:
        collection = event.command.get(event.command_name)
        if event.command_name in ("insert", "update", "delete") and collection not in ("meta", "signals"):
            self.made.append((event.command_name, collection))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    found = Changes()
    monkeypatch.setattr(connection, "AsyncMongoClient", partial(AsyncMongoClient, event_listeners=[found]))
    return found.made


@pytest.fixture
def url(tmp_path: Path) -> str:
    return mongod.databases().url(tmp_path)


@pytest.fixture
async def stores(url: str, changes: list[tuple[str, str]]) -> AsyncIterator[tuple[MongoStore, MongoStore]]:
    """Two stores, as two brokers have."""
    async with two(url, "q") as both:
        yield both


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        yield client.get_default_database()


async def test_upkeep_chooses_no_heads_for_an_ack_that_is_running_but_for_one_whose_broker_died(
    stores: tuple[MongoStore, MongoStore], changes: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    maker = Maker()
    sent = await put(one, [maker.one(group=f"g{place}") for place in range(10)])
    following = await put(one, [maker.one(group=f"g{place}") for place in range(10)])
    await take(one, limit=10)
    choose, reached = groups._choose_some, asyncio.Event()

    async def suspended(link: Any, *rest: Any) -> list[str]:
        if link is one._link:
            reached.set()
            await asyncio.Event().wait()
        return await choose(link, *rest)

    monkeypatch.setattr(groups, "_choose_some", suspended)
    ack = asyncio.create_task(drop(one, [(id, "t") for id in sent]))
    await reached.wait()
    changes.clear()
    assert await other.tidy(START, 1000) == 1, "there may be something to do"
    assert await other.tidy(START + groups.GRACE - 1, 1000) == 1
    assert changes == []
    ack.cancel()
    await asyncio.gather(ack, return_exceptions=True)
    assert await take(other, limit=100, token="u") == []
    await other.tidy(START + groups.GRACE, 1000)
    assert [one.message.id for one in await take(other, limit=100, token="u")] == following


async def test_a_group_that_others_change_all_the_time_gets_its_head_later(
    stores: tuple[MongoStore, MongoStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    maker = Maker()
    [first, second] = await put(one, [maker.one(group="g"), maker.one(group="g")])
    await take(one)
    with monkeypatch.context() as patch:
        patch.setattr(groups, "_choose_some", lambda link, number, keys, now, ready: asyncio.sleep(0, keys))
        assert await drop(one, [(first, "t")]) == ["done"]
    await other.tidy(START + groups.GRACE, 1000)
    assert [one.message.id for one in await take(other, token="u")] == [second]


async def test_groups_that_an_earlier_version_left_without_a_head_get_one(
    stores: tuple[MongoStore, MongoStore], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    maker = Maker()
    [first, second] = await put(one, [maker.one(group="g"), maker.one(group="g")])
    await take(one)
    with monkeypatch.context() as patch:
        patch.setattr(groups, "finish", lambda *_: asyncio.sleep(0, []))
        await drop(one, [(first, "t")])
    marked = await database.blocks.update_many({"todo": {"$exists": True}}, {"$set": {"todo": True}})
    assert marked.modified_count == 1
    await other.tidy(START, 1000)
    assert [one.message.id for one in await take(other, token="u")] == [second]


@pytest.fixture
async def removing(
    stores: tuple[MongoStore, MongoStore], monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Event, asyncio.Event]:
    """1,200 dedup records that have expired, and two events: a broker is about to remove some, and it may go on."""
    maker = Maker()
    await put(stores[0], [maker.one(dedup_id=f"d{place}") for place in range(1200)], dedup_until=START + SECOND)
    delete, reached, going_on = AsyncCollection.delete_many, asyncio.Event(), asyncio.Event()

    async def suspended(self: Any, *arguments: Any, **named: Any) -> Any:
        if not reached.is_set():
            reached.set()
            await going_on.wait()
        return await delete(self, *arguments, **named)

    monkeypatch.setattr(AsyncCollection, "delete_many", suspended)
    return reached, going_on


async def test_one_broker_at_a_time_removes_expired_records_and_in_pieces(
    stores: tuple[MongoStore, MongoStore],
    removing: tuple[asyncio.Event, asyncio.Event],
    changes: list[tuple[str, str]],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = stores
    reached, going_on = removing
    monkeypatch.setattr(upkeep, "TURN", 3600)
    changes.clear()
    first = asyncio.create_task(one.tidy(LATER, 5000))
    await reached.wait()
    await other.tidy(LATER, 5000)
    assert changes == []
    going_on.set()
    assert await first == 1200
    assert changes == [("delete", "dedup")] * 3
    assert await database.dedup.count_documents({}) == 0


async def test_the_turn_of_a_broker_that_was_killed_ends(
    stores: tuple[MongoStore, MongoStore],
    removing: tuple[asyncio.Event, asyncio.Event],
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = stores
    monkeypatch.setattr(upkeep, "TURN", 3600)
    killed = asyncio.create_task(one.tidy(LATER, 5000))
    await removing[0].wait()
    turn = await database.meta.find_one({"_id": "turn:removal"})
    assert turn is not None
    await database.meta.update_one({"_id": turn["_id"]}, {"$set": {"until": turn["until"] - timedelta(seconds=3601)}})
    assert await other.tidy(LATER, 5000) == 1200
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)


async def test_a_group_that_was_emptied_is_removed_after_a_while(
    stores: tuple[MongoStore, MongoStore], database: Database
) -> None:
    one, other = stores
    maker = Maker()
    sent = await put(one, [maker.one(group=f"g{place}") for place in range(3)])
    await take(one, limit=3)
    await drop(one, [(id, "t") for id in sent])
    await other.tidy(START + groups.PATIENCE - 1, 1000)
    assert await database.groups.count_documents({}) == 3
    await other.tidy(START + groups.PATIENCE, 1000)
    assert await database.groups.count_documents({}) == 0


async def test_a_send_that_was_suspended_while_its_group_was_removed_is_delivered(
    stores: tuple[MongoStore, MongoStore], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = stores
    maker = Maker()
    [first] = await put(one, [maker.one(group="g")])
    join, reached, going_on = groups.join, asyncio.Event(), asyncio.Event()

    async def suspended(*arguments: Any) -> groups.Joined:
        had = await join(*arguments)
        reached.set()
        await going_on.wait()
        return had

    monkeypatch.setattr(groups, "join", suspended)
    sending = asyncio.create_task(put(one, [maker.one(group="g")]))
    await reached.wait()
    await take(other)
    await drop(other, [(first, "t")])
    await other.tidy(LATER, 1000)
    assert await database.groups.count_documents({}) == 0
    going_on.set()
    sent = await sending
    assert [one.message.id for one in await take(other, token="u")] == sent
