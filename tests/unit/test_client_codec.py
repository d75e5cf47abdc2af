"""What must hold on a wire so that whatever one client sends, every other can read."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import UNSET, Raw
from msgspec.msgpack import Ext

from miniq.api import codec, messages, replies, shapes
from miniq.api.plain import SendReader
from miniq.errors import InvalidRequest
from miniq.message import JSON, Draft, Message, PlainDrafts, Stored


@pytest.mark.parametrize("data", [b"{oops", b'1,"receipt":"x"', b"", b'"\xff"', b"[" * 100_000])
@pytest.mark.parametrize("content_type", [JSON, "application/vnd.x+json"])
@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_bytes_that_claim_to_be_json_must_be(data: bytes, content_type: str, format: codec.Format) -> None:
    """They would go out as they are, and no reader could read the answer they are in."""
    with pytest.raises(InvalidRequest) as caught:
        codec.body_of(UNSET, data, content_type, format, "messages[3].")
    assert caught.value.field == "messages[3].data"


@pytest.mark.parametrize(
    "raw",
    [msgspec.msgpack.encode({None: 1}), b"\x81\x91\x01\x01", msgspec.msgpack.encode(Ext(5, b"x")), b"\xa2\xff\xfe"],
)
@pytest.mark.parametrize("content_type", [None, "application/vnd.x+json", "text/plain"])
def test_messagepack_that_json_has_no_word_for_is_refused(raw: bytes, content_type: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        codec.body_of(Raw(raw), UNSET, content_type, "msgpack", "messages[3].")
    assert caught.value.field == "messages[3].body"


def test_json_may_come_as_bytes() -> None:
    assert codec.body_of(UNSET, b'{"a": 1}', JSON, "json") == (b'{"a": 1}', JSON)


@pytest.mark.parametrize("body", [b"1000000000000000000000000000000", b'{"a": [-9999999999999999999999]}'])
def test_a_number_that_messagepack_lacks_goes_out_as_its_json_text(body: bytes) -> None:
    stored = Stored(Message("id", "jobs", 0, 0, body), 1, 1, "receipt")
    [wire] = messages.wire_messages([stored], "msgpack")
    assert (wire.body, wire.data, wire.content_type) == (UNSET, body, JSON)
    assert codec.body_of(wire.body, wire.data, wire.content_type, "msgpack") == (body, JSON)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b'{"a":  [1.50]}', JSON),
        (b"[1,\n2]", "application/vnd.x+json; v=1"),
        ("grün\u2028".encode(), "text/plain"),
        (b"gr\xfcn", "text/plain; charset=latin-1"),
        (b"\xc3\xbc", "text/plain; charset=latin-1"),
        (b"\x00\xff", "application/octet-stream"),
        (b"\x00\xff", "image/png"),
        (b"", "application/octet-stream"),
    ],
)
def test_a_body_goes_there_and_back_to_the_byte(body: bytes, content_type: str) -> None:
    [sent] = messages.wire_drafts([Draft(body, content_type)])
    for format in ("json", "msgpack") if messages.best_format(sent) == "msgpack" else ("json",):
        read = codec.Reader(shapes.SendBody).read(codec.encode(sent, format), format)  # type: ignore[arg-type]
        draft = messages.draft_of(read, format)  # type: ignore[arg-type]
        assert draft == Draft(body, content_type)
    stored = Stored(Message("id", "jobs", 1, 1, body, content_type), 2, 1, "receipt")
    reply = codec.encode(shapes.MessagesReply(messages.wire_messages([stored], "json")), "json")
    [back] = replies.RECEIVED.read(reply)
    assert (back.message.body, back.message.content_type) == (body, content_type)
    assert (back.message.sent_at, back.visible_at, back.receipt) == (1, 2, "receipt")


def test_fields_of_a_newer_broker_are_passed_over() -> None:
    reply = b'{"messages": [{"id": "i", "queue": "q", "sent_at": "2026-01-02T03:04:05Z", "colour": [1],'
    reply += b' "visible_at": "2026-01-02T03:04:05.000006Z", "body": 1}], "more": {}}'
    [stored] = replies.RECEIVED.read(reply)
    assert (stored.message.body, stored.visible_at - stored.message.sent_at) == (b"1", 6)


@pytest.mark.parametrize("format", ["json", "msgpack"])
@pytest.mark.parametrize("count", [1, 3])
def test_plain_sends_are_read_without_a_record_for_each_message(format: codec.Format, count: int) -> None:
    one = {"body": "é"} if format == "json" else {"data": b"\xff"}
    raw = codec.encode(one if count == 1 else {"messages": [one] * count}, format)
    found = SendReader().read(raw, format)
    assert isinstance(found, PlainDrafts)
    expected = ['"é"'.encode()] if format == "json" else [b"\xff"]
    assert found.bodies == expected * count
    assert found.content_type == (JSON if format == "json" else codec.OCTETS)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (msgspec.msgpack.encode({"data": "text"}), "data"),
        (msgspec.msgpack.encode({"messages": [{"data": b""}, {"data": 1}]}), "messages[1].data"),
        (msgspec.msgpack.encode({"messages": [{"data": b"", "colour": 1}]}), "messages[0].colour"),
        (msgspec.msgpack.encode({"data": b"1234"})[:-2], "request"),
        (b"\x81\xa8messages\x91\x81\xa2\xef\x31\xc4\x01x", "request"),
    ],
)
def test_a_wrong_send_in_messagepack_is_refused_with_the_field_named(raw: bytes, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SendReader().read(raw, "msgpack")
    assert caught.value.field == field


def test_bytes_with_a_word_on_their_type_are_no_plain_ones() -> None:
    found = SendReader().read(msgspec.msgpack.encode({"data": b"x", "content_type": "image/png"}), "msgpack")
    assert isinstance(found, shapes.SendBody)
    assert (found.data, found.content_type) == (b"x", "image/png")
