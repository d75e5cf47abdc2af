"""Every query by more than `_id`, and the indexes that serve them.

`tests/store/test_mongodb_plans.py` checks the plan of each, on 100,000 blocks.
"""

from __future__ import annotations

from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel

from miniq.message import SECOND
from miniq.store.arguments import Draw

Query = dict[str, Any]
Pipeline = list[dict[str, Any]]

PRIORITIES = list(range(10))
IN_LINE = {"priority": DESCENDING, "first": ASCENDING}
BY_MOMENT = {"wake": ASCENDING, "_id": ASCENDING}
WITHOUT_CONTENT = {"content": 0, "out": 0}
WHOLE = {"out": 0}


def _present(field: str) -> Query:
    return {"partialFilterExpression": {field: {"$exists": True}}}


INDEXES: dict[str, list[IndexModel]] = {
    "blocks": [
        # Blocks with messages that can be taken, in order.
        IndexModel({"line": 1, "lane": 1, "priority": -1, "first": 1}, name="line", **_present("line")),
        # Blocks with leases and delays, by the first that ends; how many they have is read from the index alone.
        IndexModel(
            {"timed": 1, "wake": 1, "_id": 1, "leased": 1, "delayed": 1, "until": 1, "open": 1, "front": 1},
            name="timed",
            **_present("timed"),
        ),
        # All of a queue in queue order; counted from the index alone.
        IndexModel({"number": 1, "priority": -1, "first": 1, "count": 1, "bytes": 1}, name="queue"),
        IndexModel({"group_key": 1, "first": 1}, name="group", **_present("group_key")),
        # Blocks of messages that were taken together with others of their group.
        IndexModel({"front": 1, "first": 1}, name="front", **_present("front")),
        IndexModel({"front": 1, "leased": 1, "wake": 1}, name="front_leased", **_present("front")),
        # The blocks of a receive or a claim, in order.
        IndexModel({"tokens": 1, "priority": -1, "first": 1}, name="tokens", **_present("tokens")),
        IndexModel({"call.name": 1}, name="call", unique=True, **_present("call.name")),
        # Hardly ever many.
        IndexModel({"told": 1}, name="told", **_present("told")),
        IndexModel({"over": 1, "call.until": 1, "v": 1}, name="ended", **_present("over")),
        IndexModel({"todo": 1}, name="todo", **_present("todo")),
    ],
    "readers": [IndexModel({"serial": 1, "group": 1}, name="serial")],
    "claims": [
        IndexModel({"number": 1, "group": 1, "claim": 1}, name="number", unique=True),
        # Hardly ever any.
        IndexModel({"ends": 1, "number": 1, "group": 1}, name="ends", **_present("ends")),
        IndexModel({"until": 1}, name="until", **_present("until")),
    ],
    "groups": [IndexModel({"number": 1}, name="number"), IndexModel({"head": 1, "at": 1}, name="head")],
    "stages": [
        IndexModel(
            {"serial": 1, "job": 1, "batch": 1, "partition": 1, "attempt": 1, "part": 1}, name="name", unique=True
        ),
        IndexModel({"until": 1}, name="until"),
    ],
    "uploads": [
        IndexModel({"of": 1, "place": 1}, name="of"),
        IndexModel({"serial": 1}, name="serial"),
    ],
    "publishes": [IndexModel({"until": 1}, name="until"), IndexModel({"serial": 1}, name="serial")],
    "dedup": [IndexModel({"until": 1}, name="until")],
    "results": [IndexModel({"until": 1}, name="until"), IndexModel({"serial": 1}, name="serial")],
    "records": [IndexModel({"kind": 1}, name="kind")],
    "events": [
        IndexModel({"pending": 1}, name="pending", **_present("pending")),
        IndexModel({"last": 1}, name="last", unique=True, **_present("last")),
        IndexModel({"queues": 1, "last": 1}, name="queue", **_present("last")),
    ],
}


# Blocks


def in_line(number: ObjectId, lanes: list[str]) -> Query:
    """Blocks with messages that consumers with these lanes may take; sort by `IN_LINE`."""
    return {"line": number, "lane": {"$in": lanes}}


def draw(draw: Draw) -> Pipeline:
    """Draws tokens from the bucket of a queue: an update of its document, which has in `drawn` how many."""
    gained = {"$multiply": [draw.rate / SECOND, {"$max": [0, {"$subtract": [draw.now, "$drawn_at"]}]}]}
    filled = {"$ifNull": [{"$add": ["$tokens", gained]}, draw.most]}
    return [
        {"$set": {"tokens": {"$min": [draw.most, filled]}, "drawn_at": {"$max": ["$drawn_at", draw.now]}}},
        {"$set": {"drawn": {"$min": [draw.count, {"$floor": {"$add": ["$tokens", 1e-9]}}]}}},
        {"$set": {"tokens": {"$subtract": ["$tokens", "$drawn"]}}},
    ]


