"""How ZeroMQ requests are written and read: plain sends in one go, everything else by the longer way."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from miniq.api.operations import Extend, Receive, Send
from miniq.client import bodies
from miniq.client.zmq.requests import ZmqExchange
from miniq.client.zmq.target import Target, read_target
from miniq.errors import BadRequest, InvalidRequest
from miniq.message import Lease, PlainDrafts
from miniq.server.zmq.commands import PlainSend, read_command, resolve


def command(**said: Any) -> bytes:
    return json.dumps({"type": "SEND", **said}).encode()


def target() -> Target:
    return read_target("tcp://127.0.0.1:5557", {})


@pytest.mark.parametrize("values", [["x"], ["x", {"a": 1}], [None, "é", "\ud7ff"]], ids=["one", "some", "not ASCII"])
def test_a_plain_send_of_our_client_is_read_in_one_go(values: list[Any]) -> None:
    exchange = ZmqExchange(target(), Send("q", bodies.drafts(values)))
    found = read_command(exchange.body, "json", None)
    assert isinstance(found, PlainSend)
    ask = resolve(found, "json", None)
    assert ask.request.path == {"queue": "q"}
    assert ask.request.call == exchange.name
    assert type(ask.request.body) is PlainDrafts
    assert [json.loads(body) for body in ask.request.body.bodies] == values


def test_what_a_call_says_as_usual_is_left_out() -> None:
    sent = json.loads(ZmqExchange(target(), Receive("q", wait=2)).body)
    assert sent == {"type": "RECEIVE", "payload": {"queue": "q", "wait": 2}}
    extended = json.loads(ZmqExchange(target(), Extend("q", [Lease("i", "r")], 0)).body)
    assert extended["payload"] == {"queue": "q", "leases": [{"id": "i", "receipt": "r"}], "visibility_timeout": 0}


@pytest.mark.parametrize(
    "payload",
    [
        {"queue": "q", "body": "x", "priority": 3},
        {"queue": "q", "messages": [{"body": "x", "priority": 3}]},
        {"priority": 3, "body": "x", "queue": "q"},
    ],
)
def test_a_send_that_says_more_is_read_by_the_other_way(payload: dict[str, Any]) -> None:
    ask = resolve(read_command(command(payload=payload), "json", None), "json", None)
    draft = ask.request.body if "messages" not in payload else ask.request.body.messages[0]
    assert (draft.priority, bytes(draft.body)) == (3, b'"x"')


def test_a_send_whose_type_comes_last_is_read_too() -> None:
    body = b'{"payload":{"queue":"q","body":1},"type":"SEND"}'
    ask = resolve(read_command(body, "json", None), "json", None)
    assert ask.request.body.bodies == [b"1"]


def test_a_name_that_looks_like_a_list_is_none() -> None:
    ask = resolve(read_command(command(payload={"body": '"messages":', "queue": "q"}), "json", None), "json", None)
    assert ask.request.path == {"queue": "q"}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"type":"SEND","payload":{"queue":"q","body":"\xff"}}', "request"),
        (b'{"type":"SEND","payload":{"queue":"q","messages":[{"body":"\xff"}]}}', "request"),
        (command(payload={"queue": "q", "body": 1, "colour": 2}), "colour"),
        (command(payload={"queue": "q", "messages": [{"body": 1, "colour": 2}]}), "messages[0].colour"),
        (command(payload={"queue": 5, "body": 1}), "queue"),
        (command(payload={"queue": "q", "body": 1}, colour=2), "colour"),
        (command(payload={"queue": "q", "body": 1}, idempotency_key=7), "idempotency_key"),
        (command(payload=[1]), "request"),
        (b'{"type":"SEND","payload":{"queue":"q","body":1}', "request"),
        (b'{"type":"SEND","payload":{"queue":"q","body":' + b"[" * 100_000, "request"),
    ],
)
def test_a_wrong_send_is_refused_with_the_field_named(body: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        resolve(read_command(body, "json", None), "json", None)
    assert caught.value.field == field


def test_an_endpoint_takes_plain_sends_only_if_sends_are_its_own() -> None:
    found = read_command(command(payload={"queue": "q", "body": 1}), "json", None)
    with pytest.raises(BadRequest, match="not available at this endpoint"):
        resolve(found, "json", frozenset({"receive"}))


def test_produce_with_a_queue_alone_asks_for_the_endpoint() -> None:
    ask = resolve(read_command(b'{"type":"PRODUCE_MSG","payload":{"queue":"q"}}', "json", None), "json", None)
    assert ask.endpoint == "producer"
    sent = b'{"type":"PRODUCE_MSG","payload":{"queue":"q","body":1}}'
    assert resolve(read_command(sent, "json", None), "json", None).endpoint is None


@pytest.mark.parametrize("values", [[b"\x00\xff"], [b"a", b""]], ids=["one", "some"])
def test_bytes_of_our_client_need_no_record_each(values: list[bytes]) -> None:
    exchange = ZmqExchange(target(), Send("q", bodies.drafts(values)))
    assert exchange.format == "msgpack"
    request = resolve(read_command(exchange.body, "msgpack", None), "msgpack", None).request
    assert type(request.body) is PlainDrafts
    assert (request.body.bodies, request.body.content_type) == (values, "application/octet-stream")
    assert (request.path, request.call, request.out) == ({"queue": "q"}, exchange.name, "msgpack")


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"queue": "q", "data": "text"}, "data"),
        ({"queue": "q", "messages": [{"data": 7}]}, "messages[0].data"),
        ({"queue": "q", "data": b"x", "colour": 1}, "colour"),
        ({"queue": 1, "data": b"x"}, "queue"),
    ],
)
def test_wrong_bytes_are_refused_with_the_field_named(payload: dict[str, Any], field: str) -> None:
    body = msgspec.msgpack.encode({"type": "SEND", "payload": payload})
    with pytest.raises(InvalidRequest) as caught:
        resolve(read_command(body, "msgpack", None), "msgpack", None)
    assert caught.value.field == field


@pytest.mark.parametrize("rest", [b"\xa4data\xc4\x01x", b"\xa8messages\x91\x81\xa4data\xc4\x01x"], ids=["one", "many"])
def test_text_in_messagepack_that_is_no_text_is_refused(rest: bytes) -> None:
    payload = b"\x82\xa5queue\xa2\xef\x31" + rest
    body = b"\x82\xa4type\xa4SEND\xa7payload" + payload
    with pytest.raises(InvalidRequest):
        resolve(read_command(body, "msgpack", None), "msgpack", None)
