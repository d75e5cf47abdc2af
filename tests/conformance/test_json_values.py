"""NaN and infinities, which JSON lacks, and nesting that readers may refuse, are refused wherever a value is kept: over
every wire, in both formats, with the field named and nothing changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from miniq.json_values import DEPTH, TOO_DEEP
from tests.conformance.wires import Caller, Refusal
from tests.kit import case

Q = "/v1/queues/q"
ID = "00000000-0000-7000-8000-000000000000"


class Call(NamedTuple):
    method: str
    path: str
    body: Callable[[Any], dict[str, Any]]
    """Its body with a value."""
    field: str
    """The name of the value in errors."""


def calls(lease: dict[str, str], id: str) -> list[Call]:
    """Every call that keeps a value: `lease` is of a leased message, `id` of a ready one."""
    batch = "messages[1].body"
    return [
        Call("POST", f"{Q}/messages", lambda value: {"body": value}, "body"),
        Call("POST", f"{Q}/messages", lambda value: {"body": value, "content_type": "a/b+json"}, "body"),
        Call("POST", f"{Q}/messages", lambda value: {"messages": [{"body": 1}, {"body": value}]}, batch),
        Call("POST", f"{Q}/messages", lambda value: {"messages": [{"body": 1}, {"body": value, "key": "k"}]}, batch),
        Call("POST", "/v1/topics/t/messages", lambda value: {"messages": [{"body": 1}, {"body": value}]}, batch),
        Call("POST", f"{Q}/stages/j/1/0/0", lambda value: {"messages": [{"body": 1}, {"body": value}]}, batch),
        Call("PATCH", f"{Q}/messages/{id}", lambda value: {"body": value}, "body"),
        Call("PUT", "/v1/schedules/s", lambda value: {"queue": "q", "every": 60, "body": value}, "body"),
        Call("POST", f"{Q}/ack", lambda value: {"leases": [{**lease, "result": value}]}, "leases[0].result"),
        Call("PUT", f"{Q}/results/{ID}", lambda value: {"result": value}, "result"),
    ]


def test_nan_and_infinity_in_messagepack_are_refused_with_their_place(wire: Caller) -> None:
    lease, id = prepared(wire)
    before = state(wire)
    for value, place in (
        (float("nan"), ""),
        ({"a": [None, {"b": float("inf")}]}, ".a[1].b"),
        ([1, None, [float("-inf")]], "[2][0]"),
    ):
        for method, path, body, field in calls(lease, id):
            with case(method, path, value):
                found = wire.wire.packed(method, path, body(value))
                assert isinstance(found, Refusal)
                assert (found.status, found.code, found.field) == (400, "invalid", field + place)
                assert "NaN and infinity are not JSON values" in found.text
    assert state(wire) == before
    wire.wire.packed("POST", f"{Q}/messages", {"body": [None, "NaN", 1e308]})
    (*_, last) = wire.ok("GET", f"{Q}/messages")["messages"]
    assert last["body"] == [None, "NaN", 1e308]


def test_json_that_is_nested_too_deeply_is_refused(wire: Caller) -> None:
    lease, id = prepared(wire)
    before = state(wire)
    for method, path, body, field in calls(lease, id):
        too_deep = body(nested(DEPTH + 1))
        for found in (wire.wire.ask(method, path, too_deep), wire.wire.packed(method, path, too_deep)):
            with case(method, path):
                assert isinstance(found, Refusal)
                assert found[:3] == (400, "invalid", field)
                assert found.text == f"{field}: {TOO_DEEP}"
    assert state(wire) == before


def test_a_body_that_is_tried_against_filters_is_one_that_could_be_published(wire: Caller) -> None:
    path = "/v1/topics/t/match"
    wire.ok("PUT", "/v1/topics/t/subscriptions/q")

    def refused(found: Any) -> tuple[Any, ...]:
        assert isinstance(found, Refusal)
        return (*found[:3], found.text)

    too_deep = {"body": {"a": nested(DEPTH)}}
    for found in (wire.wire.ask("POST", path, too_deep), wire.wire.packed("POST", path, too_deep)):
        assert refused(found) == (400, "invalid", "body", f"body: {TOO_DEEP}")
    found = refused(wire.wire.packed("POST", path, {"body": {"a": [None, float("nan")]}}))
    assert found[:3] == (400, "invalid", "body.a[1]")
    assert refused(wire.wire.ask("POST", path, {"body": {"a": "x" * 2**20}}))[1:3] == ("too_large", "body")
    for body in ({"a": nested(DEPTH - 1)}, {"a": None, "b": "NaN"}):
        for ask in (wire.wire.ask, wire.wire.packed):
            assert ask("POST", path, {"body": body})["subscriptions"] == [{"name": "q", "queue": "q", "matches": True}]


def test_the_deepest_nesting_is_kept_and_read_in_both_formats(wire: Caller) -> None:
    lease, id = prepared(wire)
    deepest = nested(DEPTH)
    for call in calls(lease, id):
        if "schedules" not in call.path:  # their replies come with the message, which is tested as a message
            wire.ok(call.method, call.path, call.body(deepest))
    assert wire.ok("GET", f"{Q}/results/{ID}")["result"] == deepest
    (received,) = wire.wire.packed("POST", f"{Q}/receive", {})["messages"]
    assert (received["id"], received["body"]) == (id, deepest)
    assert [message["body"] for message in wire.ok("POST", f"{Q}/receive", {"max": 2})["messages"]] == [deepest] * 2


def test_nesting_that_no_parser_accepts_is_refused_too(wire: Caller) -> None:
    """Where the parser gives up depends on the Python; then it is the request that is refused."""
    prepared(wire)
    for depth in (990, 5000, 100_000):
        deep = b"[" * depth + b"]" * depth
        for raw in (b'{"body": %b}' % deep, b'{"messages": [{"body": 1}, {"body": %b}]}' % deep):
            found = wire.refused("POST", f"{Q}/messages", raw)
            assert (found.status, found.code) == (400, "invalid")
            assert found.field in ("request", "body", "messages[1].body")
            assert found.text == f"{found.field}: {TOO_DEEP}"


def prepared(wire: Caller) -> tuple[dict[str, str], str]:
    """A queue with a leased message and a ready one: the lease of the first, the id of the second."""
    wire.ok("PUT", Q, {"results": 60})
    wire.ok("PUT", "/v1/topics/t/subscriptions/q", {"queue": "copies"})
    _, id = wire.ok("POST", f"{Q}/messages", {"messages": [{"body": 1}, {"body": 2}]})["ids"]
    (held,) = wire.ok("POST", f"{Q}/receive", {})["messages"]
    return {"id": held["id"], "receipt": held["receipt"]}, id


def state(wire: Caller) -> Any:
    return (
        wire.state(),
        wire.ok("GET", f"{Q}/stages"),
        wire.ok("GET", "/v1/schedules"),
        wire.ok("GET", f"{Q}/results/{ID}"),
    )


def nested(depth: int) -> Any:
    return json.loads("[" * depth + "]" * depth)
