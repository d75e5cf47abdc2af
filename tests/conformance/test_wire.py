"""What every wire promises, against a real server: both formats, errors, bad input, and that refusals change nothing.

Every case runs over HTTP and ZeroMQ alike; what only one of them has is in `test_http.py` and `test_zmq.py`.
"""

from __future__ import annotations

import base64
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.conformance.wires import HTTP_ONLY, WIRES, Caller, Refusal
from tests.serving import Served

Q = "/v1/queues/q"


def test_a_message_goes_round(wire: Caller) -> None:
    sent = wire.ok("POST", f"{Q}/messages", {"body": {"to": "ä😀"}, "headers": {"h": "v"}, "priority": 5, "key": "k"})
    (message,) = wire.ok("POST", f"{Q}/receive", {"max": 10, "consumer": "me"})["messages"]
    assert [message["id"]] == sent["ids"]
    assert message["body"] == {"to": "ä😀"}
    assert (message["headers"], message["priority"], message["key"]) == ({"h": "v"}, 5, "k")
    assert (message["receives"], message["consumer"]) == (1, "me")
    assert message["lease_until"].endswith("Z")
    lease = {"id": message["id"], "receipt": message["receipt"]}
    extended = wire.ok("POST", f"{Q}/extend", {"leases": [lease], "visibility_timeout": 90})
    assert extended["results"] == [{"id": message["id"], "outcome": "extended"}]
    assert extended["lease_until"] > message["lease_until"]
    assert wire.ok("POST", f"{Q}/ack", {"leases": [lease, lease]})["results"] == [
        {"id": message["id"], "outcome": "acked"},
        {"id": message["id"], "outcome": "missing"},
    ]


def test_bodies_keep_their_bytes_and_types(wire: Caller) -> None:
    raw = bytes(range(256))
    for fields, expected in (
        ({"body": None}, {"body": None}),
        ({"body": [1, 2.5, "x", {"a": None}]}, {"body": [1, 2.5, "x", {"a": None}]}),
        ({"body": "plain", "content_type": "text/plain"}, {"body": "plain", "content_type": "text/plain"}),
        ({"data": base64.b64encode(raw).decode()}, {"content_type": "application/octet-stream"}),
        ({"data": base64.b64encode(raw).decode(), "content_type": "image/png"}, {"content_type": "image/png"}),
        ({"body": {"a": 1}, "content_type": "application/ld+json"}, {"content_type": "application/ld+json"}),
    ):
        wire.ok("POST", f"{Q}/messages", fields)
        (message,) = wire.ok("POST", f"{Q}/receive", {"mode": "at-most-once"})["messages"]
        assert {**message, **expected} == message
        if "data" in fields:
            assert base64.b64decode(message["data"]) == raw


def test_messagepack_speaks_the_same(wire: Caller) -> None:
    packed = wire.wire.packed
    packed("POST", f"{Q}/messages", {"messages": [{"body": {"a": [1, "ä"]}}, {"data": b"\x00\xff"}]})
    first, second = packed("POST", f"{Q}/receive", {"max": 10})["messages"]
    assert first["body"] == {"a": [1, "ä"]}
    assert second["data"] == b"\x00\xff"
    leases = [{"id": m["id"], "receipt": m["receipt"]} for m in (first, second)]
    assert [r["outcome"] for r in packed("POST", f"{Q}/ack", {"leases": leases})["results"]] == ["acked", "acked"]


def test_queues_are_made_changed_listed_and_deleted(wire: Caller) -> None:
    made = wire.ok("PUT", Q, {"visibility_timeout": 0.2, "max_receives": 3})
    assert made["settings"]["visibility_timeout"] == 0.2
    assert [queue["name"] for queue in wire.ok("GET", "/v1/queues")["queues"]] == ["default", "q", "q.dead"]
    wire.ok("PUT", Q, {"delay": 1})
    assert wire.ok("GET", Q)["settings"]["max_receives"] == 3
    wire.ok("PUT", "/v1/queues/other")
    assert not wire.ok("DELETE", Q)
    assert wire.refused("GET", Q).code == "queue_not_found"


