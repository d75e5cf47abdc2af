"""Terminals recorded as an animated picture: SVG that needs no script, and stands still for readers who want that.

A row of a screen is drawn once for each time that it looks the same, and shown from its beginning to its end by a step
of a CSS animation. So the picture grows with what changes, not with time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import NamedTuple
from xml.sax.saxutils import escape

from tests.acceptance.terminal import Terminal

WIDTH, HEIGHT = 8.0, 18.0
"""Of a character."""
PADDING, BAR = 12.0, 30.0
STEP = 0.2
"""Seconds between two looks at a screen."""
COLOURS = {
    "default": "#d8dee9", "black": "#3b4252", "red": "#ff7b8a", "green": "#a3d98b", "brown": "#f0cf7f",
    "blue": "#8ab4f8", "magenta": "#d7a3e0", "cyan": "#88d4e0", "white": "#eceff4",
}  # fmt: skip
GROUND = "#1c212b"


class Span(NamedTuple):
    """Characters of a row that look alike."""

    column: int
    text: str
    colour: str
    bold: bool
    reverse: bool


Row = tuple[Span, ...]


@dataclass
class Pane:
    """One terminal, and every look of each of its rows: from when to when."""

    title: str
    tty: Terminal
    looks: dict[int, list[tuple[float, Row]]] = field(default_factory=dict)

    def look(self, at: float) -> None:
        for number in range(self.tty.screen.lines):
            row, before = _row(self.tty, number), self.looks.setdefault(number, [])
            if not before or before[-1][1] != row:
                before.append((at, row))


def _row(tty: Terminal, number: int) -> Row:
    line = tty.screen.buffer[number]
    cells = [line[column] for column in range(tty.screen.columns)]
    spans: list[Span] = []
    for column, cell in enumerate(cells):
        look = (cell.fg, cell.bold, cell.reverse)
        if spans and (spans[-1].colour, spans[-1].bold, spans[-1].reverse) == look:
            spans[-1] = spans[-1]._replace(text=spans[-1].text + cell.data)
        else:
            spans.append(Span(column, cell.data, *look))
    return tuple(span for span in spans if span.reverse or span.text.strip())


def record(panes: list[Pane], seconds: float) -> str:
    """Watch terminals for a while; the picture of all of them, one below the other."""
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds:
        for pane in panes:
            while True:
                size = len(pane.tty.raw)
                pane.tty.read(0)
                if len(pane.tty.raw) == size:
                    break
            pane.look(now)
        time.sleep(STEP)
    return picture(panes, seconds)


def picture(panes: list[Pane], seconds: float) -> str:
    steps: dict[tuple[int, int], str] = {}
    body: list[str] = []
    top = 0.0
    width = max(pane.tty.screen.columns for pane in panes) * WIDTH + 2 * PADDING
    for pane in panes:
        high = BAR + pane.tty.screen.lines * HEIGHT + PADDING
        body.append(f'<rect y="{top:g}" width="{width:g}" height="{high:g}" rx="8" fill="{GROUND}"/>')
        body.append(f'<text x="{PADDING:g}" y="{top + 20:g}" class="t">{escape(pane.title)}</text>')
        for number, looks in pane.looks.items():
            ends = [*(at for at, _ in looks[1:]), seconds]
            for (at, row), end in zip(looks, ends, strict=True):
                if row:
                    begin, until = round(1000 * at / seconds), round(1000 * end / seconds)
                    name = "" if until - begin >= 999 else steps.setdefault((begin, until), f"s{len(steps)}")
                    last = " l" if end == seconds else ""
                    about = f' class="a{last}" style="animation-name:{name}"' if name else ""
                    body.append(f"<g{about}>{_drawn(row, top + BAR + number * HEIGHT)}</g>")
        top += high + PADDING
    rules = [
        f"@keyframes {name}{{0%{{visibility:{'visible' if begin == 0 else 'hidden'}}}"
        + (f"{begin / 10:g}%{{visibility:visible}}" if begin else "")
        + (f"{until / 10:g}%{{visibility:hidden}}" if until < 1000 else "")
        + "}"
        for (begin, until), name in steps.items()
    ]
    style = (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        f".t{{fill:#9aa5b8}}.b{{font-weight:700}}.a{{visibility:hidden;animation:{seconds:g}s step-end infinite}}"
        "@media(prefers-reduced-motion:reduce){.a{animation:none}.l{visibility:visible}}"
    )
    size = f'width="{width:g}" height="{top - PADDING:g}" viewBox="0 0 {width:g} {top - PADDING:g}"'
    titles = escape(", ".join(pane.title for pane in panes))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{titles}</title>'
        f"<style>{style}{''.join(rules)}</style>\n" + "\n".join(body) + "\n</svg>\n"
    )


def _drawn(row: Row, top: float) -> str:
    parts = []
    for span in row:
        text = span.text if span.reverse else span.text.rstrip()
        begin = span.column
        if not span.reverse:
            begin += len(text) - len(text.lstrip())
            text = text.lstrip()
        x, long = PADDING + begin * WIDTH, len(text) * WIDTH
        colour = COLOURS.get(span.colour, COLOURS["default"])
        if span.reverse:
            parts.append(f'<rect x="{x:g}" y="{top:g}" width="{long:g}" height="{HEIGHT:g}" fill="{colour}"/>')
            colour = GROUND
        bold = ' class="b"' if span.bold else ""
        place = f'x="{x:g}" y="{top + 13:g}" textLength="{long:g}" fill="{colour}"{bold}'
        if text.strip():
            parts.append(f"<text {place}>{escape(text)}</text>")
    return "".join(parts)
