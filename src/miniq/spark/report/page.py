"""The report page: one self-contained HTML file, for light and dark mode and for print.

It has a view of all queues together and one of each of the busiest queues. Radio buttons and CSS select the view, so
the page needs no script.
"""

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

Row = Mapping[str, Any]
Rows = Sequence[Row]

MAX_CHARTED = 8
"""Maximum number of queues, consumers or reasons in one chart."""
MAX_VIEWS = 12
"""Maximum number of queues with a view of their own."""
MAX_LISTED = 200
"""Maximum number of rows in a table."""

STYLE = resources.files(__package__).joinpath("page.css").read_text(encoding="utf-8")


FOOTNOTE = (
    "Wait is the time from when a message became ready until a consumer received it; processing is the time from then "
    "until the consumer acked, failed or released it, or its lease expired; end to end is the time from when a message "
    "was sent until it was acked, with all its waits, delays and deliveries. All times are UTC."
)


def render(tables: Mapping[str, Rows], span: Span, made_at: datetime, title: str = "MiniQ report") -> str:
    """The whole page."""
    created = made_at.strftime("%d %B %Y %H:%M UTC")
    foot = f"<footer>Generated {created} by <code>miniq pipeline report</code>. {FOOTNOTE}</footer>"
    if not span.records:
        body = f"<header><h1>{escape(title)}</h1></header><p>There are no history records to report on.</p>"
        return _document(title, "", f"{body}<footer>Generated {created}.</footer>")
    queues = sorted(tables["queues"], key=lambda row: (-(row["sent"] + row["received"]), row["queue"]))
    views = [_View(tables, span, queues)]
    if len(queues) > 1:
        views += [_View(tables, span, [queue]) for queue in queues[:MAX_VIEWS]]
    body = _header(title, span, len(queues)) + _choice(views, len(queues))
    body += "".join(f'<div class="view" id="view{number}">{view.render()}</div>' for number, view in enumerate(views))
    return _document(title, _selecting(len(views)), body + foot)


def _document(title: str, style: str, body: str) -> str:
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}{style}</style></head>'
        f"<body><main>{body}</main></body></html>\n"
    )


def _header(title: str, span: Span, queues: int) -> str:
    begin, end = (datetime.fromtimestamp(at, UTC).strftime("%d %b %Y %H:%M:%S") for at in (span.begin, span.end))
    return (
        f"<header><h1>{escape(title)}</h1><p class='soft'>{begin} to {end} UTC · "
        f"{span.records:,} history records · {queues} {'queue' if queues == 1 else 'queues'}</p></header>"
    )


def _choice(views: Sequence[_View], queues: int) -> str:
    """The radio buttons that select a view, and their labels."""
    if len(views) == 1:
        return ""
    checked = ["checked" if number == 0 else "" for number in range(len(views))]
    buttons = [f'<input type="radio" name="view" id="show{number}" {state}>' for number, state in enumerate(checked)]
    labels = [f'<label for="show{number}">{escape(view.title)}</label>' for number, view in enumerate(views)]
    rest = queues - len(views) + 1
    more = f'<span class="soft">and {rest:,} more in the table below</span>' if rest else ""
    return f'{"".join(buttons)}<nav aria-label="Queue">{"".join(labels)}{more}</nav>'


def _selecting(views: int) -> str:
    """CSS that shows the selected view; without a choice, the only one."""
    if views == 1:
        return ".view{display:block}"
    shown = ",".join(f"#show{number}:checked~#view{number}" for number in range(views))
    marked = ",".join(f"#show{number}:checked~nav label[for=show{number}]" for number in range(views))
    focused = ",".join(f"#show{number}:focus-visible~nav label[for=show{number}]" for number in range(views))
    return (
        f"{shown}{{display:block}}{marked}{{background:var(--ink);color:var(--page);border-color:var(--ink)}}"
        f"{focused}{{outline:2px solid var(--c0);outline-offset:2px}}"
    )