def look(queue: str, number: ObjectId, lanes: list[str], now: int, limit: int) -> Pipeline:
    """What a take needs, on `queues`: the queue with its current number, a result with `due` if any timed block is due,
    and then the blocks in line."""
    return [
        {"$match": {"_id": queue}},
        {"$project": {"number": 1, "showing": 1}},
        {
            "$unionWith": {
                "coll": "blocks",
                "pipeline": [{"$match": due(number, now)}, {"$limit": 1}, {"$project": {"due": {"$literal": True}}}],
            }
        },
        {
            "$unionWith": {
                "coll": "blocks",
                "pipeline": [
                    {"$match": in_line(number, lanes)},
                    {"$sort": IN_LINE},
                    {"$limit": limit},
                    {"$project": WHOLE},
                ],
            }
        },
    ]


def oldest(number: ObjectId) -> Query:
    """Blocks of any priority that any consumer may take; sort by `first`, which starts with the time."""
    return {"line": number, "lane": "", "priority": {"$in": PRIORITIES}}


def due(number: ObjectId, now: int) -> Query:
    """Timed blocks that are due; sort by `wake`."""
    return {"timed": number, "wake": {"$lte": now}}


def partly_due(number: ObjectId, now: int) -> Query:
    """Timed blocks of which some messages are due and others are not, from the index alone."""
    return {"timed": number, "wake": {"$lte": now}, "until": {"$gt": now}}


def leased(number: ObjectId, now: int) -> Query:
    """Timed blocks that may have leased messages, from the index alone."""
    return {"timed": number, "until": {"$gt": now}, "leased": {"$gt": 0}}


def fronts_due(number: ObjectId, now: int) -> Query:
    """Timed blocks of fronts that are due; their groups, from the index alone."""
    return {"timed": number, "wake": {"$lte": now}, "front": {"$gt": ""}}


def about_due(number: ObjectId, now: int) -> Pipeline:
    """Of the timed blocks that are due, from the index alone: the `_id` of the first that any consumer may take, until
    when any has messages that are not due, and a group of which one is of the front."""
    return [
        {"$match": due(number, now)},
        {
            "$group": {
                "_id": None,
                "first": {"$min": {"$cond": ["$open", "$_id", None]}},
                "until": {"$max": "$until"},
                "front": {"$max": "$front"},
            }
        },
    ]


def ahead(number: ObjectId, now: int, before: int | None = None) -> Query:
    """Timed blocks of which nothing is due at `now`, and something before another time if given; sort by `wake`."""
    return {"timed": number, "wake": {"$gt": now} if before is None else {"$gt": now, "$lt": before}}


def tally(number: ObjectId) -> Pipeline:
    """Messages and bytes of a queue, from the index alone."""
    return [
        {"$match": {"number": number}},
        {"$group": {"_id": None, "count": {"$sum": "$count"}, "bytes": {"$sum": "$bytes"}}},
    ]


def tally_of_ahead(number: ObjectId, now: int) -> Pipeline:
    """How many messages are leased and how many delayed in blocks of which nothing is due, from the index alone."""
    return [
        {"$match": ahead(number, now)},
        {"$group": {"_id": None, "leased": {"$sum": "$leased"}, "delayed": {"$sum": "$delayed"}}},
    ]


def of_number(number: ObjectId) -> Query:
    """Everything with a number: blocks, groups or claims."""
    return {"number": number}


def rest_of_priority(number: ObjectId, priority: int, first: str) -> Query:
    """All blocks of one priority from one on; sort by `IN_LINE`."""
    return {"number": number, "priority": priority, "first": {"$gte": first}}


def below_priority(number: ObjectId, priority: int) -> Query:
    """All blocks of lower priorities; sort by `IN_LINE`."""
    return {"number": number, "priority": {"$lt": priority}}


def rest_of_moment(number: ObjectId, moment: int, name: str) -> Query:
    """Timed blocks of one `wake` from one on; sort by `BY_MOMENT`."""
    return {"timed": number, "wake": moment, "_id": {"$gte": name}}


def after_moment(number: ObjectId, moment: int) -> Query:
    """Timed blocks after a moment; sort by `BY_MOMENT`."""
    return {"timed": number, "wake": {"$gt": moment}}


def held(token: str) -> Query:
    """Blocks with messages leased by one receive or claim; sort by `IN_LINE`."""
    return {"tokens": token}


