"""The table of operations: what one end writes, the other reads, over every wire, and the broker can do it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl, unquote

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import fields

from miniq import dispatch
from miniq.api import codec, replies, shapes
from miniq.api import operations as ops
from miniq.api.operation import Call, Operation
from miniq.api.operations import OPERATIONS
from miniq.batch import Claim, ClaimGroup, Committed, OpenedGroup, Stage, StageName
from miniq.broker import Broker
from miniq.client.http.requests import HttpExchange
from miniq.client.http.target import read_target
from miniq.client.zmq import target as zmq_target
from miniq.client.zmq.requests import ZmqExchange
from miniq.consumer import Consumer
from miniq.errors import InvalidRequest
from miniq.failure import FailureGroup
from miniq.message import (
    AckedLease,
    Counts,
    Draft,
    Event,
    Extended,
    Failed,
    HistoryPage,
    HistoryRecord,
    Lease,
    Leased,
    Message,
    Page,
    QueueChanges,
    QueueInfo,
    QueueSettings,
    RedriveProgress,
    Retry,
    RetryChanges,
    Stored,
)
from miniq.result import Progress
from miniq.schedule import Definition, Firing, Schedule
from miniq.server.http.app import prepare
from miniq.server.operations import Request, read_call
from miniq.server.zmq.commands import read_command, resolve
from miniq.store import open_store
from miniq.topic import Match, Published, Subscription, TopicInfo, TopicRates, TopicSettings

HTTP = read_target("http://127.0.0.1:5000/prefix", {})
ZMQ = zmq_target.read_target("tcp://127.0.0.1:5557", {})
AT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
EACH = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
SAMPLES: dict[Any, Any] = {
    str: "x 1",
    int: 3,
    float: 2.5,
    bytes: b"[1]",
    Raw: Raw(b"[1]"),
    bool: True,
    datetime: AT,
    dict[str, str]: {"a": "b"},
    dict[str, Any]: {"delay": 2.5, "max_receives": None},
    Sequence[Lease]: [Lease("i", "r"), Lease("j", "s")],
    Sequence[str]: ["a", "b"],
    Sequence[shapes.StageId]: [shapes.StageId("0", "1")],
    Definition: Definition(
        Draft(b"[1]", priority=2, headers={"a": "b"}), "q", None, "0 3 * * *", timezone="Asia/Tokyo"
    ),
    Any: [Draft(b"1"), Draft(b'"\xc3\xbc"', headers={"a": "b"}, priority=3)],
}


def sample(kind: Any) -> Any:
    if kind in SAMPLES:
        return SAMPLES[kind]
    if get_origin(kind) is Literal:
        return get_args(kind)[-1]
    return sample(get_args(kind)[0])


def calls(operation: Operation[Any]) -> list[Any]:
    """A call with all fields, and one with no more than it needs."""
    infos = fields(operation.request)
    names = {"content_type": "application/json"}
    full = {info.name: names.get(info.name) or sample(info.type) for info in infos}
    if operation.name == "ack":
        full["leases"] = [AckedLease("i", "r", Raw(b'{"a":[1]}')), AckedLease("j", "s")]
    needed = {info.name: full[info.name] for info in infos if info.required or info.type is Any}
    if operation.name == "edit":
        needed |= {"body": b"1", "content_type": "application/json"}
    return [operation.request(**full), operation.request(**needed)]


@EACH
def test_what_a_client_writes_over_http_is_what_the_server_reads(operation: Operation[Any]) -> None:
    for call in calls(operation):
        exchange = HttpExchange(HTTP, call)
        line, *headers = exchange.head.decode().split("\r\n")
        method, url, _ = line.split(" ")
        path, _, query = url.removeprefix("/prefix").partition("?")
        assert method == operation.method
        template, parts = operation.path.split("/"), path.split("/")
        assert len(template) == len(parts)
        found = {a[1:-1]: unquote(b) for a, b in zip(template, parts, strict=True) if a.startswith("{")}
        assert [b for a, b in zip(template, parts, strict=True) if not a.startswith("{")] == [
            part for part in template if not part.startswith("{")
        ]
        request = Request(found, dict(parse_qsl(query, keep_blank_values=True)), None, "json")
        assert set(request.query) <= set(operation.in_query)
        kind = next((line.split(": ")[1] for line in headers if line.startswith("content-type")), "")
        prepare(operation, request, exchange.body, kind)
        assert same(read_call(operation, request), call)


@EACH
def test_what_a_client_writes_over_zeromq_is_what_the_server_reads(operation: Operation[Any]) -> None:
    for call in calls(operation):
        exchange = ZmqExchange(ZMQ, call)
        ask = resolve(read_command(exchange.body, exchange.format, None), exchange.format, None)
        assert ask.operation is operation
        assert same(read_call(operation, ask.request), call)


def same(found: Any, call: Any) -> bool:
    """Drafts may be a sequence of another kind."""
    return type(found) is type(call) and all(
        (list(mine) == list(theirs) if name == "drafts" else mine == theirs)
        for name, mine, theirs in ((name, getattr(found, name), getattr(call, name)) for name in call.__struct_fields__)
    )


MESSAGE = Message("i", "q", 1, 1, b'{"a":1}', priority=2, headers={"a": "b"}, key="k", group="g")
EVENT = Event(5, "sent", "q", "i", 1, 9, "me", 1.5, None, "x", b"1", "text/x")
RATES = shapes.Rates(1, 2, 3, 4, 5, 6)
FIRINGS = [Firing(AT, AT, "sent", "i", on_request=True), Firing(AT, AT, "failed", None, "why", 7)]
SCHEDULE = Schedule(
    "n", Draft(b"a", "text/plain", key="k"), "q", None, None, 2.5, None, "UTC", "all", True, [AT], FIRINGS
)
HIDDEN = Schedule("n", None, None, "t", None, None, AT, "UTC", "skip", False, [], [])
RESULTS: dict[str, Any] = {
    "put_schedule": SCHEDULE,
    "get_schedule": SCHEDULE,
    "run_schedule": HIDDEN,
    "delete_schedule": None,
    "list_schedules": [SCHEDULE, HIDDEN],
    "send": ["i", "j"],
    "ack": ["done", "stale"],
    "release": ["missing", "done"],
    "extend": Extended(["done", "stale"], 5_000_001),
    "result": Progress("i", "done", b'{"a":1}', "why", 5_000_001),
    "put_result": True,
    "fail": [Failed("retried", 5_000_001), Failed("stale")],
    "release_one": True,
    "remove": None,
    "open_claims": OpenedGroup("g", 3, 2, 1, [Claim(2, 2, 3, 4, None, "ann")], "id", "store", 7),
    "claim": (Claim(7, 10, 200, 1_000_001), 3),
    "ack_claims": None,
    "release_claims": 4,
    "bury_claimed": 2,
    "list_claims": [ClaimGroup("g", 3, 2, 1, [Claim(1, 2, 3, 4, 5), Claim(2, 2, 3, 4)])],
    "list_all_claims": [("q", ClaimGroup("g", 3, 2, 1, [Claim(1, 2, 3, 4)])), ("r", ClaimGroup("g"))],
    "list_failures": [FailureGroup("KeyError: 'x'", 4, AT, AT)],
    "upload": (3, 400),
    "commit_stages": Committed(5, True),
    "discard_stages": 2,
    "list_stages": [Stage(StageName("j", "b", "p", "a"), 1, 2, 3, 4, 5)],
    "list_queues": [QueueInfo("q", QueueSettings(max_receives=3), Counts(1, 2, 3, 4, 5), RedriveProgress(1, 2, True))],
    "configure": QueueInfo("q", QueueSettings(delay=2.5), Counts()),
    "get_queue": QueueInfo("q", QueueSettings(), Counts()),
    "delete_queue": None,
    "purge": 9,
    "redrive": RedriveProgress(1, 2, False),
    "history": HistoryPage(
        [HistoryRecord(4, Event(5, "sent", "q", "i", 1, 9, "me", 1.5, None, "x", b"1", "text/x"))], 4, 1, 9
    ),
    "list_consumers": [Consumer("c", 1, 2, 3, 4, codec.moment(5)), Consumer(None, 0, 0, 0, 0, codec.moment(6))],
    "stats": shapes.Stats(AT, [shapes.QueueStats("q", 1, 2, 3, 6, 9, AT, shapes.Rates(1, 2, 3, 4, 5, 6), None, 0)]),
    "trends": shapes.Trends(AT, 60.0, [shapes.QueueTrend("q", {"total": [1.0]})]),
    "whoami": shapes.Identity(False, "n", "i", ["*"], ["send"], True, "1"),
    "create_key": shapes.ApiKey("i", "n", ["send"], AT, "secret"),
    "list_keys": [shapes.ApiKey("i", "n", ["send"], AT)],
    "revoke_key": None,
    "backup": None,
}
SUBSCRIPTION = Subscription("s", "q", "a.*", {"h": ["x", {"prefix": "y"}]})
TOPIC = TopicInfo(
    "t", TopicSettings(dedup_window=5.0), [SUBSCRIPTION, Subscription("p", "p")], TopicRates(1.0, 0.5, 9.0)
)
RESULTS |= {
    "publish": Published(["i", "j"], 3),
    "upload_to_topic": (3, 400),
    "commit_to_topic": Committed(5, True),
    "discard_from_topic": 2,
    "list_topic_stages": [Stage(StageName("j", "b", "p", "a"), 1, 2, 3, 4, 5)],
    "list_topics": [TOPIC],
    "configure_topic": TOPIC,
    "get_topic": TOPIC,
    "delete_topic": None,
    "match_topic": [Match("s", "q", True), Match("p", "p", False, "why")],
    "subscribe": SUBSCRIPTION,
    "unsubscribe": None,
}
MESSAGES = {"receive", "peek", "get", "edit", "read_claim"}
"""They are read into records of another kind (see `test_client_codec.py`)."""


def test_every_reply_is_tested() -> None:
    assert RESULTS.keys() | MESSAGES == {operation.name for operation in OPERATIONS}


@pytest.mark.parametrize("operation", [one for one in OPERATIONS if one.name in RESULTS], ids=lambda one: one.name)
def test_what_a_server_answers_is_what_a_client_reads(operation: Operation[Any]) -> None:
    result = RESULTS[operation.name]
    reply = operation.reply.write(result, calls(operation)[0], "json", lambda: 0)
    assert isinstance(reply, operation.reply.shape) if operation.reply.shape else reply is None
    assert operation.reply.read(codec.encode_json(reply)) == result


@pytest.mark.parametrize("name", ["peek", "receive"])
def test_messages_are_read_as_they_were_written(name: str) -> None:
    reply = ops.BY_NAME[name].reply
    stored = Stored(MESSAGE, 2_000_000, 1, "receipt", "me", "why")
    result = Page([stored], "after", 7) if name == "peek" else Leased([stored], 1.5)
    found = reply.read(codec.encode_json(reply.write(result, None, "json", lambda: 0)))
    [back] = found.messages if isinstance(found, Page) else found
    if isinstance(found, Page):
        assert (found.next, found.looked) == ("after", 7)
    else:
        assert found.seconds == 1.5
    for field in Message.__struct_fields__:
        if field not in ("due_at", "lifetime"):
            assert getattr(back.message, field) == getattr(MESSAGE, field), field
    assert (back.visible_at, back.receives, back.consumer, back.error) == (2_000_000, 1, "me", "why")
    assert back.receipt == ("" if name == "peek" else "receipt")


def test_every_call_can_be_carried_out_with_the_fields_it_has() -> None:
    """Where no function stands between, a method of the broker takes exactly these fields, and what other callers in
    the process may ask for."""
    broker = Broker(open_store("memory:"))
    assert {operation.request for operation in OPERATIONS} <= dispatch.CALLS.keys()
    direct = {request: carry for request, carry in dispatch.CALLS.items() if "_method" in carry.__qualname__}
    assert len(direct) > 10
    for request, carry in direct.items():
        method = inspect.getclosurevars(carry).nonlocals["method"](broker)
        parameters = {name for name in inspect.signature(method).parameters if name not in ("many", "late", "forget")}
        assert {*request.__struct_fields__} == parameters, request


def test_the_settings_that_configure_takes_are_those_of_a_queue() -> None:
    settings = get_type_hints(QueueSettings)
    texts = Mapping[str, str | None]
    assert get_type_hints(QueueChanges) == settings | {"retry": Retry | RetryChanges, "tags": texts, "sqs": texts}
    assert get_type_hints(RetryChanges) == get_type_hints(Retry)
    assert not QueueChanges.__required_keys__


def test_every_request_has_a_row_but_for_what_no_wire_carries() -> None:
    requests = {
        one for one in vars(ops).values() if isinstance(one, type) and issubclass(one, Call) and one is not Call
    }
    assert requests - {operation.request for operation in OPERATIONS} == {ops.AckById}


def test_a_call_reads_only_its_own_word_for_success() -> None:
    """A proxy that mixes up replies is noticed."""
    acked = b'{"results":[{"id":"1","outcome":"acked"},{"id":"2","outcome":"stale"}]}'
    assert replies.outcomes("acked").read(acked) == ["done", "stale"]
    with pytest.raises(KeyError):
        replies.outcomes("released").read(acked)


def test_rows_are_unique() -> None:
    for column in ("name", "request", "command"):
        assert len({getattr(operation, column) for operation in OPERATIONS}) == len(OPERATIONS)
    assert len({(operation.method, operation.path) for operation in OPERATIONS}) == len(OPERATIONS)
    assert msgspec.json.schema_components([one.body.shape for one in OPERATIONS if one.body])


@pytest.mark.parametrize("format", ["json", "msgpack"])
@pytest.mark.parametrize(
    ("request_body", "field", "problem"),
    [
        (
            {"messages": [{"body": 1}, {"body": 1, "priority": "high"}]},
            "messages[1].priority",
            "'high' is not a whole number",
        ),
        ({"body": 1, "priority": 1.5}, "priority", "1.5 is not a whole number"),
        ({"body": 1, "delay": "5"}, "delay", "'5' is not a number of seconds, such as 1.5"),
        ({"body": 1, "group": 5}, "group", "5 is not text"),
        ({"body": 1, "headers": [1]}, "headers", "[1] is not an object"),
        ({"body": 1, "messages": 1}, "messages", "1 is not a list"),
        (
            {"body": 1, "deliver_at": "noon"},
            "deliver_at",
            "'noon' is not a moment with an offset from UTC, such as 2026-01-31T08:00:00Z",
        ),
        ([1], "request", "[1] is not an object"),
    ],
)
def test_the_error_for_a_wrong_type_has_the_field_its_value_and_what_it_should_be(
    request_body: object, field: str, problem: str, format: codec.Format
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec.Reader(shapes.SendBody).read(codec.encode(request_body, format), format)
    assert (caught.value.field, caught.value.text) == (field, f"{field}: {problem}")


@pytest.mark.parametrize(
    ("shape", "request_body", "text"),
    [
        (shapes.AckBody, {"leases": [{"id": "a"}]}, "leases[0].receipt is required"),
        (shapes.AckBody, {"leases": [], "lease": 1}, "lease: no such field; use leases"),
        (shapes.AckBody, {}, "leases is required"),
    ],
)
def test_the_error_for_an_unknown_field_has_those_that_there_are(shape: type, request_body: object, text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec.Reader(shape).read(codec.encode(request_body, "json"), "json")
    assert caught.value.text == text


@pytest.mark.parametrize(
    ("request_body", "field"), [({"bdy": 1}, "bdy"), ({"messages": [{"bdy": 1}]}, "messages[0].bdy")]
)
def test_an_unknown_field_of_a_message_is_answered_with_the_known_ones(request_body: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec.Reader(shapes.SendBody).read(codec.encode(request_body, "json"), "json")
    assert caught.value.text.startswith(f"{field}: no such field; use body, data, content_type, headers, priority, ")
    assert caught.value.text.endswith(", messages") is (field == "bdy")


def test_a_result_that_json_cannot_have_is_refused_with_its_place() -> None:
    unpack = ops.BY_NAME["ack"].body.unpack  # type: ignore[union-attr]
    packed = msgspec.msgpack.encode({"leases": [{"id": "i", "receipt": "r", "result": msgspec.msgpack.Ext(5, b"x")}]})
    body = msgspec.msgpack.decode(packed, type=shapes.AckBody)
    with pytest.raises(InvalidRequest, match="cannot be stored as JSON") as raised:
        unpack(body, "msgpack")
    assert raised.value.field == "leases[0].result"
