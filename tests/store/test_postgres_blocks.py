"""Blocks in PostgreSQL: messages that were sent together share a row, and nobody can tell, also not other brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from miniq.batch import StageName
from miniq.broker import Broker
from miniq.message import SECOND, Event, Lease, Stored
from miniq.options import Options
from miniq.store import open_store
from miniq.store.postgres import PostgresStore, blocks, schema, taking
from miniq.store.postgres.address import parse
from tests import postgresql
from tests.clock import FrozenClock
from tests.kit import bodies, draft, ids, leases, send
from tests.store.calls import read_claim, take


@pytest.fixture
def url() -> str:
    return postgresql.url()


@pytest.fixture
async def two(url: str, clock: FrozenClock) -> AsyncIterator[tuple[Broker, Broker]]:
    """Two brokers on one database, with the queue q."""
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as one, Broker(open_store(url), options, clock) as other:
        await one.configure("q")
        await other.queues()
        yield one, other


@pytest.fixture
def broker(two: tuple[Broker, Broker]) -> Broker:
    return two[0]


def counts(url: str, table: str = "messages") -> list[int]:
    """How many messages are in each row, in order."""
    name = parse(url, durable=True).schema
    key, order = ("queue", "rank, id") if table == "messages" else ("readers", "readers, number, place")
    asked = f"SELECT count FROM {name}.{table} WHERE {key} > 0 ORDER BY {order}"  # noqa: S608
    return [row[0] for row in postgresql.server().execute(asked)]


async def all_of(broker: Broker, **asked: Any) -> list[Stored]:
    """Everything in the queue, by pages."""
    found: list[Stored] = []
    after = None
    while True:
        page = await broker.peek("q", after=after, **asked)
        found += page.messages
        after = page.next
        if after is None:
            return found


async def test_what_is_sent_together_is_leased_and_acked_as_one_row(broker: Broker, url: str) -> None:
    await send(broker, "q", *range(60))
    assert counts(url) == [25, 25, 10]
    got = await broker.receive("q", max=100)
    assert bodies(got) == list(range(60))
    assert counts(url) == [25, 25, 10]
    assert await broker.ack("q", leases(got)) == ["done"] * 60
    assert counts(url) == []
    assert (await broker.queue("q")).counts.total == 0


async def test_a_few_or_large_ones_and_those_that_are_not_alike_have_rows_of_their_own(
    broker: Broker, url: str
) -> None:
    await send(broker, "q", 1, 2, 3)
    await send(broker, "q", *(["x" * (blocks.BYTES // 4 - 2)] * 6))
    await send(broker, "q", 1, 2, 3, 4, headers={"a": "b"})
    assert counts(url) == [1, 1, 1, 4, 1, 1, 1, 1, 1, 1]
    got = await broker.receive("q", max=100)
    assert [len(body) if isinstance(body, str) else body for body in bodies(got)][:9] == [1, 2, 3, *[65534] * 6]


async def test_whoever_receives_fewer_gets_exactly_those_in_order(broker: Broker, url: str) -> None:
    await send(broker, "q", *(f"body {n}" * n for n in range(20)))
    assert bodies(await broker.receive("q", max=6)) == [f"body {n}" * n for n in range(6)]
    assert counts(url) == [6, 6, 6, 2]
    assert bodies(await broker.receive("q", max=7)) == [f"body {n}" * n for n in range(6, 13)]
    assert bodies(await broker.receive("q", max=1)) == ["body 13" * 13]
    assert bodies(await broker.receive("q", max=100)) == [f"body {n}" * n for n in range(14, 20)]


async def test_a_take_ends_within_a_block_where_its_bytes_do(broker: Broker, url: str) -> None:
    await send(broker, "q", *("x" * 8 for _ in range(12)))  # 10 bytes each
    now = broker.clock.now()

    async def taken(limit: int, most: int) -> int:
        return len(await take(broker.store, limit=limit, max_bytes=most, now=now, until=now + 1))

    assert await taken(100, 49) == 4
    assert await taken(100, 3) == 1
    assert await taken(2, 1000) == 2
    assert await taken(100, 1000) == 5


async def test_some_of_a_block_are_acked(broker: Broker, url: str) -> None:
    await send(broker, "q", *range(10))
    got = await broker.receive("q", max=10)
    some = leases(got)
    assert await broker.ack("q", [*some[3:5], some[8]]) == ["done"] * 3
    assert counts(url) == [1] * 7
    assert await broker.ack("q", some) == ["done"] * 3 + ["missing"] * 2 + ["done"] * 3 + ["missing", "done"]
    assert (await broker.queue("q")).counts.total == 0


async def test_a_block_may_be_acked_in_any_order_and_a_message_be_named_twice(broker: Broker) -> None:
    await send(broker, "q", *range(8))
    some = leases(await broker.receive("q", max=8))
    assert await broker.ack("q", [*reversed(some), some[2]]) == ["done"] * 8 + ["missing"]
    await send(broker, "q", *range(8))
    some = leases(await broker.receive("q", max=8))
    assert await broker.ack("q", [*some, *some]) == ["done"] * 8 + ["missing"] * 8


async def test_a_stale_receipt_splits_nothing(broker: Broker, clock: FrozenClock, url: str) -> None:
    await send(broker, "q", *range(8))
    old = leases(await broker.receive("q", max=8, visibility_timeout=1))
    clock.advance(2)
    await broker.receive("q", max=8)
    assert await broker.ack("q", old[2:4]) == ["stale"] * 2
    assert await broker.ack("q", old) == ["stale"] * 8
    assert counts(url) == [8]


async def test_some_of_a_block_are_extended_or_released(broker: Broker, clock: FrozenClock, url: str) -> None:
    await send(broker, "q", *range(8))
    some = leases(await broker.receive("q", max=8, visibility_timeout=10))
    assert (await broker.extend("q", some[2:4], 100))[1] == ["done"] * 2
    assert await broker.release("q", some[6:7]) == ["done"]
    assert bodies(await broker.receive("q", max=8)) == [6]
    clock.advance(50)
    assert bodies(await broker.receive("q", max=8)) == [0, 1, 4, 5, 6, 7]
    assert (await broker.extend("q", some[:3], 100))[1] == ["stale", "stale", "done"]


async def test_a_whole_block_is_extended_released_and_runs_out_as_one_row(
    broker: Broker, clock: FrozenClock, url: str
) -> None:
    await send(broker, "q", *range(8))
    for _ in range(2):
        got = await broker.receive("q", max=8, visibility_timeout=10)
        assert (await broker.extend("q", leases(got), 20))[1] == ["done"] * 8
        clock.advance(21)
    got = await broker.receive("q", max=8)
    assert [stored.receives for stored in got] == [3] * 8
    assert await broker.release("q", leases(got), delay=5) == ["done"] * 8
    info = (await broker.queue("q")).counts
    assert (info.ready, info.delayed, info.leased) == (0, 8, 0)
    assert counts(url) == [8]


async def test_one_of_a_block_is_edited_removed_and_looked_at(broker: Broker) -> None:
    sent = await send(broker, "q", *range(8))
    assert bodies([await broker.get("q", id) for id in sent]) == list(range(8))
    await broker.edit("q", sent[5], body=b'"new"', priority=5)
    await broker.remove("q", sent[0])
    assert bodies(await broker.receive("q", max=10)) == ["new", 1, 2, 3, 4, 6, 7]


async def test_dead_letters_leave_their_blocks_and_come_back(broker: Broker, clock: FrozenClock, url: str) -> None:
    await broker.configure("q", {"max_receives": 1, "dead_letter_queue": "dead"})
    await send(broker, "q", *range(8))
    await send(broker, "q", *range(8, 16))
    got = await broker.receive("q", max=16, visibility_timeout=1)
    await broker.ack("q", leases(got)[:3])
    clock.advance(2)
    assert await broker.receive("q", max=16) == []
    dead = (await broker.peek("dead")).messages
    assert bodies(dead) == list(range(3, 16))
    assert all(stored.message.dead is not None for stored in dead)
    assert counts(url) == [1] * 13
    await broker.redrive("dead")
    back: list[Stored] = []
    while len(back) < 13:
        back += await broker.receive("q", max=16)
        await asyncio.sleep(0.01)
    assert sorted(bodies(back)) == list(range(3, 16))


@pytest.mark.parametrize("status", [None, "ready", "delayed", "leased"])
@pytest.mark.parametrize("limit", [1, 4, 7])
async def test_a_cursor_may_lie_within_a_block(broker: Broker, status: Any, limit: int) -> None:
    delay = 60 if status == "delayed" else None
    sent = [id for n in range(3) for id in await send(broker, "q", *range(10 * n, 10 * n + 10), delay=delay)]
    if status == "leased":
        await broker.receive("q", max=30)
    found = await all_of(broker, status=status, limit=limit)
    assert sorted(ids(found)) == sent
    assert sorted(bodies(found)) == list(range(30))


async def test_the_history_tells_every_message_of_a_block(clock: FrozenClock, url: str) -> None:
    told: list[list[Event]] = []
    for address in ("memory:", url):
        async with Broker(open_store(address), Options(upkeep_interval=0), clock) as broker:
            await broker.configure("q", {"history": "full"})
            known = await send(broker, "q", *(f"body {n}" * n for n in range(10)))
            got = await broker.receive("q", max=7, visibility_timeout=1, consumer="ann")
            await broker.release("q", leases(got)[:2])
            await broker.extend("q", leases(got)[2:], 3)
            clock.advance(4)
            got = await broker.receive("q", max=20)
            await broker.ack("q", leases(got)[1:])
            await send(broker, "q", *range(6))
            await broker.claims.next("q", "g", 0)
            await broker.claims.release("q", "g")
            await broker.claims.next("q", "g", 1)
            await broker.claims.fetch("q", "g", 2)
            await broker.claims.ack("q", "g", 2)
            await send(broker, "q", *range(6))
            assert await broker.purge("q") == 7
            events = [record.event for record in (await broker.history(limit=1000)).records]
            assert [event.id for event in events[:10]] == known
            order = sorted({event.id for event in events})
            clock.advance(-4)
        told.append([_numbered(event, order) for event in events])
    assert told[1] == told[0]
    assert len(told[0]) > 50


def _numbered(event: Event, order: list[str]) -> Event:
    """An event with a number in place of its id, which differs from broker to broker."""
    values = {name: getattr(event, name) for name in Event.__struct_fields__}
    return Event(**(values | {"id": str(order.index(event.id))}))


async def test_a_claim_ends_within_a_block_and_is_read_from_within(broker: Broker, url: str) -> None:
    for start in (0, 10, 20):
        await send(broker, "q", *range(start, start + 10))

    async def read(number: int, start: int, stop: int, most: int = 10**6) -> list[int]:
        now = broker.clock.now()
        found = await read_claim(broker.store, number, start=start, stop=stop, max_bytes=most, now=now)
        return [int(message.body) for portion in found for message in portion.messages]

    claim, _ = await broker.claims.next("q", "g", 0, max_messages=14)
    assert claim is not None
    assert claim.messages == 14
    assert counts(url) == [10, 4, 4, 2, 10]
    assert counts(url, "claimed") == [10, 4]
    for _ in range(2):
        assert await read(1, 0, 14) == list(range(14))
        assert await read(1, 7, 12) == list(range(7, 12))
        assert await read(1, 11, 14) == [11, 12, 13]
        assert await read(1, 8, 14, most=5) == [8, 9, 10]
        assert await read(1, 12, 14, most=1) == [12]
        assert await broker.claims.next("q", "g", 0, max_messages=14) == (claim, 0)
    assert bodies(await broker.receive("q", max=3)) == [14, 15, 16]
    await broker.claims.fetch("q", "g", 1)
    await broker.claims.next("q", "g", 1)
    assert await read(1, 7, 12) == list(range(7, 12))
    assert await read(2, 0, 13) == list(range(17, 30))
    assert await broker.claims.release("q", "g") == 13
    assert bodies(await broker.receive("q", max=30)) == list(range(17, 30))


async def test_a_claim_is_read_from_within_a_block_in_many_steps(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniq.store.postgres.claims.PAGE", 2)
    for _ in range(5):
        await send(broker, "q", *range(5))
    await broker.claims.next("q", "g", 0)
    for most in range(1, 25):
        found = await read_claim(broker.store, 1, start=3, stop=25, max_bytes=most, now=broker.clock.now())
        assert sum(len(portion) for portion in found) == min(most, 22)


async def test_a_block_in_a_claim_is_not_split(broker: Broker, url: str) -> None:
    """Whoever wanted to split it did not know that it was claimed just now."""
    sent = await send(broker, "q", *range(10))
    await broker.claims.next("q", "g", 0)
    kept = broker.store
    assert isinstance(kept, PostgresStore)
    await kept._db.connections.call(lambda connection: kept._db.split(connection, "q", sent[:1], 1))
    assert counts(url) == [10]
    await broker.claims.fetch("q", "g", 1)
    await broker.claims.ack("q", "g", 1)
    assert (await broker.queue("q")).counts.total == 0
    assert counts(url) == []


async def test_a_commit_makes_blocks(broker: Broker, url: str) -> None:
    plain = [draft(n) for n in range(130)]
    odd = [draft(n, headers={"a": "b"}) for n in range(130, 135)]
    await broker.stages.upload("q", StageName("j", "1", "0", "0"), 0, plain)
    await broker.stages.upload("q", StageName("j", "1", "0", "0"), 1, odd)
    await broker.stages.commit("q", "j", "1", [("0", "0")])
    assert counts(url) == [128, *[1] * 7]
    got = await broker.receive("q", max=1000)
    assert bodies(got) == list(range(135))
    assert ids(got) == ids(await all_of(broker))
    assert await broker.ack("q", leases(got)) == ["done"] * 135


async def test_takers_of_two_brokers_split_blocks_and_get_each_message_once(two: tuple[Broker, Broker]) -> None:
    for start in range(0, 600, 100):
        await send(two[0], "q", *range(start, start + 100))
    got: list[int] = []

    async def take(broker: Broker, most: int) -> None:
        while len(got) < 600:
            got.extend(bodies(await broker.receive("q", max=most, visibility_timeout=100)))
            await asyncio.sleep(0)

    takers = [take(broker, most) for broker in two for most in (1, 3, 10, 25, 70)]
    await asyncio.wait_for(asyncio.gather(*takers), 60)
    assert sorted(got) == list(range(600))


async def test_a_block_that_another_splits_now_is_waited_for(
    two: tuple[Broker, Broker], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "PAUSES", [0.01] * 500)
    await send(two[0], "q", *range(10))
    with psycopg.connect(parse(url, durable=True).conninfo) as connection:
        connection.execute("SELECT FROM messages WHERE queue > 0 FOR UPDATE")
        receiving = asyncio.create_task(two[0].receive("q", max=3))
        await asyncio.sleep(0.1)
        assert not receiving.done()
    assert bodies(await receiving) == [0, 1, 2]


async def test_workers_of_two_brokers_ack_a_block_one_by_one_at_once(two: tuple[Broker, Broker]) -> None:
    for _ in range(5):
        await send(two[0], "q", *range(24))
        some = leases(await two[0].receive("q", max=24))
        acks = [two[n % 2].ack("q", [lease]) for n, lease in enumerate(some)]
        assert await asyncio.gather(*acks) == [["done"]] * 24
    assert (await two[0].queue("q")).counts.total == 0


async def test_an_ack_of_all_beside_an_extend_of_one_loses_nothing(two: tuple[Broker, Broker]) -> None:
    one, other = two
    for n in range(30):
        await send(one, "q", *range(25))
        some = leases(await one.receive("q", max=25))
        _, acked = await asyncio.gather(other.extend("q", some[n % 25 :][:1], 50), one.ack("q", some))
        assert acked == ["done"] * 25
    assert (await one.queue("q")).counts.total == 0


async def test_releases_beside_acks_of_overlapping_parts_of_blocks_do_not_lock_each_other_out(
    two: tuple[Broker, Broker],
) -> None:
    one, other = two
    for _ in range(10):
        await send(one, "q", *range(100))
        some = leases(await one.receive("q", max=100))
        parts: list[list[Lease]] = [some[10:60], some[40:90], some[:30], some[70:]]
        done = await asyncio.gather(
            one.ack("q", parts[0]), other.release("q", parts[1]), other.ack("q", parts[2]), one.release("q", parts[3])
        )
        left = [outcome for outcomes in (done[0], done[2]) for outcome in outcomes].count("done")
        assert (await one.queue("q")).counts.total == 100 - left
        await one.purge("q")


OLD = """
    INSERT INTO queues (name, settings) VALUES ('q', '{}');
    INSERT INTO messages (id, sent_at, due_at, visible_at, queue, size, rank, body)
    SELECT ('0190000000007000800000000000000' || n)::uuid, 1, 1, 1, 1, 1, 0, n::text::bytea
    FROM generate_series(0, 7) n;
    UPDATE messages SET visible_at = 4611686018427387904, leased = true, receives = 1, receipt = 'g/1', consumer = 'g'
    WHERE body IN ('0', '1');
    INSERT INTO tallies VALUES (1, 0, 8, 8, '01900000-0000-7000-8000-000000000007');
    INSERT INTO readers (queue, name, epoch, acked, last) VALUES (1, 'g', 0, 0, 1);
    INSERT INTO claims (readers, number, messages, bytes, made_at) VALUES (1, 1, 2, 2, 1);
    INSERT INTO claimed (readers, number, place, id, sent_at, due_at, size, receives, rank, body)
    SELECT 1, 1, row_number() OVER (ORDER BY id) - 1, id, 1, 1, 1, 1, 0, body FROM messages WHERE leased;
    INSERT INTO meta (version) VALUES (3);
