"""What HTTP promises, against a real server: both formats, errors, bad input, and that refusals change nothing."""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.serving import Served, serving

Q = "/v1/queues/q"


class Wire:
    """One connection to a server; says what came back."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def call(
        self, method: str, path: str, body: Any = None, raw: bytes | None = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPMessage]:
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=20)
        try:
            data = raw if raw is not None else None if body is None else json.dumps(body).encode()
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            if data is not None and "content-type" not in sent:
                sent["content-type"] = "application/json"
            connection.request(method, path, data, sent)
            reply = connection.getresponse()
            found = reply.read()
            kind = reply.headers.get("content-type", "")
            if "msgpack" in kind:
                return reply.status, msgspec.msgpack.decode(found), reply.headers
            return reply.status, json.loads(found) if found and "json" in kind else found, reply.headers
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        status, found, _ = self.call(method, path, body, **headers)
        assert status < 300, found
        return found

    def state(self) -> Any:
        """Everything there is, without what time changes."""
        queues = self.ok("GET", "/v1/queues")["queues"]
        messages = {
            queue["name"]: self.ok("GET", f"/v1/queues/{queue['name']}/messages?limit=1000") for queue in queues
        }
        return queues, messages


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("wire")
    with serving(f"rocksdb:{folder / 'data'}") as served:
        yield served


@pytest.fixture
def wire(server: Served) -> Iterator[Wire]:
    one = Wire(server)
    yield one
    for queue in one.ok("GET", "/v1/queues")["queues"]:
        if queue["name"] == "default":
            one.ok("POST", "/v1/queues/default/purge")
        else:
            one.ok("DELETE", f"/v1/queues/{queue['name']}")


def test_a_message_goes_round(wire: Wire) -> None:
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


def test_bodies_keep_their_bytes_and_types(wire: Wire) -> None:
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


def test_messagepack_speaks_the_same(wire: Wire) -> None:
    kind = "application/msgpack"

    def packed(path: str, body: Any) -> Any:
        status, found, headers = wire.call(
            "POST", path, raw=msgspec.msgpack.encode(body), content_type=kind, accept=kind
        )
        assert status < 300, found
        assert headers["content-type"] == kind
        return found

    packed(f"{Q}/messages", {"messages": [{"body": {"a": [1, "ä"]}}, {"data": b"\x00\xff"}]})
    first, second = packed(f"{Q}/receive", {"max": 10})["messages"]
    assert first["body"] == {"a": [1, "ä"]}
    assert second["data"] == b"\x00\xff"
    leases = [{"id": m["id"], "receipt": m["receipt"]} for m in (first, second)]
    assert [r["outcome"] for r in packed(f"{Q}/ack", {"leases": leases})["results"]] == ["acked", "acked"]
    status, found, _ = wire.call("POST", f"{Q}/messages", {"body": 1}, accept=kind)
    assert status == 201
    assert set(found) == {"ids"}


def test_queues_are_made_changed_listed_and_deleted(wire: Wire) -> None:
    made = wire.ok("PUT", Q, {"visibility_timeout": 0.2, "max_receives": 3})
    assert made["settings"]["visibility_timeout"] == 0.2
    assert [queue["name"] for queue in wire.ok("GET", "/v1/queues")["queues"]] == ["default", "q", "q.dead"]
    wire.ok("PUT", Q, {"delay": 1})
    assert wire.ok("GET", Q)["settings"]["max_receives"] == 3
    wire.ok("PUT", "/v1/queues/other")
    assert wire.call("DELETE", Q)[0] == 204
    assert wire.call("GET", Q)[0] == 404


def test_messages_are_looked_at_edited_and_removed(wire: Wire) -> None:
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
    assert wire.call("DELETE", f"{Q}/messages/{first}")[1]["code"] == "message_leased"
    assert wire.call("DELETE", f"{Q}/messages/{first}?receipt={held['receipt']}")[0] == 204
    assert wire.call("GET", f"{Q}/messages/{first}")[1]["code"] == "message_not_found"


def test_dead_letters_are_redriven_and_told_in_the_history(wire: Wire) -> None:
    wire.ok("PUT", Q, {"max_receives": 1, "history": "full"})
    (id,) = wire.ok("POST", f"{Q}/messages", {"body": "x"})["ids"]
    (held,) = wire.ok("POST", f"{Q}/receive")["messages"]
    wire.ok("POST", f"{Q}/release", {"leases": [{"id": id, "receipt": held["receipt"]}]})
    (dead,) = wire.ok("GET", "/v1/queues/q.dead/messages")["messages"]
    assert (dead["dead"]["origin"], dead["dead"]["reason"], dead["dead"]["receives"]) == ("q", "max_receives", 1)
    assert wire.ok("POST", "/v1/queues/q.dead/redrive", {}) == {"moved": 1, "skipped": 0, "running": False}
    told = wire.ok("GET", "/v1/history?queue=q&limit=1000")
    mine = [event for event in told["events"] if event["id"] == id]
    assert [event["event"] for event in mine] == ["sent", "received", "dead", "sent"]
    assert (mine[0]["body"], mine[0]["bytes"]) == ("x", 3)
    assert wire.ok("POST", f"{Q}/purge") == {"purged": 1}


def test_a_repeated_send_with_an_idempotency_key_adds_nothing(wire: Wire) -> None:
    first = wire.ok("POST", f"{Q}/messages", {"body": 1}, idempotency_key="abc")
    assert wire.ok("POST", f"{Q}/messages", {"body": 1}, idempotency_key="abc") == first
    assert wire.ok("GET", Q)["counts"]["total"] == 1


def test_a_long_poll_waits_for_a_send(wire: Wire) -> None:
    poll = http.client.HTTPConnection("127.0.0.1", wire.served.port, timeout=20)
    poll.request("POST", f"{Q}/receive", json.dumps({"wait": 20}))
    wire.ok("POST", f"{Q}/messages", {"body": "woken"})
    assert json.loads(poll.getresponse().read())["messages"][0]["body"] == "woken"
    poll.close()


def test_a_client_that_hangs_up_on_a_long_poll_takes_nothing_with_it(wire: Wire) -> None:
    for _ in range(3):
        gone = socket.create_connection(("127.0.0.1", wire.served.port))
        gone.sendall(b'POST /v1/queues/q/receive HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n{"wait":20}')
        gone.close()
    wire.ok("POST", f"{Q}/messages", {"body": 1})
    assert len(wire.ok("POST", f"{Q}/receive", {"wait": 5})["messages"]) == 1


def test_pipelined_requests_are_answered_in_order(wire: Wire) -> None:
    request = b'POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{"body":1}'
    look = b"GET /v1/queues/q HTTP/1.1\r\nhost: x\r\n\r\n"
    last = b"POST /v1/queues/q/purge HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", wire.served.port)) as connection:
        connection.sendall(request * 3 + look + request + last)
        found = b""
        while chunk := connection.recv(65536):
            found += chunk
    parts = [part.split(b"\r\n\r\n", 1)[-1] for part in found.split(b"HTTP/1.1 ")[1:]]
    assert [b"ids" in part for part in parts] == [True, True, True, False, True, False]
    assert json.loads(parts[3])["counts"]["total"] == 3
    assert json.loads(parts[5]) == {"purged": 4}


def test_a_request_may_come_byte_by_byte_or_in_chunks(wire: Wire) -> None:
    request = b'POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{"body":1}'
    chunked = (
        b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\nexpect: 100-continue\r\n\r\n"
        b'4\r\n{"bo\r\n6\r\ndy":2}\r\n0\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", wire.served.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in range(len(request)):
            connection.sendall(request[place : place + 1])
        assert b"201 Created" in connection.recv(65536)
        connection.sendall(chunked)
        found = connection.recv(65536)
        while b"ids" not in found:
            found += connection.recv(65536)
        assert found.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201")
    assert wire.ok("GET", Q)["counts"]["total"] == 2


# The short routes


def test_the_short_routes_answer_in_their_own_shapes(wire: Wire) -> None:
    pushed = wire.ok("POST", "/push_message", {"msg": {"a": 1}})
    assert pushed["success"] is True
    id = pushed["data"]["message_id"]
    read = wire.ok("GET", "/read_messages?turn_around_time=60")
    assert [(m["id"], m["msg"]) for m in read["data"]] == [(id, {"a": 1})]
    assert wire.ok("GET", "/dev/messages/count?status=processing") == {"count": 1}
    assert wire.ok("GET", "/dev/messages/count") == {"count": 1}
    assert wire.ok("GET", "/dev/messages/status?status=unprocessed") == []
    assert [m["id"] for m in wire.ok("GET", "/dev/messages/status?status=processing")] == [id]
    assert wire.ok("PUT", f"/messages/{id}", {"message": "new"}) == {"success": True}
    assert wire.ok("PATCH", f"/messages/{id}", {"message": "newer"}) == {"success": True}
    assert wire.ok("UPDATE", f"/messages/{id}", {"message": "newest"}) == {"success": True}
    assert [m["message"] for m in wire.ok("GET", "/dev/messages")] == ["newest"]
    assert wire.ok("DELETE", f"/messages/{id}") == {"success": True}
    assert wire.call("DELETE", f"/messages/{id}")[:2] == (404, {"success": False})
    assert wire.call("PUT", f"/messages/{id}", {"message": 1})[:2] == (404, {"success": False})


def test_produce_and_consume(wire: Wire) -> None:
    status, made, _ = wire.call("POST", "/messages/produce", {"message": "hello"})
    assert (status, made["statusCode"], made["status"]) == (201, 201, "success")
    wire.ok("POST", "/messages/produce", {"message": 2})
    (first,) = wire.ok("GET", "/messages/consume?visibility_timeout=30&limit=1")
    assert (first["id"], first["message"]) == (made["id"], "hello")
    assert [m["message"] for m in wire.ok("GET", "/messages/consume")] == [2]
    assert wire.ok("GET", "/messages/consume") == []


def test_text_messages_are_handed_out_at_most_once(wire: Wire) -> None:
    status, made, _ = wire.call("POST", "/messages", {"text": "once"})
    assert (status, set(made)) == (201, {"id"})
    assert wire.ok("GET", "/messages") == {"text": "once"}
    assert wire.call("GET", "/messages")[:2] == (204, b"")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/push_message", {}),
        ("POST", "/push_message", {"msg": 1, "more": 2}),
        ("POST", "/push_message", []),
        ("POST", "/messages/produce", {}),
        ("POST", "/messages", {"txt": 1}),
        ("PUT", "/messages/x", {}),
        ("GET", "/messages/consume?visibility_timeout=soon", None),
        ("GET", "/messages/consume?visibility_timeout=-1", None),
        ("GET", "/messages/consume?limit=many", None),
        ("GET", "/messages/consume?limit=0", None),
        ("GET", "/read_messages?turn_around_time=x", None),
        ("GET", "/dev/messages/status", None),
        ("GET", "/dev/messages/status?status=dead", None),
        ("GET", "/dev/messages/count?status=dead", None),
    ],
)
def test_wrong_short_requests_get_a_400_in_their_shape(wire: Wire, method: str, path: str, body: Any) -> None:
    before = wire.state()
    status, found, _ = wire.call(method, path, body)
    assert status == 400
    assert found.get("success") is False or found["status"] == "error"
    assert wire.state() == before


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
        (b'{"body": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "invalid", "request"),
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
        ({"body": 1, "headers": {"a": 1}}, 400, "invalid", "headers[...]"),
        ({"body": 1, "headers": {"": "x"}}, 400, "invalid", "headers"),
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


def test_every_bad_request_is_refused_with_code_and_field_and_changes_nothing(server: Served) -> None:
    assert len(BAD) >= 80
    wire = Wire(server)
    wire.ok("POST", f"{Q}/messages", {"messages": [{"body": n, "group": "g"} for n in range(3)]})
    wire.ok("POST", f"{Q}/receive", {"max": 1, "visibility_timeout": 43200})
    before = wire.state()
    wrong: list[str] = []
    for method, path, body, status, code, field in BAD:
        raw = body if isinstance(body, bytes) else None
        found_status, found, headers = wire.call(method, path, None if raw is not None else body, raw)
        said = (
            (found_status, found.get("code"), found.get("field")) if isinstance(found, dict) else (found_status, found)
        )
        if (
            said != (status, code, field)
            or headers["content-type"] != "application/problem+json"
            or not found["detail"]
        ):
            wrong.append(f"{method} {path[:60]} {str(body)[:60]}: {said}, not {(status, code, field)}")
    assert wrong == []
    assert wire.state() == before
    wire.ok("DELETE", Q)


@pytest.mark.parametrize("kind", ["text/xml", "application/pdf", "nonsense"])
def test_other_content_types_are_refused(wire: Wire, kind: str) -> None:
    status, found, _ = wire.call("POST", f"{Q}/messages", raw=b'{"body":1}', content_type=kind)
    assert (status, found["code"], found["field"]) == (415, "wrong_media", "content-type")


def test_what_is_not_http_gets_a_problem_and_a_closed_connection(wire: Wire) -> None:
    length = b"POST /v1 HTTP/1.1\r\ncontent-length: x\r\n\r\n"
    for junk in (b"\x00\x01\x02\r\n\r\n", b"HELLO\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", length):
        with socket.create_connection(("127.0.0.1", wire.served.port), timeout=10) as connection:
            connection.sendall(junk)
            found = b""
            while chunk := connection.recv(65536):
                found += chunk
        assert found.startswith(b"HTTP/1.1 400"), found
        assert b'"bad_request"' in found
    assert wire.ok("GET", "/health") == {"status": "ok"}


def test_the_server_tells_how_it_is(wire: Wire) -> None:
    wire.ok("POST", f"{Q}/messages", {"body": 1})
    assert wire.ok("GET", "/ready") == {"status": "ready"}
    text = wire.ok("GET", "/metrics").decode()
    assert 'miniq_queue_messages{queue="q",state="ready"} 1.0' in text
    assert 'miniq_messages_total{event="sent",queue="q"}' in text
    assert 'miniq_call_seconds_bucket{call="send",le="0.0005",queue="q",wire="http"}' in text


def test_what_is_counted_for_a_queue_goes_with_it(wire: Wire) -> None:
    wire.ok("POST", f"{Q}/messages", {"body": 1})
    wire.ok("POST", "/v1/queues/never-made/receive", {})
    wire.ok("DELETE", Q)
    text = wire.ok("GET", "/metrics").decode()
    assert 'queue="q"' not in text
    assert "never-made" not in text


def test_the_openapi_document_names_every_route(wire: Wire) -> None:
    from miniq.wire.operations import OPERATIONS

    document = wire.ok("GET", "/openapi.json")
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {(operation.method, operation.path) for operation in OPERATIONS} <= routes
    page = wire.ok("GET", "/docs")
    assert b"/docs.js" in page
    assert b"http://" not in page + wire.ok("GET", "/docs.js")
