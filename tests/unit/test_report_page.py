"""The report page: well-formed, self-contained, and correct in how it places numbers on charts."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("pyspark")

from miniq.spark.report import charts
from miniq.spark.report.charts import Line
from miniq.spark.report.page import render
from miniq.spark.report.tables import Span

NOW = datetime(2026, 11, 15, tzinfo=UTC)
COUNTS = {
    "sent": 10, "received": 12, "redelivered": 2, "acked": 9, "released": 2, "failed": 3, "lost_leases": 1, "dead": 1
}  # fmt: skip
TIMES = {f"{kind}_{mark}_ms": 5.0 for kind in ("wait", "held", "latency") for mark in ("p50", "p90", "p99")}
NASTY = '<script>alert("x")</script>'


def tables(queue: str = "orders") -> dict[str, list[dict[str, Any]]]:
    row = COUNTS | TIMES | {"queue": queue, "bytes_sent": 100}
    return {
        "throughput": [row | {"at": 100}, row | {"at": 103}],
        "overall": [COUNTS | TIMES | {"at": 100}, COUNTS | TIMES | {"at": 103}],
        "total": [COUNTS | TIMES],
        "backlog": [{"queue": queue, "at": 100, "change": 4, "messages": 4}],
        "queues": [row],
        "consumers": [row | {"consumer": queue}],
        "receives": [{"queue": queue, "receives": n, "messages": 10 - n} for n in (1, 2, 7)],
        "dead_letters": [{"queue": queue, "reason": queue, "messages": 1}],
    }


def svg_charts(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]  # noqa: S314  ours


def test_the_page_has_every_chart_and_needs_no_other_file() -> None:
    page = render(tables(), Span(100, 103, 1, 44), NOW)
    for title in (
        "Throughput",
        "Backlog",
        "Wait",
        "Processing",
        "End to end",
        "Redeliveries",
        "Dead letters",
        "Consumers",
        "Queues",
    ):
        assert f">{title}<" in page
    assert len(svg_charts(page)) >= 5
    assert not re.search(r"(?:src|href)=|url\(|@import|https?://", page)
    assert "prefers-color-scheme:dark" in page
    assert "failed or lease expired: 4" in page


def test_names_cannot_become_html() -> None:
    page = render(tables(NASTY), Span(100, 103, 1, 44), NOW, title=NASTY)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_report_without_records_says_so() -> None:
    assert "no history records" in render({name: [] for name in tables()}, Span(0, -1, 1, 0), NOW)


def test_a_queue_without_receives_has_no_times() -> None:
    rows = tables()
    for name in ("throughput", "overall", "total", "queues"):
        for row in rows[name]:
            row.update(dict.fromkeys(TIMES), received=0, redelivered=0, acked=0)
    rows["consumers"], rows["receives"], rows["dead_letters"] = [], [], []
    page = render(rows, Span(100, 103, 1, 20), NOW)
    assert "No data." in page


def test_a_page_of_several_queues_has_a_view_of_each_without_a_script() -> None:
    rows = tables()
    for name, more in tables("mails").items():
        if name not in ("overall", "total"):
            rows[name] += more
    slow = rows["throughput"][-1]
    slow["latency_p99_ms"] = 90_000.0
    page = render(rows, Span(100, 103, 1, 88), NOW)
    assert re.findall(r'<label for="show(\d)">([^<]+)<', page) == [("0", "All queues"), ("1", "mails"), ("2", "orders")]
    views = re.split(r'<div class="view" id="view\d">', page)[1:]
    assert len(views) == 3
    assert ["1.5 min" in view for view in views] == [False, True, False], "percentiles are those of the queue"
    assert ["Queues" in view for view in views] == [True, False, False]
    assert "#show2:checked~#view2{display:block}" in page.replace(",", "{display:block}")
    assert "<script" not in page


def test_a_page_of_many_queues_shows_the_busiest() -> None:
    rows = tables()
    rows["queues"] = [row | {"queue": f"q{n}", "sent": n} for n in range(30) for row in rows["queues"]]
    page = render(rows, Span(100, 103, 1, 88), NOW)
    assert page.count("<label") == 13
    assert "and 18 more in the table below" in page
    assert ">q29</label>" in page


@pytest.mark.parametrize(("value", "text"), [(0, "0.0%"), (0.25, "25.0%"), (9.7e-05, "0.01%"), (1e-6, "<0.01%")])
def test_shares_are_percentages(value: float, text: str) -> None:
    assert charts.share(value) == text


def test_slow_rates_are_per_minute_hour_or_day() -> None:
    assert [charts.rate_unit(rate)[0] for rate in (5, 0.02, 0.001, 9.7e-05)] == ["second", "minute", "hour", "day"]
    rows = tables()
    for table in rows.values():
        for row in table:
            row.update({"at": 0} if "at" in row else {}, sent=1, acked=0, released=0, failed=0, lost_leases=0, dead=0)
    page = render(rows, Span(0, 86400 * 7, 3600 * 3, 88), NOW)
    assert "Messages per day, averaged over 3 hours" in page
    assert "e-0" not in re.sub(r"<[^>]*>", "", page)


def test_a_tiny_share_is_still_a_percentage() -> None:
    rows = tables()
    rows["total"][0].update(received=1_000_000, redelivered=1)
    assert "<b>&lt;0.01%</b><span>of deliveries were redeliveries" in render(rows, Span(100, 103, 1, 44), NOW)


def test_a_gap_in_a_line_stays_a_gap_and_a_single_value_is_a_dot() -> None:
    svg = charts.lines([0, 1, 2, 3, 4], [Line("a", 0, [1, 2, None, 3, None])], charts.count, 1)
    assert (svg.count('class="c0 line"'), svg.count("<circle")) == (1, 1)


def test_values_line_up_with_the_ticks() -> None:
    svg = charts.lines([0, 1], [Line("a", 0, [0, 10])], charts.count, 1)
    low, high = re.findall(r'd="M[\d.]+,([\d.]+)L[\d.]+,([\d.]+)"', svg)[0]
    ticks = dict(re.findall(r'y="([\d.]+)" text-anchor="end">([\d,]+)<', svg))
    positions = {int(text): float(y) - 4 for y, text in ticks.items()}
    assert float(low) == positions[0]
    assert float(high) == positions[10]


def test_waits_of_weeks_have_a_scale() -> None:
    weeks = 20 * 86_400_000.0
    svg = charts.lines([0, 1], [Line("p50", 1, [weeks, weeks])], charts.duration, 1, log=True)
    assert (">10 d<" in svg, ">100 d<" in svg) == (True, True)


@pytest.mark.parametrize(("top", "ticks"), [(0, [0, 1]), (1, [0, 0.25, 0.5, 0.75, 1]), (97, [0, 25, 50, 75, 100])])
def test_ticks_are_round(top: float, ticks: list[float]) -> None:
    assert charts.nice_ticks(top) == ticks


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (9.7e-05, "<0.001"),
        (0.0123, "0.012"),
        (99.91, "99.9"),
        (999, "999"),
        (9999, "9,999"),
        (12_345, "12.3k"),
        (4.5e6, "4.5M"),
    ],
)
def test_counts_are_abbreviated(value: float, text: str) -> None:
    assert charts.count(value) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0"), (0.02, "20 µs"), (5, "5 ms"), (1500, "1.5 s"), (90_000, "1.5 min"), (7_200_000, "2 h")]
)
def test_durations_use_the_largest_unit_that_fits(ms: float, text: str) -> None:
    assert charts.duration(ms) == text


def test_times_on_the_axis_are_round() -> None:
    assert charts.time_ticks(61, 660, 10) == [120, 180, 240, 300, 360, 420, 480, 540, 600, 660]
    assert all(at % 86400 == 0 for at in charts.time_ticks(0, 30 * 86400, 8))
