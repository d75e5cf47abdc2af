"""Databases that an earlier version wrote, one document per message, are converted when they are opened."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo.asynchronous.database import AsyncDatabase

from miniq.ids import IdSource
from miniq.message import NEVER, SECOND, QueueSettings
from miniq.store.arguments import Change, Once
from miniq.store.decisions import call_answer
from miniq.store.mongodb import MongoStore, upgrade
from miniq.store.mongodb.documents import FORMAT, encode_settings
from miniq.store.names import call_record, commit_name
from tests import mongod
from tests.clock import START
from tests.store import calls
from tests.store.calls import Maker, drop, find, put, scan, take, take_all
from tests.store.mongodb import opened

PLAIN = 40
UNTIL = START + 30 * SECOND
CALL = Once("call", START + 9 * SECOND, "digest")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return mongod.databases().url(tmp_path)


class Old:
    """A database of format 1, as its version left it."""

    def __init__(self, database: AsyncDatabase[dict[str, Any]]) -> None:
        self.database = database
        self.number, self.claim = ObjectId(), ObjectId()
        self.ids = IdSource()
        self.messages: list[dict[str, Any]] = []

    def message(self, id: str, **fields: Any) -> str:
        plain = {
            "_id": id, "queue": "q", "sent_at": START, "due_at": START, "body": b"1", "priority": 0, "lane": "",
            "content_type": "application/json", "number": self.number, "size": 1, "visible_at": START, "receives": 0,
        }  # fmt: skip
        document = plain | fields
        if not {"line", "timed", "waits"} & document.keys() and document["number"] == self.number:
            document["line"] = self.number
        self.messages.append({name: value for name, value in document.items() if value is not None})
        return id

    def one(self, **fields: Any) -> str:
        return self.message(self.ids.run(1, START)[0], **fields)

    async def write(self) -> None:
        db, number = self.database, self.number
        self.plain = [self.message(id) for id in self.ids.run(PLAIN, START)]
        self.leased = self.one(
            line=None, timed=number, visible_at=UNTIL, receives=1, receipt="t", consumer="ann", taken_at=START
        )
        self.delayed = self.one(line=None, timed=number, visible_at=UNTIL, due_at=UNTIL)
        self.own = self.one(recipient="bob", lane="bob", headers=[["a.b", "$c"]], size=5)
        head, self.second = self.ids.run(2, START)
        self.head = self.message(head, group="g", group_key=f"{number}:g")
        self.message(self.second, group="g", group_key=f"{number}:g", waits=True)
        dead = {"origin": "o", "reason": "max_receives", "receives": 3, "at": START}
        self.dead = self.one(priority=5, dead=dead)
        held = {"receives": 1, "receipt": "r/2", "consumer": "r", "taken_at": START, "visible_at": NEVER}
        self.claimed = self.one(line=None, timed=number, claim=self.claim, **held)
        kept = ObjectId()
        self.acked = self.one(number=kept, receives=1)
        self.message(self.ids.run(1, START)[0], number=ObjectId())  # of a queue that is gone
        await db.messages.insert_many(self.messages)
        await db.groups.insert_one({"_id": f"{number}:g", "number": number, "head": head, "turn": 3})
        state = {"serial": number, "number": number, "group": "r", "epoch": 1, "acked": 1, "last": 2}
        await db.readers.insert_one({"_id": f"{number}:r"} | state)
        claim = {"queue": "q", "number": number, "group": "r", "messages": 1, "bytes": 1, "made_at": START}
        await db.claims.insert_one(claim | {"_id": self.claim, "claim": 2, "acked_at": None})
        await db.claims.insert_one(claim | {"_id": kept, "claim": 1, "acked_at": START, "until": START + 9 * SECOND})
        settings = encode_settings(QueueSettings())
        await db.queues.insert_one({"_id": "q", "number": number, "serial": number, "slots": 1, "settings": settings})
        self.last = max(one["_id"] for one in self.messages)
        tally = {"number": number, "count": PLAIN + 7, "bytes": 50, "last_id": self.last}
        await db.tallies.insert_one({"_id": f"{number}.x.1"} | tally)
        record = {"serial": number, "name": "d", "said": self.own, "until": START + 9 * SECOND}
        await db.dedup.insert_one({"_id": f"{number}:d"} | record)
        call = record | {"name": call_record("call"), "said": call_answer([self.own], CALL)}
        await db.dedup.insert_one({"_id": f"{number}:{call['name']}"} | call)
        await db.meta.insert_many(
            [{"_id": "format", "version": 1}, {"_id": "history", "first": 1, "last": 0, "bytes": 0}]
        )

    async def check(self, store: MongoStore) -> None:
        """All of it is there, as it was."""
        counts = await store.messages.counts("q", START)
        assert (counts.ready, counts.delayed, counts.leased) == (PLAIN + 4, 1, 2)
        assert await store.last_id() == self.last
        assert len((await scan(store)).messages) == PLAIN + 7
        own = await find(store, self.own)
        assert own is not None
        assert own.message.headers == {"a.b": "$c"}
        [again] = await put(store, [Maker().one(dedup_id="d")])
        assert again == self.own
        [again] = await put(store, [Maker().one()], call=CALL)
        assert again == self.own
        assert [group.last for group in await store.claims.groups("q", START)] == [2]
        for number, id in ((1, self.acked), (2, self.claimed)):
            [portion] = await calls.read_claim(store, number, group="r")
            assert [message.id for message in portion.messages] == [id]
        [held] = await store.messages.held("q", "t", UNTIL)
        assert (held.message.id, held.consumer, held.receives) == (self.leased, "ann", 1)
        taken = await take_all(store, consumer="bob", token="u")
        assert taken == [self.dead, *self.plain, self.own, self.head]
        assert await drop(store, [(self.head, "u"), (self.leased, "t"), (self.second, "u")]) == [
            "done",
            "done",
            "stale",
        ]
        [second] = await take(store)
        assert second.message.id == self.second
        [late] = await take(store, now=UNTIL, until=UNTIL + SECOND, limit=1, token="v", consumer="x")
        assert late.message.id in {*self.plain, self.delayed, self.dead}
        assert await store.messages.clear("q", Change(UNTIL)) == PLAIN + 5


async def test_a_database_of_the_first_format_is_converted_and_says_so(
    url: str, database: AsyncDatabase[dict[str, Any]], caplog: pytest.LogCaptureFixture
) -> None:
    old = Old(database)
    await old.write()
    with caplog.at_level(logging.WARNING, "miniq.mongodb"):
        async with opened(url) as store:
            await old.check(store)
    assert f"converting {len(old.messages)} messages to blocks" in caplog.text
    assert not {"messages", "tallies"} & set(await database.list_collection_names())
    assert await database.meta.find_one({"_id": "format"}) == {"_id": "format", "version": FORMAT}


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_a_conversion_that_was_killed_is_completed_by_the_next_broker(
    url: str, database: AsyncDatabase[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    class KilledError(Exception):
        pass

    monkeypatch.setattr(upgrade, "AT_ONCE", 7)
    monkeypatch.setattr(upgrade, "TURN", 0)
    old = Old(database)
    await old.write()
    real, left = upgrade._convert_some, steps

    async def killed(*given: Any) -> None:
        nonlocal left
        if not left:
            raise KilledError
        left -= 1
        await real(*given)

    with monkeypatch.context() as patch:
        patch.setattr(upgrade, "_convert_some", killed)
        with pytest.raises(KilledError):
            async with opened(url):
                pass
    async with opened(url) as store:
        await old.check(store)


async def test_brokers_that_start_together_convert_it_once(
    url: str, database: AsyncDatabase[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "AT_ONCE", 3)
    old = Old(database)
    await old.write()
    stores = [MongoStore(url) for _ in range(3)]
    try:
        await asyncio.gather(*[store.open() for store in stores])
        await old.check(stores[2])
    finally:
        for store in stores:
            await store.close()


async def test_calls_of_the_second_format_are_still_remembered(
    url: str, database: AsyncDatabase[dict[str, Any]]
) -> None:
    maker = Maker()
    async with opened(url, "q") as store:
        [sent] = await put(store, [maker.one(dedup_id="d")])
        [record] = await database.dedup.find().to_list()
        call = {"name": call_record("call"), "said": call_answer([sent], CALL)}
        commit = {"name": call_record(commit_name("job", "1")), "said": "3"}
        for changed in (call, commit):
            old = record | changed
            await database.dedup.insert_one(old | {"_id": f"{old['serial']}:{old['name']}"})
    await database.meta.update_one({"_id": "format"}, {"$set": {"version": 2}})
    async with opened(url) as store:
        assert await put(store, [maker.one()], call=CALL) == [sent]
        assert await put(store, [maker.one(dedup_id="d")]) == [sent]
        assert (await store.messages.counts("q", START)).total == 1
    assert {one["name"] async for one in database.dedup.find()} == {"d", commit["name"]}
    assert await database.meta.find_one({"_id": "format"}) == {"_id": "format", "version": FORMAT}
