"""Claims in MongoDB, where a broker may die between two of their steps, and another one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.asynchronous.database import AsyncDatabase

from miniq.errors import ClaimGone, Fenced
from miniq.message import SECOND
from miniq.store.arguments import Change
from miniq.store.contract import Claimed
from miniq.store.mongodb import MongoStore, claims
from tests import mongod
from tests.clock import START
from tests.store import calls
from tests.store.calls import BIG, Maker, put, take, take_all
from tests.store.mongodb import two

MANY = 23
HOUR = 3600 * SECOND


@pytest.fixture
def url(tmp_path: Path) -> str:
    return mongod.databases().url(tmp_path)


@pytest.fixture(autouse=True)
def steps_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "STEP", 4)
    monkeypatch.setattr(claims, "SMALL_STEP", 1)


async def claim(store: MongoStore, after: int, **changed: Any) -> Claimed:
    asked: dict[str, Any] = {"keep_until": START + HOUR, "keep": "events"}
    return await calls.claim(store, after, **asked | changed)


async def content(store: MongoStore, number: int) -> list[str]:
    """The ids in a claim, read a few at a time."""
    found: list[str] = []
    many = (await store.claims.find("q", "g", number, START)).messages
    while len(found) < many:
        some = await calls.read_claim(store, number, start=len(found), stop=many, max_bytes=9)
        found += [message.id for portion in some for message in portion.messages]
    return found


async def send(store: MongoStore, count: int = MANY, **changed: Any) -> list[str]:
    """Messages in blocks of two."""
    maker = Maker()
    return [id for start in range(0, count, 2) for id in await put(store, maker.run(min(2, count - start)), **changed)]


class KilledError(Exception):
    pass


@pytest.fixture
def killed_after(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Lets a store make so many transactions, then no more."""

    def kill(store: MongoStore, commits: int) -> None:
        real, left = store._changes.make, commits

        async def make(*given: Any) -> Any:
            nonlocal left
            if not left:
                raise KilledError
            left -= 1
            return await real(*given)

        monkeypatch.setattr(store._changes, "make", make)

    yield kill
    monkeypatch.undo()


async def work(store: MongoStore, told: list[int]) -> None:
    """What a reader does: two claims, an ack, and the rest given back."""
    for after in (0, 1, 2):
        found = await claim(store, after, limit=10 if after < 2 else 0)
        if found.claim is not None:
            told.append(found.claim.messages)
    await claim(store, 2, limit=2)
    await store.claims.release("q", "g", None, Change(START, "events"))


@pytest.mark.parametrize("commits", range(18))
async def test_wherever_a_broker_dies_claims_are_whole_and_another_goes_on(
    url: str, killed_after: Any, commits: int, database: AsyncDatabase[dict[str, Any]]
) -> None:
    async with two(url, "q") as (one, other):
        sent = await send(one, keep="events")
        told: list[int] = []
        killed_after(one, commits)
        with pytest.raises(KilledError):
            await work(one, told)
        # What was told stands, in full; what was not is a claim as well, or ready.
        acked: list[str] = []
        for number, many in enumerate(told, 1):
            got = await content(other, number)
            assert got == sent[(number - 1) * 10 :][:many]
            acked += got
        await claim(other, len(told), limit=0)
        [group] = await other.claims.groups("q", START) or [None]
        last = 0 if group is None else group.last
        for number in range(len(told) + 1, last + 1):
            found = await claim(other, number - 1)
            assert found.claim is not None
            got = await content(other, number)
            assert len(got) == found.claim.messages
            assert got == sent[len(acked) :][: len(got)]
            acked += got
        await claim(other, last, limit=0)
        counts = await other.messages.counts("q", START)
        rest = sent[len(acked) :]
        assert (counts.ready, counts.leased) == (len(rest), 0)
        assert await take_all(other) == rest
        # The history has told of each message what happened to it, once.
        records = (await other.history.read(0, 1000)).records
        assert sorted(r.event.id for r in records if r.event.event == "acked") == sorted(acked)
        # And in the end nothing is left of what was acked.
        for _ in range(3):
            await other.tidy(START + HOUR, 1000)
        blocks = await database.blocks.find({"count": {"$exists": True}}).to_list()
        assert sum(block["count"] for block in blocks) == len(rest)
        assert all(block["count"] for block in blocks)
        assert await database.claims.count_documents({}) == 0


