"""Charts as inline SVG: lines over time and horizontal bars, without scripts, libraries or web fonts.

Colours are CSS variables, so that the page controls light and dark mode; values appear in the browser's own tooltips
(`<title>`).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import groupby, pairwise

from msgspec import Struct

WIDE, NARROW = 1060, 500
"""Widths of full-width and half-width charts; both scale to the page so that their text has the same size."""
HEIGHT = 240
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 26
NO_DATA = '<p class="none">No data.</p>'

Show = Callable[[float], str]


class Line(Struct, frozen=True):
    """One line of a chart: a value per moment, None for a gap."""

    name: str
    colour: int
    values: Sequence[float | None]
    filled: bool = False


class Bar(Struct, frozen=True):
    """One bar, with an optional note beside it."""

    name: str
    value: float
    colour: int = 0
    note: str = ""


# Number formats


def count(value: float) -> str:
    """1,234 · 12.3k · 4.5M · 0.25, and never an exponent."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return "<0.001" if 0 < value < 0.0005 else f"{float(f'{value:.3g}'):.3f}".rstrip("0").rstrip(".")


def share(value: float) -> str:
    """A share as a percentage, with two digits where it is small."""
    return f"{value:.1%}" if value >= 0.01 or not value else f"{value:.2%}" if value >= 5e-5 else "<0.01%"


def rate_unit(per_second: float) -> tuple[str, int]:
    """The unit of time in which a rate is at least one, with its seconds."""
    units = (("second", 1), ("minute", 60), ("hour", 3600))
    return next((unit for unit in units if per_second * unit[1] >= 1), ("day", 86400))


def duration(ms: float) -> str:
    """A duration in the largest unit that fits."""
    if ms < 1:
        return f"{ms * 1000:.0f} µs" if ms else "0"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.3g} ms"


def clock(seconds: float, step: int) -> str:
    """A time label, as precise as the distance between two ticks requires."""
    at = datetime.fromtimestamp(seconds, UTC)
    return at.strftime("%d %b" if step >= 86400 else "%d %b %H:%M" if step > 3600 else "%H:%M" if step >= 60 else "%T")


# Scales


