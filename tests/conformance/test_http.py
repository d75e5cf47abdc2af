"""What only HTTP has: connections, content types, the short routes, metrics and the OpenAPI document."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from miniq.api import arrow
from miniq.api.codec import STATUS
from miniq.message import Draft
from tests.conformance.wires import Caller, HttpWire
from tests.serving import Served

Q = "/v1/queues/q"


class Http(Caller):
    """HTTP in a test's hands."""

    def __init__(self, served: Served) -> None:
        self.served = served
        http = HttpWire(served)
        super().__init__(http)
        self.call = http.call


@pytest.fixture
def wire(server: Served) -> Iterator[Http]:
    one = Http(server)
    yield one
    one.clear()


def test_a_wrong_method_is_answered_with_all_that_are_right(wire: Http) -> None:
    methods = {
        "/v1/queues/q": "DELETE, GET, HEAD, PUT",
        "/v1/queues/q/messages": "GET, HEAD, POST",
        "/v1/topics/t": "DELETE, GET, HEAD, PUT",
        "/v1/topics/t/subscriptions/s": "DELETE, PUT",
        "/v1/schedules/s": "DELETE, GET, HEAD, PUT",
        "/v1/schedules": "GET, HEAD",
        "/messages": "GET, POST",
        "/messages/0": "DELETE, PATCH, PUT, UPDATE",
        "/health": "GET, HEAD",
    }
    for path, allowed in methods.items():
        status, problem, headers = wire.call("TRACE", path)
        assert (status, problem["code"], headers["allow"]) == (405, "wrong_method", allowed), path
        assert problem["detail"] == f"TRACE is not allowed for {path}; use {allowed}"


def test_pipelined_requests_are_answered_in_order(wire: Http) -> None:
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


def test_a_request_may_come_byte_by_byte_or_in_chunks(wire: Http) -> None:
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


def test_the_short_routes_answer_in_their_own_shapes(wire: Http) -> None:
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


def test_claims_in_the_queue_default_are_seen_by_the_short_routes(wire: Http) -> None:
    id = wire.ok("POST", "/push_message", {"msg": 1})["data"]["message_id"]
    wire.ok("POST", "/v1/queues/default/claims", {"group": "g", "after": 0})
    assert wire.ok("GET", "/dev/messages/count?status=processing") == {"count": 1}
    assert [m["visible_at"] for m in wire.ok("GET", "/dev/messages")] == [None]
    assert wire.call("DELETE", f"/messages/{id}")[:2] == (404, {"success": False})


def test_produce_and_consume(wire: Http) -> None:
    status, made, _ = wire.call("POST", "/messages/produce", {"message": "hello"})
    assert (status, made["statusCode"], made["status"]) == (201, 201, "success")
    wire.ok("POST", "/messages/produce", {"message": 2})
    (first,) = wire.ok("GET", "/messages/consume?visibility_timeout=30&limit=1")
    assert (first["id"], first["message"]) == (made["id"], "hello")
    assert [m["message"] for m in wire.ok("GET", "/messages/consume")] == [2]
    assert wire.ok("GET", "/messages/consume") == []


def test_text_messages_are_handed_out_at_most_once(wire: Http) -> None:
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
def test_wrong_short_requests_get_a_400_in_their_shape(wire: Http, method: str, path: str, body: Any) -> None:
    before = wire.state()
    status, found, _ = wire.call(method, path, body)
    assert status == 400
    assert found.get("success") is False or found["status"] == "error"
    assert wire.state() == before


# Bad input and how it is


@pytest.mark.parametrize("kind", ["text/xml", "application/pdf", "nonsense"])
def test_other_content_types_are_refused(wire: Http, kind: str) -> None:
    status, found, _ = wire.call("POST", f"{Q}/messages", raw=b'{"body":1}', content_type=kind)
    assert (status, found["code"], found["field"]) == (415, "wrong_media", "content-type")


def test_what_is_not_http_gets_a_problem_and_a_closed_connection(wire: Http) -> None:
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


