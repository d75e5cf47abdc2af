"""The files in `ops/` for Prometheus and Grafana: they parse, and name metrics and labels that a broker has."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import miniq
from miniq.errors import BY_CODE
from tests.serving import serving

OPS = Path(__file__).parents[2] / "ops"
RULES: list[dict[str, Any]] = yaml.safe_load((OPS / "prometheus-alerts.yml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((OPS / "grafana-dashboard.json").read_text())
GIVEN = {"up": {"job", "instance"}}
"""What Prometheus adds by itself."""


@pytest.fixture(scope="module")
def metrics() -> dict[str, set[str]]:
    """Every metric that a broker has after some work, and its labels."""
    with serving("memory:") as served:
        with miniq.connect(served.url) as mq:
            queue = mq.queue("q")
            queue.configure(max_receives=1)
            queue.send_many([1, 2, 3])
            first, second, third = queue.receive(max=3)
            first.ack()
            second.release()
            third.extend()
            mq.schedule("nightly", queue="q", cron="0 3 * * *", body=1)
            mq.run_schedule("nightly")
            with pytest.raises(miniq.MiniQError):
                mq.queue("no such name!").info()
        with urllib.request.urlopen(f"{served.url}/metrics") as reply:  # noqa: S310
            text = reply.read().decode()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels, {"instance", "job"})
    return found | GIVEN


def selectors(node: Any) -> Iterator[Any]:
    """All selectors of metrics in an expression."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    elif isinstance(node, promql_parser.BinaryExpr):
        yield from selectors(node.lhs)
        yield from selectors(node.rhs)
    elif isinstance(node, promql_parser.Call):
        for argument in node.args:
            yield from selectors(argument)
    elif hasattr(node, "expr"):
        yield from selectors(node.expr)


def check(expression: str, metrics: dict[str, set[str]]) -> None:
    named = list(selectors(promql_parser.parse(expression)))
    assert named, expression
    for selector in named:
        assert selector.name in metrics, f"{selector.name} in {expression}"
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= metrics[selector.name], f"{asked - metrics[selector.name]} in {expression}"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_parses_and_names_what_there_is(rule: dict[str, Any], metrics: dict[str, set[str]]) -> None:
    check(rule["expr"], metrics)
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]


def test_alerts_name_error_codes_that_exist() -> None:
    named = {
        code for rule in RULES for codes in re.findall(r'code=~?"([^"]+)"', rule["expr"]) for code in codes.split("|")
    }
    assert len(named) > 3
    assert named <= BY_CODE.keys()


def test_every_panel_names_what_there_is(metrics: dict[str, set[str]]) -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids) > 10
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            check(target["expr"].replace("$__rate_interval", "1m"), metrics)
    for variable in DASHBOARD["templating"]["list"][1:]:
        asked = re.fullmatch(r"label_values\((\w+)(?:{.*})?, (\w+)\)", variable["definition"])
        assert asked is not None
        assert asked[2] in metrics[asked[1]]


def test_the_dashboard_and_the_alerts_leave_no_metric_out(metrics: dict[str, set[str]]) -> None:
    text = (OPS / "prometheus-alerts.yml").read_text() + (OPS / "grafana-dashboard.json").read_text()
    for name in metrics:
        if name.endswith(("_created", "_sum")):
            continue
        assert name in text, name


def test_what_would_not_be_there_is_noticed(metrics: dict[str, set[str]]) -> None:
    for wrong in ("rate(miniq_nothing_total[5m])", 'miniq_queue_messages{colour="red"}'):
        with pytest.raises(AssertionError):
            check(wrong, metrics)
    with pytest.raises(ValueError, match=r".+"):
        promql_parser.parse("sum by (miniq")
