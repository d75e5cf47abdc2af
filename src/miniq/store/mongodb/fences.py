"""Fence checks on documents, and the updates of their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bson import ObjectId

from miniq.message import Event, EventName, Outcome
from miniq.store import events
from miniq.store.arguments import Fence
from miniq.store.decisions import fence
from miniq.store.mongodb.connection import Database, Session
from miniq.store.mongodb.documents import LEASE, Document, place_of

WITHOUT_CONTENT = {"body": 0, "headers": 0}
WITHOUT_BODY = WITHOUT_CONTENT | {"dead": 0}


async def fenced(
    db: Database, session: Session, number: ObjectId, fences: Sequence[Fence]
) -> dict[str, dict[str, Any]]:
    """The documents that fences name, by id, without their content."""
    query = {"_id": {"$in": [id for id, _ in fences]}, "number": number}
    found = await db.messages.find(query, WITHOUT_BODY, session=session).to_list()
    return {one["_id"]: one for one in found}


def check(found: Document | None, receipt: str, now: int) -> Outcome:
    """The outcome of a fence."""
    return "missing" if found is None else fence(found["visible_at"], found.get("receipt"), receipt, now)


def state_change(queue: ObjectId, visible_at: int, now: int, behind: bool, **fields: Any) -> dict[str, Any]:
    """An update that sets `visible_at` and other fields of a message; None removes a field."""
    fields |= {"visible_at": visible_at, "line": None, "timed": None}
    place = place_of(visible_at, now, behind)
    if place is not None:
        fields[place] = queue
    gone = {name: "" for name, value in fields.items() if value is None}
    return {"$set": {name: value for name, value in fields.items() if value is not None}, "$unset": gone}


def lease(
    number: ObjectId, now: int, until: int, token: str, consumer: str | None, claim: ObjectId | None = None
) -> dict[str, Any]:
    """The update that leases a message, to a claim if one is given."""
    change = state_change(number, until, now, False, receipt=token, consumer=consumer, taken_at=now, claim=claim)
    return change | {"$inc": {"receives": 1}}


def release(number: ObjectId, visible_at: int, now: int, waits: bool) -> dict[str, Any]:
    """The update that gives a message back."""
    return state_change(number, visible_at, now, waits, **dict.fromkeys(LEASE))


def handed_out(found: Document, now: int, consumer: str | None) -> list[Event]:
    """The events of a lease: `expired` for an earlier lease, then `received`."""
    recorded: list[Event] = []
    if "receipt" in found and "taken_at" in found:
        recorded.append(left("expired", found, now, "lease", found["visible_at"] - found["taken_at"]))
    receives, since = found["receives"] + 1, found["visible_at"]
    recorded.append(events.received(found["queue"], found["_id"], found["size"], now, receives, since, consumer))
    return recorded


def left(event: EventName, found: Document, now: int, reason: str | None, held: int | None = None) -> Event:
    """The event of a lease that ended or a message that left. Without `held` the consumer had it until now."""
    if held is None and "receipt" in found and "taken_at" in found:
        held = now - found["taken_at"]
    queue, id, size, receives = (found[name] for name in ("queue", "_id", "size", "receives"))
    return events.left(event, queue, id, size, now, receives, found.get("consumer"), held, reason)
