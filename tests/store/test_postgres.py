"""What is the PostgreSQL store's own: migrations, rights, addresses, hints, history of several writers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg
import pytest

from miniq.batch import Committed, StageName
from miniq.broker import Broker
from miniq.errors import InvalidRequest, MissingExtra, StoreFormat, StoreUnavailable
from miniq.message import HistoryRecord, QueueSettings
from miniq.options import Options
from miniq.store import open_store, shown
from miniq.store.postgres import PostgresStore, queries, rows, schema
from miniq.store.postgres.access import execute
from miniq.store.postgres.address import parse
from tests import postgresql
from tests.clock import FrozenClock
from tests.kit import draft, drain, leases, send


@pytest.fixture
def url() -> str:
    return postgresql.url()


@pytest.fixture
async def two(url: str, clock: FrozenClock) -> AsyncIterator[tuple[Broker, Broker]]:
    """Two brokers on one database."""
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as one, Broker(open_store(url), options, clock) as other:
        yield one, other


async def until_waiting(number: int, work: asyncio.Task[None] | None = None) -> None:
    """Until so many statements of brokers wait for others, or some work is done without."""
    asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'miniq' AND wait_event_type = 'Lock'"
    while work is None or not work.done():
        if postgresql.server().execute(asked) == [(number,)]:
            return
        await asyncio.sleep(0)


CATALOG = """
    SELECT 'column', table_name, column_name, data_type || coalesce(collation_name, '') || coalesce(column_default, '')
        || is_nullable || is_identity FROM information_schema.columns WHERE table_schema = %(schema)s
    UNION ALL SELECT 'index', tablename, indexname, replace(indexdef, %(schema)s, '') FROM pg_indexes
        WHERE schemaname = %(schema)s
    UNION ALL SELECT 'constraint', conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
        WHERE connamespace = %(schema)s::regnamespace
    UNION ALL SELECT 'function', proname, pg_get_function_identity_arguments(oid), prosrc FROM pg_proc
        WHERE pronamespace = %(schema)s::regnamespace
    UNION ALL SELECT 'options', relname, array_to_string(reloptions, ','), relkind::text FROM pg_class
        WHERE relnamespace = %(schema)s::regnamespace
    UNION ALL SELECT 'storage', attrelid::regclass::text, attname, attstorage::text FROM pg_attribute JOIN pg_class c
        ON c.oid = attrelid WHERE relnamespace = %(schema)s::regnamespace AND relkind = 'r' AND NOT attisdropped
    ORDER BY 1, 2, 3, 4
