"""`miniq schedules`, over HTTP and on a folder."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from tests.acceptance.shell import Shell, on_folder, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("broker")) as shell:
        yield shell


@pytest.fixture(params=["http", "folder"])
def miniq(request: pytest.FixtureRequest, server: Shell, tmp_path: Path) -> Shell:
    return on_folder(tmp_path) if request.param == "folder" else server


def test_a_schedule_from_the_command_line(miniq: Shell) -> None:
    nightly = ["nightly", "--queue", "reports", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin"]
    made = miniq("schedules", "set", *nightly, '{"report": "sales"}', "--header", "a=b", "--json").objects[0]
    assert (made["body"], made["headers"], made["cron"]) == ({"report": "sales"}, {"a": "b"}, "0 3 * * *")
    assert len(made["next"]) == 5
    moment = datetime.fromisoformat(made["next"][0]).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    heads, row = miniq("schedules").lines
    assert heads.split() == ["SCHEDULE", "TARGET", "WHEN", "NEXT", "LAST"]
    assert row == f"nightly   reports  0 3 * * * Europe/Berlin  {moment}  -"
    [id] = miniq("schedules", "run", "nightly").lines
    [message] = miniq("peek", "reports", "--json").objects
    assert (message["id"], message["body"]) == (id, {"report": "sales"})
    shown = miniq("schedules", "show", "nightly").lines
    assert shown[:7] == [
        "schedule     nightly",
        "queue        reports",
        "when         0 3 * * * Europe/Berlin",
        "catch_up     last",
        "state        active",
        'body         {"report": "sales"}',
        "headers      a=b",
    ]
    assert shown[7] == f"next         {moment}"
    assert shown[12].startswith("last ")
    assert shown[12].endswith(f" run {id}")
    assert "state        paused" in miniq("schedules", "pause", "nightly").lines
    assert miniq("schedules").lines[1].split()[8] == "paused"
    assert "state        active" in miniq("schedules", "resume", "nightly").lines
    assert miniq("schedules", "--json").objects[0]["paused"] is False
    assert miniq("schedules", "delete", "nightly").lines == ["deleted nightly"]
    gone = miniq("schedules", "show", "nightly", code=1)
    assert "there is no schedule 'nightly'" in gone.err


def test_a_schedule_is_shown_with_its_message(miniq: Shell) -> None:
    options = ["--priority", "3", "--delay", "1m", "--ttl", "90", "--key", "k", "--recipient", "ann", "--group", "g"]
    shown = miniq("schedules", "set", "poll", "--queue", "crawl", "--every", "5m", "--text", "1", *options).lines
    assert shown[5:13] == [
        'body         "1"',
        "priority     3",
        "delay        1 m",
        "ttl          1 m 30 s",
        "key          k",
        "recipient    ann",
        "group        g",
        shown[12],
    ]
    assert shown[12].startswith("next ")
    noted = miniq("schedules", "set", "poll", "--queue", "crawl", "--every", "5m")
    assert "body         null" in noted.lines
    assert noted.err == "miniq: without a BODY, each message is null\n"
    miniq("schedules", "rm", "poll")


def test_a_schedule_of_a_topic_says_into_how_many_queues_it_went(miniq: Shell) -> None:
    miniq("schedules", "set", "news", "--topic", "headlines", "--every", "1h", "1")
    assert miniq("schedules").lines[1].split()[:3] == ["news", "topic", "headlines"]
    lost = miniq("schedules", "run", "news")
    assert "no subscription of topic 'headlines' matched: in 0 queues" in lost.err
    miniq("topics", "subscribe", "headlines", "mail")
    found = miniq("schedules", "run", "news")
    assert found.err == ""
    results = [line for line in miniq("schedules", "show", "news").lines if " run " in line]
    assert [line.rpartition(" in ")[2] for line in results] == ["1 queue", "0 queues"]
    miniq("schedules", "delete", "news")


def test_what_is_wrong_is_named(miniq: Shell) -> None:
    wrong = miniq("schedules", "set", "x", "--queue", "q", "--cron", "0 3 * *", code=2)
    assert "cron: '0 3 * *' has 4 fields; use five fields" in wrong.err
    wrong = miniq("schedules", "set", "x", "--cron", "0 3 * * *", code=2)
    assert "queue: name a queue or a topic; none was given" in wrong.err
    wrong = miniq("schedules", "set", "x", "--cron", "@daily", "--queue", "q", code=2)
    assert "cron: '@daily' has 1 field; use five fields" in wrong.err
    assert "0 0 * * *" in wrong.err
    wrong = miniq("schedules", "set", "x", "--every", "5m", "--queue", "q", "--topic", "t", code=2)
    assert "queue: name either a queue or a topic, not both" in wrong.err
    assert miniq("schedules", "--json").objects == []


def test_a_broker_sends_by_the_clock(server: Shell) -> None:
    server("schedules", "set", "poll", "--queue", "crawl", "--every", "200ms", "https://example.com")
    for _ in range(2):
        assert server("receive", "crawl", "--wait", "10", "--ack", "--body").raw == b"https://example.com\n"
    server("schedules", "delete", "poll")
