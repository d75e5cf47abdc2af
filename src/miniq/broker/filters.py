"""Filters of subscriptions: Amazon SNS's filter policy grammar over the headers of a message, or over its JSON body.

    {"store": ["berlin", {"prefix": "paris-"}], "total": [{"numeric": [">=", 100]}], "test": [{"exists": false}]}

All names of a filter must match, each by one of the conditions in its list. `$or` is a list of filters, one of which
must match. Headers are text: a number in a filter, and `numeric`, match text that is a number. A header of the type
`String.Array` (see `envelopes.DATA_TYPE`) is a JSON array, of which one element must match; one of the type `Binary`
counts as absent.

A filter over the body may be nested as the body is, and its values have the types of JSON. In a list, one element must
match. A body that is not a JSON object matches no filter.

A filter is JSON on every wire and in process. It is compiled once; what it may contain is bounded, and what conditions
ask of a header is found once per message for all filters, so that no filter makes a match expensive.
"""

from __future__ import annotations

import ipaddress
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Literal

import msgspec

from miniq.broker.envelopes import ARRAY, BINARY, DATA_TYPE
from miniq.errors import InvalidRequest, TooLarge, show
from miniq.json_values import check_finite

FILTER_BYTES = 16 * 1024
NAMES = 32
CONDITIONS = 150
DEPTH = 3
"""How deep `$or` may be nested."""
NUMBER_LENGTH = 64
ADDRESS_LENGTH = 45
"""The longest text that may be a number, or an IP address."""
NESTING = 8
"""How deep a filter over the body may be nested."""
ELEMENTS = 1000
"""How many elements of lists are tested for a name."""
KINDS = ("prefix", "suffix", "equals-ignore-case", "anything-but", "exists", "numeric", "cidr")

Headers = Mapping[str, str]
Scope = Literal["headers", "body"]
Path = tuple[str, ...]
"""The name of a header, or the names that lead to a value in a body."""
_NOT_TEXT = "\ud800"
"""Encloses the text that stands for a value of JSON that is not text. No text has it: it is half a character."""


class Value:
    """A header of a message, or a value in its body, and what conditions ask of it."""

    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def folded(self) -> str:
        return self.text.casefold()

    @cached_property
    def number(self) -> float | None:
        return number_of(self.text)

    @cached_property
    def address(self) -> tuple[int, int]:
        """The version of an IP address and the address as a number; version 0 if the text is none."""
        with suppress(ValueError):
            if len(self.text) <= ADDRESS_LENGTH:
                address = ipaddress.ip_address(self.text)
                return address.version, int(address)
        return 0, 0


class BodyValue(Value):
    """A value of JSON that is neither a list nor an object."""

    def __init__(self, value: str | float | bool | None) -> None:
        super().__init__(value if isinstance(value, str) else _literal(value))
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        self._number = value if is_number else None

    @cached_property
    def number(self) -> float | None:
        return self._number  # type: ignore[return-value]


