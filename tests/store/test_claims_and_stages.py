"""Claims and stages on disk: what they cost, that every write leaves them whole, and that nothing of them stays."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

from miniq.batch import StageName
from miniq.broker import Broker
from miniq.errors import StoreFailed
from miniq.message import Draft, PlainDrafts
from miniq.packed import pack
from miniq.store.embedded import claims, history, keys
from miniq.store.embedded.kv import Op
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import FrozenClock
from tests.kit import bodies, draft, drain, leases, send, states
from tests.store.parts import FaultyKV, copy_as_after_kill, opened, seam

STAGE = StageName("job", "1", "0", "0")


async def read(broker: Any, number: int = 1, part: int = 0, parts: int = 1) -> list[Any]:
    found = await broker.claims.fetch("q", "g", number, part, parts)
    return [body async for some in found.each() for body in bodies(some)]


def records(kv: FaultyKV) -> Counter[str]:
    """How many records of each kind there are, but for those of queues, counters, history and dedup."""
    return Counter(chr(key[0]) for key, _ in kv.kv.scan(b"b", b"{") if key[:1] not in b"cdfhkloqz")


def written(kv: FaultyKV) -> list[Op]:
    """Everything that is written from now on."""
    found: list[Op] = []
    real = kv.kv.write

    def write(ops: Sequence[Op], sync: bool) -> None:
        found.extend(ops)
        real(ops, sync)

    kv.kv.write = write  # type: ignore[method-assign]
    return found


@pytest.fixture
def kvs(monkeypatch: pytest.MonkeyPatch) -> list[FaultyKV]:
    return seam(monkeypatch)


async def test_a_claim_is_one_small_record_per_block_and_its_parts_read_no_more_than_they_give(
    url: str, kvs: list[FaultyKV]
) -> None:
    async with opened(url) as broker:
        await broker.configure("q", {"claim_retention": 0})
        for _ in range(20):
            await broker.send("q", PlainDrafts([b'"%b"' % (b"x" * 500)] * 1000))
        ops = written(kvs[-1])
        await broker.claims.next("q", "g", 0, max_messages=20_000)
        assert len(ops) < 220
        assert sum(len(value or b"") for _, value in ops) < 200 * 100
        before = kvs[-1].reads
        assert len(await read(broker, part=3, parts=100)) == 200
        assert kvs[-1].reads - before <= 3
        await broker.claims.ack("q", "g", 1)
        assert records(kvs[-1]) == Counter({"p": 1})


async def test_a_claim_of_a_version_that_did_not_note_readers_can_be_acked(url: str) -> None:
    async with opened(url) as broker:
        await send(broker, "q", 1)
        claim, _ = await broker.claims.next("q", "g", 0)
        assert claim is not None
        store = broker.store
        assert isinstance(store, EmbeddedStore)
        record = structs.asdict(claim)
        del record["reader"]
        key = keys.claim_key(store._core.shelf("q").number, "g", 1)
        store._commit.batch.ops.append((key, msgspec.msgpack.encode([record, 0])))
        await store._commit.commit(sync=True)
    async with opened(url) as broker:
        await broker.claims.ack("q", "g", 1, reader="ann")
        assert await states(broker, "q") == (0, 0, 0)


async def test_every_write_while_a_claim_is_made_leaves_it_whole(
    url: str, folder: Path, kvs: list[FaultyKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "STEP_MESSAGES", 100)
    copies: list[Path] = []

    def copy() -> None:
        copies.append(folder.with_name(f"copy-{len(copies)}"))
        copy_as_after_kill(folder, copies[-1])

    async with opened(url) as broker:
        await send(broker, "q", *range(1000))
        kvs[-1].hold_after_write = copy

        async def others() -> None:
            for _ in range(12):
                await send(broker, "other", "x")

        (claim, _), _ = await asyncio.gather(broker.claims.next("q", "g", 0, max_messages=1000), others())
        assert claim is not None
        kvs[-1].hold_after_write = lambda: None
        assert claim.messages == 1000
    sizes = set()
    for made in copies:
        async with opened(url.replace(str(folder), str(made))) as broker:
            groups = await broker.claims.list("q")
            leased = (await states(broker, "q"))[2]
            assert leased == sum(one.messages for group in groups for one in group.claims)
            sizes.add(leased)
            again, _ = await broker.claims.next("q", "g", 0, max_messages=1000)
            assert again is not None
            assert again.messages == (leased or 1000)
            assert await read(broker) == list(range(again.messages))
    assert len(sizes) > 2, "no write fell between two steps"


@pytest.mark.parametrize("writes", [0, 1, 3])
async def test_an_ack_that_is_cut_off_leaves_the_claim_as_it_was_or_acked(
    url: str, clock: FrozenClock, kvs: list[FaultyKV], monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    monkeypatch.setattr(claims, "STEP_BYTES", 300)
    async with opened(url, clock) as broker:
        await send(broker, "q", *range(1000))
        await broker.claims.next("q", "g", 0)
        await broker.claims.fetch("q", "g", 1)
        kvs[-1].fail_after = writes
        with pytest.raises(StoreFailed):
            await broker.claims.ack("q", "g", 1)
    async with opened(url, clock) as broker:
        assert await states(broker, "q") == (0, 0, 1000)
        assert await read(broker) == list(range(1000))
        await broker.claims.ack("q", "g", 1)
        assert await states(broker, "q") == (0, 0, 0)
        assert await read(broker, part=1, parts=2) == list(range(500, 1000))
        clock.advance(3600)
        await broker.upkeep()
        assert records(kvs[-1]) == Counter({"p": 1})


async def test_what_was_copied_for_an_ack_that_was_cut_off_goes_with_a_release(
    url: str, kvs: list[FaultyKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "STEP_BYTES", 300)
    async with opened(url) as broker:
        await send(broker, "q", *range(1000))
        await broker.claims.next("q", "g", 0)
        await broker.claims.fetch("q", "g", 1)
        ack = asyncio.create_task(broker.claims.ack("q", "g", 1))
        await asyncio.sleep(0)
        await send(broker, "other", "waits for the first of the copies")
        assert records(kvs[-1])["v"]
        ack.cancel()
        await asyncio.gather(ack, return_exceptions=True)
        if await broker.claims.release("q", "g"):
            assert not records(kvs[-1])["v"]
            assert await drain(broker, "q") == list(range(1000))


async def staged(broker: Broker, count: int) -> None:
    """Commit packed messages, as Spark uploads them."""
    await broker.stages.upload("q", STAGE, 0, PlainDrafts(pack([b"%d" % n for n in range(count)])))
    await broker.stages.commit("q", "job", "1", [("0", "0")])


async def test_a_claim_of_staged_messages_reads_them_when_it_is_fetched_and_an_ack_copies_none_of_them(
    url: str, clock: FrozenClock, kvs: list[FaultyKV]
) -> None:
    async with opened(url, clock) as broker:
        await broker.stages.upload("q", STAGE, 0, PlainDrafts(pack([b"%0900d" % (10**899 + n) for n in range(1280)])))
        await broker.stages.commit("q", "job", "1", [("0", "0")])
        before = kvs[-1].reads
        claim, _ = await broker.claims.next("q", "g", 0, max_messages=1280)
        assert claim is not None
        assert (claim.messages, claim.bytes) == (1280, 1280 * 900)
        assert kvs[-1].reads - before == 10, "more than one small record per block was read"
        assert await read(broker) == [10**899 + n for n in range(1280)]
        ops = written(kvs[-1])
        await broker.claims.ack("q", "g", 1)
        assert sum(len(value or b"") for _, value in ops) < 5_000
        assert records(kvs[-1])["t"] == 10
        assert await read(broker, part=1, parts=2) == [10**899 + n for n in range(640, 1280)]
    async with opened(url, clock) as broker:
        assert await read(broker) == [10**899 + n for n in range(1280)]
        clock.advance(3600)
        await broker.upkeep()
        assert records(kvs[-1]) == Counter({"p": 1})


async def test_claims_that_share_a_staged_block_keep_what_is_theirs(
    url: str, clock: FrozenClock, kvs: list[FaultyKV]
) -> None:
    async with opened(url, clock) as broker:
        await staged(broker, 300)
        for number in (1, 2):
            claim, _ = await broker.claims.next("q", "g", number - 1, max_messages=100)
            assert claim is not None
            await broker.claims.fetch("q", "g", number)
        (got,) = await broker.receive("q")
        await broker.claims.ack("q", "g", 2)
        clock.advance(30)
    async with opened(url, clock) as broker:
        assert await read(broker, 1) == list(range(100))
        assert await read(broker, 2) == list(range(100, 200))
        assert got.message.body == b"200"
        assert await drain(broker, "q") == list(range(200, 300))
        assert await read(broker, 2) == list(range(100, 200))
        clock.advance(3600)
        await broker.upkeep()
        assert records(kvs[-1]) == Counter({"p": 1})


async def test_an_acked_claim_of_staged_messages_goes_with_its_queue_and_takes_nothing_with_it(
    url: str, clock: FrozenClock, kvs: list[FaultyKV]
) -> None:
    async with opened(url, clock) as broker:
        await staged(broker, 1000)
        await broker.claims.next("q", "g", 0, max_messages=600)
        await broker.claims.fetch("q", "g", 1)
        await broker.claims.ack("q", "g", 1)
        await broker.purge("q")
        await broker.stages.upload("q", StageName("job", "2", "0", "0"), 0, PlainDrafts(pack([b"1"] * 300)))
        await broker.stages.commit("q", "job", "2", [("0", "0")])
        for _ in range(5):
            await broker.upkeep()
        assert records(kvs[-1]) == Counter({"p": 1, "b": 3, "t": 3})
        assert await drain(broker, "q") == [1] * 300


async def test_a_release_after_an_ack_that_was_cut_off_leaves_staged_messages_where_they_are(
    url: str, clock: FrozenClock, kvs: list[FaultyKV], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "STEP_BYTES", 100)
    async with opened(url, clock) as broker:
        await staged(broker, 1000)
        await broker.claims.next("q", "g", 0)
        await broker.claims.fetch("q", "g", 1)
        kvs[-1].fail_after = 1
        with pytest.raises(StoreFailed):
            await broker.claims.ack("q", "g", 1)
    async with opened(url, clock) as broker:
        assert records(kvs[-1])["v"], "nothing was copied before it was cut off"
        assert await broker.claims.release("q", "g") == 1000
        assert not records(kvs[-1])["v"]
        clock.advance(3600)
        await broker.upkeep()
        assert await drain(broker, "q") == list(range(1000))


async def test_stages_of_an_earlier_version_are_read_as_before(url: str, clock: FrozenClock) -> None:
    """Bodies one by one, and a reference that does not tell how many there are."""
    async with opened(url, clock) as broker:
        await broker.stages.upload("q", STAGE, 0, PlainDrafts([b"%d" % n for n in range(300)]))
        await broker.stages.commit("q", "job", "1", [("0", "0")])
        await broker.stages.upload("q", StageName("job", "2", "0", "0"), 0, PlainDrafts([b"300"]))
        kv = broker.store._kv  # type: ignore[attr-defined]
        ops: list[Op] = []
        for key, value in [*kv.scan(b"b", keys.after(b"b")), *kv.scan(b"e", keys.after(b"e"))]:
            record = msgspec.msgpack.decode(value)
            for told in [record] if key[:1] == b"b" else record[-1]:
                del told[4:]
            ops.append((key, msgspec.msgpack.encode(record)))
        assert len(ops) == 4
        kv.write(ops, True)
    async with opened(url, clock) as broker:
        await broker.stages.commit("q", "job", "2", [("0", "0")])
        claim, _ = await broker.claims.next("q", "g", 0, max_messages=250)
        assert claim is not None
        assert (claim.messages, claim.bytes) == (250, 10 + 180 + 450)
        assert await read(broker) == list(range(250))
        await broker.claims.ack("q", "g", 1)
        assert await read(broker) == list(range(250))
        assert await drain(broker, "q") == list(range(250, 301))


async def test_a_commit_writes_little_and_nothing_of_it_stays_when_all_is_acked(
    url: str, clock: FrozenClock, kvs: list[FaultyKV]
) -> None:
    mixed = [draft(n, group="m" if n % 7 == 0 else None, recipient="ann" if n % 11 == 0 else None) for n in range(60)]
    async with opened(url, clock) as broker:
        await broker.stages.upload("q", STAGE, 0, PlainDrafts([b'"%b"' % (b"x" * 900)] * 2000))
        await broker.stages.upload("q", STAGE, 1, mixed)
        await broker.stages.upload("q", STAGE, 2, [draft(n, delay=5, headers={"n": "1"}) for n in range(200)])
        ops = written(kvs[-1])
        await broker.stages.commit("q", "job", "1", [("0", "0")])
        assert sum(len(value or b"") for _, value in ops) < 20_000
        clock.advance(5)
        got = await broker.receive("q", max=500, visibility_timeout=1)
    clock.advance(1)
    async with opened(url, clock) as broker:
        assert len(got) == 500
        found, _ = await broker.claims.next("q", "g", 0, max_messages=700)
        assert found is not None
        some = (await broker.peek("q", status="ready")).messages[0].message.id
        await broker.edit("q", some, body=b'"edited"')
        await broker.claims.fetch("q", "g", 1)
        await broker.claims.ack("q", "g", 1)
    async with opened(url, clock) as broker:
        while got := await broker.receive("q", max=1000, consumer="ann"):
            assert set(await broker.ack("q", leases(got))) == {"done"}
        clock.advance(3600)
        await broker.upkeep()
        assert records(kvs[-1]) == Counter({"p": 1})


async def test_what_was_uploaded_goes_with_its_stage_its_queue_or_a_purge(
    url: str, clock: FrozenClock, kvs: list[FaultyKV]
) -> None:
    plain: Sequence[Draft] = PlainDrafts([b"1"] * 1000)
    async with opened(url, clock, upkeep_batch=5) as broker:
        await broker.stages.upload("q", STAGE, 0, plain)
        await broker.stages.discard("q", "job", "1")
        assert records(kvs[-1]) == Counter()
        await broker.stages.upload("q", STAGE, 0, plain)
        clock.advance(86400)
        await broker.upkeep()
        assert records(kvs[-1]) == Counter()
        await broker.stages.upload("q", STAGE, 0, plain)
        await broker.stages.commit("q", "job", "1", [("0", "0")])
        await broker.purge("q")
        await broker.stages.upload("q", StageName("job", "2", "0", "0"), 0, plain)
        await broker.delete_queue("q")
        for _ in range(10):
            await broker.upkeep()
        assert records(kvs[-1]) == Counter()


async def test_uploads_are_numbered_on_after_a_restart(url: str, kvs: list[FaultyKV]) -> None:
    for batch in "1234":
        async with opened(url) as broker:
            await broker.stages.upload("q", StageName("job", batch, "0", "0"), 0, PlainDrafts([batch.encode()] * 3))
            if batch == "2":
                await broker.stages.commit("q", "job", "1", [("0", "0")])
    async with opened(url) as broker:
        for batch in "234":
            await broker.stages.commit("q", "job", batch, [("0", "0")])
        assert await drain(broker, "q") == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]


def test_the_names_of_a_stage_come_out_of_its_key_as_they_went_in() -> None:
    for name in (STAGE, StageName("a", "b.c", "-", "x" * 128)):
        assert keys.read_part_key(keys.part_key(7, name, 12)) == (name, 12)
    assert keys.read_claim_key(keys.claim_key(7, "group.1", 5)) == ("group.1", 5)


async def test_pages_of_the_history_of_a_large_commit_decode_little_more_than_they_return(
    url: str, kvs: list[FaultyKV]
) -> None:
    """A page reads whole records, so all events of the commit in one record would be decoded for every page."""
    count = 20_000
    async with opened(url) as broker:
        await broker.configure("q", {"history": "events"})
        await broker.stages.upload("q", STAGE, 0, PlainDrafts(pack([b"1"] * count)))
        await broker.stages.commit("q", "job", "1", [("0", "0")])
        written = [keys.decode_events(value) for _, value in kvs[-1].kv.scan(b"h", b"i")]
        events = [sum(len(run.sizes or [0]) for run in runs) for runs in written]
        assert sum(events) == count
        assert max(events) <= 2 * history.RECORD_EVENTS
        offsets: list[int] = []
        while found := (await broker.history(after=len(offsets), limit=777)).records:
            offsets += [record.offset for record in found]
        assert offsets == list(range(1, count + 1))