def test_the_server_tells_how_it_is(wire: Http) -> None:
    wire.ok("POST", f"{Q}/messages", {"body": 1})
    assert wire.ok("GET", "/ready") == {"status": "ready"}
    text = wire.ok("GET", "/metrics").decode()
    assert 'miniq_queue_messages{queue="q",state="ready"} 1.0' in text
    assert 'miniq_messages_total{event="sent",queue="q"}' in text
    assert 'miniq_call_seconds_bucket{call="send",le="0.0005",queue="q",wire="http"}' in text


def test_what_is_counted_for_a_queue_goes_with_it(wire: Http) -> None:
    wire.ok("POST", f"{Q}/messages", {"body": 1})
    wire.ok("POST", "/v1/queues/never-made/receive", {})
    wire.ok("DELETE", Q)
    text = wire.ok("GET", "/metrics").decode()
    assert 'queue="q"' not in text
    assert "never-made" not in text


def test_the_openapi_document_describes_fields_headers_and_errors(wire: Http) -> None:
    document = wire.ok("GET", "/openapi.json")
    for record in ("SendBody", "WireDraft"):
        for field in Draft.__struct_fields__:
            assert document["components"]["schemas"][record]["properties"][field].get("description"), field
    calls = {one["operationId"]: one for methods in document["paths"].values() for one in methods.values()}
    assert "Idempotency-Key" in {parameter["name"] for parameter in calls["send"]["parameters"]}
    assert "Idempotency-Key" not in {parameter["name"] for parameter in calls["receive"]["parameters"]}
    told = {status for call in calls.values() for status in call["responses"]}
    assert told >= {str(status) for status in STATUS.values()}
    for status, names in (
        ("406", {"peek", "history", "read_claim"}),
        ("410", {"open_claims", "claim", "read_claim", "ack_claims", "release_claims", "bury_claimed", "list_claims"}),
        ("422", {"send", "publish"}),
    ):
        assert {name for name, call in calls.items() if status in call["responses"]} == names


def test_the_console_is_found_with_a_slash_at_its_end(wire: Http) -> None:
    status, _, headers = wire.call("GET", "/console/")
    assert (status, headers["location"]) == (307, "/console")


def test_the_openapi_document_names_every_route(wire: Http) -> None:
    from miniq.server.operations import OPERATIONS

    document = wire.ok("GET", "/openapi.json")
    routes = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert {(operation.method, operation.path) for operation in OPERATIONS} <= routes
    page = wire.ok("GET", "/docs")
    assert b"/docs.js" in page
    assert b"http://" not in page + wire.ok("GET", "/docs.js")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", f"{Q}/messages"), ("POST", f"{Q}/ack"), ("GET", "/health"), ("GET", "/docs"), ("GET", "/console"),
        ("GET", "/nowhere"), ("POST", "/push_message"), ("PUT", "/health"), ("OPTIONS", "*"),
    ],
)  # fmt: skip
def test_no_answer_is_taken_for_what_it_is_not(wire: Http, method: str, path: str) -> None:
    _, _, headers = wire.call(method, path, {"body": 1} if method == "POST" else None)
    assert headers.get_all("x-content-type-options") == ["nosniff"]


@pytest.mark.parametrize("path", ["/docs", "/docs.js", "/console"])
def test_pages_may_not_be_framed(wire: Http, path: str) -> None:
    assert "frame-ancestors 'none'" in wire.call("GET", path)[2]["content-security-policy"]


@pytest.mark.parametrize("number", ["1_0", "%EF%BC%91", "%201"])
def test_numbers_are_written_as_everywhere(wire: Http, number: str) -> None:
    for path, field in (
        (f"{Q}/messages?limit={number}", "limit"),
        (f"/v1/events?count={number}", "count"),
        (f"/v1/events?interval={number}", "interval"),
    ):
        wire.ok("PUT", Q)
        assert wire.refused("GET", path).field == field
    assert wire.call("GET", f"/messages/consume?visibility_timeout={number}")[0] == 400


