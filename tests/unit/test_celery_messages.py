"""Messages, names, arguments and addresses of Celery on MiniQ: pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from miniq.celery import envelope, names
from miniq.celery.address import address_of
from miniq.celery.arguments import read
from miniq.celery.summary import task_of
from miniq.celery.transport import _lease_of as lease_of
from miniq.client._sync.message import Message
from miniq.errors import InvalidRequest
from miniq.message import NAME, Draft, Stored
from miniq.message import Message as Record

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)


def prepared(body: Any = b"[[], {}, {}]", kind: str = "application/json", **more: Any) -> dict[str, Any]:
    return {
        "body": body,
        "content-type": kind,
        "content-encoding": more.pop("encoding", "utf-8"),
        "headers": more.pop("headers", {}),
        "properties": {"delivery_info": {}, "priority": 0, **more},
    }


def received(draft: Draft, receives: int = 1, topic: str | None = None) -> Message:
    record = Record(
        "01a1", "q", 0, 0, draft.body, draft.content_type, draft.priority, draft.headers, key=draft.key, topic=topic
    )
    return Message(SimpleNamespace(), Stored(record, 0, receives, "r"))  # type: ignore[arg-type]


def back(message: dict[str, Any], exchange: str = "", key: str = "q", receives: int = 1) -> dict[str, Any]:
    return envelope.payload(received(envelope.draft(message, exchange, key, NOW), receives), "q")


@pytest.mark.parametrize(
    "value",
    [
        *("", "text", "1", "-", "null", "true", "NaN", '"quoted"', "[1]", "{}", "2026-01-01T00:00:00Z", "ä€😀"),
        *(0, 1.5, True, None, [None, 60], {"a": {"b": []}}),
    ],
    ids=repr,
)
def test_the_value_of_a_header_comes_back_as_it_was(value: Any) -> None:
    seen = back(prepared(headers={"task": "t", "id": "i", "mine": value}))["headers"]["mine"]
    assert (seen, type(seen)) == (value, type(value))


@pytest.mark.parametrize(("given", "id"), [("5", "5"), ("null", "null"), ("[1]", "[1]"), ('"5"', "5"), ("", "01a1")])
def test_task_and_id_of_a_task_are_text(given: str, id: str) -> None:
    seen = envelope.payload(received(Draft(b"[[], {}, {}]", "application/json", {"task": "7", "id": given})), "q")
    assert (seen["headers"]["task"], seen["headers"]["id"]) == ("7", id)


@pytest.mark.parametrize(
    ("body", "kind", "encoding"),
    [
        (b"[[1], {}, {}]", "application/json", "utf-8"),
        ("[[NaN], {}, {}]", "application/json", "utf-8"),
        (b"\x1f\x8b compressed", "application/json", "utf-8"),
        (b"\x80pickle", "application/x-python-serialize", "binary"),
        ("text", "text/plain", "utf-8"),
        (b"\x00\xff", "application/data", "binary"),
        (b"", "application/json", "utf-8"),
    ],
)
def test_a_body_comes_back_byte_for_byte(body: Any, kind: str, encoding: str) -> None:
    seen = back(prepared(body, kind, encoding=encoding))
    assert seen["body"] == (body.encode() if isinstance(body, str) else body)
    assert (seen["content_type"], seen["content_encoding"]) == (kind, encoding)


def test_json_stays_json_for_other_programs() -> None:
    draft = envelope.draft(prepared(headers={"task": "t", "id": "i"}), "", "q", NOW)
    assert (draft.body, draft.content_type, draft.key) == (b"[[], {}, {}]", "application/json", "q")
    assert draft.headers == {"task": "t", "id": "i"}


@pytest.mark.parametrize(
    "headers",
    [{f"h{n}": "x" for n in range(70)}, {"long": "x" * 5000}, {"amqp-reply-to": "mine"}, {"": "empty"}],
    ids=["many", "long", "like a property", "no name"],
)
def test_headers_that_do_not_fit_come_back_all_the_same(headers: dict[str, Any]) -> None:
    message = prepared(headers={"task": "t", "id": "i", **headers}, reply_to="there")
    draft = envelope.draft(message, "", "q", NOW)
    assert draft.headers == {"task": "t", "id": "i"}
    seen = back(message)
    assert seen["headers"] == message["headers"]
    assert (seen["body"], seen["properties"]["reply_to"]) == (b"[[], {}, {}]", "there")


def test_properties_find_their_places() -> None:
    message = prepared(
        headers={"task": "t", "id": "i"}, correlation_id="i", reply_to="r", expiration="1500", delivery_mode=1
    ) | {"properties": {"priority": 12, "correlation_id": "i", "reply_to": "r", "expiration": "1500", "x_y": 3}}
    draft = envelope.draft(message, "orders", "a.b", NOW)
    assert (draft.priority, draft.ttl, draft.key) == (9, 1.5, "a.b")
    seen = back(message, "orders", "a.b", receives=2)
    properties = seen["properties"]
    assert (properties["correlation_id"], properties["reply_to"], properties["x_y"]) == ("i", "r", 3)
    assert seen["delivery_info"] == {"exchange": "orders", "routing_key": "a.b", "redelivered": True}


def test_a_task_without_an_id_has_that_of_its_message() -> None:
    seen = envelope.payload(received(Draft(b"[[], {}, {}]", headers={"task": "t"})), "q")
    assert (seen["headers"]["id"], seen["properties"]["correlation_id"]) == ("01a1", "01a1")


@pytest.mark.parametrize(
    ("eta", "due"),
    [
        ("2026-11-18T13:00:00+00:00", NOW + timedelta(hours=1)),
        ("2026-11-18T14:00:00+01:00", NOW + timedelta(hours=1)),
        ("2026-11-18T13:00:00", NOW + timedelta(hours=1)),
        ("2026-11-18T11:00:00+00:00", None),
        ("2027-11-18T12:00:00+00:00", NOW + timedelta(days=7)),
        ("soon", None),
        (None, None),
        (5, None),
    ],
)
def test_the_broker_holds_a_task_until_its_eta(eta: Any, due: datetime | None) -> None:
    assert envelope.draft(prepared(headers={"task": "t", "eta": eta}), "", "q", NOW).deliver_at == due


def test_a_task_that_is_due_later_than_the_broker_held_it_waits_again() -> None:
    eta = NOW + timedelta(days=10)
    message = received(envelope.draft(prepared(headers={"task": "t", "eta": eta.isoformat()}), "", "q", NOW))
    assert envelope.due_again(message, NOW + timedelta(days=7)) == eta
    assert envelope.due_again(message, eta - timedelta(seconds=30)) is None
    assert envelope.due_again(received(Draft(b"1")), NOW) is None


def test_wrong_properties_are_refused_by_name() -> None:
    for wrong in ({"priority": "high"}, {"expiration": "soon"}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            envelope.draft(prepared() | {"properties": wrong}, "", "q", NOW)


def test_names_that_are_valid_stay_and_others_never_meet() -> None:
    assert [names.native(name) for name in ("celery", "a.b-c_d")] == ["celery", "a.b-c_d"]
    odd = ["celery@host", "celery-host", "celery host", "celery/host", ".", "..", "x" * 200, "x" * 201, "ä"]
    made = [names.native(name) for name in odd]
    assert len(set(made)) == len(odd)
    assert all(NAME.fullmatch(f"{name}.dead") or name == "celery-host" for name in made)
    assert names.subscription("q", "a") != names.subscription("q", "b")


def test_arguments_become_settings() -> None:
    given = {"x-message-ttl": 1500, "x-max-priority": 10, "x-queue-type": "quorum", "x-delivery-limit": 4}
    assert read("q", given).settings == {"retention": 1.5, "max_receives": 5}
    full = {"x-max-length": 5, "x-max-length-bytes": 6, "x-overflow": "reject-publish"}
    assert read("q", full).settings == {"max_length": 5, "max_bytes": 6}
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "lost"}
    assert read("q", dead).settings == {"dead_letter_queue": "lost"}
    assert read("q", {"x-expires": 60_000}) == ({"retention": 300.0}, 60.0)
    assert read("q", None) == ({}, None)


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"x-max-length": 5}, "'x-overflow': 'reject-publish'"),
        ({"x-overflow": "drop-head"}, "reject-publish"),
        ({"x-max-priority": 255}, "priorities 0 to 9"),
        ({"x-dead-letter-exchange": "dlx"}, "not to an exchange"),
        ({"x-dead-letter-exchange": ""}, "x-dead-letter-routing-key"),
        ({"x-queue-type": "stream"}, "'classic' or 'quorum'"),
        ({"x-message-ttl": "1 s"}, "whole number"),
        ({"x-expires": 0}, "whole number from 1"),
        ({"x-single-active-consumer": True}, "no such argument"),
    ],
)
def test_arguments_without_an_equivalent_are_refused(arguments: dict[str, Any], advice: str) -> None:
    with pytest.raises(InvalidRequest, match=advice) as refused:
        read("jobs", arguments)
    assert "'jobs'" in refused.value.text


def connection(**parts: Any) -> SimpleNamespace:
    given = {"hostname": "h", "port": None, "userid": None, "password": None, "virtual_host": "/", "ssl": False}
    return SimpleNamespace(**(given | {"transport_options": {}} | parts))


def test_a_url_becomes_an_address() -> None:
    assert address_of(connection(), False)[:2] == ("http://h:5000", {})
    assert address_of(connection(port=7, password="k"), True)[:2] == ("https://h:7", {"api_key": "k"})
    assert address_of(connection(hostname="::1", virtual_host="a/b"), False).url == "http://[::1]:5000/a/b"
    assert address_of(connection(hostname="https://:k%40@x:1/p"), False)[:2] == ("https://x:1/p", {"api_key": "k@"})
    assert address_of(connection(hostname="folder:///a/b"), False) == ("rocksdb:/a/b", {}, True)
    options = {"ca": "x", "lease": 5, "visibility_timeout": 3600}
    assert address_of(connection(transport_options=options), True).options == {"ca": "x"}
    tls = {"ca_certs": "a", "certfile": "b", "keyfile": "c", "cert_reqs": "CERT_NONE"}
    found = address_of(connection(ssl=tls), False)
    expected = {"ca": "a", "client_cert": "b", "client_key": "c", "verify": False}
    assert (found.url, found.options) == ("https://h:5000", expected)


@pytest.mark.parametrize("host", ["folder://data", "folder://", "ftp://x"])
def test_a_wrong_url_is_refused(host: str) -> None:
    with pytest.raises(InvalidRequest, match="use m"):
        address_of(connection(hostname=host), False)


@pytest.mark.parametrize(
    ("headers", "body", "task"),
    [
        ({"task": "t", "argsrepr": "(1, 'a')", "kwargsrepr": '"{}"'}, b"", ("t", "i", "1, 'a'", None, 0)),
        ({"task": "t", "argsrepr": "(1,)", "kwargsrepr": "{'b': 2}"}, b"", ("t", "i", "1, **{'b': 2}", None, 0)),
        ({"task": "t", "id": "x", "eta": "2026-01-01", "retries": "3"}, b"[[1], {}]", ("t", "x", "1", "2026-01-01", 3)),
        ({"task": "t", "eta": "null"}, b'[["a"], {"b": null}, {}]', ("t", "i", "'a', b=None", None, 0)),
        ({"task": "t", "eta": "None", "retries": "true"}, b"", ("t", "i", "", None, 0)),
        ({"task": "t", "retries": "many"}, b"\xff", ("t", "i", "", None, 0)),
        ({"other": "x"}, b"[[], {}, {}]", None),
    ],
)
def test_a_message_tells_its_task(headers: dict[str, str], body: bytes, task: Any) -> None:
    assert task_of("i", headers, body) == task


def test_long_arguments_are_cut() -> None:
    found = task_of("i", {"task": "t", "argsrepr": f"({'9' * 500},)"}, b"")
    assert found is not None
    assert (len(found.args), found.args[-1]) == (60, "…")


def test_a_misspelt_option_of_the_transport_is_refused_and_those_of_others_are_ignored() -> None:
    assert lease_of({"lease": 3, "visibility_timeout": 5, "polling_interval": 1, "max_retries": 2}) == 3
    with pytest.raises(InvalidRequest, match="there is no option 'lese'; use 'lease'"):
        lease_of({"lese": 3})
