"""HTTP for those who watch: the stream of events, rights, request ids, and pages of other sites."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.wires import Caller, HttpWire
from tests.kit import wait_for
from tests.serving import Served, serving

Q = "/v1/queues/q"
EVIL = "evil.example.com"


class Http(Caller):
    def __init__(self, served: Served) -> None:
        self.served = served
        wire = HttpWire(served)
        super().__init__(wire)
        self.call = wire.call

    def events(self, path: str, **headers: str) -> Iterator[tuple[str, Any]]:
        """The events of a stream, one by one, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=20)
        try:
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            reply = connection.getresponse()
            assert reply.headers["content-type"].startswith("text/event-stream")
            while line := reply.readline():
                kind, data = line, reply.readline()
                assert reply.readline() == b"\n"
                yield kind.decode().strip().removeprefix("event: "), json.loads(data.removeprefix(b"data: "))
            assert reply.isclosed(), "it was cut off"
        finally:
            connection.close()


@pytest.fixture
def wire(server: Served) -> Iterator[Http]:
    one = Http(server)
    yield one
    one.clear()


def test_events_begin_with_everything_and_go_on_with_what_changed(wire: Http) -> None:
    for name in ("a", "b"):
        wire.ok("POST", f"/v1/queues/{name}/messages", {"body": 1})
    stream = wire.events("/v1/events?interval=0.2")
    kind, first = next(stream)
    assert (kind, [queue["name"] for queue in first["queues"]], first["gone"]) == ("stats", ["a", "b", "default"], [])
    wire.ok("DELETE", "/v1/queues/a")
    wire.ok("POST", "/v1/queues/b/messages", {"body": 2})
    changed: dict[str, Any] = {}
    gone: list[str] = []
    for _, event in stream:
        changed |= {queue["name"]: queue["ready"] for queue in event["queues"]}
        gone += event["gone"]
        if gone and changed.get("b") == 2:
            break
    assert gone == ["a"]
    assert changed.get("default", 0) == 0
    stream.close()  # type: ignore[attr-defined]
    assert len(list(wire.events("/v1/events?interval=0.1&count=3&queue=b"))) == 3


def test_beyond_max_streams_a_stream_is_refused_until_another_one_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "miniq.toml").write_text("max_streams = 2\n")
    with serving("memory:", 0, "--config", str(tmp_path / "miniq.toml")) as served:
        wire = Http(served)
        streams = [wire.events("/v1/events?interval=60") for _ in range(2)]
        for stream in streams:
            next(stream)
        status, problem, headers = wire.call("GET", "/v1/events")
        assert (status, problem["code"], headers["retry-after"]) == (503, "too_many_streams", "1")
        assert "2 event streams are open, as many as max_streams allows" in problem["detail"]
        status, _, headers = wire.call("HEAD", "/v1/events")
        assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        streams[0].close()  # type: ignore[attr-defined]
        wait_for(lambda: wire.call("GET", "/v1/events?count=1", raw=b"")[0] == 200)


@pytest.mark.parametrize(
    ("query", "field"),
    [("interval=0", "interval"), ("interval=x", "interval"), ("count=0", "count"), ("colour=red", "colour")],
)
def test_wrong_parameters_of_events_are_named(wire: Http, query: str, field: str) -> None:
    assert wire.refused("GET", f"/v1/events?{query}").field == field
    assert wire.refused("GET", "/v1/events?queue=nowhere").code == "queue_not_found"


def test_the_head_of_events_is_answered_at_once(wire: Http) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", wire.served.port, timeout=5)
    for method, path, kind in (("HEAD", "/v1/events", "text/event-stream"), ("GET", "/health", "application/json")):
        connection.request(method, path)
        reply = connection.getresponse()
        assert (reply.status, reply.headers["content-type"].startswith(kind)) == (200, True)
        reply.read()
    connection.close()
    assert wire.call("HEAD", "/v1/events?queue=nowhere")[0] == 404


def test_a_server_with_listeners_stops_at_once() -> None:
    with serving("memory:") as served:
        stream = Http(served).events("/v1/events?interval=60")
        next(stream)
        assert served.stop() == 0
        assert list(stream) == []