"""


async def test_rows_of_the_version_before_blocks_are_taken_up(url: str) -> None:
    address = parse(url, durable=True)
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {address.schema}".encode())
        for number, text in schema.migrations().items():
            if number <= 3:
                connection.execute(text.encode())
        connection.execute(OLD)
    clock = FrozenClock()
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        await broker.configure("q", {"retention": 3e9})
        (claimed,) = await read_claim(broker.store, 1, stop=2, max_bytes=100)
        assert [message.body for message in claimed.messages] == [b"0", b"1"]
        got = await broker.receive("q", max=4)
        assert bodies(got) == [2, 3, 4, 5]
        assert await broker.ack("q", leases(got)) == ["done"] * 4
        await send(broker, "q", *range(8, 20))
        await broker.claims.ack("q", "g", 1)
        assert bodies(await broker.receive("q", max=100)) == [6, 7, *range(8, 20)]
        assert (await broker.queue("q")).counts.total == 14
    assert counts(url) == [1, 1, 12]


LEASED = """
    INSERT INTO queues (name, settings) VALUES ('q', '{}');
    INSERT INTO messages (id, sent_at, due_at, visible_at, taken_at, queue, size, rank, body, receives, receipt, leased)
    SELECT ('0190000000007000800000000000000' || n)::uuid, 1, visible_at, visible_at, taken_at, 1, 1, 0, n::text::bytea,
        (receipt IS NOT NULL)::int, receipt, receipt IS NOT NULL
    FROM (VALUES
        (0, 1, null, null), (1, 2, null, null), (2, %(later)s, null, null),
        (3, 2, 1, 'expired'), (4, %(later)s, 1, 'leased')
    ) AS m (n, visible_at, taken_at, receipt);
    INSERT INTO tallies VALUES (1, 0, 5, 5, '01900000-0000-7000-8000-000000000004');
    INSERT INTO meta (version) VALUES (4);
