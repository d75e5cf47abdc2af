"""Plots as inline SVG: lines over time and horizontal bars. No script, no library, no fonts to load.

Colours are CSS variables, so that the page decides about light and dark; numbers are shown by the browser's own
tooltips (`<title>`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import pairwise

from msgspec import Struct

WIDE, NARROW = 1060, 500
"""Widths, so that text has one size in plots that are shown over the whole page and over half of it."""
HEIGHT = 240
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 12, 26

Show = Callable[[float], str]


class Line(Struct, frozen=True):
    """One line of a plot: a value for each moment, None where there is none."""

    name: str
    colour: int
    values: Sequence[float | None]
    filled: bool = False


class Bar(Struct, frozen=True):
    """One bar, with what is written beside it."""

    name: str
    value: float
    colour: int = 0
    note: str = ""


# Numbers for people


def count(value: float) -> str:
    """1,234 · 12.3k · 4.5M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.3g}{unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def duration(ms: float) -> str:
    """A time in its own unit."""
    if ms < 1:
        return f"{ms * 1000:.0f} µs" if ms else "0"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.3g} ms"


def clock(seconds: float, step: int) -> str:
    """A moment, as exactly as its distance from the next one asks for."""
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
    return [step * place for place in range(math.ceil(top / step - 1e-9) + 1)]


LONG = [0.001, 0.01, 0.1, 1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 36_000_000, 86_400_000, 864_000_000]
"""Durations in milliseconds that are round in their own unit."""


def long_ticks(low: float, top: float) -> list[float]:
    """Round durations around what is shown."""
    first = max((place for place, mark in enumerate(LONG) if mark <= low), default=0)
    last = min((place for place, mark in enumerate(LONG) if mark >= top), default=len(LONG) - 1)
    return LONG[first : max(last, first + 1) + 1]


def time_ticks(begin: int, end: int, wanted: int) -> list[int]:
    """Round moments between two."""
    marks = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400)
    days = tuple(86400 * many for many in (2, 7, 14, 30, 90, 365))
    step = next((mark for mark in (*marks, *days) if (end - begin) / mark <= wanted), 3650 * 86400)
    return list(range(-(-begin // step) * step, end + 1, step)) or [begin]


class _Scale(Struct, frozen=True):
    low: float
    top: float
    log: bool

    def at(self, value: float) -> float:
        """The height of a value on the plot."""
        if self.log:
            share = (math.log10(max(value, self.low)) - math.log10(self.low)) / (
                math.log10(self.top) - math.log10(self.low)
            )
        else:
            share = value / self.top
        return TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)


def lines(
    moments: Sequence[int], series: Sequence[Line], show: Show, step: int, *, log: bool = False, width: int = WIDE
) -> str:
    """Lines over time, with a legend; `log` is for durations. Hovering tells all values of a moment."""
    known = [value for line in series for value in line.values if value is not None]
    if not moments or not known or max(known) <= 0:
        return '<p class="none">Nothing of this happened.</p>'
    if log:
        floor = max(min((value for value in known if value > 0), default=0.1), 0.001)
        ticks = long_ticks(floor, max(known))
    else:
        ticks = nice_ticks(max(known))
    scale = _Scale(ticks[0], ticks[-1], log)
    wide = width - LEFT - RIGHT

    def across(place: float) -> float:
        return LEFT + (place + 0.5) * wide / len(moments)

    parts = [_legend(series) if len(series) > 1 else "", f'<svg viewBox="0 0 {width} {HEIGHT}" role="img">']
    for tick in ticks:
        y = scale.at(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(show(tick))}</text>')
    shown = time_ticks(moments[0], moments[-1], width // 110)
    exact = min((after - before for before, after in pairwise(shown)), default=step)
    for at in shown:
        x = across((at - moments[0]) / step)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{clock(at, exact)}</text>')
    base = scale.at(ticks[0])
    for line in series:
        parts += [_stroke(line, run, base) for run in _runs(line, across, scale)]
    parts += [_hover(place, moments, series, show, step, wide) for place in range(len(moments))]
    return "".join([*parts, "</svg>"])


def _runs(line: Line, across: Callable[[float], float], scale: _Scale) -> list[list[tuple[float, float]]]:
    """The unbroken pieces of a line."""
    runs: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(line.values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append((across(place), scale.at(value)))
    return [run for run in runs if run]


def _stroke(line: Line, run: list[tuple[float, float]], base: float) -> str:
    if len(run) == 1:
        x, y = run[0]
        return f'<circle class="c{line.colour} dot" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>'
    path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in run)
    filled = ""
    if line.filled:
        filled = (
            f'<path class="c{line.colour} area" d="{path}L{run[-1][0]:.1f},{base:.1f}L{run[0][0]:.1f},{base:.1f}Z"/>'
        )
    return f'{filled}<path class="c{line.colour} line" d="{path}"/>'


def _hover(place: int, moments: Sequence[int], series: Sequence[Line], show: Show, step: int, wide: float) -> str:
    told = [
        f"{line.name}: {show(value)}" for line in series if (value := line.values[place]) is not None
    ]  # fmt: skip
    width = wide / len(moments)
    title = escape("\n".join([datetime.fromtimestamp(moments[place], UTC).strftime("%d %b %Y %T UTC"), *told]))
    return (
        f'<rect class="hover" x="{LEFT + place * width:.2f}" y="{TOP}" width="{width:.2f}" '
        f'height="{HEIGHT - TOP - BOTTOM}"><title>{title}</title></rect>'
    )


def _legend(series: Sequence[Line]) -> str:
    items = "".join(f'<span><i class="c{line.colour}"></i>{escape(line.name)}</span>' for line in series)
    return f'<div class="legend">{items}</div>'


def bars(items: Sequence[Bar], show: Show) -> str:
    """Horizontal bars, the names at their left."""
    if not items:
        return '<p class="none">Nothing of this happened.</p>'
    top = max(item.value for item in items) or 1
    rows = [
        f'<div class="name" title="{escape(item.name)}">{escape(item.name)}</div><div class="track">'
        f'<div class="bar c{item.colour}" style="width:{max(item.value / top * 100, 0.4):.2f}%"></div></div>'
        f'<div class="value">{escape(show(item.value))} <small>{escape(item.note)}</small></div>'
        for item in items
    ]
    return f'<div class="bars">{"".join(rows)}</div>'


def spark(values: Sequence[float], colour: int) -> str:
    """A line as small as a word."""
    if not values or max(values) <= 0:
        return ""
    top = max(values)
    points = " ".join(
        f"{place * 100 / max(len(values) - 1, 1):.1f},{22 - 20 * value / top:.1f}" for place, value in enumerate(values)
    )
    return (
        f'<svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline class="c{colour} line" points="{points}"/></svg>'
    )