"""


def catalog(name: str) -> list[Any]:
    """Everything that a schema is made of."""
    with psycopg.connect(postgresql.server().uri, autocommit=True) as connection:
        connection.execute(f"SET search_path TO {name}".encode())
        return connection.execute(CATALOG.encode(), {"schema": name}).fetchall()


async def test_the_migrated_schema_equals_the_fresh_one(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()
    with psycopg.connect(postgresql.server().uri, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA migrated")
        connection.execute("SET search_path TO migrated")
        for text in schema.migrations().values():
            connection.execute(text.encode())
    fresh = catalog(parse(url, durable=True).schema)
    assert len(fresh) > 80
    assert catalog("migrated") == fresh
    postgresql.server().execute("DROP SCHEMA migrated CASCADE")


async def test_an_old_schema_is_migrated_at_start_and_brokers_that_start_together_do_not_meet(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [open_store(url) for _ in range(4)]
    await asyncio.gather(*[store.open() for store in stores])
    await stores[0].save_queue("q", QueueSettings(delay=3))
    for store in stores:
        await store.close()
    added = {schema.VERSION + 1: "ALTER TABLE meta ADD COLUMN extra integer DEFAULT 5"}
    known = schema.migrations()
    monkeypatch.setattr(schema, "migrations", lambda: known | added)
    monkeypatch.setattr(schema, "VERSION", schema.VERSION + 1)
    stores = [open_store(url) for _ in range(4)]
    await asyncio.gather(*[store.open() for store in stores])
    assert (await stores[3].queues())["q"].delay == 3
    for store in stores:
        await store.close()
    name = parse(url, durable=True).schema
    assert postgresql.server().execute(f"SELECT version, extra FROM {name}.meta") == [(schema.VERSION, 5)]  # noqa: S608


async def test_a_schema_of_a_newer_version_is_refused(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.close()
    name = parse(url, durable=True).schema
    postgresql.server().execute(f"UPDATE {name}.meta SET version = 99")  # noqa: S608
    with pytest.raises(StoreFormat, match=r"version 99, this MiniQ knows up to"):
        await open_store(url).open()


async def test_a_role_needs_its_schema_and_no_more(url: str) -> None:
    server = postgresql.server()
    server.execute("CREATE ROLE plain LOGIN")
    try:
        mine = url.replace("postgres@", "plain@")
        store = open_store(mine)
        with pytest.raises(StoreUnavailable, match="CREATE SCHEMA"):
            await store.open()
        await store.close()
        name = parse(url, durable=True).schema
        server.execute(f"CREATE SCHEMA {name} AUTHORIZATION plain")
        async with Broker(open_store(mine), Options(upkeep_interval=0)) as broker:
            await broker.configure("q", {"history": "full"})
            await send(broker, "q", 1, 2, group="g")
            await broker.ack("q", leases(await broker.receive("q", max=5)))
            await broker.upkeep()
            assert len((await broker.history()).records) == 4
            await broker.delete_queue("q")
            await broker.upkeep()
        server.execute(f"DROP SCHEMA {name} CASCADE")
    finally:
        server.execute("DROP ROLE plain")


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ("postgresql://h/d?schema=Bad-Name", "schema"),
        ("postgresql://h/d?schema=pg_mine", "schema"),
        ("postgresql://h/d?colour=red", "colour"),
        ("postgresql://h:port/d", "port"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_by_name(wrong: str, word: str) -> None:
    with pytest.raises(InvalidRequest, match=word) as error:
        open_store(wrong)
    assert error.value.field == "store"


def test_a_password_is_never_shown() -> None:
    assert shown("postgresql://me:s3cret@h:1/d?password=s3cret&x=1") == "postgresql://me:***@h:1/d?password=***&x=1"
    assert shown("rocksdb:./data") == "rocksdb:./data"


async def test_a_server_that_is_not_there_is_named(url: str) -> None:
    store = open_store("postgresql://nobody@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable, match="not available"):
        await store.open()
    await store.close()


def test_a_missing_driver_names_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith(("psycopg", "miniq.store.postgres"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[postgresql\]' in the checkout"):
        open_store("postgresql://h/d")


async def test_backup_is_left_to_postgresql(url: str) -> None:
    async with Broker(open_store(url), Options(upkeep_interval=0)) as broker:
        with pytest.raises(InvalidRequest, match="pg_dump"):
            await broker.backup("/tmp/x")


async def test_a_page_of_the_history_reads_few_more_events_than_it_has(
    two: tuple[Broker, Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = two
    await one.configure("q", {"history": "events"})
    for _ in range(40):
        await send(one, "q", 1, 2, 3)  # the events of a call are one row, which is read as a whole
    read: list[int] = []
    decode = rows.records

    def counted(row: Sequence[Any]) -> list[HistoryRecord]:
        records = list(decode(row))
        read.append(len(records))
        return records

    monkeypatch.setattr(rows, "records", counted)
    for after, limit in ((0, 1), (1, 1), (10, 7), (59, 12), (100, 3)):
        read.clear()
        page = await other.history(after=after, limit=limit)
        assert [record.offset for record in page.records] == [*range(after + 1, after + 1 + limit)]
        assert sum(read) <= limit + 2 * 2, (after, limit, read)  # the first and the last row may have two more


async def test_history_of_several_writers_has_no_gaps_and_a_reader_misses_nothing(two: tuple[Broker, Broker]) -> None:
    one, other = two
    await one.configure("q", {"history": "events"})
    await other.queues()
    seen: list[int] = []
    writing = True

    async def write(broker: Broker) -> None:
        for number in range(30):
            await send(broker, "q", *range(number % 4 + 1))
            if got := await broker.receive("q", max=3):
                await broker.ack("q", leases(got))

    async def follow() -> None:
        after = 0
        while True:
            ending = not writing
            page = await other.history(after=after, limit=17)
            seen.extend(record.offset for record in page.records)
            if ending and page.next == after:
                return
            after = page.next

    reader = asyncio.create_task(follow())
    await asyncio.gather(*[write(broker) for broker in (one, other, one, other)])
    writing = False
    await asyncio.wait_for(reader, 30)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) > 400


async def test_room_holds_across_brokers(two: tuple[Broker, Broker]) -> None:
    one, other = two
    await one.configure("q", {"max_length": 10})
    await other.queues()
    done = await asyncio.gather(*[send(broker, "q", 1, 2, 3) for broker in (one, other) * 6], return_exceptions=True)
    assert sum(isinstance(answer, list) for answer in done) == 3
    assert (await one.queue("q")).counts.total == 9


async def test_one_of_many_equal_sends_counts_across_brokers(two: tuple[Broker, Broker]) -> None:
    one, other = two
    sends = [broker.send("q", [draft(n, dedup_id="same")]) for n, broker in enumerate((one, other) * 6)]
    calls = [broker.send("q", [draft(1)], call="same") for broker in (one, other) * 6]
    assert len({tuple(ids) for ids in await asyncio.gather(*sends)}) == 1
    assert len({tuple(ids) for ids in await asyncio.gather(*calls)}) == 1
    assert (await one.queue("q")).counts.total == 2


async def test_heads_of_groups_are_never_lost_between_brokers(two: tuple[Broker, Broker]) -> None:
    one, other = two
    sent = 0
    got: list[str] = []

    async def produce(broker: Broker) -> None:
        nonlocal sent
        for number in range(40):
            await send(broker, "q", number, group="g")
            sent += 1

    async def consume(broker: Broker) -> None:
        while sent < 80 or len(got) < 80:
            if found := await broker.receive("q", max=5, visibility_timeout=100):
                assert len(found) == 1, "two of a group in flight"
                assert await broker.ack("q", leases(found)) == ["done"]
                got.append(found[0].message.id)
            await asyncio.sleep(0)

    work = [produce(one), produce(other), *(consume(broker) for broker in (one, other, one, other))]
    await asyncio.wait_for(asyncio.gather(*work), 60)
    assert len(set(got)) == 80


async def test_readers_of_two_brokers_make_each_claim_once(two: tuple[Broker, Broker]) -> None:
    one, other = two
    for start in range(0, 2000, 500):
        await send(one, "q", *range(start, start + 500))
    await other.queues()
    received = 0
    for after in range(4):
        asked = [broker.claims.next("q", "g", after, max_messages=500) for broker in (one, other) * 3]
        taken, *answers = await asyncio.gather(other.receive("q", max=5), *asked)
        assert len({claim for claim, _ in answers}) == 1
        assert answers[0][0] is not None
        if taken:  # not if a claim was first to all that is left
            assert await other.ack("q", leases(taken)) == ["done"] * len(taken)
        received += len(taken)
        await other.claims.fetch("q", "g", after + 1)
    await one.claims.ack("q", "g", 4)
    assert (await one.queue("q")).counts.total == 0
    kept = [claim.messages for claim in (await other.claims.list("q"))[0].claims]
    assert sum(kept) == 2000 - received


async def test_commits_of_two_brokers_count_once_and_keep_groups_dedup_ids_and_history_whole(
    two: tuple[Broker, Broker],
) -> None:
    one, other = two
    await one.configure("q", {"history": "full"})
    await other.queues()
    odd = {'b\\c "expires_at":0': 'a\0b\\c "expires_at":0'}
    for batch in "12":
        drafts = [draft(n, group="g") for n in range(20)]
        drafts += [draft(n, dedup_id=f"d{n}", headers=odd, ttl=60) for n in range(20)]
        await other.stages.upload("q", StageName("j", batch, "0", "0"), 0, drafts)
        await other.stages.upload("q", StageName("j", batch, "1", "0"), 0, [draft(n) for n in range(1500)])
    listed = [("0", "0"), ("1", "0")]
    done, *repeated = await asyncio.gather(
        *[broker.stages.commit("q", "j", "1", listed) for broker in (one, other)],
        *[broker.stages.commit("q", "j", "2", listed) for broker in (one, other)],
        *[send(broker, "q", "x", group="g", dedup_id="d3") for broker in (one, other)],
    )
    answers = [answer for answer in (done, *repeated) if isinstance(answer, Committed)]
    assert sorted(answer.repeated for answer in answers) == [False, False, True, True]
    total = (await one.queue("q")).counts.total
    assert total == 2 * 1520 + 20
    events = (await one.store.history.read(0, 10_000)).records
    assert [record.offset for record in events] == list(range(1, total + 1))
    found = [stored.message for _ in range(4) for stored in await one.receive("q", max=1000)]
    assert sum(message.group is not None for message in found) == 1
    ttls = [m for m in found if m.headers is not None]
    assert {(m.expires_at or 0) - m.sent_at for m in ttls} == {60_000_000}
    assert all(message.headers == odd for message in ttls)


async def test_a_group_that_is_committed_by_two_brokers_at_once_has_one_head(two: tuple[Broker, Broker]) -> None:
    one, other = two
    for batch in map(str, range(12)):
        await one.stages.upload("q", StageName("j", batch, "0", "0"), 0, [draft(batch, group=f"g{int(batch) // 4}")])
    await other.queues()
    commits = [
        broker.stages.commit("q", "j", str(batch), [("0", "0")]) for batch, broker in enumerate((one, other) * 6)
    ]
    await asyncio.gather(*commits)
    assert len(await one.receive("q", max=10)) == 3


async def test_a_purge_beside_a_claim_leaves_no_claim_of_messages_that_are_gone(two: tuple[Broker, Broker]) -> None:
    one, other = two
    await one.claims.open("q", "g")
    await other.queues()
    last = 0
    for _ in range(15):
        await send(one, "q", *range(50))
        await asyncio.gather(one.claims.next("q", "g", last), other.purge("q"))
        (group,) = await one.claims.list("q")
        held = sum(claim.messages for claim in group.claims if claim.acked_at is None)
        assert (await one.queue("q")).counts.leased == held
        last = group.last


@pytest.mark.parametrize("committed", [False, True])
async def test_a_message_that_joins_a_group_beside_a_purge_is_delivered(
    two: tuple[Broker, Broker], url: str, committed: bool
) -> None:
    """It joined behind a head that the purge removes."""
    broker, other = two
    await send(broker, "q", "locked")
    await send(broker, "q", "head", group="g")
    stage = StageName("job", "1", "0", "0")
    await other.stages.upload("q", stage, 0, [draft("new", group="g")])

    async def join() -> None:
        if committed:
            await other.stages.commit("q", "job", "1", [("0", "0")])
        else:
            await send(other, "q", "new", group="g")

    with psycopg.connect(parse(url, durable=True).conninfo, application_name="test") as held:
        held.execute("SELECT FROM messages WHERE queue > 0 AND grp IS NULL FOR UPDATE")
        purging = asyncio.create_task(broker.purge("q"))
        await until_waiting(1)
        joining = asyncio.create_task(join())
        await until_waiting(2, joining)
    assert await purging == 2
    await joining
    assert await drain(broker, "q") == ["new"]


async def test_a_purge_leaves_nothing_of_a_row_that_is_being_split(two: tuple[Broker, Broker], url: str) -> None:
    broker, _ = two
    (first, *_) = await send(broker, "q", *range(10))
    split = queries.load()["split"].pick().decode()
    with psycopg.connect(parse(url, durable=True).conninfo, application_name="test") as splitting:
        splitting.execute(split.encode(), {"queue": "q", "ids": [first], "step": 1})
        purging = asyncio.create_task(broker.purge("q"))
        await until_waiting(1)
    assert await purging == 10
    assert (await broker.queue("q")).counts.total == 0
    assert await broker.receive("q", max=10) == []


async def test_a_purge_of_many_rows_is_one_change_in_portions(
    two: tuple[Broker, Broker], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("miniq.store.postgres.messages.CLEARED", 3)
    broker, other = two
    await broker.configure("q", {"history": "events"})
    await broker.send("q", [draft(number, key=f"k{number}", delay=number % 2) for number in range(10)])
    await broker.receive("q", max=2)
    last = (await broker.send("q", [draft("last", group="g")]))[0]
    with psycopg.connect(parse(url, durable=True).conninfo, application_name="test") as held:
        held.execute("SELECT FROM messages WHERE id = %s FOR UPDATE", (last,))
        purging = asyncio.create_task(broker.purge("q"))
        await until_waiting(1)
        assert (await other.queue("q")).counts.total == 11
        assert len((await other.peek("q")).messages) == 11, "nothing is gone before everything is"
    assert await purging == 11
    assert (await other.queue("q")).counts.total == 0
    record = (await other.history(limit=1000)).records[-1]
    assert (record.event.event, record.event.count) == ("purged", 11)


async def test_names_with_any_character_are_kept(two: tuple[Broker, Broker]) -> None:
    one, other = two
    odd = "a\0b\\c\\0 \"{},'é😀"
    headers = {odd.replace("\0", ""): odd}
    await one.configure("q", {"history": "events"})
    await other.queues()
    await one.send("q", [draft(1, recipient=odd, group=odd, key=odd, dedup_id=odd, headers=headers)], call=odd)
    (stored,) = await other.receive("q", consumer=odd)
    message = stored.message
    assert (message.recipient, message.group, message.key, message.dedup_id) == (odd, odd, odd, odd)
    assert (message.headers, stored.consumer) == (headers, odd)
    assert (await one.get("q", message.id)).consumer == odd
    assert (await one.history()).records[-1].event.consumer == odd


async def test_the_rows_of_a_deleted_queue_go_in_the_background(url: str, clock: FrozenClock) -> None:
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        await send(broker, "q", *range(50))
        await send(broker, "q", "x", dedup_id="d")
        await broker.claims.next("q", "g", 0, max_messages=20)
        await broker.claims.fetch("q", "g", 1)
        await broker.claims.next("q", "g", 1, max_messages=20)
        await broker.stages.upload("q", StageName("j", "1", "0", "0"), 0, [draft(1)])
        await broker.delete_queue("q")
        await send(broker, "q", "new", dedup_id="d")
        assert (await broker.queue("q")).counts.total == 1
        for _ in range(4):
            await broker.upkeep()
            clock.advance(1000)
        name = parse(url, durable=True).schema
        keys = {"messages": "queue", "remains": "queue", "readers": "queue", "claims": "readers", "claimed": "readers"}
        keys |= {"stages": "queue", "stage_parts": "stage", "staged": "stage"}
        for table, key in keys.items():  # those below 0 are there for the planner
            found = postgresql.server().execute(f"SELECT count(*) FROM {name}.{table} WHERE {key} > 0")  # noqa: S608
            assert found == [(int(table == "messages"),)]


async def test_statements_are_prepared(url: str) -> None:
    kept = PostgresStore(url, connections=1)
    async with Broker(kept, Options(upkeep_interval=0)) as broker:
        await send(broker, "q", *range(5))
        await broker.ack("q", leases(await broker.receive("q", max=5)))
        query = b"SELECT statement FROM pg_prepared_statements"
        found = await kept._db.connections.call(lambda connection: execute(connection, query, {}))
    assert sum(b"messages" in statement[0].encode() for statement in found) >= 3