def test_messages_are_looked_at_edited_and_removed(wire: Caller) -> None:
    first, second = wire.ok("POST", f"{Q}/messages", {"messages": [{"body": 1}, {"body": 2}]})["ids"]
    page = wire.ok("GET", f"{Q}/messages?limit=1")
    assert [message["id"] for message in page["messages"]] == [first]
    rest = wire.ok("GET", f"{Q}/messages?limit=5&status=ready&after={page['next']}")
    assert ([message["id"] for message in rest["messages"]], rest["next"]) == ([second], None)
    assert wire.ok("PATCH", f"{Q}/messages/{first}", {"body": "new", "priority": 9})["body"] == "new"
    assert wire.ok("GET", f"{Q}/messages/{first}")["status"] == "ready"
    (held,) = wire.ok("POST", f"{Q}/receive")["messages"]
    seen = wire.ok("GET", f"{Q}/messages/{first}")
    assert (seen["status"], "receipt" in seen) == ("leased", False)
    assert wire.refused("DELETE", f"{Q}/messages/{first}").code == "message_leased"
    assert not wire.ok("DELETE", f"{Q}/messages/{first}?receipt={held['receipt']}")
    assert wire.refused("GET", f"{Q}/messages/{first}").code == "message_not_found"


def test_failures_are_retried_or_final_and_their_errors_are_shown(wire: Caller) -> None:
    wire.ok("PUT", Q, {"history": "events", "retry": {"delay": 60, "jitter": 0}})
    ids = wire.ok("POST", f"{Q}/messages", {"messages": [{"body": 1}, {"body": 2}]})["ids"]
    held = wire.ok("POST", f"{Q}/receive", {"max": 2})["messages"]
    first, second = ({"id": message["id"], "receipt": message["receipt"]} for message in held)
    (retried,) = wire.ok("POST", f"{Q}/fail", {"leases": [first], "error": "down ü"})["results"]
    seen = wire.ok("GET", f"{Q}/messages/{ids[0]}")
    assert retried == {"id": ids[0], "outcome": "retried", "visible_at": seen["visible_at"]}
    assert (seen["status"], seen["error"], seen["receives"]) == ("delayed", "down ü", 1)
    results = wire.ok("POST", f"{Q}/fail", {"leases": [second, first], "error": "bad", "dead": True})["results"]
    assert results == [{"id": ids[1], "outcome": "dead"}, {"id": ids[0], "outcome": "stale"}]
    assert wire.ok("POST", f"{Q}/fail", {"leases": [second], "error": "", "delay": 0})["results"] == [
        {"id": ids[1], "outcome": "missing"}
    ]
    (dead,) = wire.ok("GET", "/v1/queues/q.dead/messages?find=BAD")["messages"]
    assert {**dead["dead"], "origin": "q", "reason": "rejected", "receives": 1, "error": "bad"} == dead["dead"]
    told = wire.ok("GET", "/v1/history?queue=q&limit=1000")["events"]
    shown = [(event["event"], event.get("reason"), event["error"]) for event in told if "error" in event]
    assert shown[-2:] == [("failed", None, "down ü"), ("dead", "rejected", "bad")]
    assert wire.refused("POST", f"{Q}/fail", {"leases": [first]}).field == "error"
    refused = wire.refused("POST", f"{Q}/fail", {"leases": [first], "error": "x" * 4097})
    assert (refused.code, refused.field) == ("too_large", "error")
    assert wire.refused("POST", f"{Q}/fail", {"leases": [first], "error": "x", "dead": 1}).field == "dead"


def test_dead_letters_are_redriven_and_told_in_the_history(wire: Caller) -> None:
    wire.ok("PUT", Q, {"max_receives": 1, "history": "full"})
    (id,) = wire.ok("POST", f"{Q}/messages", {"body": "x"})["ids"]
    (held,) = wire.ok("POST", f"{Q}/receive")["messages"]
    wire.ok("POST", f"{Q}/release", {"leases": [{"id": id, "receipt": held["receipt"]}]})
    (dead,) = wire.ok("GET", "/v1/queues/q.dead/messages")["messages"]
    assert (dead["dead"]["origin"], dead["dead"]["reason"], dead["dead"]["receives"]) == ("q", "max_receives", 1)
    assert wire.ok("POST", "/v1/queues/q.dead/redrive", {}) == {"moved": 1, "skipped": 0, "running": False}
    told = wire.ok("GET", "/v1/history?queue=q&limit=1000")
    mine = [event for event in told["events"] if event.get("id") == id]
    assert [event["event"] for event in mine] == ["sent", "received", "dead", "sent"]
    assert (mine[0]["body"], mine[0]["bytes"]) == ("x", 3)
    assert wire.ok("POST", f"{Q}/purge") == {"purged": 1}


