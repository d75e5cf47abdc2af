"""The plan of every query of the MongoDB store, on 100,000 messages: by an index, and over no more than it needs."""

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
from miniq.store.mongodb import queries
from miniq.store.mongodb.browse import LEASED
from miniq.store.mongodb.documents import group_key, message_document
from miniq.store.mongodb.fences import lease
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
    """Three queues; of each some leased, some delayed, some for a recipient, some in groups."""
    ids = IdSource()
    documents: list[dict[str, Any]] = []
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
            one = message_document(message, number, NOW, waits=kind == 4)
            if kind in (5, 6):
                one |= lease(number, NOW, NOW + SECOND * run, f"t{run}", None, CLAIM if place == 5 else None)["$set"]
                del one["line"]
            if kind == 7:
                one["timed"] = one.pop("line")
            documents.append(one)
    for start in range(0, MANY, 10_000):
        database.messages.insert_many(documents[start : start + 10_000], ordered=False)
    groups = [{"_id": group_key(A, f"g{run}"), "number": A, "head": ""} for run in range(1000)]
    database.groups.insert_many(groups)
    database.tallies.insert_many([{"_id": f"{n}.{slot}", "number": n} for n in NUMBERS for slot in range(50)])
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
    return find("messages", query, queries.IN_LINE, hint="queue")


def by_moment(query: dict[str, Any]) -> dict[str, Any]:
    return find("messages", query, queries.BY_MOMENT, hint="timed")


def in_claim(query: dict[str, Any]) -> dict[str, Any]:
    return find("messages", query, queries.IN_LINE, hint="claim")


A_MESSAGE = "7" * 36
MIDDLE = str(IdSource().run(1, START + 500_000)[0])

FINDS: dict[str, tuple[dict[str, Any], str, int]] = {
    "takeable by anybody": (find("messages", queries.takeable(A, None, NOW), queries.IN_LINE), "line", 20),
    "takeable by a recipient": (find("messages", queries.takeable(A, "ann", NOW), queries.IN_LINE), "line", 20),
    "oldest": (find("messages", queries.oldest(A, NOW), {"_id": 1}, 1), "line", 20),
    "due": (find("messages", queries.due(A, NOW), {"visible_at": 1}), "timed", 10),
    "next visible": (find("messages", queries.ahead(A, NOW), {"visible_at": 1}, 1), "timed", 1),
    "leased": (by_moment(queries.ahead(A, NOW) | {"receipt": LEASED}), "timed", 40),
    "delayed": (by_moment(queries.ahead(A, NOW) | {"receipt": None}), "timed", 40),
    "rest of a moment": (by_moment(queries.rest_of_moment(A, NOW + SECOND * 7, "")), "timed", 40),
    "a queue": (in_line(queries.of_number(A)), "queue", 10),
    "rest of a priority": (in_line(queries.rest_of_priority(A, 1, MIDDLE)), "queue", 10),
    "lower priorities": (in_line(queries.below_priority(A, 2)), "queue", 10),
    "held": (find("messages", queries.held("t17"), {"_id": 1}, 0), "receipt", 20),
    "what a claim holds": (in_claim(queries.inside("claim", CLAIM)), "claim", 10),
    "what an acked claim holds": (in_line(queries.inside("number", CLAIM)), "queue", 10),
    "a claim from a message on": (in_claim(queries.inside_from("claim", CLAIM, 1, MIDDLE)[0]), "claim", 10),
    "a claim below a priority": (in_claim(queries.inside_from("claim", CLAIM, 1, MIDDLE)[1]), "claim", 10),
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
    "what is committed and not shown": (find("messages", queries.hidden(group_key(A, "g5")), {"_id": 1}), "group", 10),
    "commits that ran out": (find("publishes", queries.ran_out(START)), "until", 10),
    "commits of a queue": (find("publishes", {"serial": A}), "serial", 10),
    "groups of a number": (find("groups", queries.of_number(NUMBERS[1])), "number", 10),
    "tallies": (find("tallies", queries.of_number(A), None, 0), "number", 50),
    "dedup records that ran out": (find("dedup", queries.ran_out(START + 100)), "until", 10),
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
    pipeline = queries.look("q", A, "ann", NOW, 10)
    command = {"aggregate": "messages", "pipeline": pipeline, "cursor": {}}
    check(database, command, "line", 20)
    explained = database.command("explain", command, verbosity="executionStats")
    [due, queue] = [stage["$unionWith"] for stage in explained["stages"] if "$unionWith" in stage]
    for union in (due, queue):
        assert "COLLSCAN" not in {stage["stage"] for stage in stages(union)}
    assert "timed" in {stage.get("indexName") for stage in stages(due)}


def test_leased_and_delayed_are_counted_in_the_index_alone(database: Database[dict[str, Any]]) -> None:
    command = {"aggregate": "messages", "pipeline": queries.tally_of_ahead(A, NOW), "cursor": {}}
    explained = database.command("explain", command, verbosity="executionStats")
    stats = [stage for stage in stages(explained) if stage["stage"] == "IXSCAN"]
    assert {stage["indexName"] for stage in stats} == {"timed"}
    assert not {"COLLSCAN", "FETCH"} & {stage["stage"] for stage in stages(explained)}


def test_the_next_of_a_group_is_found_without_walking_through_it(database: Database[dict[str, Any]]) -> None:
    keys = [group_key(A, f"g{run}") for run in range(1, 20)]
    command = {"aggregate": "groups", "pipeline": queries.next_of_groups(keys), "cursor": {}}
    explained = database.command("explain", command, verbosity="executionStats")
    [lookup] = [stage for stage in explained["stages"] if "$lookup" in stage]
    assert (lookup["indexesUsed"], lookup["collectionScans"]) == (["group"], 0)
    assert lookup["totalKeysExamined"] <= 20


def test_numbers_in_use_are_found_by_skipping(database: Database[dict[str, Any]]) -> None:
    explained = database.command("explain", {"distinct": "messages", "key": "number"}, verbosity="executionStats")
    assert "DISTINCT_SCAN" in {stage["stage"] for stage in stages(explained)}
    assert explained["executionStats"]["totalKeysExamined"] <= len(NUMBERS) + 1


def test_a_place_in_a_claim_is_found_in_the_index_alone(database: Database[dict[str, Any]]) -> None:
    command = in_claim(queries.inside("claim", CLAIM)) | {"projection": {"priority": 1}, "skip": 500, "limit": 1}
    explained = database.command("explain", command, verbosity="executionStats")
    assert explained["executionStats"]["totalDocsExamined"] == 0
    assert explained["executionStats"]["totalKeysExamined"] <= 502


def test_every_index_serves_a_query(database: Database[dict[str, Any]]) -> None:
    used = {(command["find"], index) for command, index, _ in FINDS.values()} | {("messages", "group")}
    assert used == {(name, model.document["name"]) for name, models in queries.INDEXES.items() for model in models}


def test_the_updates_that_are_not_by_id_go_by_an_index(database: Database[dict[str, Any]]) -> None:
    query = queries.due(A, NOW) | {"_id": {"$in": [A_MESSAGE]}}
    update = {"q": query, "u": queries.STAND_IN_LINE, "multi": True}
    explained = database.command("explain", {"update": "messages", "updates": [update]}, verbosity="queryPlanner")
    assert "COLLSCAN" not in {stage["stage"] for stage in stages(explained)}


def test_a_plan_without_an_index_would_be_noticed(database: Database[dict[str, Any]], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(database, find("messages", {"body": b"x"}), "line", 10)
