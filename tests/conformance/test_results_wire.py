"""Results over every wire: asked for while they come, in both formats, by senders, and until the key is revoked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.test_rights import House, house
from tests.conformance.wires import Caller

__all__ = ["house"]

Q = "/v1/queues/q"


def sent(wire: Caller, body: Any = 1) -> str:
    wire.ok("PUT", Q, {"results": 60})
    return str(wire.ok("POST", f"{Q}/messages", {"body": body})["ids"][0])


def leased(wire: Caller, **fields: Any) -> dict[str, Any]:
    (message,) = wire.ok("POST", f"{Q}/receive", {})["messages"]
    return {"id": message["id"], "receipt": message["receipt"], **fields}


def test_a_result_goes_round(wire: Caller) -> None:
    id = sent(wire)
    assert wire.ok("GET", f"{Q}/results/{id}") == {"id": id, "status": "waiting"}
    poll = wire.wire.begin("GET", f"{Q}/results/{id}?wait=20", None)
    received = wire.ok("POST", f"{Q}/receive", {})
    assert received["result_bytes"] == 65536
    lease = {name: received["messages"][0][name] for name in ("id", "receipt")}
    assert wire.ok("GET", f"{Q}/results/{id}?wait=0")["status"] == "running"
    result = {"sum": 3, "list": [None, True, 1.5], "text": "ü😀"}
    acked = wire.ok("POST", f"{Q}/ack", {"leases": [{**lease, "result": result}]})
    assert acked["results"] == [{"id": id, "outcome": "acked"}]
    found = poll.end()
    assert found.pop("finished_at").endswith("Z")
    assert found == {"id": id, "status": "done", "result": result}
    assert wire.ok("GET", f"{Q}/results/never") == {"id": "never", "status": "unknown"}


def test_null_is_a_result_and_none_is_none(wire: Caller) -> None:
    for extra, shown in (({"result": None}, {"result": None}), ({}, {})):
        id = sent(wire)
        wire.ok("POST", f"{Q}/ack", {"leases": [leased(wire, **extra)]})
        found = wire.ok("GET", f"{Q}/results/{id}")
        assert {name: found[name] for name in found if name == "result"} == shown


def test_a_dead_message_answers_with_its_error(wire: Caller) -> None:
    id = sent(wire)
    wire.ok("POST", f"{Q}/fail", {"leases": [leased(wire)], "error": "no such address", "dead": True})
    found = wire.ok("GET", f"{Q}/results/{id}?wait=20")
    assert (found["status"], found["error"]) == ("dead", "no such address")
    assert "result" not in found


def test_messagepack_carries_results_both_ways(wire: Caller) -> None:
    id = sent(wire)
    result = {"n": 2**63, "list": [1, None], "text": "ü"}
    wire.wire.packed("POST", f"{Q}/ack", {"leases": [leased(wire, result=result)]})
    assert wire.ok("GET", f"{Q}/results/{id}")["result"] == result


@pytest.mark.parametrize(
    ("path", "code", "field"),
    [
        (f"{Q}/results/x?wait=61", "invalid", "wait"),
        (f"{Q}/results/x?wait=-1", "invalid", "wait"),
        ("/v1/queues/nowhere/results/x", "queue_not_found", "queue"),
        ("/v1/queues/plain/results/x", "results_off", "queue"),
    ],
)
def test_bad_questions_are_refused(wire: Caller, path: str, code: str, field: str) -> None:
    sent(wire)
    wire.ok("PUT", "/v1/queues/plain")
    refused = wire.refused("GET", path)
    assert (refused.code, refused.field) == (code, field)
    for how in ("release", "extend"):
        assert wire.refused("POST", f"{Q}/{how}", {"leases": [leased_or_new(wire)]}).field == "leases[0].result"
    big = {"leases": [leased_or_new(wire, "x" * 65536)]}
    refused = wire.refused("POST", f"{Q}/ack", big)
    assert (refused.code, refused.field) == ("too_large", "leases[0].result")


def leased_or_new(wire: Caller, result: Any = 1) -> dict[str, Any]:
    wire.ok("POST", f"{Q}/messages", {"body": 1})
    return leased(wire, result=result)


@pytest.mark.parametrize("right", ["send", "read"])
def test_senders_and_readers_may_ask_and_others_not(house: House, right: str) -> None:
    mine = "/v1/queues/mine"
    house.admin.ok("PUT", mine, {"results": 60})
    (id,) = house.admin.ok("POST", f"{mine}/messages", {"body": 1})["ids"]
    holder, key = house.holder(f"{right}:mine")
    stranger, _ = house.holder("receive:mine", "manage:mine", "send:other", "read:other")
    assert holder.ok("GET", f"{mine}/results/{id}")["status"] == "waiting"
    assert stranger.code("GET", f"{mine}/results/{id}") == "forbidden"
    poll = house.wire.begin("GET", f"{mine}/results/{id}?wait=20", None, **holder.key)
    holder.ok("GET", f"{mine}/results/{id}")  # the poll before it has been read
    house.admin.ok("DELETE", f"/v1/keys/{key}")
    refused = poll.end()
    assert (refused.status, refused.code) == (401, "unauthorized")
    house.admin.ok("DELETE", mine)


def test_a_client_that_hangs_up_does_not_stop_others(wire: Caller) -> None:
    id = sent(wire)
    for _ in range(5):
        wire.wire.begin("GET", f"{Q}/results/{id}?wait=20", None).hang_up()
    poll = wire.wire.begin("GET", f"{Q}/results/{id}?wait=20", None)
    wire.ok("POST", f"{Q}/ack", {"leases": [leased(wire, result=7)]})
    assert poll.end()["result"] == 7


OWN = "0b2c5e0e-7f0a-4d3f-9a35-7c1a4cb41d3e"


def test_a_result_is_put_read_replaced_and_forgotten(wire: Caller) -> None:
    wire.ok("PUT", Q, {"results": 60})
    path = f"{Q}/results/{OWN}"
    assert wire.ok("GET", path) == {"id": OWN, "status": "unknown"}
    assert wire.ok("PUT", path, {"result": {"a": [1, None]}, "final": False, "ttl": 30, "new": True}) == {"kept": True}
    found = wire.ok("GET", path)
    assert (found["status"], found["result"]) == ("running", {"a": [1, None]})
    assert wire.ok("PUT", path, {"result": 2, "new": True}) == {"kept": False}
    assert wire.ok("PUT", path, {"result": 2, "replaces": found["finished_at"]}) == {"kept": True}
    assert wire.ok("PUT", path, {"result": 3, "replaces": found["finished_at"]}) == {"kept": False}
    found = wire.ok("GET", f"{path}?wait=5&unknown=wait")
    assert (found["status"], found["result"]) == ("done", 2)
    wire.wire.packed("PUT", path, {"result": {"n": 2**63}})
    assert wire.ok("GET", path)["result"] == {"n": 2**63}
    assert wire.ok("PUT", path, {"ttl": 0}) == {"kept": True}
    assert wire.ok("GET", f"{path}?wait=0&unknown=wait") == {"id": OWN, "status": "unknown"}
    assert wire.ok("PUT", path) == {"kept": True}
    assert wire.ok("GET", path)["status"] == "done"


@pytest.mark.parametrize(
    ("path", "body", "code", "field"),
    [
        (f"{Q}/results/x", {}, "invalid", "id"),
        (f"{Q}/results/{OWN}", {"ttl": -1}, "invalid", "ttl"),
        (f"{Q}/results/{OWN}", {"colour": 1}, "invalid", "colour"),
        (f"{Q}/results/{OWN}", {"final": 1}, "invalid", "final"),
        (f"{Q}/results/{OWN}", {"replaces": "yesterday"}, "invalid", "replaces"),
        (f"{Q}/results/{OWN}", {"replaces": "2026-01-01T00:00:00Z", "new": True}, "invalid", "new"),
        (f"/v1/queues/nowhere/results/{OWN}", {}, "queue_not_found", "queue"),
        (f"/v1/queues/plain/results/{OWN}", {}, "results_off", "queue"),
    ],
)
def test_what_cannot_be_put_is_refused(wire: Caller, path: str, body: dict[str, Any], code: str, field: str) -> None:
    sent(wire)
    wire.ok("PUT", "/v1/queues/plain")
    refused = wire.refused("PUT", path, body)
    assert (refused.code, refused.field) == (code, field)


def test_a_wait_for_the_unknown_is_refused_if_it_says_something_else(wire: Caller) -> None:
    sent(wire)
    assert wire.refused("GET", f"{Q}/results/{OWN}?unknown=x").field == "unknown"


def test_who_may_receive_may_put_results_and_others_may_not(house: House) -> None:
    mine = "/v1/queues/mine"
    house.admin.ok("PUT", mine, {"results": 60})
    path = f"{mine}/results/{OWN}"
    receiver, _ = house.holder("receive:mine")
    assert receiver.ok("PUT", path, {"result": 1}) == {"kept": True}
    others, _ = house.holder("send:mine", "read:mine", "manage:mine", "receive:other")
    assert others.code("PUT", path, {"result": 2}) == "forbidden"
    assert others.ok("GET", path)["result"] == 1
    house.admin.ok("DELETE", mine)
