"""Stages and tables to send, as the Python clients offer them: blocking and async, in process and over the wires."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import miniq
from tests.acceptance.conftest import served
from tests.acceptance.faces import Opener
from tests.kit import case


@pytest.fixture
def q(opener: Opener, url: str) -> Any:
    return opener(url).queue("jobs")


@pytest.fixture
def t(opener: Opener, place: str) -> Any:
    """A queue on a broker that takes tables, where the store does not matter."""
    return opener(place).queue("jobs")


@pytest.fixture(params=["memory", "http"])
def place(request: pytest.FixtureRequest) -> str:
    return served(request) if request.param == "http" else "memory:"


def bodies(messages: list[Any]) -> list[Any]:
    return [message.body for message in messages]


def test_what_tasks_upload_is_committed_at_once_and_once(q: Any) -> None:
    first, second = q.stage("etl", 7, 0, 11), q.stage("etl", 7, 1, 12)
    assert first.upload([1, 2]) == 2
    assert first.upload([miniq.draft(3, key="k", headers={"a": "b"})]) == 1
    assert second.upload(["x"]) == 1
    assert second.upload(["again"], part=0) == 1
    assert (first.parts, second.parts) == (2, 1)
    assert [(stage.name.partition, stage.parts, stage.messages) for stage in q.stages()] == [("0", 2, 3), ("1", 1, 1)]
    assert q.info().counts.total == 0
    assert q.commit_stages("etl", 7, [(0, 11), (1, 12)]) == miniq.Committed(4)
    assert q.commit_stages("etl", 7, [(0, 11), (1, 12)]) == miniq.Committed(4, repeated=True)
    got = q.receive(max=10)
    assert bodies(got) == [1, 2, 3, "x"]
    assert (got[2].key, got[2].headers) == ("k", {"a": "b"})
    assert q.stages() == []


def test_what_tasks_upload_is_published_at_once_and_once(opener: Opener, url: str) -> None:
    mq = opener(url)
    topic = mq.topic("visits")
    topic.subscribe("all")
    topic.subscribe("german", filter={"country": ["de"]})
    first, second = topic.stage("etl", 7, 0, 11), topic.stage("etl", 7, 1, 12)
    assert first.upload([1, 2]) == 2
    assert second.upload([miniq.draft(3, key="k", headers={"country": "de"})]) == 1
    assert [(stage.name.job, stage.messages) for stage in topic.stages()] == [("etl", 2), ("etl", 1)]
    assert topic.commit_stages("etl", 7, [(0, 11), (1, 12)]) == miniq.Committed(3)
    assert topic.commit_stages("etl", 7, [(0, 11), (1, 12)]) == miniq.Committed(3, repeated=True)
    assert bodies(mq.queue("all").receive(max=10)) == [1, 2, 3]
    [message] = mq.queue("german").receive(max=10)
    assert (message.body, message.key, message.topic) == (3, "k", "visits")
    topic.stage("etl", 8, 0, 0).upload([1])
    assert topic.discard_stages("etl", 8) == 1
    with pytest.raises(miniq.InvalidRequest, match=r"stages: 0 is not \(partition, attempt\)"):
        topic.commit_stages("etl", 8, [0])


def test_stages_are_discarded_and_unknown_ones_refused(q: Any) -> None:
    q.stage("etl", 1, 0, 0).upload([1])
    with pytest.raises(miniq.StageUnknown):
        q.commit_stages("etl", 1, [(0, 0), (1, 0)])
    assert q.discard_stages("etl", 1) == 1
    assert q.discard_stages("etl", 1) == 0
    with pytest.raises(miniq.StageUnknown):
        q.commit_stages("etl", 1, [(0, 0)])
    assert q.info().counts.total == 0


def test_wrong_names_are_refused(q: Any) -> None:
    for names, field in ((("a/b", 1, 0, 0), "job"), (("j", "", 0, 0), "batch")):
        with case(names):
            with pytest.raises(miniq.BadName) as error:
                q.stage(*names).upload([1])
            assert error.value.field == field
            with pytest.raises(miniq.BadName) as error:
                q.commit_stages(names[0], names[1], [])
            assert error.value.field == field


def test_tables_are_uploaded_and_sent(t: Any) -> None:
    table = pa.table({"body": [f'{{"n": {n}}}' for n in range(300)]})
    stage = t.stage("etl", 1, 0, 0)
    assert stage.upload(table) == 300
    assert stage.upload(table.to_batches()[0].slice(0, 5)) == 5
    assert t.commit_stages("etl", 1, [(0, 0)]).messages == 305
    got = t.receive(max=1000, mode="at-most-once")
    assert bodies(got) == [{"n": n} for n in [*range(300), *range(5)]]
    rich = pa.table(
        {
            "body": pa.array(["plain", None, "[1]"], pa.large_string()),
            "data": pa.array([None, b"\x00\xff", None], pa.binary()),
            "content_type": ["text/plain", None, None],
            "headers": pa.array([[("a", "b")], None, None], pa.map_(pa.string(), pa.string())),
            "priority": pa.array([1, None, 5], pa.int64()),
            "key": ["k", None, None],
            "delay": pa.array([None, None, None], pa.float64()),
        }
    )
    ids = t.send_table(rich)
    found = {message.id: message for message in t.receive(max=10)}
    assert [found[id].body for id in ids] == ["plain", b"\x00\xff", [1]]
    assert [found[id].priority for id in ids] == [1, 0, 5]
    assert (found[ids[0]].headers, found[ids[0]].key) == ({"a": "b"}, "k")


WRONG_TABLES: list[tuple[dict[str, Any], str]] = [
    ({"body": ["1"], "colour": ["red"]}, "colour"),
    ({"key": ["k"]}, "body"),
    ({"body": [1]}, "body"),
    ({"body": ["1", "{"]}, "messages[1].body"),
    ({"body": ["1", None]}, "messages[1].body"),
    ({"body": ["1"], "data": [b"x"]}, "messages[0].body"),
    ({"body": ["1"], "content_type": ["image/png"]}, "messages[0].body"),
    ({"data": [b"{"], "content_type": ["application/json"]}, "messages[0].body"),
    ({"body": ["1", "2"], "priority": [0, 10]}, "messages[1].priority"),
    ({"body": ["1", "2"], "ttl": [0.5, -1.0]}, "messages[1].ttl"),
    ({"body": ["1"], "priority": ["high"]}, "priority"),
    ({"body": ["1", "2"], "key": ["k", ""]}, "messages[1].key"),
]


def test_wrong_tables_are_refused_with_the_column_or_row(t: Any) -> None:
    t.configure()
    for columns, field in WRONG_TABLES:
        table = pa.table(columns)
        for call in (t.send_table, t.stage("j", 1, 0, 0).upload):
            with case(columns), pytest.raises(miniq.MiniQError) as error:
                call(table)
            assert error.value.field == field
    assert t.stages() == []
    assert t.info().counts.total == 0


def test_what_is_no_table_is_refused(t: Any) -> None:
    for wrong in (5, [1, 2], "x", None):
        with pytest.raises(miniq.InvalidRequest) as error:
            t.send_table(wrong)
        assert error.value.field == "table"