def held_from(token: str, priority: int, first: str) -> list[Query]:
    """The same from one block on, in two consecutive queries."""
    return [
        {"tokens": token, "priority": priority, "first": {"$gte": first}},
        {"tokens": token, "priority": {"$lt": priority}},
    ]


def members(key: str, floor: str) -> Query:
    """The messages of a group; sort by `first`. Nothing is below `floor`, and the keys of those that left are not
    walked over."""
    return {"group_key": key, "first": {"$gte": floor}}


def heads(number: ObjectId, keys: list[str]) -> Pipeline:
    """Groups, with the block of the head that each names in `heads`, and that of its lowest member in `next`, on
    `groups`."""
    return [
        {"$match": {"_id": {"$in": keys}}},
        {"$set": {"named": {"$concat": [f"{number}:", "$head", "."]}}},
        {
            "$lookup": {
                "from": "blocks",
                "localField": "named",
                "foreignField": "_id",
                "pipeline": [{"$project": WITHOUT_CONTENT}],
                "as": "heads",
            }
        },
        {
            "$lookup": {
                "from": "blocks",
                "localField": "_id",
                "foreignField": "group_key",
                "let": {"floor": "$floor"},
                "pipeline": [
                    {"$match": {"$expr": {"$gte": ["$first", "$$floor"]}}},
                    {"$sort": {"first": ASCENDING}},
                    {"$limit": 1},
                    {"$project": WITHOUT_CONTENT},
                ],
                "as": "next",
            }
        },
    ]


def waiting(key: str, floor: str) -> Query:
    """The messages of a group behind its front; sort by `first`."""
    return members(key, floor) | {"waits": True, "front": None}


def front(key: str) -> Query:
    """The messages of the front of a group, except for its head; sort by `first`."""
    return {"front": key}


def front_leased(key: str, now: int) -> Query:
    """Those of them that are leased."""
    return {"front": key, "leased": 1, "wake": {"$gt": now}}


CALLED: Query = {"call.name": {"$exists": True}}
"""Blocks with the record of a call."""
TOLD: Query = {"told": {"$exists": True}}
"""Blocks with events to copy; sort by `told`."""
ENDED: Query = {"over": True, "call.until": None, "told": None, "todo": None}
"""Blocks whose messages have all left, without events to copy, of which no group needs a new head, and without the
record of a call."""


def ended(now: int, before: ObjectId) -> list[Query]:
    """The same, and those of calls that have expired, last written with a version below one."""
    return [ENDED | {"v": {"$lt": before}}, ENDED | {"call.until": {"$lte": now}, "v": {"$lt": before}}]


HEAD_LEFT: Query = {"todo": {"$exists": True}}
"""Blocks of messages that have left, where their groups need a new head; sort by `todo`."""
HEAD_CHOSEN: Pipeline = [
    {"$unset": "todo"},
    {"$set": {"number": {"$cond": [{"$eq": ["$over", True]}, "$$REMOVE", "$number"]}}},
]
"""The update of these once there is one: counts do not walk over what has ended."""


def head_left(before: int) -> Query:
    """The same, of messages that left by a time."""
    # Earlier versions wrote True.
    return {"todo": {"$exists": True, "$not": {"$gt": before}}}


def headless(before: int) -> Query:
    """Groups that have been without a head since a time."""
    return {"head": None, "at": {"$lte": before}}


# Claims


def of_group(number: ObjectId, group: str, above: int = 0) -> Query:
    """Claims of a group with numbers above one; sort by `claim`."""
    return {"number": number, "group": group, "claim": {"$gt": above}}


OVER: Query = {"ends": {"$in": ["acked", "released"]}}


def ending(number: ObjectId, group: str) -> Query:
    """Ended claims of a group that may still have messages."""
    return OVER | {"number": number, "group": group}


def left_over(before: int) -> Query:
    """Claims of any group that ended before a time and are not empty; their broker probably died."""
    return OVER | {"ended_at": {"$lte": before}}


# Stages


def chunks(part: ObjectId) -> Query:
    """The upload of a part; sort by `place`."""
    return {"of": part}


# Dedup records and history


def ran_out(now: int) -> Query:
    """Expired records, claims or stages."""
    return {"until": {"$lte": now}}


PENDING: Query = {"pending": {"$exists": True}}
"""Events without offsets; sort by `pending`."""


def events_after(offset: int, queue: str | None) -> Query:
    """Events with offsets above one, of one queue if given; sort by `last`."""
    found: Query = {"last": {"$gt": offset}}
    return found if queue is None else {"queues": queue} | found


def events_upto(offset: int) -> Query:
    """Records that end at or before an offset; sort by `last`."""
    return {"last": {"$lte": offset}}
