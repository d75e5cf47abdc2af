"""The report page: one self-contained HTML file, for light and dark mode and for print."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from typing import Any

from miniq.spark.report import charts
from miniq.spark.report.charts import Bar, Line
from miniq.spark.report.tables import Span

Rows = Sequence[Mapping[str, Any]]

MAX_CHARTED = 8
"""Maximum number of queues, consumers or reasons in one chart."""
MAX_LISTED = 200
"""Maximum number of rows in a table."""

STYLE = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")


FOOTNOTE = (
    "Wait is the time from when a message became ready until a consumer received it; processing is the time from then "
    "until the consumer acked or released it, or its lease expired. The percentile charts show the busiest queue in "
    "each interval. All times are UTC."
)


def render(tables: Mapping[str, Rows], span: Span, made_at: datetime, title: str = "MiniQ report") -> str:
    """The whole page."""
    head = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head><body><main>'
    )
    created = made_at.strftime("%d %B %Y %H:%M UTC")
    if not span.records:
        body = f"<header><h1>{escape(title)}</h1></header><p>There are no history records to report on.</p>"
        return f"{head}{body}<footer>Generated {created}.</footer></main></body></html>\n"
    page = _Page(tables, span)
    body = page.header(title) + page.tiles() + page.chart_cards() + page.queue_table() + page.consumer_table()
    foot = f"<footer>Generated {created} by <code>miniq pipeline report</code>. {FOOTNOTE}</footer>"
    return f"{head}{body}{foot}</main></body></html>\n"


class _Page:
    """Renders the sections of a page."""

    def __init__(self, tables: Mapping[str, Rows], span: Span) -> None:
        self._tables = tables
        self._span = span
        self._moments = list(span.intervals)
        self._index = {at: index for index, at in enumerate(self._moments)}
        self._queues = sorted(tables["queues"], key=lambda row: (-(row["sent"] + row["received"]), row["queue"]))

    def header(self, title: str) -> str:
        span, queues = self._span, len(self._queues)
        begin, end = (datetime.fromtimestamp(at, UTC).strftime("%d %b %Y %H:%M:%S") for at in (span.begin, span.end))
        return (
            f"<header><h1>{escape(title)}</h1><p class='soft'>{begin} to {end} UTC · "
            f"{span.records:,} history records · {queues} {'queue' if queues == 1 else 'queues'}</p></header>"
        )

    def tiles(self) -> str:
        total = {
            name: sum(row[name] for row in self._queues)
            for name in ("sent", "received", "redelivered", "acked", "dead")
        }
        redelivered = total["redelivered"] / total["received"] if total["received"] else 0
        dead = total["dead"] / total["sent"] if total["sent"] else 0
        busiest = self._queues[0]
        figures = {
            "sent": charts.count(total["sent"]),
            "acked": charts.count(total["acked"]),
            "of deliveries were redeliveries": _share(redelivered),
            f"dead letters, {_share(dead)} of messages sent": charts.count(total["dead"]),
            f"median wait in {busiest['queue']}": _time(busiest["wait_p50_ms"]),
            f"median processing in {busiest['queue']}": _time(busiest["held_p50_ms"]),
        }
        tile = '<div class="tile"><b>{}</b><span>{}</span></div>'
        tiles = [tile.format(escape(figure), escape(label)) for label, figure in figures.items()]
        return f'<div class="tiles">{"".join(tiles)}</div>'

    # Charts

    def chart_cards(self) -> str:
        step = self._span.step
        per_second = "Messages per second" + ("" if step == 1 else f", averaged over {_length(step)}")
        over_time = [
            _card("Throughput", per_second, self._throughput(), wide=True),
            _card("Backlog", "Messages in each queue", self._backlog(), wide=True),
            _card("Wait", "Time until a message was received, percentiles", self._percentiles("wait", "received")),
            _card("Processing", "Time a consumer held a message, percentiles", self._percentiles("held", "acked")),
        ]
        totals = [
            _card("Redeliveries", "How often a message was received until it was acked", self._receives()),
            _card("Redelivery rate", "Redeliveries as a share of deliveries, by queue", self._redeliveries()),
            _card("Dead letters", "By queue and reason", self._dead_letters()),
            _card("Consumers", "Messages acked", self._consumers()),
        ]
        return (
            f'<div class="grid2">{"".join(over_time)}</div>'
            f'<div class="grid2" style="margin-top:16px">{"".join(totals)}</div>'
        )

    def _lines(self, series: list[Line], durations: bool = False) -> str:
        """A wide chart of counts, or a narrow one of durations."""
        show, width = (charts.duration, charts.NARROW) if durations else (charts.count, charts.WIDE)
        return charts.lines(self._moments, series, show, self._span.step, log=durations, width=width)

    def _throughput(self) -> str:
        """The rates of all queues together."""
        series = []
        for name, colour, events in (
            ("sent", 0, ("sent",)),
            ("acked", 1, ("acked",)),
            ("released or lease expired", 4, ("released", "lost_leases")),
            ("dead", 2, ("dead",)),
        ):
            sums = [0] * len(self._moments)
            for row in self._tables["throughput"]:
                sums[self._index[row["at"]]] += sum(row[event] for event in events)
            if any(sums):
                series.append(Line(name, colour, [value / self._span.step for value in sums], filled=name == "sent"))
        return self._lines(series)

    def _backlog(self) -> str:
        """A line per queue, level where nothing happened."""
        levels: dict[str, dict[int, int]] = defaultdict(dict)
        before: dict[str, int] = {}
        for row in sorted(self._tables["backlog"], key=lambda row: row["at"]):
            levels[row["queue"]][self._index[row["at"]]] = row["messages"]
            before.setdefault(row["queue"], row["messages"] - row["change"])
        longest = sorted(levels, key=lambda queue: -max(levels[queue].values()))[:MAX_CHARTED]
        series = []
        for colour, queue in enumerate(longest):
            level, values = before[queue], []
            for index in range(len(self._moments)):
                level = levels[queue].get(index, level)
                values.append(level)
            series.append(Line(queue, colour, values, filled=colour == 0))
        return self._lines(series)

    def _percentiles(self, time: str, by: str) -> str:
        """Percentiles of the busiest queue in each interval."""
        busiest: list[Mapping[str, Any] | None] = [None] * len(self._moments)
        for row in self._tables["throughput"]:
            index = self._index[row["at"]]
            best = busiest[index]
            if row[f"{time}_p50_ms"] is not None and (best is None or row[by] > best[by]):
                busiest[index] = row
        series = [
            Line(mark, colour, [None if row is None else row[f"{time}_{mark}_ms"] for row in busiest])
            for mark, colour in (("p50", 1), ("p90", 4), ("p99", 2))
        ]
        return self._lines(series, durations=True)

    def _receives(self) -> str:
        counts: Counter[str] = Counter()
        for row in self._tables["receives"]:
            times = f"{row['receives'] if row['receives'] <= 5 else '6 or more'} time"
            counts[times if times == "1 time" else f"{times}s"] += row["messages"]
        bars = [
            Bar(times, messages, 1 if times == "1 time" else 4, f"{messages / counts.total():.1%}")
            for times, messages in sorted(counts.items())
        ]
        return charts.bars(bars, charts.count)

    def _redeliveries(self) -> str:
        bars = [
            Bar(row["queue"], row["redelivered"] / row["received"], 4, f"{row['redelivered']:,} of {row['received']:,}")
            for row in self._queues
            if row["redelivered"]
        ]
        return charts.bars(sorted(bars, key=lambda bar: -bar.value)[:MAX_CHARTED], _share)

    def _dead_letters(self) -> str:
        counts: Counter[str] = Counter()
        for row in self._tables["dead_letters"]:
            counts[f"{row['queue']}: {row['reason']}"] += row["messages"]
        return charts.bars([Bar(name, value, 2) for name, value in counts.most_common(MAX_CHARTED)], charts.count)

    def _consumers(self) -> str:
        busiest = sorted(self._tables["consumers"], key=lambda row: -row["acked"])[:MAX_CHARTED]
        bars = [Bar(row["consumer"], row["acked"], 0, f"of {row['queue']}") for row in busiest]
        return charts.bars(bars, charts.count)

    # Tables

    def queue_table(self) -> str:
        activity: dict[str, list[int]] = defaultdict(lambda: [0] * len(self._moments))
        for row in self._tables["throughput"]:
            activity[row["queue"]][self._index[row["at"]]] = row["sent"] + row["received"]
        rows = [
            [
                escape(row["queue"]),
                charts.sparkline(activity[row["queue"]], 0),
                *(f"{row[name]:,}" for name in ("sent", "acked", "redelivered")),
                _alarm(row["dead"]),
                *(_time(row[name]) for name in ("wait_p50_ms", "wait_p99_ms", "held_p50_ms", "held_p99_ms")),
            ]
            for row in self._queues[:MAX_LISTED]
        ]
        heads = ["queue", "over time", "sent", "acked", "redelivered", "dead"]
        heads += ["wait p50", "p99", "processing p50", "p99"]
        return _table("Queues", heads, rows)

    def consumer_table(self) -> str:
        ranked = sorted(self._tables["consumers"], key=lambda row: (-row["acked"], row["queue"], row["consumer"]))
        rows = [
            [
                escape(row["consumer"]),
                escape(row["queue"]),
                *(f"{row[name]:,}" for name in ("received", "acked", "released")),
                _alarm(row["lost_leases"]),
                *(_time(row[name]) for name in ("held_p50_ms", "held_p90_ms", "held_p99_ms")),
            ]
            for row in ranked[:MAX_LISTED]
        ]
        heads = ["consumer", "queue", "received", "acked", "released", "expired leases", "processing p50", "p90", "p99"]
        return _table("Consumers", heads, rows)


def _card(title: str, sub: str, chart: str, wide: bool = False) -> str:
    head = f'<h2>{escape(title)}</h2><p class="sub">{escape(sub)}</p>'
    return f'<section class="card{" wide" if wide else ""}">{head}{chart}</section>'


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are already HTML; columns of text are left-aligned."""
    if not rows:
        return ""
    classes = ['class="text"' if head in ("over time", "queue", "consumer") else "" for head in heads]

    def tr(tag: str, cells: Sequence[str]) -> str:
        columns = zip(classes, cells, strict=True)
        return f"<tr>{''.join(f'<{tag} {css}>{cell}</{tag}>' for css, cell in columns)}</tr>"

    body = "".join(tr("td", row) for row in rows)
    table = f"<table><thead>{tr('th', heads)}</thead><tbody>{body}</tbody></table>"
    return f'<h3>{title}</h3><div class="card scroll">{table}</div>'


def _alarm(value: int) -> str:
    return f'<span class="bad">{value:,}</span>' if value else "0"


def _time(ms: float | None) -> str:
    return "\N{EN DASH}" if ms is None else charts.duration(ms)


def _share(value: float) -> str:
    return f"{value:.1%}" if value >= 0.01 or not value else f"{value:.2%}" if value >= 1e-4 else "<0.01%"


def _length(step: int) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if step % size == 0:
            return f"{step // size} {unit}{'' if step == size else 's'}"
    return f"{step} seconds"
