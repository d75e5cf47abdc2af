"""Filters of subscriptions, as a table of cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from miniq.broker.filters import (
    CONDITIONS,
    ELEMENTS,
    FILTER_BYTES,
    NAMES,
    BodyValues,
    Values,
    compile_filter,
    number_of,
)
from miniq.errors import InvalidRequest, TooLarge

CASES: list[tuple[dict[str, Any], dict[str, str], bool]] = [
    # Exact
    ({"store": ["berlin"]}, {"store": "berlin"}, True),
    ({"store": ["berlin"]}, {"store": "Berlin"}, False),
    ({"store": ["berlin"]}, {"store": "berlin-2"}, False),
    ({"store": ["berlin"]}, {}, False),
    ({"store": ["berlin", "paris"]}, {"store": "paris", "other": "x"}, True),
    ({"store": ["berlin"], "event": ["paid"]}, {"store": "berlin", "event": "paid"}, True),
    ({"store": ["berlin"], "event": ["paid"]}, {"store": "berlin", "event": "sent"}, False),
    ({"store": ["berlin"], "event": ["paid"]}, {"store": "berlin"}, False),
    ({"test": [True]}, {"test": "true"}, True),
    ({"test": [False]}, {"test": "true"}, False),
    ({"store": [""]}, {"store": ""}, True),
    # Numbers
    ({"total": [100]}, {"total": "100"}, True),
    ({"total": [100]}, {"total": "100.0"}, True),
    ({"total": [100]}, {"total": "1e2"}, True),
    ({"total": [100]}, {"total": "101"}, False),
    ({"total": [100]}, {"total": "a hundred"}, False),
    ({"total": [2**53 + 1]}, {"total": str(2**53)}, False),
    ({"total": [{"numeric": ["=", 301.5]}]}, {"total": "301.5"}, True),
    ({"total": [{"numeric": ["=", 301.5]}]}, {"total": "301.50"}, True),
    ({"total": [{"numeric": [">", 100]}]}, {"total": "100"}, False),
    ({"total": [{"numeric": [">", 100]}]}, {"total": "100.01"}, True),
    ({"total": [{"numeric": [">=", 100]}]}, {"total": "100"}, True),
    ({"total": [{"numeric": ["<", 0]}]}, {"total": "-1"}, True),
    ({"total": [{"numeric": ["<=", 0]}]}, {"total": "0.1"}, False),
    ({"total": [{"numeric": [">", 0, "<=", 150]}]}, {"total": "150"}, True),
    ({"total": [{"numeric": [">", 0, "<=", 150]}]}, {"total": "0"}, False),
    ({"total": [{"numeric": [">", 0, "<=", 150]}]}, {"total": "151"}, False),
    ({"total": [{"numeric": [">", 0]}]}, {"total": "1_000"}, False),
    ({"total": [{"numeric": [">", 0]}]}, {"total": "nan"}, False),
    ({"total": [{"numeric": [">", 0]}]}, {"total": "inf"}, False),
    ({"total": [{"numeric": [">", 0]}]}, {"total": "\u0663"}, False),
    ({"total": [{"numeric": [">", 0]}]}, {"total": "1e999"}, False),
    ({"total": [{"numeric": [">", 0]}]}, {"total": ""}, False),
    ({"total": [{"numeric": [">", 0]}]}, {}, False),
    # Prefix, suffix, case
    ({"store": [{"prefix": "ber"}]}, {"store": "berlin"}, True),
    ({"store": [{"prefix": "ber"}]}, {"store": "Berlin"}, False),
    ({"store": [{"prefix": "ber"}]}, {}, False),
    ({"file": [{"suffix": ".png"}, {"suffix": ".jpg"}]}, {"file": "a.jpg"}, True),
    ({"file": [{"suffix": ".png"}]}, {"file": "a.png.txt"}, False),
    ({"store": [{"equals-ignore-case": "Berlin"}]}, {"store": "bERLIN"}, True),
    ({"store": [{"equals-ignore-case": "Berlin"}]}, {"store": "bERLIN2"}, False),
    # Anything but
    ({"event": [{"anything-but": "test"}]}, {"event": "paid"}, True),
    ({"event": [{"anything-but": "test"}]}, {"event": "test"}, False),
    ({"event": [{"anything-but": "test"}]}, {}, False),
    ({"event": [{"anything-but": ["test", "drill"]}]}, {"event": "drill"}, False),
    ({"event": [{"anything-but": ["test", "drill"]}]}, {"event": "paid"}, True),
    ({"total": [{"anything-but": [100, 500]}]}, {"total": "100.0"}, False),
    ({"total": [{"anything-but": [100, 500]}]}, {"total": "101"}, True),
    ({"total": [{"anything-but": 100}]}, {"total": "many"}, True),
    ({"event": [{"anything-but": {"prefix": "order-"}}]}, {"event": "order-paid"}, False),
    ({"event": [{"anything-but": {"prefix": "order-"}}]}, {"event": "user-made"}, True),
    ({"event": [{"anything-but": {"prefix": "order-"}}]}, {}, False),
    ({"event": [{"anything-but": {"prefix": ["a", "b"]}}]}, {"event": "bcd"}, False),
    ({"file": [{"anything-but": {"suffix": ".tmp"}}]}, {"file": "a.tmp"}, False),
    ({"file": [{"anything-but": {"suffix": ".tmp"}}]}, {"file": "a.txt"}, True),
    ({"file": [{"anything-but": {"equals-ignore-case": "NO"}}]}, {"file": "no"}, False),
    ({"event": ["test", {"anything-but": "test"}]}, {"event": "test"}, True),
    # Exists
    ({"store": [{"exists": True}]}, {"store": ""}, True),
    ({"store": [{"exists": True}]}, {"other": "x"}, False),
    ({"store": [{"exists": False}]}, {"other": "x"}, True),
    ({"store": [{"exists": False}]}, {"store": "x"}, False),
    ({"store": [{"exists": False}, "berlin"]}, {"store": "berlin"}, True),
    ({"store": [{"exists": False}, "berlin"]}, {}, True),
    # Addresses
    ({"ip": [{"cidr": "10.0.0.0/24"}]}, {"ip": "10.0.0.255"}, True),
    ({"ip": [{"cidr": "10.0.0.0/24"}]}, {"ip": "10.0.1.1"}, False),
    ({"ip": [{"cidr": "10.0.0.0/24"}]}, {"ip": "ten"}, False),
    ({"ip": [{"cidr": "2001:db8::/32"}]}, {"ip": "2001:db8::1"}, True),
    ({"ip": [{"cidr": "2001:db8::/32"}]}, {"ip": "10.0.0.1"}, False),
    # One of several
    ({"$or": [{"store": ["berlin"]}, {"total": [{"numeric": [">", 100]}]}]}, {"total": "101"}, True),
    ({"$or": [{"store": ["berlin"]}, {"total": [{"numeric": [">", 100]}]}]}, {"total": "99"}, False),
    ({"$or": [{"a": ["1"]}, {"b": ["1"]}], "c": ["1"]}, {"a": "1"}, False),
    ({"$or": [{"a": ["1"]}, {"b": ["1"]}], "c": ["1"]}, {"b": "1", "c": "1"}, True),
    ({"$or": [{"a": ["1"], "b": ["1"]}, {"$or": [{"c": ["1"]}, {"d": ["1"]}]}]}, {"d": "1"}, True),
    ({"$or": [{"a": ["1"], "b": ["1"]}, {"$or": [{"c": ["1"]}, {"d": ["1"]}]}]}, {"a": "1"}, False),
]


@pytest.mark.parametrize(("policy", "headers", "expected"), CASES)
def test_filter_matches_as_the_grammar_says(policy: dict[str, Any], headers: dict[str, str], expected: bool) -> None:
    assert compile_filter(policy).matches(Values(headers)) is expected


BODIES: list[tuple[dict[str, Any], Any, bool]] = [
    ({"a": ["x"]}, {"a": "x"}, True),
    ({"a": ["x"]}, {"a": ["y", "x"]}, True),
    ({"a": ["x"]}, {"a": ["y", ["x"]]}, True),
    ({"a": ["x"]}, {"a": {"x": "x"}}, False),
    ({"a": {"b": ["x"]}}, {"a": {"b": "x"}}, True),
    ({"a": {"b": ["x"]}}, {"a": [{"c": 1}, {"b": "x"}]}, True),
    ({"a": {"b": ["x"], "c": [1]}}, {"a": {"b": "x"}}, False),
    ({"a": {"$or": [{"b": ["x"]}, {"c": [1]}]}}, {"a": {"c": 1.0}}, True),
    # Values have types
    ({"a": [1]}, {"a": "1"}, False),
    ({"a": ["1"]}, {"a": 1}, False),
    ({"a": [True]}, {"a": "true"}, False),
    ({"a": [True]}, {"a": True}, True),
    ({"a": [True]}, {"a": 1}, False),
    ({"a": [1]}, {"a": True}, False),
    ({"a": [None]}, {"a": None}, True),
    ({"a": [None]}, {}, False),
    ({"a": [{"suffix": "true"}]}, {"a": True}, False),
    ({"a": [{"numeric": [">", 1]}]}, {"a": 2}, True),
    ({"a": [{"numeric": [">", 1]}]}, {"a": "2"}, False),
    # Exists, anything but
    ({"a": [{"exists": True}]}, {"a": None}, True),
    ({"a": [{"exists": False}]}, {"b": 1}, True),
    ({"a": {"b": [{"exists": False}]}}, {"a": 1}, True),
    ({"a": [{"anything-but": ["x"]}]}, {"a": ["x", "y"]}, True),
    ({"a": [{"anything-but": ["x"]}]}, {"a": ["x"]}, False),
    ({"a": [{"anything-but": [None, True, 1]}]}, {"a": None}, False),
    ({"a": [{"anything-but": [None, True, 1]}]}, {"a": 2}, True),
    ({"a": [{"cidr": "10.0.0.0/8"}]}, {"a": "10.1.1.1"}, True),
]


@pytest.mark.parametrize(("policy", "body", "expected"), BODIES)
def test_filter_over_a_body_matches_by_types_and_paths(policy: dict[str, Any], body: Any, expected: bool) -> None:
    assert compile_filter(policy, "body").matches(BodyValues(json.dumps(body).encode())) is expected


def test_of_a_long_list_only_so_many_elements_are_tested() -> None:
    test = compile_filter({"a": ["x"]}, "body").matches
    assert test(BodyValues(json.dumps({"a": [0] * (ELEMENTS - 1) + ["x"]}).encode()))
    assert not test(BodyValues(json.dumps({"a": [0] * ELEMENTS + ["x"]}).encode()))
    assert not BodyValues(b"[" * 100_000).is_object


def test_one_element_of_a_header_that_is_an_array_must_match() -> None:
    headers = {"a": '["x", "y", 1, true]', "AWS.DataType.a": "String.Array", "b": '["x"]'}
    for policy, expected in (
        ({"a": ["y"]}, True),
        ({"a": [1]}, True),
        ({"a": ["z"]}, False),
        ({"a": [{"anything-but": ["x", "y"]}]}, True),
        ({"b": ["x"]}, False),
        ({"b": ['["x"]']}, True),
    ):
        assert compile_filter(policy).matches(Values(headers)) is expected
    assert compile_filter({"a": ["{"]}).matches(Values({"a": "{", "AWS.DataType.a": "String.Array"}))


INVALID: list[tuple[Any, str]] = [
    (None, "filter"),
    ({}, "filter"),
    ([], "filter"),
    ({"store": "berlin"}, "filter.store"),
    ({"store": []}, "filter.store"),
    ({"store": [None]}, "filter.store[0]"),
    ({"store": [["berlin"]]}, "filter.store[0]"),
    ({"store": ["x", {}]}, "filter.store[1]"),
    ({"store": [{"prefix": "a", "suffix": "b"}]}, "filter.store[0]"),
    ({"store": [{"wild": "a"}]}, "filter.store[0]"),
    ({"store": [{"prefix": ""}]}, "filter.store[0].prefix"),
    ({"store": [{"suffix": 5}]}, "filter.store[0].suffix"),
    ({"store": [{"exists": "yes"}]}, "filter.store[0].exists"),
    ({"store": [{"exists": 0}]}, "filter.store[0].exists"),
    ({"store": [{"equals-ignore-case": ["a"]}]}, "filter.store[0].equals-ignore-case"),
    ({"store": [{"anything-but": []}]}, "filter.store[0].anything-but"),
    ({"store": [{"anything-but": None}]}, "filter.store[0].anything-but"),
    ({"store": [{"anything-but": {"exists": True}}]}, "filter.store[0].anything-but"),
    ({"total": [{"numeric": []}]}, "filter.total[0].numeric"),
    ({"total": [{"numeric": [">"]}]}, "filter.total[0].numeric"),
    ({"total": [{"numeric": ["!=", 1]}]}, "filter.total[0].numeric"),
    ({"total": [{"numeric": [">", "1"]}]}, "filter.total[0].numeric"),
    ({"total": [{"numeric": ["<", 1, ">", 0]}]}, "filter.total[0].numeric"),
    ({"total": [{"numeric": [">", 5, "<", 5]}]}, "filter.total[0].numeric"),
    ({"total": [{"numeric": [">", float("nan")]}]}, "filter.total[0].numeric"),
    ({"total": [float("inf")]}, "filter.total[0]"),
    ({"ip": [{"cidr": "10.0.0.1/24"}]}, "filter.ip[0].cidr"),
    ({"ip": [{"cidr": "ten"}]}, "filter.ip[0].cidr"),
    ({"$or": [{"a": ["1"]}]}, "filter.$or"),
    ({"$or": {"a": ["1"]}}, "filter.$or"),
    ({"$or": [{"a": ["1"]}, {}]}, "filter.$or[1]"),
    ({"$or": [{"a": ["1"]}, {"b": []}]}, "filter.$or[1].b"),
]


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        ({"prefix": ""}, "filter.a[0].prefix: '' is empty"),
        ({"cidr": "ten"}, "filter.a[0].cidr: 'ten' is not a range of addresses; use one such as 10.0.0.0/8"),
        ({"cidr": "10.0.0.1/24"}, "filter.a[0].cidr: '10.0.0.1/24' is an address within a range; use 10.0.0.0/24"),
    ],
    ids=str,
)
def test_what_is_wrong_with_a_condition_is_said_once(condition: Any, text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_filter({"a": [condition]})
    assert refused.value.text == text


def test_nan_in_a_filter_over_the_body_does_not_become_null() -> None:
    compile_filter({"a": {"b": [None, 1]}}, "body")
    with pytest.raises(InvalidRequest, match=r"filter\.a\.b\[1\]: NaN and infinity are not JSON values"):
        compile_filter({"a": {"b": [None, float("nan")]}}, "body")


@pytest.mark.parametrize(("policy", "field"), INVALID)
def test_invalid_filter_is_refused_and_its_part_named(policy: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        compile_filter(policy)
    assert refused.value.field == field
    assert refused.value.text.startswith(f"{field}: ")


def _nested(depth: int) -> dict[str, Any]:
    return {"$or": [_nested(depth - 1), {"a": ["1"]}]} if depth else {"a": ["1"]}


def test_filter_is_bounded() -> None:
    compile_filter(_nested(3))
    with pytest.raises(InvalidRequest, match="nested"):
        compile_filter(_nested(4))
    compile_filter({f"h{number}": ["x"] for number in range(NAMES)})
    with pytest.raises(TooLarge, match="33 names"):
        compile_filter({f"h{number}": ["x"] for number in range(NAMES + 1)})
    compile_filter({"h": [str(number) for number in range(CONDITIONS)]})
    with pytest.raises(TooLarge, match="conditions"):
        compile_filter({"h": [str(number) for number in range(CONDITIONS + 1)]})
    with pytest.raises(TooLarge, match="conditions"):
        compile_filter({"h": [{"anything-but": [str(number) for number in range(CONDITIONS + 1)]}]})
    with pytest.raises(TooLarge, match="bytes as JSON"):
        compile_filter({"h": ["x" * FILTER_BYTES]})


def test_texts_that_are_numbers() -> None:
    for text, number in {"1": 1, "-1.50": -1.5, "+.5": 0.5, "1.": 1, "007": 7, "1E-2": 0.01}.items():
        assert number_of(text) == number
    for text in ("", " 1", "1 ", "0x10", "1,5", "--1", "1e", "\u0661", "1" * 65):
        assert number_of(text) is None
