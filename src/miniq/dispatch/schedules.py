"""The calls of schedules: the rights are those on the queue that a schedule sends to, or on the topic that it publishes
to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from miniq.api import operations as ops
from miniq.broker import Broker
from miniq.dispatch.caller import Caller
from miniq.errors import Forbidden, ScheduleNotFound
from miniq.schedule import Definition, Schedule


def _rights(target: Schedule | Definition) -> tuple[str | None, tuple[str, str]]:
    """The queue or topic of a schedule, and the rights on it that setting, running and deleting needs."""
    return (target.queue, ("manage", "send")) if target.topic is None else (target.topic, ("manage", "publish"))


def _check_rights(broker: Broker, caller: Caller, target: Schedule | Definition, rights: Sequence[str] = ()) -> None:
    """Raise unless the caller has some rights on the target of a schedule, by default those that changing it needs."""
    name, needed = _rights(target)
    for right in rights or needed:
        broker.keys.check(caller.secret, right, name, "queue" if target.topic is None else "topic")


async def _schedule(broker: Broker, name: str, caller: Caller, *rights: str) -> Schedule:
    """A schedule, on whose target the caller has some rights; one that it has none on is not found. Without `rights`,
    checks those that changing it needs."""
    schedule = await broker.schedules.get(name)
    target, needed = _rights(schedule)
    if not any(caller.may(broker, right, target) for right in ("read", *needed)):
        raise ScheduleNotFound(f"name: there is no schedule {name!r}", field="name")
    if not caller.is_owner:
        _check_rights(broker, caller, schedule, rights)
    return schedule


def _shown_schedule(broker: Broker, schedule: Schedule, caller: Caller) -> Schedule:
    """A schedule as a caller may see it."""
    return schedule if caller.may(broker, "read", _rights(schedule)[0]) else replace(schedule, draft=None)


async def put_schedule(broker: Broker, call: ops.PutSchedule, caller: Caller) -> Schedule:
    """Create or change a schedule. Names are shared: a caller learns that one is taken, and nothing more."""
    definition = call.definition
    if not caller.is_owner and not broker.keys.open:
        if definition is not None and (definition.queue or definition.topic) is not None:
            _check_rights(broker, caller, definition)
            if definition.queue is not None:
                caller.check_new_queues(broker, [definition.queue])
            if definition.topic is not None:
                caller.check_new_topic(broker, definition.topic)
        before = None
        with suppress(ScheduleNotFound):
            before = await broker.schedules.get(call.name)
        if before is not None:
            target, needed = _rights(before)
            if not any(caller.may(broker, right, target) for right in ("read", *needed)):
                if definition is None:
                    raise ScheduleNotFound(f"name: there is no schedule {call.name!r}", field="name")
                raise Forbidden(f"name: the name {call.name!r} is taken; use another one", field="name")
            if not all(caller.may(broker, right, target) for right in needed):
                raise Forbidden(f"name: this key does not allow to change the schedule {call.name!r}", field="name")
    schedule = await broker.schedules.put(call.name, definition, call.paused)
    return _shown_schedule(broker, schedule, caller)


async def get_schedule(broker: Broker, call: ops.GetSchedule, caller: Caller) -> Schedule:
    return await _schedule(broker, call.name, caller, "read")


async def delete_schedule(broker: Broker, call: ops.DeleteSchedule, caller: Caller) -> None:
    await _schedule(broker, call.name, caller)
    await broker.schedules.delete(call.name)


async def run_schedule(broker: Broker, call: ops.RunSchedule, caller: Caller) -> Schedule:
    await _schedule(broker, call.name, caller)
    return _shown_schedule(broker, await broker.schedules.run(call.name), caller)


async def list_schedules(broker: Broker, call: ops.ListSchedules, caller: Caller) -> list[Schedule]:
    schedules = await broker.schedules.all()
    return [schedule for schedule in schedules if caller.may(broker, "read", _rights(schedule)[0])]
