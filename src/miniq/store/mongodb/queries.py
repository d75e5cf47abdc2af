"""Every query by more than `_id`, and the indexes that serve them.

`tests/store/test_mongodb_plans.py` checks the plan of each, on 100,000 messages.
"""

from __future__ import annotations

from typing import Any

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel

Query = dict[str, Any]
Pipeline = list[dict[str, Any]]

PRIORITIES = list(range(10))
IN_LINE = {"priority": DESCENDING, "_id": ASCENDING}
BY_MOMENT = {"visible_at": ASCENDING, "_id": ASCENDING}


def _present(field: str) -> Query:
    return {"partialFilterExpression": {field: {"$exists": True}}}


INDEXES: dict[str, list[IndexModel]] = {
    "messages": [
        # Messages that can be taken, in order, without leased and delayed ones.
        IndexModel({"line": 1, "lane": 1, "priority": -1, "_id": 1}, name="line", **_present("line")),
        # Leases and delays by expiry; `receipt` tells them apart without reading the message.
        IndexModel({"timed": 1, "visible_at": 1, "_id": 1, "receipt": 1}, name="timed", **_present("timed")),
        # All of a queue in queue order.
        IndexModel({"number": 1, "priority": -1, "_id": 1}, name="queue"),
        IndexModel({"group_key": 1, "_id": 1}, name="group", **_present("group_key")),
        IndexModel({"receipt": 1, "_id": 1}, name="receipt", **_present("receipt")),
        # The messages of a claim, in order. Once acked they are found by `queue`: see `documents.py`.
        IndexModel({"claim": 1, "priority": -1, "_id": 1}, name="claim", **_present("claim")),
    ],
    "readers": [IndexModel({"serial": 1, "group": 1}, name="serial")],
    "claims": [
        IndexModel({"number": 1, "group": 1, "claim": 1}, name="number", unique=True),
        # Hardly ever any.
        IndexModel({"ends": 1, "number": 1, "group": 1}, name="ends", **_present("ends")),
        IndexModel({"until": 1}, name="until", **_present("until")),
    ],
    "groups": [IndexModel({"number": 1}, name="number")],
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
    "tallies": [IndexModel({"number": 1}, name="number")],
    "dedup": [IndexModel({"until": 1}, name="until")],
    "records": [IndexModel({"kind": 1}, name="kind")],
    "events": [
        IndexModel({"pending": 1}, name="pending", **_present("pending")),
        IndexModel({"last": 1}, name="last", unique=True, **_present("last")),
        IndexModel({"queues": 1, "last": 1}, name="queue", **_present("last")),
    ],
}


# Messages


def takeable(number: ObjectId, consumer: str | None, now: int) -> Query:
    """The messages that a consumer may take; sort by `IN_LINE`."""
    lanes = [""] if not consumer else ["", consumer]
    return {"line": number, "lane": {"$in": lanes}, "visible_at": {"$lte": now}}


def look(queue: str, number: ObjectId, consumer: str | None, now: int, limit: int) -> Pipeline:
    """What a take needs to know: the candidates in order, whether any timed message is due, and the queue's current
    number. A result has `size`, `due` or `number`."""
    return [
        {"$match": takeable(number, consumer, now)},
        {"$sort": IN_LINE},
        {"$limit": limit},
        {"$project": {"size": 1}},
        {
            "$unionWith": {
                "coll": "messages",
                "pipeline": [
                    {"$match": due(number, now)},
                    {"$limit": 1},
                    {"$project": {"due": {"$literal": True}}},
                ],
            }
        },
        {
            "$unionWith": {
                "coll": "queues",
                "pipeline": [{"$match": {"_id": queue}}, {"$project": {"number": 1, "showing": 1}}],
            }
        },
    ]


def oldest(number: ObjectId, now: int) -> Query:
    """Messages of any priority that any consumer may take; sort by `_id`, which starts with the time."""
    return {"line": number, "lane": "", "priority": {"$in": PRIORITIES}, "visible_at": {"$lte": now}}


def due(number: ObjectId, now: int) -> Query:
    """Timed messages that are due."""
    return {"timed": number, "visible_at": {"$lte": now}}


def ahead(number: ObjectId, now: int, before: int | None = None) -> Query:
    """Timed messages due after `now`, and before another time if given; sort by `BY_MOMENT`."""
    return {"timed": number, "visible_at": {"$gt": now} if before is None else {"$gt": now, "$lt": before}}


def tally_of_ahead(number: ObjectId, now: int) -> Pipeline:
    """How many messages are leased (`_id` true) and how many delayed."""
    return [
        {"$match": ahead(number, now)},
        {"$group": {"_id": {"$gt": ["$receipt", None]}, "count": {"$sum": 1}}},
    ]


STAND_IN_LINE: Pipeline = [
    {"$set": {"line": {"$cond": [{"$eq": ["$waits", True]}, "$$REMOVE", "$timed"]}}},
    {"$unset": "timed"},
]
"""The update that lines up a due message."""


def rest_of_priority(number: ObjectId, priority: int, after: str) -> Query:
    """All of one priority after an id; sort by `IN_LINE`, with a hint, since the server prefers the `_id` index."""
    return {"number": number, "priority": priority, "_id": {"$gt": after}}


def below_priority(number: ObjectId, priority: int) -> Query:
    """All of lower priorities; sort by `IN_LINE`."""
    return {"number": number, "priority": {"$lt": priority}}


def rest_of_moment(number: ObjectId, visible_at: int, after: str) -> Query:
    """Timed messages of one `visible_at` after an id; sort by `BY_MOMENT`, with a hint."""
    return {"timed": number, "visible_at": visible_at, "_id": {"$gt": after}}


def held(receipt: str) -> Query:
    """All messages leased by one receive; sort by `_id`."""
    return {"receipt": receipt}


def next_of_groups(keys: list[str]) -> Pipeline:
    """The lowest message of each group, in `next`: a list of one, or empty."""
    return [
        {"$match": {"_id": {"$in": keys}}},
        {
            "$lookup": {
                "from": "messages",
                "localField": "_id",
                "foreignField": "group_key",
                "pipeline": [
                    {"$sort": {"_id": 1}},
                    {"$limit": 1},
                    {"$project": {"visible_at": 1, "lane": 1, "timed": 1}},
                ],
                "as": "next",
            }
        },
    ]


def of_number(number: ObjectId) -> Query:
    """Everything with a number: messages, groups or tallies."""
    return {"number": number}


FOLD_AT = 64
SLOTS: Pipeline = [
    {"$group": {"_id": "$number", "slots": {"$sum": 1}}},
    {"$match": {"slots": {"$gt": FOLD_AT}}},
]
"""Numbers of queues with many counters, probably of ended processes."""


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


def inside(field: str, claim: ObjectId) -> Query:
    """The messages of a claim; sort by `IN_LINE`. The field is `claim` until it is acked, then `number`."""
    return {field: claim}


def inside_from(field: str, claim: ObjectId, priority: int, first: str) -> list[Query]:
    """The messages of a claim from one on, in two consecutive queries; sort by `IN_LINE`, with a hint."""
    return [
        {field: claim, "priority": priority, "_id": {"$gte": first}},
        {field: claim, "priority": {"$lt": priority}},
    ]


# Stages


def chunks(part: ObjectId) -> Query:
    """The upload of a part; sort by `place`."""
    return {"of": part}


def hidden(key: str) -> Query:
    """Messages of a commit that are not visible yet; sort by `_id`."""
    return {"group_key": key}


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
