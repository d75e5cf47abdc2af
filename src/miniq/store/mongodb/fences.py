"""What a fence says about a document, and how the changes it allows look."""

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
    """The documents that fences name, without what users put into them."""
    query = {"_id": {"$in": [id for id, _ in fences]}, "number": number}
    found = await db.messages.find(query, WITHOUT_BODY, session=session).to_list()
    return {one["_id"]: one for one in found}


def check(found: Document | None, receipt: str, now: int) -> Outcome:
    """Whether a fence holds."""
    return "missing" if found is None else fence(found["visible_at"], found.get("receipt"), receipt, now)


def state_change(queue: ObjectId, visible_at: int, now: int, behind: bool, **fields: Any) -> dict[str, Any]:
    """An update that gives a message a new `visible_at` and other fields; None removes one."""
    fields |= {"visible_at": visible_at, "line": None, "timed": None}
    place = place_of(visible_at, now, behind)
    if place is not None:
        fields[place] = queue
    gone = {name: "" for name, value in fields.items() if value is None}
    return {"$set": {name: value for name, value in fields.items() if value is not None}, "$unset": gone}


def lease(
    number: ObjectId, now: int, until: int, token: str, consumer: str | None, claim: ObjectId | None = None
) -> dict[str, Any]:
    """The update that hands a message out, to a claim if one is given."""
    change = state_change(number, until, now, False, receipt=token, consumer=consumer, taken_at=now, claim=claim)
    return change | {"$inc": {"receives": 1}}


def release(number: ObjectId, visible_at: int, now: int, waits: bool) -> dict[str, Any]:
    """The update that gives a message back."""
    return state_change(number, visible_at, now, waits, **dict.fromkeys(LEASE))


def handed_out(found: Document, now: int, consumer: str | None) -> list[Event]:
    """A message is leased; the lease before that, if it ran out, is told first."""
    told: list[Event] = []
    if "receipt" in found and "taken_at" in found:
        told.append(left("expired", found, now, "lease", found["visible_at"] - found["taken_at"]))
    receives, since = found["receives"] + 1, found["visible_at"]
    told.append(events.received(found["queue"], found["_id"], found["size"], now, receives, since, consumer))
    return told


def left(event: EventName, found: Document, now: int, reason: str | None, held: int | None = None) -> Event:
    """A lease ended or a message left. Unless `held` is given the consumer had it until now."""
    if held is None and "receipt" in found and "taken_at" in found:
        held = now - found["taken_at"]
    queue, id, size, receives = (found[name] for name in ("queue", "_id", "size", "receives"))
    return events.left(event, queue, id, size, now, receives, found.get("consumer"), held, reason)
