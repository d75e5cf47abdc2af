"""Schedules on the wire, in both directions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from miniq.api import checks, codec, messages
from miniq.api.codec import Format
from miniq.api.operation import Body
from miniq.api.replies import Now, Reply
from miniq.api.shapes import WireDraft, with_fields_of
from miniq.message import JSON, Draft
from miniq.schedule import Definition, Firing, Schedule


class ScheduleBody(WireDraft):
    """A message with the queue or topic it is sent to, and one of `cron`, `every` (seconds) and `at`. With `paused`
    alone, a schedule is paused or resumed."""

    queue: str | None = None
    topic: str | None = None
    cron: str | None = None
    every: float | None = None
    at: datetime | None = None
    timezone: str | None = None
    catch_up: str | None = None
    paused: bool | None = None


@with_fields_of(Draft, "deliver_at")
class WireSchedule(Struct, omit_defaults=True):
    """A schedule with its next moments, and its last results, newest first. Its message is left out if the caller may
    not read the queue."""

    name: str
    timezone: str
    catch_up: str
    paused: bool
    next: list[datetime]
    results: list[Firing]
    queue: str | None = None
    topic: str | None = None
    cron: str | None = None
    every: float | None = None
    at: datetime | None = None
    body: Raw | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    content_type: str | None = None
    headers: dict[str, str] | None = None


class SchedulesReply(Struct):
    schedules: list[WireSchedule]


_OPTIONS = [name for name in Draft.__struct_fields__ if name not in ("body", "content_type", "deliver_at")]
_DEFAULTS = [(info.name, info.default) for info in msgspec.structs.fields(ScheduleBody) if info.name != "paused"]
_TARGET = ("queue", "topic", "cron", "every", "at")
_COMMON = [name for name in Schedule.__struct_fields__ if name != "draft"]


def _pack(call: Any) -> ScheduleBody:
    definition: Definition | None = call.definition
    if definition is None:
        return ScheduleBody(paused=call.paused)
    for field in ("queue", "topic", "cron", "timezone", "catch_up"):
        checks.check_text(getattr(definition, field), field)
    checks.check_number(definition.every, "every")
    checks.check_moment(definition.at, "at")
    [wire] = messages.wire_drafts([definition.draft])
    fields = {name: getattr(wire, name) for name in wire.__struct_fields__}
    fields |= {name: getattr(definition, name) for name in (*_TARGET, "timezone", "catch_up")}
    return ScheduleBody(**fields, paused=call.paused)


def _unpack(body: ScheduleBody, format: Format) -> Sequence[Any]:
    if body.paused is not None and all(getattr(body, name) == default for name, default in _DEFAULTS):
        return None, body.paused
    draft = messages.draft_of(body, format)
    given = {name: value for name in ("timezone", "catch_up") if (value := getattr(body, name)) is not None}
    return Definition(draft, *(getattr(body, name) for name in _TARGET), **given), body.paused


def wire_schedule(schedule: Schedule, format: Format) -> WireSchedule:
    """A schedule as it is sent to clients."""
    fields: dict[str, Any] = {name: getattr(schedule, name) for name in _COMMON}
    draft = schedule.draft
    if draft is not None:
        fields["body"], fields["data"] = codec.wire_body(draft.body, draft.content_type, format)
        fields["content_type"] = None if draft.content_type == JSON else draft.content_type
        fields |= {name: getattr(draft, name) for name in _OPTIONS}
    return WireSchedule(**fields)


def _read(wire: WireSchedule) -> Schedule:
    draft = None
    if wire.body is not UNSET or wire.data is not UNSET:
        kind = wire.content_type or JSON
        body = messages.body_bytes(wire.body, b"" if wire.data is UNSET else wire.data, kind)
        draft = Draft(body, kind, **{name: getattr(wire, name) for name in _OPTIONS})
    fields: dict[str, Any] = {name: getattr(wire, name) for name in _COMMON}
    return Schedule(**fields, draft=draft)


def _write_one(schedule: Schedule, call: Any, format: Format, now: Now) -> WireSchedule:
    return wire_schedule(schedule, format)


def _write_all(schedules: list[Schedule], call: Any, format: Format, now: Now) -> SchedulesReply:
    return SchedulesReply([wire_schedule(schedule, format) for schedule in schedules])


SCHEDULE_BODY = Body(ScheduleBody, _pack, _unpack)
SCHEDULE: Reply[Schedule] = Reply(
    WireSchedule, _write_one, lambda body: _read(msgspec.json.decode(body, type=WireSchedule))
)
SCHEDULES: Reply[list[Schedule]] = Reply(
    SchedulesReply,
    _write_all,
    lambda body: [_read(wire) for wire in msgspec.json.decode(body, type=SchedulesReply).schedules],
)
