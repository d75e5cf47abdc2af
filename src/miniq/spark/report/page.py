"""The report page: one self-contained HTML file, for light and dark mode and for print."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from miniq.spark.report import charts
from miniq.spark.report.charts import Bar, Line
from miniq.spark.report.tables import Span

Rows = Sequence[Mapping[str, Any]]

MAX_CHARTED = 8
"""Maximum number of queues, consumers or reasons in one chart."""
MAX_LISTED = 200
"""Maximum number of rows in a table."""

STYLE = """
:root{color-scheme:light dark;--page:#f7f7f5;--card:#fff;--ink:#1c1d21;--soft:#6a6d78;--rule:#e4e4e0;
--c0:#2f6fde;--c1:#159a78;--c2:#d9622b;--c3:#8a56d6;--c4:#b98900;--c5:#d13f74;--c6:#3a9fc4;--c7:#7a7f8c}
@media(prefers-color-scheme:dark){:root{--page:#141518;--card:#1c1e23;--ink:#ececf0;--soft:#9a9eab;--rule:#2e3138;
--c0:#6ea3ff;--c1:#45c7a2;--c2:#ff8f5c;--c3:#b48cff;--c4:#e0b53c;--c5:#ff79a8;--c6:#6fc7e8;--c7:#a3a8b5}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans",sans-serif;font-variant-numeric:tabular-nums}
main{max-width:1120px;margin:0 auto;padding:40px 24px 64px}
header{margin-bottom:28px}
h1{font-size:28px;line-height:1.2;letter-spacing:-.02em;margin:0 0 6px;font-weight:650}
h2{font-size:16px;margin:0 0 2px;font-weight:620}
h3{font-size:20px;margin:44px 0 14px;font-weight:630;letter-spacing:-.01em}
p{margin:0}
.soft,.sub{color:var(--soft)}.sub{font-size:13px;margin-bottom:12px}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:16px}
.card,.tile{background:var(--card);border:1px solid var(--rule);border-radius:10px}
.card{padding:18px 20px 16px;break-inside:avoid;min-width:0}
.tile{padding:12px 16px}
.tile b{display:block;font-size:24px;line-height:1.25;font-weight:620;letter-spacing:-.02em}
.tile span{font-size:13px;color:var(--soft)}
.wide{grid-column:1/-1}
svg{display:block;width:100%;height:auto;overflow:visible}
.line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}
.area{fill:currentColor;opacity:.12}.dot{fill:currentColor}
.grid{stroke:var(--rule);stroke-width:1;shape-rendering:crispEdges}
.tick{fill:var(--soft);font-size:11.5px}
.hover{fill:var(--ink);opacity:0}.hover:hover{opacity:.07}
.legend{display:flex;flex-wrap:wrap;gap:2px 16px;font-size:13px;margin-bottom:8px;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:3px;background:currentColor;margin-right:6px}
.bars{display:grid;grid-template-columns:minmax(60px,max-content) 1fr max-content;gap:8px 12px;align-items:center;
font-size:14px}
.bars .name{max-width:200px;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.track{background:var(--rule);border-radius:4px;height:14px;overflow:hidden}
.bar{height:100%;background:currentColor;border-radius:4px}
.value small,.none{color:var(--soft)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{padding:7px 12px 7px 0;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
th{font-weight:500;color:var(--soft);font-size:13px}
th:first-child,td:first-child,.text{text-align:left!important}
tr:last-child td{border-bottom:0}
.spark{width:110px;height:24px;display:inline-block;vertical-align:middle}
.bad{color:var(--c2)}
footer{margin-top:40px;font-size:13px;color:var(--soft)}
""" + "".join(f".c{colour}{{color:var(--c{colour})}}" for colour in range(8))


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
    parts = [page.header(title), page.tiles(), page.time_charts(), page.other_charts(), page.queue_table()]
    parts += [page.consumer_table()]
    parts += [f"<footer>Generated {created} by <code>miniq pipeline report</code>. {FOOTNOTE}</footer>"]
    return f"{head}{''.join(parts)}</main></body></html>\n"


FOOTNOTE = (
    "Wait is the time from when a message became ready until a consumer received it; processing is the time from then "
    "until the consumer acked or released it, or its lease expired. The percentile charts show the busiest queue in "
    "each interval. All times are UTC."
)


class _Page:
    """Renders the sections of a page."""

    def __init__(self, tables: Mapping[str, Rows], span: Span) -> None:
        self._tables = tables
        self._span = span
        self._moments = list(span.intervals)
        self._index = {at: index for index, at in enumerate(self._moments)}
        self._queues = sorted(tables["queues"], key=lambda row: (-(row["sent"] + row["received"]), row["queue"]))
        self._throughput: dict[str, list[Mapping[str, Any] | None]] = {}
        """By queue, a row per interval, None where nothing happened."""
        for row in tables["throughput"]:
            rows = self._throughput.setdefault(row["queue"], [None] * len(self._moments))
            rows[self._index[row["at"]]] = row

    def header(self, title: str) -> str:
        span = self._span
        begin, end = (datetime.fromtimestamp(at, UTC).strftime("%d %b %Y %H:%M:%S") for at in (span.begin, span.end))
        names = len(self._queues)
        return (
            f"<header><h1>{escape(title)}</h1><p class='soft'>{begin} to {end} UTC · "
            f"{span.records:,} history records · "
            f"{names} {'queue' if names == 1 else 'queues'}</p></header>"
        )

    def tiles(self) -> str:
        total = {name: sum(row[name] for row in self._queues) for name in self._queues[0] if _is_count(name)}
        redelivered = total["redelivered"] / total["received"] if total["received"] else 0.0
        dead = total["dead"] / total["sent"] if total["sent"] else 0.0
        busiest = self._queues[0]
        figures = [
            (charts.count(total["sent"]), "sent"),
            (charts.count(total["acked"]), "acked"),
            (_share(redelivered), "of deliveries were redeliveries"),
            (charts.count(total["dead"]), f"dead letters, {_share(dead)} of messages sent"),
            (_time(busiest["wait_p50_ms"]), f"median wait in {busiest['queue']}"),
            (_time(busiest["held_p50_ms"]), f"median processing in {busiest['queue']}"),
        ]
        tiles = "".join(
            f'<div class="tile"><b>{escape(big)}</b><span>{escape(small)}</span></div>' for big, small in figures
        )
        return f'<div class="tiles">{tiles}</div>'

    # Charts over time

    def time_charts(self) -> str:
        step = self._span.step
        rates = "Messages per second" + ("" if step == 1 else f", averaged over {_length(step)}")
        flow = [
            Line("sent", 0, self._rates("sent"), filled=True),
            Line("acked", 1, self._rates("acked")),
            Line("released or lease expired", 4, self._rates("released", "lost_leases")),
            Line("dead", 2, self._rates("dead")),
        ]
        flow = [line for line in flow if any(line.values)]
        cards = [
            self._card("Throughput", rates, flow, charts.count, wide=True),
            self._card("Backlog", "Messages in each queue", self._backlog(), charts.count, wide=True),
            self._card(
                "Wait",
                "Time until a message was received, percentiles",
                self._percentiles("wait"),
                charts.duration,
                log=True,
            ),
            self._card(
                "Processing",
                "Time a consumer held a message, percentiles",
                self._percentiles("held"),
                charts.duration,
                log=True,
            ),
        ]
        return f'<div class="grid2">{"".join(cards)}</div>'

    def _card(
        self, title: str, sub: str, series: list[Line], show: charts.Show, *, wide: bool = False, log: bool = False
    ) -> str:
        width = charts.WIDE if wide else charts.NARROW
        chart = charts.lines(self._moments, series, show, self._span.step, log=log, width=width)
        return _card(title, sub, chart, wide)

    def _rates(self, *names: str) -> list[float]:
        """The sum of these counts over all queues, per second."""
        sums = [0.0] * len(self._moments)
        for rows in self._throughput.values():
            for index, row in enumerate(rows):
                if row is not None:
                    sums[index] += sum(row[name] for name in names)
        return [value / self._span.step for value in sums]

    def _backlog(self) -> list[Line]:
        """A line per queue, level where nothing happened."""
        levels: dict[str, dict[int, int]] = defaultdict(dict)
        before: dict[str, int] = {}
        for row in sorted(self._tables["backlog"], key=lambda row: row["at"]):
            levels[row["queue"]][self._index[row["at"]]] = row["messages"]
            before.setdefault(row["queue"], row["messages"] - row["change"])
        longest = sorted(levels, key=lambda queue: -max(levels[queue].values()))[:MAX_CHARTED]
        series = []
        for colour, queue in enumerate(longest):
            level, values = float(before[queue]), []
            for index in range(len(self._moments)):
                level = float(levels[queue].get(index, level))
                values.append(level)
            series.append(Line(queue, colour, values, filled=colour == 0))
        return series

    def _percentiles(self, kind: str) -> list[Line]:
        """Percentiles of the busiest queue in each interval."""
        busiest: list[Mapping[str, Any] | None] = [None] * len(self._moments)
        by = "received" if kind == "wait" else "acked"
        for rows in self._throughput.values():
            for index, row in enumerate(rows):
                best = busiest[index]
                if row is not None and row[f"{kind}_p50_ms"] is not None and (best is None or row[by] > best[by]):
                    busiest[index] = row
        return [
            Line(name, colour, [None if row is None else row[f"{kind}_{name}_ms"] for row in busiest])
            for name, colour in (("p50", 1), ("p90", 4), ("p99", 2))
        ]

    # Other charts

    def other_charts(self) -> str:
        by_receives: dict[str, int] = defaultdict(int)
        for row in self._tables["receives"]:
            by_receives[str(row["receives"]) if row["receives"] <= 5 else "6 or more"] += row["messages"]
        total = sum(by_receives.values()) or 1
        receives = [
            Bar(f"{name} time{'' if name == '1' else 's'}", value, 1 if name == "1" else 4, f"{value / total:.1%}")
            for name, value in sorted(by_receives.items())
        ]
        by_reason: dict[str, int] = defaultdict(int)
        for row in self._tables["dead_letters"]:
            by_reason[f"{row['queue']}: {row['reason']}"] += row["messages"]
        most_frequent = sorted(by_reason.items(), key=lambda item: -item[1])[:MAX_CHARTED]
        reasons = [Bar(name, value, 2) for name, value in most_frequent]
        busiest = sorted(self._tables["consumers"], key=lambda row: -row["acked"])[:MAX_CHARTED]
        consumers = [Bar(row["consumer"], row["acked"], 0, f"of {row['queue']}") for row in busiest]
        ranked = sorted(
            (row for row in self._queues if row["received"]), key=lambda row: -row["redelivered"] / row["received"]
        )
        redeliveries = [
            Bar(row["queue"], row["redelivered"] / row["received"], 4, f"{row['redelivered']:,} of {row['received']:,}")
            for row in ranked[:MAX_CHARTED]
            if row["redelivered"]
        ]
        cards = [
            _card(
                "Redeliveries",
                "How often a message was received until it was acked",
                charts.bars(receives, charts.count),
            ),
            _card(
                "Redelivery rate", "Redeliveries as a share of deliveries, by queue", charts.bars(redeliveries, _share)
            ),
            _card("Dead letters", "By queue and reason", charts.bars(reasons, charts.count)),
            _card("Consumers", "Messages acked", charts.bars(consumers, charts.count)),
        ]
        return f'<div class="grid2" style="margin-top:16px">{"".join(cards)}</div>'

    # Tables

    def queue_table(self) -> str:
        heads = [
            "queue",
            "over time",
            "sent",
            "acked",
            "redelivered",
            "dead",
            "wait p50",
            "p99",
            "processing p50",
            "p99",
        ]
        rows = []
        for row in self._queues[:MAX_LISTED]:
            activity = [
                0 if interval is None else interval["sent"] + interval["received"]
                for interval in self._throughput.get(row["queue"], [])
            ]
            trend = charts.sparkline(activity, 0)
            cells = [escape(row["queue"]), trend, *(f"{row[name]:,}" for name in ("sent", "acked", "redelivered"))]
            cells += [_alarm(row["dead"])]
            cells += [_time(row[name]) for name in ("wait_p50_ms", "wait_p99_ms", "held_p50_ms", "held_p99_ms")]
            rows.append(cells)
        return f"<h3>Queues</h3>{_table(heads, rows)}"

    def consumer_table(self) -> str:
        heads = ["consumer", "queue", "received", "acked", "released", "expired leases", "processing p50", "p90", "p99"]
        ranked = sorted(self._tables["consumers"], key=lambda row: (-row["acked"], row["queue"], row["consumer"]))
        rows = [
            [
                escape(row["consumer"]),
                escape(row["queue"]),
                *(f"{row[name]:,}" for name in ("received", "acked", "released")),
                _alarm(row["lost_leases"]),
                *(_time(row[f"held_{name}_ms"]) for name in ("p50", "p90", "p99")),
            ]
            for row in ranked[:MAX_LISTED]
        ]
        if not rows:
            return ""
        return f"<h3>Consumers</h3>{_table(heads, rows)}"


def _card(title: str, sub: str, chart: str, wide: bool = False) -> str:
    head = f'<h2>{escape(title)}</h2><p class="sub">{escape(sub)}</p>'
    return f'<section class="card{" wide" if wide else ""}">{head}{chart}</section>'


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose cells are already HTML; columns of text are left-aligned."""
    classes = ['class="text"' if head in ("over time", "queue", "consumer") else "" for head in heads]
    top = "".join(f"<th {css}>{escape(head)}</th>" for css, head in zip(classes, heads, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td {css}>{cell}</td>' for css, cell in zip(classes, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="card scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _alarm(value: int) -> str:
    return f'<span class="bad">{value:,}</span>' if value else "0"


def _time(ms: float | None) -> str:
    return "\N{EN DASH}" if ms is None else charts.duration(ms)


def _share(value: float) -> str:
    return f"{value:.1%}" if value >= 0.01 or not value else f"{value:.2g}" if value < 1e-4 else f"{value:.2%}"


def _is_count(name: str) -> bool:
    return name in ("sent", "received", "redelivered", "acked", "released", "lost_leases", "dead")


def _length(step: int) -> str:
    for unit, size in (("day", 86400), ("hour", 3600), ("minute", 60)):
        if step % size == 0:
            return f"{step // size} {unit}{'' if step == size else 's'}"
    return f"{step} seconds"
