"""Arguments that are lists, where a text, a map or a single value is refused, and filters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from miniq.api.checks import check_texts
from miniq.errors import InvalidRequest

T = TypeVar("T")


def as_list(values: Iterable[T], field: str, of: str) -> list[T]:
    """Values as a list; the error says what it must be a list `of`."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidRequest(f"{field}: {values!r:.80} is not a list of {of}", field=field)
    return list(values)


def as_texts(values: Iterable[str], field: str) -> list[str]:
    """The same for texts."""
    texts = as_list(values, field, "texts")
    check_texts(texts, field)
    return texts


def as_filter(filter: Mapping[str, Any]) -> dict[str, Any]:
    """A filter whose names are texts: JSON would make texts of numbers, and another format would not."""
    for name in filter:
        if not isinstance(name, str):
            raise InvalidRequest(f"filter: {name!r:.80} is not the name of a header; use text", field="filter")
    return dict(filter)
