"""Patterns of subscriptions: AMQP's topic rules over the key of a message.

A key is words separated by dots. In a pattern `*` stands for exactly one word and `#` for any number of words, also
none. A message without a key has no words, so only patterns that accept none match it.

All patterns of a topic are matched together, in one pass over the words of a key: each pattern is a chain of states,
all chains are bits of one number, and a word moves all of them at once. So the time depends on the number of words, not
on what a pattern looks like.
"""

from __future__ import annotations

from collections.abc import Sequence

from miniq.errors import InvalidRequest, TooLarge, show

PATTERN_BYTES = 256
CACHED = 4096
"""Keys whose matches are remembered."""


def words_of(key: str | None) -> list[str]:
    """The words of a key."""
    return key.split(".") if key else []


def check_pattern(pattern: object) -> str:
    """Raise unless this is a valid pattern."""
    if not isinstance(pattern, str) or not pattern:
        raise InvalidRequest(f"pattern: {show(pattern)} is not a pattern such as orders.*.created", field="pattern")
    try:
        size = len(pattern.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"pattern: {show(pattern)} is not valid Unicode", field="pattern") from None
    if size > PATTERN_BYTES:
        raise TooLarge(f"pattern: {size} bytes in UTF-8; at most {PATTERN_BYTES}", field="pattern")
    for word in words_of(pattern):
        if len(word) > 1 and ("*" in word or "#" in word):
            text = f"pattern: {word!r:.80} mixes a wildcard with text; * and # stand for whole words"
            raise InvalidRequest(text, field="pattern")
    return pattern


class Patterns:
    """Some patterns, compiled to be matched together."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._exact: dict[str, int] = {}
        """By word, the states that it moves on."""
        self._any_word = self._any_words = self._start = self._accept = 0
        self._accepting: dict[int, list[int]] = {}
        """By the position of an accepting state, the patterns it belongs to."""
        self._cache: dict[str, tuple[int, ...]] = {}
        places: dict[str, int] = {}
        at = 0
        for number, pattern in enumerate(patterns):
            if pattern in places:
                self._accepting[places[pattern]].append(number)
                continue
            self._start |= 1 << at
            before = ""
            for word in words_of(pattern):
                if word == "#":
                    if before != "#":
                        self._any_words |= 1 << at
                        at += 1
                elif word == "*":
                    self._any_word |= 1 << at
                    at += 1
                else:
                    self._exact[word] = self._exact.get(word, 0) | 1 << at
                    at += 1
                before = word
            self._accept |= 1 << at
            self._accepting[at] = [number]
            places[pattern] = at
            at += 1
        self._step = 3 + at // 3000
        """What a word of a key costs: it moves all states at once."""

    def cost(self, key: str | None, matched: Sequence[int]) -> int:
        """What it costs at most to match a key with these patterns, in the unit of `Filter.cost`."""
        return self._step * (len(words_of(key or "")) + len(matched))

    def match(self, key: str | None) -> tuple[int, ...]:
        """The numbers of the patterns that match a key, in order."""
        key = key or ""
        matched = self._cache.get(key)
        if matched is None:
            if len(self._cache) >= CACHED:
                self._cache.clear()
            matched = self._cache[key] = self._match(key)
        return matched

    def _match(self, key: str) -> tuple[int, ...]:
        exact, any_word, any_words = self._exact, self._any_word, self._any_words
        states = self._start | (self._start & any_words) << 1
        for word in words_of(key):
            states = (states & (any_word | exact.get(word, 0))) << 1 | states & any_words
            states |= (states & any_words) << 1
        reached = states & self._accept
        matched: list[int] = []
        while reached:
            lowest = reached & -reached
            matched += self._accepting[lowest.bit_length() - 1]
            reached ^= lowest
        return tuple(sorted(matched))
