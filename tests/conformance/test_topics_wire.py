"""Topics over every wire, against a real server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.wires import WIRES, Caller
from tests.serving import serving

T = "/v1/topics/orders"


def received(wire: Caller, queue: str) -> list[Any]:
    return wire.ok("POST", f"/v1/queues/{queue}/receive", {"max": 10})["messages"]  # type: ignore[no-any-return]


def test_a_publication_goes_to_the_matching_queues(wire: Caller) -> None:
    made = wire.ok("PUT", f"{T}/subscriptions/billing", {"pattern": "orders.*.created"})
    assert made == {"name": "billing", "queue": "billing", "pattern": "orders.*.created"}
    wire.ok("PUT", f"{T}/subscriptions/german", {"queue": "de", "filter": {"country": ["de", {"prefix": "at"}]}})
    wire.ok("PUT", f"{T}/subscriptions/all")
    published = wire.ok(
        "POST",
        f"{T}/messages",
        {"body": {"total": 5}, "key": "orders.7.created", "headers": {"country": "fr"}, "priority": 3},
    )
    assert published == {"ids": published["ids"], "queues": 2}
    for queue in ("billing", "all"):
        [message] = received(wire, queue)
        assert (message["id"], message["queue"], message["topic"]) == (published["ids"][0], queue, "orders")
        assert (message["body"], message["key"], message["priority"]) == ({"total": 5}, "orders.7.created", 3)
    assert received(wire, "de") == []
    many = wire.ok("POST", f"{T}/messages", {"messages": [{"body": 1}, {"body": 2, "headers": {"country": "at-9"}}]})
    assert (len(many["ids"]), many["queues"]) == (2, 2)
    assert [message["id"] for message in received(wire, "all")] == many["ids"]
    assert [message["id"] for message in received(wire, "de")] == many["ids"][1:]


def test_topics_are_made_changed_listed_and_deleted(wire: Caller) -> None:
    made = wire.ok("PUT", T, {"dedup_window": 60})
    assert made == {
        "name": "orders",
        "settings": {"dedup_window": 60.0, "history": "off", "tags": {}, "sns": {}},
        "subscriptions": [],
        "rates": {"published": 0.0, "unmatched": 0.0, "copied": 0.0},
    }
    wire.ok("PUT", f"{T}/subscriptions/a")
    wire.ok("PUT", T, {"history": "events"})
    wire.ok("POST", f"{T}/messages", {"body": 1})
    found = wire.ok("GET", T)
    assert found["settings"] == {"dedup_window": 60.0, "history": "events", "tags": {}, "sns": {}}
    assert found["subscriptions"] == [{"name": "a", "queue": "a"}]
    assert found["rates"]["copied"] > 0
    [listed] = wire.ok("GET", "/v1/topics")["topics"]
    assert listed["subscriptions"] == found["subscriptions"]
    event = wire.ok("GET", "/v1/history?event=published")["events"][-1]
    assert (event["queue"], event["queues"]) == ("orders", ["a"])
    assert not wire.ok("DELETE", f"{T}/subscriptions/a")
    assert wire.refused("DELETE", f"{T}/subscriptions/a").code == "subscription_not_found"
    assert not wire.ok("DELETE", T)
    for method, path in (("GET", T), ("DELETE", T), ("DELETE", f"{T}/subscriptions/a")):
        refusal = wire.refused(method, path)
        assert (refusal.status, refusal.code, refusal.field) == (404, "topic_not_found", "topic")


def test_a_message_is_tried_against_the_filters(wire: Caller) -> None:
    wire.ok("PUT", f"{T}/subscriptions/a", {"pattern": "x.#"})
    wire.ok("PUT", f"{T}/subscriptions/b", {"filter": {"n": [{"numeric": [">", 1]}]}})
    assert wire.ok("POST", f"{T}/match", {"key": "x", "headers": {"n": "1"}})["subscriptions"] == [
        {"name": "a", "queue": "a", "matches": True},
        {"name": "b", "queue": "b", "matches": False, "reason": "the filter does not match the headers"},
    ]
    assert [one["matches"] for one in wire.ok("POST", f"{T}/match")["subscriptions"]] == [False, False]


def test_a_subscription_may_filter_bodies_and_wrap_copies(wire: Caller) -> None:
    given = {"filter": {"n": [{"numeric": [">", 1]}]}, "filter_on": "body", "envelope": {"TopicArn": "arn"}}
    assert wire.ok("PUT", f"{T}/subscriptions/a", given) == {"name": "a", "queue": "a", **given}
    assert wire.ok("GET", T)["subscriptions"] == [{"name": "a", "queue": "a", **given}]
    assert wire.ok("POST", f"{T}/match", {"body": {"n": 2}})["subscriptions"][0]["matches"]
    published = wire.ok("POST", f"{T}/messages", {"messages": [{"body": {"n": 1}}, {"body": {"n": 2}}]})
    [message] = received(wire, "a")
    assert (message["id"], message["body"]["TopicArn"]) == (published["ids"][1], "arn")
    assert message["body"]["Message"].replace(" ", "") == '{"n":2}'
    for wrong, field in (({"filter_on": "key"}, "filter_on"), ({"envelope": {"a": 1}}, "envelope")):
        assert wire.refused("PUT", f"{T}/subscriptions/b", wrong).field.startswith(field)


def test_an_idempotency_key_makes_a_publication_once(wire: Caller) -> None:
    wire.ok("PUT", f"{T}/subscriptions/a")
    first = wire.ok("POST", f"{T}/messages", {"body": 1}, idempotency_key="once")
    assert wire.ok("POST", f"{T}/messages", {"body": 1}, idempotency_key="once") == first
    assert wire.refused("POST", f"{T}/messages", {"body": 2}, idempotency_key="once").code == "idempotency_mismatch"
    assert len(received(wire, "a")) == 1


def test_messagepack_publishes_as_well(wire: Caller) -> None:
    wire.ok("PUT", f"{T}/subscriptions/a")
    wire.wire.packed("POST", f"{T}/messages", {"messages": [{"data": b"\x00\xff"}, {"body": [1]}]})
    first, second = received(wire, "a")
    assert (first["content_type"], second["body"]) == ("application/octet-stream", [1])


def test_bad_input_is_refused_and_named(wire: Caller) -> None:
    wire.ok("PUT", f"{T}/subscriptions/a")
    before = wire.state(), wire.ok("GET", "/v1/topics")
    cases: list[tuple[str, str, Any, str, str]] = [
        ("POST", f"{T}/messages", {}, "invalid", "body"),
        ("POST", f"{T}/messages", {"messages": []}, "invalid", "messages"),
        ("POST", f"{T}/messages", {"body": 1, "colour": 2}, "invalid", "colour"),
        ("POST", f"{T}/messages", {"messages": [{"body": 1}, {"body": 1, "ttl": -1}]}, "invalid", "messages[1].ttl"),
        ("POST", "/v1/topics/no%20name/messages", {"body": 1}, "bad_name", "topic"),
        ("PUT", f"{T}/subscriptions/b", {"pattern": "a*"}, "invalid", "pattern"),
        ("PUT", f"{T}/subscriptions/b", {"pattern": 5}, "invalid", "pattern"),
        ("PUT", f"{T}/subscriptions/b", {"pattern": "a" * 300}, "too_large", "pattern"),
        ("PUT", f"{T}/subscriptions/b", {"filter": {"x": "y"}}, "invalid", "filter.x"),
        ("PUT", f"{T}/subscriptions/b", {"filter": []}, "invalid", "filter"),
        ("PUT", f"{T}/subscriptions/b", {"queue": "no name"}, "bad_name", "queue"),
        ("PUT", f"{T}/subscriptions/b", {"colour": "red"}, "invalid", "colour"),
        ("PUT", f"{T}/subscriptions/no%20name", {}, "bad_name", "name"),
        ("PUT", T, {"history": "full"}, "invalid", "history"),
        ("PUT", T, {"dedup_window": "x"}, "invalid", "dedup_window"),
        ("PUT", T, {"colour": 1}, "invalid", "colour"),
        ("POST", f"{T}/match", {"headers": {"a": 1}}, "invalid", "headers"),
    ]  # fmt: skip
    for method, path, body, code, field in cases:
        refusal = wire.refused(method, path, body)
        assert (refusal.code, refusal.status < 500) == (code, True), (path, body, refusal)
        assert (refusal.field or "").startswith(field), (path, body, refusal)
    assert (wire.state(), wire.ok("GET", "/v1/topics")) == before


def test_stages_are_uploaded_and_published_once(wire: Caller) -> None:
    wire.ok("PUT", f"{T}/subscriptions/a", {"pattern": "orders.#"})
    staged = [{"body": 1, "key": "orders.1"}, {"body": 2, "key": "other"}]
    assert wire.ok("POST", f"{T}/stages/etl/7/0/1", {"messages": staged}) == {"messages": 2, "bytes": 2}
    assert wire.ok("POST", f"{T}/stages/etl/7/1/1", {"messages": [{"body": 3, "key": "orders.3"}]})["messages"] == 1
    assert [stage["messages"] for stage in wire.ok("GET", f"{T}/stages")["stages"]] == [2, 1]
    assert received(wire, "a") == []
    listed = {"stages": [{"partition": 0, "attempt": 1}, {"partition": 1, "attempt": "1"}], "content": "3"}
    assert wire.ok("POST", f"{T}/stages/etl/7/commit", listed) == {"committed": 3, "repeated": False}
    assert wire.ok("POST", f"{T}/stages/etl/7/commit", listed) == {"committed": 3, "repeated": True}
    refusal = wire.refused("POST", f"{T}/stages/etl/7/commit", listed | {"content": "4"})
    assert (refusal.status, refusal.code) == (409, "batch_mismatch")
    assert [message["body"] for message in received(wire, "a")] == [1, 3]
    wire.ok("POST", f"{T}/stages/etl/8/0/1", {"messages": [{"body": 4}]})
    assert wire.ok("DELETE", f"{T}/stages/etl/8") == {"discarded": 1}


def test_a_full_queue_refuses_the_publication(wire: Caller) -> None:
    wire.ok("PUT", f"{T}/subscriptions/a")
    wire.ok("PUT", f"{T}/subscriptions/b")
    wire.ok("PUT", "/v1/queues/b", {"max_length": 1})
    wire.ok("POST", f"{T}/messages", {"body": 1})
    refusal = wire.refused("POST", f"{T}/messages", {"body": 2})
    assert (refusal.status, refusal.code) == (429, "queue_full")
    assert "'b'" in refusal.text
    assert len(received(wire, "a")) == 1


@pytest.mark.parametrize("kind", list(WIRES))
def test_who_may_not_read_a_topic_sees_no_subscriptions_and_refusals_name_the_topic(kind: str) -> None:
    with serving("memory:") as served:
        opened: Any = WIRES[kind](served)
        admin = opened.ask("POST", "/v1/keys", {"name": "admin", "allow": ["*"]})["secret"]

        def holder(secret: str) -> Any:
            key = {"authorization": f"Bearer {secret}"} if kind == "http" else {"api_key": secret}
            return lambda method, path, body=None: opened.ask(method, path, body, **key)

        ask = holder(admin)
        ask("PUT", f"{T}/subscriptions/secret")
        settings = {"dedup_window": 300.0, "history": "events", "tags": {}, "sns": {}}
        blind = holder(ask("POST", "/v1/keys", {"name": "some", "allow": ["manage:orders"]})["secret"])
        assert blind("PUT", T, {"history": "events"}) == {
            "name": "orders",
            "settings": settings,
            "subscriptions": None,
            "rates": None,
        }
        assert ask("PUT", T, {})["subscriptions"] == [{"name": "secret", "queue": "secret"}]
        assert blind("GET", T).text == "key 'some' does not allow read on topic 'orders'"
        assert blind("POST", f"{T}/messages", {"body": 1}).text.endswith("does not allow publish on topic 'orders'")
        other = holder(ask("POST", "/v1/keys", {"name": "some", "allow": ["read:x"]})["secret"])
        assert other("PUT", f"{T}/subscriptions/x", {}).text.endswith("does not allow manage on topic 'orders'")
        assert other("PUT", "/v1/queues/q", {}).text.endswith("does not allow manage on queue 'q'")
        schedule = {"topic": "orders", "every": 60, "body": 1}
        assert other("PUT", "/v1/schedules/s", schedule).text.endswith("does not allow manage on topic 'orders'")
        opened.close()
