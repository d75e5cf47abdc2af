"""What a body becomes on its way out, and what it is on its way in."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniq.api.codec import OCTETS, is_json
from miniq.client.bodies import decode, draft, drafts, encode, encode_result
from miniq.errors import InvalidRequest
from miniq.json_values import DEPTH
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
    assert encode(data, None) == (data, OCTETS)
    assert decode(data, OCTETS) == data


@given(st.text())
def test_text_comes_back_as_it_was(text: str) -> None:
    assert decode(*encode(text, "text/plain")) == text


@dataclass
class Price:
    amount: float


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (math.nan, "body"),
        (-math.inf, "body"),
        ([1, None, math.inf], "body[2]"),
        ({"a": None, "b": {"c": (0.5, math.nan)}}, "body.b.c[1]"),
        (Price(math.nan), "body.amount"),
        ({"prices": [Price(1), Price(math.inf)]}, "body.prices[1].amount"),
    ],
)
def test_numbers_that_json_lacks_are_refused_and_named(body: Any, field: str) -> None:
    for call in (lambda: encode(body, None), lambda: draft(body), lambda: encode(body, "application/x+json")):
        with pytest.raises(InvalidRequest, match="NaN and infinity") as caught:
            call()
        assert caught.value.field == field
    with pytest.raises(InvalidRequest) as caught:
        drafts([None, {"a": None}, body])
    assert caught.value.field == f"messages[2].{field}"


def test_null_is_a_value_like_any_other() -> None:
    assert encode({"a": [None, "null", 1.5]}, None)[0] == b'{"a":[null,"null",1.5]}'
    assert [one.body for one in drafts([None, {"a": None}])] == [b"null", b'{"a":null}']


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC), "2026-01-02T03:04:05.000006Z"),
        (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=2))), "2026-01-02T00:00:00+02:00"),
        (datetime(2026, 1, 2), "2026-01-02T00:00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (time(3, 4), "03:04:00"),
        (timedelta(days=1, seconds=2.5), "P1DT2.5S"),
        (Decimal("12.50"), "12.50"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Colour.RED, "red"),
        (b"\xff", "/w=="),
        (Price(1.5), {"amount": 1.5}),
        ((1, 2), [1, 2]),
        ({7}, [7]),
        ({1: 2}, {"1": 2}),
    ],
)
def test_values_that_json_has_no_word_for_are_written_as_documented(value: Any, written: Any) -> None:
    assert json.loads(encode([value], None)[0]) == [written]


@pytest.mark.parametrize("body", [bytearray(b"ab"), memoryview(b"ab")])
def test_other_kinds_of_bytes_are_bytes(body: Any) -> None:
    assert encode(body, None) == (b"ab", OCTETS)
    assert drafts([body]) == [Draft(b"ab", OCTETS)]


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


@pytest.mark.parametrize("depth", [DEPTH + 1, 100_000])
def test_a_value_that_is_nested_too_deeply_is_refused(depth: int) -> None:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    for function, field in ((lambda value: encode(value, None), "body"), (encode_result, "result")):
        with pytest.raises(InvalidRequest, match=f"^{field}: nested more than {DEPTH} levels deep$"):
            function(value)
    while value:  # taken apart from outside, because its own end would recurse as deep
        value = value[0]


def test_a_draft_takes_what_send_takes() -> None:
    made = draft([1], headers={"a": "b"}, priority=1, delay=2, ttl=3, key="k", recipient="r", group="g", dedup_id="d")
    assert made == Draft(b"[1]", JSON, {"a": "b"}, 1, 2, 3, "k", "r", "g", "d")
    assert drafts([made, b"x", "x"]) == [made, Draft(b"x", OCTETS), Draft(b'"x"')]


def test_a_draft_that_says_json_must_be_json() -> None:
    """It would spoil the answers of everybody who receives it over HTTP."""
    with pytest.raises(InvalidRequest) as error:
        drafts([Draft(b"{")])
    assert error.value.field == "body"
    assert drafts([Draft(b"{", "text/plain")]) == [Draft(b"{", "text/plain")]


def test_a_result_that_is_no_number_is_told_as_what_was_returned() -> None:
    with pytest.raises(InvalidRequest, match="result: NaN and infinity are not JSON values; use null or text"):
        encode_result(float("nan"))
