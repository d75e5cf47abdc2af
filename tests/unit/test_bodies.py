"""What a body becomes on its way out, and what it is on its way in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniq.client.bodies import BYTES, decode, draft, drafts, encode, is_json
from miniq.errors import InvalidRequest
from miniq.message import JSON, Draft

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(json_values)
def test_a_json_value_comes_back_as_it_was(value: Any) -> None:
    data, content_type = encode(value, None)
    assert content_type == JSON
    assert json.loads(data) == value
    assert decode(data, content_type) == value


@given(st.binary())
def test_bytes_come_back_as_they_were(data: bytes) -> None:
    assert encode(data, None) == (data, BYTES)
    assert decode(data, BYTES) == data


@given(st.text())
def test_text_comes_back_as_it_was(text: str) -> None:
    assert decode(*encode(text, "text/plain")) == text


@pytest.mark.parametrize("body", [bytearray(b"ab"), memoryview(b"ab")])
def test_other_kinds_of_bytes_are_bytes(body: Any) -> None:
    assert encode(body, None) == (b"ab", BYTES)
    assert drafts([body]) == [Draft(b"ab", BYTES)]


def test_dataclasses_and_dates_are_written_as_json() -> None:
    @dataclass
    class Point:
        x: int
        at: datetime

    data, _ = encode(Point(1, datetime(2026, 1, 2, tzinfo=UTC)), None)
    assert json.loads(data) == {"x": 1, "at": "2026-01-02T00:00:00Z"}


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/problem+json", True),
        ("text/json-like", False),
        ("application/octet-stream", False),
    ],
)
def test_json_is_known_by_its_media_type(content_type: str, expected: bool) -> None:
    assert is_json(content_type) is expected


@pytest.mark.parametrize(
    ("data", "content_type"),
    [
        (b"{", JSON),
        (b"", JSON),
        (b'"\xff"', JSON),
        (b"[" * 100_000, JSON),
        (b"\xff", "text/plain"),
        (b"x", "text/plain; charset=klingon"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_told_and_its_bytes_are_named(data: bytes, content_type: str) -> None:
    with pytest.raises(InvalidRequest, match="read `data`") as caught:
        decode(data, content_type)
    assert caught.value.field == "body"


def test_text_that_its_character_set_lacks_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="latin-1"):
        encode("€", "text/plain; charset=latin-1")


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(InvalidRequest, match="not a JSON value"):
        encode(value, None)
    while value:  # taken apart from outside, because its own end would recurse as deep
        value = value[0]


def test_a_draft_takes_what_send_takes() -> None:
    made = draft([1], headers={"a": "b"}, priority=1, delay=2, ttl=3, key="k", recipient="r", group="g", dedup_id="d")
    assert made == Draft(b"[1]", JSON, {"a": "b"}, 1, 2, 3, "k", "r", "g", "d")
    assert drafts([made, b"x", "x"]) == [made, Draft(b"x", BYTES), Draft(b'"x"')]


def test_a_draft_that_says_json_must_be_json() -> None:
    """It would spoil the answers of everybody who receives it over HTTP."""
    with pytest.raises(InvalidRequest) as error:
        drafts([Draft(b"{")])
    assert error.value.field == "body"
    assert drafts([Draft(b"{", "text/plain")]) == [Draft(b"{", "text/plain")]