class _View:
    """Figures, charts and tables of all queues, or of one."""

    def __init__(self, tables: Mapping[str, Rows], span: Span, queues: Rows) -> None:
        self._queues = queues
        self._is_all = len(queues) == len(tables["queues"])
        names = {row["queue"] for row in queues}
        self._tables = {
            name: [row for row in rows if "queue" not in row or row["queue"] in names] for name, rows in tables.items()
        }
        self._total: Row = tables["total"][0] if self._is_all else queues[0]
        self._intervals = tables["overall"] if self._is_all else self._tables["throughput"]
        self._span = span
        self._moments = list(span.intervals)
        self._index = {at: index for index, at in enumerate(self._moments)}
        self.title = "All queues" if self._is_all and len(queues) > 1 else str(queues[0]["queue"])

    def render(self) -> str:
        tables = self._queue_table() + self._consumer_table() if self._is_all else self._consumer_table()
        return self._tiles() + self._chart_cards() + tables

    def _tiles(self) -> str:
        total = self._total
        redelivered = total["redelivered"] / total["received"] if total["received"] else 0
        dead = total["dead"] / total["sent"] if total["sent"] else 0
        figures = {
            "sent": charts.count(total["sent"]),
            "acked": charts.count(total["acked"]),
            "of deliveries were redeliveries": charts.share(redelivered),
            f"dead letters, {charts.share(dead)} of messages sent": charts.count(total["dead"]),
            "median wait": _time(total["wait_p50_ms"]),
            "median processing": _time(total["held_p50_ms"]),
            f"median end to end, 99%: {_time(total['latency_p99_ms'])}": _time(total["latency_p50_ms"]),
        }
        tile = '<div class="tile"><b>{}</b><span>{}</span></div>'
        tiles = [tile.format(escape(figure), escape(label)) for label, figure in figures.items()]
        return f'<div class="tiles">{"".join(tiles)}</div>'

    # Charts

    def _chart_cards(self) -> str:
        throughput, unit = self._throughput()
        step = self._span.step
        averaged = "" if step == 1 and unit == "second" else f", averaged over {_length(step)}"
        over_time = [
            _card("Throughput", f"Messages per {unit}{averaged}", throughput, wide=True),
            _card("Backlog", "Messages in the queue" + ("s" if self._is_all else ""), self._backlog(), wide=True),
            _card("Wait", "Time until a message was received, percentiles", self._percentiles("wait")),
            _card("Processing", "Time a consumer held a message, percentiles", self._percentiles("held")),
            _card("End to end", "Time from sent to acked, percentiles", self._percentiles("latency")),
            _card("Redeliveries", "How often a message was received until it was acked", self._receives()),
        ]
        totals = [
            _card("Dead letters", "By queue and reason" if self._is_all else "By reason", self._dead_letters()),
            _card("Consumers", "Messages acked", self._consumers()),
        ]
        if self._is_all:
            shares = "Redeliveries as a share of deliveries, by queue"
            totals.insert(0, _card("Redelivery rate", shares, self._redeliveries()))
            totals.insert(0, _card("End to end, by queue", "99% of messages were acked within", self._latencies()))
        return f'<div class="grid2">{"".join(over_time + totals)}</div>'

    def _lines(self, series: list[Line], durations: bool = False) -> str:
        """A wide chart of counts, or a narrow one of durations."""
        show, width = (charts.duration, charts.NARROW) if durations else (charts.count, charts.WIDE)
        return charts.lines(self._moments, series, show, self._span.step, log=durations, width=width)

    def _throughput(self) -> tuple[str, str]:
        """The chart of all rates, and the unit of time that makes them readable."""
        series: list[tuple[str, int, list[float]]] = []
        for name, colour, events in (
            ("sent", 0, ("sent",)),
            ("acked", 1, ("acked",)),
            ("failed or lease expired", 4, ("failed", "lost_leases")),
            ("released", 3, ("released",)),
            ("dead", 2, ("dead",)),
        ):
            rates = [0.0] * len(self._moments)
            for row in self._intervals:
                rates[self._index[row["at"]]] += sum(row[event] for event in events) / self._span.step
            if any(rates):
                series.append((name, colour, rates))
        unit, seconds = charts.rate_unit(max((max(rates) for _, _, rates in series), default=0))
        lines = [
            Line(name, colour, [rate * seconds for rate in rates], filled=name == "sent")
            for name, colour, rates in series
        ]
        return self._lines(lines), unit

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

    def _percentiles(self, time: str) -> str:
        rows: list[Row | None] = [None] * len(self._moments)
        for row in self._intervals:
            if row[f"{time}_p50_ms"] is not None:
                rows[self._index[row["at"]]] = row
        series = [
            Line(f"{mark}%", colour, [None if row is None else row[f"{time}_p{mark}_ms"] for row in rows])
            for mark, colour in ((50, 1), (90, 4), (99, 2))
        ]
        return self._lines(series, durations=True)

    def _receives(self) -> str:
        counts: Counter[str] = Counter()
        for row in self._tables["receives"]:
            times = f"{row['receives'] if row['receives'] <= 5 else '6 or more'} time"
            counts[times if times == "1 time" else f"{times}s"] += row["messages"]
        bars = [
            Bar(times, messages, 1 if times == "1 time" else 4, charts.share(messages / counts.total()))
            for times, messages in sorted(counts.items())
        ]
        return charts.bars(bars, charts.count)

    def _latencies(self) -> str:
        bars = [
            Bar(row["queue"], row["latency_p99_ms"], 1, f"half within {_time(row['latency_p50_ms'])}")
            for row in self._queues
            if row["latency_p99_ms"] is not None
        ]
        return charts.bars(sorted(bars, key=lambda bar: -bar.value)[:MAX_CHARTED], charts.duration)

    def _redeliveries(self) -> str:
        bars = [
            Bar(row["queue"], row["redelivered"] / row["received"], 4, f"{row['redelivered']:,} of {row['received']:,}")
            for row in self._queues
            if row["redelivered"]
        ]
        return charts.bars(sorted(bars, key=lambda bar: -bar.value)[:MAX_CHARTED], charts.share)

    def _dead_letters(self) -> str:
        counts: Counter[str] = Counter()
        for row in self._tables["dead_letters"]:
            counts[f"{row['queue']}: {row['reason']}" if self._is_all else row["reason"]] += row["messages"]
        return charts.bars([Bar(name, value, 2) for name, value in counts.most_common(MAX_CHARTED)], charts.count)

    def _consumers(self) -> str:
        busiest = sorted(self._tables["consumers"], key=lambda row: -row["acked"])[:MAX_CHARTED]
        bars = [Bar(row["consumer"], row["acked"], 0, f"of {row['queue']}") for row in busiest]
        return charts.bars(bars, charts.count)

    # Tables

    def _queue_table(self) -> str:
        activity: dict[str, list[int]] = defaultdict(lambda: [0] * len(self._moments))
        for row in self._tables["throughput"]:
            activity[row["queue"]][self._index[row["at"]]] = row["sent"] + row["received"]
        rows = [
            [
                escape(row["queue"]),
                charts.sparkline(activity[row["queue"]], 0),
                *(f"{row[name]:,}" for name in ("sent", "acked", "redelivered", "failed")),
                _alarm(row["dead"]),
                *(_time(row[f"{time}_{mark}_ms"]) for time in ("wait", "held", "latency") for mark in ("p50", "p99")),
            ]
            for row in self._queues[:MAX_LISTED]
        ]
        heads = ["queue", "over time", "sent", "acked", "redelivered", "failed", "dead"]
        heads += ["wait 50%", "99%", "processing 50%", "99%", "end to end 50%", "99%"]
        return _table("Queues", heads, rows)

    def _consumer_table(self) -> str:
        ranked = sorted(self._tables["consumers"], key=lambda row: (-row["acked"], row["queue"], row["consumer"]))
        rows = [
            [
                escape(row["consumer"]),
                escape(row["queue"]),
                *(f"{row[name]:,}" for name in ("received", "acked", "released")),
                *(_alarm(row[name]) for name in ("failed", "lost_leases")),
                *(_time(row[name]) for name in ("held_p50_ms", "held_p90_ms", "held_p99_ms")),
            ]
            for row in ranked[:MAX_LISTED]
        ]
        heads = ["consumer", "queue", "received", "acked", "released", "failed", "expired leases"]
        return _table("Consumers", [*heads, "processing 50%", "90%", "99%"], rows)


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


def _length(step: int) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if step % size == 0:
            return f"{step // size} {unit}{'' if step == size else 's'}"
    return f"{step} seconds"
