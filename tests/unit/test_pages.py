"""What pages say of the code is so: names of tests, options, settings, make targets and metrics, and error codes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import get_args

import miniq
from bench.spark_pages import documented
from miniq.api.codec import STATUS
from miniq.message import EventName, QueueSettings
from miniq.options import Limits, Options

MEASURED = [
    *(f"{name}, share of the toy" for name in ("ingest", "drain")),
    "drain, two tasks to one",
    *(
        f"ingest, CPU{kind}, {way}"
        for kind in ("", " of Java", " of the workers", " of the broker")
        for way in ("toy", "relay", "arrow")
    ),
]
"""Figures of `bench.spark`, beside the rates."""
ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench" / "README.md", *(ROOT / "docs").rglob("*.md")]


def test_every_test_that_the_page_on_security_names_exists() -> None:
    named = set(re.findall(r"`(test_[a-z0-9_]+)`", (ROOT / "docs" / "security.md").read_text()))
    there = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_[a-z0-9_]+)", path.read_text())
    }
    assert named - there == set()
    assert len(named) > 20


def test_operations_has_every_option_and_setting() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    options = {*Options.__struct_fields__} - {"limits"} | {f"limits.{name}" for name in Limits.__struct_fields__}
    assert {name for name in options | {*QueueSettings.__struct_fields__} if f"`{name}`" not in text} == set()


def test_the_protocol_has_every_error_code_with_its_status() -> None:
    table = (ROOT / "docs" / "protocol.md").read_text().partition("| status | codes |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if "`" in line]
    told = {code: re.findall(r"\d+", status) for status, codes in rows for code in re.findall(r"`([a-z_]+)`", codes)}
    assert told.keys() == STATUS.keys()
    assert [code for code, status in STATUS.items() if str(status) not in told[code]] == []


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"`make ([a-z-]+)", page.read_text())) <= targets, page


def test_metrics_that_pages_name_exist() -> None:
    package = ROOT / "src" / "miniq"
    source = (package / "server" / "http" / "prometheus.py").read_text() + (
        package / "worker" / "metrics.py"
    ).read_text()
    for page in PAGES:
        for name in set(re.findall(r"`(miniq_[a-z_]+)", page.read_text())) - {"miniq_app"}:  # a fixture
            assert (
                f'"{name.removesuffix("_total")}' in source or f'("{name.removeprefix("miniq_worker_")}"' in source
            ), (
                page,
                name,
            )


def test_every_place_that_names_the_version_names_the_same() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert miniq.__version__ == version
    assert f"image: miniq:{version}\n" in (ROOT / "compose.yaml").read_text()
    assert f'"version":"{version}"' in (ROOT / "docs" / "protocol.md").read_text()
    assert re.search(rf"^## {re.escape(version)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_comparison_has_the_figures_that_were_measured() -> None:
    figures = json.loads((ROOT / "bench" / "results" / "peers.json").read_text())["figures"]
    rates = {figure["name"]: figure["rate"]["median"] for figure in figures}
    text = (ROOT / "docs" / "is-it-for-me.md").read_text()
    head, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition("## Measured side by side")[2].splitlines()
        if line.startswith("|")
    ]
    peers = {"RabbitMQ": "RabbitMQ quorum", "PostgreSQL": "PostgreSQL SKIP LOCKED", "MiniQ over HTTP": "MiniQ HTTP"}
    assert len(rows) == 6
    for call, *shown in rows:
        what, _, how = call.partition(", ")
        name = f"{what} {'x100' if 'batches' in how else 'x1, ' + how}"
        for peer, figure in zip(head[1:], shown, strict=True):
            assert figure == f"{round(rates[f'{name}: {peers.get(peer, peer)}'], -2):,.0f}", (call, peer)


def test_the_speed_of_spark_is_the_one_that_was_measured() -> None:
    """`python -m bench.spark` writes it, also into the tables of bench/README.md."""
    figures = json.loads((ROOT / "bench" / "results" / "spark.json").read_text())["figures"]
    medians = {figure["name"]: figure["value"]["median"] for figure in figures}
    for path in (ROOT / "README.md", ROOT / "bench" / "README.md"):
        assert documented(path.read_text(), medians) == path.read_text(), path
    changed = dict.fromkeys(medians | dict.fromkeys(MEASURED, 0.0), 1.5) | {
        f"{name}, messages/s": 1_234_567.0 for name in ("ingest", "drain", "archive")
    }
    assert documented((ROOT / "README.md").read_text(), changed).count("1,235,000") == 3
    page = documented((ROOT / "bench" / "README.md").read_text(), changed)
    assert page.count("| 1,235,000 | 1.50 | 0.8 |") == 2
    assert "| drain, two tasks against one | | 1.50 | 1 |" in page
    assert page.count(", CPU | 1.50 | 1.50 | 1.50 | 1.50 |") == 3


def test_the_console_knows_every_event() -> None:
    console = ROOT / "src" / "miniq" / "console"
    offered = re.search(r"const EVENTS = (\[.*?\]);", (console / "history.js").read_text())
    words = re.search(r"const WORDS = \{(.*?)\};", (console / "message.js").read_text(), re.DOTALL)
    assert offered is not None
    assert json.loads(offered[1]) == [*get_args(EventName)]
    assert words is not None
    assert re.findall(r"(\w+): \"", words[1]) == [*get_args(EventName)]