def test_a_json_request_may_be_answered_in_messagepack(wire: Http) -> None:
    kind = "application/msgpack"
    status, found, headers = wire.call("POST", f"{Q}/messages", {"body": 1}, accept=kind)
    assert (status, set(found), headers["content-type"]) == (201, {"ids"}, kind)


@pytest.mark.parametrize("body", ["1e999", "9" * 5001], ids=["1e999", "5001 digits"])
def test_a_number_that_messagepack_has_not_comes_as_bytes(wire: Http, body: str) -> None:
    """And takes none of the messages beside it along."""
    for one in ("1", body, "2"):
        assert wire.call("POST", f"{Q}/messages", raw=b'{"body":%b}' % one.encode())[0] == 201
    kind = "application/msgpack"
    for method, path, asked in (("GET", f"{Q}/messages", None), ("POST", f"{Q}/receive", {"max": 10})):
        status, found, _ = wire.call(method, path, asked, accept=kind)
        assert status == 200
        assert [one.get("body", one.get("data")) for one in found["messages"]] == [1, body.encode(), 2]


@pytest.mark.parametrize("path", ["/messages", "/messages/consume", "/read_messages"])
def test_who_asks_for_the_head_of_messages_takes_none(wire: Http, path: str) -> None:
    assert wire.call("POST", "/messages", {"text": "precious"})[0] == 201
    assert wire.call("HEAD", path)[0] == 405
    assert wire.ok("GET", "/v1/queues/default")["counts"]["ready"] == 1


@pytest.mark.parametrize("path", ["/v1/queues/a%2Fpurge", "/v1/queues/q%2freceive", "/v1/queues/a%2fb/messages"])
def test_a_slash_in_a_name_leads_nowhere_else(wire: Http, path: str) -> None:
    wire.ok("POST", "/v1/queues/a/messages", {"body": 1})
    before = wire.state()
    assert wire.refused("POST", path, {"body": 1}).code == "no_route"
    assert wire.state() == before


@pytest.mark.parametrize(
    "body", ["1e999", "9" * 5000, "[" * 900 + "]" * 900, "1"], ids=["1e999", "digits", "deep", "1"]
)
def test_what_is_no_text_is_refused_as_text(wire: Http, body: str) -> None:
    for method, path in (("POST", f"{Q}/messages"), ("PATCH", f"{Q}/messages/x")):
        raw = b'{"content_type":"text/plain","body":%b}' % body.encode()
        status, found, _ = wire.call(method, path, raw=raw)
        assert (status, found["field"]) == (400, "body")


@pytest.mark.parametrize("field", ["delay", "visibility_timeout", "retention", "dedup_window"])
def test_seconds_that_are_no_float_are_out_of_range(wire: Http, field: str) -> None:
    status, found, _ = wire.call("PUT", Q, raw=b'{"%b":%b}' % (field.encode(), b"9" * 4000))
    assert (status, found["field"]) == (400, field)
    assert len(found["detail"]) < 200


def test_a_page_of_the_short_routes_ends_at_a_size(wire: Http) -> None:
    for _ in range(20):
        wire.ok("POST", "/v1/queues/default/messages", {"body": "x" * 1_000_000})
    status, found, _ = wire.call("GET", "/dev/messages")
    assert (status, len(found)) == (200, 17)  # the one that passes 16 MiB is the last


def test_a_refusal_does_not_repeat_all_that_was_said(wire: Http) -> None:
    long = "x" * 100_000
    for method, path, body in (
        ("PUT", Q, {long: 1}),
        ("PATCH", f"{Q}/messages/x", {long: 1}),
        ("POST", f"{Q}/receive", {"mode": long}),
        ("POST", "/v1/keys", {"name": "k", "allow": [long]}),
    ):
        status, found, _ = wire.call(method, path, body)
        assert status == 400
        assert len(json.dumps(found)) < 1000