def nice_ticks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to at least `top`."""
    if top <= 0:
        return [0, 1]
    raw = top / wanted
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * mark for mark in (1, 2, 2.5, 5, 10) if size * mark >= raw * 0.999)
    return [step * number for number in range(math.ceil(top / step - 1e-9) + 1)]


ROUND_DURATIONS = (0.001, 0.01, 0.1, 1, 10, 100, 1000, 1e4, 6e4, 6e5, 3.6e6, 3.6e7, 8.64e7, 8.64e8, 8.64e9, 8.64e10)
"""Durations in milliseconds that are round numbers in their own unit."""


def duration_ticks(low: float, top: float) -> Sequence[float]:
    """Round durations that enclose the range from `low` to `top`."""
    first = max(bisect_right(ROUND_DURATIONS, low) - 1, 0)
    last = bisect_left(ROUND_DURATIONS, top)
    return ROUND_DURATIONS[first : max(last, first + 1) + 1]


def time_ticks(begin: int, end: int, wanted: int) -> list[int]:
    """At most about `wanted` round moments between two, all in seconds since 1970."""
    marks = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400)
    days = tuple(86400 * count for count in (2, 7, 14, 30, 90, 365))
    step = next((mark for mark in (*marks, *days) if (end - begin) / mark <= wanted), 3650 * 86400)
    return list(range(-(-begin // step) * step, end + 1, step)) or [begin]


def lines(
    moments: Sequence[int], series: Sequence[Line], show: Show, step: int, *, log: bool = False, width: int = WIDE
) -> str:
    """Lines over time, with a legend and tooltips; `log` gives a logarithmic scale of durations."""
    known = [value for line in series for value in line.values if value is not None]
    if not moments or not known or max(known) <= 0:
        return NO_DATA
    if log:
        ticks = duration_ticks(max(min(value for value in known if value > 0), 0.001), max(known))
    else:
        ticks = nice_ticks(max(known))
    inner_width = width - LEFT - RIGHT

    def x_of(index: float) -> float:
        return LEFT + (index + 0.5) * inner_width / len(moments)

    def y_of(value: float) -> float:
        low, top = ticks[0], ticks[-1]
        share = math.log(max(value, low) / low, top / low) if log else value / top
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)

    parts = []
    if len(series) > 1:
        names = [f'<span><i class="c{line.colour}"></i>{escape(line.name)}</span>' for line in series]
        parts.append(f'<div class="legend">{"".join(names)}</div>')
    parts.append(f'<svg viewBox="0 0 {width} {HEIGHT}" role="img">')
    for tick in ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(show(tick))}</text>')
    labelled = time_ticks(moments[0], moments[-1], width // 110)
    distance = min((after - before for before, after in pairwise(labelled)), default=step)
    for at in labelled:
        x, label = x_of((at - moments[0]) / step), clock(at, distance)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{label}</text>')
    for line in series:
        points = [None if value is None else (x_of(i), y_of(value)) for i, value in enumerate(line.values)]
        for _, adjacent in groupby(points, key=bool):
            if segment := [point for point in adjacent if point is not None]:
                parts.append(_stroke(line, segment, y_of(ticks[0])))
    # Most of the page is tooltips, so there are none where nothing happened.
    busy = [index for index in range(len(moments)) if any(line.values[index] for line in series)]
    parts += [_hover(index, moments, series, show, inner_width) for index in busy]
    return "".join([*parts, "</svg>"])


def _stroke(line: Line, points: list[tuple[float, float]], base: float) -> str:
    """One segment between gaps: a path, filled down to `base` if wanted, or a dot for a single point."""
    if len(points) == 1:
        x, y = points[0]
        return f'<circle class="c{line.colour} dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    filled = ""
    if line.filled:
        first, last = points[0][0], points[-1][0]
        filled = f'<path class="c{line.colour} area" d="{path}L{last:.1f},{base:.1f}L{first:.1f},{base:.1f}Z"/>'
    return f'{filled}<path class="c{line.colour} line" d="{path}"/>'


def _hover(index: int, moments: Sequence[int], series: Sequence[Line], show: Show, inner_width: float) -> str:
    """An invisible column over one moment, whose tooltip lists all values."""
    values = [f"{line.name}: {show(value)}" for line in series if (value := line.values[index]) is not None]
    width = inner_width / len(moments)
    title = escape("\n".join([datetime.fromtimestamp(moments[index], UTC).strftime("%d %b %Y %T UTC"), *values]))
    return (
        f'<rect class="hover" x="{LEFT + index * width:.2f}" y="{TOP}" width="{width:.2f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{title}</title></rect>'
    )


def bars(items: Sequence[Bar], show: Show) -> str:
    """Horizontal bars, with their names to the left."""
    if not items:
        return NO_DATA
    top = max(item.value for item in items) or 1
    rows = [
        f'<div class="name" title="{escape(item.name)}">{escape(item.name)}</div><div class="track">'
        f'<div class="bar c{item.colour}" style="width:{max(item.value / top * 100, 0.4):.2f}%"></div></div>'
        f'<div class="value">{escape(show(item.value))} <small>{escape(item.note)}</small></div>'
        for item in items
    ]
    return f'<div class="bars">{"".join(rows)}</div>'


def sparkline(values: Sequence[float], colour: int) -> str:
    """A small line without axes, for a table cell."""
    if not values or max(values) <= 0:
        return ""
    top = max(values)
    points = " ".join(
        f"{index * 100 / max(len(values) - 1, 1):.1f},{22 - 20 * value / top:.1f}" for index, value in enumerate(values)
    )
    return (
        f'<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline class="c{colour} line" points="{points}"/></svg>'
    )