def test_a_release_takes_back_the_receive_of_what_was_not_used(wire: Caller) -> None:
    wire.ok("PUT", Q, {"max_receives": 1})
    (id,) = wire.ok("POST", f"{Q}/messages", {"body": "x"})["ids"]
    for _ in range(2):
        (held,) = wire.ok("POST", f"{Q}/receive")["messages"]
        assert held["receives"] == 1
        given = {"leases": [{"id": id, "receipt": held["receipt"]}], "unused": True}
        assert wire.ok("POST", f"{Q}/release", given) == {"results": [{"id": id, "outcome": "released"}]}
        assert wire.ok("POST", f"{Q}/release", given) == {"results": [{"id": id, "outcome": "stale"}]}
        assert wire.ok("GET", f"{Q}/messages/{id}").get("receives", 0) == 0
    assert wire.refused("POST", f"{Q}/release", given | {"unused": 1}).field == "unused"


def test_claims_are_opened_made_read_acked_and_released(wire: Caller) -> None:
    wire.ok("POST", f"{Q}/messages", {"messages": [{"body": n} for n in range(5)]})
    opened = wire.ok("POST", f"{Q}/claims/g/open")
    new = {"group": "g", "epoch": 1, "acked": 0, "last": 0, "ready": 5, "claims": []}
    assert opened == new | {"id": opened["id"], "store": wire.ok("GET", "/v1/whoami")["store"]}
    assert all((opened["id"], opened["store"]))
    asked = {"group": "g", "after": 0, "epoch": 1, "max_messages": 3}
    made = wire.ok("POST", f"{Q}/claims", asked)
    assert made == {"group": "g", "claim": 1, "messages": 3, "bytes": 3, "made_at": made["made_at"], "epoch": 1}
    assert wire.ok("POST", f"{Q}/claims", asked) == made
    read = [wire.ok("GET", f"{Q}/claims/g/1?part={part}&parts=2")["messages"] for part in (0, 1)]
    assert [[message["body"] for message in part] for part in read] == [[0], [1, 2]]
    first = read[0][0]
    assert (first["visible_at"], first["consumer"], "receipt" in first, "lease_until" in first) == (
        None, "g", False, False,
    )  # fmt: skip
    packed = wire.wire.packed("GET", f"{Q}/claims/g/1", {})
    assert [message["body"] for message in packed["messages"]] == [0, 1, 2]
    (seen, *_) = wire.ok("GET", f"{Q}/messages?status=leased")["messages"]
    assert (seen["visible_at"], seen["status"], seen["consumer"]) == (None, "leased", "g")
    assert wire.ok("GET", f"{Q}/messages/{seen['id']}")["status"] == "leased"
    assert wire.ok("DELETE", f"{Q}/claims/g?upto=1&epoch=1") == {"acked": 1}
    assert wire.ok("POST", f"{Q}/claims", {"group": "g", "after": 1})["claim"] == 2
    assert wire.ok("POST", f"{Q}/claims", {"group": "other", "after": 0})["claim"] is None
    (group,) = wire.ok("GET", f"{Q}/claims")["groups"]
    assert [(claim["claim"], claim["state"], claim["messages"]) for claim in group["claims"]] == [
        (1, "acked", 3), (2, "held", 2),
    ]  # fmt: skip
    assert wire.ok("POST", f"{Q}/claims/g/release", {"epoch": 1}) == {"released": 2}
    assert wire.refused("GET", f"{Q}/claims/g/2")[:2] == (410, "claim_gone")
    assert wire.ok("GET", Q)["counts"]["ready"] == 2


def test_a_claim_that_waits_is_woken_by_a_send(wire: Caller) -> None:
    poll = wire.wire.begin("POST", f"{Q}/claims", {"group": "g", "after": 0, "wait": 20})
    wire.ok("POST", f"{Q}/messages", {"body": "woken"})
    assert poll.end()["claim"] == 1


