"""The moments of a schedule: which are valid, what comes next, and what has to be sent now. Pure; no clock.

A cron expression is read as Debian's cron does: five fields, with names, lists, ranges and steps; if both days are
restricted, either may match. In a time zone with daylight saving, a job at fixed hours and minutes runs once in each of
the two nights: what falls into the hour that is left out runs right after it, and what falls into the hour that comes
twice runs the first time. Jobs with `*` as minute or hour, also with a step, follow real time: they do not run in the
hour that is left out, and run in both hours.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice, takewhile
from typing import get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct

from miniq.errors import InvalidRequest, require_moment, show
from miniq.message import SECOND
from miniq.schedule import COUNTED, CatchUp, Definition

CRON_LENGTH = 256
ZONE_LENGTH = 64
_LOCAL_ZONES = ("localtime", "posixrules", "Factory")
"""Files beside the zones of IANA; like the folders `posix` and `right`, some machines have them and others do not."""
SHORTEST = 0.1
LONGEST = 366 * 86400.0
"""Seconds between two moments of `every`."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHOWN = 5
"""Next moments that are shown."""
LATEST = 4_102_444_800 * SECOND
"""No moment is later than the year 2100."""
_HOUR = 3600 * SECOND
_SPANS = (_HOUR, 24 * _HOUR, 32 * 24 * _HOUR, 400 * 24 * _HOUR)
"""How far back the latest moment is looked for, step by step."""
_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""What other crons have names for."""


class Timing(Struct, frozen=True, omit_defaults=True):
    """When a schedule is due: by one of `cron`, `every` (microseconds) and `at`."""

    cron: str | None = None
    every: int = 0
    at: int = 0
    timezone: str = "UTC"

    def after(self, moment: int, start: int) -> Iterator[int]:
        """The moments after `moment`, of a schedule that was set at `start`."""
        if self.cron is not None:
            return _cron_after(self.cron, zone(self.timezone), moment)
        if self.every:
            return _every_after(self.every, start, moment)
        return iter([self.at] if self.at > moment else [])

    def next(self, moment: int, start: int) -> int | None:
        """The first moment after `moment`."""
        return next(self.after(moment, start), None)

    def upcoming(self, first: int | None, start: int) -> list[int]:
        """The next moments, of which the first is known."""
        if first is None:
            return []
        return [first, *islice(self.after(first, start), SHOWN - 1)]


class Plan(Struct, frozen=True):
    """What to do with the moments that are due."""

    send: list[int]
    """The moments for which a message is sent, in order."""
    skipped: tuple[int, int, int] | None
    """The first and the last of the moments that are not sent, and how many they are: exactly up to `COUNTED`."""
    last: int
    """The latest moment that is handled by this."""


def plan(timing: Timing, due: int, start: int, now: int, missed_before: int, catch_up: CatchUp, most: int) -> Plan:
    """What to do at `now` about a schedule whose next moment is `due`. Moments before `missed_before` were missed.
    Handles up to `most` moments that are sent, and any number of moments that are not."""
    if due < missed_before and catch_up != "all":
        if catch_up == "last":
            latest = latest_until(timing, due, start, now)
            skipped = None if latest == due else _span(timing, due, start, latest_until(timing, due, start, latest - 1))
            return Plan([latest], skipped, latest)
        last = latest_until(timing, due, start, missed_before - 1)
        return Plan([], _span(timing, due, start, last), last)
    moments = [due]
    for moment in timing.after(due, start):
        if moment > now or len(moments) == most:
            break
        moments.append(moment)
    return Plan(moments, None, moments[-1])


def _span(timing: Timing, first: int, start: int, last: int) -> tuple[int, int, int]:
    """Two moments of a schedule, and how many there are from the one to the other."""
    if timing.every:
        return first, last, (last - first) // timing.every + 1
    between = takewhile(lambda moment: moment <= last, timing.after(first, start))
    return first, last, 1 + sum(1 for _ in islice(between, COUNTED - 1))


def latest_until(timing: Timing, first: int, start: int, end: int) -> int:
    """The latest moment up to `end`, where `first` is one. Takes no longer if very many lie in between."""
    if timing.every:
        return first + (end - first) // timing.every * timing.every
    for span in _SPANS:
        if end - span <= first:
            break
        latest = None
        for moment in timing.after(end - span, start):
            if moment > end:
                break
            latest = moment
        if latest is not None:
            return latest
    latest = first
    for moment in timing.after(first, start):
        if moment > end:
            break
        latest = moment
    return latest


def timing_of(definition: Definition, now: int = 0, before: Timing | None = None) -> Timing:
    """The timing of a schedule that is set at `now`, and had another one before; raises unless it is valid. Without
    `now`, a moment may have passed."""
    given = [name for name in ("cron", "every", "at") if getattr(definition, name) is not None]
    if len(given) != 1:
        which = "none was given" if not given else f"{' and '.join(given)} were given"
        raise InvalidRequest(f"cron: a schedule needs exactly one of cron, every and at; {which}", field="cron")
    timezone = definition.timezone
    if not isinstance(timezone, str) or len(timezone) > ZONE_LENGTH:
        raise _no_zone(timezone)
    check_zone(timezone)
    if definition.catch_up not in get_args(CatchUp):
        text = f"catch_up: {show(definition.catch_up)} is invalid; use skip, last or all"
        raise InvalidRequest(text, field="catch_up")
    if definition.cron is not None:
        cron: object = definition.cron
        if not isinstance(cron, str) or len(cron) > CRON_LENGTH:
            text = f"cron: {show(cron)} is not a text of up to {CRON_LENGTH} characters such as 0 3 * * *"
            raise InvalidRequest(text, field="cron")
        check_cron(cron, timezone, now)
        return Timing(cron=" ".join(cron.split()), timezone=timezone)
    if definition.every is not None:
        every: object = definition.every
        if isinstance(every, bool) or not isinstance(every, int | float) or not SHORTEST <= every <= LONGEST:
            text = f"every: {show(every)} is not a number of seconds from {SHORTEST:.15g} to {LONGEST:.15g}"
            raise InvalidRequest(text, field="every")
        return Timing(every=round(every * SECOND), timezone=timezone)
    return Timing(at=_moment(definition.at, now, before), timezone=timezone)


def _moment(at: object, now: int, before: Timing | None) -> int:
    at = require_moment(at, "at")
    moment = (at - EPOCH) // timedelta(microseconds=1)
    if before is not None and moment == before.at:
        return moment  # to set it again after it has passed changes nothing
    if not now < moment <= LATEST:
        problem = "has passed" if moment <= now else "is too far ahead"
        raise InvalidRequest(f"at: {at.isoformat()} {problem}; use a moment from now to the year 2100", field="at")
    return moment


def moment_of(micros: int) -> datetime:
    """A moment as a timestamp."""
    return EPOCH + timedelta(microseconds=micros)


def check_zone(name: str) -> None:
    """Raise unless this is the name of a time zone that is the same on every machine."""
    zone(name)
    if name in _LOCAL_ZONES or name.startswith(("posix/", "right/")):
        raise _no_zone(name)


@lru_cache(1024)
def zone(name: str) -> ZoneInfo:
    """A time zone by its name; raises `InvalidRequest` if there is none."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        raise _no_zone(name) from None


