"""The nesting of JSON is limited alike on every Python, and counted without parsing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from miniq.broker import rules
from miniq.errors import InvalidRequest
from miniq.ids import IdSource
from miniq.json_values import DEPTH, check_finite, is_deep
from miniq.message import JSON, Draft, PlainDrafts, QueueSettings
from miniq.options import Limits

SHAPES: dict[str, Callable[[int], str]] = {
    "arrays": lambda depth: "[" * depth + "]" * depth,
    "objects": lambda depth: '{"a":' * depth + "1" + "}" * depth,
    "objects in arrays": lambda depth: '[{"a":' * (depth // 2) + ("[]" if depth % 2 else "1") + "}]" * (depth // 2),
    "brackets in strings": lambda depth: '["]]]]","{[",' * depth + '"}"' + "]" * depth,
    "escapes": lambda depth: r'["\"]]","\\",' * depth + r'"\\\"]"' + "]" * depth,
    "names": lambda depth: '{"]\\"}":' * depth + "1" + "}" * depth,
    "siblings": lambda depth: f"[{'[],{},' * 2000}{'[' * (depth - 1)}{']' * (depth - 1)}]",
    "white space": lambda depth: "[ \n" * depth + "\t]" * depth,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_nesting_is_counted_exactly(shape: str) -> None:
    deepest, deeper = (SHAPES[shape](depth).encode() for depth in (DEPTH, DEPTH + 1))
    json.loads(deepest)
    assert not is_deep(deepest)
    assert is_deep(deeper)


@pytest.mark.parametrize(
    "text",
    [
        "[]" * DEPTH * 2,
        f'"{"[" * 5000}"',
        f'["{"[" * 5000}"]',
        json.dumps([{"a": [1], '"': '\\"['}] * 1000),
        " " * 5000,
    ],
    ids=["flat", "a string", "a string in a list", "rows", "white space"],
)
def test_many_brackets_are_not_deep_nesting(text: str) -> None:
    assert not is_deep(text.encode())


DEEP = SHAPES["objects in arrays"](DEPTH + 1).encode()
SETTINGS = QueueSettings()
WAYS: dict[str, Callable[[Sequence[Draft]], Any]] = {
    "send": lambda drafts: rules.admit("q", SETTINGS, drafts, IdSource(), 1, Limits()),
    "publish": lambda drafts: rules.check_drafts(drafts, Limits()),
    "upload": lambda drafts: rules.stage("q", SETTINGS, drafts, Limits()),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_send_refuses_it_with_the_place(way: str) -> None:
    for drafts in (
        PlainDrafts([b"1", DEEP]),
        PlainDrafts([b"1", DEEP], "application/ld+json"),
        [Draft(b"1"), Draft(DEEP)],
        [Draft(b"1"), Draft(DEEP, "application/ld+json", key="k")],
    ):
        with pytest.raises(InvalidRequest, match=f"body: nested more than {DEPTH} levels deep") as caught:
            WAYS[way](drafts)
        assert (caught.value.code, caught.value.field) == ("invalid", "messages[1].body")
    for kind in ("text/plain", "application/octet-stream"):
        WAYS[way](PlainDrafts([b"1", DEEP], kind))
        WAYS[way]([Draft(b"1"), Draft(DEEP, kind)])
    WAYS[way](PlainDrafts([b"1", SHAPES["arrays"](DEPTH).encode()], JSON))


def test_a_value_too_deep_to_be_searched_for_nan_is_too_deep() -> None:
    value: list[Any] = []
    for _ in range(5000):
        value = [value]
    with pytest.raises(InvalidRequest, match="result: nested more than"):
        check_finite(value, "result")
