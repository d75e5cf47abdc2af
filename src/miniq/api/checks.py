"""What a client refuses before it sends a call: values that a wire would bend into others, or cannot carry.

Everything else is the broker's to judge.
"""

from __future__ import annotations

import math
from typing import Any

from miniq.errors import BadName, InvalidRequest, MessageNotFound


def check_text(value: object, field: str, place: int | None = None) -> None:
    """Refuse what is not text but would become some on the wire, such as bytes."""
    if value is not None and not isinstance(value, str):
        raise _wrong(field, place, f"{value!r:.80} is not text")


def check_texts(values: Any, field: str) -> None:
    """The same for a list."""
    for value in values or ():
        check_text(value, field)


def check_number(value: object, field: str, place: int | None = None) -> None:
    """Refuse numbers that JSON does not have and that would be lost on the wire."""
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(field, place, f"{value!r} is not a number of seconds")


def check_map(values: Any, field: str) -> None:
    """Refuse the same where names and values are the broker's to judge."""
    for name, value in values.items():
        check_number(value, name)
        if isinstance(value, bytes | bytearray):
            check_text(value, name)


def check_headers(headers: Any, place: int | None = None) -> Any:
    """Refuse headers that are not a map from text to text."""
    if headers is None:
        return None
    if not isinstance(headers, dict):
        raise _wrong("headers", place, f"{headers!r:.80} is not a map from text to text")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise _wrong("headers", place, f"{name!r:.80}: {value!r:.80} is not text to text")
    return headers


def check_name(value: object, field: str) -> None:
    """Refuse what a path cannot carry: it names nothing that there could be."""
    if isinstance(value, str) and value and "/" not in value:
        return
    if field == "id":
        raise MessageNotFound(f"id: nothing has the id {value!r:.80}", field="id")
    kind = "queue name" if field == "queue" else "name"
    raise BadName(f"{field}: {value!r:.80} is not a {kind}; use 1 to 128 of A-Z a-z 0-9 . _ -", field=field)


def _wrong(field: str, place: int | None, text: str) -> InvalidRequest:
    if place is not None:
        field = f"messages[{place}].{field}"
    return InvalidRequest(f"{field}: {text}", field=field)
