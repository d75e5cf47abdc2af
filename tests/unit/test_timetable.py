"""The moments of schedules: cron expressions, daylight saving, and what is due."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from miniq.errors import InvalidRequest
from miniq.message import SECOND, Draft
from miniq.schedule import COUNTED, Definition
from miniq.timetable import LATEST, Timing, check_cron, latest_until, moment_of, plan, timing_of, zone

MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86400 * SECOND


def at(text: str) -> int:
    return round(datetime.fromisoformat(text + "Z").timestamp()) * SECOND


def after(text: str, cron: str, timezone: str = "UTC", count: int = 3) -> list[str]:
    moments = islice(Timing(cron=cron, timezone=timezone).after(at(text), 0), count)
    return [moment_of(moment).strftime("%m-%d %H:%M") for moment in moments]


@pytest.mark.parametrize(
    ("cron", "moments"),
    [
        ("* * * * *", ["01-05 12:01", "01-05 12:02", "01-05 12:03"]),
        ("*/20 * * * *", ["01-05 12:20", "01-05 12:40", "01-05 13:00"]),
        ("5,10 8-9 * * *", ["01-06 08:05", "01-06 08:10", "01-06 09:05"]),
        ("0 0 * * sun", ["01-11 00:00", "01-18 00:00", "01-25 00:00"]),
        ("0 0 * * 0", ["01-11 00:00", "01-18 00:00", "01-25 00:00"]),
        ("0 0 * * 7", ["01-11 00:00", "01-18 00:00", "01-25 00:00"]),
        ("0 9 * * Mon-Fri", ["01-06 09:00", "01-07 09:00", "01-08 09:00"]),
        ("0 0 1 jan,JUL *", ["07-01 00:00", "01-01 00:00", "07-01 00:00"]),
        ("0 0 13 * fri", ["01-09 00:00", "01-13 00:00", "01-16 00:00"]),
        ("0 0 */10 * mon", ["05-11 00:00", "06-01 00:00", "08-31 00:00"]),
        ("0 0 29 2 *", ["02-29 00:00", "02-29 00:00", "02-29 00:00"]),
        ("0 0 L * *", ["01-31 00:00", "02-28 00:00", "03-31 00:00"]),
        ("0 0 * * 5#2", ["01-09 00:00", "02-13 00:00", "03-13 00:00"]),
    ],
)
def test_a_cron_expression_means_what_debians_cron_does(cron: str, moments: list[str]) -> None:
    assert after("2026-01-05T12:00", cron) == moments


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [
        # 02:00 to 03:00 is left out in spring (01:00 UTC) and comes twice in autumn (00:00 and 01:00 UTC).
        ("30 2 * * *", ["03-29 01:00", "03-30 00:30"], ["10-25 00:30", "10-26 01:30"]),
        ("0 3 * * *", ["03-29 01:00", "03-30 01:00"], ["10-25 02:00", "10-26 02:00"]),
        ("15 2,3 * * *", ["03-29 01:00", "03-29 01:15"], ["10-25 00:15", "10-25 02:15"]),
        ("0 * * * *", ["03-29 00:00", "03-29 01:00"], ["10-25 00:00", "10-25 01:00"]),
        ("*/30 * * * *", ["03-29 00:00", "03-29 00:30"], ["10-25 00:00", "10-25 00:30"]),
        ("30 */2 * * *", ["03-29 02:30", "03-29 04:30"], ["10-25 00:30", "10-25 01:30"]),
    ],
)
def test_daylight_saving_is_that_of_debians_cron(cron: str, spring: list[str], autumn: list[str]) -> None:
    assert after("2026-03-28T23:30", cron, "Europe/Berlin", 2) == spring
    assert after("2026-10-24T23:30", cron, "Europe/Berlin", 2) == autumn


@pytest.mark.parametrize("timezone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "*/20 * * * *", "0 0,2 * * *", "45 1-3 * * *"])
def test_the_next_moment_does_not_depend_on_where_one_begins(cron: str, timezone: str) -> None:
    """Whatever the last moment was: from each point in time, the same one comes next, also in both nights."""
    timing = Timing(cron=cron, timezone=timezone)
    for begin in ("2026-03-07T00:00", "2026-03-28T00:00", "2026-04-04T00:00", "2026-10-03T00:00", "2026-10-24T00:00"):
        start, end = at(begin), at(begin) + 2 * DAY
        moments = [moment for moment in islice(timing.after(start, 0), 300) if moment <= end]
        assert moments == sorted(set(moments))
        for now in range(start, end - DAY, 7 * MINUTE):
            assert timing.next(now, 0) == next(moment for moment in moments if moment > now), moment_of(now)


TIMINGS = st.one_of(
    st.sampled_from(["*/7 * * * *", "30 2 * * *", "0 0 1 * *", "0 0 29 2 *"]).map(
        lambda cron: Timing(cron=cron, timezone="Europe/Berlin")
    ),
    st.integers(10, 10**6).map(lambda tenths: Timing(every=tenths * SECOND // 10)),
)


@settings(max_examples=60)
@given(TIMINGS, st.integers(0, 3 * 366 * 86400), st.integers(0, 5000), st.sampled_from(["skip", "last", "all"]))
def test_a_plan_handles_every_moment_once(timing: Timing, begin: int, steps: int, catch_up: Any) -> None:
    start = at("2026-01-01T00:00")
    due = timing.next(start + begin * SECOND, start)
    assert due is not None
    now = due + steps * (timing.every or HOUR) // 7
    moments = [due, *(moment for moment in _until(timing, due, start, now))]
    missed_before = now - 10 * SECOND
    sent: list[int] = []
    left_out: list[int] = []
    while due is not None and due <= now:
        made = plan(timing, due, start, now, missed_before, catch_up, 100)
        assert len(made.send) <= 100
        assert made.last >= due
        sent += made.send
        if made.skipped is not None:
            first, last, count = made.skipped
            skipped = [moment for moment in moments if first <= moment <= last]
            assert (skipped[0], skipped[-1], min(len(skipped), COUNTED)) == (first, last, min(count, COUNTED))
            left_out += skipped
        due = timing.next(made.last, start)
    missed = [moment for moment in moments if moment < missed_before]
    on_time = moments[len(missed) :]
    if catch_up == "all" or not missed:
        assert sent == moments
    else:
        assert sent == (moments[-1:] if catch_up == "last" else on_time)
    assert sorted([*sent, *left_out]) == moments
    assert due == timing.next(now, start)


def _until(timing: Timing, first: int, start: int, end: int) -> list[int]:
    found = []
    for moment in timing.after(first, start):
        if moment > end:
            break
        found.append(moment)
    return found


def test_very_many_missed_moments_take_no_time() -> None:
    start, now = at("2020-01-01T00:00"), at("2030-01-01T00:00")
    looked = 0

    class Counted(Timing, frozen=True):
        def after(self, moment: int, start: int) -> Any:
            nonlocal looked
            for found in super().after(moment, start):
                looked += 1
                yield found

    assert latest_until(Counted(cron="* * * * *"), start, start, now) == now
    assert latest_until(Counted(cron="0 0 1 1 *"), start, start, now - 1) == at("2029-01-01T00:00")
    assert latest_until(Timing(every=100_000), start, start, now + 1) == now
    assert looked < 500


def test_every_counts_from_its_start_and_ends_in_2100() -> None:
    timing = Timing(every=90 * SECOND)
    start = at("2026-01-01T00:00")
    assert timing.next(start - DAY, start) == start + 90 * SECOND
    assert timing.next(start + 90 * SECOND - 1, start) == start + 90 * SECOND
    assert timing.next(start + 90 * SECOND, start) == start + 180 * SECOND
    assert timing.next(LATEST, start) is None
    assert timing.upcoming(None, start) == []


@pytest.mark.parametrize(
    "cron",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *",
     "5-1 * * * *", "a * * * *", "1,,2 * * * *", "* * * * mon#6", "* * * * 5#2/3",
     "@daily", "-1 * * * *", "1.5 * * * *", "* * L-3 * *", "* * * * L", "0 0 * * mon-"],
)  # fmt: skip
def test_what_is_no_cron_expression_is_refused(cron: str) -> None:
    with pytest.raises(InvalidRequest, match="use five fields") as refused:
        check_cron(cron, "UTC", at("2026-01-01T00:00"))
    assert refused.value.field == "cron"


@settings(max_examples=200)
@given(st.text("*/,-#LW0123456789 abcdmonjan", max_size=30))
def test_any_text_is_accepted_or_refused(text: str) -> None:
    with suppress(InvalidRequest):
        check_cron(text, "America/New_York", at("2026-01-01T00:00"))
        assert Timing(cron=text, timezone="America/New_York").next(at("2026-01-01T00:00"), 0) is not None


def test_zones_are_those_of_iana() -> None:
    assert zone("Europe/Berlin").utcoffset(datetime(2026, 7, 1, tzinfo=UTC)) is not None
    for name in ("", "Mars", "../../etc/passwd", "/etc/localtime", "Europe", "\0", "CET-1"):
        with pytest.raises(InvalidRequest, match="use an IANA name such as Europe/Berlin"):
            zone(name)


def test_zones_that_differ_from_machine_to_machine_are_refused() -> None:
    for name in ("localtime", "Factory", "posixrules", "posix/Europe/Berlin", "right/Europe/Berlin", "Mars"):
        with pytest.raises(
            InvalidRequest, match=f"timezone: {name!r} .*use an IANA name such as Europe/Berlin, or UTC"
        ):
            timing_of(Definition(Draft(b"1"), every=60, timezone=name))
    for name in ("UTC", "Etc/UTC", "Europe/Berlin", "CET", "Asia/Calcutta"):
        assert timing_of(Definition(Draft(b"1"), every=60, timezone=name)).timezone == name


@pytest.mark.parametrize("cron", ["0 3 31 2 *", "0 0 30 feb *", "0 0 31 4,6 *"])
def test_a_day_that_no_year_has_never_comes(cron: str) -> None:
    with pytest.raises(InvalidRequest, match="never comes: no year has such a day"):
        check_cron(cron, "UTC", at("2026-01-01T00:00"))