"""


async def test_delays_and_leases_of_the_version_that_had_delays_in_line_are_taken_up(url: str) -> None:
    address, clock = parse(url, durable=True), FrozenClock()
    later = clock.now() + 10 * SECOND
    with psycopg.connect(address.conninfo, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {address.schema}".encode())
        for number, text in schema.migrations().items():
            if number <= 4:
                connection.execute(text.encode())
        connection.execute(LEASED.replace("%(later)s", str(later)).encode())
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        await broker.configure("q", {"retention": 3e9})
        found = (await broker.queue("q")).counts
        assert (found.ready, found.delayed, found.leased) == (3, 1, 1)
        assert bodies(await broker.receive("q", max=9, visibility_timeout=99)) == [0, 1, 3]
        clock.advance(10)
        assert bodies(await broker.receive("q", max=9)) == [2, 4]


async def test_delayed_messages_are_not_in_line(broker: Broker, clock: FrozenClock, url: str) -> None:
    """A receive would have to skip all of them."""
    address = parse(url, durable=True)
    await send(broker, "q", *range(20), delay=5)
    await broker.send("q", [draft(n, delay=5, key=str(n)) for n in range(5)])
    await send(broker, "q", "now")
    with psycopg.connect(address.conninfo) as connection:
        in_line = connection.execute("SELECT sum(count) FROM messages WHERE queue > 0 AND NOT later").fetchall()
    assert in_line == [(1,)]
    clock.advance(5)
    assert len(await broker.receive("q", max=99)) == 26


async def test_a_receive_does_not_wait_for_all_messages_that_are_due_at_once(
    broker: Broker, clock: FrozenClock, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "RETURNED", 2)
    await broker.send("q", [draft(n, delay=5, recipient="bob") for n in range(30)])
    await broker.send("q", [draft("ann's", delay=5, recipient="ann")])
    clock.advance(5)
    assert bodies(await broker.receive("q", max=1, consumer="bob")) == [0]
    with psycopg.connect(parse(url, durable=True).conninfo) as connection:
        asked = "SELECT count(*) FROM messages WHERE queue > 0 AND later AND receipt IS NULL"
        waiting = connection.execute(asked).fetchall()
    assert waiting == [(29,)]
    assert bodies(await broker.receive("q", max=9, consumer="ann")) == ["ann's"]
    assert bodies(await broker.receive("q", max=99, consumer="bob")) == list(range(1, 30))
