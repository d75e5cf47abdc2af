"""The plan of every query of the MongoDB store, on 100,000 blocks: by an index, and over no more than it needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId, Timestamp
from pymongo import MongoClient
from pymongo.database import Database

from miniq.ids import IdSource
from miniq.message import SECOND, Message
from miniq.store.mongodb import queries, writes
from miniq.store.mongodb.blocks import Block, blocks_for, shared_name
from miniq.store.mongodb.documents import group_key
from miniq.store.mongodb.stages import NAME
from tests import mongod
from tests.clock import START

MANY = 100_000
NOW = START + 60 * SECOND
NUMBERS = [ObjectId() for _ in range(3)]
A = NUMBERS[0]
"""The number of a queue with most of the messages."""
CLAIM = ObjectId()
"""A claim of every hundredth message."""


@pytest.fixture(scope="module")
def database() -> Iterator[Database[dict[str, Any]]]:
    name = "plans"
    with MongoClient[dict[str, Any]](mongod.databases().server.url) as client:
        database = client[name]
        for collection, indexes in queries.INDEXES.items():
            database[collection].create_indexes(indexes)
        fill(database)
        yield database
        client.drop_database(name)


def fill(database: Database[dict[str, Any]]) -> None:
    """Three queues; of each some leased, some delayed, some for a recipient, some in groups, of which every other one
    has a front."""
    ids = IdSource()
    blocks: list[Block] = []
    for run in range(MANY // 100):
        number = NUMBERS[0 if run % 10 else 1 + run % 2]
        for place, id in enumerate(ids.run(100, START + run * 1000)):
            kind = place % 10
            message = Message(
                id,
                "q",
                START,
                NOW + SECOND * run if kind == 1 else START,
                b"x",
                priority=run % 3,
                recipient="ann" if kind == 2 else None,
                group=f"g{run}" if kind in (3, 4) else None,
            )
            [block] = blocks_for([message], number, moved=True, taken=[shared_name(number, id)])
            block.waits = kind == 4
            if kind in (5, 6) or (kind == 4 and run % 2):
                block.lease(0, NOW, NOW + SECOND * run, f"t{run}", None, str(CLAIM) if place == 5 else None)
            blocks.append(block)
    documents = writes.insert(blocks, NOW)
    for place, document in enumerate(documents):
        if place % 10 == 7:
            document |= {"timed": document.pop("line"), "wake": START, "until": START, "leased": 1, "delayed": 0}
        if place % 1000 == 8:
            document["told"] = ObjectId()
        if place % 1000 == 9:
            document |= {"over": True, "todo": START if place % 2000 == 9 else True}
        if place % 100 == 8:
            document["call"] = {"name": f"c{place}", "until": NOW + place - 1000}
            document["over"] = True
    for start in range(0, MANY, 10_000):
        database.blocks.insert_many(documents[start : start + 10_000], ordered=False)
    groups = [
        {"_id": group_key(A, f"g{run}"), "number": A, "head": None if run % 100 else "", "at": START}
        for run in range(1000)
    ]
    database.groups.insert_many(groups)
    claims: list[dict[str, Any]] = [{"number": A, "group": "g", "claim": n, "until": START + n} for n in range(5000)]
    database.claims.insert_many([one | ({} if one["claim"] % 1000 else {"ends": "acked"}) for one in claims])
    database.readers.insert_many([{"serial": n, "group": f"g{place}"} for n in NUMBERS for place in range(10)])
    parts = [
        {"serial": A, "job": "j", "batch": str(n // 10), "partition": str(n), "until": START + n} for n in range(999)
    ]
    database.stages.insert_many(parts)
    database.uploads.insert_many([{"serial": n, "of": n, "place": place} for n in NUMBERS for place in range(10)])
    records = [{"_id": str(n), "serial": A, "name": str(n), "said": "", "until": START + n} for n in range(5000)]
    database.dedup.insert_many(records)
    results = [{"_id": str(n), "serial": NUMBERS[n > 5], "until": START + 50 * n} for n in range(5000)]
    database.results.insert_many(results)
    told = [{"queues": ["q" if n % 100 else "r"], "first": n, "last": n, "at": START} for n in range(1, 5001)]
    database.events.insert_many(told)
    database.events.insert_many([{"queues": ["q"], "pending": Timestamp(5, n)} for n in range(1, 50)])


def stages(plan: Any) -> Iterator[dict[str, Any]]:
    """Every stage of a plan, wherever it is nested."""
    if isinstance(plan, dict):
        if "stage" in plan:
            yield plan
        for value in plan.values():
            yield from stages(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from stages(value)


def check(database: Database[dict[str, Any]], command: dict[str, Any], index: str, most: int) -> None:
    """A command uses this index, sorts nothing by itself, and looks at no more than `most` keys and documents."""
    explained = database.command("explain", command, verbosity="executionStats")
    names = {stage["stage"] for stage in stages(explained)}
    assert not names & {"COLLSCAN", "SORT"}, names
    used = {stage["indexName"] for stage in stages(explained) if "indexName" in stage}
    assert index in used, used
    # With `explain` of a pipeline the statistics are in its first stage.
    stats = explained.get("executionStats") or explained["stages"][0]["$cursor"]["executionStats"]
    assert stats["totalKeysExamined"] <= most, stats["totalKeysExamined"]
    assert stats["totalDocsExamined"] <= most, stats["totalDocsExamined"]


def find(
    collection: str, query: dict[str, Any], sort: dict[str, int] | None = None, limit: int = 10, **more: Any
) -> dict[str, Any]:
    return {"find": collection, "filter": query, "sort": sort or {}, "limit": limit, **more}


def in_line(query: dict[str, Any]) -> dict[str, Any]:
    return find("blocks", query, queries.IN_LINE, hint="queue")


def by_moment(query: dict[str, Any]) -> dict[str, Any]:
    return find("blocks", query, queries.BY_MOMENT, hint="timed")


def by_token(query: dict[str, Any]) -> dict[str, Any]:
    return find("blocks", query, queries.IN_LINE, hint="tokens")


MIDDLE = str(IdSource().run(1, START + 500_000)[0])

FINDS: dict[str, tuple[dict[str, Any], str, int]] = {
    "in line for anybody": (find("blocks", queries.in_line(A, [""]), queries.IN_LINE), "line", 20),
    "in line for a recipient": (find("blocks", queries.in_line(A, ["", "ann"]), queries.IN_LINE), "line", 20),
    "oldest": (find("blocks", queries.oldest(A), {"first": 1}, 1, hint="line"), "line", 20),
    "due": (find("blocks", queries.due(A, NOW), {"wake": 1}, hint="timed"), "timed", 10),
    "next visible": (find("blocks", queries.ahead(A, NOW), {"wake": 1}, 1, hint="timed"), "timed", 1),
    "after a moment": (by_moment(queries.after_moment(A, NOW)), "timed", 10),
    "rest of a moment": (by_moment(queries.rest_of_moment(A, NOW + SECOND * 7, "")), "timed", 40),
    "a queue": (in_line(queries.of_number(A)), "queue", 10),
    "rest of a priority": (in_line(queries.rest_of_priority(A, 1, MIDDLE)), "queue", 10),
    "lower priorities": (in_line(queries.below_priority(A, 2)), "queue", 10),
    "held": (by_token(queries.held("t17")), "tokens", 20),
    "what a claim holds": (by_token(queries.held(str(CLAIM))), "tokens", 10),
    "a claim from a block on": (by_token(queries.held_from(str(CLAIM), 1, MIDDLE)[0]), "tokens", 10),
    "a claim below a priority": (by_token(queries.held_from(str(CLAIM), 1, MIDDLE)[1]), "tokens", 10),
    "the next of a group": (find("blocks", queries.members(group_key(A, "g5"), ""), {"first": 1}, 1), "group", 1),
    "what follows in a group": (
        find("blocks", queries.waiting(group_key(A, "g4"), ""), {"first": 1}, 10, hint="group"), "group", 20,
    ),
    "the front of a group": (
        find("blocks", queries.front(group_key(A, "g5")), {"first": 1}, 1, hint="front"), "front", 1,
    ),
    "leases in the front of a group": (
        find("blocks", queries.front_leased(group_key(A, "g5"), NOW), None, 1, hint="front_leased"), "front_leased", 1,
    ),
    "blocks with events": (find("blocks", queries.TOLD, {"told": 1}, hint="told"), "told", 10),
    "blocks that are over": (find("blocks", queries.ended(NOW, ObjectId())[0]), "ended", 120),
    "blocks of calls that have expired": (find("blocks", queries.ended(NOW, ObjectId())[1]), "ended", 20),
    "the block of a call": (find("blocks", {"call.name": "c8"}, None, 1), "call", 1),
    "groups that need a head": (find("blocks", queries.head_left(NOW)), "todo", 10),
    "groups that may soon need a head": (find("blocks", queries.HEAD_LEFT, hint="todo"), "todo", 10),
    "groups without a head": (find("groups", queries.headless(NOW)), "head", 10),
    "groups of readers": (find("readers", {"serial": A}, {"group": 1}, 0), "serial", 10),
    "claims of a queue": (find("claims", {"number": A}, {"group": 1, "claim": 1}), "number", 10),
    "claims of a group": (find("claims", queries.of_group(A, "g", 4990), {"claim": 1}, 0), "number", 10),
    "claims of a group that are over": (find("claims", queries.ending(A, "g"), hint="ends"), "ends", 5),
    "claims that are left over": (find("claims", queries.left_over(NOW), hint="ends"), "ends", 5),
    "claims that ran out": (find("claims", queries.ran_out(START + 100) | {"ends": None}), "until", 20),
    "stages of a queue": (find("stages", {"serial": A}, dict.fromkeys(NAME, 1), 10), "name", 10),
    "stages of a batch": (find("stages", {"serial": A, "job": "j", "batch": "7"}, None, 0), "name", 11),
    "stages that ran out": (find("stages", queries.ran_out(START + 100)), "until", 10),
    "chunks of an upload": (find("uploads", queries.chunks(A), {"place": 1}, 0), "of", 20),
    "uploads of a queue": (find("uploads", {"serial": NUMBERS[1]}, None, 0), "serial", 10),
    "commits that ran out": (find("publishes", queries.ran_out(START)), "until", 10),
    "commits of a queue": (find("publishes", {"serial": A}), "serial", 10),
    "groups of a number": (find("groups", queries.of_number(NUMBERS[1])), "number", 10),
    "dedup records that ran out": (find("dedup", queries.ran_out(START + 100)), "until", 10),
    "results that ran out": (find("results", queries.ran_out(START + 100)), "until", 10),
    "results of a queue": (find("results", {"serial": A}), "serial", 10),
    "pending events": (find("events", queries.PENDING, {"pending": 1}), "pending", 10),
    "events after an offset": (find("events", queries.events_after(2500, None), {"last": 1}), "last", 10),
    "events of a queue": (find("events", queries.events_after(2500, "r"), {"last": 1}), "queue", 10),
    "events up to an offset": (find("events", queries.events_upto(2500), {"last": 1}), "last", 10),
    "records of a kind": (find("records", {"kind": "key"}), "kind", 0),
}  # fmt: skip


@pytest.mark.parametrize("name", FINDS)
def test_a_query_goes_by_its_index(database: Database[dict[str, Any]], name: str) -> None:
    command, index, most = FINDS[name]
    check(database, command, index, most)


def test_a_look_before_taking_goes_by_the_line_and_the_moments(database: Database[dict[str, Any]]) -> None:
    pipeline = queries.look("q", A, ["", "ann"], NOW, 10)
    command = {"aggregate": "queues", "pipeline": pipeline, "cursor": {}}
    explained = database.command("explain", command, verbosity="executionStats")
    [due, line] = [stage["$unionWith"] for stage in explained["stages"] if "$unionWith" in stage]
    for union, index in ((due, "timed"), (line, "line")):
        names = {stage["stage"] for stage in stages(union)}
        assert not names & {"COLLSCAN", "SORT"}
        assert index in {stage.get("indexName") for stage in stages(union)}


def test_the_next_members_of_many_groups_are_found_by_their_index(database: Database[dict[str, Any]]) -> None:
    keys = [group_key(A, f"g{run}") for run in range(0, 500, 5)]
    pipeline = queries.heads(A, keys)
    pipeline[1:1] = [{"$set": {"floor": ""}}]
    command = {"aggregate": "groups", "pipeline": pipeline, "cursor": {}}
    explained = database.command("explain", command, verbosity="executionStats")
    lookups = [stage for stage in explained["stages"] if "$lookup" in stage]
    assert [stage["indexesUsed"] for stage in lookups] == [["_id_"], ["group"]]
    assert [stage["collectionScans"] for stage in lookups] == [0, 0]
    assert sum(stage["totalDocsExamined"] for stage in lookups) <= len(keys)


@pytest.mark.parametrize(
    ("pipeline", "index"),
    [(queries.tally(A), "queue"), (queries.tally_of_ahead(A, NOW), "timed"), (queries.about_due(A, NOW), "timed")],
)
def test_messages_are_counted_in_an_index_alone(
    database: Database[dict[str, Any]], pipeline: list[dict[str, Any]], index: str
) -> None:
    command = {"aggregate": "blocks", "pipeline": pipeline, "cursor": {}, "hint": index}
    explained = database.command("explain", command, verbosity="executionStats")
    stats = [stage for stage in stages(explained) if stage["stage"] == "IXSCAN"]
    assert {stage["indexName"] for stage in stats} == {index}
    assert not {"COLLSCAN", "FETCH"} & {stage["stage"] for stage in stages(explained)}


def test_blocks_that_are_due_as_a_whole_are_counted_without_reading_them(database: Database[dict[str, Any]]) -> None:
    command = find("blocks", queries.partly_due(A, NOW), limit=0, hint="timed")
    stats = database.command("explain", command, verbosity="executionStats")["executionStats"]
    assert stats["totalKeysExamined"] > 5000
    assert stats["totalDocsExamined"] == 0


def test_numbers_in_use_are_found_by_skipping(database: Database[dict[str, Any]]) -> None:
    explained = database.command("explain", {"distinct": "blocks", "key": "number"}, verbosity="executionStats")
    assert "DISTINCT_SCAN" in {stage["stage"] for stage in stages(explained)}
    assert explained["executionStats"]["totalKeysExamined"] <= len(NUMBERS) + 1


def test_every_index_serves_a_query(database: Database[dict[str, Any]]) -> None:
    used = {(command["find"], index) for command, index, _ in FINDS.values()}
    assert used == {(name, model.document["name"]) for name, models in queries.INDEXES.items() for model in models}


def test_a_plan_without_an_index_would_be_noticed(database: Database[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(database, find("blocks", {"content": b"x"}), "line", 10)