def test_stages_are_uploaded_listed_committed_and_discarded(wire: Caller) -> None:
    stage = f"{Q}/stages/etl/7"
    assert wire.ok("POST", f"{stage}/0/1", {"messages": [{"body": 1}, {"body": 2, "key": "k"}]}) == {
        "messages": 2, "bytes": 2,
    }  # fmt: skip
    assert wire.ok("POST", f"{stage}/0/1?part=1", {"messages": [{"body": 3}]}) == {"messages": 1, "bytes": 1}
    assert wire.ok("POST", f"{stage}/0/1?part=1", {"messages": [{"body": 3}]}) == {"messages": 1, "bytes": 1}
    assert wire.wire.packed("POST", f"{stage}/1/9", {"messages": [{"data": b"\xff"}]}) == {"messages": 1, "bytes": 1}
    (first, second) = wire.ok("GET", f"{Q}/stages")["stages"]
    assert (first["job"], first["batch"], first["partition"], first["attempt"]) == ("etl", "7", "0", "1")
    assert (first["parts"], first["messages"], first["bytes"], second["messages"]) == (2, 3, 3, 1)
    assert first["made_at"] < first["expires_at"]
    assert wire.ok("GET", Q)["counts"]["total"] == 0
    listed = {"stages": [{"partition": 0, "attempt": 1}, {"partition": "1", "attempt": "9"}]}
    assert wire.ok("POST", f"{stage}/commit", listed) == {"committed": 4, "repeated": False}
    assert wire.ok("POST", f"{stage}/commit", listed) == {"committed": 4, "repeated": True}
    messages = wire.ok("GET", f"{Q}/messages")["messages"]
    assert [message.get("body") for message in messages] == [1, 2, 3, None]
    assert wire.ok("GET", f"{Q}/stages") == {"stages": []}
    wire.ok("POST", f"{Q}/stages/etl/8/0/0", {"messages": []})
    assert wire.ok("DELETE", f"{Q}/stages/etl/8") == {"discarded": 1}
    assert wire.ok("DELETE", f"{Q}/stages/etl/8") == {"discarded": 0}


def test_a_repeated_send_with_an_idempotency_key_adds_nothing(wire: Caller) -> None:
    first = wire.ok("POST", f"{Q}/messages", {"body": 1}, idempotency_key="abc")
    assert wire.ok("POST", f"{Q}/messages", {"body": 1}, idempotency_key="abc") == first
    for other in ({"body": 2}, {"messages": [{"body": 1}] * 2}, {"body": 1, "priority": 3}):
        refused = wire.refused("POST", f"{Q}/messages", other, idempotency_key="abc")
        assert refused[:3] == (422, "idempotency_mismatch", "idempotency-key")
    assert wire.ok("GET", Q)["counts"]["total"] == 1


def test_a_long_poll_waits_for_a_send_and_lets_others_pass(wire: Caller) -> None:
    poll = wire.wire.begin("POST", f"{Q}/receive", {"wait": 20})
    wire.ok("POST", f"{Q}/messages", {"body": "woken"})
    assert poll.end()["messages"][0]["body"] == "woken"


def test_a_client_that_hangs_up_on_a_long_poll_takes_nothing_with_it(wire: Caller) -> None:
    wire.ok("PUT", Q, {"max_receives": 1})
    polls = [wire.wire.begin("POST", f"{Q}/receive", {"wait": 20}) for _ in range(3)]
    time.sleep(0.2)
    for poll in polls:
        poll.hang_up()
    for _ in range(3):
        wire.wire.begin("POST", f"{Q}/receive", {"wait": 20}).hang_up()  # before it is even heard
    time.sleep(0.2)
    wire.ok("POST", f"{Q}/messages", {"body": 1})
    (message,) = wire.ok("POST", f"{Q}/receive", {"wait": 5})["messages"]
    assert message["receives"] == 1


def test_messages_cross_doors(server: Served, wire: Caller) -> None:
    (other,) = [kind(server) for name, kind in WIRES.items() if name != wire.wire.name]
    across = Caller(other)
    (id,) = wire.ok("POST", f"{Q}/messages", {"body": {"from": wire.wire.name}})["ids"]
    (message,) = across.ok("POST", f"{Q}/receive", {"wait": 5})["messages"]
    assert (message["id"], message["body"]) == (id, {"from": wire.wire.name})
    lease = {"id": id, "receipt": message["receipt"]}
    assert wire.ok("POST", f"{Q}/ack", {"leases": [lease]})["results"][0]["outcome"] == "acked"
    poll = wire.wire.begin("POST", f"{Q}/receive", {"wait": 20})
    across.ok("POST", f"{Q}/messages", {"body": "woken across"})
    assert poll.end()["messages"][0]["body"] == "woken across"
    other.close()


# Bad input

