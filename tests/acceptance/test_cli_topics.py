"""Topics from the command line, over HTTP and on a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shell import Shell, on_folder, serving
from tests.server import clear


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with serving(tmp_path_factory.mktemp("broker")) as shell:
        yield shell


@pytest.fixture(params=["http", "folder"])
def miniq(request: pytest.FixtureRequest, server: Shell, tmp_path: Path) -> Shell:
    if request.param == "folder":
        return on_folder(tmp_path)
    clear(server.url)
    return server


def test_topics_are_subscribed_to_published_to_and_shown(miniq: Shell) -> None:
    made = miniq("topics", "subscribe", "orders", "billing", "--pattern", "orders.*.created")
    assert made.lines == ["queue billing is subscribed to orders as billing"]
    filter = '{"country": ["de"]}'
    [subscription] = miniq("topics", "subscribe", "orders", "de", "--queue", "q", "--filter", filter, "--json").objects
    assert subscription == {"name": "de", "queue": "q", "filter": {"country": ["de"]}}
    body = ("--filter", '{"n": [1]}', "--filter-on", "body", "--envelope")
    [wrapped] = miniq("topics", "subscribe", "other", "w", *body, "--json").objects
    assert (wrapped["filter_on"], wrapped["envelope"]) == ("body", {})
    assert "yes" in miniq("topics", "try", "other", "--body", '{"n": 1}').lines[1]
    miniq("topics", "delete", "other", "--yes")
    ids = miniq("publish", "orders", '{"n": 1}', "two", "--key", "orders.7.created").lines
    assert [one["id"] for one in miniq("peek", "billing", "--json").objects] == ids
    [sent] = miniq("publish", "orders", "--json", "--header", "country=de", stdin=b"line\n").objects
    assert sent["queues"] == 1
    [message] = miniq("receive", "q", "--json").objects
    assert (message["body"], message["topic"]) == ("line", "orders")
    rows = [line.split() for line in miniq("topics").lines]
    assert rows[0] == ["TOPIC", "SUBSCRIPTIONS", "QUEUES", "PUBLISHED/S", "COPIED/S"]
    assert rows[1][:3] == ["orders", "2", "2"]
    tried = miniq("topics", "try", "orders", "--key", "orders.7.created").lines
    assert [line.split()[:3] for line in tried[1:]] == [["billing", "billing", "yes"], ["de", "q", "no"]]
    assert "the filter does not match the headers" in tried[2]
    changed = miniq("topics", "set", "orders", "--history", "events", "--dedup-window", "1m", "--json").objects[0]
    assert changed["settings"] == {"dedup_window": 60.0, "history": "events", "tags": {}, "sns": {}}
    shown = miniq("topics", "show", "orders").lines
    assert shown[0].split() == ["topic", "orders"]
    assert shown[1] == "dedup_window  1 m"
    assert re.fullmatch(r"rates         [0-9.]+/s published, [0-9.]+/s copied", shown[3])
    assert shown[-1].split(maxsplit=2) == ["de", "q", '{"country":["de"]}']
    assert miniq("topics", "unsubscribe", "orders", "de").lines == ["unsubscribed de"]
    assert miniq("topics", "delete", "orders", "--yes").lines == ["deleted orders"]
    assert miniq("topics", "--json").objects == []
    assert miniq("peek", "billing", "--json").objects[0]["topic"] == "orders"


def test_a_publication_that_no_queue_gets_is_told(miniq: Shell) -> None:
    lost = miniq("publish", "nosuchtopic", "1", "2")
    assert len(lost.lines) == 2
    assert "no subscription of topic 'nosuchtopic' matched: 2 messages in 0 queues" in lost.err
    miniq("topics", "subscribe", "nosuchtopic", "got")
    assert miniq("publish", "nosuchtopic", "1").err == ""
    miniq("topics", "delete", "nosuchtopic", "--yes")


def test_wrong_usage_is_told(miniq: Shell) -> None:
    assert "is not an object such as" in miniq("topics", "subscribe", "t", "a", "--filter", "[1]", code=2).err
    assert "filter.x" in miniq("topics", "subscribe", "t", "a", "--filter", '{"x": 1}', code=2).err
    assert "mixes a wildcard" in miniq("topics", "subscribe", "t", "a", "--pattern", "a*", code=2).err
    assert "there is no topic 't'" in miniq("topics", "show", "t", code=1).err