@pytest.mark.parametrize("how", ["acked", "released"])
async def test_the_upkeep_lets_go_what_a_broker_left_in_a_claim(url: str, killed_after: Any, how: str) -> None:
    async with two(url, "q") as (one, other):
        await send(one)
        await claim(one, 0)
        killed_after(one, 2)
        call: Any = claim(one, 1, limit=0)
        if how == "released":
            call.close()
            call = one.claims.release("q", "g", None, Change(START))
        with pytest.raises(KilledError):
            await call
        await other.tidy(START + SECOND, 1000)
        assert (await other.messages.counts("q", START)).leased == 6, "its broker may still be at it"
        await other.tidy(START + 20 * SECOND, 1000)
        counts = await other.messages.counts("q", START)
        assert (counts.ready, counts.leased) == (13 if how == "acked" else MANY, 0)


async def test_who_wants_a_claim_that_is_being_made_elsewhere_freezes_it(url: str) -> None:
    async with two(url, "q") as (one, other):
        sent = await send(one)
        real, steps = one._changes.make, 0
        found: list[Claimed] = []

        async def make(*given: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 4:  # one to look, two steps of making
                found.append(await claim(other, 0))
            return await real(*given)

        one._changes.make = make  # type: ignore[method-assign, assignment]
        mine = await claim(one, 0, limit=20)
        assert mine.claim == found[0].claim
        assert mine.claim is not None
        assert await content(one, 1) == await content(other, 1) == sent[:8]
        assert (await one.messages.counts("q", START)).leased == 8


async def test_a_new_reader_stops_an_old_one_in_the_middle_of_a_claim(url: str) -> None:
    async with two(url, "q") as (one, other):
        sent = await send(one)
        epoch = (await one.claims.open("q", "g")).epoch
        real, steps = one._changes.make, 0

        async def make(*given: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 3:
                opened = await other.claims.open("q", "g")
                assert (opened.epoch, opened.last) == (2, 1)
            return await real(*given)

        one._changes.make = make  # type: ignore[method-assign, assignment]
        with pytest.raises(Fenced):
            await claim(one, 0, limit=20, epoch=epoch)
        assert await content(other, 1) == sent[:4]


async def test_a_claim_whose_queue_is_emptied_while_it_is_made_is_gone(url: str) -> None:
    async with two(url, "q") as (one, other):
        maker = Maker()
        await put(one, maker.run(MANY))
        real, steps = one._changes.make, 0

        async def make(*given: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == 4:
                assert await other.messages.clear("q", Change(START)) == MANY
            return await real(*given)

        one._changes.make = make  # type: ignore[method-assign, assignment]
        await claim(one, 0, limit=20)
        for store in (one, other):
            with pytest.raises(ClaimGone):
                await content(store, 1)
            assert (await store.messages.counts("q", START)).total == 0
        fresh = await put(one, maker.run(2))
        assert (await claim(other, 1)).made
        assert await content(one, 2) == fresh


async def test_readers_and_consumers_at_two_brokers_share_nothing(url: str) -> None:
    async with two(url, "q") as stores:
        maker = Maker()
        sent: list[str] = []
        for _ in range(4):
            sent += await put(stores[0], maker.run(50))
        got: list[str] = []

        async def read(store: MongoStore, group: str) -> None:
            for after in range(4):
                found = await calls.claim(store, after, group=group, limit=9)
                assert found.claim is not None
                portions = await calls.read_claim(store, after + 1, group=group, stop=9)
                got.extend(message.id for portion in portions for message in portion.messages)

        async def consume(store: MongoStore, name: str) -> None:
            for place in range(8):
                got.extend(one.message.id for one in await take(store, limit=3, token=f"{name}{place}"))

        jobs = [read(store, f"g{place}") for place, store in enumerate(stores * 2)]
        jobs += [consume(store, f"c{place}") for place, store in enumerate(stores)]
        await asyncio.wait_for(asyncio.gather(*jobs), 60)
        assert len(got) == len(set(got))
        rest = await take_all(stores[1])
        assert sorted(got + rest) == sorted(sent)


async def test_parts_are_read_from_anywhere_before_and_after_the_ack(url: str) -> None:
    async with two(url, "q") as (one, other):
        maker = Maker()
        low = await put(one, maker.run(7))
        high = await put(one, maker.run(6, priority=5))
        await claim(one, 0, limit=13)
        for _ in range(2):
            for start in range(13):
                for stop in range(start, 15):
                    place = {"start": start, "stop": stop, "max_bytes": BIG, "now": START}
                    portions = await calls.read_claim(other, 1, **place)
                    found = [message.id for portion in portions for message in portion.messages]
                    assert found == (high + low)[start:stop]
            await claim(one, 1, limit=0)
        assert (await one.claims.find("q", "g", 1, START + HOUR - 1)).acked_at == START
        with pytest.raises(ClaimGone):
            await one.claims.find("q", "g", 1, START + HOUR)
