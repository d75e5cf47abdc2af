"""The plan of every query of the store: by an index, made on empty tables, with 100,000 messages, and without them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from miniq.store import open_store
from miniq.store.postgres import queries
from miniq.store.postgres.address import parse
from tests import postgresql

MANY = 100_000
QUERIES = {
    f"{name}-{number}": text for name, query in queries.load().items() for number, text in enumerate(query.variants)
}
LARGE = {"messages", "dedup", "history", "claims", "claimed", "stages", "stage_parts", "staged"}
"""Tables that may grow; the others have a row or some per queue."""

FILL = """
    INSERT INTO queues (name, settings) SELECT 'q' || n, '{}' FROM generate_series(1, 50) n;
    INSERT INTO messages
        (id, sent_at, due_at, visible_at, taken_at, queue, size, rank, blocked, later, receipt, recipient, grp, body)
    SELECT gen_random_uuid(), 1000, 1000,
        CASE WHEN n % 10 IN (1, 2) THEN 5000 + n ELSE 1000 END, CASE WHEN n % 10 = 1 THEN 900 END,
        CASE WHEN n % 10 > 0 THEN 1 ELSE 2 + n % 40 END, 1, -(n % 3), n % 20 = 5, n % 10 IN (1, 2),
        CASE WHEN n % 10 = 1 THEN 't' || n / 100 END, CASE WHEN n % 10 = 4 THEN 'ann' END,
        CASE WHEN n % 10 = 5 THEN 'g' || n / 100 END, 'x'
    FROM generate_series(0, %d) n;
    UPDATE messages SET count = 10, last = id, sizes = '{1,1,1,1,1,1,1,1,1,1}' WHERE recipient IS NULL AND grp IS NULL;
    INSERT INTO readers (queue, name, epoch, acked, last)
    SELECT 1 + n % 40, 'r' || n, 1, 99, 100 FROM generate_series(1, 50) n;
    INSERT INTO claims SELECT r, n, 10, 10, 1, 2, n FROM generate_series(1, 50) r, generate_series(1, 100) n;
    INSERT INTO claimed SELECT r, n, place, gen_random_uuid(), 1, 1, 1, 1, 0, null, 'x'
    FROM generate_series(1, 50) r, generate_series(1, 100) n, generate_series(0, 9) place;
    INSERT INTO stages (queue, job, batch, partition, attempt, made_at, until)
    SELECT 1, 'j', n / 100, n, '0', 1, n FROM generate_series(1, 2000) n;
    INSERT INTO stage_parts SELECT n, 0, 1, 1, 1, 10 FROM generate_series(1, 2000) n;
    INSERT INTO staged SELECT n, 0, nth, 1, 1, 0, 0, null, 'g', 'd', null, null, null, null, '{x}'
    FROM generate_series(1, 2000) n, generate_series(0, 9) nth;
    INSERT INTO tallies SELECT q, slot, 10, 10 FROM generate_series(1, 50) q, generate_series(0, 31) slot;
    INSERT INTO dedup SELECT 1, n % 2 = 0, 'd' || n, '', n FROM generate_series(1, 20000) n;
    INSERT INTO history (first, count, bytes, at, events, queues, ids, receives, sizes)
    SELECT n, 1, 64, n, '{sent}', '{q1}', '{x}', '{0}', '{1}' FROM generate_series(1, 20000) n;
    INSERT INTO history (count, bytes, at, events, queues, ids, receives, sizes)
    SELECT 1, 64, n, '{sent}', '{q1}', '{x}', '{0}', '{1}' FROM generate_series(1, 100) n;