def test_a_key_sees_its_own_queues_and_what_it_may_do() -> None:
    with serving("memory:") as served:
        wire = Http(served)
        for name in ("mine", "yours"):
            wire.ok("POST", f"/v1/queues/{name}/messages", {"body": 1})
        assert wire.ok("GET", "/v1/whoami")["verbs"] == ["send", "receive", "publish", "read", "manage", "admin"]
        boss = wire.ok("POST", "/v1/keys", {"name": "boss", "allow": ["*"]})
        admin = {"authorization": f"Bearer {boss['secret']}"}
        allow = ["read:mine", "send:*"]
        made = wire.ok("POST", "/v1/keys", {"name": "ann", "allow": allow}, **admin)
        key = {"authorization": f"Bearer {made['secret']}"}
        who = wire.ok("GET", "/v1/whoami?queue=mine", **key)
        assert (who["open"], who["name"], who["allow"], who["verbs"]) == (False, "ann", allow, ["send", "read"])
        assert wire.ok("GET", "/v1/whoami", **key)["verbs"] == ["send"]
        assert [queue["name"] for queue in wire.ok("GET", "/v1/stats", **key)["queues"]] == ["mine"]
        assert wire.refused("GET", "/v1/stats?queue=yours", **key).code == "forbidden"
        assert wire.refused("GET", "/v1/trends?queue=yours", **key).code == "forbidden"
        assert wire.refused("POST", "/v1/queues/mine/messages/x/release", {}, **key).code == "forbidden"
        for path in ("/v1/whoami", "/v1/stats", "/v1/trends", "/v1/events", "/v1/queues"):
            assert wire.refused("GET", path).code == "unauthorized"
            assert wire.refused("GET", path, authorization="Bearer mq_0_no").code == "unauthorized"
            assert "`Bearer` is missing" in wire.refused("GET", path, authorization=made["secret"]).text
        stream = wire.events("/v1/events?interval=0.1", **key)
        assert [queue["name"] for queue in next(stream)[1]["queues"]] == ["mine"]
        wire.ok("DELETE", f"/v1/keys/{made['id']}", **admin)
        *_, (kind, problem) = stream
        assert (kind, problem["code"]) == ("problem", "unauthorized")


def test_an_event_stream_ends_at_once_with_its_key() -> None:
    with serving("memory:") as served:
        wire = Http(served)
        admin = {"authorization": f"Bearer {wire.ok('POST', '/v1/keys', {'name': 'boss', 'allow': ['*']})['secret']}"}
        made = wire.ok("POST", "/v1/keys", {"name": "ann", "allow": ["read"]}, **admin)
        stream = wire.events("/v1/events?interval=60", authorization=f"Bearer {made['secret']}")
        assert next(stream)[0] == "stats"
        wire.ok("DELETE", f"/v1/keys/{made['id']}", **admin)
        ((kind, problem),) = stream
        assert (kind, problem["code"]) == ("problem", "unauthorized")