def _no_zone(name: object) -> InvalidRequest:
    text = f"timezone: {show(name)} is not a time zone; use an IANA name such as Europe/Berlin, or UTC"
    return InvalidRequest(text, field="timezone")


def _never(expression: str) -> InvalidRequest:
    text = f"cron: {expression!r:.80} never comes: no year has such a day; use days that its months have"
    return InvalidRequest(text, field="cron")


def _is_valid_in_another_month(expression: str) -> bool:
    """Whether an expression with five fields that the library refuses is valid but for its months, such as that of
    31 February."""
    minute, hour, day, month, weekday = expression.split()
    with suppress(CronSimError, AssertionError, ValueError, TypeError):
        CronSim(f"0 0 1 {month} *", EPOCH)
        CronSim(f"{minute} {hour} {day} * {weekday}", EPOCH)
        return True
    return False


def check_cron(expression: str, timezone: str, now: int) -> None:
    """Raise unless a cron expression is valid and has a moment after `now`."""
    problem = "use five fields: minute, hour, day of month, month, day of week, such as 30 3 * * mon-fri"
    count = len(expression.split())
    if count != 5:
        if known := _NAMED.get(expression.strip().lower()):
            problem += f"; this one is {known}"
        raise InvalidRequest(
            f"cron: {expression!r:.80} has {count} field{'' if count == 1 else 's'}; {problem}", field="cron"
        )
    try:
        moment = next(_cron_after(expression, zone(timezone), now), None)
    except CronSimError as error:
        if _is_valid_in_another_month(expression):
            raise _never(expression) from None
        reason = str(error)[:1].lower() + str(error)[1:]
        raise InvalidRequest(f"cron: {expression!r:.80} is invalid ({reason}); {problem}", field="cron") from None
    except (AssertionError, ValueError, TypeError):  # what the library does not expect itself
        raise InvalidRequest(f"cron: {expression!r:.80} is invalid; {problem}", field="cron") from None
    if moment is None:
        raise _never(expression)


def _cron_after(expression: str, zone: ZoneInfo, moment: int) -> Iterator[int]:
    start = moment_of(moment).astimezone(UTC if zone.key == "UTC" else zone)
    for at in CronSim(expression, start):
        next_moment = (at - EPOCH) // timedelta(microseconds=1)
        if next_moment > LATEST:
            return
        if next_moment > moment:  # in the hour that comes twice, the library begins with the first one
            yield next_moment
            moment = next_moment


def _every_after(every: int, start: int, moment: int) -> Iterator[int]:
    next_moment = start + (max(0, moment - start) // every + 1) * every
    while next_moment <= LATEST:
        yield next_moment
        next_moment += every
