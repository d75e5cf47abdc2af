"""Patterns of subscriptions, as a table of cases, and against a plain matcher."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from miniq.broker.patterns import PATTERN_BYTES, Patterns, check_pattern, words_of
from miniq.errors import InvalidRequest, TooLarge

CASES = [
    ("orders", "orders", True),
    ("orders", "orders.created", False),
    ("orders", "Orders", False),
    ("orders.created", "orders.created", True),
    ("orders.created", "orders", False),
    ("*", "orders", True),
    ("*", "orders.created", False),
    ("*", None, False),
    ("*", "", False),
    ("*.created", "orders.created", True),
    ("*.created", ".created", True),
    ("*.created", "created", False),
    ("orders.*.created", "orders.eu.created", True),
    ("orders.*.created", "orders.created", False),
    ("orders.*.created", "orders.eu.de.created", False),
    ("orders.*.created", "orders..created", True),
    ("#", "orders", True),
    ("#", "orders.eu.created", True),
    ("#", None, True),
    ("#", "", True),
    ("#.#", None, True),
    ("#.#", "a.b", True),
    ("#.*", None, False),
    ("#.*", "a", True),
    ("#.*", "a.b.c", True),
    ("*.#", "a", True),
    ("*.#", None, False),
    ("*.#.*", "a", False),
    ("*.#.*", "a.b", True),
    ("*.#.*", "a.b.c", True),
    ("orders.#", "orders", True),
    ("orders.#", "orders.eu.created", True),
    ("orders.#", "order", False),
    ("#.created", "created", True),
    ("#.created", "orders.eu.created", True),
    ("#.created", "orders.created.eu", False),
    ("orders.#.created", "orders.created", True),
    ("orders.#.created", "orders.a.b.created", True),
    ("orders.#.created", "orders.created.created", True),
    ("orders.#.created", "orders", False),
    ("a.#.b.#.c", "a.b.c", True),
    ("a.#.b.#.c", "a.x.b.y.z.c", True),
    ("a.#.b.#.c", "a.c.b", False),
    ("a.*.#.b", "a.b", False),
    ("a.*.#.b", "a.x.b", True),
    ("ä.*", "ä.ö", True),
    ("orders.", "orders.", True),
    ("orders.", "orders", False),
]


@pytest.mark.parametrize(("pattern", "key", "expected"), CASES)
def test_pattern_matches_as_amqp_says(pattern: str, key: str | None, expected: bool) -> None:
    assert bool(Patterns([check_pattern(pattern)]).match(key)) is expected


def test_patterns_matched_together_do_not_disturb_each_other() -> None:
    patterns = list(dict.fromkeys(pattern for pattern, _, _ in CASES))
    together = Patterns(patterns)
    for key in {key for _, key, _ in CASES}:
        alone = tuple(number for number, pattern in enumerate(patterns) if Patterns([pattern]).match(key))
        assert together.match(key) == alone
        assert together.match(key) == alone  # from the cache


def test_equal_patterns_all_match() -> None:
    assert Patterns(["a.*", "b", "a.*"]).match("a.x") == (0, 2)


def _plain(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(_plain(pattern[1:], words[skipped:]) for skipped in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and _plain(pattern[1:], words[1:])


_words = st.lists(st.sampled_from(["a", "b", "*", "#"]), min_size=1, max_size=5)


@given(st.lists(_words, min_size=1, max_size=8), st.lists(st.sampled_from(["a", "b", "c"]), max_size=6))
def test_patterns_agree_with_a_plain_matcher(patterns: list[list[str]], words: list[str]) -> None:
    matched = Patterns([".".join(pattern) for pattern in patterns]).match(".".join(words))
    assert matched == tuple(number for number, pattern in enumerate(patterns) if _plain(pattern, words))


@pytest.mark.parametrize("pattern", ["", None, 5, "a*", "#a.b", "a.b#", "\ud800"])
def test_invalid_pattern_is_refused(pattern: object) -> None:
    with pytest.raises(InvalidRequest, match="pattern: "):
        check_pattern(pattern)


def test_long_pattern_is_refused() -> None:
    check_pattern("a" * PATTERN_BYTES)
    with pytest.raises(TooLarge, match="257 bytes"):
        check_pattern("a" * (PATTERN_BYTES + 1))


def test_hostile_patterns_cost_little() -> None:
    """A backtracking matcher would not return in a lifetime."""
    patterns = Patterns([".".join(["#", "a"] * 63 + [f"x{number}"]) for number in range(1000)])
    assert patterns.match(".".join(["a"] * 128)) == ()


def test_words() -> None:
    assert words_of(None) == words_of("") == []
    assert words_of("a..b") == ["a", "", "b"]