BAD: list[tuple[str, str, Any, int, str, str | None]] = [
    # method, path, body (bytes are sent as they are), status, code, field
    *[("POST", f"{Q}/messages", body, status, code, field) for body, status, code, field in [
        (b"", 400, "invalid", "request"),
        (b"{", 400, "invalid", "request"),
        (b"[]", 400, "invalid", "request"),
        (b"1", 400, "invalid", "request"),
        (b'"x"', 400, "invalid", "request"),
        (b"{}}", 400, "invalid", "request"),
        (b'{"body": NaN}', 400, "invalid", "request"),
        (b'{"body": 01}', 400, "invalid", "request"),
        (b'{"body": "\xff"}', 400, "invalid", "request"),
        (b'{"body": "\\ud800"}', 400, "invalid", "request"),
        (b'{"body": ' + b"[" * 600 + b"]" * 600 + b"}", 400, "invalid", "body"),
        ({}, 400, "invalid", "body"),
        ({"bdy": 1}, 400, "invalid", "bdy"),
        ({"body": 1, "data": "AA=="}, 400, "invalid", "data"),
        ({"data": "not base64!"}, 400, "invalid", "data"),
        ({"data": 5}, 400, "invalid", "data"),
        ({"body": 1, "content_type": "text/plain"}, 400, "invalid", "body"),
        ({"body": 1, "content_type": "image/png"}, 400, "invalid", "body"),
        ({"body": 1, "content_type": ""}, 400, "invalid", "content_type"),
        ({"data": "AA==", "content_type": "nonsense"}, 400, "invalid", "content_type"),
        ({"data": "AA==", "content_type": "a/" + "b" * 300}, 413, "too_large", "content_type"),
        ({"body": 1, "headers": []}, 400, "invalid", "headers"),
        ({"body": 1, "headers": {"b": "x", "a": 1}}, 400, "invalid", "headers.a"),
        ({"body": 1, "headers": {"": "x"}}, 400, "invalid", "headers"),
        ({"body": 1, "headers": {"a\nb": "x"}}, 400, "invalid", "headers"),
        ({"body": 1, "headers": {str(n): "x" for n in range(65)}}, 413, "too_large", "headers"),
        ({"body": 1, "headers": {"a": "x" * 5000}}, 413, "too_large", "headers"),
        ({"body": 1, "priority": 10}, 400, "invalid", "priority"),
        ({"body": 1, "priority": -1}, 400, "invalid", "priority"),
        ({"body": 1, "priority": 1.5}, 400, "invalid", "priority"),
        ({"body": 1, "priority": "high"}, 400, "invalid", "priority"),
        ({"body": 1, "priority": True}, 400, "invalid", "priority"),
        ({"body": 1, "priority": 10**30}, 400, "invalid", "priority"),
        ({"body": 1, "delay": -1}, 400, "invalid", "delay"),
        ({"body": 1, "delay": "1"}, 400, "invalid", "delay"),
        ({"body": 1, "delay": 1e300}, 400, "invalid", "delay"),
        ({"body": 1, "ttl": -0.5}, 400, "invalid", "ttl"),
        ({"body": 1, "ttl": []}, 400, "invalid", "ttl"),
        ({"body": 1, "key": ""}, 400, "invalid", "key"),
        ({"body": 1, "key": "k" * 257}, 413, "too_large", "key"),
        ({"body": 1, "key": 1}, 400, "invalid", "key"),
        ({"body": 1, "recipient": {}}, 400, "invalid", "recipient"),
        ({"body": 1, "group": ""}, 400, "invalid", "group"),
        ({"body": 1, "dedup_id": "d" * 300}, 413, "too_large", "dedup_id"),
        ({"messages": []}, 400, "invalid", "messages"),
        ({"messages": {}}, 400, "invalid", "messages"),
        ({"messages": [1]}, 400, "invalid", "messages[0]"),
        ({"messages": [{"body": 1}, {}]}, 400, "invalid", "messages[1].body"),
        ({"messages": [{"body": 1}, {"body": 2, "priority": 11}]}, 400, "invalid", "messages[1].priority"),
        ({"messages": [{"body": 1, "x": 2}]}, 400, "invalid", "messages[0].x"),
        ({"messages": [{"body": 1}], "body": 2}, 400, "invalid", "messages"),
        ({"messages": [{"body": 1}] * 1001}, 413, "too_large", "messages"),
        ({"body": "x" * 1024 * 1024}, 413, "too_large", "body"),
        (b'{"body": "' + b"x" * 16 * 1024 * 1024 + b'"}', 413, "too_large", "request"),
    ]],
    *[("POST", f"{Q}/receive", body, status, code, field) for body, status, code, field in [
        ({"max": 0}, 400, "invalid", "max"),
        ({"max": 1001}, 400, "invalid", "max"),
        ({"max": "all"}, 400, "invalid", "max"),
        ({"wait": -1}, 400, "invalid", "wait"),
        ({"wait": 61}, 400, "invalid", "wait"),
        ({"visibility_timeout": -1}, 400, "invalid", "visibility_timeout"),
        ({"visibility_timeout": 43201}, 400, "invalid", "visibility_timeout"),
        ({"visibility_timeout": None, "consumer": ""}, 400, "invalid", "consumer"),
        ({"mode": "exactly-once"}, 400, "invalid", "mode"),
        ({"limit": 5}, 400, "invalid", "limit"),
        (b"[1]", 400, "invalid", "request"),
    ]],
    *[("POST", f"{Q}/{call}", body, status, code, field) for call in ("ack", "release", "extend")
      for body, status, code, field in [
        (b"", 400, "invalid", "request"),
        ({}, 400, "invalid", "leases"),
        ({"leases": []}, 400, "invalid", "leases"),
        ({"leases": "all"}, 400, "invalid", "leases"),
        ({"leases": [{}]}, 400, "invalid", "leases[0].id"),
        ({"leases": [{"id": "x"}]}, 400, "invalid", "leases[0].receipt"),
        ({"leases": [{"id": 1, "receipt": "r"}]}, 400, "invalid", "leases[0].id"),
        ({"leases": [{"id": "x", "receipt": "r", "z": 1}]}, 400, "invalid", "leases[0].z"),
        ({"leases": [{"id": "x", "receipt": "r"}] * 1001}, 413, "too_large", "leases"),
    ]],
    ("POST", f"{Q}/release", {"leases": [{"id": "x", "receipt": "r"}], "delay": -1}, 400, "invalid", "delay"),
    ("POST", f"{Q}/extend", {"leases": [{"id": "x", "receipt": "r"}], "visibility_timeout": 1e9}, 400, "invalid",
     "visibility_timeout"),
    ("POST", "/v1/queues/a%20b/messages", {"body": 1}, 400, "bad_name", "queue"),
    ("POST", "/v1/queues/" + "x" * 129 + "/messages", {"body": 1}, 400, "bad_name", "queue"),
    ("POST", "/v1/queues/a*b/receive", {}, 400, "bad_name", "queue"),
    *[("POST", f"/v1/queues/{dots}/messages", {"body": 1}, 400, "bad_name", "queue") for dots in (".", "..")],
    ("PUT", "/v1/queues/..", {}, 400, "bad_name", "queue"),
    ("POST", "/v1/queues/default/redrive", {"to": ".."}, 400, "bad_name", "to"),
    ("POST", "/v1/queues/nope/ack", {"leases": [{"id": "x", "receipt": "r"}]}, 404, "queue_not_found", "queue"),
    ("POST", "/v1/queues/nope/purge", None, 404, "queue_not_found", "queue"),
    ("POST", "/v1/queues/nope/redrive", {}, 404, "queue_not_found", "queue"),
    ("GET", "/v1/queues/nope", None, 404, "queue_not_found", "queue"),
    ("DELETE", "/v1/queues/nope", None, 404, "queue_not_found", "queue"),
    ("DELETE", "/v1/queues/default", None, 409, "queue_protected", "queue"),
    ("GET", f"{Q}/messages?status=dead", None, 400, "invalid", "status"),
    ("GET", f"{Q}/messages?limit=0", None, 400, "invalid", "limit"),
    ("GET", f"{Q}/messages?limit=x", None, 400, "invalid", "limit"),
    ("GET", f"{Q}/messages?after=nonsense", None, 400, "invalid", "after"),
    ("GET", f"{Q}/messages?colour=red", None, 400, "invalid", "colour"),
    ("GET", f"{Q}/messages/no-such-id", None, 404, "message_not_found", "id"),
    ("PATCH", f"{Q}/messages/no-such-id", {"priority": 1}, 404, "message_not_found", "id"),
    ("PATCH", f"{Q}/messages/x", {}, 400, "invalid", "body"),
    ("PATCH", f"{Q}/messages/x", {"priority": 99}, 400, "invalid", "priority"),
    ("PATCH", f"{Q}/messages/x", {"content_type": "text/plain"}, 400, "invalid", "content_type"),
    ("DELETE", f"{Q}/messages/no-such-id", None, 404, "message_not_found", "id"),
    ("PUT", Q, {"visibility_timeout": -1}, 400, "invalid", "visibility_timeout"),
    ("PUT", Q, {"max_receives": 0}, 400, "invalid", "max_receives"),
    ("PUT", Q, {"history": "on"}, 400, "invalid", "history"),
    ("PUT", Q, {"colour": "red"}, 400, "invalid", "colour"),
    ("PUT", Q, b"[]", 400, "invalid", "request"),
    ("PUT", "/v1/queues/.%2f", {}, 404, "no_route", None),
    ("POST", f"{Q}/redrive", {"rate": 0}, 400, "invalid", "rate"),
    ("POST", f"{Q}/redrive", {"ids": "all"}, 400, "invalid", "ids"),
    ("POST", f"{Q}/redrive", {"to": "a b"}, 400, "bad_name", "to"),
    *[("POST", f"{Q}/claims", body, status, code, field) for body, status, code, field in [
        (b"", 400, "invalid", "request"),
        ({}, 400, "invalid", "group"),
        ({"group": "g"}, 400, "invalid", "after"),
        ({"group": "g", "after": "1"}, 400, "invalid", "after"),
        ({"group": "g", "after": -1}, 400, "invalid", "after"),
        ({"group": "g", "after": 10**30}, 400, "invalid", "after"),
        ({"group": "g", "after": 7}, 404, "claim_unknown", "after"),
        ({"group": "a/b", "after": 0}, 400, "bad_name", "group"),
        ({"group": 5, "after": 0}, 400, "invalid", "group"),
        ({"group": "g", "after": 0, "epoch": 1}, 404, "claim_unknown", "epoch"),
        ({"group": "g", "after": 0, "epoch": "x"}, 400, "invalid", "epoch"),
        ({"group": "g", "after": 0, "max_messages": 0}, 400, "invalid", "max_messages"),
        ({"group": "g", "after": 0, "max_messages": 1_000_001}, 400, "invalid", "max_messages"),
        ({"group": "g", "after": 0, "max_bytes": 0}, 400, "invalid", "max_bytes"),
        ({"group": "g", "after": 0, "wait": 61}, 400, "invalid", "wait"),
        ({"group": "g", "after": 0, "consumer": ""}, 400, "invalid", "consumer"),
        ({"group": "g", "after": 0, "limit": 5}, 400, "invalid", "limit"),
    ]],
    ("POST", f"{Q}/claims/a%20b/open", None, 400, "bad_name", "group"),
    ("POST", f"{Q}/claims/g/open", {"epoch": 1}, 400, "invalid", "epoch"),
    ("POST", f"{Q}/claims/g/release", {"epoch": 3}, 404, "claim_unknown", "epoch"),
    ("POST", f"{Q}/claims/g/release", {"upto": 3}, 400, "invalid", "upto"),
    ("POST", "/v1/queues/nope/claims/g/release", None, 404, "queue_not_found", "queue"),
    ("GET", f"{Q}/claims/g/1", None, 404, "claim_unknown", "claim"),
    ("GET", f"{Q}/claims/g/one", None, 400, "invalid", "claim"),
    ("GET", f"{Q}/claims/g/0", None, 400, "invalid", "claim"),
    ("GET", f"{Q}/claims/g/1?part=1", None, 400, "invalid", "part"),
    ("GET", f"{Q}/claims/g/1?parts=0", None, 400, "invalid", "parts"),
    ("GET", f"{Q}/claims/g/1?part=x&parts=2", None, 400, "invalid", "part"),
    ("GET", "/v1/queues/nope/claims", None, 404, "queue_not_found", "queue"),
    ("GET", "/v1/queues/nope/claims/g/1", None, 404, "queue_not_found", "queue"),
    ("DELETE", f"{Q}/claims/g", None, 400, "invalid", "upto"),
    ("DELETE", f"{Q}/claims/g?upto=x", None, 400, "invalid", "upto"),
    ("DELETE", f"{Q}/claims/g?upto=1", None, 404, "claim_unknown", "after"),
    ("DELETE", f"{Q}/claims/g?upto=0&epoch=4", None, 404, "claim_unknown", "epoch"),
    ("DELETE", "/v1/queues/nope/claims/g?upto=0", None, 404, "queue_not_found", "queue"),
    *[("POST", f"{Q}/stages/j/1/0/0", body, status, code, field) for body, status, code, field in [
        (b"", 400, "invalid", "request"),
        ({}, 400, "invalid", "messages"),
        ({"messages": 1}, 400, "invalid", "messages"),
        ({"messages": [{"body": 1}, {}]}, 400, "invalid", "messages[1].body"),
        ({"messages": [{"body": 1}, {"body": 2, "priority": 11}]}, 400, "invalid", "messages[1].priority"),
        ({"messages": [{"body": 1, "x": 2}]}, 400, "invalid", "messages[0].x"),
        ({"messages": [], "x": 2}, 400, "invalid", "x"),
    ]],
    ("POST", f"{Q}/stages/j/1/0/0?part=-1", {"messages": []}, 400, "invalid", "part"),
    ("POST", f"{Q}/stages/j/1/0/0?part=x", {"messages": []}, 400, "invalid", "part"),
    ("POST", f"{Q}/stages/a%20b/1/0/0", {"messages": []}, 400, "bad_name", "job"),
    ("POST", f"{Q}/stages/j/*/0/0", {"messages": []}, 400, "bad_name", "batch"),
    ("POST", f"{Q}/stages/j/1/" + "x" * 129 + "/0", {"messages": []}, 400, "bad_name", "partition"),
    ("POST", f"{Q}/stages/j/1/0/%C3%A4", {"messages": []}, 400, "bad_name", "attempt"),
    *[("POST", f"{Q}/stages/j/1/commit", body, status, code, field) for body, status, code, field in [
        (b"", 400, "invalid", "request"),
        ({}, 400, "invalid", "stages"),
        ({"stages": [1]}, 400, "invalid", "stages[0]"),
        ({"stages": [{"partition": 0}]}, 400, "invalid", "stages[0].attempt"),
        ({"stages": [{"partition": 0, "attempt": 1.5}]}, 400, "invalid", "stages[0].attempt"),
        ({"stages": [{"partition": "a b", "attempt": 0}]}, 400, "bad_name", "stages[0].partition"),
        ({"stages": [{"partition": 0, "attempt": 0}, {"partition": "0", "attempt": 1}]}, 400, "invalid", "stages[1]"),
        ({"stages": [{"partition": 0, "attempt": 0}]}, 409, "stage_unknown", "stages"),
    ]],
    ("DELETE", f"{Q}/stages/j/a%20b", None, 400, "bad_name", "batch"),
    ("DELETE", "/v1/queues/nope/stages/j/1", None, 404, "queue_not_found", "queue"),
    ("GET", "/v1/queues/nope/stages", None, 404, "queue_not_found", "queue"),
    ("PUT", Q, {"claim_retention": -1}, 400, "invalid", "claim_retention"),
    ("GET", "/v1/history?after=-1", None, 400, "invalid", "after"),
    ("GET", "/v1/history?limit=5000", None, 400, "invalid", "limit"),
    ("GET", "/v1/history?queue=a%20b", None, 400, "bad_name", "queue"),
    ("POST", "/v1/keys", {"name": "n"}, 400, "invalid", "allow"),
    ("POST", "/v1/keys", {"name": "n", "allow": ["fly:*"]}, 400, "invalid", "allow"),
    ("POST", "/v1/keys", {"name": "", "allow": ["*"]}, 400, "invalid", "name"),
    ("DELETE", "/v1/keys/nope", None, 404, "not_found", "id"),
    ("POST", "/v1/backup", {"path": "/"}, 400, "invalid", "path"),
    ("GET", "/nowhere", None, 404, "no_route", None),
    ("GET", f"{Q}/messages/", None, 404, "no_route", None),
    ("DELETE", f"{Q}/messages", None, 405, "wrong_method", None),
    ("GET", f"{Q}/ack", None, 405, "wrong_method", None),
]  # fmt: skip


