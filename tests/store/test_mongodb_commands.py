"""How many commands a call to the MongoDB store takes: that must not depend on the number of messages, nor on the depth
of the queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from pymongo import AsyncMongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from miniq.message import SECOND, Message
from miniq.store.arguments import Once
from miniq.store.mongodb import MongoStore, connection
from tests import mongod
from tests.clock import START
from tests.store.calls import Maker, drop, put, take
from tests.store.mongodb import opened


class Commands(CommandListener):
    """The names of commands, without those that other work of the store makes."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        command = event.command
        apart = ("hello", "killSessions", "endSessions")
        if event.command_name not in apart and "signals" not in (command.get("collection"), *command.values()):
            self.names.append(event.command_name)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        pass

    def failed(self, event: CommandFailedEvent) -> None:
        pass


@pytest.fixture
async def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[MongoStore, list[str]]]:
    """A store with a queue, and the commands it has made since it was opened."""
    commands = Commands()
    monkeypatch.setattr(connection, "AsyncMongoClient", partial(AsyncMongoClient, event_listeners=[commands]))
    async with opened(mongod.databases().url(tmp_path), "q") as store:
        await put(store, [Maker().one(priority=9)])
        await take(store, token="before")
        commands.names.clear()
        yield store, commands.names


def many(maker: Maker, count: int, **fields: str) -> list[Message]:
    named = [{name: f"{value}{place}" for name, value in fields.items()} for place in range(count)]
    return [maker.one(**each) for each in named]


@pytest.mark.parametrize("count", [1, 100])
async def test_a_named_send_is_one_command(counted: tuple[MongoStore, list[str]], count: int) -> None:
    store, commands = counted
    await put(store, Maker().run(count), call=Once("c", START + SECOND, "digest"))
    assert commands == ["update"]


async def test_a_receive_and_an_ack_are_two_commands_each(counted: tuple[MongoStore, list[str]]) -> None:
    store, commands = counted
    sent = await put(store, Maker().run(100))
    commands.clear()
    await take(store, limit=100)
    assert commands == ["aggregate", "update"]
    commands.clear()
    assert await drop(store, [(id, "t") for id in sent]) == ["done"] * 100
    assert commands == ["find", "delete"]


async def test_a_send_with_very_many_dedup_ids_is_a_few_commands(counted: tuple[MongoStore, list[str]]) -> None:
    store, commands = counted
    maker = Maker()
    sent = await put(store, many(maker, 1000, dedup_id="d"))
    assert len(commands) <= 8
    commands.clear()
    assert await put(store, many(maker, 1000, dedup_id="d")) == sent
    assert len(commands) <= 4


async def test_an_ack_of_very_many_groups_is_a_few_commands(counted: tuple[MongoStore, list[str]]) -> None:
    store, commands = counted
    maker = Maker()
    sent = await put(store, many(maker, 500, group="g"))
    await put(store, many(maker, 250, group="g"))
    await take(store, limit=500)
    commands.clear()
    assert await drop(store, [(id, "t") for id in sent]) == ["done"] * 500
    assert len(commands) <= 8
    assert len(await take(store, limit=500, token="u")) == 250


async def test_counts_are_a_few_commands_whatever_is_due(counted: tuple[MongoStore, list[str]]) -> None:
    store, commands = counted
    maker = Maker()
    for second in (1, 2):
        await put(store, [maker.one(delay=second) for _ in range(200)])
    for now in (START, START + SECOND, START + 3 * SECOND):
        commands.clear()
        counts = await store.messages.counts("q", now)
        assert counts.total == 401
        assert len(commands) <= 7
