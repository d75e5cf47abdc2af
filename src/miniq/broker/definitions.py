"""What a valid schedule is. Every refusal names the field, the value and what is allowed."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from miniq.broker import rules
from miniq.errors import BadName, InvalidRequest, TooLarge
from miniq.message import Draft
from miniq.options import Limits
from miniq.schedule import MOMENT_HEADER, NAME_HEADER, Definition
from miniq.timetable import moment_of

_encode = msgspec.msgpack.Encoder().encode


def check_name(name: object) -> None:
    """Raise unless this is a valid name for a schedule."""
    rules.check_label(name, "name", "name of a schedule")
    if name in (".", ".."):
        text = f"name: {name!r} is not the name of a schedule, because URLs give it another meaning; use another name"
        raise BadName(text, field="name")


def check_definition(name: str, definition: Definition, limits: Limits) -> None:
    """Raise unless a definition is valid, apart from its timing."""
    draft = definition.draft
    if (definition.queue is None) == (definition.topic is None):
        text = (
            "a queue or a topic; none was given" if definition.queue is None else "either a queue or a topic, not both"
        )
        raise InvalidRequest(f"queue: name {text}", field="queue")
    if definition.queue is not None:
        rules.check_name(definition.queue)
    else:
        rules.check_name(definition.topic, "topic")
    if draft.deliver_at is not None:
        text = "deliver_at: a schedule sends at its own moments; use at for a single one, or delay"
        raise InvalidRequest(text, field="deliver_at")
    if draft.headers is not None:
        rules.check_headers(draft.headers, limits)
    rules.check_draft(stamped(name, draft, 0), limits)
    size = len(_encode(draft))
    if size > limits.schedule_bytes:
        text = f"body: the message of the schedule has {size} bytes; at most {limits.schedule_bytes}"
        raise TooLarge(text, field="body")


def stamped(name: str, draft: Draft, moment: int) -> Draft:
    """The message of a schedule for a moment, with headers that tell both."""
    at = moment_of(moment).isoformat().replace("+00:00", "Z")
    return replace(draft, headers={**(draft.headers or {}), NAME_HEADER: name, MOMENT_HEADER: at})