def test_every_bad_request_is_refused_with_code_and_field_and_changes_nothing(wire: Caller) -> None:
    assert len(BAD) >= 80
    wire.ok("POST", f"{Q}/messages", {"messages": [{"body": n, "group": "g"} for n in range(3)]})
    wire.ok("POST", f"{Q}/receive", {"max": 1, "visibility_timeout": 43200})
    before = wire.state()
    wrong: list[str] = []
    for method, path, body, status, code, field in BAD:
        if wire.wire.name != "http" and code in HTTP_ONLY:
            continue
        found = wire.wire.ask(method, path, body)
        if not isinstance(found, Refusal) or found[:3] != (status, code, field) or not found.text:
            wrong.append(f"{method} {path[:60]} {str(body)[:60]}: {found}, not {(status, code, field)}")
    assert wrong == []
    assert wire.state() == before


def test_a_message_names_its_moment(wire: Caller) -> None:
    (id,) = wire.ok("POST", f"{Q}/messages", {"body": 1, "deliver_at": "2020-01-01T00:00:00+02:00"})["ids"]
    assert wire.ok("GET", f"{Q}/messages/{id}")["status"] == "ready"
    later = datetime.now(UTC) + timedelta(days=1)
    (id,) = wire.ok("POST", f"{Q}/messages", {"body": 2, "deliver_at": later.isoformat()})["ids"]
    seen = wire.ok("GET", f"{Q}/messages/{id}")
    assert (seen["status"], datetime.fromisoformat(seen["visible_at"])) == ("delayed", later)
    refused = wire.refused("POST", f"{Q}/messages", {"body": 1, "deliver_at": "2020-01-01T00:00:00"})
    assert refused.text.startswith("deliver_at: 2020-01-01T00:00:00 is not a moment with an offset from UTC")
    for value in ("2020-01-01T00:00:00", "tomorrow", 5):
        assert wire.refused("POST", f"{Q}/messages", {"body": 1, "deliver_at": value}).field == "deliver_at"
