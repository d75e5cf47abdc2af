"""Celery's schedules as MiniQ's: crontab as cron, intervals as `every`.

What has no counterpart is computed by the beat, one moment after the other: solar events, intervals relative to their
resolution, and crontabs that restrict both days, which must both match in Celery, while in cron one of them suffices.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from celery.schedules import crontab, schedule
from msgspec import Struct

from miniq.errors import InvalidRequest
from miniq.timetable import check_zone

_STEPS = re.compile(r"\*(/\d+)?")


class Timing(Struct, frozen=True):
    """The timing of a schedule of MiniQ."""

    cron: str | None = None
    every: float | None = None
    at: datetime | None = None
    timezone: str = "UTC"


def timing_of(timed: Any) -> Timing | None:
    """The same timing in MiniQ's terms; None if there is none."""
    if timed.nowfun is not None:
        return None
    if type(timed) is schedule:
        return None if timed.relative else Timing(every=timed.run_every.total_seconds())
    if type(timed) is not crontab:
        return None
    zone = _zone(timed.tz)
    if zone is None or not (_is_any(timed._orig_day_of_month) or _is_any(timed._orig_day_of_week)):
        return None
    fields = [
        _field(timed._orig_minute, timed.minute),
        _field(timed._orig_hour, timed.hour),
        _field(timed._orig_day_of_month, timed.day_of_month),
        _field(timed._orig_month_of_year, timed.month_of_year),
        _field(timed._orig_day_of_week, timed.day_of_week),
    ]
    return Timing(cron=" ".join(fields), timezone=zone)


def next_moment(timed: Any, after: datetime) -> datetime:
    """The first moment after `after`, in whole seconds: all beats compute the same one."""
    now = timed.maybe_make_aware(timed.now())
    left = timed.remaining_estimate(timed.maybe_make_aware(after.astimezone(now.tzinfo)))
    moment = (now + left).astimezone(UTC) + timedelta(milliseconds=500)
    first: datetime = after.replace(microsecond=0) + timedelta(seconds=1)
    return first if moment < first else cast(datetime, moment.replace(microsecond=0))


def _is_any(field: Any) -> bool:
    return str(field) == "*"


def _field(original: Any, numbers: set[int]) -> str:
    """A field of cron: as it was written, if cron reads that alike, else its numbers."""
    text = str(original)
    return text if _STEPS.fullmatch(text) is not None else ",".join(map(str, sorted(numbers)))


def _zone(zone: Any) -> str | None:
    """The IANA name of a time zone."""
    name = getattr(zone, "key", None) or str(zone)
    try:
        check_zone(name)
    except InvalidRequest:
        return None
    return str(name)
