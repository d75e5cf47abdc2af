"""What the query of a URL says, read as what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from miniq.api import codec
from miniq.errors import InvalidRequest


def number(query: Mapping[str, str], name: str, default: int) -> int:
    """A whole number from a query."""
    text = query.get(name)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest(f"{name}: {text[:80]!r} is not a whole number", field=name) from None


def moment(query: Mapping[str, str], name: str) -> datetime:
    """A moment from a query."""
    text = query[name]
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is not None:
            codec.micros(at)
            return at
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest(f"{name}: {text[:80]!r} is not a moment such as 2026-11-15T08:00:00Z", field=name)