"""


@pytest.fixture(scope="module", params=["empty", "full", "drained"])
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """As the store connects, on a schema of its own."""
    url = postgresql.url()

    async def make() -> None:
        store = open_store(url)
        await store.open()
        await store.close()

    asyncio.run(make())
    with psycopg.connect(parse(url, durable=True).conninfo, autocommit=True) as opened:
        if request.param != "empty":
            opened.execute(FILL.replace("%d", str(MANY - 1)).encode())
            opened.execute(b"ANALYZE " + tables(opened))
        if request.param == "drained":  # everything has left, and autovacuum knows it
            opened.execute("DELETE FROM messages WHERE queue > 0; DELETE FROM dedup WHERE queue > 0")
            opened.execute("DELETE FROM claims WHERE readers > 0; DELETE FROM claimed WHERE readers > 0")
            opened.execute("DELETE FROM stages WHERE id > 0; DELETE FROM history")
            opened.execute(b"VACUUM ANALYZE " + tables(opened))
        yield opened


def tables(connection: psycopg.Connection[Any]) -> bytes:
    """The tables of the schema. ANALYZE without their names locks each table of the database: of all tests."""
    rows = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()").fetchall()
    return ", ".join(name for (name,) in rows).encode()


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def explain(connection: psycopg.Connection[Any], text: bytes) -> list[dict[str, Any]]:
    numbered: dict[bytes, int] = {}

    def number(found: re.Match[bytes]) -> bytes:
        return b"$%d" % numbered.setdefault(found[1], len(numbered) + 1)

    generic = re.sub(rb"%\((\w+)\)[sb]", number, text).rstrip(b"; \n")
    row = connection.execute(b"EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + generic).fetchone()
    assert row is not None
    found = row[0] if not isinstance(row[0], str) else json.loads(row[0])
    return list(nodes(found[0]["Plan"]))


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_goes_by_an_index(connection: psycopg.Connection[Any], name: str) -> None:
    plan = explain(connection, QUERIES[name])
    scanned = [node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"]
    assert not LARGE & set(scanned)
    assert not [node for node in plan if node["Node Type"] in ("Bitmap Heap Scan", "Hash Join", "Merge Join")]
    # What an index has in order is not sorted again: no sort stands directly above the table.
    for node in plan:
        if node["Node Type"] in ("Sort", "Incremental Sort"):
            under = [child.get("Relation Name") for child in node["Plans"] if child["Parent Relationship"] == "Outer"]
            assert "messages" not in under or name.startswith("held"), name


WALKS = {
    "clear",
    "forget_dedup",
    "tidy_messages",
    "tidy_readers",
    "tidy_stages_of",
    "dump_dedup",
    "claim_groups",
    "all_claim_groups",
    "stages",
}
"""Queries about all of a queue."""
KEYS = {
    "messages_pkey": "id",
    "messages_own": "recipient",
    "messages_group": "grp",
    "dedup_pkey": "name",
    "claims_pkey": "number",
    "claimed_pkey": "number",
    "stages_pkey": "id",
    "stage_parts_pkey": "stage",
    "staged_pkey": "stage",
    "stages_queue_job_batch_partition_attempt_key": "batch",
}
"""Columns that must be asked for where an index is used: the queue alone may be all there is."""


@pytest.mark.parametrize("name", [name for name in QUERIES if name.rpartition("-")[0] not in WALKS])
def test_a_query_walks_through_no_whole_queue(connection: psycopg.Connection[Any], name: str) -> None:
    """A plan is kept from when it was made, perhaps on empty tables, where a walk looks as cheap as a look."""
    for node in explain(connection, QUERIES[name]):
        key = KEYS.get(node.get("Index Name", ""))
        assert key is None or f"({key} " in node.get("Index Cond", ""), node


@pytest.mark.parametrize("name", ["take-0", "take-1", "take_own-1", "claim-0", "claim_own-1"])
def test_no_more_rows_are_locked_than_are_taken(connection: psycopg.Connection[Any], name: str) -> None:
    """What stands in line is locked one by one until there is enough: nothing between the limit and the lock sorts."""
    plan = explain(connection, QUERIES[name])
    limits = [node for node in plan if node["Node Type"] == "Limit"]
    locking = [node for node in limits if "LockRows" in {below["Node Type"] for below in nodes(node)}]
    assert locking
    for node in locking:
        between = [below["Node Type"] for below in nodes(node)]
        assert not {"Sort", "Incremental Sort", "Materialize", "Hash"} & set(between)


INDEXES = {
    "take-0": {"messages_line", "messages_later", "messages_pkey"},
    "take-1": {"messages_line", "messages_later", "messages_pkey"},
    "take_own-0": {"messages_line", "messages_own", "messages_later", "messages_pkey"},
    "take_batch-1": {"messages_line", "messages_pkey"},
    "gather-0": {"messages_line", "messages_later"},
    "return_due-0": {"messages_later", "messages_pkey", "messages_front"},
    "drop-0": {"messages_pkey", "messages_front"},
    "reschedule-0": {"messages_pkey", "messages_front"},
    "counts-0": {"messages_line", "messages_later", "messages_front", "messages_group"},
    "next_visible-0": {"messages_later"},
    "scan_later-0": {"messages_later"},
    "scan-0": {"messages_pkey"},
    "held-0": {"messages_later"},
    "clear_some-0": {"messages_pkey"},
    "find-0": {"messages_pkey"},
    "put-0": {"messages_group"},
    "claim-0": {"messages_line", "messages_pkey"},
    "claim_own-1": {"messages_line", "messages_own", "messages_pkey"},
    "commit_part-0": {"messages_group"},
    "ack_claims-0": {"messages_pkey"},
    "release_claims-1": {"messages_pkey"},
    "move-0": {"messages_pkey", "messages_group", "messages_front"},
}


@pytest.mark.parametrize("name", INDEXES)
def test_a_query_goes_by_the_index_that_was_made_for_it(connection: psycopg.Connection[Any], name: str) -> None:
    plan = explain(connection, QUERIES[name])
    used = {node["Index Name"] for node in plan if node.get("Index Name", "").startswith("messages_")}
    assert used == INDEXES[name]


def test_counting_reads_no_message_but_those_with_expired_leases(connection: psycopg.Connection[Any]) -> None:
    plan = explain(connection, QUERIES["counts-0"])
    read = [(node["Node Type"], node["Index Cond"]) for node in plan if node.get("Index Name") == "messages_later"]
    (looking, expired), (counting, ahead) = read
    assert (counting, looking) == ("Index Only Scan", "Index Scan")
    assert ">" in ahead
    assert "<=" in expired


def test_a_plan_without_an_index_would_be_noticed(connection: psycopg.Connection[Any]) -> None:
    plan = explain(connection, b"SELECT id FROM messages WHERE body = 'x'")
    assert [node["Relation Name"] for node in plan if node["Node Type"] == "Seq Scan"] == ["messages"]


@pytest.mark.parametrize("name", ["move-0", "move-1"])
def test_a_move_compares_no_message_with_all_others(connection: psycopg.Connection[Any], name: str) -> None:
    """A join of two lists in one statement has no index: it grows with the square of the messages."""
    for node in explain(connection, QUERIES[name]):
        if node["Node Type"] == "Nested Loop":
            lists = [child for child in node["Plans"] if child["Node Type"] == "CTE Scan"]
            assert len(lists) < 2, [child["CTE Name"] for child in lists]
