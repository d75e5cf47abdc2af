"""The figures of `bench.spark` in README.md and bench/README.md, which a full run writes there."""

from __future__ import annotations

import re
from collections.abc import Mapping


def documented(text: str, medians: Mapping[str, float]) -> str:
    """A page with its figures replaced by those that were measured, by name; figures that were not are left alone."""

    def rate(name: str) -> str:
        return f"{round(medians[f'{name}, messages/s'], -3):,.0f}"

    text = re.sub(
        r"(into a queue at\s)[\d,]+(\sper second, from a queue into Parquet at\s)[\d,]+(, and from the history into the"
        r" lake at\s)[\d,]+",
        lambda found: f"{found[1]}{rate('ingest')}{found[2]}{rate('drain')}{found[3]}{rate('archive')}",
        text,
    )
    if "ingest, share of the toy" not in medians:
        return text
    for name in ("ingest", "drain"):
        share = medians[f"{name}, share of the toy"]
        text = re.sub(rf"(?m)^\| {name} \|.*\| 0\.8 \|$", f"| {name} | {rate(name)} | {share:.2f} | 0.8 |", text)
    gain = medians["drain, two tasks to one"]
    text = re.sub(r"(?m)^(\| drain, two tasks against one \| \|) [\d.]+", rf"\g<1> {gain:.2f}", text)
    for way in ("toy", "relay", "arrow"):
        kinds = ("CPU", "CPU of Java", "CPU of the workers", "CPU of the broker")
        cells = [f"{medians.get(f'ingest, {kind}, {way}', 0):.2f}" for kind in kinds]
        name = "MiniQ" if way == "arrow" else f"the {way}"
        text = re.sub(rf"(?m)^\| {name}, CPU \|.*$", f"| {name}, CPU | {' | '.join(cells)} |", text)
    return text
