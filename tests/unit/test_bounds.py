"""The number of values in a request is bounded before they are built."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest

from miniq.api import bounds
from miniq.api.codec import Reader, body_of
from miniq.api.messages import drafts_of
from miniq.api.plain import SendReader
from miniq.api.shapes import EditBody, WireDraft
from miniq.errors import InvalidRequest, TooLarge
from miniq.server.operations import READERS


def packed(count: int, value: bytes) -> bytes:
    """An array in MessagePack."""
    return b"\xdd" + struct.pack(">I", count) + value * count


MANY = bounds.VALUES + 1
FLOODS = {
    "messages": ("send", "json", b'{"messages":[' + b"{}," * MANY + b"{}]}"),
    "messages in MessagePack": ("send", "msgpack", b"\x81\xa8messages" + packed(MANY, b"\x80")),
    "plain messages": ("send", "json", b'{"messages":[' + b'{"body":1},' * MANY + b'{"body":1}]}'),
    "uploaded messages": ("upload", "json", b'{"messages":[' + b"{}," * MANY + b"{}]}"),
    "headers": ("send", "json", b'{"body":1,"headers":{' + b'"a":"",' * MANY + b'"b":""}}'),
    "headers that a second field replaces": (
        "send", "json", b'{"body":1,"headers":{' + b'"a":"",' * MANY + b'"b":""},"headers":{}}',
    ),
    "headers of an edit": ("edit", "json", b'{"headers":{' + b'"a":"",' * MANY + b'"b":""}}'),
    "leases": ("ack", "json", b'{"leases":[' + b'{"id":"","receipt":""},' * MANY + b"]}"),
    "values of settings": ("configure", "json", b'{"x":[' + b"[]," * MANY + b"[]]}"),
    "values of settings in MessagePack": ("configure", "msgpack", b"\x81\xa1x" + packed(MANY, b"\x90")),
    "strings in MessagePack": ("redrive", "msgpack", b"\x81\xa3ids" + packed(MANY, b"\xa2ab")),
}  # fmt: skip


@pytest.mark.parametrize("flood", FLOODS)
def test_too_many_values_are_refused_before_they_are_built(flood: str) -> None:
    operation, format, raw = FLOODS[flood]
    with pytest.raises(TooLarge, match="request: more than 400000 values"):
        READERS[operation].read(raw, format)  # type: ignore[arg-type]


def test_a_json_body_may_have_any_number_of_values() -> None:
    body = b"[" + b"1," * MANY + b"1]"
    read: Any = SendReader().read(b'{"messages":[{"body":%b}]}' % body, "json")
    assert read.bodies == [body]
    assert bytes(Reader(EditBody).read(b'{"priority":1,"body":%b}' % body, "json").body) == body


def test_a_packed_body_that_fits_into_a_mebibyte_of_json_is_accepted_and_a_larger_one_is_not_built() -> None:
    values = 524_287
    body, _ = body_of(msgspec.Raw(packed(values, b"\x00")), msgspec.UNSET, None, "msgpack")
    assert len(body) == 1024 * 1024 - 1
    with pytest.raises(TooLarge, match="body: more than 600000 values"):
        body_of(msgspec.Raw(packed(700_000, b"\x80")), msgspec.UNSET, None, "msgpack")


@pytest.mark.parametrize(
    "value",
    [
        None, True, 1, -1, 200, -200, 70_000, -70_000, 2**40, -(2**40), 1.5, "", "a", "a" * 40, "a" * 300, "a" * 70_000,
        b"", b"a" * 300, b"a" * 70_000, [], [1] * 20, [1] * 70_000, {}, {str(n): n for n in range(20)},
        *(msgspec.msgpack.Ext(1, b"a" * size) for size in (1, 2, 3, 4, 8, 16, 300, 70_000)),
    ],
    ids=lambda value: f"{value!r:.20}",
)  # fmt: skip
def test_every_kind_of_packed_value_is_counted(value: Any) -> None:
    def count(value: Any) -> int:
        if isinstance(value, list):
            return 1 + sum(map(count, value))
        return 1 + 2 * len(value) if isinstance(value, dict) else 1

    raw = msgspec.msgpack.encode([value] * 3)
    counted = count([value] * 3)
    padding = b"\xc4\xff" + b"\x00" * 255  # so that the text is longer than the number of its values
    assert not bounds._exceeds(raw + padding, counted + 1)
    assert bounds._exceeds(raw + padding, counted)


def test_invalid_utf8_is_found_wherever_it_is() -> None:
    text = "é".encode() * 100_000
    bounds.check_text(text)
    for at in (0, 65_536, len(text) - 2):
        with pytest.raises(InvalidRequest, match=f"not UTF-8 at byte {at}"):
            Reader(dict[str, Any]).decode(text[:at] + b"\xff" + text[at:], "json")


def test_packed_bodies_of_one_request_do_not_become_much_larger_in_json() -> None:
    """A nil is one byte, a null is five with its comma."""
    wires = [WireDraft(msgspec.Raw(packed(14_000, b"\xc0")))] * 1000
    with pytest.raises(TooLarge, match="messages: more than 33554432 bytes as JSON; split it"):
        drafts_of(wires, "msgpack")
    assert len(drafts_of(wires[:400], "msgpack")) == 400