def _literal(value: object) -> str:
    """What stands for a value that is not text."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{_NOT_TEXT}{'number' if is_number else show(value)}{_NOT_TEXT}"


class Values(dict[Path, Sequence[Value]]):
    """The headers of a message for its tests; made as they are asked for. A header that is absent has no values."""

    def __init__(self, headers: Headers) -> None:
        super().__init__()
        self._headers = headers

    def __missing__(self, path: Path) -> Sequence[Value]:
        (name,) = path
        text = self._headers.get(name)
        values: Sequence[Value] = () if text is None else (Value(text),)
        kind = None if text is None else self._headers.get(DATA_TYPE + name)
        if kind is not None and kind.startswith(BINARY):
            values = ()
        elif text is not None and kind == ARRAY:
            elements = _decoded(text.encode("utf-8", "replace"))
            if isinstance(elements, list):
                values = [BodyValue(element) for element in elements[:ELEMENTS] if not isinstance(element, list | dict)]
        self[path] = values
        return values


class BodyValues(Values):
    """The values in the body of a message."""

    def __init__(self, body: bytes) -> None:
        super().__init__({})
        self._root = _decoded(body)

    @property
    def is_object(self) -> bool:
        """Whether the body is a JSON object, which filters can match."""
        return isinstance(self._root, dict)

    def __missing__(self, path: Path) -> Sequence[Value]:
        nodes: list[Any] = [self._root]
        for step in path:
            nodes = [node[step] for node in _flat(nodes) if isinstance(node, dict) and step in node]
        values = self[path] = [BodyValue(node) for node in _flat(nodes) if not isinstance(node, dict)]
        return values


def _flat(nodes: list[Any]) -> list[Any]:
    """Values with lists replaced by their elements, up to `ELEMENTS` of them."""
    flat: list[Any] = []
    rest = nodes[::-1]
    while rest and len(flat) < ELEMENTS:
        node = rest.pop()
        if isinstance(node, list):
            rest += node[:ELEMENTS][::-1]
        else:
            flat.append(node)
    return flat


def _decoded(raw: bytes) -> Any:
    """A value from its JSON; None if it is none."""
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


_Test = Callable[[Values], bool]
_Condition = Callable[[Value], bool]
"""A compiled condition, for a value that is present."""

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Filter:
    """A compiled filter."""

    def __init__(self, policy: dict[str, Any], matches: _Test, cost: int, scope: Scope) -> None:
        self.policy = policy
        """As JSON has it."""
        self.matches = matches
        """Whether the headers of a message match, or its body."""
        self.scope = scope
        self.cost = cost
        """How many names and conditions may be tested."""


def compile_filter(policy: object, scope: Scope = "headers") -> Filter:
    """The test of a filter; raises if the filter is invalid, naming the part that is."""
    _check_object(policy, "filter")
    try:
        raw = msgspec.json.encode(policy)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid("filter", f"cannot be written as JSON: {error}") from None
    if len(raw) > FILTER_BYTES:
        raise TooLarge(f"filter: {len(raw)} bytes as JSON; at most {FILTER_BYTES}", field="filter")
    plain = msgspec.json.decode(raw)  # the same on every wire: no tuples
    compiler = _Compiler(scope)
    test = compiler.all_of(plain, "filter", 0, ())
    if b"null" in raw:
        check_finite(policy, "filter")
    if compiler.names > NAMES:
        raise TooLarge(f"filter: {compiler.names} names; at most {NAMES}", field="filter")
    if compiler.conditions > CONDITIONS:
        raise TooLarge(f"filter: {compiler.conditions} conditions; at most {CONDITIONS}", field="filter")
    return Filter(plain, test, compiler.names + compiler.conditions, scope)


def number_of(text: str) -> float | None:
    """The number that a text is, None if it is none."""
    if len(text) > NUMBER_LENGTH or _NUMBER.fullmatch(text) is None:
        return None
    if text.lstrip("+-").isdigit():
        return int(text)  # compared exactly, however large
    number = float(text)
    return number if math.isfinite(number) else None


class _Compiler:
    """Compiles one filter, and counts what is in it."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.names = 0
        self.conditions = 0

    def all_of(self, policy: Any, field: str, depth: int, path: Path) -> _Test:
        _check_object(policy, field)
        tests = [self._part(name, value, field, depth, path) for name, value in policy.items()]
        return tests[0] if len(tests) == 1 else lambda values: all(test(values) for test in tests)

    def _part(self, name: str, value: Any, field: str, depth: int, path: Path) -> _Test:
        if name == "$or":
            return self._or(value, f"{field}.$or", depth + 1, path)
        if self._scope == "body" and isinstance(value, dict):
            if len(path) == NESTING:
                raise _invalid(field, f"is nested more than {NESTING} deep")
            return self.all_of(value, f"{field}.{name[:80]}", depth, (*path, name))
        return self._values((*path, name), value, field)

    def _or(self, policies: Any, field: str, depth: int, path: Path) -> _Test:
        if depth > DEPTH:
            raise _invalid(field, f"is nested more than {DEPTH} deep")
        if not isinstance(policies, list) or len(policies) < 2:
            raise _invalid(field, f"{show(policies)} is not a list of at least two filters")
        tests = [self.all_of(policy, f"{field}[{place}]", depth, path) for place, policy in enumerate(policies)]
        return lambda values: any(test(values) for test in tests)

    def _literal(self, value: bool | None) -> str:
        """What stands for true, false or null: their text in headers."""
        return show(value) if self._scope == "headers" else _literal(value)

    def _values(self, path: Path, conditions: Any, field: str) -> _Test:
        name = path[-1]
        if not name:
            raise _invalid(field, "'' is not the name of a header")
        field = f"{field}.{name[:80]}"
        if not isinstance(conditions, list) or not conditions:
            raise _invalid(field, f'{show(conditions)} is not a list of conditions; use one such as ["berlin"]')
        self.names += 1
        self.conditions += len(conditions)
        if self.conditions > CONDITIONS:
            raise TooLarge(f"filter: more than {CONDITIONS} conditions", field="filter")
        choice = _Choice()
        for place, condition in enumerate(conditions):
            at = f"{field}[{place}]"
            if isinstance(condition, str):
                choice.texts.add(condition)
            elif isinstance(condition, bool) or (condition is None and self._scope == "body"):
                choice.texts.add(self._literal(condition))
            elif isinstance(condition, int | float):
                choice.numbers.add(_finite(condition, at))
            else:
                kind, value = _single(condition, at)
                self._add(choice, kind, value, f"{at}.{kind}")
        return choice.test(path)

    def _add(self, choice: _Choice, kind: str, value: Any, field: str) -> None:
        """Add a condition that is an object."""
        if kind == "prefix":
            choice.starts.append(_text(value, field))
        elif kind == "suffix":
            choice.ends.append(_text(value, field))
        elif kind == "equals-ignore-case":
            choice.folded.add(_text(value, field).casefold())
        elif kind == "exists":
            if not isinstance(value, bool):
                raise _invalid(field, f"{show(value)} is neither true nor false")
            if value:
                choice.others.append(lambda value: True)
            else:
                choice.absent = True
        elif kind == "numeric":
            choice.others.append(_numeric_test(_comparisons(value, field)))
        elif kind == "cidr":
            choice.others.append(_cidr_test(value, field))
        else:
            choice.others.append(self._anything_but(value, field))

    def _anything_but(self, value: Any, field: str) -> _Condition:
        if isinstance(value, dict):
            kind, inner = _single(value, field, ("prefix", "suffix", "equals-ignore-case"))
            some = inner if isinstance(inner, list) and inner else [inner]
            self.conditions += len(some)
            given = tuple(_text(each, f"{field}.{kind}") for each in some)
            if kind == "prefix":
                return lambda value: not value.text.startswith(given)
            if kind == "suffix":
                return lambda value: not value.text.endswith(given)
            folded = frozenset(each.casefold() for each in given)
            return lambda value: value.folded not in folded
        values = value if isinstance(value, list) else [value]
        if not values:
            raise _invalid(field, "is empty; use a value, or a list of values")
        self.conditions += len(values)
        texts: set[str] = set()
        numbers: set[float] = set()
        for each in values:
            if isinstance(each, bool) or (each is None and self._scope == "body"):
                texts.add(self._literal(each))
            elif isinstance(each, int | float):
                numbers.add(_finite(each, field))
            else:
                texts.add(_text(each, field))
        if not numbers:
            return lambda value: value.text not in texts
        return lambda value: value.text not in texts and value.number not in numbers