CALLS = [("POST", f"{Q}/messages", {"body": 1}), ("PUT", Q, {}), ("POST", "/push_message", {"msg": 1})]
"""The fast lane, the other one, and a short route."""


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_pages_of_other_sites_cannot_change_anything(wire: Http, method: str, path: str, body: Any) -> None:
    before = wire.state()
    for headers in (
        {"origin": f"http://{EVIL}"},
        {"origin": "null"},
        {"origin": f"http://127.0.0.1:{wire.served.port + 1}"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        refused = wire.refused(method, path, body, **headers)
        assert (refused.status, refused.code) == (403, "cross_origin"), headers
    assert wire.state() == before
    wire.ok(method, path, body, origin=wire.served.url, **{"sec-fetch-site": "same-origin"})
    wire.ok(method, path, body)


def test_a_picture_on_another_site_takes_no_message(wire: Http) -> None:
    wire.ok("POST", "/push_message", {"msg": 1})
    for path in ("/read_messages", "/messages", "/messages/consume"):
        assert wire.refused("GET", path, **{"sec-fetch-site": "cross-site"}).code == "cross_origin"
    assert len(wire.ok("GET", "/read_messages", **{"sec-fetch-site": "none"})["data"]) == 1


def test_a_name_that_may_be_anybodys_is_refused_while_there_are_no_keys(wire: Http) -> None:
    for method, path, body in (("GET", "/v1/queues", None), *CALLS):
        for host in (EVIL, f"{EVIL}:5000", "127.0.0.1.nip.io", f"{EVIL}."):
            refused = wire.refused(method, path, body, host=host)
            assert (refused.code, refused.field) == ("cross_origin", "host")
        for host in ("localhost", "LOCALHOST:5000", "a.localhost", "[::1]:5000", "192.168.0.1", "miniq", ""):
            wire.ok(method, path, body, host=host)


def test_names_can_be_allowed_and_keys_make_them_all_fine() -> None:
    with serving("memory:", 0, "--allowed-hosts", f"mq.example.com, {EVIL}") as served:
        wire = Http(served)
        for method, path, body in CALLS:
            wire.ok(method, path, body, host=f"{EVIL}:80", origin=f"https://{EVIL}")
            # A proxy that does not pass the name on.
            wire.ok(method, path, body, origin="https://mq.example.com")
            # Another server of that machine is another site.
            for other in ("https://mq.example.com:8443", f"http://{EVIL}:5000", "ftp://mq.example.com"):
                assert wire.refused(method, path, body, host=EVIL, origin=other).code == "cross_origin"
        assert wire.refused("GET", "/v1/queues", host="other.example.com").code == "cross_origin"
        key = wire.ok("POST", "/v1/keys", {"name": "boss", "allow": ["*"]})
        bearer = {"authorization": f"Bearer {key['secret']}"}
        for method, path, body in CALLS[:2]:
            wire.ok(method, path, body, host="other.example.com", **bearer)


def test_every_answer_has_a_request_id(wire: Http) -> None:
    seen = set()
    for method, path, body in (
        *CALLS,
        ("GET", "/nowhere", None),
        ("POST", f"{Q}/messages", {}),
        ("GET", "/health", None),
    ):
        for _ in range(2):
            _, _, headers = wire.call(method, path, body)
            seen.add(headers["x-request-id"])
        _, _, headers = wire.call(method, path, body, **{"x-request-id": "mine-1.a"})
        assert headers["x-request-id"] == "mine-1.a"
        _, _, headers = wire.call(method, path, body, **{"x-request-id": "not ok"})
        assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", headers["x-request-id"])
    assert len(seen) == 12


def test_the_console_allows_nothing_but_its_own_files(wire: Http) -> None:
    for path in ("/console", "/console/app.js", "/console/app.css"):
        status, text, headers = wire.call("GET", path)
        assert (status, headers["x-content-type-options"]) == (200, "nosniff")
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert wire.call("GET", path, **{"if-none-match": headers["etag"]})[0] == 304
        assert b"<script>" not in text
        assert b"style=" not in text
    for path in ("/console/nothing.js", "/console/..%2fhttp.py", "/console/../server.py"):
        assert wire.refused("GET", path).code == "no_route"
    status, _, headers = wire.call("GET", "/")
    assert (status, headers["location"]) == (307, "/console")


def test_logs_are_json_name_requests_and_never_show_a_body_or_a_key(tmp_path: Path) -> None:
    secrets = ["s3cret-body", "s3cret-header", "s3cret-key", "s3cret-find"]
    command = [
        sys.executable,
        "-m",
        "miniq",
        "serve",
        "--store",
        f"rocksdb:{tmp_path / 'data'}",
        "--port",
        "0",
        "--no-zmq",
    ]
    process = subprocess.Popen(
        [*command, "--log-level", "debug", "--log-format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    served = Served(process, f"{line.rstrip()} -")
    wire = Http(served)
    made = wire.ok("POST", "/v1/keys", {"name": "ann", "allow": ["*"]})
    secrets.append(made["secret"])
    key = {"authorization": f"Bearer {made['secret']}"}
    message = {"body": "s3cret-body", "headers": {"h": "s3cret-header"}, "key": "s3cret-key"}
    wire.ok("POST", f"{Q}/messages", message, **key, **{"x-request-id": "my-send"})
    (taken,) = wire.ok("POST", f"{Q}/receive", {}, **key)["messages"]
    secrets.append(taken["receipt"])
    wire.ok("DELETE", f"{Q}/messages/{taken['id']}?receipt={taken['receipt']}", **key)
    wire.ok("GET", f"{Q}/messages?find=s3cret-find", **key, **{"x-request-id": "my-search"})
    for body in ({**message, "priority": "s3cret-body"}, {**message, "s3cret-body": 1}, b'{"body": "s3cret-body'):
        wire.refused("POST", f"{Q}/messages", body, **key)
        wire.refused("PATCH", f"{Q}/messages/x", body, **key)
    assert wire.call("POST", "/push_message", {"msg": "s3cret-body"}, authorization="Bearer s3cret-key")[0] == 401
    process.terminate()
    _, text = process.communicate(timeout=30)
    lines = [json.loads(line) for line in text.splitlines()]
    answered = [line for line in lines if line["message"] == "answered"]
    assert {"my-send", "my-search"} < {line["request"] for line in answered}
    assert all(line["request"] and line["method"] and line["status"] for line in answered)
    assert [secret for secret in secrets if secret in text or secret in line] == []


def test_the_last_report_of_a_pipeline_is_shown_in_a_sandbox(tmp_path: Path) -> None:
    page, config = tmp_path / "report.html", tmp_path / "miniq.toml"
    config.write_text(f'report = "{page}"\n')
    with serving("memory:", 0, "--config", str(config)) as served:
        wire = Http(served)
        assert wire.refused("GET", "/v1/report").text.startswith("/v1/report: the report cannot be read")
        os.mkfifo(page)
        assert "is a named pipe" in wire.refused("GET", "/v1/report").text
        page.unlink()
        page.write_text("<h1>Report</h1><script>alert(1)</script>")
        status, text, headers = wire.call("GET", "/v1/report")
        assert (status, text) == (200, page.read_bytes())
        assert headers["content-security-policy"].startswith("sandbox; default-src 'none'")
        status, text, headers = wire.call("HEAD", "/v1/report")
        assert (status, text) == (200, b"")
        assert headers["last-modified"].endswith("GMT")
        os.truncate(page, 64 * 1024 * 1024 + 1)
        error = wire.refused("GET", "/v1/report")
        assert (error.code, error.field) == ("too_large", "report")
        assert "67108865 bytes; at most 67108864" in error.text
        wire.ok("POST", "/v1/keys", {"name": "boss", "allow": ["*"]})
        assert wire.refused("GET", "/v1/report").code == "unauthorized"


def test_without_a_report_the_option_is_named(wire: Http) -> None:
    assert "set the option report" in wire.refused("GET", "/v1/report").text
