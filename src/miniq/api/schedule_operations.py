"""The operations of schedules: rows of the table in `operations.py`."""

from __future__ import annotations

from miniq.api import replies, schedules
from miniq.api.operation import Call
from miniq.api.table import operation
from miniq.schedule import Definition, Schedule

SCHEDULE = "/v1/schedules/{name}"


@operation(
    "put_schedule", "PUT", SCHEDULE, "manage", "Create or change a schedule, or pause and resume it",
    schedules.SCHEDULE, body=schedules.SCHEDULE_BODY, own=True,
)  # fmt: skip
class PutSchedule(Call[Schedule], frozen=True):
    """Without a `definition`, only `paused` changes; without `paused`, that stays."""

    name: str
    definition: Definition | None
    paused: bool | None = None


@operation(
    "get_schedule", "GET", SCHEDULE, "read", "A schedule with its next moments and last results",
    schedules.SCHEDULE, own=True,
)  # fmt: skip
class GetSchedule(Call[Schedule], frozen=True):
    name: str


@operation(
    "delete_schedule", "DELETE", SCHEDULE, "manage", "Remove a schedule",
    replies.NONE, status=204, done=["schedule_not_found"], own=True,
)  # fmt: skip
class DeleteSchedule(Call[None], frozen=True):
    name: str


@operation(
    "run_schedule", "POST", f"{SCHEDULE}/run", "send", "Send the message of a schedule now",
    schedules.SCHEDULE, repeat="once", own=True,
)  # fmt: skip
class RunSchedule(Call[Schedule], frozen=True):
    name: str


@operation(
    "list_schedules", "GET", "/v1/schedules", "read", "List schedules with their next moments",
    schedules.SCHEDULES, own=True,
)  # fmt: skip
class ListSchedules(Call[list[Schedule]], frozen=True):
    pass
