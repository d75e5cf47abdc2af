"""Stages in MongoDB: what is uploaded lies in chunks, and two brokers may commit at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pymongo.asynchronous.database import AsyncDatabase

from miniq.batch import Committed, StageName
from miniq.errors import QueueFull, StageUnknown
from miniq.ids import IdSource
from miniq.message import SECOND, Message, PlainBatch
from miniq.store.arguments import Change, Room, Scan
from miniq.store.mongodb import MongoStore, stages, uploads
from tests import mongod
from tests.clock import START
from tests.store import calls
from tests.store.calls import Maker, put, take
from tests.store.mongodb import two

DAY = 86400 * SECOND
NAME = StageName("j", "1", "0", "0")
MANY = pytest.mark.parametrize("few", ["many"], indirect=True)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return mongod.databases().url(tmp_path)


@pytest.fixture(autouse=True, params=["few", "many"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it as it is for few messages, and for more than one transaction holds."""
    if request.param == "many":
        monkeypatch.setattr(stages, "FEW", 0)
        monkeypatch.setattr(stages, "STEP", 7)


def staged(number: int, **fields: Any) -> Message:
    return Message("", "q", 0, 0, b"%d" % number, **fields)


async def upload(store: MongoStore, messages: Sequence[Message], part: int = 0, name: StageName = NAME) -> None:
    await calls.upload(store, name, part, messages, until=START + DAY)


async def commit(store: MongoStore, ids: IdSource, **changed: Any) -> Committed:
    asked: dict[str, Any] = {"until": START + 7 * DAY, "dedup_until": START + SECOND}
    return await calls.commit(store, "j", "1", [("0", "0")], lambda count: ids.reserve(count, START), **asked | changed)


async def bodies(store: MongoStore) -> list[int]:
    found = sorted(await take(store, limit=5000), key=lambda one: one.message.id)
    return [int(one.message.body) for one in found]


@pytest.mark.parametrize("chunk", [1, 3, 128, 200])
async def test_what_is_uploaded_comes_in_order_however_it_is_cut(
    url: str, monkeypatch: pytest.MonkeyPatch, chunk: int, database: AsyncDatabase[dict[str, Any]]
) -> None:
    monkeypatch.setattr(uploads, "CHUNK_MESSAGES", chunk)
    async with two(url, "q") as (one, other):
        plain = PlainBatch([""] * 300, "q", 0, 0, [b"%d" % n for n in range(300)])
        await upload(one, plain)
        mixed = [staged(n, key="k", group="m" if n % 50 == 0 else None) for n in range(300, 500)]
        await upload(one, mixed, part=1)
        assert await database.uploads.count_documents({}) >= 500 // chunk
        ids = IdSource()
        assert await commit(other, ids) == Committed(500)
        page = await one.messages.scan("q", Scan(limit=1000, max_bytes=10**9, now=START))
        assert [int(stored.message.body) for stored in page.messages] == list(range(500))
        # The head of the group alone can be taken.
        assert await bodies(one) == [n for n in range(500) if n not in (350, 400, 450)]
        assert await database.uploads.count_documents({}) == 0
        (after,) = await put(one, Maker().run(1))
        assert (await other.last_id()) == max(after, page.messages[-1].message.id)


async def test_bodies_that_do_not_fit_into_one_document_together_are_cut(url: str) -> None:
    async with two(url, "q") as (one, other):
        large = [b"%07d" % n * 150_000 for n in range(20)]
        await upload(one, PlainBatch([""] * 20, "q", 0, 0, large))
        assert await commit(other, IdSource()) == Committed(20)
        found = await one.messages.scan("q", Scan(limit=30, max_bytes=10**9, now=START))
        assert [stored.message.body for stored in found.messages] == large


async def test_commits_at_two_brokers_at_once_are_one(url: str) -> None:
    async with two(url, "q") as both:
        await upload(both[0], [staged(n) for n in range(40)])
        ids = IdSource()
        done = await asyncio.gather(*[commit(store, ids, room=Room(50, 0)) for store in both * 3])
        assert sorted(one.repeated for one in done) == [False, True, True, True, True, True]
        assert {one.messages for one in done} == {40}
        assert (await both[1].messages.counts("q", START)).total == 40
        assert await bodies(both[1]) == list(range(40))


async def test_uploads_of_one_part_at_two_brokers_at_once_are_one(
    url: str, database: AsyncDatabase[dict[str, Any]]
) -> None:
    async with two(url, "q") as both:
        await asyncio.gather(*[upload(store, [staged(7)]) for store in both * 4])
        assert await database.uploads.count_documents({}) == await database.stages.count_documents({}) == 1
        assert await commit(both[0], IdSource()) == Committed(1)