@pytest.mark.parametrize("value", ["1e999", "9" * 5001, '{"a":[1e999]}'], ids=["1e999", "5001 digits", "within"])
def test_a_setting_that_cannot_be_read_is_named(wire: Http, value: str) -> None:
    status, found, _ = wire.call("PUT", Q, raw=b'{"max_receives":3,"retention":%b}' % value.encode())
    assert (status, found["field"]) == (400, "retention")
    assert "out of range" in found["detail"]


def test_a_number_out_of_range_before_text_that_is_not_json(wire: Http) -> None:
    status, found, _ = wire.call("PUT", Q, raw=b'{"history":1e999ull"}')
    assert (status, found["code"], found["field"]) == (400, "invalid", "request")


# Arrow


def stream(table: pa.Table, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def test_messages_are_sent_and_staged_in_arrow(wire: Http) -> None:
    raw = stream(pa.table({"body": ["1", '"two"'], "priority": [0, 5]}))
    status, sent, headers = wire.call("POST", f"{Q}/messages", raw=raw, content_type=arrow.MEDIA)
    assert (status, len(sent["ids"]), headers["content-type"]) == (201, 2, "application/json")
    assert [message["body"] for message in wire.ok("GET", f"{Q}/messages")["messages"]] == ["two", 1]
    many = stream(pa.table({"body": ["[]"] * 5000}))
    status, found, _ = wire.call("POST", f"{Q}/stages/j/1/0/0", raw=many, content_type=arrow.MEDIA)
    assert (status, found) == (201, {"messages": 5000, "bytes": 10000})
    assert wire.call("POST", f"{Q}/messages", raw=many, content_type=arrow.MEDIA)[0] == 413


BAD_ARROW: list[tuple[bytes, int, str, str | None]] = [
    (b"x", 400, "bad_request", "request"),
    (b"\xff" * 100, 400, "bad_request", "request"),
    (stream(pa.table({"body": ["1"] * 1000}))[:-600], 400, "bad_request", "request"),
    (stream(pa.table({"body": ["1"]}), "zstd"), 400, "invalid", "request"),
    (stream(pa.table({"body": ["1"]}), "lz4"), 400, "invalid", "request"),
    (stream(pa.table({"body": pa.array(["1"]).dictionary_encode()})), 400, "invalid", "request"),
    (stream(pa.table({"id": ["1"], "body": ["1"]})), 400, "invalid", "id"),
    (stream(pa.table({"body": [1.5]})), 400, "invalid", "body"),
    (stream(pa.table({"body": ["{"]})), 400, "invalid", "messages[0].body"),
    (stream(pa.table({"body": ['"' + "x" * 1024 * 1024 + '"']})), 413, "too_large", "body"),
]


@pytest.mark.parametrize("path", [f"{Q}/messages", f"{Q}/stages/j/1/0/0"])
def test_wrong_arrow_is_refused_and_changes_nothing(wire: Http, path: str) -> None:
    wire.ok("PUT", Q)
    for raw, status, code, field in BAD_ARROW:
        found = wire.call("POST", path, raw=raw, content_type=arrow.MEDIA)
        assert (found[0], found[1]["code"], found[1].get("field")) == (status, code, field), found[1]
    # Bytes cut and turned anywhere: a refusal, or what is still a stream of messages; never a fault of the broker.
    good = bytearray(stream(pa.table({"body": ["1", '"two"', "[3]"], "key": ["a", "b", None]})))
    chance = random.Random(7)
    for _ in range(300):
        raw = bytearray(good)
        for _ in range(chance.choice([1, 1, 4])):
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.3:
            del raw[chance.randrange(len(raw)) :]
        status, said, _ = wire.call("POST", path, raw=bytes(raw), content_type=arrow.MEDIA)
        assert status in (201, 400, 413, 415), said
    assert wire.ok("GET", "/health") == {"status": "ok"}


def test_arrow_is_only_for_messages(wire: Http) -> None:
    raw = stream(pa.table({"body": ["1"]}))
    status, found, _ = wire.call("POST", f"{Q}/receive", raw=raw, content_type=arrow.MEDIA)
    assert (status, found["code"]) == (415, "wrong_media")
