"""Bars, as a picture that needs nothing but a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, BAR, GAP, LEFT = 860, 16, 4, 190
COLOURS = ("#c2410c", "#ea580c", "#475569", "#64748b", "#94a3b8", "#78716c", "#a8a29e")


def bars(title: str, groups: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Groups of horizontal bars, each group on a scale of its own, messages a second."""
    names = list(dict.fromkeys(name for _, values in groups for name in values))
    colour = dict(zip(names, COLOURS, strict=False))
    rows: list[str] = []
    top = 56
    for group, values in groups:
        rows.append(f'<text x="16" y="{top + 12}" class="group">{escape(group)}</text>')
        top += 22
        most = max(values.values(), default=1)
        for name, value in sorted(values.items(), key=lambda item: -item[1]):
            width = max(1.0, value / most * (WIDTH - LEFT - 110))
            rows.append(f'<text x="{LEFT - 8}" y="{top + 12}" class="name">{escape(name)}</text>')
            rows.append(f'<rect x="{LEFT}" y="{top}" width="{width:.1f}" height="{BAR}" rx="2" fill="{colour[name]}"/>')
            rows.append(f'<text x="{LEFT + width + 6:.1f}" y="{top + 12}">{value:,.0f}</text>')
            top += BAR + GAP
        top += 14
    style = "text{font:12px system-ui,sans-serif;fill:#334155}.name{text-anchor:end}.group,.title{font-weight:600}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
        f"<title>{escape(title)}</title><style>{style}</style>"
        f'<rect width="{WIDTH}" height="{top}" fill="#fff"/><text x="16" y="28" class="title">{escape(title)}</text>'
        + "".join(rows)
        + "</svg>\n"
    )
