"""`MiniQ`: three calls on a folder, answered in the shapes of the short routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import miniq


def test_push_read_delete(tmp_path: Path) -> None:
    with miniq.MiniQ(str(tmp_path)) as q:
        pushed = q.push_message({"msg": {"a": [1, None]}})
        id = pushed["data"]["message_id"]
        assert pushed == {"success": True, "data": {"message_id": id}}
        read = q.read_messages()
        assert read["success"] is True
        [message] = read["data"]
        assert (message["id"], message["msg"], message["receives"]) == (id, {"a": [1, None]}, 1)
        assert message["sent_at"].endswith("Z")
        assert q.read_messages() == {"success": True, "data": []}
        assert q.delete_message(id) == {"success": True}
        assert q.delete_message(id) == {"success": False}


def test_messages_are_there_after_a_restart_and_can_be_deleted_by_id_alone(tmp_path: Path) -> None:
    with miniq.MiniQ(tmp_path) as q:
        id = q.push_message({"msg": 1})["data"]["message_id"]
        q.read_messages()
    with miniq.MiniQ(tmp_path) as q:
        assert q.delete_message(id) == {"success": True}
    with miniq.connect(tmp_path) as mq:
        assert mq.queue("default").info().counts.total == 0


@pytest.mark.parametrize("value", ["text", 5, False, [1, 2], 1.5])
def test_any_other_json_value_is_the_message_itself(value: Any) -> None:
    with miniq.MiniQ("memory:") as q:
        q.push_message(value)
        assert [m["msg"] for m in q.read_messages()["data"]] == [value]


def test_null_is_a_message_if_it_is_named() -> None:
    with miniq.MiniQ("memory:") as q:
        assert q.push_message({"msg": None})["success"] is True
        assert [m["msg"] for m in q.read_messages()["data"]] == [None]


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (None, "msg: missing"),
        ({}, "msg: missing"),
        ({"message": 1}, "msg: missing"),
        ({"msg": 1, "priority": 2}, "priority: no such field"),
        ({"msg": object()}, "not a JSON value"),
        ({"msg": "x" * 2**20}, "at most 1048576"),
    ],
)
def test_what_cannot_be_sent_is_answered_with_why(params: Any, why: str) -> None:
    with miniq.MiniQ("memory:") as q:
        answer = q.push_message(params)
        assert answer["success"] is False
        assert why in answer["data"]
        assert q.read_messages()["data"] == []


def test_what_is_not_deleted_comes_back_after_the_turn_around_time() -> None:
    with miniq.MiniQ("memory:", turn_around_time=0) as q:
        q.push_message({"msg": 1})
        assert [[m["receives"] for m in q.read_messages()["data"]] for _ in range(2)] != [[], []]
    with miniq.MiniQ("memory:", turn_around_time=600) as q:
        q.push_message({"msg": 1})
        assert [len(q.read_messages()["data"]) for _ in range(2)] == [1, 0]


def test_reading_takes_everything_that_is_available(tmp_path: Path) -> None:
    with miniq.connect(tmp_path) as mq:
        for start in range(0, 2500, 500):
            mq.queue("default").send_many(range(start, start + 500))
    with miniq.MiniQ(tmp_path) as q:
        assert [m["msg"] for m in q.read_messages()["data"]] == list(range(2500))


def test_reading_stops_at_the_response_cap() -> None:
    with miniq.MiniQ("memory:") as q:
        for _ in range(40):
            q.push_message({"msg": "x" * 1_000_000})
        assert [len(q.read_messages()["data"]) for _ in range(4)] == [16, 16, 8, 0]


@pytest.mark.parametrize("id", ["", "nonsense", None, 7, "0192f0c1-0000-7000-8000-000000000000"])
def test_an_id_that_is_none_deletes_nothing(id: Any) -> None:
    with miniq.MiniQ("memory:") as q:
        q.push_message({"msg": 1})
        assert q.delete_message(id) == {"success": False}
        assert len(q.read_messages()["data"]) == 1
