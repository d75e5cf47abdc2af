"""Who reads: a claim must be fetched before it is acked, by the reader that asks, and ids say whose claims they are."""

from __future__ import annotations

from typing import Any

import pytest

from miniq.batch import StageName
from miniq.broker import Broker
from miniq.errors import BadName, BatchMismatch, ClaimTaken, ClaimUnread
from miniq.options import Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.conftest import STORES
from tests.kit import bodies, draft, drain, send, states

LASTING = pytest.mark.parametrize("url", [store for store in STORES if store != "memory"], indirect=True)


async def take(broker: Broker, after: int, **asked: Any) -> int | None:
    claim, _ = await broker.claims.next("q", "g", after, **asked)
    return None if claim is None else claim.number


async def test_a_claim_of_which_nothing_was_fetched_cannot_be_acked(broker: Broker) -> None:
    await send(broker, "q", 1, 2, 3)
    assert await take(broker, 0, max_messages=1) == 1
    await broker.claims.fetch("q", "g", 1)
    assert await take(broker, 1, max_messages=1) == 2
    for call in (broker.claims.next("q", "g", 2), broker.claims.ack("q", "g", 2)):
        with pytest.raises(
            ClaimUnread, match="claim 2 of group 'g' cannot be acked: none of its 1 messages was fetched"
        ):
            await call
    assert await states(broker, "q") == (1, 0, 1), "claim 1 is acked, claim 2 is held, and nothing else was claimed"
    assert await broker.claims.release("q", "g") == 1
    assert await drain(broker, "q") == [2, 3]


async def test_any_part_counts_as_fetched_even_an_empty_one(broker: Broker) -> None:
    await send(broker, "q", 1, 2)
    assert await take(broker, 0) == 1
    assert len(await broker.claims.fetch("q", "g", 1, 0, 5)) == 0
    assert await take(broker, 1) is None
    assert await states(broker, "q") == (0, 0, 0)


@LASTING
async def test_what_was_fetched_is_known_after_a_restart(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        await send(broker, "q", 1)
        assert await take(broker, 0) == 1
        await broker.claims.fetch("q", "g", 1, reader="ann")
    async with Broker(open_store(url), options, clock) as broker:
        ((claim,),) = [group.claims for group in await broker.claims.list("q")]
        assert claim.reader == "ann"
        await broker.claims.ack("q", "g", 1, reader="ann")
        assert await states(broker, "q") == (0, 0, 0)


async def test_what_one_reader_has_fetched_another_neither_gets_nor_acks(broker: Broker) -> None:
    await send(broker, "q", 1, 2)
    assert await take(broker, 0, reader="ann", max_messages=1) == 1
    assert await take(broker, 0, reader="bob") == 1, "nobody has fetched it yet"
    await broker.claims.fetch("q", "g", 1, reader="ann")
    for call in (
        broker.claims.next("q", "g", 0, reader="bob"),
        broker.claims.next("q", "g", 1, reader="bob"),
        broker.claims.ack("q", "g", 1, reader="bob"),
        broker.claims.fetch("q", "g", 1, reader="bob"),
    ):
        with pytest.raises(ClaimTaken, match="claim 1 of group 'g' was fetched by another reader, 'ann'"):
            await call
    assert await take(broker, 0, reader="ann") == 1
    assert await take(broker, 0) == 1, "an operator gives no name"
    assert await take(broker, 1, reader="ann") == 2
    with pytest.raises(ClaimTaken):
        await take(broker, 0, reader="bob")  # acked, and still readable
    assert await take(broker, 1, reader="bob") == 2


async def test_a_name_counts_more_than_none(broker: Broker) -> None:
    await send(broker, "q", 1)
    assert await take(broker, 0) == 1
    await broker.claims.fetch("q", "g", 1)
    await broker.claims.fetch("q", "g", 1, reader="ann")
    with pytest.raises(ClaimTaken):
        await take(broker, 0, reader="bob")
    with pytest.raises(BadName, match="reader"):
        await broker.claims.fetch("q", "g", 1, reader="no name")


async def test_released_messages_are_for_any_reader(broker: Broker) -> None:
    await send(broker, "q", 1)
    await take(broker, 0, reader="ann")
    await broker.claims.fetch("q", "g", 1, reader="ann")
    assert await broker.claims.release("q", "g") == 1
    assert await take(broker, 1, reader="bob") == 2
    part = await broker.claims.fetch("q", "g", 2, reader="bob")
    assert [body async for some in part.each() for body in bodies(some)] == [1]


async def test_a_group_has_an_id_that_lasts_as_long_as_its_queue(broker: Broker) -> None:
    await send(broker, "q", 1)
    first = await broker.claims.open("q", "g")
    await broker.purge("q")
    again = await broker.claims.open("q", "g")
    assert first.id
    assert (again.id, again.epoch) == (first.id, 2)
    assert [group.id for group in await broker.claims.list("q")] == [first.id]
    other = await broker.claims.open("q", "other")
    await broker.delete_queue("q")
    anew = await broker.claims.open("q", "g")
    assert len({first.id, other.id, anew.id}) == 3


async def test_who_opens_a_group_learns_what_it_holds_and_how_much_waits(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", *range(5))
    await take(broker, 0, max_messages=2)
    opened = await broker.claims.open("q", "g")
    assert (opened.ready, opened.store) == (3, broker.store_id)
    assert [(claim.number, claim.messages, claim.reader) for claim in opened.claims] == [(1, 2, None)]


async def test_a_store_has_one_id_for_ever_and_for_all_brokers(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0)
    store = open_store(url)
    async with Broker(store, options, clock) as broker:
        id = broker.store_id
        assert id
        if store.shared:
            async with Broker(open_store(url), options, clock) as other:
                assert other.store_id == id
        if url == "memory:":
            return
    async with Broker(open_store(url), options, clock) as broker:
        assert broker.store_id == id


async def test_a_batch_is_committed_again_only_with_the_same_content(broker: Broker) -> None:
    async def commit(batch: str, *numbers: int, content: str | None) -> tuple[int, bool]:
        await broker.stages.upload("q", StageName("job", batch, "0", "0"), 0, [draft(n) for n in numbers])
        done = await broker.stages.commit("q", "job", batch, [("0", "0")], content)
        return done.messages, done.repeated

    assert await commit("1", 1, 2, content="2-abc") == (2, False)
    assert await commit("1", 1, 2, content="2-abc") == (2, True)
    assert await commit("1", 1, 2, content=None) == (2, True)
    with pytest.raises(BatchMismatch, match=r"batch '1' of job 'job' was committed before .*\(2-abc, now 1-def\)"):
        await commit("1", 3, content="1-def")
    assert await commit("2", 4, content=None) == (1, False)
    assert await commit("2", 4, content="1-xyz") == (1, True), "what was not said is not compared"
    assert (await broker.stages.commit("q", "job", "3", [], "0-0")).messages == 0
    with pytest.raises(BatchMismatch):
        await commit("3", 5, content="1-def")
    assert await drain(broker, "q") == [1, 2, 4]
