"""Schedules over every wire: shapes, errors, and what a key allows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.conformance.wires import WIRES, Caller
from tests.serving import serving

PATH = "/v1/schedules/nightly"
DEFINITION = {"queue": "reports", "body": {"n": 1}, "cron": "0 3 * * *", "timezone": "Europe/Berlin"}


@pytest.fixture
def schedules(wire: Caller) -> Iterator[Caller]:
    yield wire
    for schedule in wire.ok("GET", "/v1/schedules")["schedules"]:
        wire.ok("DELETE", f"/v1/schedules/{schedule['name']}")


def test_a_schedule_is_set_shown_run_paused_and_deleted(schedules: Caller) -> None:
    made = schedules.ok("PUT", PATH, {**DEFINITION, "headers": {"a": "b"}, "priority": 3, "ttl": 60})
    assert made == made | DEFINITION | {
        "name": "nightly", "catch_up": "last", "paused": False, "results": [], "headers": {"a": "b"}, "priority": 3
    }  # fmt: skip
    moments = [datetime.fromisoformat(moment) for moment in made["next"]]
    assert len(moments) == 5
    assert all(moment.utcoffset() == timedelta(0) and moment.minute == 0 for moment in moments)
    assert schedules.ok("GET", PATH) == made
    assert schedules.ok("GET", "/v1/schedules") == {"schedules": [made]}
    assert schedules.ok("PUT", PATH, {"paused": True}) == made | {"paused": True}
    run = schedules.ok("POST", f"{PATH}/run")
    [message] = schedules.ok("POST", "/v1/queues/reports/receive", {})["messages"]
    [result] = run.pop("results")
    assert (result["outcome"], result["id"], result["on_request"]) == ("sent", message["id"], True)
    assert message["headers"] == {"a": "b", "miniq-schedule": "nightly", "miniq-moment": result["moment"]}
    assert (message["body"], message["priority"]) == ({"n": 1}, 3)
    assert schedules.ok("PUT", PATH, DEFINITION)["paused"] is True
    schedules.ok("DELETE", PATH)
    for method, path in (("GET", PATH), ("DELETE", PATH), ("POST", f"{PATH}/run")):
        assert schedules.refused(method, path).code == "schedule_not_found"


def test_bytes_and_text_come_back_as_they_were_set(schedules: Caller) -> None:
    text = schedules.ok("PUT", PATH, DEFINITION | {"body": "hé", "content_type": "text/plain"})
    assert (text["body"], text["content_type"]) == ("hé", "text/plain")
    given = {"queue": "q", "data": b"\x00\xff", "every": 0.5}
    packed = schedules.wire.packed("PUT", PATH, given)
    assert (packed["data"], packed["content_type"], packed["every"]) == (b"\x00\xff", "application/octet-stream", 0.5)
    assert "body" not in packed


def test_at_is_a_moment_with_an_offset(schedules: Caller) -> None:
    moment = datetime(2030, 5, 6, 7, 8, 9, 123456, UTC)
    made = schedules.ok("PUT", PATH, {"queue": "q", "body": 1, "at": "2030-05-06T09:08:09.123456+02:00"})
    assert [datetime.fromisoformat(made["at"]), *map(datetime.fromisoformat, made["next"])] == [moment] * 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "body"),
        ({"paused": None}, "body"),
        ({"queue": "q", "cron": "0 3 * * *"}, "body"),
        (DEFINITION | {"cron": "0 3 * * * *"}, "cron"),
        (DEFINITION | {"cron": 5}, "cron"),
        (DEFINITION | {"every": "5"}, "every"),
        (DEFINITION | {"at": "soon"}, "at"),
        (DEFINITION | {"cron": None, "at": "2030-05-06T09:08:09"}, "at"),
        (DEFINITION | {"timezone": "Berlin"}, "timezone"),
        (DEFINITION | {"catch_up": "none"}, "catch_up"),
        (DEFINITION | {"paused": "yes"}, "paused"),
        (DEFINITION | {"queue": None}, "queue"),
        (DEFINITION | {"queue": None, "topic": "no/topic"}, "topic"),
        (DEFINITION | {"deliver_at": "2030-05-06T09:08:09Z"}, "deliver_at"),
        (DEFINITION | {"priority": 11}, "priority"),
        (DEFINITION | {"crom": "0 3 * * *"}, "crom"),
        (DEFINITION | {"body": "x" * 70_000}, "body"),
    ],
)
def test_what_is_refused_is_named_and_changes_nothing(schedules: Caller, body: Any, field: str) -> None:
    refusal = schedules.refused("PUT", PATH, body)
    assert (refusal.status // 100, refusal.field) == (4, field), refusal
    assert schedules.ok("GET", "/v1/schedules") == {"schedules": []}


def test_the_error_of_a_field_says_what_would_be_right(schedules: Caller) -> None:
    refusal = schedules.refused("PUT", PATH, DEFINITION | {"cron": "99 3 * * *"})
    assert refusal.text == (
        "cron: '99 3 * * *' is invalid (bad minute); use five fields: minute, hour, day of month, month, day of week, "
        "such as 30 3 * * mon-fri"
    )
    refusal = schedules.refused("PUT", PATH, DEFINITION | {"timezone": "Mars/Base"})
    assert refusal.text == ("timezone: 'Mars/Base' is not a time zone; use an IANA name such as Europe/Berlin, or UTC")


@pytest.mark.parametrize("kind", list(WIRES))
def test_a_key_needs_its_rights_on_the_queue_of_a_schedule(kind: str) -> None:
    with serving("memory:") as served:
        opened: Any = WIRES[kind](served)
        admin = opened.ask("POST", "/v1/keys", {"name": "admin", "allow": ["*"]})["secret"]

        def holder(secret: str) -> Any:
            key = {"authorization": f"Bearer {secret}"} if kind == "http" else {"api_key": secret}
            return lambda method, path, body=None: opened.ask(method, path, body, **key)

        def made(*allow: str) -> Any:
            return holder(ask("POST", "/v1/keys", {"name": "some", "allow": allow})["secret"])

        ask = holder(admin)
        assert ask("PUT", PATH, DEFINITION)["name"] == "nightly"
        other = made("*:other")
        assert other("GET", "/v1/schedules") == {"schedules": []}
        for method, path in (("GET", PATH), ("DELETE", PATH), ("POST", f"{PATH}/run")):
            assert other(method, path).code == "schedule_not_found"
        assert other("PUT", PATH, {"paused": True}).code == "schedule_not_found"
        assert other("PUT", PATH, DEFINITION).code == "forbidden"
        assert other("PUT", PATH, DEFINITION | {"queue": "other"}).code == "forbidden"
        taken = "name: the name 'nightly' is taken; use another one"
        assert other("PUT", PATH, DEFINITION | {"queue": "other"}).text == taken
        reader = made("read:reports")
        assert reader("GET", PATH)["body"] == {"n": 1}
        assert len(reader("GET", "/v1/schedules")["schedules"]) == 1
        for method, path in (("PUT", PATH), ("DELETE", PATH), ("POST", f"{PATH}/run")):
            refusal = reader(method, path, {"paused": True} if method == "PUT" else None)
            assert (refusal.code, "taken" in refusal.text) == ("forbidden", False), "it may see the schedule"
        for allow in (["send:reports"], ["manage:reports"]):
            assert made(*allow)("PUT", PATH, DEFINITION).code == "forbidden"
            assert made(*allow)("POST", f"{PATH}/run").code == "forbidden"
            assert made(*allow)("GET", PATH).code == "forbidden"
        manager = made("manage:reports", "send:reports")
        assert manager("PUT", PATH, {"paused": True})["paused"] is True
        assert "body" not in manager("POST", f"{PATH}/run")
        assert ask("GET", PATH)["body"] == {"n": 1}
        manager("DELETE", PATH)
        assert ask("GET", "/v1/schedules") == {"schedules": []}
        opened.close()


@pytest.mark.parametrize("kind", list(WIRES))
def test_a_key_needs_its_rights_on_the_topic_of_a_schedule(kind: str) -> None:
    definition = {name: value for name, value in DEFINITION.items() if name != "queue"} | {"topic": "news"}
    with serving("memory:") as served:
        opened: Any = WIRES[kind](served)
        admin = opened.ask("POST", "/v1/keys", {"name": "admin", "allow": ["*"]})["secret"]

        def holder(secret: str) -> Any:
            key = {"authorization": f"Bearer {secret}"} if kind == "http" else {"api_key": secret}
            return lambda method, path, body=None: opened.ask(method, path, body, **key)

        ask = holder(admin)

        def made(*allow: str) -> Any:
            return holder(ask("POST", "/v1/keys", {"name": "some", "allow": allow})["secret"])

        for allow in (["*:other"], ["publish:news"], ["manage:news", "send:news"]):
            assert made(*allow)("PUT", PATH, definition).code == "forbidden"
        manager = made("manage:news", "publish:news")
        assert manager("PUT", PATH, definition)["topic"] == "news"
        assert made("*:other")("GET", PATH).code == "schedule_not_found"
        assert made("publish:news")("POST", f"{PATH}/run").code == "forbidden"
        assert manager("POST", f"{PATH}/run")["results"][0]["outcome"] == "sent"
        assert made("read:news")("GET", "/v1/schedules")["schedules"][0]["topic"] == "news"
        manager("DELETE", PATH)
        opened.close()


@pytest.mark.parametrize("kind", list(WIRES))
def test_queues_that_schedules_will_create_count_against_the_limit_of_a_key(kind: str) -> None:
    with serving("memory:") as served:
        opened: Any = WIRES[kind](served)
        admin = opened.ask("POST", "/v1/keys", {"name": "admin", "allow": ["*"]})["secret"]

        def holder(secret: str) -> Any:
            key = {"authorization": f"Bearer {secret}"} if kind == "http" else {"api_key": secret}
            return lambda method, path, body=None: opened.ask(method, path, body, **key)

        limited = {"name": "some", "allow": ["manage:x*", "send:x*"], "max_queues": 2}
        some = holder(holder(admin)("POST", "/v1/keys", limited)["secret"])
        later = {"at": "2090-01-01T00:00:00Z", "body": 1}
        for name in ("x1", "x2"):
            assert some("PUT", f"/v1/schedules/{name}", later | {"queue": name})["queue"] == name
        assert some("PUT", "/v1/schedules/again", later | {"queue": "x2"})["queue"] == "x2"
        assert some("PUT", "/v1/schedules/x3", later | {"queue": "x3"}).code == "too_many_queues"
        assert some("PUT", "/v1/queues/x3", {}).code == "too_many_queues"
        assert some("PUT", "/v1/queues/x1", {})["name"] == "x1"
        some("DELETE", "/v1/schedules/x2")
        some("DELETE", "/v1/schedules/again")
        assert some("PUT", "/v1/schedules/x3", later | {"queue": "x3"})["queue"] == "x3"
        opened.close()