async def test_a_commit_that_is_refused_leaves_everything_as_it_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with two(url, "q") as (one, other):
        await upload(one, [staged(n, dedup_id=f"d{n % 3}") for n in range(9)] + [staged(9), staged(10)])
        ids = IdSource()
        with pytest.raises(QueueFull):
            await commit(one, ids, room=Room(4, 0))
        with pytest.raises(StageUnknown):
            await commit(one, ids, now=START + DAY)
        assert (await other.messages.counts("q", START)).total == 0
        assert await commit(other, ids, room=Room(5, 0), keep="full") == Committed(5)
        assert await bodies(one) == [0, 1, 2, 9, 10]
        records = (await one.history.read(0, 100, "q")).records
        assert [record.event.body for record in records] == [b"0", b"1", b"2", b"9", b"10"]


async def test_what_ran_out_or_belonged_to_a_deleted_queue_is_cleared_away(
    url: str, database: AsyncDatabase[dict[str, Any]]
) -> None:
    async with two(url, "q") as (one, _):
        await upload(one, [staged(1)])
        await calls.upload(one, NAME, 1, [staged(2)], now=START + SECOND, until=START + SECOND + DAY)
        await one.tidy(START + DAY, 100)
        assert await database.uploads.count_documents({}) == 2, "the last part counts"
        assert await one.tidy(START + DAY + SECOND, 100) == 1
        assert await database.uploads.count_documents({}) == await database.stages.count_documents({}) == 0
        await upload(one, [staged(1)])
        await one.delete_queue("q", Change(START))
        await one.tidy(START, 100)
        assert await database.uploads.count_documents({}) == await database.stages.count_documents({}) == 0


class KilledError(Exception):
    pass


@MANY
@pytest.mark.parametrize("commits", range(4))
async def test_wherever_a_broker_dies_a_commit_is_made_whole_or_not_at_all(
    url: str, monkeypatch: pytest.MonkeyPatch, commits: int, database: AsyncDatabase[dict[str, Any]]
) -> None:
    async with two(url, "q") as (one, other):
        fields: list[dict[str, Any]] = [{}, {"group": "m"}, {"recipient": "ann"}, {"dedup_id": "d"}]
        await upload(one, [staged(n, **fields[n % 4] if n < 8 else {}) for n in range(30)])
        real, left = one._changes.make, commits

        async def make(*given: Any) -> Any:
            nonlocal left
            if not left:
                raise KilledError
            left -= 1
            return await real(*given)

        ids = IdSource()
        with monkeypatch.context() as patch:
            patch.setattr(one._changes, "make", make)
            with pytest.raises(KilledError):
                await commit(one, ids, keep="events")
        # Who looks sees all or nothing, in whatever way.
        page = await other.messages.scan("q", Scan(limit=1000, max_bytes=10**9, now=START))
        whole = 29 if commits > 1 else 0
        assert len(page.messages) == whole
        assert (await other.messages.counts("q", START)).total == whole
        assert await commit(other, ids, keep="events") == Committed(29, repeated=whole > 0)
        assert len((await other.history.read(0, 1000)).records) == 29
        got = await take(other, limit=1000, consumer="ann")
        assert [int(m.message.body) for m in got] == [n for n in range(30) if n not in (5, 7)]
        for _ in range(2):
            await other.tidy(START + DAY, 1000)
        blocks = await database.blocks.find({"count": {"$exists": True}}).to_list()
        assert sum(block["count"] for block in blocks) == 29
        assert await database.publishes.count_documents({}) == 0


@MANY
@pytest.mark.parametrize("how", ["take", "claim", "find", "purge", "tidy", "delete"])
async def test_what_is_committed_and_not_shown_yet_is_there_for_everybody(
    url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async with two(url, "q") as (one, other):
        await other.messages.counts("q", START)
        await upload(one, [staged(n) for n in range(30)])

        async def dead(queue: str) -> None:
            raise KilledError

        with monkeypatch.context() as patch:
            patch.setattr(one.stages, "show", dead)
            with pytest.raises(KilledError):
                await commit(one, IdSource())
        if how == "take":
            assert await bodies(other) == list(range(30))
        elif how == "claim":
            made = await calls.claim(other, limit=100)
            assert made.claim is not None
            assert made.claim.messages == 30
        elif how == "purge":
            assert await other.messages.clear("q", Change(START)) == 30
            await other.tidy(START, 1000)
            assert await bodies(one) == []
        elif how == "tidy":
            await other.tidy(START, 1000)
            assert await bodies(other) == list(range(30))
        elif how == "delete":
            await other.delete_queue("q", Change(START))
            assert await other.tidy(START, 1000) == 1
        else:
            page = await other.messages.scan("q", Scan(status="ready", limit=100, max_bytes=10**9, now=START))
            assert len(page.messages) == 30