class _Choice:
    """The conditions for a header or a value in the body, of which one must hold."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.folded: set[str] = set()
        self.numbers: set[float] = set()
        self.starts: list[str] = []
        self.ends: list[str] = []
        self.others: list[_Condition] = []
        self.absent = False

    def test(self, path: Path) -> _Test:
        texts, folded, numbers, others, absent = self.texts, self.folded, self.numbers, self.others, self.absent
        starts, ends = tuple(self.starts), tuple(self.ends)

        def holds(value: Value) -> bool:
            text = value.text
            if text in texts or (starts and text.startswith(starts)) or (ends and text.endswith(ends)):
                return True
            if (numbers and value.number in numbers) or (folded and value.folded in folded):
                return True
            return any(condition(value) for condition in others)

        def test(values: Values) -> bool:
            found = values[path]
            if not found:
                return absent
            return holds(found[0]) if len(found) == 1 else any(holds(value) for value in found)

        return test


def _numeric_test(comparisons: list[tuple[str, float]]) -> _Condition:
    tests = [(_COMPARISONS[sign], bound) for sign, bound in comparisons]

    def test(value: Value) -> bool:
        number = value.number
        return number is not None and all(compare(number, bound) for compare, bound in tests)

    return test


def _comparisons(value: Any, field: str) -> list[tuple[str, float]]:
    if not isinstance(value, list) or len(value) not in (2, 4):
        raise _invalid(field, f'{show(value)} is not a comparison such as [">", 0, "<=", 100]')
    comparisons: list[tuple[str, float]] = []
    for sign, bound in zip(value[::2], value[1::2], strict=True):
        if not isinstance(sign, str) or sign not in _COMPARISONS:
            raise _invalid(field, f"{show(sign)} is not one of {' '.join(_COMPARISONS)}")
        comparisons.append((sign, _finite(bound, field)))
    if len(comparisons) == 2 and (comparisons[0][0][0] != ">" or comparisons[1][0][0] != "<"):
        raise _invalid(field, f'{show(value)} is not a range such as [">", 0, "<=", 100]')
    if len(comparisons) == 2 and comparisons[0][1] >= comparisons[1][1]:
        raise _invalid(field, f"{show(value)} is an empty range")
    return comparisons


def _cidr_test(value: Any, field: str) -> _Condition:
    text = _text(value, field)
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise _invalid(field, f"{show(value)} is not a range of addresses; use one such as 10.0.0.0/8") from None
    if network.network_address != ipaddress.ip_interface(text).ip:
        raise _invalid(field, f"{show(value)} is an address within a range; use {network}")

    version, first, mask = network.version, int(network.network_address), int(network.netmask)

    def test(value: Value) -> bool:
        given, address = value.address
        return given == version and address & mask == first

    return test


def _single(condition: Any, field: str, kinds: tuple[str, ...] = KINDS) -> tuple[str, Any]:
    """The kind and value of a condition that is an object."""
    if not isinstance(condition, dict) or len(condition) != 1:
        raise _invalid(field, f"{show(condition)} is not a condition; use text, a number, or one of {', '.join(kinds)}")
    [(kind, value)] = condition.items()
    if kind not in kinds:
        raise _invalid(field, f"{show(kind)} is not a condition; use one of {', '.join(kinds)}")
    return kind, value


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise _invalid(field, f"{show(value)} is not text")
    if not value:
        raise _invalid(field, f"{show(value)} is empty")
    return value


def _finite(value: Any, field: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e308:
        raise _invalid(field, f"{show(value)} is not a number")
    return value


def _check_object(policy: object, field: str) -> None:
    if not isinstance(policy, dict) or not policy:
        raise _invalid(field, f'{show(policy)} is not a filter such as {{"store": ["berlin"]}}')


def _invalid(field: str, problem: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {problem}", field=field)
